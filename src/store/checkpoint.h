/* checkpoint.h - the folder of a run and its checkpoints.
 *
 * Room:    store.
 * Layout:  RUN/step-NNNNNN/  a Hugging Face OLMoE directory (hf.h) that also holds
 *              state.safetensors   the moments m.<name>, v.<name>, F32
 *              state.json          the trainer's other state, as the caller gives it
 *              checksums.json      XXH3 of every other file
 *          RUN/last            a link to the newest whole one
 * Safety:  a checkpoint is written as RUN/.tmp-step, synced and renamed. Only then is `last`
 *          replaced (by renaming a new link to it), and only then are old checkpoints removed. A
 *          run killed at any moment has a whole `last`. */
#ifndef CPL_STORE_CHECKPOINT_H
#define CPL_STORE_CHECKPOINT_H

#include <jansson.h>

#include "base/log.h"
#include "model/model.h"
#include "store/hf_config.h"

typedef struct cpl_checkpoint {
    int64_t step;
    cpl_model *model;
    cpl_params *m, *v;
    json_t *state; /* an object; borrowed when saving */
    const cpl_hf_tokens *tokens;
    const char *tokenizer; /* path of the tokenizer.json to copy, or NULL */
} cpl_checkpoint;

/* Saves RUN/step-NNNNNN, points `last` at it and removes all but the newest `keep` of the steps up
 * to this one. On failure all existing files are unchanged. */
CPL_NODISCARD cpl_status cpl_checkpoint_save(const char *run, const cpl_checkpoint *checkpoint,
                                             int64_t keep);

/* Verifies, then loads the weights and moments of `folder` into checkpoint->model, m, v, and sets
 * checkpoint->state (the caller gives it back with json_decref) and ->step. A model.* setting that
 * is not the checkpoint's is CPL_ERR_INPUT naming both values. */
CPL_NODISCARD cpl_status cpl_checkpoint_load(const char *folder, cpl_checkpoint *checkpoint,
                                             const cpl_log *log);

#endif /* CPL_STORE_CHECKPOINT_H */
