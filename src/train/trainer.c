/* trainer.c - see trainer.h: the setup of a run before its first step. */
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/stop.h"
#include "io/file.h"
#include "io/json.h"
#include "model/aux_losses.h"
#include "model/cost.h"
#include "settings/yaml.h"
#include "store/checkpoint.h"
#include "store/run_dir.h"

static const double peak_seconds = 0.3; /* duration of the measurement of the machine's peak */

/* ---- checks of the settings ---- */

/* Warns of an alpha outside of 0.1 to 1 (docs/method.md 3.5), also where only the warm-up has it. */
static void warn_of_alpha(const cpl_erc_settings *erc, const cpl_log *log)
{
    const bool rises   = erc->warmup_steps > 0 && erc->alpha_start < erc->alpha;
    const double least = rises ? erc->alpha_start : erc->alpha;
    if (least < 0.1)
        cpl_log_warn(log,
                     "%s %g is below 0.1: at alpha 0 the loss is a sum of off-diagonal norms, "
                     "which R = 0 minimises; give 0.1 to 1",
                     rises ? "erc.alpha_start" : "erc.alpha", least);
    if (erc->alpha > 1)
        cpl_log_warn(log,
                     "erc.alpha %g is above 1: the loss degenerates towards a vanilla "
                     "MoE (paper, appendix)",
                     erc->alpha);
}

static void announce_coupling(const cpl_erc_settings *erc, const cpl_log *log)
{
    const bool all  = strcmp(erc->layers, "all") == 0;
    char noise[128] = "no noise";
    if (erc->noise == CPL_NOISE_BOUNDED)
        snprintf(noise, sizeof noise,
                 "%lld draw%s of noise per optimizer step (the paper draws in every forward pass)",
                 (long long)erc->draws, erc->draws == 1 ? "" : "s");
    cpl_log_info(log, "coupling loss: weight %g, alpha %g, %s over layers%s%s; proxies with %s",
                 erc->weight, erc->alpha, erc->reduce == CPL_ERC_MEAN ? "mean" : "sum",
                 all ? "" : " ", all ? "" : erc->layers, noise);
    warn_of_alpha(erc, log);
}

static void announce_losses(const cpl_aux_settings *losses, const cpl_log *log)
{
    static const char *const loads[] = {[CPL_BALANCE_AUTO]     = "",
                                        [CPL_BALANCE_MICRO]    = "",
                                        [CPL_BALANCE_GLOBAL]   = ", load of the whole batch",
                                        [CPL_BALANCE_SEQUENCE] = ", load of each sequence"};
    static const char *const forms[] = {
        [CPL_Z_MEAN] = "", [CPL_Z_OVER_K] = ", divided by K", [CPL_Z_CENTRED] = ", centred"};
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
        const double weight = cpl_aux_weight(losses, (cpl_aux_loss)i);
        if (!(weight > 0)) continue;
        if (i == CPL_AUX_ERC)
            announce_coupling(&losses->erc, log);
        else
            cpl_log_info(log, "%s: weight %g%s", cpl_aux_losses[i].help, weight,
                         i == CPL_AUX_Z         ? forms[losses->z.form]
                         : i == CPL_AUX_BALANCE ? loads[losses->balance.scope]
                                                : "");
    }
}

/* Logs the properties that distinguish the model from an OLMoE. */
static void announce_model(const cpl_settings *s, const cpl_log *log)
{
    const cpl_model_settings *m = &s->model;
    char router[96];
    if (cpl_model_is_olmoe(m)) return;
    if (!cpl_router_of(m)->is_olmoe) cpl_log_info(log, "%s", cpl_router_describe(router, m));
    if (m->d_latent)
        cpl_log_info(log, "latent experts: they read and write %lld of %lld numbers",
                     (long long)m->d_latent, (long long)m->d_model);
    if (m->n_shared)
        cpl_log_info(log, "shared experts: one of width %lld",
                     (long long)cpl_model_shared_width(m));
    cpl_log_warn(log, "checkpoints of this model are no OLMoE: other programs will not load them "
                      "(model_type couplet; docs/formats.md says what they hold)");
}

void cpl_train_announce(const cpl_settings *s, const cpl_backend *be, const cpl_log *log)
{
    announce_model(s, log);
    announce_losses(&s->losses, log);
    if (s->compute.dtype == CPL_DTYPE_BF16 && !cpl_backend_has_bf16(be))
        cpl_log_warn(log,
                     "compute.dtype is bf16, and this processor does not multiply bf16 itself: "
                     "steps are slower than in f32");
}

