/* route.c - the router's choice: scores, the K best experts, figures about the choice, gradient,
 * sorting, bias.
 *
 * Room:   tensor/cpu. Operations: ops.h.
 * Names:  T tokens, n experts, K experts a token.
 *
 * Sums over tokens are formed by blocks of tokens whose number depends on T alone (share.h). */
#include <math.h>
#include <string.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/share.h"
#include "tensor/cpu/simd.h"

enum { LEAST_TOKENS = 64 }; /* smallest number of tokens in a block */

/* ---- choosing ---- */

/* Returns the log of the sum of the logits' exponentials; `sum` is that of exp(logit - largest).
 * The centred log is less the mean logit and ln n, from differences, which do not cancel. */
static float log_of_sum(const float *logits, float largest, float sum, int64_t n, bool centred)
{
    if (!centred) return largest + logf(sum);
    float below = 0;
#pragma omp simd reduction(+ : below)
    for (int64_t e = 0; e < n; e++) below += logits[e] - largest;
    return logf(sum / (float)n) - below / (float)n;
}

/* Sets probs to softmax(logits). Returns the log of the sum of exponentials. */
static float softmax(float *probs, const float *logits, int64_t n, bool centred)
{
    const float largest = cpl_largest(logits, n);
    float sum           = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < n; e++) {
        probs[e] = cpl_exp(logits[e] - largest);
        sum += probs[e];
    }
    const float scale = 1.0f / sum;
#pragma omp simd
    for (int64_t e = 0; e < n; e++) probs[e] *= scale;
    return log_of_sum(logits, largest, sum, n, centred);
}

/* Sets probs to the sigmoid of each logit, computed from exp(-|logit|), which never overflows. */
static void sigmoid(float *probs, const float *logits, int64_t n)
{
#pragma omp simd
    for (int64_t e = 0; e < n; e++) {
        const float small = cpl_exp(-fabsf(logits[e])), large = 1.0f / (1.0f + small);
        probs[e] = logits[e] >= 0 ? large : small * large;
    }
}

/* Sets probs. Returns the log of the sum of the logits' exponentials. */
static float scores(float *probs, const float *logits, int64_t n, cpl_routing how)
{
    const float lse = softmax(probs, logits, n, how.z_centred);
    if (how.sigmoid) sigmoid(probs, logits, n);
    return lse;
}

/* The key that orders the experts: logits, or scores plus a bias. */
typedef struct order {
    const float *value, *bias; /* [n]; bias may be NULL */
} order;

/* Returns the rank of expert e. NaN ranks below all numbers. */
static inline float rank_of(order by, int64_t e)
{
    const float rank = by.bias ? by.value[e] + by.bias[e] : by.value[e];
    return rank == rank ? rank : -INFINITY;
}

/* Returns the next expert after `last`, whose rank is `last_rank`, in the order by rank and then by
 * index. Needs no list of the chosen experts. A call finds an expert until all n are chosen. */
static int32_t next_best(order by, int64_t n, float last_rank, int32_t last)
{
    int32_t best    = -1;
    float best_rank = -INFINITY;
    for (int32_t e = 0; e < n; e++) {
        float rank = rank_of(by, e);
        bool left  = rank < last_rank || (rank == last_rank && e > last);
        if (left && (best < 0 || rank > best_rank)) best = e, best_rank = rank;
    }
    return best;
}

static void choose(int32_t *expert, order by, int64_t n, int64_t K)
{
    int32_t last    = -1;
    float last_rank = INFINITY;
    for (int64_t k = 0; k < K; k++) {
        last      = next_best(by, n, last_rank, last);
        last_rank = rank_of(by, last);
        expert[k] = last;
    }
}

/* Returns the sum of probs over the K chosen experts. */
static float chosen_sum(const float *probs, const int32_t *expert, int64_t K)
{
    float sum = 0;
    for (int64_t k = 0; k < K; k++) sum += probs[expert[k]];
    return sum;
}

/* Sets weight [K]. The reciprocal of a sum of sigmoid scores may overflow, so sigmoid scores are
 * divided by their sum. Softmax scores are multiplied by the reciprocal of their sum, since the
 * largest score is among them. */
