/* temporary */
#include "tensor/cuda/vendor.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "tensor/numbers.h"
extern "C" {
const char *cpl_vendor_open(cpl_cuda *c, int device) { if (device > 0) return "there is no such GPU"; snprintf(c->name, sizeof c->name, "cuda:0 emulated on the host"); c->n_processors = 4; return NULL; }
void cpl_vendor_close(cpl_cuda *) {}
void *cpl_vendor_take(cpl_cuda *, size_t bytes) { void *p = aligned_alloc(256, (bytes + 255) / 256 * 256); if (p) memset(p, 0xff, bytes); return p; }
void cpl_vendor_give(cpl_cuda *, void *m) { free(m); }
const char *cpl_vendor_put(cpl_cuda *, void *to, const void *from, size_t n) { memcpy(to, from, n); return NULL; }
const char *cpl_vendor_get(cpl_cuda *, void *to, const void *from, size_t n) { memcpy(to, from, n); return NULL; }
const char *cpl_vendor_wait(cpl_cuda *) { return NULL; }
const char *cpl_vendor_launched(cpl_cuda *) { return NULL; }
}
