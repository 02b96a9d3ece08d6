/* internal.h - shared by the files behind hf.h and gguf_export.h.
 *
 * Room:  store. */
#ifndef CPL_STORE_INTERNAL_H
#define CPL_STORE_INTERNAL_H

#include "checkpoint/stored.h"
#include "model/settings.h"
#include "store/gguf_export.h"
#include "store/hf.h"

/* ---- hf_tensors.c: checks the tensors of a directory against its config.json ---- */

#define CPL_HF_EMBED "model.embed_tokens.weight"
#define CPL_HF_HEAD  "lm_head.weight"

/* Returns the number after `part` in a tensor's name, or -1 if no number follows `part` there. */
int64_t cpl_hf_number_behind(const char *name, const char *part);

/* Applies Transformers' rule for a config with tie_word_embeddings. If both tensors exist and their
 * numbers differ, the head is not tied, and a warning is logged. If only the head exists, it is the
 * embedding too, and `head_is_embed` is set. */
CPL_NODISCARD cpl_status cpl_hf_settle_tied(cpl_model_settings *config, bool *head_is_embed,
                                            const cpl_stored_files *weights, const cpl_log *log);

/* Logs one warning that names and counts the tensors that the model does not use. Tensors of a
 * layer or an expert beyond the config, which belongs to another model then, give CPL_ERR_INPUT. */
CPL_NODISCARD cpl_status cpl_hf_judge_tensors(const cpl_model_settings *config,
                                              const cpl_stored_files *weights, const cpl_log *log);

/* ---- gguf_vocabulary.c ---- */

/* Adds the tokenizer's part of the metadata: a token for every row of the embedding, merges, ids,
 * and the chat template if the model's folder has a template. */
CPL_NODISCARD cpl_status cpl_gguf_vocabulary_put(cpl_gguf_writer *writer,
                                                 const cpl_tokenizer *tokenizer, const cpl_hf *hf,
                                                 const cpl_log *log);

#endif /* CPL_STORE_INTERNAL_H */
