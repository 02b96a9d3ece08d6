/* show.c - a plan as a table for people and as JSON; see plan.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "plan/plan.h"
#include "report/markup.h"

/* ---- for people ---- */

/* Writes FLOPs such as "169.9 TFLOP" to `out` and returns `out`. */
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

/* Appends a line with a number of bytes and its sign. */
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

/* Appends the properties that distinguish the model from an OLMoE. */
static void variant_words(cpl_text *out, const cpl_plan *plan)
{
    const cpl_model_settings *c = &plan->input.model;
    char router[96];
    if (!cpl_router_of(c)->is_olmoe) cpl_text_printf(out, ", %s", cpl_router_describe(router, c));
    if (c->d_latent > 0)
        cpl_text_printf(out, ", latent experts of input width %lld", (long long)c->d_latent);
    if (c->n_shared > 0)
        cpl_text_printf(out, ", %lld shared expert%s", (long long)c->n_shared,
                        c->n_shared == 1 ? "" : "s");
}

static void model_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_model_settings *c = &plan->input.model;
    cpl_text_printf(out,
                    "model: %lld layers, width %lld, %lld heads (%lld for keys), %lld experts of "
                    "width %lld, %lld per token, vocabulary %lld%s",
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
    if (cpl_plan_is_aoe(&plan->input.model))
        flops_line(out, "norms of all experts in one layer, beyond that", plan->aoe_extra_flops);
    else
        flops_line(out, "coupling loss of one layer, forward", plan->erc_flops);
    flops_line(out, "whole model, forward, one token", plan->token_forward_flops);
    flops_line(out,
               cpl_plan_is_aoe(&plan->input.model) ? "whole step, forward and backward"
               : input->erc.weight > 0 ? "whole step, forward and backward, coupling included"
                                       : "whole step, forward and backward (erc.weight 0)",
               plan->step_flops);
}

static void coupling_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_plan_input *input = &plan->input;
    cpl_text_printf(
        out, "\ncoupling loss, predicted, on each of %lld rank%s, %lld along the experts\n",
        (long long)input->ranks, input->ranks == 1 ? "" : "s", (long long)input->expert_parallel);
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

static const char *type_name(cpl_dtype type)
{
    return type == CPL_BF16 ? "bf16" : "f32";
}

static void bytes_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_plan_bytes *b = &plan->bytes;
    const int64_t ranks     = plan->input.ranks;
    char whose[64]          = "one process", title[160];
    if (ranks > 1)
        snprintf(whose, sizeof whose, "rank 0 of %lld, where it is largest", (long long)ranks);
    snprintf(title, sizeof title,
             "\nmemory of %s, products in %s, activations in %s, micro-batches of %lld", whose,
             type_name(plan->input.compute), type_name(plan->input.model.activations),
             (long long)plan->input.micro_sequences);
    heading(out, title);
#define CPL_PLAN_PART(name, sentence) bytes_line(out, sentence, b->name);
#define CPL_PLAN_RARE(name, sentence)                                                              \
    if (b->name) bytes_line(out, sentence, b->name);
#include "plan/bytes.def"
    bytes_line(out, "total", b->total);
    if (b->exchange) bytes_line(out, "total, all tokens to the experts of this rank", b->worst);
    if (b->host) bytes_line(out, "besides, in memory of the host", b->host);
    heading(out, "\ndisk");
    bytes_line(out, "one checkpoint", b->checkpoint);
    bytes_line(out, "all that are kept, and one being written", b->disk);
}

static void sent_line(cpl_text *out, const char *name, cpl_sent sent)
{
    char words[32], count[32];
    cpl_text_printf(out, "  %-44s %12s %15s\n", name, cpl_text_bytes(words, (double)sent.bytes),
                    cpl_markup_count(count, sent.messages));
}

static void sent_lines(cpl_text *out, const cpl_plan *plan)
{
    if (plan->input.ranks == 1) return;
    cpl_text_printf(out, "\nsent by it in a step %41s %15s\n", "bytes", "messages");
    for (int i = 0; i < CPL_N_PLAN_TERMS; i++) {
        if (plan->sent[i].messages) sent_line(out, cpl_plan_terms[i].sentence, plan->sent[i]);
        if (i == CPL_PLAN_exchange && plan->sent[i].messages)
            sent_line(out, "  if all go to the experts of this rank", plan->worst_exchange);
    }
}

