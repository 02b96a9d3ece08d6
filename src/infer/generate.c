/* generate.c - see generate.h */
#include "infer/generate.h"

#include <math.h>
#include <string.h>

/* Allocates everything except the pass, which is allocated after the mark for each chunk. */
static void take_all(cpl_generator *g, const cpl_model_settings *config)
{
    cpl_pass largest;
    cpl_cache_take(&g->cache, &g->arena, config, g->capacity);
    g->ids      = cpl_tensor_take_ids(&g->arena, g->chunk);
    g->numbers  = cpl_tensor_take_host(&g->arena, (size_t)g->capacity * sizeof *g->numbers);
    g->segment  = cpl_tensor_as_2d(cpl_tensor_take_ids(&g->arena, 4), 1, 4);
    g->order    = cpl_tensor_take_ids(&g->arena, g->capacity);
    g->selected = cpl_tensor_take_ids(&g->arena, 1);
    g->sum      = cpl_tensor_take_numbers(&g->arena, 1);
    g->id       = cpl_tensor_take_ids(&g->arena, 1);
    g->logits   = cpl_tensor_take_2d(&g->arena, 1, config->vocab_size);
    g->mark     = cpl_tensor_arena_mark(&g->arena);
    cpl_pass_take(&largest, &g->arena, config, 1, g->chunk, false, true);
    cpl_pass_select(&largest, &g->arena, config, g->selected);
}

static cpl_tensor_arena measure(const cpl_model_settings *config, int64_t capacity, int64_t chunk)
{
    cpl_generator g = {.capacity = capacity, .chunk = chunk};
    g.arena         = cpl_tensor_arena_measure();
    take_all(&g, config);
    return g.arena;
}

size_t cpl_generator_bytes(const cpl_model_settings *config, int64_t capacity, int64_t chunk)
{
    const cpl_tensor_arena measured = measure(config, capacity, chunk);
    return cpl_tensor_arena_bytes(&measured);
}

cpl_status cpl_generator_fits(const cpl_model_settings *config, int64_t n_tokens)
{
    if (n_tokens <= config->max_positions) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "prompt and new tokens together are %lld, but the model's context is %lld "
                    "(max_position_embeddings)",
                    (long long)n_tokens, (long long)config->max_positions);
}

cpl_status cpl_generator_init(cpl_generator *g, cpl_model *model, int64_t capacity, int64_t chunk)
{
    CPL_ASSERT(capacity > 0 && chunk > 0);
    memset(g, 0, sizeof *g);
    CPL_TRY(cpl_generator_fits(&model->config, capacity));
    CPL_ASSERT(capacity <= model->rope.shape[0]);
    g->model      = model;
    g->capacity   = capacity;
    g->chunk      = chunk < capacity ? chunk : capacity;
    cpl_work work = cpl_pass_work(&model->config, g->chunk, false);
    CPL_TRY(cpl_backend_reserve(model->be, &work));
    const cpl_tensor_arena measured = measure(&model->config, g->capacity, g->chunk);
    CPL_TRY(cpl_tensor_arena_init(&g->arena, model->be, &measured, "keys, values and activations"));
    take_all(g, &model->config);
    for (int64_t i = 0; i < g->capacity; i++) g->numbers[i] = (int32_t)i;
    model->be->ops->put(model->be, g->order, g->numbers);
    return CPL_OK;
}

void cpl_generator_free(cpl_generator *g)
{
    cpl_tensor_arena_free(&g->arena);
    memset(g, 0, sizeof *g);
}

void cpl_generator_reset(cpl_generator *g)
{
    g->length = 0;
}

static cpl_status check_ids(const cpl_generator *g, const int32_t *ids, int64_t count)
{
    int64_t size = g->model->config.vocab_size;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= size)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "token %lld has id %ld, but the model's vocabulary has %lld",
                            (long long)(g->length + i), (long)ids[i], (long long)size);
    if (count <= g->capacity - g->length) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%lld tokens after %lld do not fit into a context of %lld",
                    (long long)count, (long long)g->length, (long long)g->capacity);
}

