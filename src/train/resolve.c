/* resolve.c - settings that follow from others; see loop.h. */
#include "train/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "model/aux_losses.h"
#include "parallel/mesh.h"
#include "tensor/backend/backend.h"
#include "tokenizer/tokenizer.h"
#include "train/data.h"
#include "train/optimizer.h"

enum { VOCABULARY_MULTIPLE = 128 }; /* rows of the embedding are padded to a multiple, as by OLMo */

cpl_status cpl_train_resolve_machine(cpl_settings *s, const cpl_backend *be, int64_t ranks,
                                     bool resumed)
{
    cpl_compute_settings *c = &s->compute;
    const bool chosen       = c->dtype != CPL_DTYPE_AUTO;
    if (!chosen) c->dtype = cpl_backend_has_bf16(be) ? CPL_DTYPE_BF16 : CPL_DTYPE_F32;
    if (c->activations == CPL_DTYPE_AUTO) c->activations = resumed ? CPL_DTYPE_F32 : c->dtype;
    if (c->activations == CPL_DTYPE_BF16 && c->dtype == CPL_DTYPE_F32)
        return CPL_FAIL(CPL_ERR_USAGE,
                        "compute.activations is bf16, but compute.dtype is f32%s: activations are "
                        "bf16 only where products are; set compute.dtype=bf16, or "
                        "compute.activations=f32",
                        chosen ? "" : " (auto on this processor)");
    if (s->losses.balance.scope == CPL_BALANCE_AUTO)
        s->losses.balance.scope = ranks > 1 && !resumed ? CPL_BALANCE_GLOBAL : CPL_BALANCE_MICRO;
    return CPL_OK;
}

void cpl_train_set_activations(cpl_model_settings *model, const cpl_settings *s)
{
    model->activations     = cpl_dtype_chosen(s->compute.activations);
    model->recompute_norms = s->train.recompute == CPL_RECOMPUTE_NORMS;
    model->z_centred       = s->losses.z.form == CPL_Z_CENTRED;
}

/* Appends `word` to the list if it helps. */
static void add_word(char words[160], bool helps, const char *word)
{
    const size_t length = strlen(words);
    if (helps) snprintf(words + length, 160 - length, "%s%s", length ? ", " : "", word);
}

cpl_status cpl_train_advise(const cpl_settings *s, cpl_status status)
{
    char words[160] = "";
    const bool f32  = s->compute.dtype == CPL_DTYPE_F32;
    if (status != CPL_ERR_MEMORY) return status;
    add_word(words, s->train.micro_batch != 1, "a smaller train.micro_batch");
    add_word(words, s->train.recompute != CPL_RECOMPUTE_NORMS, "train.recompute=norms");
    add_word(words, !f32 && s->compute.activations == CPL_DTYPE_F32, "compute.activations=bf16");
    add_word(words, f32, "compute.dtype=bf16");
    add_word(words, !*words, "a smaller model");
    return CPL_FAIL(CPL_ERR_MEMORY, "%s; less take: %s", cpl_last_error(), words);
}

void cpl_train_derive(cpl_settings *s, int64_t ranks)
{
    cpl_erc_settings *erc = &s->losses.erc;
    char lr_min[32]; /* printed and parsed, so that a tenth is the decimal number */
    snprintf(lr_min, sizeof lr_min, "%.12g", cpl_optimizer_lr_min(&s->train));
    s->train.lr_min = strtod(lr_min, NULL);
    s->data.seed    = cpl_train_data_seed(s);
    if (isnan(erc->alpha_start)) erc->alpha_start = erc->alpha;
    if (s->losses.balance.scope == CPL_BALANCE_AUTO) s->losses.balance.scope = CPL_BALANCE_MICRO;
    if (s->compute.activations == CPL_DTYPE_AUTO) s->compute.activations = CPL_DTYPE_F32;
    if (s->train.micro_batch == 0)
        s->train.micro_batch = s->data.batch_tokens / s->data.seq_len / ranks;
    /* Errors are ignored: they are reported where the settings are used. */
    cpl_status status = cpl_model_resolve(&s->model);
    status            = cpl_aux_resolve(&s->losses, &s->model);
    (void)status;
    if (s->model.aoe_init_std == 0) s->model.aoe_init_std = s->model.init_std;
}

