/* hf_tensors.c - checks the tensors of a directory, see internal.h */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "model/params.h"
#include "store/internal.h"

int64_t cpl_hf_number_behind(const char *name, const char *part)
{
    const char *at = strstr(name, part);
    return at && at[strlen(part)] >= '0' && at[strlen(part)] <= '9'
               ? (int64_t)strtoll(at + strlen(part), NULL, 10)
               : -1;
}

/* Returns the fused gate and up matrices of layer l, or NULL if each expert has its own tensors. */
static const cpl_stored *fused_gate_up(const cpl_stored_files *weights, int64_t l)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.gate_up_proj", (long long)l);
    return cpl_stored_find(weights, name);
}

/* Returns whether the model uses the tensor, or the tensor holds frequencies of rotary angles. */
static bool is_expected(const cpl_stored_files *weights, const cpl_model_settings *config,
                        const char *name)
{
    const int64_t l        = cpl_hf_number_behind(name, "model.layers."),
                  e        = cpl_hf_number_behind(name, ".experts.");
    const bool is_fused    = l >= 0 && fused_gate_up(weights, l);
    cpl_model_settings one = *config; /* with one layer, since all layers have equal tensors */
    char wanted[128];
    one.n_layers = 1;
    for (int64_t i = 0; i < cpl_params_count(&one); i++) {
        cpl_param p = cpl_params_at(&one, i);
        if ((p.layer >= 0) != (l >= 0) || p.per_expert != (e >= 0) || (e >= 0 && is_fused))
            continue;
        p.layer = l;
        cpl_param_name(wanted, &p, e);
        if (strcmp(wanted, name) == 0) return true;
    }
    snprintf(wanted, sizeof wanted, "model.layers.%lld.mlp.experts.down_proj", (long long)l);
    return (is_fused && (fused_gate_up(weights, l)->name == name || strcmp(wanted, name) == 0)) ||
           (config->tied && strcmp(name, CPL_HF_HEAD) == 0) || strstr(name, "rotary_emb.inv_freq");
}

/* Refuses tensors of layers or experts beyond the configuration, which belong to another model. */
static cpl_status refuse_surplus(const cpl_stored_files *weights, const cpl_model_settings *config,
                                 const char *name)
{
    const int64_t l = cpl_hf_number_behind(name, "model.layers."),
                  e = cpl_hf_number_behind(name, ".experts.");
    if (l >= config->n_layers)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "%s has tensor %s of layer %lld, but config.json says num_hidden_layers %lld",
            weights->source, name, (long long)l, (long long)config->n_layers);
    if (e >= config->n_experts)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s has tensor %s of expert %lld, but config.json says num_experts %lld",
                        weights->source, name, (long long)e, (long long)config->n_experts);
    return CPL_OK;
}

cpl_status cpl_hf_judge_tensors(const cpl_model_settings *config, const cpl_stored_files *weights,
                                const cpl_log *log)
{
    const char *first = NULL;
    int64_t count     = 0;
    for (int64_t i = 0; i < weights->count; i++) {
        const char *name = weights->tensors[i].name;
        if (!weights->tensors[i].entry) continue; /* the tensor is only in the index */
        CPL_TRY(refuse_surplus(weights, config, name));
        if (!is_expected(weights, config, name) && count++ == 0) first = name;
    }
    if (count)
        cpl_log_warn(log,
                     "%s: the model that config.json describes has no use for %lld of the tensors, "
                     "which are passed over: %.200s%s",
                     weights->source, (long long)count, first, count > 1 ? ", ..." : "");
    return CPL_OK;
}

/* Sets *same to whether the two tensors have equal shapes and numbers. */
static cpl_status have_same_numbers(bool *same, const cpl_stored *a, const cpl_stored *b)
{
    enum { AT_ONCE = 1 << 16 };
    cpl_status status = CPL_OK;
    float *x = cpl_alloc(AT_ONCE * sizeof *x), *y = cpl_alloc(AT_ONCE * sizeof *y);
    *same = a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
    if (!x || !y) CPL_TRY_DONE(CPL_ERR_MEMORY);
    for (int64_t at = 0; at < a->n_elements && *same; at += AT_ONCE) {
        const int64_t left = a->n_elements - at, count = left < AT_ONCE ? left : AT_ONCE;
        CPL_TRY_DONE(cpl_stored_read_part_f32(a, x, at, count));
        CPL_TRY_DONE(cpl_stored_read_part_f32(b, y, at, count));
        *same = memcmp(x, y, (size_t)count * sizeof *x) == 0;
    }
done:
    cpl_free(x);
    cpl_free(y);
    return status;
}

cpl_status cpl_hf_settle_tied(cpl_model_settings *config, bool *head_is_embed,
                              const cpl_stored_files *weights, const cpl_log *log)
{
    const cpl_stored *head  = cpl_stored_find(weights, CPL_HF_HEAD),
                     *embed = cpl_stored_find(weights, CPL_HF_EMBED);
    *head_is_embed          = false;
    if (!config->tied || !head || !head->entry) return CPL_OK;
    *head_is_embed = !embed || !embed->entry;
    if (*head_is_embed) return CPL_OK;
    bool same;
    CPL_TRY(have_same_numbers(&same, head, embed));
    config->tied = same;
    if (!same)
        cpl_log_warn(log,
                     "%s: tie_word_embeddings of config.json is true, but " CPL_HF_HEAD
                     " and " CPL_HF_EMBED
                     " differ: the head is not tied, as in Transformers; set the key to false",
                     weights->source);
    return CPL_OK;
}