/* ---- memory ---- */

static int64_t sequences_of(const cpl_settings *s)
{
    return s->data.batch_tokens / s->data.seq_len;
}

/* Returns the number of sequences of one rank's part of the batch. */
static int64_t own_sequences(const cpl_trainer *t)
{
    return sequences_of(t->settings) / t->world->size;
}

static int64_t micro_of(const cpl_trainer *t)
{
    const int64_t micro = t->settings->train.micro_batch;
    return micro ? micro : own_sequences(t);
}

bool cpl_trainer_leads(const cpl_trainer *t)
{
    return t->world->rank == 0;
}

static void take_batch(cpl_trainer *t, cpl_arena *arena, int64_t n_sources)
{
    const cpl_settings *s = t->settings;
    size_t bytes          = (size_t)(own_sequences(t) * s->data.seq_len) * sizeof(int32_t);
    cpl_metrics_take(&t->metrics, arena, &s->model, n_sources);
    t->metrics.made_with = t->made_with;
    t->batch.ids         = cpl_arena_take(arena, bytes);
    t->batch.targets     = cpl_arena_take(arena, bytes);
    t->batch.doc_start   = cpl_arena_take(arena, bytes);
    t->batch.instances   = cpl_arena_take(arena, (size_t)own_sequences(t) * sizeof(int64_t));
    t->batch.labels      = cpl_arena_take(arena, (size_t)own_sequences(t) * sizeof(int32_t));
}

static cpl_status allocate(cpl_trainer *t, int64_t positions)
{
    cpl_settings *s = t->settings;
    cpl_arena measure;
    int64_t n_sources = t->data.held_out ? t->data.held_out->shards->labels.count : 0;
    cpl_work work     = cpl_step_work(s, &t->config, micro_of(t));
    cpl_arena_measure(&measure);
    take_batch(t, &measure, n_sources);
    CPL_TRY(cpl_arena_init(&t->arena, measure.used, "the batch"));
    take_batch(t, &t->arena, n_sources);
    for (int64_t i = 0; i < n_sources; i++)
        t->metrics.source[i].label = t->data.held_out->shards->labels.at[i];
    CPL_TRY(cpl_backend_reserve(&t->backend, &work));
    CPL_TRY(cpl_optimizer_init(&t->optimizer, &t->backend, &t->config, &t->mesh, s->dist.overlap));
    CPL_TRY(cpl_model_init_over(&t->model, &t->backend, &t->config,
                                positions > s->data.seq_len ? positions : s->data.seq_len,
                                cpl_optimizer_over(&t->optimizer)));
    return cpl_step_init(&t->step, &t->backend, s, &t->config, micro_of(t), &t->optimizer.share);
}

/* ---- initial weights ---- */

/* Returns the rank that writes a parameter. With several ranks, whole tensors lie in the gradients'
 * memory, which is unused between steps. */
static int writer_of(void *ctx, int64_t index, const cpl_param *param, int64_t expert)
{
    const cpl_trainer *t = ctx;
    (void)param;
    return cpl_share_writer(&t->optimizer.share, index, expert);
}

static cpl_params *moments_of(cpl_trainer *t, cpl_saved_set which)
{
    return which == CPL_SAVED_M ? &t->optimizer.m : &t->optimizer.v;
}

/* Returns the set that holds `which` for saving and loading. A parameter without gradient has no
 * parts and its moments are zero. */
static cpl_params *room_for(void *ctx, cpl_saved_set which)
{
    cpl_trainer *t = ctx;
    (void)which;
    cpl_optimizer_zero(&t->optimizer, &t->model);
    return &t->optimizer.grads;
}

static cpl_params *gather_set(void *ctx, cpl_saved_set which)
{
    cpl_trainer *t = ctx;
    if (which == CPL_SAVED_WEIGHTS) {
        cpl_share_gather_masters(&t->optimizer.share, &t->model.master);
        return &t->model.master;
    }
    cpl_params *whole = room_for(ctx, which);
    cpl_share_make_whole(&t->optimizer.share, whole, moments_of(t, which));
    return whole;
}

