/* trainer.c - see trainer.h: how a run comes to its first step. */
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

#include "io/file.h"
#include "io/yaml.h"
#include "model/cost.h"
#include "store/checkpoint.h"

enum { VOCABULARY_MULTIPLE = 128 }; /* rows of the embedding: OLMo pads to this */

static const double peak_seconds = 0.3; /* how long the machine's peak is measured */

/* ---- settings that the data and the model to begin with decide ---- */

static cpl_status differs(const char *name, double given, double has, const char *model_dir)
{
    return CPL_FAIL(CPL_ERR_INPUT, "model.%s is %.10g in the configuration, but %s has %.10g", name,
                    given, model_dir, has);
}

/* Settings of section model: those not given come from the model to begin with, those given must
 * agree with it. */
static cpl_status adopt(cpl_model_settings *c, const cpl_model_settings *from, const bool *given,
                        const char *model_dir)
{
    for (size_t i = 0; i < cpl_model_section.count; i++) {
        const cpl_setting *s = &cpl_model_section.list[i];
        void *to             = (char *)c + s->offset;
        const void *has      = (const char *)from + s->offset;
        if (given && given[i] && !cpl_setting_equal(s, to, has)) {
            double a = s->kind == CPL_KIND_FLOAT ? *(double *)to
                       : s->kind == CPL_KIND_INT ? (double)*(int64_t *)to
                                                 : *(int *)to;
            double b = s->kind == CPL_KIND_FLOAT ? *(const double *)has
                       : s->kind == CPL_KIND_INT ? (double)*(const int64_t *)has
                                                 : *(const int *)has;
            return differs(s->name, a, b, model_dir);
        }
    }
    *c = *from; /* numbers only: nothing is owned */
    return CPL_OK;
}

static cpl_status settle_vocabulary(cpl_model_settings *c, const cpl_train_data *data)
{
    int64_t rows = data->vocab_size;
    if (c->vocab_size == CPL_UNSET && rows > 0)
        c->vocab_size =
            (rows + VOCABULARY_MULTIPLE - 1) / VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE;
    if (c->vocab_size != CPL_UNSET && c->vocab_size < rows)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the tokenizer has ids up to %lld, but model.vocab_size is %lld",
                        (long long)(rows - 1), (long long)c->vocab_size);
    return cpl_model_settle(c);
}

static cpl_status check_batch(const cpl_settings *s)
{
    int64_t sequences = s->data.batch_tokens / s->data.seq_len;
    if (s->data.batch_tokens % s->data.seq_len != 0 || sequences == 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.batch_tokens %lld is not a multiple of data.seq_len %lld",
                        (long long)s->data.batch_tokens, (long long)s->data.seq_len);
    if (s->train.micro_batch && sequences % s->train.micro_batch != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "train.micro_batch %lld does not divide the %lld sequences of a batch",
                        (long long)s->train.micro_batch, (long long)sequences);
    if (s->data.seq_len > s->model.max_positions)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.seq_len %lld is beyond model.max_position_embeddings %lld",
                        (long long)s->data.seq_len, (long long)s->model.max_positions);
    if (s->train.warmup_steps >= s->train.steps)
        return CPL_FAIL(CPL_ERR_INPUT, "train.warmup_steps %lld leaves nothing of train.steps %lld",
                        (long long)s->train.warmup_steps, (long long)s->train.steps);
    return CPL_OK;
}

static void tell_decisions(const cpl_settings *s, const cpl_log *log)
{
    if (s->erc.weight > 0) {
        cpl_log_info(log,
                     "coupling loss: weight %g, alpha %g, %s over layers, activation norm of "
                     "R~ with %lld draw%s of noise an optimizer step (the paper draws in every "
                     "forward pass)",
                     s->erc.weight, s->erc.alpha, s->erc.reduce == CPL_ERC_MEAN ? "mean" : "sum",
                     (long long)s->erc.draws, s->erc.draws == 1 ? "" : "s");
        if (s->erc.alpha > 1)
            cpl_log_warn(log,
                         "erc.alpha %g is above 1: the loss degenerates towards a vanilla "
                         "MoE (paper, appendix)",
                         s->erc.alpha);
    }
    cpl_log_info(log, "router z-loss: weight %g, %s", s->z.weight,
                 s->z.form == CPL_Z_MEAN ? "mean over tokens" : "mean over tokens divided by K");
}

/* ---- memory ---- */

static int64_t sequences_of(const cpl_settings *s)
{
    return s->data.batch_tokens / s->data.seq_len;
}

