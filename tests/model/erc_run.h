/* erc_run.h - runs cpl_coupling on one case, on a backend that is poisoned with NaN. */
#ifndef CPL_TESTS_MODEL_ERC_RUN_H
#define CPL_TESTS_MODEL_ERC_RUN_H

#include "base/arena.h"
#include "model/coupling.h"
#include "model/erc_case.h"
#include "model/erc_inputs.h"
#include "support/mirror.h"
#include "tensor/backend/backend.h"
#include "tensor/poison/poison.h"

typedef struct erc_outcome {
    float *M, *eps, *delta, *dR, *dw[3], *rows, *drows;
    double loss;
} erc_outcome;

static inline float *erc_floats_of(int64_t count, const float *from)
{
    float *x = calloc((size_t)count + 1, sizeof *x);
    assert_non_null(x);
    if (from) memcpy(x, from, (size_t)count * sizeof *x);
    return x;
}

static inline cpl_tensor erc_cube(const float *x, int64_t a, int64_t b, int64_t c)
{
    return cpl_tensor_3d((void *)(uintptr_t)x, CPL_F32, a, b, c);
}

/* A poisoned backend: outputs and scratch hold NaN before every operation. */
static inline cpl_backend erc_backend(const erc_case *c, cpl_backend *cpu, cpl_dtype compute,
                                      int n_threads)
{
    cpl_backend be;
    assert_ok(cpl_backend_open(cpu, "cpu", compute, n_threads));
    cpl_backend_poison(&be, cpu);
    cpl_work work = LIST(.n_tokens = 1, .d_model = c->d, .d_expert = c->D, .n_experts = c->n,
                         .top_k = 1, .n_heads = 1, .vocab_size = 1, .training = true);
    assert_ok(cpl_backend_reserve(&be, &work));
    return be;
}

/* The loss, and what the phases exchange: `numbers` has room for 3 n. */
static inline void erc_phases_into(cpl_coupling_outputs *out, double *loss, float *numbers,
                                   int64_t n)
{
    out->loss       = cpl_tensor_1d(loss, CPL_F64, 1);
    out->diagonal   = cpl_tensor_1d(numbers, CPL_F32, n);
    out->violations = cpl_tensor_2d(numbers + n, CPL_I32, 2, n);
}

static inline cpl_expert_weights erc_mirrored(cpl_backend *be, cpl_expert_weights w)
{
    return (cpl_expert_weights){mirrored(be, w.w_gate), mirrored(be, w.w_up),
                                mirrored(be, w.w_down)};
}

/* cpl_coupling on the arrays of a case and of `out`. */
static inline void erc_on(cpl_backend *be, cpl_coupling_outputs out, const erc_case *c,
                          const cpl_erc_settings *erc, const cpl_coupling_noise *noise)
{
    cpl_expert_weights w = {erc_cube(c->w[0], c->n, c->D, c->d),
                            erc_cube(c->w[1], c->n, c->D, c->d),
                            erc_cube(c->w[2], c->n, c->d, c->D)};
    cpl_tensor *all[]    = {&out.M,     &out.eps,  &out.delta,    &out.dR,        &out.rows,
                            &out.drows, &out.loss, &out.diagonal, &out.violations};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] = mirrored(be, *all[i]);
    w                   = erc_mirrored(be, w);
    out.dw              = erc_mirrored(be, out.dw);
    const cpl_tensor R  = mirrored(be, cpl_tensor_2d(c->R, CPL_F32, c->n, c->d));
    int64_t allocations = cpl_alloc_count();
    cpl_coupling(be, &out, R, w, erc, c->alpha, c->weight, be->compute, noise, NULL);
    assert_int_equal(cpl_alloc_count(), allocations);
    mirrors_end(be);
}

