/* couplet_case.h - a case of the coupling loss as a trainer gives it to couplet.h: matrices by
 * pointers, gradients, and parts of M. The arrays last until release_all. */
#ifndef CPL_TESTS_MODEL_COUPLET_CASE_H
#define CPL_TESTS_MODEL_COUPLET_CASE_H

#include "base/arena.h"
#include "couplet.h"
#include "model/erc_case.h"
#include "model/erc_inputs.h"

/* Pointers to the matrices of a case, and gradients. */
typedef struct trainer {
    const erc_case *c;
    const void *at[3][64];
    float *grad_at[3][64];
    float *grad[3], *dR, *M, *eps;
} trainer;

static inline float *zeros(int64_t count)
{
    float *x = take((size_t)count * sizeof *x);
    memset(x, 0, (size_t)count * sizeof *x);
    return x;
}

static inline trainer trainer_of(const erc_case *c)
{
    trainer t          = {.c = c};
    const int64_t size = c->d * c->D;
    assert_true(c->n <= 64);
    for (int k = 0; k < 3; k++) {
        t.grad[k] = zeros(c->n * size);
        for (int64_t e = 0; e < c->n; e++) {
            t.at[k][e]      = c->w[k] ? c->w[k] + e * size : NULL;
            t.grad_at[k][e] = t.grad[k] + e * size;
        }
    }
    t.dR  = zeros(c->n * c->d);
    t.M   = zeros(c->n * c->n);
    t.eps = zeros(c->n);
    return t;
}

/* Returns the arguments of a call for the experts `first` and later, with every output set. */
static inline cpl_erc erc_of(trainer *t, int64_t first)
{
    const erc_case *c = t->c;
    cpl_erc erc;
    cpl_erc_init(&erc);
    erc.n_experts   = c->n;
    erc.d_model     = c->d;
    erc.d_expert    = c->D;
    erc.router      = c->R;
    erc.gate        = (cpl_erc_matrices){t->at[0] + first, c->d};
    erc.up          = (cpl_erc_matrices){c->w[1] ? t->at[1] + first : NULL, c->d};
    erc.down        = (cpl_erc_matrices){c->w[2] ? t->at[2] + first : NULL, c->D};
    erc.activation  = (cpl_erc_activation)c->activation;
    erc.alpha       = c->alpha;
    erc.weight      = c->weight;
    erc.noise       = c->noise ? CPL_ERC_NOISE_GIVEN : CPL_ERC_NOISE_NONE;
    erc.delta       = c->delta;
    erc.n_threads   = 2;
    erc.router_grad = t->dR;
    erc.gate_grad   = (cpl_erc_gradients){t->grad_at[0] + first, c->d};
    erc.up_grad     = (cpl_erc_gradients){t->grad_at[1] + first, c->d};
    erc.down_grad   = (cpl_erc_gradients){t->grad_at[2] + first, c->D};
    erc.M           = t->M;
    erc.eps         = t->eps;
    return erc;
}

enum { MOST_PARTS = 6 };

typedef struct part {
    cpl_erc erc;
    float *diagonal;
    int32_t *violations;
} part;

static inline part part_of(trainer *t, int64_t j0, int64_t j1, int64_t i0, int64_t i1)
{
    part p             = {.erc = erc_of(t, j0)};
    p.diagonal         = zeros(t->c->n);
    p.violations       = (int32_t *)(void *)zeros(2 * t->c->n);
    p.erc.first_expert = j0;
    p.erc.end_expert   = j1;
    p.erc.first_row    = i0;
    p.erc.end_row      = i1;
    p.erc.diagonal     = p.diagonal;
    p.erc.violations   = p.violations;
    assert_ok(cpl_erc_scratch(&p.erc, &p.erc.scratch_bytes));
    p.erc.scratch = take(p.erc.scratch_bytes);
    return p;
}

#endif /* CPL_TESTS_MODEL_COUPLET_CASE_H */
