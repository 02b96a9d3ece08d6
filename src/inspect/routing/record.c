/* record.c - see record.h */
#include "inspect/routing/record.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"

cpl_status cpl_routing_record_init(cpl_routing_record *r, const cpl_model_settings *config,
                                   int64_t n_tokens)
{
    const size_t layers = (size_t)config->n_layers, experts = (size_t)config->n_experts;
    memset(r, 0, sizeof *r);
    r->n_layers  = config->n_layers;
    r->n_tokens  = n_tokens;
    r->n_experts = config->n_experts;
    r->top_k     = config->top_k;
    r->choice    = cpl_alloc(layers * (size_t)(n_tokens * r->top_k) * sizeof *r->choice);
    r->weight    = cpl_alloc(layers * experts * sizeof *r->weight);
    r->entropy   = cpl_alloc(layers * sizeof *r->entropy);
    if (!r->choice || !r->weight || !r->entropy) {
        cpl_routing_record_free(r);
        return CPL_ERR_MEMORY;
    }
    memset(r->weight, 0, layers * experts * sizeof *r->weight);
    memset(r->entropy, 0, layers * sizeof *r->entropy);
    return CPL_OK;
}

void cpl_routing_record_free(cpl_routing_record *r)
{
    cpl_free(r->choice);
    cpl_free(r->weight);
    cpl_free(r->entropy);
    memset(r, 0, sizeof *r);
}

const int32_t *cpl_routing_record_at(const cpl_routing_record *r, int64_t layer, int64_t token)
{
    return r->choice + (layer * r->n_tokens + token) * r->top_k;
}

/* Of scores over their sum; 0 where all are 0. */
static double entropy_of(const float *scores, int64_t n)
{
    double sum = 0, sum_log = 0;
    for (int64_t e = 0; e < n; e++) {
        double p = (double)scores[e];
        if (p <= 0) continue;
        sum += p;
        sum_log += p * log(p);
    }
    return sum > 0 ? log(sum) - sum_log / sum : 0;
}

void cpl_routing_record_add(cpl_routing_record *r, int64_t layer, const cpl_moe_kept *kept,
                            const int64_t *place, int64_t count)
{
    const int64_t n = r->n_experts, k = r->top_k;
    const int32_t *expert = cpl_i32(kept->expert);
    const float *weight = cpl_f32(kept->weight), *scores = cpl_f32(kept->probs);
    for (int64_t t = 0; t < count; t++) {
        if (place[t] < 0) continue;
        memcpy(r->choice + (layer * r->n_tokens + place[t]) * k, expert + t * k,
               (size_t)k * sizeof *expert);
        for (int64_t i = 0; i < k; i++)
            r->weight[layer * n + expert[t * k + i]] += (double)weight[t * k + i];
        r->entropy[layer] += entropy_of(scores + t * n, n);
    }
}

void cpl_routing_saturation(double *topk, double *top1, const cpl_routing_record *a,
                            const cpl_routing_record *b, int64_t layer)
{
    int64_t shared = 0, first = 0;
    CPL_ASSERT(a->n_tokens == b->n_tokens && a->top_k == b->top_k && a->n_layers == b->n_layers);
    for (int64_t t = 0; t < a->n_tokens; t++) {
        const int32_t *x = cpl_routing_record_at(a, layer, t);
        const int32_t *y = cpl_routing_record_at(b, layer, t);
        first += x[0] == y[0];
        for (int64_t i = 0; i < a->top_k; i++)
            for (int64_t j = 0; j < a->top_k; j++) shared += x[i] == y[j];
    }
    *topk = (double)shared / (double)(a->n_tokens * a->top_k);
    *top1 = (double)first / (double)a->n_tokens;
}

/* ---- tokens ---- */

cpl_status cpl_routing_tokens_init(cpl_routing_tokens *t, const cpl_texts *texts)
{
    const size_t count = (size_t)texts->n_predictions;
    t->count           = texts->n_predictions;
    t->n_sources       = texts->sources.count;
    t->input           = cpl_alloc(count * sizeof *t->input);
    t->next            = cpl_alloc(count * sizeof *t->next);
    t->source          = cpl_alloc(count * sizeof *t->source);
    if (!t->input || !t->next || !t->source) {
        cpl_routing_tokens_free(t);
        return CPL_ERR_MEMORY;
    }
    for (int64_t i = 0; i < texts->n_documents; i++)
        for (int64_t k = 0; k < texts->documents[i].predictions; k++) {
            int64_t at    = texts->documents[i].place + k;
            t->input[at]  = cpl_texts_input(texts, i, k);
            t->next[at]   = cpl_texts_target(texts, i, k);
            t->source[at] = (int32_t)texts->documents[i].source;
        }
    return CPL_OK;
}

void cpl_routing_tokens_free(cpl_routing_tokens *t)
{
    cpl_free(t->input);
    cpl_free(t->next);
    cpl_free(t->source);
    memset(t, 0, sizeof *t);
}
