/* xent.c - cross-entropy of the head's logits, computed chunk by chunk.
 *
 * Room:    tensor/cpu. Operations: ops.h.
 * Names:   T tokens, d width, V vocabulary.
 * Method:  for each chunk of c tokens: logits [c,V] = x head^T in scratch; each row becomes its
 *          softmax gradient in place; dx = gradient . head; dhead += gradient^T . x. These are
 *          three products. Where products are in bf16 the gradient is rounded to bf16 once, into a
 *          second array. */
#include <math.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/share.h"
#include "tensor/cpu/simd.h"

enum {
    CHUNK_BYTES = 96 << 20, /* limit of a chunk's logits, exceeded only if one token needs more */
    CHUNK_STEP  = 32,       /* chunks are multiples of this many tokens, for fast products */
};

/* Returns the tokens of a chunk, as even as the limit allows, so that the last is not small. */
static int64_t chunk_tokens(int64_t T, int64_t V)
{
    int64_t most = CHUNK_BYTES / (V * (int64_t)sizeof(float));
    most         = most > CHUNK_STEP ? most / CHUNK_STEP * CHUNK_STEP : most < 1 ? 1 : most;
    if (T <= most) return T;
    int64_t chunks = (T + most - 1) / most, even = (T + chunks - 1) / chunks;
    even = (even + CHUNK_STEP - 1) / CHUNK_STEP * CHUNK_STEP;
    return even < most ? even : most;
}

/* Returns the bytes of scratch for one chunk of c tokens: logits and, for bf16, their gradient. */
static size_t chunk_bytes(const cpl_backend *be, int64_t c, int64_t V)
{
    size_t count = (size_t)(c * V);
    return cpl_padded(count * sizeof(float)) +
           (be->compute == CPL_BF16 ? cpl_padded(count * 2) : 0);
}

/* ---- one row of logits ---- */

static float sum_of_exp(const float *logits, float largest, int64_t V)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < V; i++) sum += cpl_exp(logits[i] - largest);
    return sum;
}

static float row_nll(const float *logits, int32_t target, int64_t V)
{
    if (target < 0) return 0;
    float largest = cpl_largest(logits, V);
    return logf(sum_of_exp(logits, largest, V)) + largest - logits[target];
}

/* Replaces the logits by scale (softmax - one-hot target). Returns the row's nll. */
static float row_gradient(float *row, int32_t target, int64_t V, float scale)
{
    if (target < 0) {
#pragma omp simd
        for (int64_t i = 0; i < V; i++) row[i] = 0;
        return 0;
    }
    float largest = cpl_largest(row, V), at_target = row[target], sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < V; i++) {
        row[i] = cpl_exp(row[i] - largest);
        sum += row[i];
    }
    const float factor = scale / sum;
#pragma omp simd
    for (int64_t i = 0; i < V; i++) row[i] *= factor;
    row[target] -= scale;
    return logf(sum) + largest - at_target;
}

/* ---- one chunk ---- */

/* Returns rows `at` ... at + c - 1 of x. */
static cpl_tensor slice(cpl_tensor x, int64_t at, int64_t c)
{
    cpl_tensor part = cpl_tensor_2d(NULL, x.dtype, c, x.shape[1]);
    part.storage    = (char *)x.storage + (size_t)(at * x.shape[1]) * cpl_dtype_bytes(x.dtype);
    return part;
}

/* Turns logits [c,V] into their gradient and sets nll [c]. `rounded`, which may be none, receives
 * the gradient in bf16. */
static void chunk_gradient(const cpl_backend *be, float *nll, cpl_tensor rounded, cpl_tensor logits,
                           const int32_t *target, float scale)
{
    const int64_t c = logits.shape[0], V = logits.shape[1];
    float *rows    = cpl_f32(logits);
    uint16_t *copy = rounded.storage;
#pragma omp parallel for num_threads(cpl_threads(be, 4 * c * V)) schedule(static)
    for (int64_t t = 0; t < c; t++) {
        nll[t] = row_gradient(rows + t * V, target[t], V, scale);
        if (copy) cpl_round_row(copy + t * V, rows + t * V, V);
    }
}