/* Runs the loss on a case with this proxy and gradient; gradients are added to zeros. */
static inline erc_outcome erc_run_as(const erc_case *c, cpl_erc_proxy proxy,
                                     cpl_erc_gradient gradient, cpl_dtype compute, int n_threads,
                                     bool backward)
{
    const int64_t expert = c->n * c->D * c->d;
    erc_outcome o = {.M = erc_floats_of(c->n * c->n, NULL), .eps = erc_floats_of(c->n, NULL)};
    o.delta       = erc_floats_of(c->n * c->d, c->delta);
    o.dR          = erc_floats_of(c->n * c->d, NULL);
    o.rows        = erc_floats_of(c->n * c->d, NULL);
    o.drows       = erc_floats_of(c->n * c->d, NULL);
    for (int k = 0; k < 3; k++) o.dw[k] = erc_floats_of(expert, NULL);

    cpl_backend cpu, be = erc_backend(c, &cpu, compute, n_threads);
    cpl_erc_settings erc = {
        .activation = c->activation, .draws = 1, .proxy = proxy, .gradient = gradient};
    erc.noise                = c->noise ? CPL_NOISE_BOUNDED : CPL_NOISE_NONE;
    cpl_coupling_noise noise = {.given = c->noise};
    cpl_coupling_outputs out = {.M     = cpl_tensor_2d(o.M, CPL_F32, c->n, c->n),
                                .eps   = cpl_tensor_1d(o.eps, CPL_F32, c->n),
                                .delta = cpl_tensor_2d(o.delta, CPL_F32, c->n, c->d)};
    float *diagonal          = erc_floats_of(3 * c->n, NULL);
    erc_phases_into(&out, &o.loss, diagonal, c->n);
    if (proxy == CPL_PROXY_CENTRED) {
        out.rows  = cpl_tensor_2d(o.rows, CPL_F32, c->n, c->d);
        out.drows = cpl_tensor_2d(o.drows, CPL_F32, c->n, c->d);
    }
    if (backward) {
        out.dR = cpl_tensor_2d(o.dR, CPL_F32, c->n, c->d);
        out.dw = (cpl_expert_weights){erc_cube(o.dw[0], c->n, c->D, c->d),
                                      erc_cube(o.dw[1], c->n, c->D, c->d),
                                      erc_cube(o.dw[2], c->n, c->d, c->D)};
    }
    erc_on(&be, out, c, &erc, &noise);
    free(diagonal);
    cpl_backend_free(&be);
    return o;
}

static inline erc_outcome erc_run(const erc_case *c, cpl_dtype compute, int n_threads,
                                  bool backward)
{
    return erc_run_as(c, CPL_PROXY_ROW, CPL_ERC_TO_BOTH, compute, n_threads, backward);
}

static inline void erc_outcome_free(erc_outcome *o)
{
    free(o->M);
    free(o->eps);
    free(o->delta);
    free(o->dR);
    free(o->rows);
    free(o->drows);
    for (int k = 0; k < 3; k++) free(o->dw[k]);
}

/* A case made of random numbers; what it should give is not filled in. */
static inline erc_case erc_case_of(const erc_inputs *o, const char *name)
{
    erc_case c   = {.name = name, .n = o->n, .d = o->d, .D = o->D, .alpha = o->alpha, .weight = 1};
    c.activation = o->activation;
    c.noise      = true;
    c.R          = erc_floats(o->R, o->n * o->d);
    c.delta      = erc_floats(o->delta, o->n * o->d);
    for (int k = 0; k < 3; k++) c.w[k] = erc_floats(o->w[k], o->n * o->d * o->D);
    return c;
}

/* The loss with noise drawn for `step`; M, eps and delta come back in `o`. */
static inline void erc_run_drawn(erc_outcome *o, const erc_case *c, int64_t draws, uint64_t step)
{
    cpl_backend cpu, be = erc_backend(c, &cpu, CPL_F32, 2);
    cpl_erc_settings erc     = {.activation = c->activation, .draws = draws};
    cpl_coupling_noise noise = {.seed = 1, .step = step, .layer = 2};
    memset(o, 0, sizeof *o);
    o->M                     = erc_floats_of(c->n * c->n, NULL);
    o->eps                   = erc_floats_of(c->n, NULL);
    o->delta                 = erc_floats_of(c->n * c->d, NULL);
    o->dR                    = erc_floats_of(c->n * c->d, NULL);
    cpl_coupling_outputs out = {.M     = cpl_tensor_2d(o->M, CPL_F32, c->n, c->n),
                                .eps   = cpl_tensor_1d(o->eps, CPL_F32, c->n),
                                .delta = cpl_tensor_2d(o->delta, CPL_F32, c->n, c->d),
                                .dR    = cpl_tensor_2d(o->dR, CPL_F32, c->n, c->d)};
    float *diagonal          = erc_floats_of(3 * c->n, NULL);
    erc_phases_into(&out, &o->loss, diagonal, c->n);
    erc_on(&be, out, c, &erc, &noise);
    o->loss /= (double)draws;
    free(diagonal);
    cpl_backend_free(&be);
}

#endif /* CPL_TESTS_MODEL_ERC_RUN_H */