static void set_weights(float *weight, const float *probs, const int32_t *expert, int64_t K,
                        cpl_routing how)
{
    const float sum   = how.renormalise ? chosen_sum(probs, expert, K) : 1.0f;
    const float scale = how.sigmoid ? 1.0f : 1.0f / sum;
    const float whole = how.sigmoid && sum != 0.0f ? sum : 1.0f;
    for (int64_t k = 0; k < K; k++) weight[k] = probs[expert[k]] * scale / whole;
}

void CPL_ISA_NAME(cpl_cpu_route)(cpl_backend *be, cpl_tensor probs, cpl_tensor lse,
                                 cpl_tensor expert, cpl_tensor weight, cpl_tensor logits,
                                 cpl_routing how)
{
    const int64_t T = logits.shape[0], n = logits.shape[1], K = expert.shape[1];
    CPL_ASSERT(K >= 1 && K <= n && (how.sigmoid || !how.bias.storage));
    const float *bias = how.bias.storage ? cpl_f32(how.bias) : NULL;
    float *pp = cpl_f32(probs), *plse = cpl_f32(lse), *pw = cpl_f32(weight);
    int32_t *pe     = cpl_i32(expert);
    const float *pl = cpl_f32(logits);
#pragma omp parallel for num_threads(cpl_threads(be, T *n *(K + 4))) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        plse[t] = scores(pp + t * n, pl + t * n, n, how);
        choose(pe + t * K, (order){(bias ? pp : pl) + t * n, bias}, n, K);
        set_weights(pw + t * K, pp + t * n, pe + t * K, K, how);
    }
}

/* ---- figures ---- */

/* Sums over the tokens of one block, in scratch: counts [n], probs [n], lse^2, entropy. */
typedef struct sums {
    double *counts, *probs, *z, *entropy;
} sums;

static int64_t sums_length(int64_t n)
{
    return 2 * n + 2;
}

static sums sums_at(double *scratch, int64_t n, int64_t block)
{
    double *at = scratch + block * sums_length(n);
    return (sums){at, at + n, at + 2 * n, at + 2 * n + 1};
}

/* Returns the divisor of a token's sigmoid scores: their sum, or 1 if they are all 0. */
static float whole_of(const float *probs, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < n; e++) sum += probs[e];
    return sum != 0.0f ? sum : 1.0f;
}

/* Returns the entropy, in nats, of the shares probs / whole. */
static double entropy_of(const float *probs, float whole, int64_t n)
{
    float sum = 0;
    for (int64_t e = 0; e < n; e++) {
        const float p = probs[e] / whole;
        sum -= p > 0 ? p * logf(p) : 0.0f;
    }
    return (double)sum;
}

static void sum_token(sums s, const float *probs, float whole, float lse, const int32_t *expert,
                      int64_t n, int64_t K)
{
#pragma omp simd
    for (int64_t e = 0; e < n; e++) s.probs[e] += (double)(probs[e] / whole);
    for (int64_t k = 0; k < K; k++) s.counts[expert[k]] += 1.0;
    *s.z += (double)lse * (double)lse;
    *s.entropy += entropy_of(probs, whole, n);
}

/* Sets `to` [count] to scale * the sum over the blocks of parts [blocks, stride], in order. */
static void join_parts(float *to, const double *parts, int64_t blocks, int64_t stride,
                       int64_t count, double scale)
{
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; b++) sum += parts[b * stride + i];
        to[i] = (float)(sum * scale);
    }
}

void CPL_ISA_NAME(cpl_cpu_route_stats)(cpl_backend *be, cpl_tensor counts, cpl_tensor mean_prob,
                                       cpl_tensor z, cpl_tensor entropy, cpl_tensor probs,
                                       cpl_tensor lse, cpl_tensor expert, bool sigmoid)
{
    const int64_t T = probs.shape[0], n = probs.shape[1], K = expert.shape[1];
    const int64_t stride = sums_length(n);
    const cpl_blocks cut = cpl_cut(T, LEAST_TOKENS);
    const double mean    = T ? 1.0 / (double)T : 0.0;
    double *scratch      = be->scratch;
    CPL_ASSERT(be->scratch_bytes >= (size_t)(cut.n * stride) * sizeof(double));
    const float *pp = cpl_f32(probs), *plse = cpl_f32(lse);
    const int32_t *pe = cpl_i32(expert);
#pragma omp parallel for num_threads(cpl_threads(be, 8 * T * n)) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        sums s = sums_at(scratch, n, b);
        memset(s.counts, 0, (size_t)stride * sizeof(double));
        for (int64_t t = cpl_block_begin(cut, b); t < cpl_block_end(cut, b); t++) {
            const float whole = sigmoid ? whole_of(pp + t * n, n) : 1.0f;
            sum_token(s, pp + t * n, whole, plse[t], pe + t * K, n, K);
        }
    }
    sums first = sums_at(scratch, n, 0);
    join_parts(cpl_f32(counts), first.counts, cut.n, stride, n, 1.0);
    join_parts(cpl_f32(mean_prob), first.probs, cut.n, stride, n, mean);
    join_parts(cpl_f32(z), first.z, cut.n, stride, 1, mean);
    join_parts(cpl_f32(entropy), first.entropy, cut.n, stride, 1, mean);
}

