/* cmd_train.c - couplet train: starts a run, or resumes one. */
#include <jansson.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/plan_run.h"
#include "app/train_eval.h"
#include "base/arena.h"
#include "cli/arguments/configure.h"
#include "cli/arguments/flags.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/output.h"
#include "cli/terminal/ranks.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/internal.h"
#include "data/tokens.h"
#include "io/file.h"
#include "io/paths.h"
#include "parallel/gather.h"
#include "settings/yaml.h"
#include "store/hf.h"
#include "store/run_dir.h"
#include "train/data.h"
#include "train/loop.h"
#include "train/ranks.h"

/* ---- output during the run ---- */

static cpl_plan_run_for of_ranks(const cpl_group *world, cpl_backend *be)
{
    return (cpl_plan_run_for){.ranks = world ? world->size : 1, .backend = be};
}

/* Context of the callbacks of a run. */
typedef struct watcher {
    cpl_progress progress; /* must be the first member: callbacks cast the watcher to it */
    cpl_train_eval eval;
    cpl_group *world; /* NULL: one process */
} watcher;

/* Fails if the run does not fit into memory. Each rank calls it before anything large is
 * allocated. */
static cpl_status approve(void *ctx, const cpl_settings *settings, cpl_backend *be)
{
    cpl_plan plan;
    const watcher *w            = ctx;
    const cpl_plan_run_for what = of_ranks(w->world, be);
    CPL_TRY(cpl_plan_run(&plan, settings, &what));
    return cpl_plan_run_fits(&plan, settings, &what);
}

static void began(void *ctx, const cpl_train_facts *f)
{
    const cpl_model_settings *m = &f->settings->model;
    printf("run %s: %.2f M parameters (%.2f M active), %lld layers, %lld experts, top %lld\n",
           f->run, (double)f->parameters / 1e6, (double)f->active_parameters / 1e6,
           (long long)m->n_layers, (long long)m->n_experts, (long long)m->top_k);
    printf("data: %.2f M tokens per epoch, %lld steps of %lld tokens each; steps %lld to %lld\n",
           (double)f->train_tokens / 1e6, (long long)f->steps_per_epoch,
           (long long)f->settings->data.batch_tokens, (long long)f->first_step,
           (long long)f->settings->train.steps);
    if (f->gpu)
        printf("compute: %s products on %s", f->dtype, f->gpu);
    else
        printf("compute: %s products on %d thread%s", f->dtype, f->n_threads,
               f->n_threads == 1 ? "" : "s");
    if (f->n_ranks > 1)
        printf(" of %d ranks (%lld along the experts)", f->n_ranks,
               (long long)f->settings->dist.expert_parallel);
    printf(", matrix peak %.0f GFLOP/s, %.2f GFLOP per step\n", f->peak / 1e9,
           f->flops_per_step / 1e9);
    cpl_progress_begin(ctx, f);
    fflush(stdout);
}

static void stepped(void *ctx, const cpl_metrics *m)
{
    cpl_progress_step(ctx, m);
}

static void saved(void *ctx, int64_t step)
{
    (void)ctx;
    cpl_progress_saved(step);
}

/* Prints each sample on one line, as a JSON string. */
static void print_samples(const json_t *samples)
{
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *text = json_object_get(json_array_get(samples, i), "text");
        char *words        = json_dumps(text, JSON_ENCODE_ANY);
        printf("sample %zu: %s\n", i + 1, words ? words : "");
        free(words);
    }
}

static cpl_status evaluate(void *ctx, cpl_model *model, cpl_exchange *exchange, json_t **tasks,
                           json_t **samples)
{
    watcher *w     = ctx;
    cpl_text words = {0};
    CPL_TRY(cpl_train_eval_run(&w->eval, model, exchange, w->world, tasks, samples));
    if (cpl_ranks_is_silent()) return CPL_OK;
    cpl_train_eval_words(&words, &w->eval);
    cpl_terminal_clear_line();
    if (*tasks) printf("tasks: %s\n", words.bytes ? words.bytes : "");
    print_samples(*samples);
    cpl_text_free(&words);
    return CPL_OK;
}

/* ---- the forms of the verb ---- */

