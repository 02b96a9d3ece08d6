/* erc_in_your_trainer.c - the coupling loss of libcouplet inside another program's training step.
 *
 * Each of eight experts has its gate and up projections in one fused [2 D, d] tensor, as in many
 * trainers. The gate is passed by pointer and stride, without a copy. Afterwards one derivative is
 * compared with a central difference, which you may want to do once in your own program too. Exit
 * code 0 if they agree. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "couplet.h"

enum { N = 8, D_MODEL = 24, D_EXPERT = 16, FUSED = 2 * D_EXPERT * D_MODEL };

/* Arrays that your trainer owns: parameters, and gradients that the step has filled so far. */
static float router[N * D_MODEL], router_grad[N * D_MODEL];
static float fused[N][FUSED], fused_grad[N][FUSED]; /* rows 0 ... D-1 gate, D ... 2D-1 up */

static float made_up(void)
{
    return (float)rand() / (float)RAND_MAX - 0.5f;
}

/* Addresses of the experts' gates, set once when the model is made. */
static const void *gates[N];
static float *gate_grads[N];

static void make_model(void)
{
    for (int i = 0; i < N * D_MODEL; i++) router[i] = made_up();
    for (int e = 0; e < N; e++) {
        for (int i = 0; i < FUSED; i++) fused[e][i] = made_up();
        gates[e]      = fused[e];
        gate_grads[e] = fused_grad[e];
    }
}

/* Returns the loss of one layer. `backward` adds its gradient to router_grad and fused_grad. */
static double coupling_loss(uint64_t step, uint32_t layer, int backward)
{
    cpl_erc erc;
    cpl_erc_init(&erc);
    erc.n_experts   = N;
    erc.d_model     = D_MODEL;
    erc.d_expert    = D_EXPERT;
    erc.router      = router;
    erc.gate.at     = gates;
    erc.gate.stride = D_MODEL;
    erc.alpha       = 1.0;
    erc.weight      = 1.0; /* your coefficient; divided by the layers if you take their mean */
    erc.seed        = 42;
    erc.step        = step; /* the noise is a function of seed, step and layer, without state */
    erc.layer       = layer;
    if (backward) {
        erc.router_grad      = router_grad;
        erc.gate_grad.at     = gate_grads;
        erc.gate_grad.stride = D_MODEL;
    }
    if (cpl_erc_run(&erc) != CPL_OK) {
        fprintf(stderr, "%s\n", cpl_last_error());
        exit(1);
    }
    return erc.loss;
}

/* Returns the slope of the loss along one of expert e's gate numbers. (A router number's slope
 * would differ: eps and delta depend on R and count as constants in the gradient.) */
static double central_difference(int e, int i)
{
    const float keep = fused[e][i], h = 1e-3f;
    const float above = keep + h, below = keep - h;
    fused[e][i]       = above;
    const double up   = coupling_loss(0, 0, 0);
    fused[e][i]       = below;
    const double down = coupling_loss(0, 0, 0);
    fused[e][i]       = keep;
    return (up - down) / ((double)above - (double)below);
}

int main(void)
{
    make_model();
    const double loss = coupling_loss(0, 0, 1);
    printf("libcouplet %s: coupling loss %.6f\n", cpl_version(), loss);

    const int e = 3, i = 5 * D_MODEL + 7;
    const double ours = fused_grad[e][i], slope = central_difference(e, i);
    const int agree = fabs(ours - slope) <= 2e-3 * (fabs(slope) + 1e-3);
    printf("gradient of gate[%d][5][7]: %.6g, central difference: %.6g: %s\n", e, ours, slope,
           agree ? "they agree" : "THEY DIFFER");
    return agree ? 0 : 1;
}
