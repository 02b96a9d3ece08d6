/* erc_inputs.h - random router rows, noise and experts for tests of the coupling loss. The arrays
 * last until release_all. */
#ifndef CPL_TESTS_MODEL_ERC_INPUTS_H
#define CPL_TESTS_MODEL_ERC_INPUTS_H

#include "tensor/ops_check.h"

typedef struct erc_inputs {
    int n, d, D, activation;
    double alpha;
    double *R, *delta, *w[3]; /* R, delta [n,d]; w: gate [n,D,d], up [n,D,d], down [n,d,D] */
} erc_inputs;

/* Returns random numbers that f32 holds exactly. `tilt` times its own router row is added to every
 * row of an expert's gate and up. */
static inline erc_inputs erc_inputs_random(int n, int d, int D, int activation, double alpha,
                                           double tilt, uint64_t seed)
{
    erc_inputs o       = {.n = n, .d = d, .D = D, .activation = activation, .alpha = alpha};
    cpl_rng_key key    = {.seed = seed, .stream = CPL_STREAM_TEST};
    const int n_router = n * d, n_expert = n * d * D;
    uint64_t at = 0;
    o.R         = new_doubles(n_router);
    o.delta     = new_doubles(n_router);
    for (int i = 0; i < n_router; i++) o.R[i] = (float)cpl_rng_normal(&key, at++);
    for (int i = 0; i < n_router; i++)
        o.delta[i] = (float)(1 + 0.3 * ((double)cpl_rng_uniform(&key, at++) - 0.5));
    for (int k = 0; k < 3; k++) {
        o.w[k] = new_doubles(n_expert);
        for (int i = 0; i < n_expert; i++) {
            double own = k < 2 ? o.R[i / (D * d) * d + i % d] : 0;
            o.w[k][i]  = (float)(0.3 * (double)cpl_rng_normal(&key, at++) + tilt * own);
        }
    }
    return o;
}

static inline float *erc_floats(const double *x, int64_t count)
{
    float *out = take(sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++) out[i] = (float)x[i];
    return out;
}

#endif /* CPL_TESTS_MODEL_ERC_INPUTS_H */
