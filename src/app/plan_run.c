/* plan_run.c - see plan_run.h */
#include "app/plan_run.h"

#include "model/aux_losses.h"
#include "model/params.h"
#include "tensor/backend/backend.h"
#include "tokenizer/tokenizer.h"
#include "train/step.h"

enum { VOCABULARY_MULTIPLE = 128 }; /* rows of the embedding: OLMo pads to this */

cpl_dtype cpl_plan_dtype(const cpl_compute_settings *compute)
{
    if (compute->dtype == CPL_DTYPE_AUTO) return cpl_cpu_has_bf16() ? CPL_BF16 : CPL_F32;
    return compute->dtype == CPL_DTYPE_BF16 ? CPL_BF16 : CPL_F32;
}

static cpl_status resolve(cpl_settings *s)
{
    cpl_model_settings *config = &s->model;
    const char *tokenizer_path = s->data.tokenizer;
    if (config->vocab_size == CPL_UNSET && tokenizer_path) {
        cpl_tokenizer *tokenizer = NULL;
        CPL_TRY(cpl_tokenizer_load_given(&tokenizer, tokenizer_path));
        int64_t multiples =
            (cpl_tokenizer_vocab_size(tokenizer) + VOCABULARY_MULTIPLE - 1) / VOCABULARY_MULTIPLE;
        config->vocab_size = multiples * VOCABULARY_MULTIPLE;
        cpl_tokenizer_free(tokenizer);
    }
    CPL_TRY(cpl_model_resolve(config));
    return cpl_aux_resolve(&s->losses, config);
}

/* Sequences computed at once, as the trainer takes them. */
static int64_t micro_of(const cpl_settings *s)
{
    int64_t all = s->data.batch_tokens / s->data.seq_len;
    if (s->train.micro_batch > 0) return s->train.micro_batch;
    return all > 0 ? all : 1;
}

cpl_status cpl_plan_run(cpl_plan *plan, const cpl_settings *settings, const cpl_plan_run_for *what)
{
    cpl_settings s = *settings; /* owned by the caller; only numbers are resolved here */
    CPL_TRY(resolve(&s));
    cpl_plan_input input = {
        .model           = s.model,
        .erc             = s.losses.erc,
        .batch_tokens    = what->batch_tokens ? what->batch_tokens : s.data.batch_tokens,
        .seq_len         = s.data.seq_len,
        .micro_sequences = micro_of(&s),
        .dp              = what->dp,
        .ep              = what->ep,
        .compute         = cpl_plan_dtype(&s.compute),
        .n_threads       = (int)s.compute.threads,
        .keep            = s.checkpoint.keep,
    };
    CPL_TRY(cpl_plan_check_size(&input));
    const cpl_model_settings twin = cpl_plan_twin(&input.model);
    input.step_bytes              = cpl_step_bytes(&s, &input.model, input.micro_sequences);
    input.twin_step_bytes         = cpl_step_bytes(&s, &twin, input.micro_sequences);
    return cpl_plan_make(plan, &input);
}
