/* cmd_eval.c - couplet eval: a model's answers to the questions of benchmarks. */
#include <stdio.h>
#include <string.h>

#include "app/plan_run.h"
#include "app/provenance.h"
#include "app/score_documents.h"
#include "base/arena.h"
#include "cli/arguments/configure.h"
#include "cli/arguments/output_paths.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/output.h"
#include "cli/terminal/ranks.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/internal.h"
#include "eval/evaluation.h"
#include "eval/run/eval_model.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

/* Holds the state of one call; empty if all zero. */
typedef struct work {
    const cpl_arguments *args;
    cpl_configuration configuration;
    char *data, *own;  /* folder of rows (--data), and folder of the rows that come with the
                          program; owned */
    cpl_strings words; /* words of --tasks; owned */
    cpl_selection selection;
    cpl_eval_model model;
    cpl_evaluation evaluation;
    json_t *settings;
    cpl_eval_journal journal;
    cpl_text farewell; /* sentence on a stopped evaluation, with the place of its answers */
    cpl_eval_bar bar;
    cpl_log log;
    cpl_group *world; /* NULL: one process */
} work;

/* ---- tasks and questions ---- */

static cpl_status split_words(work *w)
{
    static const cpl_setting list = {.section       = "",
                                     .name          = "--tasks",
                                     .kind          = CPL_KIND_STRINGS,
                                     .default_value = "",
                                     .help          = ""};
    const char *text              = cpl_flag_text(w->args, "--tasks");
    if (!text || cpl_setting_parse(&list, &w->words, text) == CPL_OK) return CPL_OK;
    return CPL_FAIL(CPL_ERR_USAGE,
                    "--tasks %s: names of tasks are needed, with one comma between "
                    "two of them",
                    text);
}

static cpl_status select_tasks(work *w)
{
    const char *file              = cpl_flag_text(w->args, "--task-file");
    cpl_selection_options options = {.files   = &file,
                                     .n_files = file != NULL,
                                     .profile = cpl_flag_text(w->args, "--profile"),
                                     .variant = cpl_flag_text(w->args, "--variant")};
    CPL_TRY(cpl_selection_init(&w->selection, cpl_request_kinds));
    CPL_TRY(split_words(w));
    options.words   = (const char *const *)w->words.at;
    options.n_words = w->words.count;
    return cpl_selection_add(&w->selection, &options);
}

static cpl_status open_evaluation(work *w)
{
    const cpl_arguments *a              = w->args;
    const cpl_questions_options options = {.data   = w->data,
                                           .own    = w->own,
                                           .offset = cpl_flag_int(a, "--offset"),
                                           .limit  = cpl_flag_int_or(a, "--limit", CPL_UNSET),
                                           .shots  = cpl_flag_int_or(a, "--num-fewshot", CPL_UNSET),
                                           .max_tokens =
                                               cpl_flag_int_or(a, "--max-gen-toks", CPL_UNSET),
                                           .skip_bad = cpl_flag_given(a, "--skip-bad"),
                                           .log      = &w->log};
    return cpl_evaluation_open(&w->evaluation, &w->selection, &options,
                               cpl_eval_model_window(&w->model), w->model.tokenizer);
}

/* ---- identity of this evaluation ---- */