/* Returns runs/NAME for path/to/NAME.yaml, which the caller frees, or NULL without memory. */
static char *default_run(const char *config)
{
    char folder[512];
    const char *name = strrchr(config, '/');
    name             = name ? name + 1 : config;
    size_t length    = strcspn(name, ".");
    snprintf(folder, sizeof folder, "runs/%.*s", (int)length, name);
    return cpl_text_copy(folder);
}

static cpl_status stopped(const char *run, const cpl_train_outcome *outcome)
{
    return CPL_FAIL(CPL_ERR_STOPPED,
                    "stopped after step %lld; everything is saved; go on with: couplet train "
                    "--resume %s",
                    (long long)outcome->step, run);
}

static cpl_status finish(const char *run, const cpl_train_outcome *outcome, const cpl_log *log)
{
    if (outcome->stopped) return stopped(run, outcome);
    CPL_TRY(cpl_train_summary_print(run, log));
    printf("\nthe run is %s, its model %s/last\n", run, run);
    return CPL_OK;
}

/* Trains. `written` are the unchanged settings of a resumed run's config.yaml, or NULL for a new
 * run. */
static cpl_status train(cpl_configuration *c, const char *run, const char *from,
                        const cpl_settings *written, cpl_group *world)
{
    watcher w                     = {.world = world};
    cpl_log log                   = cpl_ranks_log(stdout);
    cpl_train_callbacks callbacks = {&w, approve, began, stepped, saved, evaluate};
    cpl_train_job job             = {.settings  = &c->settings,
                                     .run       = run,
                                     .from      = from,
                                     .given     = c->given,
                                     .resume    = written != NULL,
                                     .written   = written,
                                     .world     = world,
                                     .log       = &log,
                                     .callbacks = &callbacks};
    cpl_train_outcome outcome     = {0};
    const int own = cpl_ranks_threads(); /* threads for compute.threads 0, which stays 0 in
                                            config.yaml */
    if (own) omp_set_num_threads(own);
    CPL_TRY(cpl_ranks_watch(c->settings.dist.timeout));
    CPL_TRY(cpl_gather_status(world, cpl_train_eval_open(&w.eval, &c->settings, &log)));
    job.positions     = cpl_train_eval_window(&w.eval);
    cpl_status status = cpl_train(&job, &outcome);
    cpl_terminal_clear_line();
    cpl_train_eval_close(&w.eval);
    /* Ranks that did not receive the signal themselves take the exit code of the signal too. */
    if (status == CPL_ERR_STOPPED && world) (void)cpl_ranks_are_stopped(world);
    if (status == CPL_ERR_STOPPED)
        return CPL_FAIL(status, "stopped before the first step; %s",
                        written ? "nothing is lost" : "nothing was begun");
    if (cpl_ranks_is_silent() && status == CPL_OK)
        return outcome.stopped ? stopped(run, &outcome) : CPL_OK;
    return status == CPL_OK ? finish(run, &outcome, &log) : status;
}

/* Checks that the run exists on rank 0 and that the other ranks see the same folder. */
static cpl_status check_run(const char *run, cpl_group *world)
{
    if (!world) return cpl_run_dir_check(run);
    CPL_TRY(cpl_gather_status(world, world->rank == 0 ? cpl_run_dir_check(run) : CPL_OK));
    return cpl_gather_status(world, cpl_ranks_share_folder(world, run));
}

/* Logs a line for each setting of the file that no longer exists. A pipe is skipped, since it
 * cannot be read again. */
static cpl_status tell_removed(const char *file, const cpl_log *log)
{
    cpl_yaml_tree tree = {0};
    const char *section, *name;
    json_t *members, *value;
    if (cpl_file_check(file) != CPL_OK) return CPL_OK;
    CPL_TRY(cpl_yaml_tree_read(&tree, file));
    json_object_foreach(tree.root, section, members) json_object_foreach(members, name, value)
    {
        char dotted[256];
        snprintf(dotted, sizeof dotted, "%s.%s", section, name);
        const char *now = cpl_settings_removed(dotted);
        if (now) cpl_log_info(log, "%s: %s is passed over: %s", file, dotted, now);
    }
    cpl_yaml_tree_free(&tree);
    return CPL_OK;
}

