/* loop.c - see loop.h; the steps of a run, in order. */
#include "train/loop.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/stop.h"
#include "io/file.h"
#include "model/cost.h"
#include "train/trainer.h"

static bool due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* ---- one step ---- */

/* Returns the FLOPs of a step with the weight `erc_weight` of the coupling loss. */
static double work_of(const cpl_settings *s, double erc_weight)
{
    return cpl_cost_step(&s->model, (double)s->data.batch_tokens, (double)s->data.seq_len,
                         erc_weight > 0 ? &s->losses.erc : NULL);
}

/* Updates the weights, or counts a step whose loss or gradient is not finite. */
static void update(cpl_trainer *t)
{
    cpl_metrics *m    = &t->metrics;
    m->lr             = cpl_optimizer_lr(&t->settings->train, m->step);
    m->was_skipped    = !isfinite(m->loss_total) || !isfinite(m->grad_norm);
    t->skipped_in_row = m->was_skipped ? t->skipped_in_row + 1 : 0;
    if (isfinite(m->grad_norm)) t->grad_norm_max = fmax(t->grad_norm_max, m->grad_norm);
    if (m->was_skipped) {
        t->skipped++;
        cpl_log_warn(t->log, "step %lld was skipped: loss %g, gradient norm %g", (long long)m->step,
                     m->loss_total, m->grad_norm);
    } else {
        cpl_optimizer_update(&t->optimizer, &t->model, &t->settings->train, m->grad_norm, m->lr);
        cpl_step_move_biases(&t->step, &t->model, t->settings, m);
        cpl_step_move_means(&t->step, t->settings);
    }
    m->skipped = t->skipped;
}

static cpl_status one_step(cpl_trainer *t, bool with_figures)
{
    cpl_settings *s = t->settings;
    cpl_metrics *m  = &t->metrics;
    double begin    = cpl_seconds_now();
    m->step         = t->done + 1;
    m->tokens       = m->step * s->data.batch_tokens;
    CPL_TRY(cpl_group_agree(t->world, cpl_loader_batch(t->data.train, t->done, &t->batch)));
    cpl_step_batch batch = {
        t->batch.ids, t->batch.targets, s->data.document_mask ? t->batch.doc_start : NULL,
        s->data.batch_tokens / s->data.seq_len / t->world->size, t->batch.n_targets};
    cpl_optimizer_zero(&t->optimizer, &t->model);
    cpl_step_gradient(&t->step, &t->model, &t->optimizer.grads, s, &batch, with_figures, false, m);
    CPL_TRY(cpl_step_status(&t->step)); /* figures of a failed device are invalid */
    update(t);
    CPL_TRY(cpl_step_status(&t->step));
    t->done       = m->step;
    m->step_s     = cpl_seconds_now() - begin;
    m->peak_share = work_of(s, m->aux[CPL_AUX_ERC].weight) / m->step_s / t->peak;
    if (t->pace.warned) m->peak_share = NAN; /* other processes would lower the share */
    t->unlogged++;
    t->unlogged_s += m->step_s;
    return CPL_OK;
}

/* Sets the figures over the steps since the previous line of metrics. */
static void sum_up_unlogged(cpl_trainer *t)
{
    cpl_metrics *m   = &t->metrics;
    m->grad_norm_max = t->grad_norm_max;
    m->tokens_per_s  = (double)t->settings->data.batch_tokens * (double)t->unlogged / t->unlogged_s;
    t->unlogged      = 0;
    t->unlogged_s = t->grad_norm_max = 0;
}

/* Describes the last checkpoint, in `text` or a constant. */
static const char *describe_saved(char text[64], const cpl_trainer *t)
{
    if (t->saved < 0) return "no checkpoint was saved yet";
    snprintf(text, 64, "its last good checkpoint is step %lld", (long long)t->saved);
    return text;
}

static cpl_status give_up(const cpl_trainer *t)
{
    char text[64];
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%lld steps in a row had a loss or gradient that is not finite; the run stops "
                    "and %s",
                    (long long)t->skipped_in_row, describe_saved(text, t));
}

/* Adds to the last error, of `status`, how to continue after a failure of the device. */
static cpl_status advise(const cpl_trainer *t, cpl_status status)
{
    char text[64];
    if (status == CPL_OK || t->backend.failure == CPL_OK) return status;
    return CPL_FAIL(status,
                    "%s; the run stops in step %lld, and %s: go on with `couplet train "
                    "--resume %s`",
                    cpl_last_error(), (long long)t->done + 1, describe_saved(text, t),
                    t->run.folder);
}