/* Runs one pass over at most `chunk` tokens. If `last`, computes the logits of the next token. */
static void feed_chunk(cpl_generator *g, const int32_t *ids, int64_t count, bool last)
{
    cpl_pass pass;
    cpl_tensor_arena_release(&g->arena, g->mark);
    cpl_pass_take(&pass, &g->arena, &g->model->config, 1, count, false, true);
    cpl_pass_select(&pass, &g->arena, &g->model->config, cpl_tensor_range(g->selected, 0, last));
    const cpl_segment segment = {0, (int32_t)count, 0, (int32_t)(g->length + count)};
    const int32_t final       = (int32_t)(count - 1);
    const cpl_tensor tokens   = cpl_tensor_range(g->ids, 0, count);
    cpl_backend *be           = g->model->be;
    be->ops->put(be, g->selected, &final);
    be->ops->put(be, tokens, ids);
    be->ops->put(be, g->segment, &segment);
    const cpl_cached cached = {
        .cache     = g->cache,
        .first_row = g->length,
        .position  = cpl_tensor_range(g->order, g->length, count),
        .segments  = {.at = g->segment, .key_row = g->order},
    };
    cpl_model_forward(g->model, &pass, tokens, cpl_tensor_none(), &cached);
    g->length += count;
    if (last) cpl_model_logits(g->model, &pass, g->logits, 0);
}

cpl_status cpl_generator_feed(cpl_generator *g, const int32_t *ids, int64_t count)
{
    cpl_backend *be = g->model->be;
    CPL_ASSERT(count > 0);
    CPL_TRY(check_ids(g, ids, count));
    for (int64_t at = 0; at < count; at += g->chunk) {
        int64_t left = count - at, now = left < g->chunk ? left : g->chunk;
        feed_chunk(g, ids + at, now, now == left);
    }
    be->ops->fill(be, g->sum, 0);
    be->ops->sum(be, g->sum, g->logits);
    const double sum = cpl_tensor_number(be, g->sum);
    CPL_TRY(be->ops->sync(be));
    if (isfinite(sum)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "the logits at position %lld are not finite: the weights are bad",
                    (long long)(g->length - 1));
}

/* Draws the token at the next position of the cache. */
static cpl_status draw(int32_t *id, const cpl_generator *g, const cpl_generate_settings *s)
{
    cpl_backend *be   = g->model->be;
    int64_t size      = g->model->config.vocab_size;
    cpl_rng_key key   = {.seed = s->seed, .step = (uint64_t)g->length, .stream = CPL_STREAM_SAMPLE};
    int64_t n_ids     = s->n_ids > 0 && s->n_ids < size ? s->n_ids : size;
    cpl_tensor logits = cpl_tensor_numbers(g->logits, 0, n_ids);
    be->ops->sample(be, g->id, logits, s->temperature, s->top_p, cpl_rng_uniform(&key, 0));
    be->ops->get(be, id, g->id);
    return cpl_backend_status(be);
}

static cpl_status check_settings(const cpl_generator *g, int64_t n_prompt,
                                 const cpl_generate_settings *s)
{
    if (n_prompt < 1) return CPL_FAIL(CPL_ERR_INPUT, "the prompt has no token to begin with");
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return CPL_FAIL(CPL_ERR_USAGE, "the temperature is %g, but it must be finite and 0 or more",
                        (double)s->temperature);
    if (!(s->top_p > 0) || s->top_p > 1)
        return CPL_FAIL(CPL_ERR_USAGE, "top-p is %g, but it must be above 0 and at most 1",
                        (double)s->top_p);
    if (s->max_tokens >= 0 && s->max_tokens <= g->capacity - n_prompt) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%lld tokens of the prompt and %lld new tokens do not fit into a context of "
                    "%lld tokens",
                    (long long)n_prompt, (long long)s->max_tokens, (long long)g->capacity);
}

cpl_status cpl_generate(cpl_generator *g, const int32_t *prompt, int64_t n_prompt,
                        const cpl_generate_settings *settings, cpl_generate_callback on_token,
                        void *ctx, int64_t *n_new)
{
    int64_t unwanted, *count = n_new ? n_new : &unwanted;
    *count = 0;
    CPL_TRY(check_settings(g, n_prompt, settings));
    cpl_generator_reset(g);
    CPL_TRY(cpl_generator_feed(g, prompt, n_prompt));
    while (*count < settings->max_tokens) {
        int32_t id;
        CPL_TRY(draw(&id, g, settings));
        if (id == settings->eos || cpl_stop_ids_hold(&settings->extra_stop_ids, id)) return CPL_OK;
        ++*count;
        if (!on_token(ctx, id) || *count == settings->max_tokens) return CPL_OK;
        CPL_TRY(cpl_generator_feed(g, &id, 1));
    }
    return CPL_OK;
}