static void seconds_line(cpl_text *out, const char *name, double seconds)
{
    cpl_text_printf(out, "  %-52s %18.4g s\n", name, seconds);
}

static double exposed(const cpl_plan_time *t)
{
    double sum = 0;
    for (int i = 0; i < CPL_N_PLAN_TERMS; i++) sum += t->exposed[i];
    return sum;
}

static void time_lines(cpl_text *out, const cpl_plan *plan)
{
    const cpl_plan_machine *m = &plan->input.machine;
    const cpl_plan_time *t    = &plan->time;
    if (!(m->flops > 0)) return;
    cpl_text_printf(out, "\ntime of a step, predicted: %.4g GFLOP/s, %.4g GB/s of memory",
                    m->flops / 1e9, m->memory / 1e9);
    if (plan->input.ranks > 1)
        cpl_text_printf(out, " and %.4g Gbit/s a rank, %.4g us a message", m->bandwidth * 8 / 1e9,
                        m->latency * 1e6);
    heading(out, "");
    seconds_line(out, "computation", t->compute);
    if (m->attention > 0) {
        seconds_line(out, "  attention in it", t->attention);
        seconds_line(out, "  passes over memory in it", t->traffic);
    }
    seconds_line(out, "optimizer's update", t->update);
    if (t->copies > 0) seconds_line(out, "packing and summing of messages", t->copies);
    for (int i = 0; i < CPL_N_PLAN_TERMS; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s: of %.3g s", cpl_plan_terms[i].name, t->sent[i]);
        if (plan->sent[i].messages) seconds_line(out, name, t->exposed[i]);
    }
    seconds_line(out, "step", t->step);
    share_line(out, "of it waiting for messages", exposed(t) / t->step);
    cpl_text_printf(out, "  %-52s %20.1f\n", "tokens per second, all ranks",
                    (double)plan->input.batch_tokens / t->step);
    if (plan->input.ranks > 1)
        share_line(out, "efficiency: time of one rank / (ranks x time)", t->efficiency);
}

void cpl_plan_text(cpl_text *out, const cpl_plan *plan)
{
    model_lines(out, plan);
    work_lines(out, plan);
    if (cpl_plan_is_aoe(&plan->input.model))
        aoe_lines(out, plan);
    else
        coupling_lines(out, plan);
    bytes_lines(out, plan);
    sent_lines(out, plan);
    time_lines(out, plan);
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
    json_t *all = json_object();
    bool failed = !all;
#define CPL_PLAN_BYTES(name) cpl_json_put(&failed, all, #name, json_integer((json_int_t)b->name));
#include "plan/bytes.def"
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

/* Returns null on the CPU. */
static json_t *gpu_object(const cpl_plan *plan)
{
    const cpl_plan_gpu *gpu = &plan->gpu;
    if (!gpu->name) return json_null();
    return json_pack("{s:s, s:o, s:o, s:b, s:I}", "name", gpu->name, "memory_bytes",
                     cpl_json_count(floor(gpu->memory)), "free_bytes",
                     cpl_json_count(floor(gpu->free)), "fits", gpu->fits, "largest_micro_batch",
                     (json_int_t)gpu->largest_micro);
}

static json_t *term_object(const cpl_plan *plan, int term)
{
    static const char *const overlaps[] = {"nothing", "backward", "update"};
    const cpl_sent sent                 = plan->sent[term];
    const cpl_sent worst                = term == CPL_PLAN_exchange ? plan->worst_exchange : sent;
    return json_pack("{s:I, s:I, s:I, s:s, s:f, s:f}", "bytes", (json_int_t)sent.bytes, "messages",
                     (json_int_t)sent.messages, "worst_bytes", (json_int_t)worst.bytes,
                     "overlapped_by", overlaps[cpl_plan_terms[term].overlap], "s",
                     plan->time.sent[term], "exposed_s", plan->time.exposed[term]);
}

static json_t *sent_object(const cpl_plan *plan)
{
    json_t *all = json_object();
    bool whole  = all != NULL;
    for (int i = 0; i < CPL_N_PLAN_TERMS; i++)
        whole =
            whole && json_object_set_new(all, cpl_plan_terms[i].name, term_object(plan, i)) == 0;
    if (whole) return all;
    json_decref(all);
    return NULL;
}

/* Returns null if no time is predicted. */
static json_t *time_object(const cpl_plan *plan)
{
    const cpl_plan_machine *m = &plan->input.machine;
    const cpl_plan_time *t    = &plan->time;
    if (!(m->flops > 0)) return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                     "flops_per_second", m->flops, "attention_flops_per_second", m->attention,
                     "attention_s", t->attention, "traffic_s", t->traffic,
                     "memory_bytes_per_second", m->memory, "bytes_per_second", m->bandwidth,
                     "latency_s", m->latency, "compute_s", t->compute, "update_s", t->update,
                     "copies_s", t->copies, "backward_s", t->backward, "step_s", t->step,
                     "tokens_per_second", (double)plan->input.batch_tokens / t->step, "efficiency",
                     t->efficiency);
}