static void keep_parts(void *ctx, cpl_saved_set which)
{
    cpl_trainer *t = ctx;
    if (which == CPL_SAVED_WEIGHTS)
        cpl_share_keep_masters(&t->optimizer.share, &t->model.master);
    else
        cpl_share_take_own(&t->optimizer.share, moments_of(t, which), &t->optimizer.grads);
}

static cpl_checkpoint checkpoint_of(cpl_trainer *t)
{
    cpl_checkpoint c = {.step        = t->done,
                        .model       = &t->model,
                        .m           = &t->optimizer.m,
                        .v           = &t->optimizer.v,
                        .tokens      = &t->tokens,
                        .tokenizer   = t->tokenizer_path,
                        .token_means = t->step.token_means,
                        .token_steps = t->step.n_means};
    t->ranks = (cpl_checkpoint_ranks){t->world, t, writer_of, gather_set, room_for, keep_parts};
    if (t->world->size > 1) c.ranks = &t->ranks;
    return c;
}

static cpl_status read_state(cpl_trainer *t, const json_t *state, int64_t step, const char *folder)
{
    const char *fingerprint = NULL;
    char now[17];
    snprintf(now, sizeof now, "%016llx", (unsigned long long)t->data.fingerprint);
    CPL_TRY(cpl_json_int(state, "adam_steps", &t->optimizer.count, 0, step, folder));
    CPL_TRY(cpl_json_int(state, "skipped", &t->skipped, 0, step, folder));
    CPL_TRY(cpl_json_int(state, "skipped_in_row", &t->skipped_in_row, 0, step, folder));
    CPL_TRY(cpl_json_int_or(state, "metrics_lines", &t->lines, 0, INT64_MAX, -1, folder));
    t->grad_norm_max = json_number_value(json_object_get(state, "grad_norm_max"));
    CPL_TRY(cpl_json_string(state, "data", &fingerprint, folder));
    if (strcmp(fingerprint, now) != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: the training data has changed since (fingerprint %s, now %s)", folder,
                        fingerprint, now);
    return CPL_OK;
}

/* Ends one stage of the opening: a failure on one rank becomes the failure of all ranks. */
static cpl_status agree_on(const cpl_trainer *t, cpl_status status)
{
    return cpl_group_agree(t->world, status);
}

static cpl_status load_last(cpl_trainer *t)
{
    char *folder      = NULL;
    cpl_checkpoint c  = checkpoint_of(t);
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(agree_on(t, cpl_run_dir_last(&folder, t->run.folder)));
    CPL_TRY_DONE(cpl_checkpoint_load(folder, &c, t->log));
    CPL_TRY_DONE(read_state(t, c.state, c.step, folder));
    CPL_TRY_DONE(cpl_step_use_means(&t->step, c.token_steps, folder));
    t->done = t->saved = c.step;
    if (cpl_trainer_leads(t))
        cpl_run_dir_prune(t->run.folder, c.step, t->settings->checkpoint.keep);
    cpl_log_info(t->log, "going on from %s", folder);
done:
    json_decref(c.state);
    cpl_free(folder);
    return status;
}

/* Returns whether the run has a checkpoint, as rank 0 sees it, so that all ranks act alike. */
static bool has_checkpoint(const cpl_trainer *t)
{
    int32_t found = cpl_trainer_leads(t) && cpl_run_dir_has_checkpoint(t->run.folder);
    cpl_group_sum_i32(t->world, &found, 1);
    return found;
}

/* Loads or draws the initial weights. Loaded weights are saved before the first step, since their
 * source may be removed before the run is resumed. Drawn weights can be drawn again, so that a run
 * killed before its first checkpoint can be resumed too. */
static cpl_status begin_weights(cpl_trainer *t, const cpl_train_job *job, const cpl_hf *from)
{
    if (job->resume && has_checkpoint(t)) return load_last(t);
    if (from) {
        CPL_TRY(cpl_hf_load(from, &t->model));
        cpl_share_keep_masters(&t->optimizer.share, &t->model.master);
        return cpl_trainer_save(t);
    }
    if (job->resume) cpl_log_info(t->log, "no checkpoint was saved yet: going on from the start");
    cpl_model_randomize(&t->model, (uint64_t)t->settings->train.seed);
    cpl_share_keep_masters(&t->optimizer.share, &t->model.master);
    return CPL_OK;
}

/* ---- check that config.yaml is unchanged ---- */

