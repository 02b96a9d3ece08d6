/* named.c - see named.h */
#include "store/named.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "checkpoint/safetensors_writer.h"

void cpl_named_free(cpl_named_list *list)
{
    cpl_free(list->at);
    cpl_free(list->buffer);
    memset(list, 0, sizeof *list);
}

cpl_status cpl_named_add(cpl_named_list *list, const char *name, cpl_tensor tensor)
{
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 256;
        cpl_named *at    = cpl_realloc(list->at, (size_t)capacity * sizeof *at);
        if (!at) return CPL_ERR_MEMORY;
        list->at       = at;
        list->capacity = capacity;
    }
    cpl_named *n = &list->at[list->count++];
    CPL_ASSERT(tensor.dtype == CPL_F32 && strlen(name) < sizeof n->name);
    n->tensor = tensor;
    snprintf(n->name, sizeof n->name, "%s", name);
    return CPL_OK;
}

cpl_status cpl_named_some(cpl_named_list *list, cpl_params *set, const cpl_model_settings *config,
                          const char *prefix, cpl_named_wanted *wanted, void *ctx)
{
    char hub[128], name[160];
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        cpl_param p    = cpl_params_at(config, i);
        cpl_tensor all = *cpl_params_tensor(set, &p);
        int64_t parts  = p.per_expert ? p.shape[0] : 1;
        for (int64_t e = 0; e < parts; e++) {
            const int64_t expert = p.per_expert ? config->first_expert + e : -1;
            if (wanted && !wanted(ctx, i, &p, expert)) continue;
            cpl_param_name(hub, &p, expert);
            snprintf(name, sizeof name, "%s%s", prefix, hub);
            CPL_TRY(cpl_named_add(list, name, p.per_expert ? cpl_tensor_at(all, e) : all));
        }
    }
    return CPL_OK;
}

cpl_status cpl_named_params(cpl_named_list *list, cpl_params *set, const cpl_model_settings *config,
                            const char *prefix)
{
    return cpl_named_some(list, set, config, prefix, NULL, NULL);
}

/* ---- between tensors and files ---- */

static cpl_status make_buffer(cpl_named_list *list)
{
    if (!list->buffer) list->buffer = cpl_alloc(CPL_NAMED_BUFFER);
    return list->buffer ? CPL_OK : CPL_ERR_MEMORY;
}

/* Returns the length of the piece from `first` on of `count` numbers, at most a buffer long. */
static int64_t piece_of(int64_t count, int64_t first)
{
    const int64_t most = CPL_NAMED_BUFFER / (int64_t)sizeof(float), left = count - first;
    return left < most ? left : most;
}

static cpl_status put_tensor(void *ctx, cpl_writer *file, const void *data, size_t bytes)
{
    const cpl_named_list *list = ctx;
    const cpl_tensor t         = *(const cpl_tensor *)data;
    const int64_t count        = cpl_tensor_count(t);
    CPL_ASSERT(bytes == cpl_tensor_bytes(t));
    for (int64_t at = 0, n; at < count; at += n) {
        n = piece_of(count, at);
        list->be->ops->get(list->be, list->buffer, cpl_tensor_numbers(t, at, n));
        cpl_writer_put(file, list->buffer, (size_t)n * sizeof(float));
    }
    return list->be->ops->sync(list->be);
}

cpl_status cpl_named_write(cpl_named_list *list, const char *path)
{
    CPL_TRY(make_buffer(list));
    cpl_safetensors_tensor *tensors = cpl_alloc((size_t)list->count * sizeof *tensors);
    if (!tensors) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < list->count; i++) {
        const cpl_named *n = &list->at[i];
        tensors[i]         = (cpl_safetensors_tensor){n->name, CPL_SAFETENSORS_F32, n->tensor.rank,
                                                      n->tensor.shape, &n->tensor};
    }
    cpl_status status = cpl_safetensors_write(path, tensors, list->count, "pt", put_tensor, list);
    cpl_free(tensors);
    return status;
}

cpl_status cpl_named_fill(cpl_named_list *list, cpl_tensor to, const cpl_stored *from,
                          int64_t first)
{
    const int64_t count = cpl_tensor_count(to);
    CPL_TRY(make_buffer(list));
    for (int64_t at = 0, n; at < count; at += n) {
        n = piece_of(count, at);
        CPL_TRY(cpl_stored_read_part_f32(from, list->buffer, first + at, n));
        list->be->ops->put(list->be, cpl_tensor_numbers(to, at, n), list->buffer);
    }
    return CPL_OK;
}

cpl_status cpl_named_read(cpl_named_list *list, const cpl_stored_files *weights)
{
    const cpl_stored *stored;
    for (const cpl_named *n = list->at; n < list->at + list->count; n++) {
        CPL_TRY(cpl_stored_find_shaped(&stored, weights, n->name, n->tensor.rank, n->tensor.shape));
        CPL_TRY(cpl_named_fill(list, n->tensor, stored, 0));
    }
    return CPL_OK;
}