/* ---- gradient ---- */

/* Adds the gradient through the chosen weights to dprobs. Renormalised weights are w_k = p_k / S
 * with S the sum of the p_k, so that dp_k = (dw_k - sum_j dw_j w_j) / S. */
static void chosen_backward(float *dprobs, const float *dweight, const float *probs,
                            const int32_t *expert, const float *weight, int64_t K, bool renormalise)
{
    float along = 0, scale = 1.0f;
    if (renormalise) {
        for (int64_t k = 0; k < K; k++) along += dweight[k] * weight[k];
        scale = 1.0f / chosen_sum(probs, expert, K);
    }
    for (int64_t k = 0; k < K; k++) dprobs[expert[k]] += (dweight[k] - along) * scale;
}

/* Sets dlogits to probs (dprobs - sum dprobs probs + dlse), in place. d lse / d logits = probs, less
 * 1/n if lse is centred: `each` is dlse / n then, and 0 otherwise. */
static void softmax_backward(float *dlogits, const float *probs, float dlse, float each, int64_t n)
{
    float along = 0;
#pragma omp simd reduction(+ : along)
    for (int64_t e = 0; e < n; e++) along += dlogits[e] * probs[e];
#pragma omp simd
    for (int64_t e = 0; e < n; e++) dlogits[e] = probs[e] * (dlogits[e] - along + dlse) - each;
}

/* The inputs of the gradient of one token: dweight, weight, expert [K]; probs, counts [n]. */
typedef struct token_parts {
    const float *dweight, *probs, *weight, *counts;
    const int32_t *expert;
    int64_t n, K;
} token_parts;

static void softmax_token(float *dlogits, const token_parts *t, float balance_scale, float dlse,
                          cpl_routing how)
{
    const float each = how.z_centred ? dlse / (float)t->n : 0.0f;
#pragma omp simd
    for (int64_t e = 0; e < t->n; e++) dlogits[e] = balance_scale * t->counts[e];
    chosen_backward(dlogits, t->dweight, t->probs, t->expert, t->weight, t->K, how.renormalise);
    softmax_backward(dlogits, t->probs, dlse, each, t->n);
}

/* Computes the gradient of one token with sigmoid scores. Shares q_e = s_e / sum s have dq_e / ds_i
 * = ([e = i] - q_e) / sum s, and ds_i = s_i (1 - s_i) dlogit_i. Renormalised weights are shares
 * among the chosen experts. With shares, not reciprocals of sums, small scores do not overflow. */
static void sigmoid_token(float *dlogits, const token_parts *t, float balance_scale,
                          bool renormalise)
{
    const float *s = t->probs, whole = whole_of(s, t->n);
    float mean = 0, along = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t e = 0; e < t->n; e++) mean += t->counts[e] * (s[e] / whole);
#pragma omp simd
    for (int64_t e = 0; e < t->n; e++)
        dlogits[e] = balance_scale * (t->counts[e] - mean) * (s[e] / whole) * (1.0f - s[e]);
    for (int64_t k = 0; renormalise && k < t->K; k++) along += t->dweight[k] * t->weight[k];
    for (int64_t k = 0; k < t->K; k++) {
        const int32_t e = t->expert[k];
        dlogits[e] += (t->dweight[k] - along) * t->weight[k] * (1.0f - s[e]);
    }
}

