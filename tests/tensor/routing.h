/* routing.h - one routing with everything that route and route_stats make of it. */
#ifndef CPL_TESTS_TENSOR_ROUTING_H
#define CPL_TESTS_TENSOR_ROUTING_H

#include "ops_check.h"

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

/* How many of the n stand before the e-th: a larger value, or an equal one and a lower index. */
static inline int64_t place(const float *values, int64_t n, int64_t e)
{
    int64_t before = 0;
    for (int64_t i = 0; i < n; i++)
        before += values[i] > values[e] || (values[i] == values[e] && i < e);
    return before;
}

/* The chosen experts are the K best by `values` [T,n], best first. */
static inline void check_choice(const routing *r, const float *values)
{
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t k = 0; k < r->K; k++) {
            int32_t e = cpl_i32(r->expert)[t * r->K + k];
            assert_true(e >= 0 && e < r->n);
            assert_int_equal(place(values + t * r->n, r->n, e), k);
        }
}

#endif /* CPL_TESTS_TENSOR_ROUTING_H */
