/* step_samples.c - sampled held-out tokens, and their figures (docs/method.md 5.1). See step.h. */
#include <string.h>

#include "train/step.h"

enum { MOST = 1024, MOST_ROOM = 256 };

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void cpl_step_samples_take(cpl_step *step, const cpl_settings *settings,
                           const cpl_model_settings *c)
{
    cpl_tensor_arena *arena = &step->arena;
    const int64_t n = c->n_experts, d = c->d_model, k = c->top_k;
    const int64_t tokens = step->micro * step->seq_len, room = lesser(MOST_ROOM, tokens);
    cpl_token_samples unseen;
    if (!cpl_router_of(c)->has_rows || settings->data.validation.count == 0) return;
    step->samples = cpl_tensor_take_host(arena, (size_t)c->n_layers * sizeof *step->samples);
    for (int64_t l = 0; l < c->n_layers; l++)
        *(step->samples ? &step->samples[l] : &unseen) = (cpl_token_samples){
            .room   = MOST,
            .n      = n,
            .d      = d,
            .top_k  = k,
            .score  = cpl_tensor_take_host(arena, (size_t)(MOST * n) * sizeof(float)),
            .answer = cpl_tensor_take_host(arena, (size_t)(MOST * n) * sizeof(float)),
            .x      = cpl_tensor_take_host(arena, (size_t)(MOST * d) * sizeof(float)),
            .chosen = cpl_tensor_take_host(arena, (size_t)(MOST * k) * sizeof(int32_t))};
    cpl_token_scratch_take(&step->answers, arena, c, room, step->mesh);
    step->sample_rows = cpl_tensor_take_ids(arena, step->answers.room);
    step->host_rows =
        cpl_tensor_take_host(arena, (size_t)step->answers.room * sizeof *step->host_rows);
    step->choices = cpl_tensor_take_host(arena, (size_t)(tokens * k) * sizeof *step->choices);
}

/* ---- the tokens ---- */

void cpl_step_samples_begin(cpl_step *step, int64_t n_layers, int64_t all)
{
    step->sampled_from = all;
    for (int64_t l = 0; step->samples && l < n_layers; l++) {
        cpl_token_samples *s = &step->samples[l];
        s->count             = lesser(MOST, all);
        memset(s->x, 0, (size_t)(s->count * s->d) * sizeof *s->x);
        memset(s->chosen, 0, (size_t)(s->count * s->top_k) * sizeof *s->chosen);
    }
}

/* Keeps the `count` tokens of the batch whose rows are host_rows. */
static void keep_rows(cpl_step *step, cpl_token_samples *s, cpl_tensor b, int64_t count)
{
    cpl_backend *be       = step->arena.be;
    const cpl_tensor ids  = cpl_tensor_range(step->sample_rows, 0, count);
    const cpl_tensor rows = cpl_tensor_range(step->answers.rows, 0, count);
    const size_t row = (size_t)s->d * sizeof *s->x, list = (size_t)s->top_k * sizeof *s->chosen;
    be->ops->put(be, ids, step->host_rows);
    be->ops->embed(be, rows, b, ids);
    be->ops->get(be, step->answers.row, rows);
    for (int64_t i = 0; i < count; i++) {
        const int64_t t = step->host_rows[i];
        const int64_t at =
            cpl_tokens_sample_at(step->batch_place + t, s->count, step->sampled_from);
        memcpy(s->x + at * s->d, step->answers.row + i * s->d, row);
        memcpy(s->chosen + at * s->top_k, step->choices + t * s->top_k, list);
    }
}

static void watch_layer(void *ctx, int64_t layer, const cpl_moe_kept *kept)
{
    cpl_step *step       = ctx;
    cpl_token_samples *s = &step->samples[layer];
    int64_t count        = 0;
    step->arena.be->ops->get(step->arena.be, step->choices, kept->expert);
    for (int64_t place = step->batch_place; place < step->batch_end; place++) {
        if (cpl_tokens_sample_at(place, s->count, step->sampled_from) < 0) continue;
        step->host_rows[count++] = (int32_t)(place - step->batch_place);
        if (count < step->answers.room) continue;
        keep_rows(step, s, kept->b, count);
        count = 0;
    }
    if (count > 0) keep_rows(step, s, kept->b, count);
}

void cpl_step_samples_watch(cpl_step *step, int64_t place, int64_t count)
{
    step->batch_place   = place;
    step->batch_end     = place + count;
    step->pass.on_layer = step->samples && count > 0 ? watch_layer : NULL;
    step->pass.ctx      = step;
}

/* ---- the figures ---- */

cpl_status cpl_step_samples_measure(cpl_step *step, cpl_model *model, cpl_metrics *m)
{
    step->pass.on_layer = NULL;
    if (!step->samples) return CPL_OK;
    for (int64_t l = 0; l < m->n_layers; l++) {
        cpl_token_samples *s      = &step->samples[l];
        const cpl_layer_params *w = &model->master.layer[l];
        cpl_mean_token found;
        cpl_group_sum_f32(step->world, s->x, s->count * s->d);
        cpl_group_sum_i32(step->world, s->chosen, s->count * s->top_k);
        cpl_token_samples_measure(s, model->be, w, &step->answers);
        cpl_status status = cpl_mean_token_of(&found, NULL, model->be, w, s, &step->answers, NULL);
        if (status != CPL_OK) {
            cpl_group_fail(step->world, status);
            return status;
        }
        memcpy(m->layer[l].tokens, found.value, sizeof found.value);
    }
    m->has_tokens = true;
    return CPL_OK;
}
