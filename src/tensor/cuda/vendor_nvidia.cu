/* vendor_nvidia.cu - tensor/cuda/vendor.h by the CUDA runtime and cuBLASLt.
 *
 * Room:    tensor/cuda. The one file that calls libraries of the vendor. The runtime is linked
 *          statically; cuBLASLt, which is hundreds of megabytes, is opened when a GPU is.
 * Method:  A product in row-major order is its transpose in the column-major order of cuBLASLt. The
 *          algorithm is chosen once for a shape, by cuBLASLt's heuristic, and kept. Of the ways to
 *          split a sum over blocks only that is allowed which adds the parts in a step of its own, so
 *          that the same call gives the same bits.
 * Copies:  numbers to the device go through two pieces of pinned memory, so that the caller's may be
 *          used again at once. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <dlfcn.h>

#include "tensor/cuda/device.h"
#include "tensor/cuda/vendor.h"

enum { N_PIECES = 2, MOST_PLANS = 256, LEAST_MAJOR = 8 };
static const size_t PIECE_BYTES = (size_t)4 << 20, WORKSPACE_BYTES = (size_t)32 << 20;

#define FUNCTIONS_OF_CUBLASLT(name)                                                                \
    name(Create) name(Destroy) name(MatmulDescCreate) name(MatmulDescDestroy)                      \
        name(MatmulDescSetAttribute) name(MatrixLayoutCreate) name(MatrixLayoutDestroy)            \
            name(MatmulPreferenceCreate) name(MatmulPreferenceDestroy)                             \
                name(MatmulPreferenceSetAttribute) name(MatmulAlgoGetHeuristic) name(Matmul)

/* What an algorithm is chosen by. */
typedef struct plan_key {
    int64_t m, n, k;
    int32_t ta, tb, in, out, adds;
    uint32_t align_a, align_b, align_c; /* bytes */
} plan_key;

typedef struct plan {
    plan_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* as cuBLASLt sees them: a is the caller's b */
    cublasLtMatmulAlgo_t algorithm;
} plan;

typedef struct pinned {
    void *memory;
    cudaEvent_t copied;
} pinned;

typedef struct handles {
    void *library;
    cublasLtHandle_t blas;
    void *workspace;
    pinned piece[N_PIECES];
    int next_piece;
    plan plans[MOST_PLANS];
    int n_plans, next_plan;
#define MEMBER(name) decltype(&cublasLt##name) name;
    FUNCTIONS_OF_CUBLASLT(MEMBER)
#undef MEMBER
} handles;

static char sentence[320];

static handles *handles_of(const cpl_cuda *c)
{
    return (handles *)c->vendor;
}

static cudaStream_t stream_of(const cpl_cuda *c)
{
    return (cudaStream_t)c->stream;
}

static const char *failure_of(const char *what, cudaError_t error)
{
    if (error == cudaSuccess) return NULL;
    snprintf(sentence, sizeof sentence, "%s failed on the GPU: %s", what,
             cudaGetErrorString(error));
    return sentence;
}

/* ---- opening ---- */

/* Has the driver, if it is there, at least one GPU? */
static const char *count_devices(int *count)
{
    int driver = 0, runtime = 0;
    const cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0) return NULL;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0) return "there is no driver for NVIDIA GPUs here (libcuda.so.1 is missing)";
    if (error == cudaErrorInsufficientDriver) {
        snprintf(
            sentence, sizeof sentence,
            "the driver of the NVIDIA GPU is too old: it knows CUDA %d.%d, and %d.%d is needed",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        return sentence;
    }
    if (error == cudaSuccess || error == cudaErrorNoDevice) return "there is no NVIDIA GPU here";
    snprintf(sentence, sizeof sentence, "the NVIDIA GPU cannot be used: %s",
             cudaGetErrorString(error));
    return sentence;
}

static __global__ void present_kernel(void)
{
}

