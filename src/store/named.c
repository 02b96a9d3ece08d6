/* named.c - see named.h */
#include "store/named.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "checkpoint/safetensors_writer.h"

void cpl_named_free(cpl_named_list *list)
{
    cpl_free(list->at);
    memset(list, 0, sizeof *list);
}

cpl_status cpl_named_add(cpl_named_list *list, const char *name, float *data, int rank,
                         const int64_t *shape)
{
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 256;
        cpl_named *at    = cpl_realloc(list->at, (size_t)capacity * sizeof *at);
        if (!at) return CPL_ERR_MEMORY;
        list->at       = at;
        list->capacity = capacity;
    }
    cpl_named *n = &list->at[list->count++];
    CPL_ASSERT(rank <= 3 && strlen(name) < sizeof n->name);
    *n = (cpl_named){.data = data, .rank = rank, .shape = {1, 1, 1}};
    snprintf(n->name, sizeof n->name, "%s", name);
    for (int i = 0; i < rank; i++) n->shape[i] = shape[i];
    return CPL_OK;
}

cpl_status cpl_named_params(cpl_named_list *list, cpl_params *set, const cpl_model_settings *config,
                            const char *prefix)
{
    char hub[128], name[160];
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        cpl_param p    = cpl_params_at(config, i);
        cpl_tensor all = *cpl_params_tensor(set, &p);
        int64_t parts  = p.per_expert ? p.shape[0] : 1;
        int skip       = p.per_expert ? 1 : 0; /* the experts' dimension is in the name */
        for (int64_t e = 0; e < parts; e++) {
            cpl_tensor t = p.per_expert ? cpl_tensor_at(all, e) : all;
            cpl_param_name(hub, &p, e);
            snprintf(name, sizeof name, "%s%s", prefix, hub);
            CPL_TRY(cpl_named_add(list, name, cpl_f32(t), p.rank - skip, p.shape + skip));
        }
    }
    return CPL_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const cpl_named *)a)->name, ((const cpl_named *)b)->name);
}

static size_t bytes_of(const cpl_named *n)
{
    return (size_t)(n->shape[0] * n->shape[1] * n->shape[2]) * sizeof(float);
}

/* All are F32, so the writer's order is that of the names. */
static cpl_status write_all(cpl_safetensors_writer *writer, const cpl_named_list *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        const cpl_named *n = &list->at[i];
        CPL_TRY(cpl_safetensors_writer_declare(writer, n->name, CPL_SAFETENSORS_F32, n->rank,
                                               n->shape));
    }
    CPL_TRY(cpl_safetensors_writer_metadata(writer, "format", "pt"));
    CPL_TRY(cpl_safetensors_writer_layout(writer));
    for (int64_t i = 0; i < list->count; i++) {
        CPL_ASSERT(strcmp(cpl_safetensors_writer_name(writer, i), list->at[i].name) == 0);
        CPL_TRY(cpl_safetensors_writer_put(writer, list->at[i].data, bytes_of(&list->at[i])));
    }
    return CPL_OK;
}

cpl_status cpl_named_write(cpl_named_list *list, const char *path, uint64_t *hash)
{
    cpl_safetensors_writer *writer = NULL;
    qsort(list->at, (size_t)list->count, sizeof *list->at, by_name);
    CPL_TRY(cpl_safetensors_writer_begin(&writer, path));
    cpl_status status = write_all(writer, list);
    if (status == CPL_OK) return cpl_safetensors_writer_commit(writer, hash);
    cpl_safetensors_writer_abort(writer);
    return status;
}

cpl_status cpl_named_read(const cpl_named_list *list, const cpl_stored_files *weights)
{
    for (int64_t i = 0; i < list->count; i++) {
        const cpl_named *n = &list->at[i];
        CPL_TRY(cpl_stored_read_f32(weights, n->name, n->data, n->rank, n->shape));
    }
    return CPL_OK;
}