static cpl_status describe(work *w)
{
    const cpl_questions_options *options = &w->evaluation.options;
    const cpl_selection *tasks           = &w->selection;
    const struct {
        const char *name;
        int64_t value;
    } limits[]      = {{"limit", options->limit},
                       {"num_fewshot", options->shots},
                       {"max_gen_toks", options->max_tokens}};
    const bool bf16 = w->model.be.compute == CPL_BF16;
    bool failed     = false;
    json_t *s = w->settings = json_object();
    CPL_TRY(cpl_eval_model_describe(&w->model, s));
    cpl_json_put(&failed, s, "dtype", json_string(bf16 ? "bfloat16" : "float32"));
    cpl_json_put(&failed, s, "data", cpl_json_words(w->data));
    json_t *keys = cpl_json_open(&failed, s, "tasks", json_array());
    for (int64_t i = 0; i < tasks->count; i++)
        cpl_json_add(&failed, keys,
                     json_pack("[s,s]", tasks->at[i].key, tasks->at[i].profile->name));
    cpl_json_put(&failed, s, "offset", json_integer(options->offset));
    for (int i = 0; i < 3; i++)
        if (limits[i].value != CPL_UNSET)
            cpl_json_put(&failed, s, limits[i].name, json_integer(limits[i].value));
    cpl_json_put(&failed, s, "samples", json_boolean(cpl_flag_given(w->args, "--samples")));
    cpl_json_put(&failed, s, "max_length", json_integer(cpl_eval_model_window(&w->model)));
    return failed ? CPL_ERR_MEMORY : CPL_OK;
}

/* ---- places of results ---- */

/* Opens the journal FILE.partial next to the results, if results are written. */
static cpl_status open_record(work *w)
{
    if (!cpl_output_paths_is_file(w->args, "--json")) {
        cpl_signals_farewell("stopped; no answers are kept, because no file is named with --json");
        return CPL_OK;
    }
    cpl_text path = {0};
    cpl_text_printf(&path, "%s.partial", cpl_flag_text(w->args, "--json"));
    cpl_status status = cpl_text_status(&path);
    if (status == CPL_OK)
        status = cpl_eval_journal_open(&w->journal, path.bytes, w->settings,
                                       cpl_flag_given(w->args, "--overwrite"));
    if (status == CPL_OK && w->journal.count)
        cpl_log_info(&w->log, "going on with %s: %lld answered before", path.bytes,
                     (long long)w->journal.count);
    cpl_text_printf(&w->farewell,
                    "stopped; the answers so far are kept in %s, and the same command goes on from "
                    "there",
                    path.bytes ? path.bytes : "");
    if (status == CPL_OK) status = cpl_text_status(&w->farewell);
    if (status == CPL_OK) cpl_signals_farewell(w->farewell.bytes);
    cpl_text_free(&path);
    return status;
}

static cpl_status print_table(const work *w)
{
    cpl_text text = {0};
    return cpl_output_text(cpl_evaluation_text(&text, &w->evaluation), &text);
}

static cpl_status write_page(const work *w, const json_t *data, const char *path)
{
    cpl_text page          = {0};
    json_t *made           = NULL;
    const cpl_arguments *a = w->args;
    cpl_status status      = cpl_provenance(&made, a->given, a->n_given, a->words, a->n_words);
    if (status == CPL_OK)
        status = cpl_evaluation_page(&page, &w->evaluation, a->words[0], data, made);
    if (status == CPL_OK) status = cpl_output_file(path, page.bytes, page.length);
    json_decref(made);
    cpl_text_free(&page);
    return status;
}

static cpl_status show_all(work *w)
{
    const char *json = cpl_flag_text(w->args, "--json"), *html = cpl_flag_text(w->args, "--html");
    json_t *data      = NULL;
    cpl_status status = CPL_OK;
    if (!json || strcmp(json, "-") != 0) CPL_TRY(print_table(w));
    if (json || html) data = cpl_evaluation_json(&w->evaluation, w->settings, w->model.runner.eos);
    if ((json || html) && !data) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the results");
    if (html) CPL_TRY_DONE(write_page(w, data, html));
    if (json)
        CPL_TRY_DONE(
            cpl_output_json(json_incref(data), "the results", json, JSON_REAL_PRECISION(9)));
    cpl_output_paths_describe(w->args);
    status = cpl_eval_journal_remove(&w->journal);
done:
    json_decref(data);
    return status;
}

/* ---- forms of the verb ---- */

