/* routing.h - one routing with all results of route and route_stats, and the equations in plain
 * double, by softmax or sigmoid. */
#ifndef CPL_TESTS_TENSOR_ROUTING_H
#define CPL_TESTS_TENSOR_ROUTING_H

#include "tensor/ops_check.h"

typedef struct routing {
    int64_t T, n, K;
    cpl_routing how;
    cpl_tensor logits, probs, lse, expert, weight, counts, mean_prob, z, entropy;
} routing;

static inline routing new_routing(cpl_tensor logits, int64_t K, cpl_routing how)
{
    const int64_t T = logits.shape[0], n = logits.shape[1];
    return (routing){
        .T         = T,
        .n         = n,
        .K         = K,
        .how       = how,
        .logits    = logits,
        .probs     = new_tensor(CPL_F32, T, n),
        .lse       = new_1d(CPL_F32, T),
        .expert    = new_tensor(CPL_I32, T, K),
        .weight    = new_tensor(CPL_F32, T, K),
        .counts    = new_1d(CPL_F32, n),
        .mean_prob = new_1d(CPL_F32, n),
        .z         = new_1d(CPL_F32, 1),
        .entropy   = new_1d(CPL_F32, 1),
    };
}

static inline void run_routing(cpl_backend *be, routing *r)
{
    be->ops->route(be, r->probs, r->lse, r->expert, r->weight, r->logits, r->how);
    be->ops->route_stats(be, r->counts, r->mean_prob, r->z, r->entropy, r->probs, r->lse, r->expert,
                         r->how.sigmoid);
}

static inline cpl_backend *routing_backend(int n_threads)
{
    return new_cpu(CPL_F32, n_threads,
                   (cpl_work){.n_tokens = 700, .d_model = 8, .n_experts = 300, .vocab_size = 8});
}

/* Returns how many of the n precede the e-th: a larger value, or an equal one at a lower index. */
static inline int64_t place(const float *values, int64_t n, int64_t e)
{
    int64_t before = 0;
    for (int64_t i = 0; i < n; i++)
        before += values[i] > values[e] || (values[i] == values[e] && i < e);
    return before;
}

/* Asserts that the chosen experts are the K best by `values` [T,n], best first. */
static inline void check_choice(const routing *r, const float *values)
{
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t k = 0; k < r->K; k++) {
            int32_t e = cpl_i32(r->expert)[t * r->K + k];
            assert_true(e >= 0 && e < r->n);
            assert_int_equal(place(values + t * r->n, r->n, e), k);
        }
}

/* ---- the equations in double ---- */

static const double ROUTING_C = 8;

/* Sets scores [n] of logits [n] and their sum, which is 1 for a softmax. Returns the log of the sum
 * of exponentials, less the mean logit and ln n where z_centred. */
static inline double scores_of(double *scores, double *sum, const double *logits, int64_t n,
                               cpl_routing how)
{
    double largest = -INFINITY, exponentials = 0, mean = 0;
    for (int64_t e = 0; e < n; e++) largest = fmax(largest, logits[e]);
    for (int64_t e = 0; e < n; e++) mean += logits[e] / (double)n;
    for (int64_t e = 0; e < n; e++) exponentials += exp(logits[e] - largest);
    const double lse = largest + log(exponentials);
    *sum             = 0;
    for (int64_t e = 0; e < n; e++)
        *sum += scores[e] = how.sigmoid ? 1 / (1 + exp(-logits[e])) : exp(logits[e] - lse);
    return how.z_centred ? lse - mean - log((double)n) : lse;
}

static inline void check_numbers(const routing *r)
{
    const int64_t T = r->T, n = r->n, K = r->K;
    double *logits = doubles_of(r->logits), *probs = new_doubles(T * n), *lse = new_doubles(T);
    double *weight = new_doubles(T * K), *counts = new_doubles(n), *mean = new_doubles(n);
    double z = 0, entropy = 0;
    for (int64_t t = 0; t < T; t++) {
        double of_chosen = 0, all, *p = probs + t * n;
        const int32_t *chosen = cpl_i32(r->expert) + t * K;
        lse[t]                = scores_of(p, &all, logits + t * n, n, r->how);
        for (int64_t k = 0; k < K; k++) of_chosen += p[chosen[k]], counts[chosen[k]]++;
        for (int64_t k = 0; k < K; k++)
            weight[t * K + k] = p[chosen[k]] / (r->how.renormalise ? of_chosen : 1);
        for (int64_t e = 0; e < n; e++) mean[e] += p[e] / all / (double)T;
        for (int64_t e = 0; e < n; e++)
            entropy -= p[e] > 0 ? p[e] / all * log(p[e] / all) / (double)T : 0;
        z += lse[t] * lse[t] / (double)T;
    }
    const double tolerance = sum_tolerance(ROUTING_C, n);
    assert_close("probs", r->probs, probs, tolerance, 0);
    const double least = r->how.z_centred ? tolerance : 0; /* of n equal logits it is 0 */
    assert_close("lse", r->lse, lse, tolerance, least);
    assert_close("weight", r->weight, weight, tolerance, 0);
    assert_close("counts", r->counts, counts, 0, 0);
    assert_close("mean_prob", r->mean_prob, mean, tolerance, 0);
    assert_close("z", r->z, &z, tolerance, least);
    assert_close("entropy", r->entropy, &entropy, tolerance, tolerance);
}

/* ---- the gradient ---- */

typedef struct objective {
    const routing *r;
    const double *dweight, *counts; /* [T,K], [n] */
    double *logits, *scores;        /* [T,n], [n] */
    double balance, z;
} objective;

/* Returns the function whose gradient route_backward computes (ops.h), with the choice held. */
static inline double objective_value(void *context)
{
    const objective *o = context;
    const routing *r   = o->r;
    double sum = 0, *p = o->scores;
    for (int64_t t = 0; t < r->T; t++) {
        const int32_t *chosen = cpl_i32(r->expert) + t * r->K;
        double of_chosen      = 0, all;
        double lse            = scores_of(p, &all, o->logits + t * r->n, r->n, r->how);
        for (int64_t k = 0; k < r->K; k++) of_chosen += p[chosen[k]];
        for (int64_t k = 0; k < r->K; k++)
            sum += o->dweight[t * r->K + k] * p[chosen[k]] / (r->how.renormalise ? of_chosen : 1);
        for (int64_t e = 0; e < r->n; e++) sum += o->balance * o->counts[e] * p[e] / all;
        sum += o->z * lse * lse;
    }
    return sum;
}

static inline cpl_tensor routing_backward(cpl_backend *be, const routing *r, cpl_tensor dweight,
                                          double balance, double z)
{
    cpl_tensor dlogits = new_tensor(CPL_F32, r->T, r->n);
    be->ops->route_backward(be, dlogits, dweight, r->probs, r->lse, r->expert, r->weight, r->counts,
                            (float)balance, (float)z, r->how);
    return dlogits;
}

/* Checks the gradient of the routing `r` that was run. */
static inline void check_gradient(cpl_backend *be, const routing *r, double z)
{
    cpl_tensor dweight = normal_2d(r->T, r->K, 1);
    objective o        = LIST(r, doubles_of(dweight), doubles_of(r->counts), doubles_of(r->logits),
                              new_doubles(r->n), 0.3, z);
    assert_close("dlogits", routing_backward(be, r, dweight, o.balance, o.z),
                 gradient(objective_value, &o, o.logits, r->T * r->n),
                 sum_tolerance(ROUTING_C, r->n), 1e-7);
}

#endif /* CPL_TESTS_TENSOR_ROUTING_H */
