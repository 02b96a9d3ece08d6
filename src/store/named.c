/* named.c - see named.h */
#include "store/named.h"

#include <stdio.h>
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

cpl_status cpl_named_some(cpl_named_list *list, cpl_params *set, const cpl_model_settings *config,
                          const char *prefix, cpl_named_wanted *wanted, void *ctx)
{
    char hub[128], name[160];
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        cpl_param p    = cpl_params_at(config, i);
        cpl_tensor all = *cpl_params_tensor(set, &p);
        int64_t parts  = p.per_expert ? p.shape[0] : 1;
        int skip       = p.per_expert ? 1 : 0; /* the experts' dimension is in the name */
        for (int64_t e = 0; e < parts; e++) {
            const int64_t expert = p.per_expert ? config->first_expert + e : -1;
            if (wanted && !wanted(ctx, i, &p, expert)) continue;
            cpl_tensor t = p.per_expert ? cpl_tensor_at(all, e) : all;
            cpl_param_name(hub, &p, expert);
            snprintf(name, sizeof name, "%s%s", prefix, hub);
            CPL_TRY(cpl_named_add(list, name, cpl_f32(t), p.rank - skip, p.shape + skip));
        }
    }
    return CPL_OK;
}

cpl_status cpl_named_params(cpl_named_list *list, cpl_params *set, const cpl_model_settings *config,
                            const char *prefix)
{
    return cpl_named_some(list, set, config, prefix, NULL, NULL);
}

cpl_status cpl_named_write(const cpl_named_list *list, const char *path)
{
    cpl_safetensors_tensor *tensors = cpl_alloc((size_t)list->count * sizeof *tensors);
    if (!tensors) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < list->count; i++) {
        const cpl_named *n = &list->at[i];
        tensors[i] =
            (cpl_safetensors_tensor){n->name, CPL_SAFETENSORS_F32, n->rank, n->shape, n->data};
    }
    cpl_status status = cpl_safetensors_write(path, tensors, list->count, "pt");
    cpl_free(tensors);
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
