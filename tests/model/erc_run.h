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
    float *M, *eps, *delta, *dR, *dw[3], *rows, *drows, *dlatent;
    double loss;
} erc_outcome;

/* Returns `count` numbers, a copy of `from` or zeros if it is NULL, that last until release_all. */
static inline float *erc_floats_of(int64_t count, const float *from)
{
    float *x = take((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = from ? from[i] : 0;
    return x;
}

static inline cpl_tensor erc_cube(const float *x, int64_t a, int64_t b, int64_t c)
{
    return cpl_tensor_3d((void *)(uintptr_t)x, CPL_F32, a, b, c);
}

/* Returns a poisoned backend: outputs and scratch hold NaN before every operation. */
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

/* Sets outputs for the loss and for what the phases exchange. `numbers` has room for 3 n. */
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

/* Sets the projection of latent experts of width d, if the case has one. */
static inline void erc_project(cpl_backend *be, cpl_coupling_outputs *out, const erc_case *c,
                               float *dlatent)
{
    cpl_tensor *room[] = {&out->latent.x, &out->latent.v, &out->latent.dx, &out->latent.dv};
    if (!c->latent) return;
    out->latent.w  = mirrored(be, cpl_tensor_2d(c->latent, CPL_F32, c->d, c->d));
    out->latent.dw = mirrored(be, cpl_tensor_2d(dlatent, CPL_F32, c->d, c->d));
    for (int i = 0; i < 4; i++)
        *room[i] =
            mirrored(be, cpl_tensor_2d(erc_floats_of(c->n * c->d, NULL), CPL_F32, c->n, c->d));
}

/* Runs cpl_coupling on the arrays of a case and of `out`. */
static inline void erc_on(cpl_backend *be, cpl_coupling_outputs out, const erc_case *c,
                          const cpl_erc_settings *erc, const cpl_coupling_noise *noise)
{
    cpl_expert_weights w = {erc_cube(c->w[0], c->n, c->D, c->d),
                            erc_cube(c->w[1], c->n, c->D, c->d),
                            erc_cube(c->w[2], c->n, c->d, c->D)};
    cpl_tensor *all[]    = {&out.M,     &out.eps,  &out.delta,    &out.dR,         &out.rows,
                            &out.drows, &out.loss, &out.diagonal, &out.violations, &out.tokens.mean};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] = mirrored(be, *all[i]);
    w                   = erc_mirrored(be, w);
    out.dw              = erc_mirrored(be, out.dw);
    const cpl_tensor R  = mirrored(be, cpl_tensor_2d(c->R, CPL_F32, c->n, c->d));
    int64_t allocations = cpl_alloc_count();
    cpl_coupling(be, &out, R, w, erc, c->alpha, c->weight, be->compute, noise, NULL);
    assert_int_equal(cpl_alloc_count(), allocations);
    mirrors_end(be);
}

/* Runs the loss on a case, whose delta the noise may replace. Gradients are added to zeros. */
static inline erc_outcome erc_run_with(const erc_case *c, cpl_erc_settings erc,
                                       cpl_coupling_noise noise, cpl_dtype compute, int n_threads,
                                       bool backward)
{
    const int64_t n = c->n, router = n * c->d, expert = n * c->D * c->d;
    erc_outcome o = {.M     = erc_floats_of(n * n, NULL),
                     .eps   = erc_floats_of(n, NULL),
                     .delta = erc_floats_of(router, c->delta),
                     .dR    = erc_floats_of(router, NULL),
                     .rows  = erc_floats_of(router, NULL),
                     .drows = erc_floats_of(router, NULL)};
    for (int k = 0; k < 3; k++) o.dw[k] = erc_floats_of(expert, NULL);

    cpl_backend cpu, be = erc_backend(c, &cpu, compute, n_threads);
    cpl_coupling_outputs out = {.M     = cpl_tensor_2d(o.M, CPL_F32, n, n),
                                .eps   = cpl_tensor_1d(o.eps, CPL_F32, n),
                                .delta = cpl_tensor_2d(o.delta, CPL_F32, n, c->d)};
    erc_phases_into(&out, &o.loss, erc_floats_of(3 * n, NULL), n);
    if (erc.proxy != CPL_PROXY_ROW) {
        out.rows   = cpl_tensor_2d(o.rows, CPL_F32, n, c->d);
        out.drows  = cpl_tensor_2d(o.drows, CPL_F32, n, c->d);
        out.tokens = (cpl_coupling_tokens){cpl_tensor_1d(c->mean, CPL_F32, c->d), c->scale};
    }
    o.dlatent = erc_floats_of(c->d * c->d, NULL);
    erc_project(&be, &out, c, o.dlatent);
    if (backward) {
        out.dR = cpl_tensor_2d(o.dR, CPL_F32, n, c->d);
        out.dw =
            (cpl_expert_weights){erc_cube(o.dw[0], n, c->D, c->d), erc_cube(o.dw[1], n, c->D, c->d),
                                 erc_cube(o.dw[2], n, c->d, c->D)};
    }
    erc_on(&be, out, c, &erc, &noise);
    cpl_backend_free(&be);
    return o;
}

/* Runs the loss with the noise of the case, this proxy and this gradient. */
static inline erc_outcome erc_run_as(const erc_case *c, cpl_erc_proxy proxy,
                                     cpl_erc_gradient gradient, cpl_dtype compute, int n_threads,
                                     bool backward)
{
    const cpl_erc_settings erc = {.activation = c->activation,
                                  .draws      = 1,
                                  .proxy      = proxy,
                                  .gradient   = gradient,
                                  .noise      = c->noise ? CPL_NOISE_BOUNDED : CPL_NOISE_NONE};
    return erc_run_with(c, erc, (cpl_coupling_noise){.given = c->noise}, compute, n_threads,
                        backward);
}

static inline erc_outcome erc_run(const erc_case *c, cpl_dtype compute, int n_threads,
                                  bool backward)
{
    return erc_run_as(c, CPL_PROXY_ROW, CPL_ERC_TO_BOTH, compute, n_threads, backward);
}

/* Runs the loss, the mean over draws, with noise drawn for `step`. The outcome holds delta. */
static inline erc_outcome erc_run_drawn(const erc_case *c, int64_t draws, uint64_t step)
{
    const cpl_erc_settings erc     = {.activation = c->activation, .draws = draws};
    const cpl_coupling_noise noise = {.seed = 1, .step = step, .layer = 2};
    erc_outcome o                  = erc_run_with(c, erc, noise, CPL_F32, 2, true);
    o.loss /= (double)draws;
    return o;
}

/* Returns a case made of random numbers, without its expected results. */
static inline erc_case erc_case_of(const erc_inputs *o, const char *name)
{
    erc_case c   = {.name = name, .n = o->n, .d = o->d, .D = o->D, .alpha = o->alpha, .weight = 1};
    c.activation = o->activation;
    c.noise      = true;
    c.R          = erc_floats(o->R, c.n * c.d);
    c.delta      = erc_floats(o->delta, c.n * c.d);
    for (int k = 0; k < 3; k++) c.w[k] = erc_floats(o->w[k], c.n * c.d * c.D);
    return c;
}

#endif /* CPL_TESTS_MODEL_ERC_RUN_H */