/* ---- between steps ---- */

/* Returns the number of held-out sequences of a label that an evaluation reads. */
static int64_t held_out_sequences(const cpl_trainer *t, int64_t label)
{
    const int64_t all  = cpl_loader_label_instances(t->data.held_out, label);
    const int64_t most = t->settings->eval.max_sequences;
    return most < all ? most : all;
}

/* Reads batch `index` of the held-out data of a label. Beyond the last batch the result is empty,
 * since ranks that exchange tokens run their passes together. */
static cpl_status read_held_out(cpl_trainer *t, int64_t label, int64_t index)
{
    const int64_t most = t->settings->eval.max_sequences, tokens = t->step.micro * t->step.seq_len;
    if (index < cpl_loader_eval_batches(t->data.held_out, label, most))
        return cpl_loader_eval_batch(t->data.held_out, label, most, index, &t->batch);
    t->batch.n_targets = 0;
    for (int64_t i = 0; i < tokens; i++) {
        t->batch.ids[i]     = 0;
        t->batch.targets[i] = -1;
    }
    return CPL_OK;
}

/* Computes the loss of at most eval.max_sequences of label `label` of the held-out data, in fixed
 * order, in the memory of the step's activations and batch, and keeps sampled tokens. The label's
 * first token has the place `place`. The batches are divided over the ranks in turn. */
static cpl_status evaluate_source(cpl_trainer *t, int64_t label, int64_t place,
                                  cpl_source_loss *loss)
{
    const int64_t most        = t->settings->eval.max_sequences;
    const int64_t batches     = cpl_loader_eval_batches(t->data.held_out, label, most);
    const cpl_step_tokens *at = &t->step.tokens;
    const int ranks           = t->world->size;
    const cpl_tensor nll      = cpl_tensor_range(t->step.results, 0, 1);
    const int64_t tokens      = t->step.micro * t->step.seq_len;
    const int64_t all         = held_out_sequences(t, label) * t->step.seq_len;
    cpl_backend *be           = &t->backend;
    loss->targets             = 0;
    be->ops->fill(be, nll, 0);
    for (int64_t i = 0; i < batches; i += ranks) {
        const int64_t first = (i + t->world->rank) * tokens, left = all - first;
        CPL_TRY(cpl_group_agree(t->world, read_held_out(t, label, i + t->world->rank)));
        cpl_step_samples_watch(&t->step, place + first, left < tokens ? left : tokens);
        be->ops->put(be, at->ids, t->batch.ids);
        be->ops->put(be, at->target, t->batch.targets);
        cpl_model_forward(&t->model, &t->step.pass, at->ids, cpl_tensor_none(), NULL);
        cpl_model_score(&t->model, &t->step.pass, nll, at->target);
        loss->targets += t->batch.n_targets;
    }
    loss->nll = cpl_tensor_number(be, nll);
    cpl_group_sum_f64(t->world, &loss->nll, 1);
    cpl_group_sum_i64(t->world, &loss->targets, 1);
    return CPL_OK;
}

/* Computes the coupling loss of a layer's F32 masters at erc.alpha, without a gradient. Sets M, eps
 * and delta of the step. */
static double couple_masters(cpl_trainer *t, const cpl_erc_settings *erc, int64_t l)
{
    const cpl_layer_params *w     = &t->model.master.layer[l];
    const cpl_coupling_noise none = {0};
    cpl_step *step                = &t->step;
    cpl_coupling_outputs out      = {.M          = step->M[l],
                                     .eps        = step->eps[l],
                                     .delta      = step->delta[l],
                                     .rows       = step->rows,
                                     .loss       = step->centred.loss,
                                     .diagonal   = step->diagonal,
                                     .violations = step->violations,
                                     .latent     = cpl_step_latent(step, w),
                                     .tokens     = cpl_step_tokens_of(step, l)};
    cpl_coupling(&t->backend, &out, w->router, cpl_moe_experts(w), erc, erc->alpha, 0, CPL_F32,
                 &none, step->mesh);
    return cpl_tensor_number(&t->backend, out.loss);
}

/* Fills layer[].erc_clean: the loss of every layer's router rows at erc.alpha with erc.activation,
 * from the F32 masters, without noise. The number can also be computed from the checkpoint. With
 * `figures` also fills layer[].figures, without noise, for the rows of erc.proxy. Does nothing
 * without router rows. */