static void chunk_nll(const cpl_backend *be, float *nll, cpl_tensor logits, const int32_t *target)
{
    const int64_t c = logits.shape[0], V = logits.shape[1];
    const float *rows = cpl_f32(logits);
#pragma omp parallel for num_threads(cpl_threads(be, 2 * c * V)) schedule(static)
    for (int64_t t = 0; t < c; t++) nll[t] = row_nll(rows + t * V, target[t], V);
}

/* ---- all tokens ---- */

/* Returns the last `used` bytes of scratch. Products use the first bytes. */
static char *end_of_scratch(const cpl_backend *be, size_t used)
{
    CPL_ASSERT(be->scratch_bytes >= used);
    return (char *)be->scratch + (be->scratch_bytes - used) / CPL_ALIGNMENT * CPL_ALIGNMENT;
}

void CPL_ISA_NAME(cpl_cpu_log_probs)(cpl_backend *be, cpl_tensor out, cpl_tensor logits,
                                     cpl_tensor row, cpl_tensor id)
{
    const int64_t P = cpl_tensor_count(out), V = logits.shape[1];
    const int32_t *at = cpl_i32(row), *target = cpl_i32(id);
    const float *rows = cpl_f32(logits);
    float *to         = cpl_f32(out);
#pragma omp parallel for num_threads(cpl_threads(be, 2 * P * V)) schedule(static)
    for (int64_t p = 0; p < P; p++) to[p] = -row_nll(rows + at[p] * V, target[p], V);
}

/* Runs all chunks. Without dx it computes only nll. */
static void all_chunks(cpl_backend *be, cpl_tensor nll, cpl_tensor dx, cpl_tensor dhead,
                       cpl_tensor x, cpl_tensor head, cpl_tensor target, float scale)
{
    const int64_t T = x.shape[0], V = head.shape[0], step = chunk_tokens(T, V);
    char *scratch = end_of_scratch(be, chunk_bytes(be, step, V));
    for (int64_t at = 0; at < T; at += step) {
        const int64_t c    = T - at < step ? T - at : step;
        cpl_tensor logits  = cpl_tensor_2d(scratch, CPL_F32, c, V);
        cpl_tensor rounded = cpl_tensor_none(), chunk = slice(x, at, c);
        be->ops->gemm(be, logits, CPL_AS_IS, chunk, CPL_TRANSPOSED, head, 0);
        if (!dx.storage) {
            chunk_nll(be, cpl_f32(nll) + at, logits, cpl_i32(target) + at);
            continue;
        }
        if (be->compute == CPL_BF16)
            rounded = cpl_tensor_2d(scratch + cpl_padded(cpl_tensor_bytes(logits)), CPL_BF16, c, V);
        chunk_gradient(be, cpl_f32(nll) + at, rounded, logits, cpl_i32(target) + at, scale);
        cpl_tensor gradient = rounded.storage ? rounded : logits;
        be->ops->gemm(be, slice(dx, at, c), CPL_AS_IS, gradient, CPL_AS_IS, head, 0);
        be->ops->gemm(be, dhead, CPL_TRANSPOSED, gradient, CPL_AS_IS, chunk, 1);
    }
}

void CPL_ISA_NAME(cpl_cpu_xent)(cpl_backend *be, cpl_tensor nll, cpl_tensor x, cpl_tensor head,
                                cpl_tensor target)
{
    all_chunks(be, nll, cpl_tensor_none(), cpl_tensor_none(), x, head, target, 0);
}

void CPL_ISA_NAME(cpl_cpu_xent_train)(cpl_backend *be, cpl_tensor nll, cpl_tensor dx,
                                      cpl_tensor dhead, cpl_tensor x, cpl_tensor head,
                                      cpl_tensor target, float scale)
{
    all_chunks(be, nll, dx, dhead, x, head, target, scale);
}

/* Returns the bytes for the largest call. Since a smaller call may have larger chunks, this uses
 * the limit instead of chunk_tokens of the largest call. */
size_t CPL_ISA_NAME(cpl_cpu_xent_scratch)(const cpl_backend *be, const cpl_work *work)
{
    const int64_t T = work->n_tokens, V = work->vocab_size;
    if (V == 0) return 0;
    int64_t most = CHUNK_BYTES / (V * (int64_t)sizeof(float));
    most         = most < 1 ? 1 : most;
    return chunk_bytes(be, T < most ? T : most, V) +
           cpl_padded(CPL_ISA_NAME(cpl_cpu_gemm_scratch)(be, work));
}
