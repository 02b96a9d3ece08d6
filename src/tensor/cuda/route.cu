/* route.cu - the router's choice: scores, the K best experts, figures about the choice, gradient,
 * sorting, bias.
 *
 * Room:   tensor/cuda. Operations: ops.h.
 * Names:  T tokens, n experts, K experts a token.
 * Method: a warp takes one token, a lane the experts lane, lane + 32, ... Numbers needed twice are
 *         read twice, from the first cache, so that n has no limit. Sums over tokens are formed by
 *         parts of PART_TOKENS tokens, which are joined in a fixed order. */
#include "tensor/cuda/device.h"

enum {
    TOKEN_WARPS = 4,   /* warps of a block that takes one token per warp */
    THREADS     = 256, /* threads of a block that takes a part */
    PART_TOKENS = 64,  /* tokens of a part of route_stats */
    PART_ITEMS  = 512, /* assignments of a part of dispatch */
    SUM_SLOTS   = CPL_WARP + 1,
};

static const unsigned ALL_LANES = 0xffffffffu;

static int64_t parts_of(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

static dim3 per_token(int64_t T)
{
    return dim3((unsigned)parts_of(T, TOKEN_WARPS));
}

/* Returns the token of this warp, which may be beyond the last token. */
static __device__ __forceinline__ int64_t token_of_warp()
{
    return (int64_t)blockIdx.x * TOKEN_WARPS + (int)threadIdx.x / CPL_WARP;
}

static __device__ __forceinline__ int lane_of()
{
    return (int)threadIdx.x % CPL_WARP;
}

/* ---- choosing ---- */

/* Returns the largest number of x [n], without NaN. */
static __device__ float largest_of(const float *x, int n)
{
    float largest = -INFINITY;
    for (int e = lane_of(); e < n; e += CPL_WARP) largest = x[e] > largest ? x[e] : largest;
    for (int m = CPL_WARP / 2; m; m >>= 1) {
        const float other = __shfl_xor_sync(ALL_LANES, largest, m);
        largest           = other > largest ? other : largest;
    }
    return largest;
}

/* Returns the sigmoid, computed from exp(-|logit|), which never overflows. */
static __device__ __forceinline__ float sigmoid(float logit)
{
    const float small = expf(-fabsf(logit)), large = 1.0f / (1.0f + small);
    return logit >= 0 ? large : small * large;
}

/* cpl_routing for kernels. bias may be NULL. */
typedef struct routing {
    bool sigmoid, renormalise, z_centred;
    const float *bias;
} routing;

/* Sets probs. Returns the log of the sum of the logits' exponentials, or the centred log of
 * cpl_routing. */
static __device__ float scores(float *probs, const float *logits, int n, routing how)
{
    const float largest = largest_of(logits, n);
    float sum = 0, below = 0;
    for (int e = lane_of(); e < n; e += CPL_WARP) {
        probs[e] = expf(logits[e] - largest);
        sum += probs[e];
        below += logits[e] - largest;
    }
    sum               = cpl_warp_sum(sum);
    below             = cpl_warp_sum(below);
    const float scale = 1.0f / sum;
    for (int e = lane_of(); e < n; e += CPL_WARP)
        probs[e] = how.sigmoid ? sigmoid(logits[e]) : probs[e] * scale;
    return how.z_centred ? logf(sum / (float)n) - below / (float)n : largest + logf(sum);
}

/* The key that orders the experts: logits, or scores plus a bias. */
typedef struct order {
    const float *value, *bias; /* [n]; bias may be NULL */
} order;

/* An expert and its rank. Index -1 means no expert. */
typedef struct ranked {
    float rank;
    int index;
} ranked;

/* Returns the rank of expert e. NaN ranks below all numbers. */
static __device__ __forceinline__ float rank_of(order by, int e)
{
    const float rank = by.bias ? by.value[e] + by.bias[e] : by.value[e];
    return rank == rank ? rank : -INFINITY;
}

/* Returns whether b comes before a: by rank, then by index. */
static __device__ __forceinline__ bool is_better(ranked b, ranked a)
{
    if (b.index < 0 || a.index < 0) return b.index >= 0;
    return b.rank > a.rank || (b.rank == a.rank && b.index < a.index);
}

/* Returns the next expert after `last` in the order by rank and then by index. Needs no list of the
 * experts already chosen. Every call finds an expert until all n are chosen. */
static __device__ ranked next_best(order by, int n, ranked last)
{
    ranked best = {-INFINITY, -1};
    for (int e = lane_of(); e < n; e += CPL_WARP) {
        const ranked one = {rank_of(by, e), e};
        const bool left = one.rank < last.rank || (one.rank == last.rank && one.index > last.index);
        if (left && is_better(one, best)) best = one;
    }
    for (int m = CPL_WARP / 2; m; m >>= 1) {
        ranked other;
        other.rank  = __shfl_xor_sync(ALL_LANES, best.rank, m);
        other.index = __shfl_xor_sync(ALL_LANES, best.index, m);
        if (is_better(other, best)) best = other;
    }
    return best;
}

/* Sets expert [K] to the chosen experts and weight [K] to their scores. Returns the sum of the
 * scores. */
static __device__ float choose(int32_t *expert, float *weight, const float *probs, order by, int n,
                               int K)
{
    ranked last = {INFINITY, -1};
    float sum   = 0;
    for (int k = 0; k < K; k++) {
        last            = next_best(by, n, last);
        const float own = probs[last.index];
        sum += own;
        if (lane_of() == 0) expert[k] = last.index, weight[k] = own;
    }
    return sum;
}

/* Divides the weights by their sum. Sigmoid scores are divided directly, since the reciprocal of a
 * small sum may overflow. */
static __device__ void renormalise(float *weight, int K, float sum, bool sigmoids)
{
    const float scale = sigmoids ? 1.0f : 1.0f / sum;
    const float whole = sigmoids && sum != 0.0f ? sum : 1.0f;
    for (int k = lane_of(); k < K; k += CPL_WARP) weight[k] = weight[k] * scale / whole;
}

__global__ void route_kernel(float *probs, float *lse, int32_t *expert, float *weight,
                             const float *logits, int64_t T, int n, int K, routing how)
{
    const int64_t t = token_of_warp();
    if (t >= T) return; /* a whole warp */
    float *p = probs + t * n, *w = weight + t * K;
    const float *z   = logits + t * n;
    const order by   = {how.bias ? p : z, how.bias};
    const float mine = scores(p, z, n, how);
    if (lane_of() == 0) lse[t] = mine;
    __syncwarp(ALL_LANES); /* every lane reads scores of other lanes */
    const float sum = choose(expert + t * K, w, p, by, n, K);
    __syncwarp(ALL_LANES);
    if (how.renormalise) renormalise(w, K, sum, how.sigmoid);
}

static routing routing_of(cpl_routing how)
{
    CPL_ASSERT(how.sigmoid || !how.bias.storage);
    return {how.sigmoid, how.renormalise, how.z_centred,
            how.bias.storage ? cpl_f32(how.bias) : NULL};
}

extern "C" void cpl_cuda_route(cpl_backend *be, cpl_tensor probs, cpl_tensor lse, cpl_tensor expert,
                               cpl_tensor weight, cpl_tensor logits, cpl_routing how)
{
    const int64_t T = logits.shape[0], n = logits.shape[1], K = expert.shape[1];
    CPL_ASSERT(K >= 1 && K <= n);
    CPL_LAUNCH(be, route_kernel, per_token(T), dim3(CPL_WARP * TOKEN_WARPS), 0, cpl_f32(probs),
               cpl_f32(lse), cpl_i32(expert), cpl_f32(weight), cpl_f32(logits), T, (int)n, (int)K,
               routing_of(how));
}

/* ---- figures ---- */

/* Returns the number of sums of a part: counts [n], probs [n], lse^2, entropy. */
static __host__ __device__ __forceinline__ int64_t sums_length(int64_t n)
{
    return 2 * n + 2;
}

/* Returns the divisor of a token's sigmoid scores: their sum, or 1 if they are all 0. */
static __device__ float whole_of(const float *probs, int n)
{
    float sum = 0;
    for (int e = lane_of(); e < n; e += CPL_WARP) sum += probs[e];
    sum = cpl_warp_sum(sum);
    return sum != 0.0f ? sum : 1.0f;
}

/* Returns the entropy, in nats, of the shares probs / whole. */
static __device__ float entropy_of(const float *probs, float whole, int n)
{
    float sum = 0;
    for (int e = lane_of(); e < n; e += CPL_WARP) {
        const float p = probs[e] / whole;
        sum -= p > 0 ? p * logf(p) : 0.0f;
    }
    return cpl_warp_sum(sum);
}

/* The tokens of a part: probs [tokens,n], lse [tokens], expert [tokens,K]. */
typedef struct stats_part {
    const float *probs, *lse;
    const int32_t *expert;
    int tokens, n, K;
    bool sigmoid;
} stats_part;

/* Sets whole [tokens]. Adds z and entropy of this warp's tokens. */
static __device__ void sum_tokens(const stats_part *part, float *whole, double *z, double *entropy)
{
    for (int t = (int)threadIdx.x / CPL_WARP; t < part->tokens; t += THREADS / CPL_WARP) {
        const float *p        = part->probs + (int64_t)t * part->n;
        const float own       = part->sigmoid ? whole_of(p, part->n) : 1.0f;
        const double disorder = (double)entropy_of(p, own, part->n), lse = (double)part->lse[t];
        if (lane_of() != 0) continue;
        whole[t] = own;
        *z += lse * lse;
        *entropy += disorder;
    }
}

/* Sums one part by experts. A thread sums one expert. */
static __device__ void sum_experts(const stats_part *part, const float *whole, double *counts,
                                   double *probs)
{
    for (int e = (int)threadIdx.x; e < part->n; e += THREADS) {
        double sum = 0;
        int count  = 0;
        for (int t = 0; t < part->tokens; t++)
            sum += (double)(part->probs[(int64_t)t * part->n + e] / whole[t]);
        for (int64_t i = 0; i < (int64_t)part->tokens * part->K; i++) count += part->expert[i] == e;
        counts[e] = count;
        probs[e]  = sum;
    }
}

__global__ void route_stats_kernel(double *sums, const float *probs, const float *lse,
                                   const int32_t *expert, int64_t T, int n, int K, bool sigmoid)
{
    CPL_SHARED(double, slots); /* [SUM_SLOTS], then whole [PART_TOKENS] */
    float *whole        = (float *)(slots + SUM_SLOTS);
    const int64_t first = (int64_t)blockIdx.x * PART_TOKENS, left = T - first;
    const stats_part part = {probs + first * n,
                             lse + first,
                             expert + first * K,
                             left < PART_TOKENS ? (int)left : PART_TOKENS,
                             n,
                             K,
                             sigmoid};
    double *to = sums + (int64_t)blockIdx.x * sums_length(n), z = 0, entropy = 0;
    sum_tokens(&part, whole, &z, &entropy);
    z       = cpl_block_sum(z, slots);
    entropy = cpl_block_sum(entropy, slots); /* after this, whole [] is visible to all */
    if (threadIdx.x == 0) to[2 * n] = z, to[2 * n + 1] = entropy;
    sum_experts(&part, whole, to, to + n);
}

/* The outputs: counts [n], mean_prob [n], z [1], entropy [1]. */
typedef struct stats_out {
    float *counts, *mean_prob, *z, *entropy;
} stats_out;

/* Joins the sums of the parts. A warp computes one of the sums. */
__global__ void route_stats_join_kernel(stats_out out, const double *sums, int64_t parts, int n,
                                        double mean)
{
    const int64_t i = token_of_warp(), length = sums_length(n);
    double sum = 0;
    if (i >= length) return;
    for (int64_t b = lane_of(); b < parts; b += CPL_WARP) sum += sums[b * length + i];
    sum = cpl_warp_sum(sum);
    if (lane_of() != 0) return;
    if (i < n) out.counts[i] = (float)sum;
    if (i >= n && i < 2 * n) out.mean_prob[i - n] = (float)(sum * mean);
    if (i == 2 * n) *out.z = (float)(sum * mean);
    if (i == 2 * n + 1) *out.entropy = (float)(sum * mean);
}

static size_t stats_bytes(int64_t T, int64_t n)
{
    return (size_t)(parts_of(T, PART_TOKENS) * sums_length(n)) * sizeof(double);
}

extern "C" void cpl_cuda_route_stats(cpl_backend *be, cpl_tensor counts, cpl_tensor mean_prob,
                                     cpl_tensor z, cpl_tensor entropy, cpl_tensor probs,
                                     cpl_tensor lse, cpl_tensor expert, bool sigmoid)
{
    const int64_t T = probs.shape[0], n = probs.shape[1], K = expert.shape[1];
    const int64_t parts = parts_of(T, PART_TOKENS);
    const size_t shared = SUM_SLOTS * sizeof(double) + PART_TOKENS * sizeof(float);
    const stats_out out = {cpl_f32(counts), cpl_f32(mean_prob), cpl_f32(z), cpl_f32(entropy)};
    double *sums        = (double *)be->scratch;
    CPL_ASSERT(be->scratch_bytes >= stats_bytes(T, n));
    CPL_LAUNCH(be, route_stats_kernel, dim3((unsigned)parts), dim3(THREADS), shared, sums,
               cpl_f32(probs), cpl_f32(lse), cpl_i32(expert), T, (int)n, (int)K, sigmoid);
    CPL_LAUNCH(be, route_stats_join_kernel, per_token(sums_length(n)), dim3(CPL_WARP * TOKEN_WARPS),
               0, out, sums, parts, (int)n, T ? 1.0 / (double)T : 0.0);
}

/* ---- gradient ---- */

/* The inputs of the gradient of one token: dweight, weight, expert [K]; probs, counts [n]. */
typedef struct token_parts {
    const float *dweight, *probs, *weight, *counts;
    const int32_t *expert;
    int n, K;
} token_parts;

/* Returns the sum of dweight * weight over the chosen experts if renormalised, otherwise 0. */
static __device__ float along_of(const token_parts *t, bool renormalise)
{
    float along = 0;
    for (int k = 0; renormalise && k < t->K; k++) along += t->dweight[k] * t->weight[k];
    return along;
}

/* Returns the index of expert e among the choices, or -1. */
static __device__ int choice_of(const token_parts *t, int e)
{
    int choice = -1;
    for (int k = 0; k < t->K; k++) choice = t->expert[k] == e ? k : choice;
    return choice;
}

/* Computes the gradient of one token with softmax scores. Renormalised weights are w_k = p_k / S
 * with S their sum, so that dp_k = (dw_k - sum_j dw_j w_j) / S. dlogits = probs (dprobs - sum
 * dprobs probs + dlse), where d lse / d logits = probs, less 1/n if lse is centred. */
static __device__ void softmax_token(float *dlogits, const token_parts *t, float balance_scale,
                                     float dlse, routing how)
{
    const float own  = along_of(t, how.renormalise);
    const float each = how.z_centred ? dlse / (float)t->n : 0.0f;
    float sum = 0, along = 0;
    for (int k = 0; how.renormalise && k < t->K; k++) sum += t->probs[t->expert[k]];
    const float scale = how.renormalise ? 1.0f / sum : 1.0f;
    for (int e = lane_of(); e < t->n; e += CPL_WARP) {
        const int k = choice_of(t, e);
        float dprob = balance_scale * t->counts[e];
        if (k >= 0) dprob += (t->dweight[k] - own) * scale;
        dlogits[e] = dprob;
        along += dprob * t->probs[e];
    }
    along = cpl_warp_sum(along);
    for (int e = lane_of(); e < t->n; e += CPL_WARP)
        dlogits[e] = t->probs[e] * (dlogits[e] - along + dlse) - each;
}

/* Computes the gradient of one token with sigmoid scores. Shares q_e = s_e / sum s have dq_e / ds_i
 * = ([e = i] - q_e) / sum s, and ds_i = s_i (1 - s_i) dlogit_i. Renormalised weights are shares
 * among the chosen experts. With shares, not reciprocals of sums, small scores do not overflow. */
static __device__ void sigmoid_token(float *dlogits, const token_parts *t, float balance_scale,
                                     bool renormalise)
{
    const float *s = t->probs, whole = whole_of(s, t->n), along = along_of(t, renormalise);
    float mean = 0;
    for (int e = lane_of(); e < t->n; e += CPL_WARP) mean += t->counts[e] * (s[e] / whole);
    mean = cpl_warp_sum(mean);
    for (int e = lane_of(); e < t->n; e += CPL_WARP) {
        const int k = choice_of(t, e);
        float own   = balance_scale * (t->counts[e] - mean) * (s[e] / whole) * (1.0f - s[e]);
        if (k >= 0) own += (t->dweight[k] - along) * t->weight[k] * (1.0f - s[e]);
        dlogits[e] = own;
    }
}

/* Computes the gradient of the logits. `all` points to the inputs of the first token. */
__global__ void route_backward_kernel(float *dlogits, token_parts all, const float *lse, int64_t T,
                                      float balance_scale, float z_scale, routing how)
{
    const int64_t t = token_of_warp();
    if (t >= T) return; /* a whole warp */
    token_parts one = all;
    one.dweight += t * all.K, one.weight += t * all.K, one.expert += t * all.K;
    one.probs += t * all.n;
    if (how.sigmoid)
        sigmoid_token(dlogits + t * all.n, &one, balance_scale, how.renormalise);
    else
        softmax_token(dlogits + t * all.n, &one, balance_scale, 2.0f * z_scale * lse[t], how);
}

extern "C" void cpl_cuda_route_backward(cpl_backend *be, cpl_tensor dlogits, cpl_tensor dweight,
                                        cpl_tensor probs, cpl_tensor lse, cpl_tensor expert,
                                        cpl_tensor weight, cpl_tensor counts, float balance_scale,
                                        float z_scale, cpl_routing how)
{
    const int64_t T       = probs.shape[0];
    const token_parts all = {cpl_f32(dweight),    cpl_f32(probs),  cpl_f32(weight),
                             cpl_f32(counts),     cpl_i32(expert), (int)probs.shape[1],
                             (int)expert.shape[1]};
    CPL_ASSERT(!how.sigmoid || z_scale == 0.0f);
    CPL_LAUNCH(be, route_backward_kernel, per_token(T), dim3(CPL_WARP * TOKEN_WARPS), 0,
               cpl_f32(dlogits), all, cpl_f32(lse), T, balance_scale, z_scale, routing_of(how));
}

/* ---- balancing without a loss ---- */

/* Moves the biases. Compares n load with the sum of the loads instead of load with the mean, which
 * is exact if all loads are equal. */
__global__ void balance_bias_kernel(float *bias, const float *load, int64_t n, float rate)
{
    CPL_SHARED(double, slots);
    double sum = 0;
    for (int64_t e = threadIdx.x; e < n; e += THREADS) sum += (double)load[e];
    sum = cpl_block_sum(sum, slots);
    for (int64_t e = threadIdx.x; e < n; e += THREADS) {
        const double all = (double)n * (double)load[e];
        bias[e] += all < sum ? rate : all > sum ? -rate : 0.0f;
    }
}

extern "C" void cpl_cuda_balance_bias(cpl_backend *be, cpl_tensor bias, cpl_tensor load, float rate)
{
    const int64_t n = cpl_tensor_count(bias);
    CPL_ASSERT(cpl_tensor_count(load) == n);
    CPL_LAUNCH(be, balance_bias_kernel, dim3(1), dim3(THREADS), SUM_SLOTS * sizeof(double),
               cpl_f32(bias), cpl_f32(load), n, rate);
}

/* ---- sorting by expert: a stable counting sort of `length` assignments in parts ---- */

/* Reads the items of this block's part into shared memory. Returns their number. */
static __device__ int read_part(int32_t *items, const int32_t *expert, int64_t length)
{
    const int64_t first = (int64_t)blockIdx.x * PART_ITEMS, left = length - first;
    const int count = left < PART_ITEMS ? (int)left : PART_ITEMS;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) items[i] = expert[first + i];
    __syncthreads();
    return count;
}