static void evaluate_coupling(cpl_trainer *t, bool figures)
{
    cpl_erc_settings own = cpl_step_erc(&t->step, &t->settings->losses.erc);
    cpl_metrics *m       = &t->metrics;
    own.noise            = CPL_NOISE_NONE;
    cpl_erc_settings row = own;
    row.proxy            = CPL_PROXY_ROW;
    if (!cpl_router_of(&t->model.config)->has_rows) return;
    cpl_share_gather_masters(&t->optimizer.share, &t->model.master);
    for (int64_t l = 0; l < m->n_layers; l++) {
        m->layer[l].erc_clean = couple_masters(t, &row, l);
        if (!figures) continue;
        if (own.proxy != row.proxy) (void)couple_masters(t, &own, l);
        cpl_step_figures(&t->step, &t->model, CPL_F32, &t->model.master.layer[l], &own, own.alpha,
                         l, m);
    }
    m->has_clean = true;
    if (figures) m->has_figures = true;
}

/* Computes the held-out loss of each source. */
static cpl_status evaluate_sources(cpl_trainer *t)
{
    const int64_t n = t->metrics.n_sources, length = t->step.seq_len;
    int64_t place = 0, all = 0;
    for (int64_t i = 0; i < n; i++) all += held_out_sequences(t, i) * length;
    cpl_step_samples_begin(&t->step, t->metrics.n_layers, all);
    for (int64_t i = 0; i < n; i++) {
        CPL_TRY(evaluate_source(t, i, place, &t->metrics.source[i]));
        place += held_out_sequences(t, i) * length;
    }
    return CPL_OK;
}

/* Computes the held-out loss of each source, the coupling of the weights without noise, and the
 * figures of held-out tokens. */
static cpl_status evaluate(cpl_trainer *t)
{
    if (t->data.held_out) CPL_TRY(evaluate_sources(t));
    evaluate_coupling(t, false);
    CPL_TRY(cpl_step_samples_measure(&t->step, &t->model, &t->metrics));
    t->metrics.has_eval = true;
    return cpl_step_status(&t->step);
}

static bool tasks_due(const cpl_settings *s, const cpl_train_callbacks *callbacks, int64_t step)
{
    return callbacks->evaluate && s->eval.tasks.count + s->eval.prompts.count > 0 &&
           (due(s->eval.tasks_every, step) || step == s->train.steps);
}

static cpl_status evaluate_tasks(cpl_trainer *t, const cpl_train_callbacks *callbacks)
{
    return callbacks->evaluate(callbacks->ctx, &t->model, t->step.exchange, &t->metrics.tasks,
                               &t->metrics.samples);
}

static void forget_tasks(cpl_trainer *t)
{
    json_decref(t->metrics.tasks);
    json_decref(t->metrics.samples);
    t->metrics.tasks = t->metrics.samples = NULL;
}

static cpl_status save(cpl_trainer *t, const cpl_train_callbacks *callbacks)
{
    if (t->saved == t->done) return CPL_OK;
    CPL_TRY(cpl_trainer_save(t));
    if (callbacks->saved && cpl_trainer_leads(t)) callbacks->saved(callbacks->ctx, t->done);
    return CPL_OK;
}

/* Writes the figures before the first step to RUN/start.json. */
static cpl_status write_start_figures(cpl_trainer *t)
{
    CPL_TRY(evaluate(t));
    evaluate_coupling(t, true);
    CPL_TRY(cpl_step_status(&t->step));
    if (!cpl_trainer_leads(t)) return CPL_OK;
    json_t *object = cpl_metrics_json(&t->metrics), *settings = NULL;
    if (!object) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for start.json");
    cpl_status status = cpl_train_data_identify(object, &t->data, t->settings);
    if (status == CPL_OK) status = cpl_resume_settings(&settings, t->settings);
    (void)json_object_set_new(object, "settings", settings);
    if (status == CPL_OK) status = cpl_run_write(&t->run, "start.json", json_incref(object));
    json_decref(object);
    return status;
}

/* Returns whether a checkpoint is due. While steps are skipped no checkpoint is due, so that good
 * checkpoints are kept. */
static bool save_due(const cpl_trainer *t, bool ends)
{
    return ends || (due(t->settings->checkpoint.every, t->done) && t->skipped_in_row == 0);
}

