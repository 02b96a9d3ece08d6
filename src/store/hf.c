/* hf.c - see hf.h */
#include "store/hf.h"
#include "store/internal.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "checkpoint/stored.h"
#include "io/file.h"
#include "io/json.h"
#include "store/named.h"
#include "store/run_dir.h"

struct cpl_hf {
    char *folder;
    cpl_model_settings config;
    cpl_hf_tokens tokens;
    cpl_stored_files *weights;
    bool head_is_embed; /* the embedding of a tied model is stored under the name of the head */
};

/* ---- opening ---- */

/* Warns of an adapter in the folder, which Transformers with PEFT would apply. */
static cpl_status warn_of_adapter(const cpl_hf *hf, const cpl_log *log)
{
    char *path = cpl_path_join(hf->folder, "adapter_config.json");
    if (!path) return CPL_ERR_MEMORY;
    if (cpl_path_exists(path))
        cpl_log_warn(log, "%s: the adapter is not applied: merge it into the weights", path);
    cpl_free(path);
    return CPL_OK;
}

cpl_status cpl_hf_open(cpl_hf **out, const char *model_dir, const cpl_log *log)
{
    cpl_status status = CPL_OK;
    bool checked      = false;
    cpl_hf *hf        = cpl_alloc(sizeof *hf);
    *out              = NULL;
    if (!hf) return CPL_ERR_MEMORY;
    memset(hf, 0, sizeof *hf);
    CPL_TRY_DONE(cpl_run_dir_resolve(&hf->folder, model_dir));
    CPL_TRY_DONE(cpl_hf_config_read(&hf->config, &hf->tokens, hf->folder, log));
    CPL_TRY_DONE(cpl_stored_open_strict(&hf->weights, hf->folder, log));
    CPL_TRY_DONE(cpl_hf_settle_tied(&hf->config, &hf->head_is_embed, hf->weights, log));
    CPL_TRY_DONE(cpl_hf_judge_tensors(&hf->config, hf->weights, log));
    CPL_TRY_DONE(warn_of_adapter(hf, log));
    if (cpl_log_is_heard(log) && cpl_run_dir_verify(hf->folder, &checked) != CPL_OK)
        cpl_log_warn(log, "%s", cpl_last_error());
    *out = hf;
done:
    if (status != CPL_OK) cpl_hf_close(hf);
    return status;
}

void cpl_hf_close(cpl_hf *hf)
{
    if (!hf) return;
    cpl_stored_close(hf->weights);
    cpl_free(hf->folder);
    cpl_free(hf);
}

const char *cpl_hf_folder(const cpl_hf *hf)
{
    return hf->folder;
}

const cpl_model_settings *cpl_hf_config(const cpl_hf *hf)
{
    return &hf->config;
}

const cpl_hf_tokens *cpl_hf_tokens_of(const cpl_hf *hf)
{
    return &hf->tokens;
}

/* Adds a file of the folder to the hash, if it exists. */
static cpl_status add_file(uint64_t *hash, const cpl_hf *hf, const char *name)
{
    uint64_t own      = 0;
    char *path        = cpl_path_join(hf->folder, name);
    cpl_status status = path ? CPL_OK : CPL_ERR_MEMORY;
    if (path && cpl_path_exists(path)) status = cpl_file_hash(&own, path);
    *hash = XXH3_64bits_withSeed(&own, sizeof own, *hash);
    cpl_free(path);
    return status;
}

cpl_status cpl_hf_identify(const cpl_hf *hf, uint64_t *weights, uint64_t *bytes, uint64_t *config)
{
    *config = 0;
    CPL_TRY(add_file(config, hf, "generation_config.json"));
    CPL_TRY(add_file(config, hf, "config.json"));
    return cpl_stored_sampled_hash(weights, bytes, hf->weights);
}

cpl_status cpl_hf_tokenizer_path(char **path, const cpl_hf *hf)
{
    *path = cpl_path_join(hf->folder, "tokenizer.json");
    if (!*path) return CPL_ERR_MEMORY;
    if (cpl_path_exists(*path)) return CPL_OK;
    cpl_free(*path);
    *path = NULL;
    return CPL_OK;
}

/* Checks that the tokenizer has no more ids than the vocabulary has rows. The vocabulary may be
 * padded. */
static cpl_status check_vocabulary(const cpl_hf *hf, const cpl_tokenizer *tokenizer,
                                   const char *path, const char *flag)
{
    const int64_t rows = hf->config.vocab_size;
    const int64_t ids  = cpl_tokenizer_vocab_size(tokenizer);
    if (ids <= rows) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s has ids up to %lld, but the vocabulary of %s has %lld rows: it is another "
                    "model's; %s%s",
                    path, (long long)ids - 1, hf->folder, (long long)rows,
                    flag ? "name the right one with " : "put the right one there",
                    flag ? flag : "");
}

