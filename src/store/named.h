/* named.h - a list of tensors under the names they have in a file, and a file written from it.
 *
 * Room:   store. One Hugging Face tensor an entry: an expert's part of a [n,D,d] tensor is one. */
#ifndef CPL_STORE_NAMED_H
#define CPL_STORE_NAMED_H

#include "checkpoint/stored.h"
#include "model/params.h"

typedef struct cpl_named {
    char name[160];
    float *data; /* borrowed */
    int rank;
    int64_t shape[3];
} cpl_named;

typedef struct cpl_named_list {
    cpl_named *at; /* owned */
    int64_t count, capacity;
} cpl_named_list;

void cpl_named_free(cpl_named_list *list);

/* Appends one tensor of up to three dimensions. */
CPL_NODISCARD cpl_status cpl_named_add(cpl_named_list *list, const char *name, float *data,
                                       int rank, const int64_t *shape);

/* Appends every parameter of a set under `prefix` + its Hugging Face name. */
CPL_NODISCARD cpl_status cpl_named_params(cpl_named_list *list, cpl_params *set,
                                          const cpl_model_settings *config, const char *prefix);

/* Appends those of them for which `wanted` is true; `index` as cpl_params_at, `expert` counted over
 * all of the model, -1 for a parameter that is not per expert. */
typedef bool cpl_named_wanted(void *ctx, int64_t index, const cpl_param *param, int64_t expert);
CPL_NODISCARD cpl_status cpl_named_some(cpl_named_list *list, cpl_params *set,
                                        const cpl_model_settings *config, const char *prefix,
                                        cpl_named_wanted *wanted, void *ctx);

/* Writes all of them as F32 to `path`, atomically, with {"format": "pt"}. */
CPL_NODISCARD cpl_status cpl_named_write(const cpl_named_list *list, const char *path);

/* Reads all of them, each by its name with its exact shape. */
CPL_NODISCARD cpl_status cpl_named_read(const cpl_named_list *list,
                                        const cpl_stored_files *weights);

#endif /* CPL_STORE_NAMED_H */