/* Sets counts [n,parts] to the number of assignments of each part to each expert. */
__global__ void dispatch_count_kernel(int32_t *counts, const int32_t *expert, int64_t length, int n)
{
    CPL_SHARED(int32_t, items);
    const int count = read_part(items, expert, length);
    for (int e = (int)threadIdx.x; e < n; e += THREADS) {
        int32_t here = 0;
        for (int i = 0; i < count; i++) here += items[i] == e;
        counts[(int64_t)e * gridDim.x + blockIdx.x] = here;
    }
}

/* Returns the sum of the values of all threads before this thread. Sets *all to the sum over all
 * threads. `slots` is SUM_SLOTS numbers. */
static __device__ int32_t sum_before(int32_t value, int32_t *all, int32_t *slots)
{
    const int lane = lane_of(), warp = (int)threadIdx.x / CPL_WARP;
    int32_t upto = value, before = 0;
    for (int step = 1; step < CPL_WARP; step <<= 1) {
        const int32_t other = __shfl_up_sync(ALL_LANES, upto, step);
        if (lane >= step) upto += other;
    }
    if (lane == CPL_WARP - 1) slots[warp] = upto;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < THREADS / CPL_WARP; w++) {
        if (w == warp) before = *all;
        *all += slots[w];
    }
    __syncthreads();
    return before + upto - value;
}