static cpl_status check_data(work *w, bool question_schemas)
{
    const char *given = cpl_flag_text(w->args, "--data");
    w->own            = cpl_eval_data_dir();
    if (!w->own) return CPL_ERR_MEMORY;
    w->data = cpl_text_copy(given ? given : w->own);
    if (!w->data) return CPL_ERR_MEMORY;
    if (given && !cpl_path_is_folder(given))
        return CPL_FAIL(CPL_ERR_INPUT, "--data %s: there is no such folder", given);
    return given || !question_schemas ? CPL_OK : cpl_eval_data_dir_check(w->own, "--data");
}

/* Checks before the model runs that --json and --html can be written, and that each is new or may
 * be replaced (--overwrite). */
static cpl_status check_outputs(const cpl_arguments *args)
{
    CPL_TRY(cpl_output_paths_keep(args, cpl_flag_text(args, "--task-file")));
    CPL_TRY(cpl_output_paths_keep(args, cpl_flag_text(args, "--tokenizer")));
    return cpl_output_paths_check(args, "results sources");
}

/* Opens everything except the weights. */
static cpl_status open_all(work *w)
{
    const cpl_arguments *a = w->args;
    if (cpl_gather_is_first(w->world)) CPL_TRY(check_outputs(a));
    CPL_TRY(check_data(w, true));
    CPL_TRY(select_tasks(w));
    CPL_TRY(cpl_eval_model_open(&w->model, a->words[0], cpl_flag_text(a, "--tokenizer"), &w->log));
    return open_evaluation(w);
}

static cpl_status load(work *w)
{
    const cpl_compute_settings *c = &w->configuration.settings.compute;
    const bool chosen             = cpl_configuration_gives(&w->configuration, "compute.dtype");
    const char *device;
    CPL_TRY(cpl_device_of_ranks(&device, c->device, w->world ? w->world->size : 1));
    CPL_TRY(cpl_eval_model_load(&w->model, device, chosen ? cpl_dtype_chosen(c->dtype) : CPL_F32,
                                (int)c->threads, w->evaluation.window));
    cpl_backend_tell(&w->model.be, &w->log);
    w->model.runner.texts = cpl_flag_given(w->args, "--samples");
    w->model.runner.group = w->world;
    return describe(w);
}

/* Returns the values that must be equal on all ranks, which are all settings except paths, or NULL
 * without memory. The caller frees them. */
static json_t *common_values(const work *w)
{
    json_t *values    = json_copy(w->settings);
    bool failed       = !values;
    json_t *tokenizer = json_object_get(json_object_get(values, "tokenizer"), "xxh3");
    cpl_json_put(&failed, values, "tokenizer", json_incref(tokenizer));
    cpl_json_put(&failed, values, "the version of the program", json_string(COUPLET_VERSION));
    cpl_json_put(&failed, values, "the number of threads (compute.threads)",
                 json_integer(w->model.be.n_threads));
    cpl_json_put(&failed, values, "the device (compute.device)", json_string(w->model.be.device));
    (void)json_object_del(values, "model");
    (void)json_object_del(values, "data");
    if (!failed) return values;
    json_decref(values);
    return NULL;
}

static cpl_status evaluate(work *w)
{
    cpl_evaluation_callbacks callbacks = {0};
    const bool first                   = cpl_gather_is_first(w->world);
    CPL_TRY(cpl_gather_status(w->world, open_all(w)));
    cpl_status status = load(w);
    CPL_TRY(cpl_gather_equal(w->world, status, w->world ? common_values(w) : NULL));
    CPL_TRY(cpl_gather_status(w->world, first ? open_record(w) : CPL_OK));
    if (first) callbacks = cpl_eval_bar_callbacks(&w->bar, w->evaluation.n_questions);
    status =
        cpl_evaluation_run(&w->evaluation, &w->model.runner, w->journal.file ? &w->journal : NULL,
                           cpl_flag_given(w->args, "--samples"), &callbacks);
    cpl_terminal_clear_line();
    CPL_TRY(status);
    CPL_TRY(cpl_gather_status(w->world, first ? show_all(w) : CPL_OK));
    return cpl_evaluation_missing(&w->evaluation);
}

