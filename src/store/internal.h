/* internal.h - what the files of hf.h share, and those of gguf_export.h.
 *
 * Room:  store. */
#ifndef CPL_STORE_INTERNAL_H
#define CPL_STORE_INTERNAL_H

#include "checkpoint/stored.h"
#include "model/settings.h"
#include "store/gguf_export.h"
#include "store/hf.h"

/* ---- hf_tensors.c: whether the tensors of a directory are those of the model that its config.json
 * describes ---- */

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

/* ---- gguf_vocabulary.c ---- */

/* Adds the tokenizer's part of the metadata: a token for every row of the embedding, merges, ids, and
 * the chat template if the model's folder has one. */
CPL_NODISCARD cpl_status cpl_gguf_vocabulary_put(cpl_gguf_writer *writer,
                                                 const cpl_tokenizer *tokenizer, const cpl_hf *hf,
                                                 const cpl_log *log);

#endif /* CPL_STORE_INTERNAL_H */
