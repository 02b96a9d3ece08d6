/* hf.h - reads and writes models as Hugging Face OLMoE directories.
 *
 * Room:   store. MODEL_DIR, an argument of the commands, is an OLMoE directory, a checkpoint of a
 *         run (which is such a directory), or the folder of a run, which means its `last`. Reads
 *         one file or shards, one tensor per expert or fused experts, F32, F16 and BF16
 *         (docs/formats.md, "OLMoE directories"). Writes model.safetensors in F32 with one tensor
 *         per expert. */
#ifndef CPL_STORE_HF_H
#define CPL_STORE_HF_H

#include "base/log.h"
#include "model/model.h"
#include "store/hf_config.h"
#include "tokenizer/tokenizer.h"

typedef struct cpl_hf cpl_hf;

/* Opens the directory: reads configuration and tensor headers, no weights. Wrong check sums of a
 * checkpoint give a warning. The caller closes it with cpl_hf_close. */
CPL_NODISCARD cpl_status cpl_hf_open(cpl_hf **out, const char *model_dir, const cpl_log *log);
void cpl_hf_close(cpl_hf *hf);

const char *cpl_hf_folder(const cpl_hf *hf);               /* the directory, with `last` resolved */
const cpl_model_settings *cpl_hf_config(const cpl_hf *hf); /* resolved */
const cpl_hf_tokens *cpl_hf_tokens_of(const cpl_hf *hf);

/* Sets three values that are equal in every copy of a model. `weights` is cpl_stored_sampled_hash
 * of the weights. `bytes` is the number of bytes of the weights. `config` is a hash of config.json
 * and generation_config.json. Returns CPL_ERR_IO if a read fails. */
CPL_NODISCARD cpl_status cpl_hf_identify(const cpl_hf *hf, uint64_t *weights, uint64_t *bytes,
                                         uint64_t *config);

/* Sets `path` to `folder`/tokenizer.json, from cpl_alloc, or to NULL without this file. */
CPL_NODISCARD cpl_status cpl_hf_tokenizer_path(char **path, const cpl_hf *hf);

/* Loads the tokenizer `given` (a path), or the directory's own if `given` is NULL. If `path` is not
 * NULL, sets it to the path used, from cpl_alloc. Returns CPL_ERR_INPUT if the tokenizer does not
 * exist, is damaged, or has more ids than the model's vocabulary has rows. `*out` and `*path` are
 * NULL then. `flag` is the flag that names a tokenizer, for the error message. It may be NULL. */
CPL_NODISCARD cpl_status cpl_hf_load_tokenizer(cpl_tokenizer **out, char **path, const cpl_hf *hf,
                                               const char *given, const char *flag);

/* Fills the masters of a model initialised with cpl_hf_config and refreshes the copies. A missing
 * tensor or a tensor of another shape gives CPL_ERR_INPUT, with its name and both shapes. */
CPL_NODISCARD cpl_status cpl_hf_load(const cpl_hf *hf, cpl_model *model);

/* Sets `out` to the numbers [first, first + count) of a parameter, or of one expert of a parameter
 * that is per expert. Experts may be stored one by one or fused. Count 0 only checks that the
 * tensor exists and has its shape. Has the errors of cpl_hf_load. */
CPL_NODISCARD cpl_status cpl_hf_read_part(const cpl_hf *hf, float *out, const cpl_param *param,
                                          int64_t expert, int64_t first, int64_t count);

/* Writes config.json, generation_config.json and, if `tokenizer` (a path) is not NULL,
 * tokenizer.json and tokenizer_config.json into the existing `folder`, each file atomically. */
CPL_NODISCARD cpl_status cpl_hf_save_config(const char *folder, const cpl_model_settings *config,
                                            const cpl_hf_tokens *tokens, const char *tokenizer);

/* Writes model.safetensors and the files of cpl_hf_save_config. */
CPL_NODISCARD cpl_status cpl_hf_save(const char *folder, cpl_model *model,
                                     const cpl_hf_tokens *tokens, const char *tokenizer);

#endif /* CPL_STORE_HF_H */
