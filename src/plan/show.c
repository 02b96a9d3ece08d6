/* show.c - a plan as a table for people and as JSON; see plan.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "plan/plan.h"
#include "report/markup.h"

/* ---- for people ---- */

static bool is_aoe(const cpl_plan *plan)
{
    return cpl_router_of(&plan->input.model)->scores == CPL_SCORES_NORMS;
}

/* "169.9 TFLOP" into `out`, which is returned. */
static const char *flops_in_words(char out[32], double flops)
{
    static const char *const prefix[] = {"", "k", "M", "G", "T", "P", "E", "Z", "Y"};
    size_t i                          = 0;
    while (flops >= 1000 && i + 1 < sizeof prefix / sizeof *prefix) {
        flops /= 1000;
        i++;
    }
    snprintf(out, 32, "%.4g %sFLOP", flops, prefix[i]);
    return out;
}

static void heading(cpl_text *out, const char *title)
{
    cpl_text_printf(out, "%s\n", title);
}

static void count_line(cpl_text *out, const char *name, int64_t number)
{
    char words[32];
    cpl_text_printf(out, "  %-52s %20s\n", name, cpl_markup_count(words, number));
}

static void flops_line(cpl_text *out, const char *name, double flops)
{
    char words[32];
    cpl_text_printf(out, "  %-52s %20s\n", name, flops_in_words(words, flops));
}

static void bytes_line(cpl_text *out, const char *name, size_t bytes)
{
    char words[32];
    cpl_text_printf(out, "  %-52s %20s\n", name, cpl_text_bytes(words, (double)bytes));
}

/* With its sign. */
static void more_bytes_line(cpl_text *out, const char *name, int64_t bytes)
{
    char words[32];
    cpl_text_printf(out, "  %-52s %11s%9s\n", name, bytes < 0 ? "-" : "+",
                    cpl_text_bytes(words, fabs((double)bytes)));
}

static void share_line(cpl_text *out, const char *name, double share)
{
    cpl_text_printf(out, "  %-52s %18.4f %%\n", name, 100 * share);
}

/* What distinguishes the model from OLMoE's kind. */
static void variant_words(cpl_text *out, const cpl_plan *plan)
{
    const cpl_model_settings *c = &plan->input.model;
    char router[96];
    if (!cpl_router_of(c)->is_olmoe) cpl_text_printf(out, ", %s", cpl_router_describe(router, c));
    if (c->n_shared > 0)
        cpl_text_printf(out, ", %lld shared expert%s", (long long)c->n_shared,
                        c->n_shared == 1 ? "" : "s");
}

static void model_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_model_settings *c = &plan->input.model;
    cpl_text_printf(out,
                    "model: %lld layers, width %lld, %lld heads (%lld for keys), %lld experts of "
                    "width %lld, %lld a token, vocabulary %lld%s",
                    (long long)c->n_layers, (long long)c->d_model, (long long)c->n_heads,
                    (long long)c->n_kv_heads, (long long)c->n_experts, (long long)c->d_expert,
                    (long long)c->top_k, (long long)c->vocab_size, c->tied ? ", tied head" : "");
    variant_words(out, plan);
    heading(out, "\n\nparameters");
    count_line(out, "total", plan->total_parameters);
    count_line(out, "active for a token, as OLMoE counts", plan->active_parameters);
    count_line(out, "  without the input embedding", plan->active_without_input_embedding);
    count_line(out, "  without embedding and head", plan->active_without_embedding_and_head);
}

static void work_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_plan_input *input = &plan->input;
    char tokens[32];
    cpl_text_printf(out, "\nwork of a step of %s tokens, sequences of %lld\n",
                    cpl_markup_count(tokens, input->batch_tokens), (long long)input->seq_len);
    flops_line(out, "experts of one layer, forward", plan->base_flops);
    if (is_aoe(plan))
        flops_line(out, "norms of all experts in one layer, beyond that", plan->aoe_extra_flops);
    else
        flops_line(out, "coupling loss of one layer, forward", plan->erc_flops);
    flops_line(out, "whole model, forward, one token", plan->token_forward_flops);
    flops_line(out,
               is_aoe(plan)            ? "whole step, forward and backward"
               : input->erc.weight > 0 ? "whole step, forward and backward, coupling included"
                                       : "whole step, forward and backward (erc.weight 0)",
               plan->step_flops);
}

