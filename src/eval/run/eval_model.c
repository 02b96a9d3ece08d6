/* eval_model.c - see eval_model.h */
#include "eval/run/eval_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

/* Checks that an id of the model's folder is in the tokenizer's vocabulary, the smaller of the
 * two. */
static cpl_status check_id(const cpl_eval_model *e, const char *key, int64_t id)
{
    const int64_t ids = cpl_tokenizer_vocab_size(e->tokenizer);
    if (id < ids) return CPL_OK;
    return CPL_FAIL(
        CPL_ERR_INPUT,
        "%s/config.json, or generation_config.json in the same folder: %s is %lld, but %s has "
        "the ids 0 to %lld: correct it there, or name another file with --tokenizer",
        cpl_hf_folder(e->hf), key, (long long)id, e->tokenizer_path, (long long)ids - 1);
}

static cpl_status check_fit(const cpl_eval_model *e)
{
    const cpl_hf_tokens *tokens = cpl_hf_tokens_of(e->hf);
    CPL_TRY(check_id(e, "bos_token_id", tokens->bos));
    CPL_TRY(check_id(e, "eos_token_id", tokens->eos));
    for (int64_t i = 0; i < tokens->n_extra_eos; i++)
        CPL_TRY(check_id(e, "eos_token_id", tokens->extra_eos[i]));
    return CPL_OK;
}

cpl_status cpl_eval_model_open(cpl_eval_model *e, const char *model_dir, const char *tokenizer,
                               const cpl_log *log)
{
    cpl_status status = CPL_OK;
    memset(e, 0, sizeof *e);
    CPL_TRY_DONE(cpl_hf_open(&e->hf, model_dir, log));
    CPL_TRY_DONE(
        cpl_hf_load_tokenizer(&e->tokenizer, &e->tokenizer_path, e->hf, tokenizer, "--tokenizer"));
    cpl_tokenizer_warn(e->tokenizer, log);
    CPL_TRY_DONE(check_fit(e));
    const cpl_hf_tokens *tokens = cpl_hf_tokens_of(e->hf);
    const int64_t eos           = tokens->eos;
    e->runner                   = (cpl_eval_runner){.batch     = &e->batch,
                                                    .tokenizer = e->tokenizer,
                                                    .window    = cpl_eval_model_window(e),
                                                    .eos       = eos >= 0 ? eos : cpl_tokenizer_eos(e->tokenizer),
                                                    .extra_stop_ids = {tokens->extra_eos, tokens->n_extra_eos}};
done:
    if (status != CPL_OK) cpl_eval_model_close(e);
    return status;
}

void cpl_eval_model_close(cpl_eval_model *e)
{
    cpl_lm_batch_free(&e->batch);
    cpl_model_free(&e->model);
    cpl_backend_free(&e->be);
    cpl_tokenizer_free(e->tokenizer);
    cpl_free(e->tokenizer_path);
    cpl_hf_close(e->hf);
    memset(e, 0, sizeof *e);
}

int64_t cpl_eval_model_window(const cpl_eval_model *e)
{
    return cpl_hf_config(e->hf)->max_positions;
}

cpl_status cpl_eval_model_load(cpl_eval_model *e, const char *device, cpl_dtype compute,
                               int n_threads, int64_t window)
{
    const cpl_model_settings *config = cpl_hf_config(e->hf);
    const cpl_lm_batch_settings how  = {.window = window};
    CPL_TRY(cpl_backend_open(&e->be, device, compute, n_threads));
    CPL_TRY(cpl_backend_fits(&e->be,
                             (double)cpl_model_bytes(config, e->be.compute, window) +
                                 (double)cpl_lm_batch_bytes(config, &how),
                             "evaluating this model"));
    CPL_TRY(cpl_model_init(&e->model, &e->be, config, window));
    CPL_TRY(cpl_hf_load(e->hf, &e->model));
    return cpl_lm_batch_init(&e->batch, &e->model, &how);
}

/* ---- identity of the model ---- */

cpl_status cpl_eval_model_describe(const cpl_eval_model *e, json_t *settings)
{
    uint64_t weights, bytes, config;
    bool failed = false;
    CPL_TRY(cpl_hf_identify(e->hf, &weights, &bytes, &config));
    const char *folder = cpl_hf_folder(e->hf);
    char *real         = realpath(folder, NULL);
    cpl_json_put(&failed, settings, "tokenizer",
                 json_pack("{s:o,s:o}", "path", cpl_json_words(e->tokenizer_path), "xxh3",
                           cpl_json_hash(cpl_tokenizer_hash(e->tokenizer))));
    cpl_json_put(&failed, settings, "model", cpl_json_words(real ? real : folder));
    cpl_json_put(
        &failed, settings, "weights",
        json_pack("{s:I,s:o}", "bytes", (json_int_t)bytes, "xxh3", cpl_json_hash(weights)));
    cpl_json_put(&failed, settings, "config", cpl_json_hash(config));
    free(real);
    return failed ? CPL_ERR_MEMORY : CPL_OK;
}
