/* sample.cu - draws the next token from logits.
 *
 * Room:    tensor/cuda. Operations: ops.h. The CPU computes `normal`, since equal initial weights
 *          on every device (base/rng.h) need equal logarithms and cosines.
 * Names:   V vocabulary. A NaN logit is never drawn. If all logits are NaN, id 0 is drawn.
 * Method:  one block takes a whole row. A *key* orders ids by falling probability, then by rising
 *          id: the bits of the probability, then the bits of V - 1 - id. Instead of sorting, a key
 *          is found bit by bit from the total probability of all keys not below it. */
#include "tensor/cuda/device.h"

enum {
    THREADS = 1024,
};

extern "C" CPL_CUDA_SCRATCH(sample)
{
    (void)be;
    return (size_t)work->vocab_size * sizeof(float);
}

/* ---- the largest logit ---- */

/* A logit and its id. */
typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

/* Returns the candidate with the larger logit, or the lower id on ties. */
static __device__ __forceinline__ candidate better(candidate a, candidate b)
{
    return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}

static __device__ candidate best_of_warp(candidate best)
{
    for (int m = CPL_WARP / 2; m; m >>= 1) {
        candidate other;
        other.logit = __shfl_xor_sync(0xffffffffu, best.logit, m);
        other.id    = __shfl_xor_sync(0xffffffffu, best.id, m);
        best        = better(best, other);
    }
    return best;
}

/* Returns the largest of logits [V] to all threads, or id 0 with -infinity if no logit is above
 * -infinity. `slots` has one entry per warp. */
static __device__ candidate largest_of(const float *logits, int64_t V, candidate *slots)
{
    const int lane = (int)threadIdx.x % CPL_WARP, warp = (int)threadIdx.x / CPL_WARP;
    candidate best = {-INFINITY, 0};
    for (int64_t i = threadIdx.x; i < V; i += THREADS)
        if (logits[i] > best.logit) best = {logits[i], (int32_t)i};
    best = best_of_warp(best);
    if (lane == 0) slots[warp] = best;
    __syncthreads();
    best = best_of_warp(slots[lane]); /* as many warps as lanes */
    __syncthreads();
    return best;
}

/* ---- probabilities ---- */

/* Sets prob to exp((logit - largest) / temperature), not normalised. The largest has 1, NaN has 0.
 * Returns the sum of prob to all threads. */
static __device__ double weigh(float *prob, const float *logits, int64_t V, float largest,
                               float temperature, double *slots)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < V; i += THREADS) {
        const float logit  = logits[i];
        const float weight = logit == largest ? 1.0f : expf((logit - largest) / temperature);
        prob[i]            = weight >= 0 ? weight : 0.0f;
        sum += (double)prob[i];
    }
    return cpl_block_sum(sum, slots);
}

/* ---- drawing from all ---- */

/* Returns the first of items first ... end - 1 at which the running sum, which starts at `sum`,
 * passes `target`, or the last item with a positive probability. */
static __device__ int32_t draw_among(const float *prob, int64_t first, int64_t end, double sum,
                                     double target)
{
    int32_t last = (int32_t)first;
    for (int64_t i = first; i < end; i++) {
        if (prob[i] <= 0) continue;
        sum += (double)prob[i];
        last = (int32_t)i;
        if (sum > target) break;
    }
    return last;
}

/* Draws an id. Each thread sums a run of ids into sums [THREADS]. The first thread finds the run
 * and the id in the run. Only the first thread's result is valid. */
static __device__ int32_t draw_any(const float *prob, int64_t V, double target, double *sums)
{
    const int64_t each = (V + THREADS - 1) / THREADS, mine = threadIdx.x * each;
    double own = 0, sum = 0, before = 0;
    int64_t run = 0;
    for (int64_t i = mine; i < mine + each && i < V; i++) own += (double)prob[i];
    sums[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x != 0) return 0;
    for (int64_t k = 0; k < THREADS && sum <= target; k++) {
        if (sums[k] <= 0) continue;
        run    = k;
        before = sum;
        sum += sums[k];
    }
    const int64_t first = run * each, end = first + each < V ? first + each : V;
    return draw_among(prob, first, end, before, target);
}