/* Whether the GPU computes in bf16, and this file has code for it. */
static const char *check_device(int device, const cudaDeviceProp *is)
{
    cudaFuncAttributes attributes;
    if (is->major < LEAST_MAJOR) {
        snprintf(sentence, sizeof sentence,
                 "cuda:%d, %.100s, has compute capability %d.%d; at least %d.0 is needed (bf16)",
                 device, is->name, is->major, is->minor, LEAST_MAJOR);
        return sentence;
    }
    if (cudaFuncGetAttributes(&attributes, (const void *)present_kernel) == cudaSuccess)
        return NULL;
    (void)cudaGetLastError();
    snprintf(sentence, sizeof sentence,
             "couplet was built without kernels for cuda:%d, %.100s, of compute capability %d.%d",
             device, is->name, is->major, is->minor);
    return sentence;
}

static const char *open_device(cpl_cuda *c, int device)
{
    int count = 0;
    cudaDeviceProp is;
    cudaStream_t stream;
    const char *failed = count_devices(&count);
    if (failed) return failed;
    c->device = device < 0 ? 0 : device;
    if (c->device >= count) {
        snprintf(sentence, sizeof sentence, "there is no cuda:%d; GPUs here: %d", device, count);
        return sentence;
    }
    failed = failure_of("opening", cudaSetDevice(c->device));
    if (!failed) failed = failure_of("opening", cudaGetDeviceProperties(&is, c->device));
    if (!failed) failed = check_device(c->device, &is);
    if (!failed)
        failed = failure_of("opening", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (failed) return failed;
    c->stream       = stream;
    c->n_processors = is.multiProcessorCount;
    snprintf(c->name, sizeof c->name, "cuda:%d %.120s", c->device, is.name);
    return NULL;
}

/* COUPLET_CUBLASLT names the file; else the loader looks for it. */
static const char *open_library(handles *h)
{
    const char *named = getenv("COUPLET_CUBLASLT");
    if (named && *named) {
        h->library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (h->library) return NULL;
        snprintf(sentence, sizeof sentence, "COUPLET_CUBLASLT cannot be opened: %s", dlerror());
        return sentence;
    }
    h->library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!h->library) h->library = dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
    if (h->library) return NULL;
    return "libcublasLt.so.13 is not found: install CUDA's cuBLAS, or `pip install nvidia-cublas` "
           "and name the file of that package in COUPLET_CUBLASLT";
}

