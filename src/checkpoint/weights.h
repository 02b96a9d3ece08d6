/* weights.h - the tensors of a checkpoint, from one safetensors file or from many with an index.
 *
 * Room:       checkpoint. Knows names and shapes, nothing of models.
 * Discovery:  a path to a file is that file (an index if it ends in .json); of a folder the first of
 *             model.safetensors.index.json, model.safetensors,
 *             consolidated.safetensors.index.json and consolidated.safetensors.
 * Index:      {"weight_map": {tensor: file}}; a file is a bare name in the index's folder and leads,
 *             also through symbolic links, to a regular file.
 * Faults:     a tensor in two files, in another file than the index says, or in none although the
 *             index names it: harmless for tensors nobody asks for (one warning at open), an error
 *             in cpl_weights_find.
 * Threads:    after open, several threads may find and read. */
#ifndef CPL_CHECKPOINT_WEIGHTS_H
#define CPL_CHECKPOINT_WEIGHTS_H

#include "base/log.h"
#include "checkpoint/safetensors.h"

typedef struct cpl_weights cpl_weights;

typedef enum cpl_weight_fault {
    CPL_WEIGHT_SOUND,
    CPL_WEIGHT_TWICE,      /* in more than one file */
    CPL_WEIGHT_MISPLACED,  /* in a file that the index does not name for it */
    CPL_WEIGHT_NOT_INDEXED /* in a file, but not in the index */
} cpl_weight_fault;

/* One tensor; borrowed from the open weights. */
typedef struct cpl_weight {
    const cpl_safetensors *file;
    const cpl_safetensors_entry *entry;
    cpl_weight_fault fault;
} cpl_weight;

/* Opens and checks the headers of all files. A folder whose weights are only in .bin, .pt, .pth or
 * .ckpt form is an error that says what to do. `log` may be NULL. Owned until cpl_weights_close. */
CPL_NODISCARD cpl_status cpl_weights_open(cpl_weights **out, const char *path, const cpl_log *log);
void cpl_weights_close(cpl_weights *weights); /* NULL: nothing to do */

/* The file or index that was found, for sentences. */
const char *cpl_weights_path(const cpl_weights *weights);

/* Every tensor of the files once, sorted by name; `i` in [0, count). */
int64_t cpl_weights_count(const cpl_weights *weights);
const cpl_weight *cpl_weights_at(const cpl_weights *weights, int64_t i);

/* Sets the tensor, or NULL if neither a file nor the index knows it. One at fault is an error. */
CPL_NODISCARD cpl_status cpl_weights_find(const cpl_weight **out, const cpl_weights *weights,
                                          const char *name);

/* Sets `out` to all elements of tensor `name`, which must be there with exactly this shape. */
CPL_NODISCARD cpl_status cpl_weights_read_f32(const cpl_weights *weights, const char *name,
                                              float *out, int rank, const int64_t *shape);

/* Sets a hash by which checkpoints are told apart: XXH3 over name, dtype and shape of every tensor and
 * over CPL_WEIGHTS_SAMPLE bytes of its beginning, middle and end (all of it where it is no longer).
 * However the tensors are spread over files, and whatever the files are called, it is the same.
 * `bytes`: of all tensors. CPL_ERR_IO. */
enum { CPL_WEIGHTS_SAMPLE = 1024 };
CPL_NODISCARD cpl_status cpl_weights_sampled_hash(uint64_t *hash, uint64_t *bytes,
                                                  const cpl_weights *weights);

#endif /* CPL_CHECKPOINT_WEIGHTS_H */
