/* named.h - a list of tensors with their names in files, to write to and read from a file.
 *
 * Room:   store. An entry is one Hugging Face tensor, such as an expert's part of a [n,D,d] tensor.
 * Memory: the tensors are the backend's. Their numbers go to and from files through one buffer of
 *         the host, of CPL_NAMED_BUFFER bytes. */
#ifndef CPL_STORE_NAMED_H
#define CPL_STORE_NAMED_H

#include "checkpoint/stored.h"
#include "model/params.h"

typedef struct cpl_named {
    char name[160];
    cpl_tensor tensor; /* F32; a scalar has rank 0 */
} cpl_named;

/* Holds tensors with their names. An empty list is all zero except `be`. */
typedef struct cpl_named_list {
    cpl_backend *be; /* backend of all tensors */
    cpl_named *at;   /* owned */
    int64_t count, capacity;
    float *buffer; /* owned, allocated at the first write or read */
} cpl_named_list;

enum { CPL_NAMED_BUFFER = 1 << 20 };

void cpl_named_free(cpl_named_list *list);

CPL_NODISCARD cpl_status cpl_named_add(cpl_named_list *list, const char *name, cpl_tensor tensor);

/* Appends every parameter of a set under `prefix` + its Hugging Face name. */
CPL_NODISCARD cpl_status cpl_named_params(cpl_named_list *list, cpl_params *set,
                                          const cpl_model_settings *config, const char *prefix);

/* Appends only the tensors for which `wanted` is true. `index` is as in cpl_params_at. `expert`
 * counts over the whole model. It is -1 for a parameter that is not per expert. */
typedef bool cpl_named_wanted(void *ctx, int64_t index, const cpl_param *param, int64_t expert);
CPL_NODISCARD cpl_status cpl_named_some(cpl_named_list *list, cpl_params *set,
                                        const cpl_model_settings *config, const char *prefix,
                                        cpl_named_wanted *wanted, void *ctx);

/* Writes all tensors as F32 to `path`, atomically, with {"format": "pt"}. */
CPL_NODISCARD cpl_status cpl_named_write(cpl_named_list *list, const char *path);

/* Reads all tensors by name. Each must exist with its exact shape. */
CPL_NODISCARD cpl_status cpl_named_read(cpl_named_list *list, const cpl_stored_files *weights);

/* Sets `to`, F32, to the numbers of a stored tensor from number `first` on. */
CPL_NODISCARD cpl_status cpl_named_fill(cpl_named_list *list, cpl_tensor to, const cpl_stored *from,
                                        int64_t first);

#endif /* CPL_STORE_NAMED_H */