static void coupling_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_plan_input *input = &plan->input;
    cpl_text_printf(out,
                    "\ncoupling loss, predicted, on each of %lld x %lld (data x expert) devices\n",
                    (long long)input->dp, (long long)input->ep);
    cpl_text_printf(out, "  %-52s %20.1f\n", "tokens through one expert: the text's own",
                    plan->base_token_equivalents);
    cpl_text_printf(out, "  %-52s %20.1f\n", "tokens through one expert: the proxies'",
                    plan->erc_token_equivalents);
    share_line(out, "overhead over the experts' work", plan->erc_overhead);
    if (!(input->erc.weight > 0)) return;
    cpl_text_printf(out, "  %-52s %13lld of %lld\n", "layers that have it (erc.layers)",
                    (long long)plan->coupled_layers, (long long)input->model.n_layers);
    share_line(out, "share of the step, every hinge active (3 products)",
               plan->erc_share_all_active);
    share_line(out, "share of the step, no hinge active (1 product)", plan->erc_share_none_active);
}

static void aoe_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_plan_extra *extra = &plan->aoe;
    heading(out, "\nAutonomy-of-Experts, predicted, and the same model with a softmax router");
    cpl_text_printf(out,
                    "  Autonomy-of-Experts adds %.1f %% to the step's work and %.1f %% to the "
                    "memory\n",
                    100 * extra->share_of_step, 100 * extra->share_of_bytes);
    more_bytes_line(out, "model", extra->model_bytes);
    more_bytes_line(out, "run", extra->run_bytes);
    more_bytes_line(out, "step", extra->step_bytes);
    more_bytes_line(out, "total", extra->total_bytes);
}

static void bytes_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_plan_bytes *b = &plan->bytes;
    char title[128];
    snprintf(title, sizeof title, "\nmemory of one process, products in %s, micro-batches of %lld",
             plan->input.compute == CPL_BF16 ? "bf16" : "f32",
             (long long)plan->input.micro_sequences);
    heading(out, title);
    bytes_line(out, "model: weights", b->weights);
    bytes_line(out, "model: bf16 copies", b->compute_copies);
    bytes_line(out, "run:   gradients", b->gradients);
    bytes_line(out, "run:   moments", b->moments);
    bytes_line(out, "step:  activations", b->activations);
    bytes_line(out, "step:  coupling loss and its figures", b->coupling);
    bytes_line(out, "step:  kernels' scratch", b->scratch);
    bytes_line(out, "total", b->total);
    heading(out, "\ndisk");
    bytes_line(out, "one checkpoint", b->checkpoint);
    bytes_line(out, "all that are kept, and one being written", b->disk);
}

void cpl_plan_text(cpl_text *out, const cpl_plan *plan)
{
    model_lines(out, plan);
    work_lines(out, plan);
    if (is_aoe(plan))
        aoe_lines(out, plan);
    else
        coupling_lines(out, plan);
    bytes_lines(out, plan);
}

/* ---- for programs ---- */

static json_t *flops_object(const cpl_plan *plan)
{
    return json_pack("{s:o, s:o, s:o}", "base", cpl_json_count(plan->base_flops), "erc",
                     cpl_json_count(plan->erc_flops), "aoe_extra",
                     cpl_json_count(plan->aoe_extra_flops));
}

static json_t *bytes_object(const cpl_plan_bytes *b)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "weights",
                     (json_int_t)b->weights, "compute_copies", (json_int_t)b->compute_copies,
                     "gradients", (json_int_t)b->gradients, "moments", (json_int_t)b->moments,
                     "activations", (json_int_t)b->activations, "coupling", (json_int_t)b->coupling,
                     "scratch", (json_int_t)b->scratch, "total", (json_int_t)b->total, "checkpoint",
                     (json_int_t)b->checkpoint, "disk", (json_int_t)b->disk);
}