cpl_status cpl_train_check_router(const cpl_settings *s)
{
    const bool rows = cpl_router_of(&s->model)->has_rows;
    if (s->train.router_lr != 1 && !rows)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "train.router_lr is %g, but model.router is %s, which has no router rows",
                        s->train.router_lr, cpl_router_of(&s->model)->name);
    if (s->train.router_lr == 0 && s->losses.erc.gradient == CPL_ERC_TO_ROUTER)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "train.router_lr is 0, but erc.gradient is router: the coupling loss would "
                        "train nothing");
    if (s->losses.erc.weight == 0 && s->losses.erc.gradient != CPL_ERC_TO_BOTH)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "erc.gradient is %s, but erc.weight is 0: the coupling loss trains nothing",
                        s->losses.erc.gradient == CPL_ERC_TO_ROUTER ? "router" : "experts");
    if (s->losses.erc.weight == 0 && s->losses.erc.proxy != CPL_PROXY_ROW)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "erc.proxy is %s, but erc.weight is 0: the coupling loss trains nothing",
                        cpl_erc_proxy_name(s->losses.erc.proxy));
    if (s->train.router_lr == 0 && s->losses.orth.weight > 0 && !cpl_router_of(&s->model)->iterates)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "train.router_lr is 0, but orth.weight is %g: the orthogonality loss would "
                        "train nothing",
                        s->losses.orth.weight);
    return CPL_OK;
}

/* Writes the multiples of `unit` tokens around data.batch_tokens, as words, to `out`. */
static const char *nearest_batch(char out[64], const cpl_settings *s, int64_t unit)
{
    const long long less = s->data.batch_tokens / unit * unit, more = less + unit;
    if (less > 0)
        snprintf(out, 64, "%lld or %lld", less, more);
    else
        snprintf(out, 64, "%lld", more);
    return out;
}

static cpl_status check_batch(const cpl_settings *s)
{
    int64_t sequences = s->data.batch_tokens / s->data.seq_len;
    char fitting[64];
    if (s->data.batch_tokens % s->data.seq_len != 0 || sequences == 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.batch_tokens %lld is not a multiple of data.seq_len %lld; %s is",
                        (long long)s->data.batch_tokens, (long long)s->data.seq_len,
                        nearest_batch(fitting, s, s->data.seq_len));
    if (s->train.micro_batch && sequences % s->train.micro_batch != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "train.micro_batch %lld does not divide the %lld sequences of a batch",
                        (long long)s->train.micro_batch, (long long)sequences);
    if (s->data.seq_len > s->model.max_positions)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.seq_len %lld is beyond model.max_position_embeddings %lld",
                        (long long)s->data.seq_len, (long long)s->model.max_positions);
    if (s->train.warmup_steps >= s->train.steps)
        return CPL_FAIL(CPL_ERR_INPUT, "train.warmup_steps %lld leaves nothing of train.steps %lld",
                        (long long)s->train.warmup_steps, (long long)s->train.steps);
    return CPL_OK;
}

cpl_status cpl_train_resolve(cpl_settings *s, const cpl_hf *from, const bool *given)
{
    static const bool none[CPL_N_SETTINGS]; /* section model comes first */
    if (from) {
        CPL_TRY(cpl_hf_config_agrees(&s->model, cpl_hf_config(from), given ? given : none,
                                     cpl_hf_folder(from)));
        s->model = *cpl_hf_config(from); /* copies numbers only, no owned memory */
        if (!s->data.tokenizer) CPL_TRY(cpl_hf_tokenizer_path(&s->data.tokenizer, from));
    }
    CPL_TRY(cpl_train_check_router(s));
    return check_batch(s);
}

