/* cmd_plan.c - couplet plan: the cost of a training run, before it runs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/plan_run.h"
#include "base/memory.h"
#include "cli/arguments/configure.h"
#include "cli/arguments/output_paths.h"
#include "cli/terminal/output.h"
#include "tensor/backend/backend.h"
#include "train/loop.h"

static void print_memory(const cpl_plan *plan)
{
    char words[32];
    const cpl_plan_gpu *gpu = &plan->gpu;
    const double there      = gpu->name ? gpu->free : cpl_memory_available();
    const bool fits         = gpu->name ? gpu->fits : (double)plan->bytes.total <= there;
    if (isinf(there)) return;
    printf("\nfree memory%s%s: %s: %s for %s\n", gpu->name ? " of " : "",
           gpu->name ? gpu->name : "", cpl_text_bytes(words, there), fits ? "enough" : "too little",
           plan->input.ranks > 1 ? "one rank of this run" : "this run");
    if (gpu->largest_micro > 0)
        printf("largest micro-batch that fits: train.micro_batch=%lld\n",
               (long long)gpu->largest_micro);
    else if (gpu->name && !fits)
        printf("no micro-batch fits\n");
}

static cpl_status print_table(const cpl_plan *plan, const cpl_gpu *assumed)
{
    cpl_text text = {0};
    cpl_plan_text(&text, plan);
    if (assumed) cpl_plan_assumed_text(&text, assumed);
    CPL_TRY(cpl_output_text(CPL_OK, &text));
    print_memory(plan);
    return CPL_OK;
}

static cpl_status show(const cpl_plan *plan, const cpl_gpu *assumed, const char *json)
{
    if (!json || strcmp(json, "-") != 0) CPL_TRY(print_table(plan, assumed));
    return json ? cpl_output_json(cpl_plan_json(plan), "the plan", json, 0) : CPL_OK;
}

/* Sets the speeds of a rank from flags, else from the assumed rates of a named GPU. Over several
 * ranks the speed of products is measured. */
static cpl_status machine_of(cpl_plan_machine *m, const cpl_arguments *args, const cpl_gpu *assumed,
                             cpl_backend *be)
{
    *m           = assumed ? cpl_plan_assumed(assumed) : (cpl_plan_machine){0};
    m->bandwidth = cpl_flag_number(args, "--bandwidth") * 1e9 / 8;
    m->latency   = cpl_flag_number(args, "--latency") * 1e-6;
    if (!assumed || cpl_flag_given(args, "--memory-bandwidth"))
        m->memory = cpl_flag_number(args, "--memory-bandwidth") * 1e9;
    if (cpl_flag_given(args, "--flops-per-second")) {
        m->flops     = cpl_flag_number(args, "--flops-per-second");
        m->attention = 0; /* the flag's speed includes attention */
    } else if (!assumed && cpl_flag_int(args, "--ranks") > 1) {
        return cpl_plan_speed(&m->flops, be);
    }
    return CPL_OK;
}

/* Returns the tokens of a step, not necessarily whole sequences. A batch that train would refuse to
 * divide, such as the paper's batch, is planned too. */
static int64_t tokens_of(const cpl_arguments *args, const cpl_settings *s, int64_t ranks)
{
    const cpl_log log = cpl_output_log(stderr);
    if (cpl_flag_given(args, "--tokens")) return cpl_flag_int(args, "--tokens");
    if (ranks == 1 || cpl_train_check_batch(s, ranks) == CPL_OK) return 0;
    cpl_log_warn(&log, "%s: train refuses this, the plan is that of the mean rank",
                 cpl_last_error());
    return s->data.batch_tokens;
}

/* Plans for the backend. `assumed` is the GPU whose published rates are used, or NULL. */
static cpl_status plan_with(cpl_plan *plan, const cpl_arguments *args, const cpl_settings *settings,
                            cpl_backend *be, const cpl_gpu *assumed)
{
    cpl_plan_run_for what = {.ranks = cpl_flag_int(args, "--ranks"), .backend = be};
    what.batch_tokens     = tokens_of(args, settings, what.ranks);
    CPL_TRY(machine_of(&what.machine, args, assumed, be));
    CPL_TRY(cpl_plan_run(plan, settings, &what));
    CPL_TRY(cpl_plan_run_largest(plan, settings, &what));
    const bool given =
        cpl_flag_given(args, "--flops-per-second") || cpl_flag_given(args, "--memory-bandwidth");
    return show(plan, given ? NULL : assumed, cpl_flag_text(args, "--json"));
}