cpl_status cpl_hf_load_tokenizer(cpl_tokenizer **out, char **path, const cpl_hf *hf,
                                 const char *given, const char *flag)
{
    char *taken = given ? cpl_text_copy(given) : NULL;
    *out        = NULL;
    if (path) *path = NULL;
    if (!taken && given) return CPL_ERR_MEMORY;
    if (!given) CPL_TRY(cpl_hf_tokenizer_path(&taken, hf));
    if (!taken)
        return CPL_FAIL(CPL_ERR_INPUT, "%s has no tokenizer.json: %s%s", cpl_hf_folder(hf),
                        flag ? "name one with " : "put the model's there", flag ? flag : "");
    cpl_status status =
        given ? cpl_tokenizer_load_given(out, taken) : cpl_tokenizer_load(out, taken);
    if (status == CPL_OK) status = check_vocabulary(hf, *out, taken, flag);
    if (status != CPL_OK) {
        cpl_tokenizer_free(*out);
        *out = NULL;
    }
    if (path && status == CPL_OK)
        *path = taken;
    else
        cpl_free(taken);
    return status;
}

/* ---- loading ---- */

/* Loads gate_up_proj [n,2D,d]: rows 0 ... D-1 of each expert are the gate, the other rows up. Reads
 * one expert at a time, from `first` on. The two halves are stored in separate tensors. */
static cpl_status load_gate_up(cpl_named_list *list, const cpl_stored *fused,
                               const cpl_layer_params *to, int64_t first)
{
    int64_t n = to->w_gate.shape[0], each = to->w_gate.shape[1] * to->w_gate.shape[2];
    for (int64_t e = 0; e < n; e++) {
        const int64_t at = 2 * (first + e) * each;
        CPL_TRY(cpl_named_fill(list, cpl_tensor_at(to->w_gate, e), fused, at));
        CPL_TRY(cpl_named_fill(list, cpl_tensor_at(to->w_up, e), fused, at + each));
    }
    return CPL_OK;
}

/* Returns the name of a parameter in the files. */
static const char *stored_name(const cpl_hf *hf, const char *name)
{
    return hf->head_is_embed && strcmp(name, CPL_HF_EMBED) == 0 ? CPL_HF_HEAD : name;
}

/* Sets the fused tensor `name`, which must have this shape, or NULL if it does not exist. */
static cpl_status find_fused(const cpl_stored **fused, const cpl_stored_files *weights,
                             const char *name, const int64_t shape[3])
{
    char text[128];
    CPL_TRY(cpl_stored_find_sound(fused, weights, name));
    if (!*fused || cpl_safetensors_has_shape((*fused)->entry, 3, shape)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %s is %s, the config says [%lld,%lld,%lld]",
                    weights->source, name, cpl_safetensors_shape_text(text, (*fused)->entry),
                    (long long)shape[0], (long long)shape[1], (long long)shape[2]);
}

/* Loads the fused experts of layer l that are in this process, if the checkpoint has fused
 * experts. */
static cpl_status load_fused(cpl_named_list *list, const cpl_stored_files *weights, int64_t l,
                             const cpl_layer_params *to, const cpl_model_settings *config,
                             bool *found)
{
    char name[128];
    const cpl_stored *fused = NULL;
    const int64_t n = config->n_experts, d = cpl_model_expert_input(config), D = config->d_expert;
    snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.gate_up_proj", (long long)l);
    CPL_TRY(find_fused(&fused, weights, name, (int64_t[]){n, 2 * D, d}));
    *found = fused != NULL;
    if (!fused) return CPL_OK;
    CPL_TRY(load_gate_up(list, fused, to, config->first_expert));
    snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.down_proj", (long long)l);
    CPL_TRY(find_fused(&fused, weights, name, (int64_t[]){n, d, D}));
    if (!fused) return CPL_FAIL(CPL_ERR_INPUT, "%s: has no tensor %s", weights->source, name);
    return cpl_named_fill(list, to->w_down, fused, config->first_expert * d * D);
}

cpl_status cpl_hf_load(const cpl_hf *hf, cpl_model *model)
{
    int64_t fused_layer = -1; /* the last layer with fused experts */
    bool found          = false;
    cpl_named_list list = {.be = model->be};
    cpl_status status   = CPL_OK;
    const cpl_stored *stored;
    CPL_TRY_DONE(cpl_named_params(&list, &model->master, &model->config, ""));
    for (const cpl_named *n = list.at; n < list.at + list.count; n++) {
        bool expert   = cpl_hf_number_behind(n->name, ".experts.") >= 0;
        int64_t layer = cpl_hf_number_behind(n->name, "model.layers.");
        if (expert && fused_layer != layer) {
            CPL_TRY_DONE(load_fused(&list, hf->weights, layer, &model->master.layer[layer],
                                    &model->config, &found));
            if (found) fused_layer = layer;
        }
        if (expert && fused_layer == layer) continue;
        CPL_TRY_DONE(cpl_stored_find_shaped(&stored, hf->weights, stored_name(hf, n->name),
                                            n->tensor.rank, n->tensor.shape));
        CPL_TRY_DONE(cpl_named_fill(&list, n->tensor, stored, 0));
    }
    cpl_model_refresh(model);
done:
    cpl_named_free(&list);
    return status;
}