void CPL_ISA_NAME(cpl_cpu_route_backward)(cpl_backend *be, cpl_tensor dlogits, cpl_tensor dweight,
                                          cpl_tensor probs, cpl_tensor lse, cpl_tensor expert,
                                          cpl_tensor weight, cpl_tensor counts, float balance_scale,
                                          float z_scale, cpl_routing how)
{
    const int64_t T = probs.shape[0], n = probs.shape[1], K = expert.shape[1];
    CPL_ASSERT(!how.sigmoid || z_scale == 0.0f);
    float *out       = cpl_f32(dlogits);
    const float *pdw = cpl_f32(dweight), *pp = cpl_f32(probs), *plse = cpl_f32(lse);
    const float *pw = cpl_f32(weight), *load = cpl_f32(counts);
    const int32_t *pe = cpl_i32(expert);
#pragma omp parallel for num_threads(cpl_threads(be, 4 * T * n)) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        const token_parts one = {pdw + t * K, pp + t * n, pw + t * K, load, pe + t * K, n, K};
        if (how.sigmoid)
            sigmoid_token(out + t * n, &one, balance_scale, how.renormalise);
        else
            softmax_token(out + t * n, &one, balance_scale, 2.0f * z_scale * plse[t], how);
    }
}

/* ---- balancing without a loss ---- */

/* Moves the biases. Compares n load with the sum of the loads instead of load with the mean, which
 * is exact if all loads are equal. */
void CPL_ISA_NAME(cpl_cpu_balance_bias)(cpl_backend *be, cpl_tensor bias, cpl_tensor load,
                                        float rate)
{
    const int64_t n    = cpl_tensor_count(bias);
    float *to          = cpl_f32(bias);
    const float *count = cpl_f32(load);
    double sum         = 0;
    (void)be;
    CPL_ASSERT(cpl_tensor_count(load) == n);
    for (int64_t e = 0; e < n; e++) sum += (double)count[e];
    for (int64_t e = 0; e < n; e++) {
        const double all = (double)n * (double)count[e];
        to[e] += all < sum ? rate : all > sum ? -rate : 0.0f;
    }
}

/* ---- sorting by expert ---- */

static void count_experts(int32_t *counts, const int32_t *expert, int64_t n, int64_t length)
{
    memset(counts, 0, (size_t)n * sizeof(int32_t));
    for (int64_t i = 0; i < length; i++) counts[expert[i]]++;
}

/* Replaces counts [blocks, n], the assignments of each block to each expert, by the first row of
 * each block and expert. Fills offset [n+1]. */
static void first_rows(int32_t *offset, int32_t *counts, int64_t blocks, int64_t n)
{
    int32_t row = 0;
    for (int64_t e = 0; e < n; e++) {
        offset[e] = row;
        for (int64_t b = 0; b < blocks; b++) {
            int32_t here      = counts[b * n + e];
            counts[b * n + e] = row;
            row += here;
        }
    }
    offset[n] = row;
}

/* Sorts by a stable counting sort: histograms [blocks, n] in scratch, their running sums, then each
 * block assigns its own rows. */
void CPL_ISA_NAME(cpl_cpu_dispatch)(cpl_backend *be, cpl_dispatch plan, cpl_tensor expert,
                                    int64_t n_experts)
{
    const int64_t T = expert.shape[0], K = expert.shape[1], n = n_experts;
    const cpl_blocks cut = cpl_cut(T, LEAST_TOKENS);
    const int n_threads  = cpl_threads(be, 4 * T * K);
    int32_t *counts      = be->scratch;
    CPL_ASSERT(be->scratch_bytes >= (size_t)(cut.n * n) * sizeof(int32_t));
    const int32_t *pe = cpl_i32(expert);
    int32_t *token = cpl_i32(plan.token), *row = cpl_i32(plan.row);
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        int64_t begin = cpl_block_begin(cut, b) * K, end = cpl_block_end(cut, b) * K;
        count_experts(counts + b * n, pe + begin, n, end - begin);
    }
    first_rows(cpl_i32(plan.offset), counts, cut.n, n);
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        int64_t begin = cpl_block_begin(cut, b) * K, end = cpl_block_end(cut, b) * K;
        for (int64_t i = begin; i < end; i++) {
            int32_t at = counts[b * n + pe[i]]++;
            row[i]     = at;
            token[at]  = (int32_t)(i / K);
        }
    }
}

size_t CPL_ISA_NAME(cpl_cpu_route_scratch)(const cpl_backend *be, const cpl_work *work)
{
    (void)be;
    return (size_t)(CPL_MOST_BLOCKS * sums_length(work->n_experts)) * sizeof(double);
}
