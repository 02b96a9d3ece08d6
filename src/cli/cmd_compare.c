/* cmd_compare.c - couplet compare: runs lined up. */
#include <stdio.h>
#include <string.h>

#include "app/provenance.h"
#include "app/score_run.h"
#include "base/arena.h"
#include "base/text.h"
#include "cli/flags.h"
#include "cli/output_paths.h"
#include "cli/terminal/output.h"
#include "compare/compare.h"
#include "io/file.h"
#include "train/config/settings.h"

/* The defaults of this version for settings that a configuration does not name. */
static const char *standard_of(const char *name)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    const cpl_setting *s = cpl_settings_find(NULL, sections, CPL_N_SECTIONS, name, NULL);
    return s ? s->default_value : NULL;
}

static cpl_status print_text(const cpl_compare *compare)
{
    cpl_text text     = {0};
    cpl_status status = cpl_compare_text(&text, compare);
    if (status == CPL_OK) fputs(text.bytes, stdout);
    cpl_text_free(&text);
    return status;
}

static cpl_status add_series(const cpl_arguments *a, const cpl_compare *compare, json_t *json)
{
    cpl_charts charts = {0};
    json_t *made      = NULL;
    cpl_status status = cpl_compare_charts(&charts, compare);
    if (status == CPL_OK)
        status = cpl_provenance(&made, a->given, a->n_given, a->words, a->n_words);
    if (status == CPL_OK) status = cpl_charts_into(json, &charts, made);
    cpl_charts_close(&charts);
    return status;
}

static cpl_status write_page(const cpl_compare *compare, const json_t *data, const char *path)
{
    cpl_text page     = {0};
    cpl_status status = cpl_compare_page(&page, compare, data);
    if (status == CPL_OK) status = cpl_output_file(path, page.bytes, page.length);
    cpl_text_free(&page);
    return status;
}

static cpl_status show_all(const cpl_arguments *args, const cpl_compare *compare)
{
    const char *json = cpl_flag_text(args, "--json"), *html = cpl_flag_text(args, "--html");
    const bool series = cpl_flag_on(args, "--series");
    json_t *data      = NULL;
    cpl_status status = CPL_OK;
    if (!json || strcmp(json, "-") != 0) CPL_TRY(print_text(compare));
    if (json || html) data = cpl_compare_json(compare);
    if ((json || html) && !data)
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the comparison");
    if (series || html) CPL_TRY_DONE(add_series(args, compare, data));
    if (html) CPL_TRY_DONE(write_page(compare, data, html));
    if (json) {
        if (!series) json_object_del(data, "series");
        CPL_TRY_DONE(
            cpl_output_json(json_incref(data), "the comparison", json, JSON_REAL_PRECISION(9)));
    }
    cpl_output_paths_describe(args);
done:
    json_decref(data);
    return status;
}

/* A single run cannot be compared: its documents are scored only with --documents. */
static cpl_status score_documents(const cpl_arguments *args)
{
    cpl_log log = cpl_output_log(stderr);
    if (cpl_flag_on(args, "--no-documents")) return CPL_OK;
    const bool again = cpl_flag_given(args, "--documents");
    const int threads =
        cpl_flag_given(args, "--threads") ? (int)cpl_flag_int(args, "--threads") : -1;
    if (args->n_words < 2 && !again) return CPL_OK;
    for (int i = 0; i < args->n_words; i++)
        CPL_TRY(
            cpl_score_run(args->words[i], cpl_flag_int(args, "--documents"), threads, again, &log));
    return CPL_OK;
}

static cpl_status run(const cpl_arguments *args)
{
    const size_t most           = (size_t)args->n_words;
    int64_t n                   = 0;
    cpl_run_record *runs        = NULL;
    cpl_compare compare         = {0};
    cpl_compare_options options = {.group_by      = cpl_flag_text(args, "--group-by"),
                                   .default_value = standard_of};
    cpl_status status           = CPL_OK;
    CPL_TRY(cpl_output_paths_outside(args));
    CPL_TRY(cpl_output_paths_check(args, "runs"));
    CPL_TRY(cpl_flags_exclude(args, "--documents", "--no-documents"));
    CPL_TRY(score_documents(args));
    runs = cpl_alloc(most * sizeof *runs);
    if (!runs) return CPL_ERR_MEMORY;
    memset(runs, 0, most * sizeof *runs);
    CPL_TRY_DONE(cpl_run_records_open(runs, &n, args->words, args->n_words));
    CPL_TRY_DONE(cpl_compare_open(&compare, runs, n, &options));
    status = show_all(args, &compare);
done:
    cpl_compare_close(&compare);
    for (int64_t i = 0; i < n; i++) cpl_run_record_close(&runs[i]);
    cpl_free(runs);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--group-by", TEXT, "SETTING",
             "Group runs by the value of this setting, such as erc.alpha, and order them by it; "
             "default: runs that differ only in their seeds are a group."),
    CPL_FLAG(
        "--documents", INT, "N",
        "Score the first N held-out documents of each source under the last checkpoint of every "
        "finished run, even if they have been scored before; 0: all. If not given: 64, only for "
        "runs without RUN/documents.json, and only for two or more runs.",
        .default_value = "64", .low = 0, .high = 1e9, .unit = "documents"),
    CPL_SWITCH("--no-documents", "Score no documents; use existing scores."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROWS_PLACES("Also write everything as JSON; - prints it instead of the tables.",
                         "Write a self-contained page with tables and curves."),
};

const cpl_verb cpl_verb_compare = {
    .name    = "compare",
    .summary = "compare runs: settings, losses, coupling, speed, with spread over seeds",
    .usage   = "RUN [RUN ...] [--group-by SETTING] [--json FILE] [--html FILE] [--series]",
    .about =
        "A RUN is a folder of couplet train; it may still be in progress. The only file written "
        "into it is documents.json, the losses of held-out documents (--documents), computed "
        "with the run's own compute.threads unless --threads is given.\n"
        "Figures are taken at the largest number of tokens at which every run was evaluated. "
        "Runs that differ only in their seeds are summarised by mean and standard deviation. "
        "Runs of different groups that share seed and data are compared in pairs with the group "
        "of the first RUN: mean difference, 95 % interval, and the smallest difference that this "
        "number of pairs can detect.\n"
        "If training data, tokenizer or held-out text differ, a warning is printed first.",
    .least   = 1,
    .most    = -1,
    .flags   = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run     = run,
};