/* Sets `old` to the settings of the run, and `fresh` to these settings with the flags of the
 * command line applied. */
static cpl_status configure_again(cpl_configuration *old, cpl_configuration *fresh,
                                  const cpl_arguments *args, const char *run, int64_t ranks)
{
    cpl_log log       = cpl_ranks_log(stdout);
    char *file        = cpl_path_join(run, "config.yaml");
    cpl_status status = CPL_OK;
    if (!file) return CPL_ERR_MEMORY;
    CPL_TRY_DONE(cpl_file_check(file));
    CPL_TRY_DONE(cpl_configure(old, file, NULL));
    CPL_TRY_DONE(cpl_configure(fresh, file, args));
    CPL_TRY_DONE(tell_removed(file, &log));
    CPL_TRY_DONE(cpl_train_may_resume(&old->settings, &fresh->settings, ranks, &log));
done:
    cpl_free(file);
    return status;
}

static cpl_status resume(const cpl_arguments *args, const char *run, cpl_group *world)
{
    cpl_configuration old = {0}, fresh = {0};
    const int64_t ranks = world ? world->size : 1;
    cpl_status status   = check_run(run, world);
    if (status == CPL_OK)
        status = cpl_gather_status(world, configure_again(&old, &fresh, args, run, ranks));
    if (status == CPL_OK) status = train(&fresh, run, NULL, &old.settings, world);
    cpl_configuration_free(&fresh);
    cpl_configuration_free(&old);
    return status;
}

static bool sets(const cpl_arguments *args, const char *name)
{
    for (int i = 0; i < args->n_sets; i++)
        if (strncmp(args->sets[i], name, strlen(name)) == 0 && args->sets[i][strlen(name)] == '=')
            return true;
    return false;
}

/* Shortens the warm-up of the configuration if --set makes the run shorter than the warm-up and
 * does not set the warm-up itself. */
static void shorten_warmup(cpl_settings *s, const cpl_arguments *args, cpl_log log)
{
    const int64_t was = s->train.warmup_steps;
    if (was < s->train.steps || !sets(args, "train.steps") || sets(args, "train.warmup_steps"))
        return;
    s->train.warmup_steps = s->train.steps / 10;
    cpl_log_info(
        &log,
        "train.warmup_steps is %lld, a tenth of train.steps %lld: the configuration's %lld "
        "leave no room",
        (long long)s->train.warmup_steps, (long long)s->train.steps, (long long)was);
}

static cpl_status print_config(const cpl_arguments *args)
{
    cpl_configuration c;
    cpl_text text = {0};
    CPL_TRY(cpl_configure(&c, args->n_words ? args->words[0] : NULL, args));
    cpl_status status = cpl_yaml_absolute(&c.settings, c.sections, CPL_N_SECTIONS);
    if (status == CPL_OK) {
        shorten_warmup(&c.settings, args, cpl_output_log(stderr));
        cpl_yaml_write(&text, &c.settings, c.sections, CPL_N_SECTIONS, true);
    }
    cpl_configuration_free(&c);
    return cpl_output_text(status, &text);
}

/* ---- --dry-run ---- */

static cpl_status list_inputs(const char *what, const cpl_strings *inputs)
{
    for (int64_t i = 0; i < inputs->count; i++) {
        cpl_strings files = {0};
        if (cpl_tokens_are_shards(inputs->at[i])) {
            printf("would read %s: token shards %s\n", what, inputs->at[i]);
            continue;
        }
        const char *one = inputs->at[i];
        CPL_TRY(cpl_documents_expand(&files, &one, 1));
        printf("would read %s: %lld document file%s of %s (first %s)\n", what,
               (long long)files.count, files.count == 1 ? "" : "s", one, files.at[0]);
        cpl_paths_free(&files);
    }
    return CPL_OK;
}

/* Resolves the settings as the run would. Data is opened only if token shards alone record the
 * vocabulary. Opening writes no file. */