static json_t *shape_object(const cpl_plan *plan)
{
    const cpl_model_settings *c = &plan->input.model;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:b, s:I, s:I, s:I}", "L",
                     (json_int_t)c->n_layers, "d", (json_int_t)c->d_model, "D",
                     (json_int_t)c->d_expert, "H", (json_int_t)c->n_heads, "Hkv",
                     (json_int_t)c->n_kv_heads, "n", (json_int_t)c->n_experts, "K",
                     (json_int_t)c->top_k, "V", (json_int_t)c->vocab_size, "tied", c->tied,
                     "router", cpl_router_of(&plan->input.model)->name, "router_bias",
                     c->router_bias, "n_shared_experts", (json_int_t)c->n_shared, "latent_dim",
                     (json_int_t)c->d_latent, "r", (json_int_t)plan->aoe_rank);
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
        "{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:I, s:I, s:s, s:s, s:b, s:o, s:o, s:I, s:f, "
        "s:f, "
        "s:I, s:o}",
        "T", (json_int_t)input->batch_tokens, "ranks", (json_int_t)input->ranks, "expert_parallel",
        (json_int_t)input->expert_parallel, "data_parallel",
        (json_int_t)(input->ranks / input->expert_parallel), "base_token_equivalents_per_rank",
        plan->base_token_equivalents, "erc_token_equivalents_per_rank", plan->erc_token_equivalents,
        "erc_overhead", plan->erc_overhead, "forward_flops_per_moe_layer", flops_object(plan),
        "seq_len", (json_int_t)input->seq_len, "micro_sequences",
        (json_int_t)input->micro_sequences, "dtype", type_name(input->compute), "activations",
        type_name(input->model.activations), "erc_in_step", input->erc.weight > 0,
        "token_forward_flops", cpl_json_count(plan->token_forward_flops), "step_flops",
        cpl_json_count(plan->step_flops), "coupled_layers", (json_int_t)plan->coupled_layers,
        "erc_share_all_active", plan->erc_share_all_active, "erc_share_none_active",
        plan->erc_share_none_active, "micro_batches", (json_int_t)plan->passes, "rank_flops",
        cpl_json_count(plan->rank_flops));
}

/* Returns null if the model has a router. */
static json_t *extra_object(const cpl_plan *plan)
{
    const cpl_plan_extra *e = &plan->aoe;
    if (!cpl_plan_is_aoe(&plan->input.model)) return json_null();
    return json_pack("{s:I, s:o, s:f, s:I, s:I, s:I, s:I, s:f}", "extra_parameters",
                     (json_int_t)e->parameters, "extra_step_flops", cpl_json_count(e->step_flops),
                     "extra_share_of_step", e->share_of_step, "extra_model_bytes",
                     (json_int_t)e->model_bytes, "extra_run_bytes", (json_int_t)e->run_bytes,
                     "extra_step_bytes", (json_int_t)e->step_bytes, "extra_total_bytes",
                     (json_int_t)e->total_bytes, "extra_share_of_bytes", e->share_of_bytes);
}

/* Moves the members of `part` (may be NULL) to the end of `whole`. Returns false if memory is not
 * available. */
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
    bool sent  = whole && json_object_set_new(whole, "sent", sent_object(plan)) == 0;
    bool time  = whole && json_object_set_new(whole, "time", time_object(plan)) == 0;
    bool gpu   = whole && json_object_set_new(whole, "gpu", gpu_object(plan)) == 0;
    if (counts && work && bytes && sent && time && gpu && extra) return whole;
    json_decref(whole);
    return NULL;
}
