/* vendor_nvidia.cu - implements tensor/cuda/vendor.h by the CUDA runtime and cuBLASLt.
 *
 * Room:    tensor/cuda. The only file that calls libraries of the vendor. The runtime is linked
 *          statically. cuBLASLt, hundreds of megabytes, is loaded when a GPU is opened.
 * Method:  A product in row-major order is its transpose in the column-major order of cuBLASLt. The
 *          algorithm is chosen once for a shape, by cuBLASLt's heuristic, and kept. A sum may be
 *          split over blocks only if a separate step adds the parts, so that equal calls give equal
 *          bits.
 * Copies:  numbers to the device go through two pieces of pinned memory, so that the caller may
 *          change its memory after the call. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <dlfcn.h>

#include "tensor/cuda/device.h"
#include "tensor/cuda/found.h"
#include "tensor/cuda/vendor.h"

enum { N_PIECES = 2, MOST_PLANS = 256 };
static const size_t PIECE_BYTES = (size_t)4 << 20, WORKSPACE_BYTES = (size_t)32 << 20;

#define FUNCTIONS_OF_CUBLASLT(name)                                                                \
    name(Create) name(Destroy) name(MatmulDescCreate) name(MatmulDescDestroy)                      \
        name(MatmulDescSetAttribute) name(MatrixLayoutCreate) name(MatrixLayoutDestroy)            \
            name(MatmulPreferenceCreate) name(MatmulPreferenceDestroy)                             \
                name(MatmulPreferenceSetAttribute) name(MatmulAlgoGetHeuristic) name(Matmul)

/* The key of a choice of algorithm. */
typedef struct plan_key {
    int64_t m, n, k;
    int32_t ta, tb, in, out, adds;
    uint32_t align_a, align_b, align_c; /* alignment in bytes */
} plan_key;

typedef struct plan {
    plan_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* as passed to cuBLASLt: a is the caller's b */
    cublasLtMatmulAlgo_t algorithm;
} plan;

typedef struct pinned {
    void *memory;
    cudaEvent_t copied;
} pinned;

typedef struct handles {
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

static char sentence[512];

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

static __global__ void present_kernel(void)
{
}

/* Fills *f. Returns cudaSuccess, or the error that makes GPU f->device unusable. */
static cudaError_t look_at(cpl_cuda_found *f, cudaDeviceProp *is)
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaSetDevice(f->device);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(is, f->device);
    if (error != cudaSuccess) return error;
    snprintf(f->name, sizeof f->name, "%s", is->name);
    f->major = is->major;
    f->minor = is->minor;
    f->has_kernels =
        cudaFuncGetAttributes(&attributes, (const void *)present_kernel) == cudaSuccess;
    (void)cudaGetLastError(); /* clears the error, which is not a launch's failure */
    return cudaSuccess;
}