static int64_t micro_of(const cpl_settings *s)
{
    return s->train.micro_batch ? s->train.micro_batch : sequences_of(s);
}

static void take_batch(cpl_trainer *t, cpl_arena *arena, int64_t n_sources)
{
    const cpl_settings *s = t->settings;
    size_t bytes          = (size_t)s->data.batch_tokens * sizeof(int32_t);
    cpl_metrics_take(&t->metrics, arena, &s->model, n_sources);
    t->batch.ids       = cpl_arena_take(arena, bytes);
    t->batch.targets   = cpl_arena_take(arena, bytes);
    t->batch.doc_start = cpl_arena_take(arena, bytes);
    t->batch.instances = cpl_arena_take(arena, (size_t)sequences_of(s) * sizeof(int64_t));
    t->batch.labels    = cpl_arena_take(arena, (size_t)sequences_of(s) * sizeof(int32_t));
}

static cpl_status allocate(cpl_trainer *t)
{
    cpl_settings *s = t->settings;
    cpl_arena measure;
    int64_t n_sources = t->data.held_out ? cpl_loader_labels(t->data.held_out)->count : 0;
    cpl_work work     = cpl_step_work(s, &s->model, micro_of(s));
    cpl_arena_measure(&measure);
    take_batch(t, &measure, n_sources);
    CPL_TRY(cpl_arena_init(&t->arena, measure.used, "the batch"));
    take_batch(t, &t->arena, n_sources);
    for (int64_t i = 0; i < n_sources; i++)
        t->metrics.source[i].label = cpl_loader_labels(t->data.held_out)->at[i];
    CPL_TRY(cpl_backend_reserve(&t->backend, &work));
    CPL_TRY(cpl_model_init(&t->model, &t->backend, &s->model, s->data.seq_len));
    CPL_TRY(cpl_optimizer_init(&t->optimizer, &s->model));
    return cpl_step_init(&t->step, s, &s->model, micro_of(s));
}

/* ---- what the weights begin with ---- */

static cpl_checkpoint checkpoint_of(cpl_trainer *t)
{
    cpl_checkpoint c = {.step      = t->done,
                        .model     = &t->model,
                        .m         = &t->optimizer.m,
                        .v         = &t->optimizer.v,
                        .tokens    = &t->tokens,
                        .tokenizer = t->tokenizer_path};
    return c;
}

static cpl_status read_state(cpl_trainer *t, const json_t *state, const char *folder)
{
    const char *fingerprint = json_string_value(json_object_get(state, "data"));
    char now[17];
    snprintf(now, sizeof now, "%016llx", (unsigned long long)t->data.fingerprint);
    t->optimizer.count = json_integer_value(json_object_get(state, "adam_steps"));
    t->skipped         = json_integer_value(json_object_get(state, "skipped"));
    t->skipped_in_row  = json_integer_value(json_object_get(state, "skipped_in_row"));
    if (!fingerprint || strcmp(fingerprint, now) != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: the training data has changed since (fingerprint %s, now %s)", folder,
                        fingerprint ? fingerprint : "none", now);
    return CPL_OK;
}

static cpl_status load_last(cpl_trainer *t)
{
    char *folder      = NULL;
    cpl_checkpoint c  = checkpoint_of(t);
    cpl_status status = CPL_OK;
    CPL_TRY(cpl_checkpoint_last(&folder, t->run.folder));
    CPL_TRY_DONE(cpl_checkpoint_load(folder, &c, t->log));
    CPL_TRY_DONE(read_state(t, c.state, folder));
    t->done = t->saved = c.step;
    cpl_log_info(t->log, "going on from %s", folder);
done:
    json_decref(c.state);
    cpl_free(folder);
    return status;
}

static cpl_status begin_weights(cpl_trainer *t, const cpl_train_job *job, const cpl_hf *from)
{
    if (job->resume) return load_last(t);
    if (from) return cpl_hf_load(from, &t->model);
    cpl_model_randomize(&t->model, (uint64_t)t->settings->train.seed);
    return CPL_OK;
}

/* ---- opening ---- */

static cpl_status write_config(cpl_trainer *t)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_text text = {0};
    cpl_settings_sections(sections);
    cpl_yaml_write(&text, t->settings, sections, CPL_N_SECTIONS, true);
    cpl_status status = cpl_text_status(&text);
    char *path        = cpl_run_path(&t->run, "config.yaml");
    if (status == CPL_OK)
        status = path ? cpl_file_write_atomic(path, text.bytes, text.length) : CPL_ERR_MEMORY;
    cpl_text_free(&text);
    cpl_free(path);
    return status;
}

