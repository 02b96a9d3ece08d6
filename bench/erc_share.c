/* erc_share.c - the coupling loss's part of the MoE layers' time, compared with the part that its
 * operations predict
 *
 * usage:   erc_share [rounds [tokens]]
 * Sizes:   n = 64, K = 8, d = 1536, D = 768, f32; a step of 65,536 tokens.
 * Layer:   forward and backward of one MoE layer (norm, router, experts) over `tokens` (4096)
 *          tokens. A step's tokens pass in micro-batches, so its time is counted 65,536 / tokens
 *          times.
 * Loss:    the loss of one layer, once a step: noise, proxies, three products with every hinge
 *          active (alpha near 0), one with no hinge active (alpha 100). It is repeated for about as
 *          long as the layer.
 * Foretold: n n / 3 over K T, the plan's erc_overhead, and a third of that.
 * Rounds:  layer, loss with all and loss with no hinges in turn. If the ratio of two varies by 3
 *          per cent from round to round, the median of 5 has an error of 1.7 %. The bar is 30 %. */
#include "step.h"

#include "model/coupling.h"
#include "model/moe.h"

enum { STEP_TOKENS = 65536, REPEATS_ALL = 8, REPEATS_NONE = 24 };
enum { LAYER, ALL, NONE, N_RUNS };

typedef struct layer {
    bench_step *s;
    cpl_tensor x, out, dx, dy; /* [T,d] */
} layer;

static void run_layer(void *context)
{
    layer *l                         = context;
    bench_step *s                    = l->s;
    cpl_pass *pass                   = &s->step.pass;
    const cpl_layer_params *w        = &s->model.compute.layer[0];
    const cpl_model_settings *c      = &s->model.config;
    const cpl_aux_grad_scales scales = {.balance_scale = 0.01f, .z_scale = 0.001f};
    cpl_moe_forward(&s->be, l->out, &pass->moe[0], l->x, w, c, &pass->moe_scratch);
    s->be.ops->copy(&s->be, l->dx, l->dy);
    cpl_moe_backward(&s->be, l->dx, &s->optimizer.grads.layer[0], &pass->moe[0], l->x, w, c, scales,
                     &pass->moe_scratch);
    bench_ok(s->be.ops->sync(&s->be));
}

typedef struct loss {
    bench_step *s;
    float alpha;
    int repeats;
    double active[2]; /* share of pairs whose hinge at the row's, column's diagonal is active */
} loss;

/* Returns the share of pairs whose hinge at the row's (0) or column's (1) diagonal is active. */
static double active(const bench_step *s, int which)
{
    const cpl_tensor counts = cpl_tensor_at(s->step.violations, which);
    const double n          = (double)cpl_tensor_count(counts);
    double sum              = 0;
    for (int64_t i = 0; i < cpl_tensor_count(counts); i++) sum += cpl_i32(counts)[i];
    return sum / (n * (n - 1));
}

static void run_loss(void *context)
{
    loss *l                        = context;
    bench_step *s                  = l->s;
    const cpl_layer_params *w      = &s->model.compute.layer[0];
    const cpl_layer_params *dw     = &s->optimizer.grads.layer[0];
    const cpl_expert_weights gate  = {w->w_gate, w->w_up, w->w_down};
    const cpl_coupling_outputs out = {.M          = s->step.M[0],
                                      .eps        = s->step.eps[0],
                                      .delta      = s->step.delta[0],
                                      .loss       = s->step.centred.loss,
                                      .diagonal   = s->step.diagonal,
                                      .violations = s->step.violations,
                                      .dR         = dw->router,
                                      .dw         = {dw->w_gate, dw->w_up, dw->w_down}};
    for (int i = 0; i < l->repeats; i++) {
        const cpl_coupling_noise noise = {.seed = 1, .step = (uint64_t)i};
        cpl_coupling(&s->be, &out, s->model.master.layer[0].router, gate, &s->settings.losses.erc,
                     l->alpha, 1, s->be.compute, &noise, NULL);
    }
    bench_ok(s->be.ops->sync(&s->be));
    for (int which = 0; which < 2; which++) l->active[which] = active(s, which);
}

static void share(const char *what, const bench_run *run, const bench_run *one_layer, double tokens,
                  double predicted)
{
    const loss *l      = run->context;
    bench_times ratios = bench_ratios(&run->times, &one_layer->times);
    double scale       = tokens / STEP_TOKENS / (double)l->repeats;
    double measured    = scale * bench_median(&ratios),
           spread      = bench_quantile(&ratios, 0.75) - bench_quantile(&ratios, 0.25);
    printf("%-28s %8.1f ms (%5.1f %% of rows, %5.1f %% of columns active), %.4f %% +- %.4f of the "
           "layer's time, predicted %.4f %%, ratio %.2f\n",
           what, 1e3 * bench_median(&run->times) / l->repeats, 100 * l->active[0],
           100 * l->active[1], 100 * measured, 50 * scale * spread, 100 * predicted,
           measured / predicted);
}

static void compare(int rounds, int64_t tokens)
{
    const bench_shape shape = {
        CPL_F32, 1, 4096, tokens, tokens / BENCH_SEQ_LEN, CPL_ROUTER_SOFTMAX, 0, NULL};
    bench_step s;
    bench_step_init(&s, &shape);
    cpl_optimizer_zero(&s.optimizer, &s.model);
    s.settings.data.batch_tokens = STEP_TOKENS;
    const double predicted       = bench_step_plan(&s).erc_overhead;
    layer l                      = {&s, bench_plain_matrix(&s.be, CPL_F32, tokens, 1),
                                    bench_plain_matrix(&s.be, CPL_F32, tokens, 1),
                                    bench_plain_matrix(&s.be, CPL_F32, tokens, 1),
                                    bench_plain_matrix(&s.be, CPL_F32, tokens, 1)};
    loss all                     = {&s, 1e-3f, REPEATS_ALL, {0, 0}};
    loss none                    = {&s, 100, REPEATS_NONE, {0, 0}};
    bench_run runs[N_RUNS]       = {[LAYER] = {run_layer, &l, {0, {0}}},
                                    [ALL]   = {run_loss, &all, {0, {0}}},
                                    [NONE]  = {run_loss, &none, {0, {0}}}};
    bench_rounds(rounds, runs, N_RUNS);
    printf("layer, forward and backward   %8.1f ms for %lld tokens, counted %.1f times\n",
           1e3 * bench_median(&runs[LAYER].times), (long long)tokens, STEP_TOKENS / (double)tokens);
    share("every hinge active", &runs[ALL], &runs[LAYER], (double)tokens, predicted);
    share("no hinge active", &runs[NONE], &runs[LAYER], (double)tokens, predicted / 3);
    cpl_free(l.x.storage);
    cpl_free(l.out.storage);
    cpl_free(l.dx.storage);
    cpl_free(l.dy.storage);
    bench_step_free(&s);
}

int main(int argc, char **argv)
{
    const int rounds     = argc > 1 ? atoi(argv[1]) : 5;
    const int64_t tokens = argc > 2 ? atoll(argv[2]) : 4096;
    cpl_backend be;
    cpl_backend_cpu(&be, CPL_F32, 0);
    printf("The coupling loss in a step of %d tokens, f32; medians of %d rounds\n", STEP_TOKENS,
           rounds);
    bench_machine(&be);
    compare(rounds, tokens);
    return 0;
}
