/* xent.cu - cross-entropy of the head's logits, computed chunk by chunk.
 *
 * Room:    tensor/cuda. Operations: ops.h.
 * Names:   T tokens, d width, V vocabulary.
 * Method:  as tensor/cpu/xent.c. For each chunk of tokens: logits [c,V] = x head^T in scratch; one
 *          block per row computes its softmax gradient, in place or rounded to bf16 in a second
 *          array; two more products. T and V alone determine the chunks and the order of sums. */
#include "tensor/cuda/device.h"

enum { THREADS = 512, CHUNK_STEP = 128 };
static const int64_t CHUNK_BYTES =
    CPL_PART((int64_t)256 << 20, 4 << 10); /* limit of a chunk's logits, exceeded only if one token
                                              needs more */

static size_t padded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Returns the largest number of tokens of a chunk. */
static int64_t most_tokens(int64_t V)
{
    const int64_t most = CHUNK_BYTES / (V * (int64_t)sizeof(float));
    return most > CHUNK_STEP ? most / CHUNK_STEP * CHUNK_STEP : most < 1 ? 1 : most;
}

/* Returns the tokens of a chunk, as even as the limit allows, so that the last is not small. */
static int64_t chunk_tokens(int64_t T, int64_t V)
{
    const int64_t most = most_tokens(V);
    if (T <= most) return T;
    const int64_t chunks = (T + most - 1) / most, even = (T + chunks - 1) / chunks;
    const int64_t step = (even + CHUNK_STEP - 1) / CHUNK_STEP * CHUNK_STEP;
    return step < most ? step : most;
}

/* Returns the bytes of scratch for one chunk of c tokens: logits and, for bf16, their gradient. */
static size_t chunk_bytes(const cpl_backend *be, int64_t c, int64_t V)
{
    const size_t count = (size_t)(c * V);
    return padded(count * sizeof(float)) + (be->compute == CPL_BF16 ? padded(count * 2) : 0);
}

/* ---- one row of logits ---- */

/* Returns the largest v over the block, without NaN. `part` is 33 numbers of shared memory. */
static __device__ __forceinline__ float block_largest(float v, float *part)
{
    const int lane = (int)threadIdx.x % CPL_WARP, warp = (int)threadIdx.x / CPL_WARP;
    for (int m = CPL_WARP / 2; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        float all = lane < THREADS / CPL_WARP ? part[lane] : -INFINITY;
        for (int m = CPL_WARP / 2; m; m >>= 1)
            all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, m));
        if (lane == 0) part[CPL_WARP] = all;
    }
    __syncthreads();
    const float all = part[CPL_WARP];
    __syncthreads();
    return all;
}

/* Sets *largest to the row's largest logit. Returns the sum of exp(logit - largest). */
static __device__ __forceinline__ float sum_of_exp(const float *row, int64_t V, float *largest,
                                                   float *part)
{
    float most = -INFINITY, sum = 0;
    for (int64_t i = threadIdx.x; i < V; i += THREADS) most = fmaxf(most, row[i]);
    most = block_largest(most, part);
    for (int64_t i = threadIdx.x; i < V; i += THREADS) sum += expf(row[i] - most);
    *largest = most;
    return cpl_block_sum(sum, part);
}

/* Sets out[p] to sign times the negative log probability of target[p] in row[p], or row p. */
__global__ void __launch_bounds__(THREADS)
    nll_kernel(float *out, const float *logits, const int32_t *row, const int32_t *target,
               int64_t V, float sign)
{
    CPL_SHARED(float, part);
    const int64_t p  = blockIdx.x;
    const float *at  = logits + (row ? row[p] : p) * V;
    const int32_t id = target[p];
    float largest, nll = 0;
    if (id >= 0) { /* the condition is equal for the whole block */
        const float sum = sum_of_exp(at, V, &largest, part);
        nll             = logf(sum) + largest - at[id];
    }
    if (threadIdx.x == 0) out[p] = sign * nll;
}

/* Sets `to` [c,V], which may be the logits, to scale (softmax - one-hot target). Sets nll [c]. */
__global__ void __launch_bounds__(THREADS)
    gradient_kernel(float *nll, cpl_device_numbers to, const float *logits, const int32_t *target,
                    int64_t V, float scale)
{
    CPL_SHARED(float, part);
    const int64_t t  = blockIdx.x;
    const float *row = logits + t * V;
    const int32_t id = target[t];
    if (id < 0) {
        for (int64_t i = threadIdx.x; i < V; i += THREADS) cpl_device_set(to, t * V + i, 0);
        if (threadIdx.x == 0) nll[t] = 0;
        return;
    }
    float largest;
    const float sum = sum_of_exp(row, V, &largest, part), factor = scale / sum;
    if (threadIdx.x == 0) nll[t] = logf(sum) + largest - row[id];
    __syncthreads(); /* before the logit at the target is overwritten */
    for (int64_t i = threadIdx.x; i < V; i += THREADS) {
        const float gradient = expf(row[i] - largest) * factor;
        cpl_device_set(to, t * V + i, i == id ? gradient - scale : gradient);
    }
}