/* ---- drawing from the most likely ---- */

/* The inputs of keys: prob [V], and the number of bits of an id. */
typedef struct keys {
    const float *prob;
    int64_t V;
    int id_bits;
} keys;

static __device__ __forceinline__ uint64_t key_of(const keys *of, int64_t i)
{
    uint32_t bits;
    memcpy(&bits, &of->prob[i], sizeof bits);
    return (uint64_t)bits << of->id_bits | (uint64_t)(of->V - 1 - i);
}

/* Returns the total probability of all ids whose keys are not below `key` to all threads. */
static __device__ double mass_of(const keys *of, uint64_t key, double *slots)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < of->V; i += THREADS)
        if (key_of(of, i) >= key) sum += (double)of->prob[i];
    return cpl_block_sum(sum, slots);
}

/* Returns the largest key whose mass reaches `target`, or exceeds it if `passes`. */
static __device__ uint64_t key_at(const keys *of, double target, bool passes, double *slots)
{
    const int prob_bits = 30; /* bits of a float in [0,1] */
    uint64_t key        = 0;
    for (int bit = prob_bits + of->id_bits - 1; bit >= 0; bit--) {
        const uint64_t higher = key | (uint64_t)1 << bit;
        const double mass     = mass_of(of, higher, slots);
        if (passes ? mass > target : mass >= target) key = higher;
    }
    return key;
}

/* Draws from the smallest set of most likely ids, at least one, whose probability reaches
 * `wanted`. */
static __device__ int32_t draw_best(const keys *of, int64_t best, double wanted, double uniform,
                                    double *slots)
{
    const uint64_t highest = key_of(of, best);
    uint64_t least         = key_at(of, wanted, false, slots);
    least                  = least < highest ? least : highest;
    const double mass      = mass_of(of, least, slots);
    uint64_t drawn         = key_at(of, uniform * mass, true, slots);
    drawn                  = drawn > least ? drawn : least;
    return (int32_t)(of->V - 1 - (int64_t)(drawn & (((uint64_t)1 << of->id_bits) - 1)));
}

/* Draws an id. Launched as one block. */
__global__ void sample_kernel(int32_t *id, const float *logits, keys of, float *prob,
                              float temperature, float top_p, float uniform)
{
    CPL_SHARED(double, slots); /* [THREADS] */
    const candidate best = largest_of(logits, of.V, (candidate *)slots);
    int32_t drawn        = best.id;
    if (temperature > 0 && best.logit > -INFINITY) { /* the condition is equal in all threads */
        const double total = weigh(prob, logits, of.V, best.logit, temperature, slots);
        if (top_p >= 1.0f)
            drawn = draw_any(prob, of.V, (double)uniform * total, slots);
        else
            drawn = draw_best(&of, best.id, (double)top_p * total, (double)uniform, slots);
    }
    if (threadIdx.x == 0) *id = drawn;
}

extern "C" void cpl_cuda_sample(cpl_backend *be, cpl_tensor id, cpl_tensor logits,
                                float temperature, float top_p, float uniform)
{
    const int64_t V = cpl_tensor_count(logits);
    float *prob     = (float *)be->scratch;
    keys of         = {prob, V, 1};
    while ((int64_t)1 << of.id_bits < V) of.id_bits++;
    CPL_ASSERT(be->scratch_bytes >= (size_t)V * sizeof(float));
    CPL_LAUNCH(be, sample_kernel, dim3(1), dim3(THREADS), THREADS * sizeof(double), cpl_i32(id),
               cpl_f32(logits), of, prob, temperature, top_p, uniform);
}
