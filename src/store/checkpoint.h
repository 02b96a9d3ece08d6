/* checkpoint.h - the folder of a run and its checkpoints.
 *
 * Room:    store.
 * Layout:  RUN/step-NNNNNN/  a Hugging Face OLMoE directory (hf.h) that also holds
 *              state.safetensors   the moments m.<name>, v.<name>, F32
 *              state.json          the trainer's other state, as the caller gives it
 *              checksums.json      XXH3 of every other file
 *          RUN/last            a link to the newest whole one
 * Ranks:   with R of them, each writes what it holds: model-0000r-of-0000R.safetensors, and of the
 *          moments two of state-00001-of-...; an index (model.safetensors.index.json, as Hugging
 *          Face's, and state.safetensors.index.json) says which tensor is in which file. One
 *          process reads both forms, and so do any number of ranks.
 * Safety:  a checkpoint is written as RUN/.tmp-step, synced and renamed. Only then is `last`
 *          replaced (by renaming a new link to it), and only then are old checkpoints removed. A
 *          run killed at any moment has a whole `last`. */
#ifndef CPL_STORE_CHECKPOINT_H
#define CPL_STORE_CHECKPOINT_H

#include <jansson.h>

#include "base/log.h"
#include "model/model.h"
#include "parallel/group.h"
#include "store/hf_config.h"

/* What is saved of the tensors, one after the other. */
typedef enum cpl_saved_set { CPL_SAVED_WEIGHTS, CPL_SAVED_M, CPL_SAVED_V } cpl_saved_set;

/* How several ranks, of which each holds a part, save and load. */
typedef struct cpl_checkpoint_ranks {
    cpl_group *world;
    void *ctx;
    /* The rank that writes a parameter, or one expert of it; any rank can ask. `index`: as
     * cpl_params_at. */
    int (*writer)(void *ctx, int64_t index, const cpl_param *param, int64_t expert);
    /* Saving: makes whole, in the set that it returns, the tensors that this rank writes. It stays
     * so until the next call. Collective. */
    cpl_params *(*gather)(void *ctx, cpl_saved_set which);
    /* Loading: the model's masters, or for moments the set that `room` returns, take whole tensors
     * of everything in this process; `keep` then takes what this rank holds of them. */
    cpl_params *(*room)(void *ctx, cpl_saved_set which);
    void (*keep)(void *ctx, cpl_saved_set which);
} cpl_checkpoint_ranks;

typedef struct cpl_checkpoint {
    int64_t step;
    cpl_model *model;
    cpl_params *m, *v;
    json_t *state; /* an object; borrowed when saving */
    const cpl_hf_tokens *tokens;
    const char *tokenizer;             /* path of the tokenizer.json to copy, or NULL */
    const cpl_checkpoint_ranks *ranks; /* NULL: one process, with m and v */
} cpl_checkpoint;

/* Saves RUN/step-NNNNNN, points `last` at it and removes all but the newest `keep` of the steps up
 * to this one. On failure all existing files are unchanged. With ranks collective: it fails on all
 * of them or on none. */
CPL_NODISCARD cpl_status cpl_checkpoint_save(const char *run, const cpl_checkpoint *checkpoint,
                                             int64_t keep);

/* Verifies, then loads the weights and moments of `folder` into checkpoint->model, m, v, and sets
 * checkpoint->state (the caller gives it back with json_decref) and ->step. A model.* setting that
 * is not the checkpoint's is CPL_ERR_INPUT naming both values. */
CPL_NODISCARD cpl_status cpl_checkpoint_load(const char *folder, cpl_checkpoint *checkpoint,
                                             const cpl_log *log);

#endif /* CPL_STORE_CHECKPOINT_H */