static const size_t SHARED_BYTES = (CPL_WARP + 1) * sizeof(float);

extern "C" void cpl_cuda_log_probs(cpl_backend *be, cpl_tensor out, cpl_tensor logits,
                                   cpl_tensor row, cpl_tensor id)
{
    CPL_LAUNCH(be, nll_kernel, dim3((unsigned)cpl_tensor_count(out)), dim3(THREADS), SHARED_BYTES,
               cpl_f32(out), cpl_f32(logits), cpl_i32(row), cpl_i32(id), logits.shape[1], -1.0f);
}

/* ---- all tokens ---- */

/* Runs one chunk. Without dx it computes only nll. */
static void one_chunk(cpl_backend *be, char *memory, cpl_tensor nll, cpl_tensor dx,
                      cpl_tensor dhead, cpl_tensor x, cpl_tensor head, const int32_t *target,
                      float scale)
{
    const int64_t c = x.shape[0], V = head.shape[0];
    const cpl_tensor logits = cpl_tensor_2d(memory, CPL_F32, c, V);
    const dim3 rows((unsigned)c), threads(THREADS);
    cpl_tensor gradient = logits;
    be->ops->gemm(be, logits, CPL_AS_IS, x, CPL_TRANSPOSED, head, 0);
    if (!dx.storage) {
        CPL_LAUNCH(be, nll_kernel, rows, threads, SHARED_BYTES, cpl_f32(nll), cpl_f32(logits),
                   (const int32_t *)NULL, target, V, 1.0f);
        return;
    }
    if (be->compute == CPL_BF16)
        gradient = cpl_tensor_2d(memory + padded(cpl_tensor_bytes(logits)), CPL_BF16, c, V);
    CPL_LAUNCH(be, gradient_kernel, rows, threads, SHARED_BYTES, cpl_f32(nll),
               cpl_device_numbers_of(gradient), cpl_f32(logits), target, V, scale);
    be->ops->gemm(be, dx, CPL_AS_IS, gradient, CPL_AS_IS, head, 0);
    be->ops->gemm(be, dhead, CPL_TRANSPOSED, gradient, CPL_AS_IS, x, 1);
}

/* Runs all chunks. Products use the scratch before the chunk's scratch. */
static void all_chunks(cpl_backend *be, cpl_tensor nll, cpl_tensor dx, cpl_tensor dhead,
                       cpl_tensor x, cpl_tensor head, cpl_tensor target, float scale)
{
    const int64_t T = x.shape[0], V = head.shape[0];
    if (T == 0) return;
    const int64_t step = chunk_tokens(T, V);
    const size_t all = be->scratch_bytes, used = chunk_bytes(be, step, V);
    CPL_ASSERT(all >= used);
    const size_t begin = (all - used) / 256 * 256;
    be->scratch_bytes  = begin;
    for (int64_t at = 0; at < T; at += step) {
        const int64_t c       = T - at < step ? T - at : step;
        const cpl_tensor into = dx.storage ? cpl_tensor_range(dx, at, c) : dx;
        one_chunk(be, (char *)be->scratch + begin, cpl_tensor_range(nll, at, c), into, dhead,
                  cpl_tensor_range(x, at, c), head, cpl_i32(target) + at, scale);
    }
    be->scratch_bytes = all;
}

extern "C" void cpl_cuda_xent(cpl_backend *be, cpl_tensor nll, cpl_tensor x, cpl_tensor head,
                              cpl_tensor target)
{
    all_chunks(be, nll, cpl_tensor_none(), cpl_tensor_none(), x, head, target, 0);
}

extern "C" void cpl_cuda_xent_train(cpl_backend *be, cpl_tensor nll, cpl_tensor dx,
                                    cpl_tensor dhead, cpl_tensor x, cpl_tensor head,
                                    cpl_tensor target, float scale)
{
    all_chunks(be, nll, dx, dhead, x, head, target, scale);
}

/* Returns the bytes for the largest chunk and for the scratch of products. */
extern "C" size_t cpl_cuda_xent_scratch(const cpl_backend *be, const cpl_work *work)
{
    const int64_t T = work->n_tokens, V = work->vocab_size;
    if (V == 0) return 0;
    const int64_t most = most_tokens(V);
    return chunk_bytes(be, T < most ? T : most, V) + padded(cpl_cuda_gemm_scratch(be, work)) + 256;
}