/* Sets the path, from cpl_alloc, of the file that records the settings of the run. */
static cpl_status find_made_with(char **path, const cpl_run *run)
{
    char *folder = NULL;
    *path        = NULL;
    if (cpl_run_dir_has_checkpoint(run->folder)) {
        CPL_TRY(cpl_run_dir_last(&folder, run->folder));
        *path = cpl_path_join(folder, "state.json");
        cpl_free(folder);
    } else {
        *path = cpl_run_path(run, "start.json");
    }
    return *path ? CPL_OK : CPL_ERR_MEMORY;
}

static cpl_status check_steps(const cpl_trainer *t, int64_t done, const char *path)
{
    const int64_t steps = t->settings->train.steps;
    if (done <= steps) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: %lld steps are done, more than train.steps, which is %lld: set it to %lld "
                    "or more",
                    path, (long long)done, (long long)steps, (long long)done);
}

static cpl_status check_config(const cpl_trainer *t, const cpl_settings *written)
{
    char *path         = NULL;
    json_t *object     = NULL, *settings, *made_with;
    const cpl_log *log = t->log;
    cpl_status status  = find_made_with(&path, &t->run);
    if (status != CPL_OK || !cpl_path_exists(path)) goto done;
    CPL_TRY_DONE(cpl_json_load(&object, path));
    CPL_TRY_DONE(check_steps(t, json_integer_value(json_object_get(object, "step")), path));
    settings = json_object_get(object, "settings");
    if (settings)
        CPL_TRY_DONE(cpl_resume_check(settings, path, written, t->world->size, log));
    else
        cpl_log_warn(log,
                     "%s: does not say the settings of the run, as older versions wrote it: "
                     "config.yaml is taken for what they were",
                     path);
    made_with = json_object_get(object, "made_with");
    if (made_with) status = cpl_resume_compare(made_with, path, t->made_with, log);
done:
    json_decref(object);
    cpl_free(path);
    return status;
}

/* Rank 0 opens the folder, of a new or a resumed run, and checks its content. Other ranks set the
 * path. */
static cpl_status open_folder(cpl_trainer *t, const cpl_train_job *job)
{
    if (!cpl_trainer_leads(t)) return cpl_run_follow(&t->run, job->run);
    CPL_TRY(cpl_run_open(&t->run, job->run, !job->resume));
    return job->resume ? check_config(t, job->written) : CPL_OK;
}

/* ---- opening ---- */