/* Replaces each number of x [count] by the sum of the numbers before it. Returns the sum of all.
 * All threads call it. */
static __device__ int32_t running_sums(int32_t *x, int64_t count, int32_t *slots)
{
    int32_t sum = 0;
    for (int64_t first = 0; first < count; first += THREADS) {
        const int64_t i = first + threadIdx.x;
        int32_t all;
        const int32_t before = sum_before(i < count ? x[i] : 0, &all, slots);
        if (i < count) x[i] = sum + before;
        sum += all;
    }
    return sum;
}

/* Replaces an expert's counts by the first row of each part, relative to the expert, and sets
 * offset[e] to its number of rows. A block takes one expert. */
__global__ void dispatch_rows_kernel(int32_t *offset, int32_t *counts, int64_t parts)
{
    CPL_SHARED(int32_t, slots);
    const int32_t all = running_sums(counts + blockIdx.x * parts, parts, slots);
    if (threadIdx.x == 0) offset[blockIdx.x] = all;
}

/* Replaces the rows of each expert in offset [n+1] by its first row. Launched as one block. */
__global__ void dispatch_offset_kernel(int32_t *offset, int n)
{
    CPL_SHARED(int32_t, slots);
    const int32_t all = running_sums(offset, n, slots);
    if (threadIdx.x == 0) offset[n] = all;
}

