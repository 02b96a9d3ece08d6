/* hf_config.h - converts config.json of a Hugging Face OLMoE directory to and from the model's
 * settings (docs/formats.md, "OLMoE directories").
 *
 * Room:   store. */
#ifndef CPL_STORE_HF_CONFIG_H
#define CPL_STORE_HF_CONFIG_H

#include <jansson.h>

#include "base/log.h"
#include "model/settings.h"

enum { CPL_HF_MOST_ENDS = 16 };

/* Holds the contents of a directory's configuration other than the model's settings: token ids, or
 * -1. */
typedef struct cpl_hf_tokens {
    int64_t pad, bos, eos;               /* eos: the first id of a list */
    int64_t extra_eos[CPL_HF_MOST_ENDS]; /* (n_extra_eos) further ids that end generated text, from
                                            the list and from generation_config.json */
    int64_t n_extra_eos;
    double balance_weight; /* written as router_aux_loss_coef, never read */
} cpl_hf_tokens;

/* Reads `folder`/config.json according to hf_keys.def. A missing key gets the default of
 * Transformers' OLMoE class (eos_token_id only if the vocabulary has it). A model that is not
 * supported (another model_type, attention_bias, another hidden_act, rope scaling, ...) gives
 * CPL_ERR_INPUT. One warning names the ignored keys that no OLMoE has. Also reads eos_token_id of
 * generation_config.json, if that file exists. The settings are resolved. */
CPL_NODISCARD cpl_status cpl_hf_config_read(cpl_model_settings *config, cpl_hf_tokens *tokens,
                                            const char *folder, const cpl_log *log);

/* Fails with CPL_ERR_INPUT, naming the setting and both values, if a setting of `ours` differs from
 * `theirs`, the model in `where`. With `given` [settings of section model], compares only the
 * settings that are given and set. With NULL it compares all settings. */
CPL_NODISCARD cpl_status cpl_hf_config_agrees(const cpl_model_settings *ours,
                                              const cpl_model_settings *theirs, const bool *given,
                                              const char *where);

/* Writes config.json with the keys that hf_keys.def marks as written. */
CPL_NODISCARD cpl_status cpl_hf_config_write(const char *folder, const cpl_model_settings *config,
                                             const cpl_hf_tokens *tokens);

/* Writes the object to `folder`/`name` and frees it. `object` NULL gives CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_hf_write_json(const char *folder, const char *name, json_t *object);

#endif /* CPL_STORE_HF_CONFIG_H */