static cpl_status write_config(cpl_trainer *t)
{
    if (!cpl_trainer_leads(t)) return CPL_OK;
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

static cpl_status resolve_and_approve(cpl_trainer *t, const cpl_train_callbacks *callbacks)
{
    CPL_TRY(cpl_train_resolve_vocabulary(t->settings, t->data.vocab_size, t->data.eos));
    return callbacks->approve ? callbacks->approve(callbacks->ctx, t->settings, &t->backend)
                              : CPL_OK;
}

/* Resolves and checks the settings as far as possible without opening the data. */
static cpl_status resolve(cpl_trainer *t, const cpl_train_job *job, const cpl_hf *from, bool *known)
{
    cpl_settings *s = t->settings;
    CPL_TRY(cpl_train_resolve(s, from, job->given));
    CPL_TRY(cpl_train_check_mesh(s, t->world->size));
    CPL_TRY(cpl_train_check_batch(s, t->world->size));
    if (t->world->size > 1 && job->resume && s->losses.balance.scope == CPL_BALANCE_MICRO)
        cpl_log_warn(t->log, "balance.scope of this run is micro: load balancing counts over the "
                             "micro-batch of a rank, so the losses depend on the number of ranks");
    CPL_TRY(cpl_train_data_begin(&t->data, s));
    *known = s->model.vocab_size != CPL_UNSET || t->data.vocab_size > 0;
    return *known ? resolve_and_approve(t, job->callbacks) : CPL_OK;
}

static cpl_status finish_settings(cpl_trainer *t, const cpl_train_job *job, bool known)
{
    cpl_settings *s = t->settings;
    CPL_TRY(known ? cpl_train_resolve_vocabulary(s, t->data.vocab_size, t->data.eos)
                  : resolve_and_approve(t, job->callbacks));
    cpl_train_data_bound_ids(&t->data, s->model.vocab_size);
    cpl_train_announce(s, &t->backend, t->log);
    t->tokens                = (cpl_hf_tokens){.pad = -1, .bos = -1, .eos = t->data.eos};
    t->tokens.balance_weight = s->losses.balance.weight;
    if (t->data.tokenizer) t->tokens.pad = cpl_tokenizer_id(t->data.tokenizer, "<|padding|>");
    if (s->data.tokenizer && !(t->tokenizer_path = cpl_text_copy(s->data.tokenizer)))
        return CPL_ERR_MEMORY;
    return CPL_OK;
}

/* Rank 0 copies the tokenizer of the model into the run. The other ranks then use the copy. */
static cpl_status keep_tokenizer(cpl_trainer *t, const cpl_hf *from)
{
    const bool leads = cpl_trainer_leads(t);
    for (int turn = 0; from && turn < 2; turn++) {
        const bool own = leads == (turn == 0);
        CPL_TRY(agree_on(t, own ? cpl_train_keep_tokenizer(t->settings, from, &t->run, leads)
                                : CPL_OK));
    }
    return CPL_OK;
}

/* Opens the run's folder and the data. All checks come before the folder is made and documents are
 * encoded, except the check of a vocabulary size that only the token shards determine. */
static cpl_status open_run_and_data(cpl_trainer *t, const cpl_train_job *job, const cpl_hf *from)
{
    cpl_data_settings *d = &t->settings->data;
    const int64_t eos    = d->eos;
    const int token_type = d->token_type;
    bool known           = false;
    if (job->resume) d->eos = job->written->data.eos;
    if (job->resume) d->token_type = job->written->data.token_type;
    if (job->resume) CPL_TRY(agree_on(t, open_folder(t, job)));
    CPL_TRY(agree_on(t, resolve(t, job, from, &known)));
    if (!job->resume) CPL_TRY(agree_on(t, open_folder(t, job)));
    if (cpl_trainer_leads(t)) cpl_run_dir_clean(t->run.folder);
    CPL_TRY(agree_on(t, cpl_ranks_share_folder(t->world, t->run.folder)));
    CPL_TRY(keep_tokenizer(t, from));
    CPL_TRY(cpl_train_data_open(&t->data, t->settings, &t->run, t->world, t->log));
    if (job->resume) CPL_TRY(agree_on(t, cpl_train_data_agrees(&t->data, eos, token_type)));
    CPL_TRY(agree_on(t, finish_settings(t, job, known)));
    return cpl_ranks_agree_on_run(t->world, t->settings, t->made_with, t->data.fingerprint);
}

/* Opens the initial model and the backend, which needs no other rank. */
static cpl_status begin(cpl_trainer *t, const cpl_train_job *job, cpl_hf **from)
{
    if (job->from) CPL_TRY(cpl_hf_open(from, job->from, t->log));
    cpl_settings *s = t->settings;
    const char *device;
    CPL_TRY(cpl_device_of_ranks(&device, s->compute.device, t->world->size));
    CPL_TRY(cpl_backend_open(&t->backend, device, cpl_dtype_chosen(s->compute.dtype),
                             (int)s->compute.threads));
    CPL_TRY(cpl_train_resolve_machine(s, &t->backend, t->world->size, job->resume));
    cpl_backend_tell(&t->backend, t->log);
    t->made_with = cpl_resume_made_with(&t->backend, t->world->size);
    if (!t->made_with) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the state of the run");
    if (job->resume && job->written->compute.dtype == CPL_DTYPE_AUTO)
        cpl_log_warn(t->log,
                     "the run does not say what compute.dtype auto was, as older versions wrote "
                     "it: from here on it is %s",
                     t->backend.compute == CPL_BF16 ? "bf16" : "f32");
    t->pace.window.n_threads    = t->backend.n_threads;
    t->pace.window.n_processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return cpl_cpu_start(t->backend.n_threads); /* before any file is written */
}

/* Sets the experts of this rank. */
static cpl_status divide(cpl_trainer *t)
{
    const cpl_settings *s = t->settings;
    CPL_TRY(cpl_mesh_init(&t->mesh, t->world, s->dist.expert_parallel, s->model.n_experts));
    t->config              = s->model;
    t->config.first_expert = t->mesh.first_expert;
    t->config.n_local      = t->mesh.n_local;
    cpl_train_set_activations(&t->config, s);
    return CPL_OK;
}

static cpl_status open_metrics(cpl_trainer *t)
{
    if (!cpl_trainer_leads(t)) return CPL_OK;
    return cpl_run_open_metrics(&t->run, t->done, t->lines, t->log);
}

cpl_status cpl_trainer_open(cpl_trainer *t, const cpl_train_job *job)
{
    cpl_hf *from      = NULL;
    cpl_status status = CPL_OK;
    memset(t, 0, sizeof *t);
    t->run.lock = -1;
    t->settings = job->settings;
    t->alone    = cpl_group_self();
    t->world    = job->world ? job->world : &t->alone;
    t->log      = cpl_trainer_leads(t) ? job->log : &t->silence;
    t->saved    = -1;
    CPL_TRY_DONE(agree_on(t, begin(t, job, &from)));
    CPL_TRY_DONE(cpl_ranks_agree_on_weights(t->world, from));
    CPL_TRY_DONE(open_run_and_data(t, job, from));
    CPL_TRY_DONE(cpl_ranks_check_stop(t->world));
    CPL_TRY_DONE(agree_on(t, divide(t)));
    CPL_TRY_DONE(agree_on(t, cpl_backend_peak(&t->peak, &t->backend, peak_seconds)));
    CPL_TRY_DONE(agree_on(t, cpl_train_advise(t->settings, allocate(t, job->positions))));
    cpl_group_sum_f64(t->world, &t->peak, 1);
    CPL_TRY_DONE(agree_on(t, begin_weights(t, job, from)));
    CPL_TRY_DONE(cpl_ranks_check_stop(t->world));
    CPL_TRY_DONE(agree_on(t, write_config(t)));
    CPL_TRY_DONE(agree_on(t, open_metrics(t)));
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
    json_decref(t->made_with);
    cpl_run_close(&t->run);
    cpl_mesh_close(&t->mesh);
    memset(t, 0, sizeof *t);
    t->run.lock = -1;
}

/* Returns the state that a checkpoint holds besides the tensors. Returns NULL if memory is not
 * available or the settings cannot be written. */
static json_t *state_of(const cpl_trainer *t)
{
    json_t *settings = NULL;
    if (cpl_resume_settings(&settings, t->settings) != CPL_OK) {
        json_decref(settings);
        return NULL;
    }
    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:O}", "format", 1, "tokens",
                     (json_int_t)(t->done * t->settings->data.batch_tokens), "adam_steps",
                     (json_int_t)t->optimizer.count, "skipped", (json_int_t)t->skipped,
                     "skipped_in_row", (json_int_t)t->skipped_in_row, "metrics_lines",
                     (json_int_t)t->run.lines, "grad_norm_max", t->grad_norm_max, "data",
                     cpl_json_hash(t->data.fingerprint), "settings", settings, "made_with",
                     t->made_with);
}

