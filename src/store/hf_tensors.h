/* hf_tensors.h - whether the tensors of a directory are those of the model that its config.json
 * describes.
 *
 * Room:   store. */
#ifndef CPL_STORE_HF_TENSORS_H
#define CPL_STORE_HF_TENSORS_H

#include <stdbool.h>

#include "base/log.h"
#include "checkpoint/stored.h"
#include "model/settings.h"

#define CPL_HF_EMBED "model.embed_tokens.weight"
#define CPL_HF_HEAD  "lm_head.weight"

/* The number after `part` in a tensor's name; -1 if the name does not contain `part`. */
int64_t cpl_hf_number_behind(const char *name, const char *part);

/* Transformers' rule for a config with tie_word_embeddings: where both tensors are there and their
 * numbers differ, the head is not tied, with a warning; where only the head is there, it is the
 * embedding too, and `head_is_embed` is set. */
CPL_NODISCARD cpl_status cpl_hf_settle_tied(cpl_model_settings *config, bool *head_is_embed,
                                            const cpl_stored_files *weights, const cpl_log *log);

/* One warning that names and counts the tensors for which the model has no use. Those of a layer or
 * an expert that the config does not have are CPL_ERR_INPUT: it is the config of another model. */
CPL_NODISCARD cpl_status cpl_hf_judge_tensors(const cpl_model_settings *config,
                                              const cpl_stored_files *weights, const cpl_log *log);

#endif /* CPL_STORE_HF_TENSORS_H */