static const char *open_blas(handles *h)
{
    const char *failed = open_library(h);
    if (failed) return failed;
    bool all = true;
#define FIND(name)                                                                                 \
    h->name = (decltype(h->name))dlsym(h->library, "cublasLt" #name);                              \
    all     = all && h->name;
    FUNCTIONS_OF_CUBLASLT(FIND)
#undef FIND
    if (!all) return "the libcublasLt that was found is too old: version 12 or later is needed";
    if (h->Create(&h->blas) != CUBLAS_STATUS_SUCCESS) return "cuBLASLt cannot be started";
    return NULL;
}

static const char *open_memory(handles *h)
{
    const char *failed = failure_of("taking memory", cudaMalloc(&h->workspace, WORKSPACE_BYTES));
    for (int i = 0; i < N_PIECES && !failed; i++) {
        pinned *p = &h->piece[i];
        failed    = failure_of("taking pinned memory", cudaMallocHost(&p->memory, PIECE_BYTES));
        if (!failed)
            failed =
                failure_of("opening", cudaEventCreateWithFlags(&p->copied, cudaEventDisableTiming));
    }
    return failed;
}

const char *cpl_vendor_open(cpl_cuda *c, int device)
{
    c->stream          = NULL;
    c->vendor          = NULL;
    c->sentence[0]     = 0;
    const char *failed = open_device(c, device);
    if (failed) return failed;
    handles *h = (handles *)calloc(1, sizeof *h);
    c->vendor  = h;
    failed     = h ? open_blas(h) : "there is no memory to open the GPU";
    if (!failed) failed = open_memory(h);
    if (failed) cpl_vendor_close(c);
    return failed;
}

static void free_plan(handles *h, plan *p)
{
    if (p->product) h->MatmulDescDestroy(p->product);
    if (p->a) h->MatrixLayoutDestroy(p->a);
    if (p->b) h->MatrixLayoutDestroy(p->b);
    if (p->c) h->MatrixLayoutDestroy(p->c);
    memset(p, 0, sizeof *p);
}

void cpl_vendor_close(cpl_cuda *c)
{
    handles *h = handles_of(c);
    if (c->stream) (void)cudaStreamSynchronize(stream_of(c));
    if (h) {
        for (int i = 0; i < h->n_plans; i++) free_plan(h, &h->plans[i]);
        for (int i = 0; i < N_PIECES; i++) {
            if (h->piece[i].copied) (void)cudaEventDestroy(h->piece[i].copied);
            if (h->piece[i].memory) (void)cudaFreeHost(h->piece[i].memory);
        }
        if (h->workspace) (void)cudaFree(h->workspace);
        if (h->blas) (void)h->Destroy(h->blas);
        if (h->library) dlclose(h->library);
        free(h);
    }
    if (c->stream) (void)cudaStreamDestroy(stream_of(c));
    c->stream = NULL;
    c->vendor = NULL;
}

/* ---- memory ---- */

void *cpl_vendor_take(cpl_cuda *c, size_t bytes)
{
    void *memory = NULL;
    if (cudaSetDevice(c->device) == cudaSuccess &&
        cudaMalloc(&memory, bytes ? bytes : 1) == cudaSuccess)
        return memory;
    (void)cudaGetLastError(); /* no launch's failure */
    return NULL;
}

void cpl_vendor_give(cpl_cuda *c, void *memory)
{
    if (!memory) return;
    (void)cudaStreamSynchronize(stream_of(c));
    (void)cudaFree(memory);
}

const char *cpl_vendor_put(cpl_cuda *c, void *to, const void *from, size_t bytes)
{
    handles *h        = handles_of(c);
    cudaError_t error = cudaSuccess;
    for (size_t at = 0; at < bytes && error == cudaSuccess; at += PIECE_BYTES) {
        const size_t count = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        pinned *p          = &h->piece[h->next_piece];
        h->next_piece      = (h->next_piece + 1) % N_PIECES;
        error              = cudaEventSynchronize(p->copied); /* at once if it never was recorded */
        if (error != cudaSuccess) break;
        memcpy(p->memory, (const char *)from + at, count);
        error = cudaMemcpyAsync((char *)to + at, p->memory, count, cudaMemcpyHostToDevice,
                                stream_of(c));
        if (error == cudaSuccess) error = cudaEventRecord(p->copied, stream_of(c));
    }
    return failure_of("a copy", error);
}

const char *cpl_vendor_get(cpl_cuda *c, void *to, const void *from, size_t bytes)
{
    cudaError_t error = cudaSuccess;
    if (bytes) error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_of(c));
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_of(c));
    return failure_of("a copy", error);
}

const char *cpl_vendor_wait(cpl_cuda *c)
{
    return failure_of("an operation", cudaStreamSynchronize(stream_of(c)));
}

const char *cpl_vendor_launched(cpl_cuda *)
{
    return failure_of("the launch of a kernel", cudaGetLastError());
}

/* ---- products ---- */

static cudaDataType_t type_of(int32_t dtype)
{
    return dtype == CPL_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The largest power of two up to 256 that the address is a multiple of. */
static uint32_t alignment_of(const void *memory)
{
    uint32_t bytes = 256;
    while (bytes > 1 && (uintptr_t)memory % bytes) bytes /= 2;
    return bytes;
}

static plan_key key_of(cpl_tensor to, cpl_trans ta, cpl_tensor a, cpl_trans tb, cpl_tensor b,
                       float beta)
{
    plan_key key;
    memset(&key, 0, sizeof key); /* keys are compared as bytes */
    key.m       = to.shape[0];
    key.n       = to.shape[1];
    key.k       = a.shape[ta == CPL_AS_IS];
    key.ta      = ta;
    key.tb      = tb;
    key.in      = a.dtype;
    key.out     = to.dtype;
    key.adds    = beta != 0;
    key.align_a = alignment_of(a.storage);
    key.align_b = alignment_of(b.storage);
    key.align_c = alignment_of(to.storage);
    return key;
}

/* A stored matrix of `rows` rows of `cols` numbers, of which cuBLASLt sees the transpose. */
static bool make_layout(handles *h, cublasLtMatrixLayout_t *layout, int32_t dtype, int64_t rows,
                        int64_t cols)
{
    return h->MatrixLayoutCreate(layout, type_of(dtype), (uint64_t)cols, (uint64_t)rows, cols) ==
           CUBLAS_STATUS_SUCCESS;
}

/* c^T [n,m] = op(b)^T . op(a)^T, which reads each of them as the caller does. */
static bool describe(handles *h, plan *p)
{
    const plan_key *k = &p->key;
    const bool as_a = k->ta == CPL_AS_IS, as_b = k->tb == CPL_AS_IS;
    const cublasOperation_t a = as_b ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasOperation_t b = as_a ? CUBLAS_OP_N : CUBLAS_OP_T;
    if (h->MatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS)
        return false;
    return h->MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a) ==
               CUBLAS_STATUS_SUCCESS &&
           h->MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b) ==
               CUBLAS_STATUS_SUCCESS &&
           make_layout(h, &p->a, k->in, as_b ? k->k : k->n, as_b ? k->n : k->k) &&
           make_layout(h, &p->b, k->in, as_a ? k->m : k->k, as_a ? k->k : k->m) &&
           make_layout(h, &p->c, k->out, k->m, k->n);
}