/* The tokenizer of the model to begin with, where the configuration names none. */
static cpl_status adopt_tokenizer(cpl_settings *s, const cpl_hf *from)
{
    if (!s->data.tokenizer && from) s->data.tokenizer = cpl_hf_tokenizer_path(from);
    return CPL_OK;
}

static cpl_status complete_settings(cpl_trainer *t, const cpl_train_job *job, const cpl_hf *from)
{
    cpl_settings *s = t->settings;
    if (from) CPL_TRY(adopt(&s->model, cpl_hf_config(from), job->given, cpl_hf_folder(from)));
    CPL_TRY(adopt_tokenizer(s, from));
    CPL_TRY(check_batch(s));
    CPL_TRY(cpl_train_data_open(&t->data, s, &t->run, t->log));
    CPL_TRY(settle_vocabulary(&s->model, &t->data));
    tell_decisions(s, t->log);
    t->tokens = (cpl_hf_tokens){.pad = -1, .bos = -1, .eos = t->data.eos};
    if (t->data.tokenizer) t->tokens.pad = cpl_tokenizer_id(t->data.tokenizer, "<|padding|>");
    if (s->data.tokenizer && !(t->tokenizer_path = cpl_text_copy(s->data.tokenizer)))
        return CPL_ERR_MEMORY;
    return CPL_OK;
}

static cpl_dtype dtype_of(const cpl_settings *s)
{
    if (s->compute.dtype == CPL_DTYPE_AUTO) return cpl_cpu_has_bf16() ? CPL_BF16 : CPL_F32;
    return s->compute.dtype == CPL_DTYPE_BF16 ? CPL_BF16 : CPL_F32;
}

cpl_status cpl_trainer_open(cpl_trainer *t, const cpl_train_job *job)
{
    cpl_hf *from      = NULL;
    cpl_status status = CPL_OK;
    memset(t, 0, sizeof *t);
    t->run.lock = -1;
    t->settings = job->settings;
    t->log      = job->log;
    t->saved    = -1;
    CPL_TRY_DONE(cpl_run_open(&t->run, job->run, !job->resume));
    cpl_checkpoint_clean(t->run.folder);
    if (job->from) CPL_TRY_DONE(cpl_hf_open(&from, job->from, job->log));
    CPL_TRY_DONE(complete_settings(t, job, from));
    if (job->watch->approve) CPL_TRY_DONE(job->watch->approve(job->watch->who, t->settings));
    cpl_backend_cpu(&t->backend, dtype_of(t->settings), (int)t->settings->compute.threads);
    CPL_TRY_DONE(allocate(t));
    CPL_TRY_DONE(begin_weights(t, job, from));
    CPL_TRY_DONE(cpl_backend_peak(&t->peak, &t->backend, peak_seconds));
    CPL_TRY_DONE(write_config(t));
    CPL_TRY_DONE(cpl_run_open_metrics(&t->run, t->done));
    t->metrics.skipped = t->skipped;
done:
    cpl_hf_close(from);
    if (status != CPL_OK) cpl_trainer_close(t);
    return status;
}

void cpl_trainer_close(cpl_trainer *t)
{
    cpl_step_free(&t->step);
    cpl_optimizer_free(&t->optimizer);
    cpl_model_free(&t->model);
    cpl_backend_free(&t->backend);
    cpl_arena_free(&t->arena);
    cpl_train_data_close(&t->data);
    cpl_free(t->tokenizer_path);
    cpl_run_close(&t->run);
    memset(t, 0, sizeof *t);
    t->run.lock = -1;
}

cpl_status cpl_trainer_save(cpl_trainer *t)
{
    char fingerprint[17];
    cpl_checkpoint c = checkpoint_of(t);
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)t->data.fingerprint);
    c.state = json_pack("{s:i, s:I, s:I, s:I, s:I, s:s}", "format", 1, "tokens",
                        (json_int_t)(t->done * t->settings->data.batch_tokens), "adam_steps",
                        (json_int_t)t->optimizer.count, "skipped", (json_int_t)t->skipped,
                        "skipped_in_row", (json_int_t)t->skipped_in_row, "data", fingerprint);
    if (!c.state) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the trainer's state");
    cpl_status status = cpl_checkpoint_save(t->run.folder, &c, t->settings->checkpoint.keep);
    json_decref(c.state);
    if (status == CPL_OK) t->saved = t->done;
    return status;
}