/* Sets the fused tensor that holds this expert of a parameter, and the position of its first
 * number. Sets NULL if the checkpoint has the experts one by one. */
static cpl_status find_in_fused(const cpl_stored **tensor, int64_t *begin, const cpl_hf *hf,
                                const cpl_param *param, int64_t expert)
{
    char name[128];
    const int64_t n = hf->config.n_experts, d = cpl_model_expert_input(&hf->config);
    const int64_t D   = hf->config.d_expert;
    const bool down   = strcmp(param->field, "w_down") == 0;
    const int64_t row = down ? d : 2 * D, half = strcmp(param->field, "w_up") == 0 ? D : 0;
    const int64_t shape[3] = {n, row, down ? D : d};
    snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.%s", (long long)param->layer,
             down ? "down_proj" : "gate_up_proj");
    *begin = (expert * row + half) * shape[2];
    return find_fused(tensor, hf->weights, name, shape);
}

cpl_status cpl_hf_read_part(const cpl_hf *hf, float *out, const cpl_param *param, int64_t expert,
                            int64_t first, int64_t count)
{
    char name[128];
    const int skip           = param->per_expert ? 1 : 0;
    const cpl_stored *tensor = NULL;
    int64_t begin            = 0;
    if (param->per_expert) CPL_TRY(find_in_fused(&tensor, &begin, hf, param, expert));
    if (!tensor) {
        begin = 0;
        cpl_param_name(name, param, expert);
        CPL_TRY(cpl_stored_find_shaped(&tensor, hf->weights, stored_name(hf, name),
                                       param->rank - skip, param->shape + skip));
    }
    return count ? cpl_stored_read_part_f32(tensor, out, begin + first, count) : CPL_OK;
}

/* ---- saving ---- */

static cpl_status copy_tokenizer(const char *folder, const char *from)
{
    cpl_text bytes    = {0};
    char *path        = cpl_path_join(folder, "tokenizer.json");
    cpl_status status = path ? cpl_file_read(&bytes, from, CPL_TOKEN_FILE_MAX) : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_file_write_atomic(path, bytes.bytes, bytes.length);
    cpl_text_free(&bytes);
    cpl_free(path);
    return status;
}

/* Returns the text of the added token with this id, borrowed from `tokenizer`, or NULL. */
static const char *added_token(const json_t *tokenizer, int64_t id)
{
    const json_t *added = json_object_get(tokenizer, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i), *its = json_object_get(token, "id");
        if (id >= 0 && json_is_number(its) && json_number_value(its) == (double)id)
            return json_string_value(json_object_get(token, "content"));
    }
    return NULL;
}

/* Writes the files that transformers' tokenizer class needs in addition to tokenizer.json. */
static cpl_status write_tokenizer(const char *folder, const char *path,
                                  const cpl_model_settings *config, const cpl_hf_tokens *tokens)
{
    json_t *tokenizer = NULL;
    CPL_TRY(copy_tokenizer(folder, path));
    CPL_TRY(cpl_json_load(&tokenizer, path));
    cpl_status status =
        cpl_hf_write_json(folder, "tokenizer_config.json",
                          json_pack("{s:s, s:b, s:b, s:b, s:s*, s:s*, s:I}", "tokenizer_class",
                                    "PreTrainedTokenizerFast", "add_bos_token", 0, "add_eos_token",
                                    0, "clean_up_tokenization_spaces", 0, "eos_token",
                                    added_token(tokenizer, tokens->eos), "pad_token",
                                    added_token(tokenizer, tokens->pad), "model_max_length",
                                    (json_int_t)config->max_positions));
    json_decref(tokenizer);
    return status;
}

cpl_status cpl_hf_save_config(const char *folder, const cpl_model_settings *config,
                              const cpl_hf_tokens *tokens, const char *tokenizer)
{
    CPL_TRY(cpl_hf_config_write(folder, config, tokens));
    CPL_TRY(cpl_hf_write_json(
        folder, "generation_config.json",
        json_pack("{s:b, s:o, s:o}", "_from_model_config", 1, "eos_token_id",
                  tokens->eos < 0 ? json_null() : json_integer(tokens->eos), "pad_token_id",
                  tokens->pad < 0 ? json_null() : json_integer(tokens->pad))));
    return tokenizer ? write_tokenizer(folder, tokenizer, config, tokens) : CPL_OK;
}

cpl_status cpl_hf_save(const char *folder, cpl_model *model, const cpl_hf_tokens *tokens,
                       const char *tokenizer)
{
    cpl_named_list list = {.be = model->be};
    cpl_status status   = CPL_ERR_MEMORY;
    char *path          = cpl_path_join(folder, "model.safetensors");
    if (!path) return status;
    CPL_TRY_DONE(cpl_hf_save_config(folder, &model->config, tokens, tokenizer));
    CPL_TRY_DONE(cpl_named_params(&list, &model->master, &model->config, ""));
    CPL_TRY_DONE(cpl_named_write(&list, path));
done:
    cpl_named_free(&list);
    cpl_free(path);
    return status;
}