/* Places assignments. A thread takes one expert and the whole part, so the expert's rows rise. */
__global__ void dispatch_place_kernel(int32_t *token, int32_t *row, const int32_t *offset,
                                      const int32_t *counts, const int32_t *expert, int64_t length,
                                      int n, int K)
{
    CPL_SHARED(int32_t, items);
    const int64_t first = (int64_t)blockIdx.x * PART_ITEMS;
    const int count     = read_part(items, expert, length);
    for (int e = (int)threadIdx.x; e < n; e += THREADS) {
        int32_t at = offset[e] + counts[(int64_t)e * gridDim.x + blockIdx.x];
        for (int i = 0; i < count; i++) {
            if (items[i] != e) continue;
            token[at]      = (int32_t)((first + i) / K);
            row[first + i] = at++;
        }
    }
}

static size_t dispatch_bytes(int64_t length, int64_t n)
{
    return (size_t)(parts_of(length, PART_ITEMS) * n) * sizeof(int32_t);
}

extern "C" void cpl_cuda_dispatch(cpl_backend *be, cpl_dispatch plan, cpl_tensor expert,
                                  int64_t n_experts)
{
    const int64_t K = expert.shape[1], length = expert.shape[0] * K;
    const int64_t parts = parts_of(length, PART_ITEMS);
    const size_t items = PART_ITEMS * sizeof(int32_t), slots = SUM_SLOTS * sizeof(int32_t);
    const dim3 per_part((unsigned)parts), per_expert((unsigned)n_experts);
    int32_t *counts = (int32_t *)be->scratch, *offset = cpl_i32(plan.offset);
    CPL_ASSERT(be->scratch_bytes >= dispatch_bytes(length, n_experts));
    CPL_LAUNCH(be, dispatch_count_kernel, per_part, dim3(THREADS), items, counts, cpl_i32(expert),
               length, (int)n_experts);
    CPL_LAUNCH(be, dispatch_rows_kernel, per_expert, dim3(THREADS), slots, offset, counts, parts);
    CPL_LAUNCH(be, dispatch_offset_kernel, dim3(1), dim3(THREADS), slots, offset, (int)n_experts);
    CPL_LAUNCH(be, dispatch_place_kernel, per_part, dim3(THREADS), items, cpl_i32(plan.token),
               cpl_i32(plan.row), offset, counts, cpl_i32(expert), length, (int)n_experts, (int)K);
}

extern "C" CPL_CUDA_SCRATCH(route)
{
    const size_t stats = stats_bytes(work->n_tokens, work->n_experts);
    const size_t sort  = dispatch_bytes(work->n_tokens * work->top_k, work->n_experts);
    (void)be;
    return stats > sort ? stats : sort;
}