static cpl_status resolve(cpl_configuration *c, const char *run, const char *from,
                          const cpl_plan_run_for *what)
{
    cpl_log log         = cpl_ranks_log(stdout);
    cpl_run nowhere     = {.folder = (char *)(uintptr_t)run};
    cpl_settings *s     = &c->settings;
    cpl_hf *hf          = NULL;
    cpl_train_data data = {0};
    cpl_status status   = CPL_OK;
    if (from) CPL_TRY(cpl_hf_open(&hf, from, NULL));
    CPL_TRY_DONE(cpl_train_resolve(s, hf, c->given));
    CPL_TRY_DONE(cpl_train_data_begin(&data, s));
    if (s->model.vocab_size == CPL_UNSET && !data.vocab_size)
        CPL_TRY_DONE(cpl_train_data_open(&data, s, &nowhere, NULL, &log));
    CPL_TRY_DONE(cpl_train_resolve_vocabulary(s, data.vocab_size, data.eos));
    CPL_TRY_DONE(cpl_train_resolve_machine(s, what->backend, what->ranks, false));
    cpl_train_announce(s, what->backend, &log);
done:
    cpl_train_data_close(&data);
    cpl_hf_close(hf);
    return status;
}

/* Checks eval.tasks and eval.prompts, whose faults are reported before anything else, as in a
 * run. */
static cpl_status check_tasks(const cpl_settings *s)
{
    cpl_log log         = cpl_ranks_log(stdout);
    cpl_train_eval eval = {0};
    CPL_TRY(cpl_train_eval_open(&eval, s, &log));
    cpl_train_eval_close(&eval);
    return CPL_OK;
}

/* Prints the plan. Fails with CPL_ERR_MEMORY if the run does not fit into memory. */
static cpl_status show_plan(const cpl_settings *s, const cpl_plan_run_for *what)
{
    cpl_plan plan;
    cpl_text text = {0};
    CPL_TRY(cpl_plan_run(&plan, s, what));
    cpl_plan_text(&text, &plan);
    cpl_text_char(&text, '\n');
    CPL_TRY(cpl_output_text(CPL_OK, &text));
    return cpl_plan_run_fits(&plan, s, what);
}

static cpl_status dry_run(cpl_configuration *c, const char *run, const char *from,
                          const cpl_group *world)
{
    cpl_settings *s   = &c->settings;
    const cpl_log log = cpl_ranks_log(stdout);
    cpl_backend be;
    const char *device;
    const cpl_plan_run_for what = of_ranks(world, &be);
    CPL_TRY(check_tasks(s));
    CPL_TRY(cpl_run_check_place(run));
    CPL_TRY(cpl_device_of_ranks(&device, s->compute.device, what.ranks));
    CPL_TRY(
        cpl_backend_open(&be, device, cpl_dtype_chosen(s->compute.dtype), (int)s->compute.threads));
    cpl_backend_tell(&be, &log);
    cpl_status status = resolve(c, run, from, &what);
    if (status == CPL_OK) status = show_plan(s, &what);
    cpl_backend_free(&be);
    CPL_TRY(status);
    if (from) printf("would begin with the weights of %s\n", from);
    if (s->data.tokenizer) printf("would read the tokenizer %s\n", s->data.tokenizer);
    CPL_TRY(list_inputs("for training", &s->data.train));
    CPL_TRY(list_inputs("for evaluation", &s->data.validation));
    printf(
        "would write %s/config.yaml, metrics.jsonl, start.json and a checkpoint every %lld steps "
        "(the newest %lld kept)\n",
        run, (long long)s->checkpoint.every, (long long)s->checkpoint.keep);
    return CPL_OK;
}

static cpl_status begin(const cpl_arguments *args, cpl_group *world)
{
    cpl_configuration c = {0};
    const char *out = cpl_flag_text(args, "--out"), *from = cpl_flag_text(args, "--from");
    if (args->n_words == 0)
        return CPL_FAIL(CPL_ERR_USAGE,
                        "train needs a configuration file, or --resume RUN (couplet train "
                        "--print-config > my.yaml writes a file to begin with)");
    char *run = out ? cpl_text_copy(out) : default_run(args->words[0]);
    if (!run) return CPL_ERR_MEMORY;
    cpl_status status = cpl_configure(&c, args->words[0], args);
    const cpl_log log = cpl_ranks_log(stdout);
    if (status == CPL_OK) status = tell_removed(args->words[0], &log);
    if (status == CPL_OK) status = cpl_yaml_absolute(&c.settings, c.sections, CPL_N_SECTIONS);
    if (status == CPL_OK) shorten_warmup(&c.settings, args, log);
    status = cpl_gather_status(world, status);
    if (status == CPL_OK)
        status = cpl_flag_given(args, "--dry-run") ? dry_run(&c, run, from, world)
                                                   : train(&c, run, from, NULL, world);
    cpl_configuration_free(&c);
    cpl_free(run);
    return status;
}

