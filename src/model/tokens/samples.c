/* samples.c - see samples.h */
#include "model/tokens/samples.h"

#include <string.h>

#include "parallel/tensors.h"

int64_t cpl_tokens_sample_at(int64_t place, int64_t sampled, int64_t all)
{
    const int64_t index = place * sampled / all;
    return (place + 1) * sampled / all > index ? index : -1;
}

cpl_status cpl_token_samples_init(cpl_token_samples *s, cpl_pool *pool, int64_t room, int64_t n,
                                  int64_t d, int64_t top_k)
{
    const size_t cells = (size_t)(room * n), choices = (size_t)(room * top_k);
    *s = (cpl_token_samples){.room   = room,
                             .n      = n,
                             .d      = d,
                             .top_k  = top_k,
                             .place  = cpl_pool_take(pool, (size_t)room * sizeof *s->place),
                             .score  = cpl_pool_take(pool, cells * sizeof *s->score),
                             .answer = cpl_pool_take(pool, cells * sizeof *s->answer),
                             .x      = cpl_pool_take(pool, (size_t)(room * d) * sizeof *s->x),
                             .chosen = cpl_pool_take(pool, choices * sizeof *s->chosen)};
    return cpl_pool_status(pool);
}

void cpl_token_samples_add(cpl_token_samples *s, int64_t place, const float *score,
                           const float *answer, const float *x, const int32_t *chosen)
{
    const int64_t t = s->count++;
    CPL_ASSERT(t < s->room);
    s->place[t] = place;
    memcpy(s->score + t * s->n, score, (size_t)s->n * sizeof *score);
    memcpy(s->answer + t * s->n, answer, (size_t)s->n * sizeof *answer);
    memcpy(s->x + t * s->d, x, (size_t)s->d * sizeof *x);
    memcpy(s->chosen + t * s->top_k, chosen, (size_t)s->top_k * sizeof *chosen);
}

void cpl_tokens_respond(cpl_backend *be, cpl_tensor answers, const cpl_layer_params *layer,
                        cpl_tensor X, cpl_tensor scratch, cpl_tensor hidden)
{
    const bool whole = cpl_tensor_is_there(layer->w_gate);
    if (cpl_tensor_is_there(layer->latent_down)) {
        be->ops->gemm_f32(be, hidden, CPL_AS_IS, X, CPL_TRANSPOSED, layer->latent_down, 0);
        X = hidden;
    }
    for (int64_t j = 0; j < answers.shape[0]; j++) {
        if (!whole)
            be->ops->gemm_f32(be, hidden, CPL_AS_IS, X, CPL_TRANSPOSED,
                              cpl_tensor_at(layer->w_gate_a, j), 0);
        be->ops->gemm_f32(be, scratch, CPL_AS_IS, whole ? X : hidden, CPL_TRANSPOSED,
                          cpl_tensor_at(whole ? layer->w_gate : layer->w_gate_b, j), 0);
        be->ops->row_norms(be, cpl_tensor_at(answers, j), scratch);
    }
}

/* ---- the answers of all experts ---- */

void cpl_token_scratch_take(cpl_token_scratch *t, cpl_tensor_arena *arena,
                            const cpl_model_settings *c, int64_t room, cpl_mesh *mesh)
{
    const int64_t n = c->n_experts, d = c->d_model, local = mesh ? mesh->n_local : n;
    const int64_t of = mesh ? mesh->replicas.size : 1, rank = mesh ? mesh->replicas.rank : 0;
    room        = room < 2 ? 2 : room; /* two rows are the least that figures need */
    *t          = (cpl_token_scratch){.room = room, .world = mesh ? &mesh->world : NULL};
    t->rows     = cpl_tensor_take_2d(arena, room, d);
    t->products = cpl_tensor_take_2d(arena, room, c->d_expert);
    t->hidden   = cpl_tensor_take_2d(arena, room, c->d_latent);
    t->answers  = cpl_tensor_take_2d(arena, n, room);
    t->scores   = cpl_tensor_take_2d(arena, room, n);
    t->row      = cpl_tensor_take_host(arena, (size_t)(room * d) * sizeof *t->row);
    t->answer   = cpl_tensor_take_host(arena, (size_t)(n * room) * sizeof *t->answer);
    t->router   = cpl_tensor_take_host(arena, (size_t)(n * d) * sizeof *t->router);
    t->first    = local * rank / of;
    t->n_own    = local * (rank + 1) / of - t->first;
    t->at       = t->first + (mesh ? mesh->first_expert : 0);
}

void cpl_token_scratch_answer(const cpl_token_scratch *t, cpl_backend *be,
                              const cpl_layer_params *layer, int64_t count)
{
    const int64_t n          = t->answers.shape[0];
    const cpl_tensor rows    = cpl_tensor_range(t->rows, 0, count);
    const cpl_tensor answers = cpl_tensor_numbers(t->answers, 0, n * count);
    const cpl_tensor matrix  = cpl_tensor_as_2d(answers, n, count);
    cpl_layer_params own     = *layer;
    own.w_gate               = cpl_tensor_range(layer->w_gate, t->first, t->n_own);
    be->ops->put(be, rows, t->row);
    if (t->world) be->ops->fill(be, answers, 0);
    cpl_tokens_respond(be, cpl_tensor_range(matrix, t->at, t->n_own), &own, rows,
                       cpl_tensor_range(t->products, 0, count),
                       cpl_tensor_range(t->hidden, 0, count));
    if (t->world) cpl_group_sum_tensor(t->world, be, answers);
    be->ops->get(be, t->answer, answers);
}

void cpl_token_samples_measure(cpl_token_samples *s, cpl_backend *be, const cpl_layer_params *layer,
                               const cpl_token_scratch *t)
{
    for (int64_t first = 0, count; first < s->count; first += count) {
        count                   = s->count - first < t->room ? s->count - first : t->room;
        const cpl_tensor scores = cpl_tensor_range(t->scores, 0, count);
        memcpy(t->row, s->x + first * s->d, (size_t)(count * s->d) * sizeof *t->row);
        cpl_token_scratch_answer(t, be, layer, count);
        be->ops->gemm_f32(be, scores, CPL_AS_IS, cpl_tensor_range(t->rows, 0, count),
                          CPL_TRANSPOSED, layer->router, 0);
        be->ops->get(be, s->score + first * s->n, scores);
        for (int64_t i = 0; i < count * s->n; i++)
            s->answer[first * s->n + i] = t->answer[i % s->n * count + i / s->n];
    }
}