/* Plans for the device that trains, or for the GPU of --gpu. */
static cpl_status plan(const cpl_arguments *args, cpl_settings *settings)
{
    const cpl_compute_settings *c = &settings->compute;
    const cpl_dtype compute       = cpl_dtype_chosen(c->dtype);
    const bool named              = cpl_flag_given(args, "--gpu");
    const char *device;
    cpl_backend be;
    cpl_plan made;
    CPL_TRY(
        cpl_device_of_ranks(&device, named ? "cuda" : c->device, cpl_flag_int(args, "--ranks")));
    if (named) {
        const cpl_gpu *gpu = &cpl_gpus[cpl_flag_int(args, "--gpu")];
        cpl_backend_described(&be, gpu, compute);
        /* Published rates are for bf16. */
        return plan_with(&made, args, settings, &be, be.compute == CPL_BF16 ? gpu : NULL);
    }
    CPL_TRY(cpl_backend_open(&be, device, compute, (int)c->threads));
    const cpl_status status = plan_with(&made, args, settings, &be, NULL);
    cpl_backend_free(&be);
    return status;
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_configuration c;
    CPL_TRY(cpl_output_paths_keep(args, args->words[0]));
    CPL_TRY(cpl_output_paths_check(args, "step_flops"));
    CPL_TRY(cpl_configure(&c, args->words[0], args));
    const cpl_status status = plan(args, &c.settings);
    if (status == CPL_OK) cpl_output_paths_describe(args);
    cpl_configuration_free(&c);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--json", FILE, "FILE",
             "Also write the plan as JSON; - prints it instead of the table."),
    CPL_FLAG_ROW_OVERWRITE,
    CPL_FLAG(
        "--tokens", INT, "T",
        "Tokens of one optimizer step over all ranks, not necessarily whole sequences; default: "
        "data.batch_tokens.",
        .low = 1, .high = 1e12, .unit = "tokens"),
    CPL_FLAG("--gpu", CHOICE, "NAME", "Plan for one GPU of this kind, which need not be here.",
             .unit = cpl_gpu_names + 1),
    CPL_FLAG("--ranks", INT, "N", "Processes that train together (mpirun -n N).",
             .default_value = "1", .low = 1, .high = 65535, .unit = "ranks"),
    CPL_FLAG("--expert-parallel", INT, "E",
             "Ranks over which the experts of a layer are divided; the rest is data parallel.",
             .default_value = "1", .low = 1, .high = 65535, .unit = "ranks",
             .setting = "dist.expert_parallel"),
    CPL_FLAG(
        "--flops-per-second", NUMBER, "F",
        "Floating-point operations a second that a rank makes in a training step; default, over "
        "several ranks: those of a large product, measured here.",
        .low = 1, .high = 1e20, .unit = "FLOP/s"),
    CPL_FLAG("--bandwidth", NUMBER, "B", "Rate at which a rank sends.", .default_value = "100",
             .low = 1e-6, .high = 1e9, .unit = "Gbit/s"),
    CPL_FLAG("--latency", NUMBER, "S", "Time of a message before its first byte.",
             .default_value = "5", .low = 0, .high = 1e9, .unit = "microseconds"),
    CPL_FLAG(
        "--memory-bandwidth", NUMBER, "B",
        "Rate at which a rank reads and writes while it updates parameters; with --gpu, instead of "
        "the assumed rate.",
        .default_value = "20", .low = 1e-6, .high = 1e9, .unit = "GB/s"),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_plan = {
    .name    = "plan",
    .summary = "predict parameters, work, memory and disk space of a training run",
    .usage =
        "CONFIG.yaml [--gpu NAME] [--ranks N] [--expert-parallel E] [--set SECTION.NAME=VALUE ...] "
        "[--json FILE]",
    .about =
        "Reads the configuration and no data. Parameters are counted as OLMoE counts them "
        "(active: all except the experts that a token is not sent to), and without the embedding "
        "and the head.\n"
        "Work is in floating-point operations; a product of [m,k] and [k,n] is 2 m k n.\n"
        "Memory is that of one process, or of the rank that takes most, counted by the functions "
        "that allocate it. Bytes and messages are those that this rank sends in a step.\n"
        "The time of a step and its efficiency are predicted over several ranks, or where "
        "--flops-per-second is given: operations over speed, and messages that nothing hides; with "
        "--gpu from assumed shares of its published rates, which are printed (docs/scale.md).",
    .least = 1,
    .most  = 1,
    CPL_VERB_FLAGS(flags),
    .settings = "*",
    .run      = run,
};