/* Checks that all ranks run the same form of the verb, before other collective calls. */
static cpl_status agree_on_form(const cpl_arguments *args, cpl_group *world)
{
    json_t *form =
        json_pack("{s:b,s:b}", "whether a run is resumed (--resume)",
                  cpl_flag_given(args, "--resume"), "--dry-run", cpl_flag_given(args, "--dry-run"));
    return cpl_gather_equal(world, CPL_OK, form);
}

static cpl_status run(const cpl_arguments *args)
{
    const char *run_folder            = cpl_flag_text(args, "--resume");
    static const char *const others[] = {"--out", "--from", "--resume", "--dry-run"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CPL_TRY(cpl_flags_exclude(args, "--print-config", others[i]));
    if (cpl_flag_given(args, "--print-config")) return print_config(args);
    for (size_t i = 0; run_folder && i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i], "--resume") != 0)
            CPL_TRY(cpl_flags_exclude(args, "--resume", others[i]));
    if (run_folder && args->n_words)
        return CPL_FAIL(CPL_ERR_USAGE,
                        "--resume takes its configuration from the run; %s is one too many",
                        args->words[0]);
    CPL_TRY(cpl_signals_listen());
    cpl_group *world  = NULL;
    cpl_status status = cpl_ranks_begin(&world);
    if (status == CPL_OK) status = agree_on_form(args, world);
    if (status == CPL_OK)
        status = run_folder ? resume(args, run_folder, world) : begin(args, world);
    cpl_ranks_end(status);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--out", FOLDER, "RUN", "Folder of the new run; default: runs/NAME for NAME.yaml."),
    CPL_FLAG(
        "--from", FOLDER, "MODEL_DIR",
        "Start from the weights of this OLMoE directory, checkpoint or run; settings of section "
        "model that the configuration omits come from it."),
    CPL_FLAG("--resume", FOLDER, "RUN",
             "Resume a run from its last checkpoint. Threads, compute.device, train.micro_batch, "
             "train.recompute, the sections checkpoint, dist, eval and log and, with a warning, "
             "train.steps may be changed with --set; so may the number of processes."),
    CPL_SWITCH(
        "--print-config",
        "Print the complete commented configuration, with absolute paths, and do nothing else."),
    CPL_SWITCH("--dry-run", "Print what would be read, used and written, and do nothing else."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_train = {
    .name       = "train",
    .over_ranks = true,
    .summary    = "train a Mixture-of-Experts model with the coupling loss, or resume a run",
    .usage      = "CONFIG.yaml [--set train.lr=3e-4 ...] [--out RUN] [--from MODEL_DIR]\n"
                  "--resume RUN [--set ...]\n"
                  "--print-config [CONFIG.yaml] [--set ...]",
    .about =
        "A run is a folder: config.yaml (complete, as used), metrics.jsonl (one object per "
        "logged step), step-NNNNNN/ checkpoints that are Hugging Face OLMoE directories (with "
        "another model.router or shared experts: directories of our own), and `last`, a link to "
        "the newest complete one.\n"
        "Ctrl-C (SIGINT) and SIGTERM finish the step, save, print how to resume and end with "
        "exit code 130 or 143; a second one ends at once. A run that was killed and resumed "
        "gives bit for bit the losses and weights of an uninterrupted one, on the same machine "
        "with the same threads.\n"
        "mpirun -n N or srun trains over N processes. data.batch_tokens is the batch of all of "
        "them, and SIGUSR1 to one stops all as SIGTERM does (docs/parallel.md).",
    .most = 1,
    CPL_VERB_FLAGS(flags),
    .settings = "*",
    .first    = "data.train data.tokenizer model.hidden_size model.num_hidden_layers "
                "model.num_experts data.batch_tokens train.steps train.lr erc.weight erc.alpha",
    .run      = run,
};
