/* cmd_plan.c - couplet plan: what a training run will take, before it runs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/plan_run.h"
#include "base/memory.h"
#include "cli/configure.h"
#include "cli/output_paths.h"
#include "cli/terminal/output.h"

static void print_memory(const cpl_plan *plan)
{
    char words[32];
    double there = cpl_memory_available(), needs = (double)plan->bytes.total;
    if (isinf(there)) return;
    printf("\nmemory there is now: %s: %s\n", cpl_text_bytes(words, there),
           needs > there ? "too little for this run" : "enough for this run");
}

static cpl_status print_table(const cpl_plan *plan)
{
    cpl_text text = {0};
    cpl_plan_text(&text, plan);
    cpl_status status = cpl_text_status(&text);
    if (status == CPL_OK) {
        fputs(text.bytes, stdout);
        print_memory(plan);
    }
    cpl_text_free(&text);
    return status;
}

static cpl_status show(const cpl_plan *plan, const char *json)
{
    if (!json || strcmp(json, "-") != 0) CPL_TRY(print_table(plan));
    return json ? cpl_output_json(cpl_plan_json(plan), "the plan", json, 0) : CPL_OK;
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_configuration c;
    cpl_plan plan;
    CPL_TRY(cpl_output_paths_keep(args, args->words[0]));
    CPL_TRY(cpl_output_paths_check(args, "step_flops"));
    CPL_TRY(cpl_configure(&c, args->words[0], args));
    cpl_plan_run_for what = {.dp = cpl_flag_int(args, "--dp"), .ep = cpl_flag_int(args, "--ep")};
    if (cpl_flag_given(args, "--tokens")) what.batch_tokens = cpl_flag_int(args, "--tokens");
    cpl_status status = cpl_plan_run(&plan, &c.settings, &what);
    if (status == CPL_OK) status = show(&plan, cpl_flag_text(args, "--json"));
    if (status == CPL_OK) cpl_output_paths_describe(args);
    cpl_configuration_free(&c);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--json", FILE, "FILE",
             "Also write the plan as JSON; - prints it instead of the table."),
    CPL_FLAG_ROW_OVERWRITE,
    CPL_FLAG("--tokens", INT, "T",
             "Tokens of one optimizer step over all devices; default: data.batch_tokens.", .low = 1,
             .high = 1e12, .unit = "tokens"),
    CPL_FLAG("--dp", INT, "N",
             "Data-parallel devices, for the predicted cost of the coupling loss.",
             .default_value = "1", .low = 1, .high = 1e6, .unit = "devices"),
    CPL_FLAG("--ep", INT, "N", "Expert-parallel devices; must divide the number of experts.",
             .default_value = "1", .low = 1, .high = 65535, .unit = "devices"),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_plan = {
    .name    = "plan",
    .summary = "predict parameters, work, memory and disk space of a training run",
    .usage   = "CONFIG.yaml [--set SECTION.NAME=VALUE ...] [--json FILE]",
    .about =
        "Reads the configuration and no data. Parameters are counted as OLMoE counts them "
        "(active: all except the experts that a token is not sent to), and without the embedding "
        "and the head.\n"
        "Work is in floating-point operations; a product of [m,k] and [k,n] is 2 m k n.\n"
        "Memory is that of one process that holds the whole model, counted by the functions that "
        "allocate it.",
    .least    = 1,
    .most     = 1,
    .flags    = flags,
    .n_flags  = sizeof flags / sizeof *flags,
    .settings = "*",
    .run      = run,
};
