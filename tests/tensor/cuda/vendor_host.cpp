/* vendor_host.cpp - tensor/cuda/vendor.h on the host, for tests: work is done at once.
 *
 * COUPLET_TEST_CUDA in the environment, "KEY=N,KEY=N", describes another machine: see `asked`.
 * COUPLET_TEST_CUDA_PEAK names a file that gets the peak of the memory that was taken.
 * The memory is that of device_memory.h. Products are plain loops, one sum a number, k in order. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device_memory.h"
#include "tensor/cuda/found.h"
#include "tensor/cuda/vendor.h"
#include "tensor/numbers.h"

/* ---- settings of the environment, and faults ---- */

/* Returns the value of a key in COUPLET_TEST_CUDA, or `other` without it:
 *     driver, count, major, kernels   as cpl_cuda_found has them
 *     cublaslt                        1: the file is looked for, as on a GPU
 *     take                            number of the request for memory that fails
 *     bytes                           memory of the device; the default is 2^40
 *     less                            bytes that another program takes between a look and a take
 *     launch                          number of the launch whose kernel reads outside its memory:
 *                                     the next wait for it fails, and all later calls fail
 *     ecc                             as launch, by a fault of memory */
static long asked(const char *key, long other)
{
    const char *text = getenv("COUPLET_TEST_CUDA");
    for (; text && *text; text = strchr(text, ',') ? strchr(text, ',') + 1 : "")
        if (!strncmp(text, key, strlen(key)) && text[strlen(key)] == '=')
            return strtol(text + strlen(key) + 1, nullptr, 10);
    return other;
}

static long takes, launches;

static size_t device_bytes(void)
{
    return (size_t)asked("bytes", 1L << 40);
}

static const char *failed(void)
{
    const long illegal = asked("launch", 0), ecc = asked("ecc", 0);
    if (illegal && launches >= illegal)
        return "an operation failed on the GPU: an illegal memory access was encountered";
    if (ecc && launches >= ecc)
        return "an operation failed on the GPU: uncorrectable ECC error encountered";
    return nullptr;
}

static const char *find_gpu(int device, int *driver)
{
    cpl_cuda_found f = {};
    f.driver = *driver = (int)asked("driver", 13000);
    f.runtime          = 13000;
    f.is_too_old       = f.driver / 1000 < f.runtime / 1000;
    f.count            = (int)asked("count", 1);
    f.device           = device < 0 ? 0 : device;
    f.major            = (int)asked("major", 9);
    f.has_kernels      = asked("kernels", 1);
    snprintf(f.name, sizeof f.name, "host");
    return cpl_cuda_missing(&f);
}

extern "C" const char *cpl_vendor_open(cpl_cuda *c, int device)
{
    int driver;
    void *library;
    size_t version     = 130000;
    const char *reason = find_gpu(device, &driver);
    if (!reason && asked("cublaslt", 0)) reason = cpl_cuda_open_cublaslt(&library, &version);
    if (reason) return reason;
    c->stream      = nullptr;
    c->vendor      = nullptr;
    c->device      = device < 0 ? 0 : device;
    c->sentence[0] = 0;
    snprintf(c->name, sizeof c->name, "cuda:%d host", c->device);
    cpl_cuda_libraries(c->libraries, sizeof c->libraries, driver, version);
    return nullptr;
}

extern "C" void cpl_vendor_close(cpl_cuda *)
{
    const char *path = getenv("COUPLET_TEST_CUDA_PEAK");
    FILE *file       = path ? fopen(path, "w") : nullptr;
    if (!file) return;
    fprintf(file, "%zu\n", on_host::peak);
    fclose(file);
}

extern "C" const char *cpl_vendor_choice(cpl_cuda *, int index)
{
    return index == 0 ? "all: plain loops" : nullptr;
}

/* ---- memory ---- */

extern "C" void *cpl_vendor_take(cpl_cuda *, size_t bytes)
{
    const size_t all = (size_t)asked("less", 0) + on_host::held + bytes;
    if (++takes == asked("take", 0) || failed() || all > device_bytes()) return nullptr;
    return on_host::take_memory(bytes);
}

extern "C" void cpl_vendor_give(cpl_cuda *, void *memory)
{
    on_host::give_memory(memory);
}

extern "C" const char *cpl_vendor_room(cpl_cuda *, size_t *there, size_t *all)
{
    *all   = device_bytes();
    *there = *all > on_host::held ? *all - on_host::held : 0;
    return nullptr;
}

extern "C" const char *cpl_vendor_put(cpl_cuda *, void *to, const void *from, size_t bytes)
{
    const on_host::reach memory;
    on_host::counts.copies++;
    on_host::counts.bytes += (int64_t)bytes;
    if (bytes && !on_host::is_dry() && !failed()) memcpy(to, from, bytes);
    return failed();
}

extern "C" const char *cpl_vendor_get(cpl_cuda *, void *to, const void *from, size_t bytes)
{
    const on_host::reach memory;
    on_host::counts.copies++;
    on_host::counts.bytes += (int64_t)bytes;
    on_host::counts.waits++;
    if (bytes && !on_host::is_dry() && !failed()) memcpy(to, from, bytes);
    return failed();
}

extern "C" const char *cpl_vendor_wait(cpl_cuda *)
{
    on_host::counts.waits++;
    return failed();
}

/* Counts a launch. A kernel's failure appears in the next wait for the kernel. */
extern "C" const char *cpl_vendor_launched(cpl_cuda *)
{
    const char *before = failed();
    launches++;
    return before;
}

extern "C" __attribute__((visibility("default"))) void cpl_on_host_counted(cpl_on_host_counts *out)
{
    *out = on_host::counts;
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

/* Refuses what a GPU's library refuses: operands of two types, BF16 of F32, shapes that misfit. */
static void check_product(cpl_tensor to, cpl_trans ta, cpl_tensor a, cpl_trans tb, cpl_tensor b,
                          float beta)
{
    CPL_ASSERT(a.dtype == b.dtype && (a.dtype == CPL_F32 || a.dtype == CPL_BF16));
    CPL_ASSERT(to.dtype == CPL_F32 || (to.dtype == CPL_BF16 && a.dtype == CPL_BF16));
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
    if (failed()) return failed();
    const on_host::reach memory;
    on_host::counts.products++;
    if (on_host::is_dry()) return nullptr;
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