cpl_status cpl_train_check_mesh(const cpl_settings *s, int64_t ranks)
{
    CPL_TRY(cpl_mesh_check(ranks, s->dist.expert_parallel, s->model.n_experts));
    if (s->dist.expert_parallel > 1 && !cpl_router_of(&s->model)->has_rows)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "dist.expert_parallel is %lld, but model.router is %s: every token meets "
                        "the gates of all experts",
                        (long long)s->dist.expert_parallel, cpl_router_of(&s->model)->name);
    if (s->dist.expert_parallel > 1 && cpl_router_of(&s->model)->iterates)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "dist.expert_parallel is %lld, but model.router is %s, whose rows follow "
                        "from the gates of all experts",
                        (long long)s->dist.expert_parallel, cpl_router_of(&s->model)->name);
    return CPL_OK;
}

cpl_status cpl_train_check_batch(const cpl_settings *s, int64_t ranks)
{
    const int64_t sequences = s->data.batch_tokens / s->data.seq_len, own = sequences / ranks;
    const int64_t micro = s->train.micro_batch ? s->train.micro_batch : own;
    const int64_t unit  = (s->train.micro_batch ? micro : 1) * ranks * s->data.seq_len;
    char fitting[64];
    if (own == 0 || sequences % ranks != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.batch_tokens is %lld sequences, which do not divide among %lld "
                        "ranks; data.batch_tokens=%s does",
                        (long long)sequences, (long long)ranks, nearest_batch(fitting, s, unit));
    if (own % micro != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "train.micro_batch %lld does not divide the %lld sequences that each of "
                        "%lld ranks has of a batch",
                        (long long)micro, (long long)own, (long long)ranks);
    return CPL_OK;
}

cpl_status cpl_train_resolve_vocabulary(cpl_settings *s, int64_t ids, int64_t eos)
{
    int64_t *rows = &s->model.vocab_size;
    if (*rows == CPL_UNSET && ids > 0)
        *rows = (ids + VOCABULARY_MULTIPLE - 1) / VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE;
    if (*rows != CPL_UNSET && *rows < ids)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the tokenizer has ids up to %lld, but model.vocab_size is %lld",
                        (long long)(ids - 1), (long long)*rows);
    if (*rows != CPL_UNSET && eos >= *rows)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the id that ends documents (data.eos) is %lld, but model.vocab_size is "
                        "%lld",
                        (long long)eos, (long long)*rows);
    CPL_TRY(cpl_model_resolve(&s->model));
    return cpl_aux_resolve(&s->losses, &s->model);
}

/* Returns the absolute path without links, from cpl_alloc. */
static char *absolute(const char *path)
{
    char *real = realpath(path, NULL);
    char *copy = real ? cpl_text_copy(real) : NULL;
    free(real);
    return copy;
}

cpl_status cpl_train_keep_tokenizer(cpl_settings *s, const cpl_hf *from, const cpl_run *run,
                                    bool writes)
{
    cpl_text bytes    = {0};
    cpl_status status = CPL_OK;
    char *theirs = NULL, *kept = NULL;
    CPL_TRY(cpl_hf_tokenizer_path(&theirs, from));
    if (!theirs || strcmp(theirs, s->data.tokenizer) != 0) goto done;
    kept = cpl_run_path(run, "tokenizer.json");
    if (!kept) status = CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_file_read(&bytes, theirs, CPL_TOKEN_FILE_MAX);
    if (status == CPL_OK && writes) status = cpl_file_write_atomic(kept, bytes.bytes, bytes.length);
    if (status == CPL_OK) {
        cpl_free(s->data.tokenizer);
        s->data.tokenizer = absolute(kept);
        if (!s->data.tokenizer) status = CPL_FAIL(CPL_ERR_IO, "%s: cannot be found again", kept);
    }
done:
    cpl_free(theirs);
    cpl_free(kept);
    cpl_text_free(&bytes);
    return status;
}