/* Passes the metrics of a step to the callbacks and the log. */
static cpl_status report(cpl_trainer *t, const cpl_train_callbacks *callbacks, bool logged)
{
    if (logged) sum_up_unlogged(t);
    if (!cpl_trainer_leads(t)) return CPL_OK;
    if (callbacks->stepped) callbacks->stepped(callbacks->ctx, &t->metrics);
    t->metrics.memory_bytes = logged ? cpl_memory_peak() : 0;
    return logged ? cpl_run_log(&t->run, cpl_metrics_json(&t->metrics)) : CPL_OK;
}

/* Returns the limit, in seconds, of a wait for another rank within a step. In the first step it is
 * 0: no limit. The limit is much longer than any step so far, so that a slow rank is not treated as
 * a hanging rank. */
static double patience(const cpl_trainer *t)
{
    enum { STEPS = 5 };
    if (t->longest_step == 0) return 0;
    return fmax(t->settings->dist.timeout, STEPS * t->longest_step);
}

static cpl_status steps(cpl_trainer *t, const cpl_train_job *job, cpl_train_outcome *outcome)
{
    const cpl_settings *s = t->settings;
    while (t->done < s->train.steps && !outcome->stopped) {
        int64_t step       = t->done + 1;
        bool last          = step == s->train.steps;
        bool look          = due(s->eval.every, step) || last;
        bool tasks         = tasks_due(s, job->callbacks, step);
        bool logged        = due(s->log.every, step) || look || tasks;
        const double begin = cpl_seconds_now();
        cpl_group_expect(t->world, patience(t), "in a step");
        cpl_pace_begin(&t->pace);
        CPL_TRY(one_step(t, logged));
        cpl_pace_end(&t->pace, t->log);
        if (look) CPL_TRY(evaluate(t));
        t->longest_step = fmax(t->longest_step, cpl_seconds_now() - begin);
        if (tasks) { /* no limit while tasks are evaluated */
            cpl_group_expect(t->world, 0, NULL);
            CPL_TRY(cpl_group_agree(t->world, evaluate_tasks(t, job->callbacks)));
            cpl_group_expect(t->world, patience(t), "in a step");
        }
        CPL_TRY(cpl_group_agree(t->world, report(t, job->callbacks, logged)));
        forget_tasks(t);
        if (t->skipped_in_row >= s->train.max_skipped) return cpl_group_agree(t->world, give_up(t));
        outcome->stopped = cpl_ranks_are_stopped(t->world) && !last;
        cpl_group_expect(t->world, 0, NULL);
        if (save_due(t, last || outcome->stopped)) CPL_TRY(save(t, job->callbacks));
    }
    return CPL_OK;
}

static void report_facts(cpl_trainer *t, const cpl_train_callbacks *callbacks)
{
    const cpl_settings *s = t->settings;
    cpl_train_facts facts = {
        .settings          = s,
        .run               = t->run.folder,
        .first_step        = t->done + 1,
        .parameters        = cpl_params_numbers(&s->model),
        .active_parameters = cpl_params_active(&s->model),
        .train_tokens      = t->data.train->epoch_size * s->data.seq_len,
        .steps_per_epoch   = t->data.train->steps_per_epoch,
        .flops_per_step    = work_of(s, s->losses.erc.weight),
        .peak              = t->peak,
        .dtype             = t->backend.compute == CPL_BF16 ? "bf16" : "f32",
        .n_threads         = t->backend.n_threads * t->world->size,
        .gpu               = t->backend.room ? t->backend.device : NULL,
        .n_ranks           = t->world->size,
    };
    if (callbacks->began && cpl_trainer_leads(t)) callbacks->began(callbacks->ctx, &facts);
}

cpl_status cpl_train(const cpl_train_job *job, cpl_train_outcome *outcome)
{
    cpl_trainer t;
    cpl_status status = CPL_OK;
    *outcome          = (cpl_train_outcome){0};
    CPL_TRY(cpl_trainer_open(&t, job));
    report_facts(&t, job->callbacks);
    if (t.done == 0) CPL_TRY_DONE(cpl_group_agree(t.world, write_start_figures(&t)));
    t.metrics.has_eval = t.metrics.has_clean = t.metrics.has_figures = false;
    t.metrics.has_tokens                                             = false;
    CPL_TRY_DONE(cpl_ranks_check_stop(t.world));
    cpl_run_keep(&t.run);
    CPL_TRY_DONE(steps(&t, job, outcome));
done:
    status        = advise(&t, status);
    outcome->step = t.done;
    forget_tasks(&t);
    cpl_trainer_close(&t);
    return status;
}