static json_t *shape_object(const cpl_plan *plan)
{
    const cpl_model_settings *c = &plan->input.model;
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:b, s:I, s:I}", "L",
        (json_int_t)c->n_layers, "d", (json_int_t)c->d_model, "D", (json_int_t)c->d_expert, "H",
        (json_int_t)c->n_heads, "Hkv", (json_int_t)c->n_kv_heads, "n", (json_int_t)c->n_experts,
        "K", (json_int_t)c->top_k, "V", (json_int_t)c->vocab_size, "tied", c->tied, "router",
        cpl_router_of(&plan->input.model)->name, "router_bias", c->router_bias, "n_shared_experts",
        (json_int_t)c->n_shared, "r", (json_int_t)plan->aoe_rank);
}

static json_t *counts_object(const cpl_plan *plan)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I}", "total_parameters", (json_int_t)plan->total_parameters,
        "active_parameters", (json_int_t)plan->active_parameters, "active_without_input_embedding",
        (json_int_t)plan->active_without_input_embedding, "active_without_embedding_and_head",
        (json_int_t)plan->active_without_embedding_and_head);
}

static json_t *work_object(const cpl_plan *plan)
{
    const cpl_plan_input *input = &plan->input;
    return json_pack(
        "{s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:I, s:I, s:s, s:b, s:o, s:o, s:I, s:f, s:f}", "T",
        (json_int_t)input->batch_tokens, "dp", (json_int_t)input->dp, "ep", (json_int_t)input->ep,
        "base_token_equivalents_per_device", plan->base_token_equivalents,
        "erc_token_equivalents_per_device", plan->erc_token_equivalents, "erc_overhead",
        plan->erc_overhead, "forward_flops_per_moe_layer", flops_object(plan), "seq_len",
        (json_int_t)input->seq_len, "micro_sequences", (json_int_t)input->micro_sequences, "dtype",
        input->compute == CPL_BF16 ? "bf16" : "f32", "erc_in_step", input->erc.weight > 0,
        "token_forward_flops", cpl_json_count(plan->token_forward_flops), "step_flops",
        cpl_json_count(plan->step_flops), "coupled_layers", (json_int_t)plan->coupled_layers,
        "erc_share_all_active", plan->erc_share_all_active, "erc_share_none_active",
        plan->erc_share_none_active);
}

/* null if the model has a router. */
static json_t *extra_object(const cpl_plan *plan)
{
    const cpl_plan_extra *e = &plan->aoe;
    if (!is_aoe(plan)) return json_null();
    return json_pack("{s:I, s:o, s:f, s:I, s:I, s:I, s:I, s:f}", "extra_parameters",
                     (json_int_t)e->parameters, "extra_step_flops", cpl_json_count(e->step_flops),
                     "extra_share_of_step", e->share_of_step, "extra_model_bytes",
                     (json_int_t)e->model_bytes, "extra_run_bytes", (json_int_t)e->run_bytes,
                     "extra_step_bytes", (json_int_t)e->step_bytes, "extra_total_bytes",
                     (json_int_t)e->total_bytes, "extra_share_of_bytes", e->share_of_bytes);
}

/* Moves the members of `part` (may be NULL) to the end of `whole`; false: no memory. */
static bool join(json_t *whole, json_t *part)
{
    bool done = whole && part && json_object_update(whole, part) == 0;
    json_decref(part);
    return done;
}

json_t *cpl_plan_json(const cpl_plan *plan)
{
    json_t *whole = shape_object(plan);
    bool counts = join(whole, counts_object(plan)), work = join(whole, work_object(plan));
    bool bytes = whole && json_object_set_new(whole, "bytes", bytes_object(&plan->bytes)) == 0;
    bool extra = whole && json_object_set_new(whole, "aoe_beside_softmax", extra_object(plan)) == 0;
    if (counts && work && bytes && extra) return whole;
    json_decref(whole);
    return NULL;
}