static cpl_status list(work *w)
{
    CPL_TRY(cpl_ranks_refuse("eval --list"));
    CPL_TRY(check_data(w, false));
    CPL_TRY(select_tasks(w));
    return cpl_eval_list(&w->selection, w->data);
}

static cpl_status documents(const work *w)
{
    const cpl_arguments *a = w->args;
    const int threads      = (int)cpl_flag_int_or(a, "--threads", -1);
    CPL_TRY(cpl_ranks_refuse("eval --documents"));
    CPL_TRY(cpl_score_documents(a->words[0], cpl_flag_int_or(a, "--limit", 0), threads,
                                cpl_flag_given(a, "--overwrite"), &w->log));
    printf("documents: %s/documents.json\n", a->words[0]);
    return CPL_OK;
}

/* Runs a form of the verb whose work the ranks of a launcher share. */
static cpl_status evaluate_or_read(work *w, cpl_eval_mode form)
{
    cpl_settings *s = &w->configuration.settings;
    if (s->compute.threads == 0) s->compute.threads = cpl_ranks_threads();
    cpl_signals_farewell(form == CPL_EVAL_MODE_TEXT ? "stopped; no figures are kept"
                                                    : "stopped before the first question");
    if (!cpl_ranks_is_silent()) CPL_TRY(cpl_signals_listen());
    CPL_TRY(cpl_ranks_begin(&w->world));
    CPL_TRY(cpl_ranks_watch(s->dist.timeout));
    return form == CPL_EVAL_MODE_TEXT ? cpl_eval_text(w->args, &w->configuration, w->world, &w->log)
                                      : evaluate(w);
}

