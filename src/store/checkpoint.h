/* checkpoint.h - saves and loads the checkpoints of a run.
 *
 * Room:    store.
 * Layout:  RUN/step-NNNNNN/  a Hugging Face OLMoE directory (hf.h) that also holds
 *              state.safetensors   the moments m.<name>, v.<name>, F32, and erc.token_means
 *              state.json          the trainer's other state, given by the caller
 *              checksums.json      XXH3 of every other file
 *          RUN/last            a link to the newest complete checkpoint
 * Ranks:   with R ranks, each writes its own tensors: model-0000r-of-0000R.safetensors, and two
 *          files state-00001-of-... with moments. The indices model.safetensors.index.json (as
 *          Hugging Face's) and state.safetensors.index.json name the file of each tensor. Any
 *          number of ranks can read a checkpoint of any number of ranks.
 * Safety:  a checkpoint is written as RUN/.tmp-step, synced and renamed. Then `last` is
 *          replaced (by renaming a new link to it), and then old checkpoints are removed. A run
 *          killed at any moment has a complete `last`. */
#ifndef CPL_STORE_CHECKPOINT_H
#define CPL_STORE_CHECKPOINT_H

#include <jansson.h>

#include "base/log.h"
#include "model/model.h"
#include "parallel/group.h"
#include "store/hf_config.h"

/* Lists the sets of tensors, in the order in which they are saved. */
typedef enum cpl_saved_set { CPL_SAVED_WEIGHTS, CPL_SAVED_M, CPL_SAVED_V } cpl_saved_set;

/* Holds the functions by which several ranks, each with its own part, save and load. */
typedef struct cpl_checkpoint_ranks {
    cpl_group *world;
    void *ctx;
    /* Returns the rank that writes a parameter, or one expert of a parameter. All ranks must return
     * an equal number. `index` is as in cpl_params_at. */
    int (*writer)(void *ctx, int64_t index, const cpl_param *param, int64_t expert);
    /* For saving: returns a set that holds at least the tensors that this rank writes, whole, valid
     * until the next call. Collective. */
    cpl_params *(*gather)(void *ctx, cpl_saved_set which);
    /* For loading: whole tensors are read into the model's masters, or for moments into the set
     * that `room` returns. `keep` then copies this rank's parts from the set. */
    cpl_params *(*room)(void *ctx, cpl_saved_set which);
    void (*keep)(void *ctx, cpl_saved_set which);
} cpl_checkpoint_ranks;

typedef struct cpl_checkpoint {
    int64_t step;
    cpl_model *model;
    cpl_params *m, *v;
    json_t *state; /* an object, borrowed when saving */
    /* The moving means of erc.proxy tokens, on every rank (train/step.h), or none. Loading leaves
     * token_means unchanged and sets token_steps to 0 if the checkpoint has no means. */
    cpl_tensor token_means;
    int64_t token_steps; /* steps that the means cover */
    const cpl_hf_tokens *tokens;
    const char *tokenizer;             /* path of the tokenizer.json to copy, or NULL */
    const cpl_checkpoint_ranks *ranks; /* NULL for one process, with m and v */
} cpl_checkpoint;

/* Saves RUN/step-NNNNNN, points `last` at it and removes all but the newest `keep` of the steps up
 * to this step. On failure all existing files are unchanged. Collective with several ranks: it
 * fails on all ranks or on no rank. */
CPL_NODISCARD cpl_status cpl_checkpoint_save(const char *run, const cpl_checkpoint *checkpoint,
                                             int64_t keep);

/* Verifies, then loads the weights and moments of `folder` into checkpoint->model, m, v, and sets
 * checkpoint->state (owned by the caller, who calls json_decref) and ->step. A model.* setting that
 * differs from the checkpoint's gives CPL_ERR_INPUT, with both values. */
CPL_NODISCARD cpl_status cpl_checkpoint_load(const char *folder, cpl_checkpoint *checkpoint,
                                             const cpl_log *log);

#endif /* CPL_STORE_CHECKPOINT_H */
