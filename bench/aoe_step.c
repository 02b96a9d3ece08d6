/* aoe_step.c - the time that the coupling loss and Autonomy-of-Experts add to a training step,
 * compared with the prediction of `couplet plan`
 *
 * usage:   aoe_step [rounds [tokens [draws]]]
 * Step:    as in train_step.c, f32, one layer, a vocabulary of 4096, `tokens` (4096) a step, all at
 *          once. A round has a step of the vanilla model, a step with the coupling loss, a step of
 *          Autonomy-of-Experts, and the plain product.
 * Added:   the median over the rounds of a step's time over the vanilla step's time in that round,
 *          less 1, beside the prediction by the operations that the plan counts. The coupling loss
 *          is a small part of a step, so it is measured with `draws` (8) draws of its noise, which
 *          cost equal times, and printed for one draw.
 * Rounds:  if the ratio of two steps varies by 1 per cent from round to round, the median of 3 has
 *          an error of 0.7 %. That is 3.5 % of the 20 % that the coupling loss adds in 8 draws at
 *          4096 tokens. Autonomy-of-Experts adds as much as the step itself. So 3 rounds are enough
 *          to see 20 %. The printed quartiles show the variation.
 * Memory:  peak resident bytes of the step of Autonomy-of-Experts beyond those before it was
 *          made, over the plan's bytes.total. */
#include "step.h"

enum { VANILLA, ERC, AOE, PLAIN, N_RUNS };

/* One step with the coupling loss and one without, of the same model. */
typedef struct coupled {
    bench_step *step;
    double weight;
} coupled;

static void run_coupled(void *context)
{
    coupled *c                          = context;
    c->step->settings.losses.erc.weight = c->weight;
    bench_step_run(c->step);
}

static void memory(bench_step *s, const bench_shape *shape)
{
    double before = bench_status_bytes("VmRSS");
    bench_reset_peak();
    bench_step_init(s, shape);
    bench_step_run(s);
    double held   = bench_status_bytes("VmHWM") - before;
    cpl_plan plan = bench_step_plan(s);
    printf("memory of Autonomy-of-Experts      held %.3f GB, predicted %.3f GB, ratio %.3f\n",
           1e-9 * held, 1e-9 * (double)plan.bytes.total, held / (double)plan.bytes.total);
    printf("  beyond its twin with a router, predicted %.3f GB (%.1f %%)\n",
           1e-9 * (double)plan.aoe.total_bytes, 100 * plan.aoe.share_of_bytes);
}

/* Prints a row. `times`: how often the work of `predicted` was done. */
static void added(const char *what, const bench_run *with, const bench_run *without,
                  double predicted, double times)
{
    bench_times ratios = bench_ratios(&with->times, &without->times);
    double measured    = (bench_median(&ratios) - 1) / times;
    double low         = (bench_quantile(&ratios, 0.25) - 1) / times;
    double high        = (bench_quantile(&ratios, 0.75) - 1) / times;
    printf("%-34s adds %6.2f %% (quarters %.2f to %.2f), predicted %6.2f %%, ratio %.2f\n", what,
           100 * measured, 100 * low, 100 * high, 100 * predicted, measured / predicted);
}

static void share_of_peak(const char *what, const bench_run *run, const bench_run *plain,
                          double flops)
{
    bench_pair pair = {run->times, plain->times};
    bench_print(what, &pair, flops, bench_plain_flops());
}

static void compare(int rounds, int64_t tokens, int64_t draws)
{
    bench_shape shape = {CPL_F32, 1, 4096, tokens, tokens / BENCH_SEQ_LEN, CPL_ROUTER_AOE, 0, NULL};
    bench_step aoe, routed;
    bench_plain plain;
    memory(&aoe, &shape);
    shape.router = CPL_ROUTER_SOFTMAX;
    bench_step_init(&routed, &shape);
    bench_plain_init(&plain, &routed.be);
    const cpl_plan one     = bench_step_plan(&routed);
    const cpl_plan apart   = bench_step_plan(&aoe);
    const double erc_flops = one.erc_share_all_active * one.step_flops;
    const double vanilla   = one.step_flops - erc_flops;
    coupled off = {&routed, 0}, on = {&routed, 1};
    routed.settings.losses.erc.draws = draws;
    bench_run runs[N_RUNS]           = {[VANILLA] = {run_coupled, &off, {0, {0}}},
                                        [ERC]     = {run_coupled, &on, {0, {0}}},
                                        [AOE]     = {bench_step_run, &aoe, {0, {0}}},
                                        [PLAIN]   = {bench_plain_run, &plain, {0, {0}}}};
    bench_rounds(rounds, runs, N_RUNS);
    share_of_peak("vanilla", &runs[VANILLA], &runs[PLAIN], vanilla);
    share_of_peak("coupling loss", &runs[ERC], &runs[PLAIN], vanilla + (double)draws * erc_flops);
    share_of_peak("Autonomy-of-Experts", &runs[AOE], &runs[PLAIN], apart.step_flops);
    added("coupling loss, all active", &runs[ERC], &runs[VANILLA], erc_flops / vanilla,
          (double)draws);
    added("Autonomy-of-Experts", &runs[AOE], &runs[VANILLA], apart.aoe.share_of_step, 1);
    bench_plain_free(&plain);
    bench_step_free(&routed);
    bench_step_free(&aoe);
}

int main(int argc, char **argv)
{
    const int rounds     = argc > 1 ? atoi(argv[1]) : 3;
    const int64_t tokens = argc > 2 ? atoll(argv[2]) : 4096, draws = argc > 3 ? atoll(argv[3]) : 8;
    cpl_backend be;
    cpl_backend_cpu(&be, CPL_F32, 0);
    printf(
        "Steps with the coupling loss and of Autonomy-of-Experts, f32, %lld tokens; medians of %d "
        "rounds\n",
        (long long)tokens, rounds);
    bench_machine(&be);
    compare(rounds, tokens, draws);
    return 0;
}
