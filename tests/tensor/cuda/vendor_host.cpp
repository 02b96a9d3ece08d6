/* vendor_host.cpp - tensor/cuda/vendor.h on the host, for tests: work is done at once.
 *
 * Memory holds 0xff before its first use, which is a NaN in F32, BF16 and F64, so that a kernel which
 * reads what nothing has set is seen. Products are plain loops, one sum a number, k in order. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tensor/cuda/vendor.h"
#include "tensor/numbers.h"

static const size_t ALIGNMENT = 256;
enum { PROCESSORS = 3 }; /* few, so that grids which depend on them have a rest */

extern "C" const char *cpl_vendor_open(cpl_cuda *c, int device)
{
    if (device > 0) return "there is one GPU on the host, number 0";
    c->stream       = nullptr;
    c->vendor       = nullptr;
    c->device       = 0;
    c->n_processors = PROCESSORS;
    c->sentence[0]  = 0;
    snprintf(c->name, sizeof c->name, "cuda:0 host");
    return nullptr;
}

extern "C" void cpl_vendor_close(cpl_cuda *)
{
}

extern "C" void *cpl_vendor_take(cpl_cuda *, size_t bytes)
{
    void *memory;
    if (posix_memalign(&memory, ALIGNMENT, bytes)) return nullptr;
    memset(memory, 0xff, bytes);
    return memory;
}

extern "C" void cpl_vendor_give(cpl_cuda *, void *memory)
{
    free(memory);
}

extern "C" const char *cpl_vendor_put(cpl_cuda *, void *to, const void *from, size_t bytes)
{
    if (bytes) memcpy(to, from, bytes);
    return nullptr;
}

extern "C" const char *cpl_vendor_get(cpl_cuda *, void *to, const void *from, size_t bytes)
{
    if (bytes) memcpy(to, from, bytes);
    return nullptr;
}

extern "C" const char *cpl_vendor_wait(cpl_cuda *)
{
    return nullptr;
}

extern "C" const char *cpl_vendor_launched(cpl_cuda *)
{
    return nullptr;
}

/* ---- products ---- */

static float number_at(cpl_tensor x, int64_t i)
{
    return x.dtype == CPL_BF16 ? cpl_bf16_to_f32(((const uint16_t *)x.storage)[i]) : cpl_f32(x)[i];
}

static float sum_of(cpl_trans ta, cpl_tensor a, cpl_trans tb, cpl_tensor b, int64_t i, int64_t j)
{
    const int64_t k     = ta == CPL_AS_IS ? a.shape[1] : a.shape[0];
    const int64_t a_row = ta == CPL_AS_IS ? a.shape[1] : 1, a_k = ta == CPL_AS_IS ? 1 : a.shape[1];
    const int64_t b_col = tb == CPL_AS_IS ? 1 : b.shape[1], b_k = tb == CPL_AS_IS ? b.shape[1] : 1;
    float sum = 0;
    for (int64_t at = 0; at < k; at++)
        sum += number_at(a, i * a_row + at * a_k) * number_at(b, j * b_col + at * b_k);
    return sum;
}

/* Refuses what a GPU's library refuses: operands of two types, shapes that do not fit. */
static void check_product(cpl_tensor to, cpl_trans ta, cpl_tensor a, cpl_trans tb, cpl_tensor b,
                          float beta)
{
    CPL_ASSERT(a.dtype == b.dtype && (a.dtype == CPL_F32 || a.dtype == CPL_BF16));
    CPL_ASSERT(to.dtype == CPL_F32 || to.dtype == CPL_BF16);
    CPL_ASSERT(to.rank == 2 && a.rank == 2 && b.rank == 2 && (beta == 0 || beta == 1));
    CPL_ASSERT(to.shape[0] == (ta == CPL_AS_IS ? a.shape[0] : a.shape[1]));
    CPL_ASSERT(to.shape[1] == (tb == CPL_AS_IS ? b.shape[1] : b.shape[0]));
    CPL_ASSERT((ta == CPL_AS_IS ? a.shape[1] : a.shape[0]) ==
               (tb == CPL_AS_IS ? b.shape[0] : b.shape[1]));
}

extern "C" const char *cpl_vendor_product(cpl_cuda *, cpl_tensor to, cpl_trans ta, cpl_tensor a,
                                          cpl_trans tb, cpl_tensor b, float beta)
{
    check_product(to, ta, a, tb, b, beta);
    const int64_t m = to.shape[0], n = to.shape[1];
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = i * n + j;
            float sum        = sum_of(ta, a, tb, b, i, j);
            if (beta != 0) sum += number_at(to, at);
            if (to.dtype == CPL_BF16)
                ((uint16_t *)to.storage)[at] = cpl_bf16_from_f32(sum);
            else
                cpl_f32(to)[at] = sum;
        }
    }
    return nullptr;
}
