/* lm_batch.c - see lm_batch.h: its memory, and tokens through the model. */
#include <string.h>

#include "infer/lm_batch_internal.h"

enum { CHUNK = 1024, LEAST_ROWS = 8192 };

/* ---- memory ---- */

static cpl_tensor take_1d(cpl_arena *arena, cpl_dtype dtype, int64_t count)
{
    return cpl_tensor_1d(cpl_arena_take(arena, (size_t)count * 4), dtype, count);
}

static cpl_tensor take_2d(cpl_arena *arena, int64_t rows, int64_t cols)
{
    return cpl_tensor_2d(cpl_arena_take(arena, (size_t)(rows * cols) * 4), CPL_F32, rows, cols);
}

static cpl_lm_batch_settings settled(cpl_lm_batch_settings how)
{
    if (how.chunk == 0) how.chunk = CHUNK;
    if (how.rows == 0) how.rows = 2 * how.window > LEAST_ROWS ? 2 * how.window : LEAST_ROWS;
    return how;
}

/* Everything but the pass, which lies behind the mark and is taken anew for each chunk. */
static void take_all(cpl_lm_batch *a, const cpl_model_settings *config)
{
    cpl_pass largest;
    cpl_cache_take(&a->cache, &a->arena, config, a->how.rows);
    a->ids      = take_1d(&a->arena, CPL_I32, a->how.chunk);
    a->position = take_1d(&a->arena, CPL_I32, a->how.chunk);
    a->requests = take_1d(&a->arena, CPL_I32, a->how.chunk);
    a->pick_row = take_1d(&a->arena, CPL_I32, CPL_LM_BATCH_PICKS);
    a->pick_id  = take_1d(&a->arena, CPL_I32, CPL_LM_BATCH_PICKS);
    a->pick     = take_1d(&a->arena, CPL_F32, CPL_LM_BATCH_PICKS);
    a->logits   = take_2d(&a->arena, CPL_LM_BATCH_PICKS, config->vocab_size);
    a->segment  = cpl_arena_take(&a->arena, (size_t)a->how.chunk * sizeof *a->segment);
    a->held     = take_1d(&a->arena, CPL_I32, a->how.window).data;
    a->held_row = take_1d(&a->arena, CPL_I32, a->how.window).data;
    a->mark     = cpl_arena_mark(&a->arena);
    cpl_pass_take(&largest, &a->arena, config, 1, a->how.chunk, false, true);
    cpl_pass_ask(&largest, &a->arena, config, a->requests);
}

size_t cpl_lm_batch_bytes(const cpl_model_settings *config, const cpl_lm_batch_settings *how)
{
    cpl_lm_batch a = {.how = settled(*how)};
    cpl_arena_measure(&a.arena);
    take_all(&a, config);
    return a.arena.used;
}

cpl_status cpl_lm_batch_init(cpl_lm_batch *a, cpl_model *model, const cpl_lm_batch_settings *how)
{
    memset(a, 0, sizeof *a);
    a->model = model;
    a->how   = settled(*how);
    CPL_ASSERT(a->how.window >= 1 && a->how.window <= a->how.rows);
    CPL_ASSERT(a->how.window <= model->rope.shape[0] && a->how.chunk >= 1);
    cpl_work work = cpl_pass_work(&model->config, 1, a->how.chunk, a->how.window, false);
    CPL_TRY(cpl_backend_reserve(model->be, &work));
    CPL_TRY(cpl_arena_init(&a->arena, cpl_lm_batch_bytes(&model->config, &a->how),
                           "keys, values and activations"));
    take_all(a, &model->config);
    return CPL_OK;
}

void cpl_lm_batch_free(cpl_lm_batch *a)
{
    cpl_free(a->key_row);
    cpl_arena_free(&a->arena);
    memset(a, 0, sizeof *a);
}

/* ---- one pass over new tokens ---- */

/* Room for `count` more rows of keys behind those there are. */
cpl_status cpl_lm_batch_more_keys(cpl_lm_batch *a, int64_t count, int32_t **at)
{
    const int64_t need = a->key_rows + count;
    if (need > a->key_room) {
        const int64_t room = need + need / 2;
        int32_t *grown     = cpl_realloc(a->key_row, (size_t)room * sizeof *grown);
        if (!grown) return CPL_ERR_MEMORY;
        a->key_row  = grown;
        a->key_room = room;
    }
    *at         = a->key_row + a->key_rows;
    a->key_rows = need;
    return CPL_OK;
}

/* `count` tokens, in a->ids and a->position, go into rows first_row ... of the cache; n_picked of
 * them, in a->picked, are wanted. */
void cpl_lm_batch_pass(cpl_lm_batch *a, cpl_pass *pass, int64_t count, int64_t n_segments,
                       int64_t first_row, int64_t n_picked)
{
    cpl_arena_release(&a->arena, a->mark);
    cpl_pass_take(pass, &a->arena, &a->model->config, 1, count, false, true);
    cpl_pass_ask(pass, &a->arena, &a->model->config,
                 cpl_tensor_1d(a->requests.data, CPL_I32, n_picked));
    const cpl_cached cached = {
        .cache     = a->cache,
        .first_row = first_row,
        .position  = cpl_tensor_1d(a->position.data, CPL_I32, count),
        .segments  = {.at      = a->segment,
                      .count   = n_segments,
                      .key_row = cpl_tensor_1d(a->key_row, CPL_I32, a->key_rows)},
    };
    cpl_model_forward(a->model, pass, cpl_tensor_1d(a->ids.data, CPL_I32, count), cpl_tensor_none(),
                      &cached);
}

cpl_status cpl_lm_batch_check_ids(const cpl_lm_batch *a, const int32_t *ids, int64_t length)
{
    const int64_t size = a->model->config.vocab_size;
    for (int64_t i = 0; i < length; i++)
        if (ids[i] < 0 || ids[i] >= size)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "a token has id %ld, but the model's vocabulary has %lld", (long)ids[i],
                            (long long)size);
    return CPL_OK;
}