static cpl_status run(const cpl_arguments *args)
{
    work w = {.args = args, .log = cpl_ranks_log(stderr)};
    cpl_eval_mode form;
    CPL_TRY(cpl_eval_mode_of(&form, args));
    CPL_TRY(cpl_configure(&w.configuration, NULL, args));
    cpl_status status = form == CPL_EVAL_MODE_LIST        ? list(&w)
                        : form == CPL_EVAL_MODE_DOCUMENTS ? documents(&w)
                                                          : evaluate_or_read(&w, form);
    cpl_ranks_end(status);
    cpl_eval_journal_close(&w.journal);
    json_decref(w.settings);
    cpl_evaluation_close(&w.evaluation);
    cpl_eval_model_close(&w.model);
    cpl_selection_free(&w.selection);
    cpl_signals_farewell("stopped");
    cpl_text_free(&w.farewell);
    cpl_paths_free(&w.words);
    cpl_free(w.data);
    cpl_free(w.own);
    cpl_configuration_free(&w.configuration);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--tasks", TEXT, "TASK,...",
             "Evaluate these tasks: their ids (--list), or paper-3b, paper-15b, all.",
             .offer = cpl_eval_list_task_words),
    CPL_FLAG("--task-file", FILE, "T.yaml",
             "Evaluate a task of your own (docs/tasks.md), alone or in addition to --tasks."),
    CPL_FLAG("--profile", TEXT, "PROFILE",
             "inloop (OLMoE's own evaluations), harness (lm-evaluation-harness) or olmes; default: "
             "each task's own.",
             .offer = cpl_eval_list_profile_words),
    CPL_FLAG("--variant", TEXT, "V",
             "A variant of the profile; --list shows variants after a slash."),
    CPL_FLAG(
        "--data", FOLDER, "DIR",
        "Folder with the published files of the tasks; default: the samples that come with the "
        "program, which are too few for a score to report."),
    CPL_FLAG("--limit", INT, "N",
             "Use at most this many rows of each subject, or documents of each source.", .low = 1,
             .high = 1e9, .unit = "rows"),
    CPL_FLAG("--offset", INT, "M", "Skip this many rows at the beginning of each subject.",
             .default_value = "0", .low = 0, .high = 1e9, .unit = "rows"),
    CPL_FLAG("--num-fewshot", INT, "K", "Number of few-shot examples, instead of the profile's.",
             .low = 0, .high = 1000),
    CPL_FLAG("--max-gen-toks", INT, "N",
             "Generate at most this many tokens, instead of the task's limit.", .low = 1,
             .high = 1e6, .unit = "tokens"),
    CPL_FLAG("--text", FILE, "FILE",
             "Perplexity and bits per byte of this text, and of those named after the flags; "
             "files, folders and patterns as in data.train (--set data.*)."),
    CPL_FLAG("--window", INT, "N",
             "Tokens per window of --text; default: data.seq_len of the run that the model is of, "
             "else 1024, or the model's context if shorter.",
             .low = 1, .high = 1e7, .unit = "tokens"),
    CPL_FLAG("--stride", INT, "N",
             "Tokens of --text by which the window advances; each token is predicted once, "
             "from the tokens before it in the window; default: whole windows.",
             .low = 1, .high = 1e7, .unit = "tokens"),
    CPL_FLAG("--tokenizer", FILE, "T.json",
             "The tokenizer; default: the model's own tokenizer.json."),
    CPL_FLAG("--json", FILE, "FILE",
             "Also write the results as JSON; - prints them instead of the table. Answers to tasks "
             "are kept in FILE.partial until then; an interrupted evaluation resumes from it, or "
             "starts again with --overwrite."),
    CPL_FLAG("--html", FILE, "FILE",
             "Write a self-contained page with the tasks' tables and a chart."),
    CPL_SWITCH("--samples",
               "Add every question of the tasks with its answer to the JSON; needs --json."),
    CPL_FLAG_ROW_OVERWRITE,
    CPL_SWITCH("--skip-bad", "Count invalid rows of tasks instead of failing."),
    CPL_SWITCH("--documents",
               "Score the held-out documents of a run under its last checkpoint, all or the first "
               "--limit of each source, and write the losses to RUN/documents.json."),
    CPL_SWITCH("--list",
               "Show the tasks, their profiles and the rows found (--data); loads no model."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_eval = {
    .name       = "eval",
    .over_ranks = true,
    .summary    = "evaluate a model on benchmarks, or compute the perplexity of text",
    .usage =
        "MODEL_DIR --tasks TASK,... [--task-file T.yaml] [--profile P] [--data DIR] [--limit N] "
        "[--json F] [--html F]\n"
        "MODEL_DIR --text FILE... [--window N] [--stride N] [--json F]\n"
        "RUN --documents [--limit N]\n"
        "--list [--data DIR] [--task-file T.yaml]",
    .about =
        "MODEL_DIR is an OLMoE directory in Hugging Face's layout, a checkpoint, or the folder "
        "of a run, whose last checkpoint is then used. Every task has profiles, each with the "
        "prompts and metrics of a published program; a score without its profile, split and "
        "number of few-shot examples says little.\n"
        "An interrupted evaluation resumes where it stopped. Products are in f32 unless --set "
        "compute.dtype says otherwise. For couplet compare, write the results of a run with "
        "--samples to RUN/questions.json.\n"
        "--documents scores held-out documents, for couplet compare, with the run's own "
        "configuration; it accepts --limit, --threads and --overwrite.\n"
        "--text computes perplexity and bits per byte instead of tasks, and accepts --window, "
        "--stride, --tokenizer, --json, --overwrite, --threads and --set; all other flags except "
        "--list are for tasks, and the settings of data are for --text. docs/evaluation.md "
        "describes what is computed.\n"
        "Under mpirun or srun the ranks share the questions, or the text, with the results of one "
        "process; every rank loads the model (docs/parallel.md).",
    .most = -1,
    CPL_VERB_FLAGS(flags),
    .settings = "compute.device compute.dtype data.bad data.text_field data.id_field "
                "data.source_field data.strip "
                "data.split data.separator data.special_as_text data.max_line_bytes "
                "data.zstd_window_log dist.timeout",
    .run      = run,
};