static const char *open_device(cpl_cuda *c, int device, int *driver)
{
    cpl_cuda_found f = {};
    cudaDeviceProp is;
    cudaStream_t stream;
    cudaError_t error = cudaGetDeviceCount(&f.count);
    f.device          = device < 0 ? 0 : device;
    f.is_too_old      = error == cudaErrorInsufficientDriver;
    (void)cudaDriverGetVersion(&f.driver);
    (void)cudaRuntimeGetVersion(&f.runtime);
    if (error == cudaErrorNoDevice) error = cudaSuccess; /* the count reports this case */
    if (error == cudaSuccess && f.device < f.count) error = look_at(&f, &is);
    f.error            = error == cudaSuccess ? NULL : cudaGetErrorString(error);
    const char *failed = cpl_cuda_missing(&f);
    if (!failed)
        failed = failure_of("opening", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (failed) return failed;
    *driver   = f.driver;
    c->device = f.device;
    c->stream = stream;
    snprintf(c->name, sizeof c->name, "cuda:%d %.120s", c->device, is.name);
    return NULL;
}

static const char *open_blas(handles *h, size_t *version)
{
    void *library;
    const char *failed = cpl_cuda_open_cublaslt(&library, version);
    if (failed) return failed;
    bool all = true;
#define FIND(name)                                                                                 \
    h->name = (decltype(h->name))dlsym(library, "cublasLt" #name);                                 \
    all     = all && h->name;
    FUNCTIONS_OF_CUBLASLT(FIND)
#undef FIND
    if (!all) return "the libcublasLt that was found lacks functions of version 12";
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
    int driver         = 0;
    size_t version     = 0;
    const char *failed = open_device(c, device, &driver);
    if (failed) return failed;
    handles *h = (handles *)calloc(1, sizeof *h);
    c->vendor  = h;
    failed     = h ? open_blas(h, &version) : "there is no memory to open the GPU";
    if (!failed) failed = open_memory(h);
    if (failed) cpl_vendor_close(c);
    cpl_cuda_libraries(c->libraries, sizeof c->libraries, driver, version);
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
    (void)cudaGetLastError(); /* clears the error, which is not a launch's failure */
    return NULL;
}

void cpl_vendor_give(cpl_cuda *c, void *memory)
{
    (void)cudaStreamSynchronize(stream_of(c));
    (void)cudaFree(memory);
}

const char *cpl_vendor_room(cpl_cuda *c, size_t *there, size_t *all)
{
    cudaError_t error = cudaSetDevice(c->device);
    if (error == cudaSuccess) error = cudaMemGetInfo(there, all);
    return failure_of("asking for its free memory", error);
}

const char *cpl_vendor_put(cpl_cuda *c, void *to, const void *from, size_t bytes)
{
    handles *h        = handles_of(c);
    cudaError_t error = cudaSuccess;
    for (size_t at = 0; at < bytes && error == cudaSuccess; at += PIECE_BYTES) {
        const size_t count = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        pinned *p          = &h->piece[h->next_piece];
        h->next_piece      = (h->next_piece + 1) % N_PIECES;
        error              = cudaEventSynchronize(p->copied); /* no wait if it was never recorded */
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

/* Returns the largest power of two up to 256 that divides the address. */
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

/* Makes the layout of a stored matrix [rows, cols], which is transposed for cuBLASLt. */
static bool make_layout(handles *h, cublasLtMatrixLayout_t *layout, int32_t dtype, int64_t rows,
                        int64_t cols)
{
    return h->MatrixLayoutCreate(layout, type_of(dtype), (uint64_t)cols, (uint64_t)rows, cols) ==
           CUBLAS_STATUS_SUCCESS;
}

/* Describes the product as c^T [n,m] = op(b)^T . op(a)^T, with each matrix as stored. */
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

/* Returns the plan of a shape, from a table used as a ring, or NULL if cuBLASLt refuses it. */
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
    free_plan(h, p); /* an all-zero key matches no product */
    return NULL;
}

/* Returns the message for a refused product. If earlier work has failed, returns the message of
 * that failure instead. */
static const char *refused(cpl_cuda *c, const plan_key *key, int status)
{
    const char *before = cpl_vendor_wait(c);
    if (before) return before;
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
    if (!p) return refused(c, &key, CUBLAS_STATUS_NOT_SUPPORTED);
    const cublasStatus_t status = h->Matmul(
        h->blas, p->product, &one, b.storage, p->a, a.storage, p->b, &add, to.storage, p->c,
        to.storage, p->c, &p->algorithm, h->workspace, WORKSPACE_BYTES, stream_of(c));
    return status == CUBLAS_STATUS_SUCCESS ? NULL : refused(c, &key, status);
}

/* ---- choices of algorithms ---- */

/* Writes the algorithm as its bytes, without the zeros at the end. The bytes are the whole
 * algorithm (cublasLt.h: "can be trivially serialized"). */
static void print_algorithm(char *text, const cublasLtMatmulAlgo_t *algorithm)
{
    int words = sizeof algorithm->data / sizeof *algorithm->data;
    while (words > 1 && algorithm->data[words - 1] == 0) words--;
    for (int i = 0; i < words; i++)
        text += sprintf(text, " %llx", (unsigned long long)algorithm->data[i]);
}

const char *cpl_vendor_choice(cpl_cuda *c, int index)
{
    handles *h = handles_of(c);
    if (index >= h->n_plans) return NULL;
    const plan *p     = &h->plans[index];
    const plan_key *k = &p->key;
    const int length  = snprintf(
         sentence, sizeof sentence, "%lldx%lldx%lld %c%c %s to %s%s %u,%u,%u:", (long long)k->m,
         (long long)k->n, (long long)k->k, k->ta ? 't' : 'n', k->tb ? 't' : 'n',
        k->in == CPL_BF16 ? "bf16" : "f32", k->out == CPL_BF16 ? "bf16" : "f32",
        k->adds ? " added" : "", k->align_a, k->align_b, k->align_c);
    print_algorithm(sentence + length, &p->algorithm);
    return sentence;
}