static bool prefer(handles *h, cublasLtMatmulPreference_t preference, const plan_key *key)
{
    const size_t workspace = WORKSPACE_BYTES;
    const uint32_t apart   = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &apart, sizeof apart},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b, sizeof key->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a, sizeof key->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align_c, sizeof key->align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_c, sizeof key->align_c},
    };
    for (const auto &wish : wishes)
        if (h->MatmulPreferenceSetAttribute(preference, wish.what, wish.value, wish.bytes) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    return true;
}

static bool choose(handles *h, plan *p)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    if (h->MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return false;
    const bool chosen =
        prefer(h, preference, &p->key) &&
        h->MatmulAlgoGetHeuristic(h->blas, p->product, p->a, p->b, p->c, p->c, preference, 1, &best,
                                  &found) == CUBLAS_STATUS_SUCCESS &&
        found == 1 && best.state == CUBLAS_STATUS_SUCCESS;
    h->MatmulPreferenceDestroy(preference);
    if (chosen) p->algorithm = best.algo;
    return chosen;
}

/* The plan of a shape; the table is a ring. NULL: cuBLASLt refuses. */
static plan *plan_of(handles *h, const plan_key *key)
{
    for (int i = 0; i < h->n_plans; i++)
        if (!memcmp(&h->plans[i].key, key, sizeof *key)) return &h->plans[i];
    plan *p      = &h->plans[h->next_plan];
    h->next_plan = (h->next_plan + 1) % MOST_PLANS;
    if (h->n_plans < MOST_PLANS) h->n_plans++;
    free_plan(h, p);
    p->key = *key;
    if (describe(h, p) && choose(h, p)) return p;
    free_plan(h, p); /* its key is that of no product */
    return NULL;
}

static const char *refused(const plan_key *key, int status)
{
    snprintf(sentence, sizeof sentence,
             "cuBLASLt refuses a product of %lld x %lld x %lld in %s (status %d)",
             (long long)key->m, (long long)key->n, (long long)key->k,
             key->in == CPL_BF16 ? "bf16" : "f32", status);
    return sentence;
}

const char *cpl_vendor_product(cpl_cuda *c, cpl_tensor to, cpl_trans ta, cpl_tensor a, cpl_trans tb,
                               cpl_tensor b, float beta)
{
    handles *h         = handles_of(c);
    const plan_key key = key_of(to, ta, a, tb, b, beta);
    const float one = 1, add = key.adds ? 1 : 0;
    CPL_ASSERT(a.dtype == b.dtype && key.k == b.shape[tb != CPL_AS_IS]);
    if (key.m == 0 || key.n == 0) return NULL;
    if (key.k == 0) {
        if (key.adds) return NULL;
        return failure_of("a product",
                          cudaMemsetAsync(to.storage, 0, cpl_tensor_bytes(to), stream_of(c)));
    }
    const plan *p = plan_of(h, &key);
    if (!p) return refused(&key, CUBLAS_STATUS_NOT_SUPPORTED);
    const cublasStatus_t status = h->Matmul(
        h->blas, p->product, &one, b.storage, p->a, a.storage, p->b, &add, to.storage, p->c,
        to.storage, p->c, &p->algorithm, h->workspace, WORKSPACE_BYTES, stream_of(c));
    return status == CUBLAS_STATUS_SUCCESS ? NULL : refused(&key, status);
}