/* Makes the state of a checkpoint. Syncs the metrics first, so that a checkpoint is never newer
 * than the metrics on the disk. */
static cpl_status prepare_state(const cpl_trainer *t, json_t **state)
{
    CPL_TRY(cpl_run_sync(&t->run));
    *state = state_of(t);
    return *state ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the trainer's state");
}

/* Writes the choices of the device's libraries so far to RUN/algorithms.json. The choices are not
 * part of the checkpoint, since a resumed run has used fewer shapes. */
static cpl_status write_algorithms(cpl_trainer *t)
{
    cpl_backend *be = &t->backend;
    const char *text;
    if (!be->choice) return CPL_OK;
    json_t *list = json_array();
    bool failed  = !list;
    for (int i = 0; (text = be->choice(be, i)); i++) cpl_json_add(&failed, list, json_string(text));
    json_t *object = json_pack("{s:s, s:s, s:o}", "device", be->device, "libraries", be->libraries,
                               "products", list);
    if (!failed) return cpl_run_write(&t->run, "algorithms.json", object);
    json_decref(object);
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for algorithms.json");
}

cpl_status cpl_trainer_save(cpl_trainer *t)
{
    cpl_checkpoint c = checkpoint_of(t);
    CPL_TRY(cpl_group_agree_within(t->world, prepare_state(t, &c.state), t->settings->dist.timeout,
                                   "before a checkpoint"));
    cpl_status status = cpl_checkpoint_save(t->run.folder, &c, t->settings->checkpoint.keep);
    json_decref(c.state);
    if (status != CPL_OK) return status;
    cpl_run_saved(&t->run);
    t->saved = t->done;
    return write_algorithms(t);
}
