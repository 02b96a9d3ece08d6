/* hf_config.h - config.json of a Hugging Face OLMoE directory <-> the model's settings
 * (docs/formats.md, "OLMoE directories").
 *
 * Room:   store. */
#ifndef CPL_STORE_HF_CONFIG_H
#define CPL_STORE_HF_CONFIG_H

#include <jansson.h>

#include "base/log.h"
#include "model/settings.h"

enum { CPL_HF_MOST_ENDS = 16 };

/* What a directory says beside the model's settings: token ids, -1 if it names none. */
typedef struct cpl_hf_tokens {
    int64_t pad, bos, eos;               /* eos: the first if it is a list */
    int64_t extra_eos[CPL_HF_MOST_ENDS]; /* (n_extra_eos) the others of it, and those that only
                                        generation_config.json names: each ends what is written */
    int64_t n_extra_eos;
    double balance_weight; /* written as router_aux_loss_coef, never read */
} cpl_hf_tokens;

/* Reads `folder`/config.json as hf_keys.def says: a missing key takes OLMoE's class default
 * (eos_token_id: if the vocabulary has it); a model that we do not compute (another model_type,
 * attention_bias, another hidden_act, rope scaling, ...) is CPL_ERR_INPUT; one warning names the
 * keys that are passed over because no OLMoE has them. Reads eos_token_id of generation_config.json,
 * if that file exists. The settings are returned resolved. */
CPL_NODISCARD cpl_status cpl_hf_config_read(cpl_model_settings *config, cpl_hf_tokens *tokens,
                                            const char *folder, const cpl_log *log);

/* Whether our settings are those of the model in `where`: CPL_ERR_INPUT naming setting and both
 * values if not. `given` [settings of section model]: only those, as far as they are set; NULL: all
 * of them. */
CPL_NODISCARD cpl_status cpl_hf_config_agrees(const cpl_model_settings *ours,
                                              const cpl_model_settings *theirs, const bool *given,
                                              const char *where);

/* Writes config.json with the keys that hf_keys.def has written. */
CPL_NODISCARD cpl_status cpl_hf_config_write(const char *folder, const cpl_model_settings *config,
                                             const cpl_hf_tokens *tokens);

/* Writes `folder`/`name` and frees the object; NULL: there was no memory for it. */
CPL_NODISCARD cpl_status cpl_hf_write_json(const char *folder, const char *name, json_t *object);

#endif /* CPL_STORE_HF_CONFIG_H */
