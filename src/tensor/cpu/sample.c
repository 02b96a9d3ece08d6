/* sample.c - random numbers: initial weights, and drawing the next token from logits.
 *
 * Room:   tensor/cpu. Operations: ops.h.
 * Names:  V vocabulary. A NaN logit is never drawn. If all logits are NaN, id 0 is drawn. */
#include <math.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/share.h"
#include "tensor/cpu/simd.h"

/* ---- initial weights ---- */

static float normal_within(const cpl_rng_key *key, uint64_t index, float cut)
{
    float x = cpl_rng_normal(key, index);
    for (uint64_t again = 1; fabsf(x) > cut; again++)
        x = cpl_rng_normal(key, index + (again << 40));
    return x;
}

void CPL_ISA_NAME(cpl_cpu_normal)(cpl_backend *be, cpl_tensor y, float std, float cut,
                                  cpl_rng_key key, int64_t first)
{
    float *out    = cpl_f32(y);
    int64_t count = cpl_tensor_count(y);
    CPL_ASSERT(cut > 0.1f && first + count < (int64_t)1 << 40);
#pragma omp parallel for num_threads(be->n_threads) schedule(static)
    for (int64_t i = 0; i < count; i++)
        out[i] = std * normal_within(&key, (uint64_t)(first + i), cut);
}

/* ---- probabilities ---- */

static int32_t largest_id(const float *logits, int64_t V)
{
    int32_t best  = 0;
    float largest = -INFINITY;
    for (int32_t i = 0; i < V; i++)
        if (logits[i] > largest) best = i, largest = logits[i];
    return best;
}

/* Sets prob to exp((logit - largest) / temperature), not normalised. The largest is 1, NaN is 0. */
static void set_probs(float *prob, const float *logits, int64_t V, float largest, float temperature)
{
#pragma omp simd
    for (int64_t i = 0; i < V; i++) {
        float weight = logits[i] == largest ? 1.0f : cpl_exp((logits[i] - largest) / temperature);
        prob[i]      = weight >= 0 ? weight : 0.0f;
    }
}

static double total_of(const float *prob, int64_t V)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < V; i++) sum += (double)prob[i];
    return sum;
}

/* ---- a heap of ids, the most likely (then the lowest) at the top ---- */

static bool before(const float *prob, int32_t a, int32_t b)
{
    return prob[a] > prob[b] || (prob[a] == prob[b] && a < b);
}

static void sink(int32_t *heap, const float *prob, int64_t at, int64_t count)
{
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(prob, heap[child + 1], heap[child])) child++;
        if (!before(prob, heap[child], heap[at])) return;
        int32_t id  = heap[at];
        heap[at]    = heap[child];
        heap[child] = id;
    }
}

static void make_heap(int32_t *heap, const float *prob, int64_t V)
{
    for (int32_t i = 0; i < V; i++) heap[i] = i;
    for (int64_t at = V / 2 - 1; at >= 0; at--) sink(heap, prob, at, V);
}

/* Moves the most likely ids, best first, from the top of the heap to its end, until the sum of
 * their prob reaches `wanted` or the heap is empty. Sets *sum. Returns the number of ids moved. Id
 * k is heap[V - 1 - k]. */
static int64_t take_best(double *sum, int32_t *heap, const float *prob, int64_t V, double wanted)
{
    int64_t taken = 0;
    *sum          = 0;
    while (taken < V && (taken == 0 || *sum < wanted)) {
        int32_t id          = heap[0];
        heap[0]             = heap[V - 1 - taken];
        heap[V - 1 - taken] = id;
        *sum += (double)prob[id];
        taken++;
        sink(heap, prob, 0, V - taken);
    }
    return taken;
}

/* ---- drawing ---- */

/* Returns the first id of 0 ... V-1 at which the running sum passes `target`, or the last id with a
 * positive probability. */
static int32_t draw_any(const float *prob, int64_t V, double target)
{
    double sum   = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < V; i++) {
        if (prob[i] <= 0) continue;
        sum += (double)prob[i];
        last = i;
        if (sum > target) return i;
    }
    return last;
}

static int32_t draw_best(int32_t *heap, const float *prob, int64_t V, double wanted, double uniform)
{
    double mass, sum = 0;
    make_heap(heap, prob, V);
    const int64_t taken = take_best(&mass, heap, prob, V, wanted);
    for (int64_t k = 0; k + 1 < taken; k++) {
        sum += (double)prob[heap[V - 1 - k]];
        if (sum > uniform * mass) return heap[V - 1 - k];
    }
    return heap[V - taken];
}

static int32_t drawn(cpl_backend *be, cpl_tensor logits, float temperature, float top_p,
                     float uniform)
{
    const int64_t V    = cpl_tensor_count(logits);
    const float *pl    = cpl_f32(logits);
    const int32_t best = largest_id(pl, V);
    if (!(temperature > 0) || !(pl[best] > -INFINITY)) return best;
    CPL_ASSERT(be->scratch_bytes >= (size_t)V * (sizeof(float) + sizeof(int32_t)));
    float *prob   = be->scratch;
    int32_t *heap = (int32_t *)(void *)(prob + V);
    set_probs(prob, pl, V, pl[best], temperature);
    const double total = total_of(prob, V);
    if (top_p >= 1.0f) return draw_any(prob, V, (double)uniform * total);
    return draw_best(heap, prob, V, (double)top_p * total, (double)uniform);
}

void CPL_ISA_NAME(cpl_cpu_sample)(cpl_backend *be, cpl_tensor id, cpl_tensor logits,
                                  float temperature, float top_p, float uniform)
{
    *cpl_i32(id) = drawn(be, logits, temperature, top_p, uniform);
}

size_t CPL_ISA_NAME(cpl_cpu_sample_scratch)(const cpl_backend *be, const cpl_work *work)
{
    (void)be;
    return (size_t)work->vocab_size * (sizeof(float) + sizeof(int32_t));
}
