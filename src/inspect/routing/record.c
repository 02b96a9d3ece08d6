/* record.c - see record.h */
#include "inspect/routing/record.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/stats/correlation.h"
#include "model/settings.h"

cpl_status cpl_routing_record_init(cpl_routing_record *r, cpl_pool *pool,
                                   const cpl_model_settings *config, int64_t n_tokens)
{
    const size_t layers = (size_t)config->n_layers, experts = (size_t)config->n_experts;
    const size_t choices = (size_t)(n_tokens * config->top_k);
    r->n_layers          = config->n_layers;
    r->n_tokens          = n_tokens;
    r->n_experts         = config->n_experts;
    r->top_k             = config->top_k;
    r->choice            = cpl_pool_take(pool, layers * choices * sizeof *r->choice);
    r->weight            = cpl_pool_take(pool, layers * experts * sizeof *r->weight);
    r->entropy           = cpl_pool_take(pool, layers * sizeof *r->entropy);
    return cpl_pool_status(pool);
}

const int32_t *cpl_routing_record_at(const cpl_routing_record *r, int64_t layer, int64_t token)
{
    return r->choice + (layer * r->n_tokens + token) * r->top_k;
}

/* Of scores over their sum; 0 if all are 0. */
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

/* ---- what one batch adds, as a text that goes to all ranks ---- */

/* Of a token in one layer; its K experts and their K weights follow, of a sample its K experts, n
 * scores and n answers. Or of all samples of a batch: d doubles, the sum of their x. */
typedef struct entry {
    int64_t place;
    int32_t layer;
    enum { A_TOKEN, A_SAMPLE, A_SUM } kind;
    double entropy;
} entry;

/* Rounded up to 8. */
static int64_t entry_bytes(const cpl_routing_record *r, bool sample)
{
    const int64_t numbers = r->top_k + (sample ? 2 * r->n_experts : r->top_k);
    return (int64_t)sizeof(entry) + (4 * numbers + 7) / 8 * 8;
}

/* Appends the head, and three runs of numbers. */
static void write_entry(cpl_text *out, const entry *head, const int32_t *expert, int64_t k,
                        const float *a, const float *b, int64_t n)
{
    static const float padding = 0;
    cpl_text_append(out, head, sizeof *head);
    cpl_text_append(out, expert, (size_t)k * sizeof *expert);
    cpl_text_append(out, a, (size_t)n * sizeof *a);
    if (b) cpl_text_append(out, b, (size_t)n * sizeof *b);
    if ((k + n + (b ? n : 0)) % 2) cpl_text_append(out, &padding, sizeof padding);
}

void cpl_routing_record_write(cpl_text *out, const cpl_routing_record *r, int64_t layer,
                              const cpl_moe_kept *kept, const int64_t *place, int64_t count)
{
    const int64_t n = r->n_experts, k = r->top_k;
    for (int64_t t = 0; t < count; t++) {
        if (place[t] < 0) continue;
        const entry head = {place[t], (int32_t)layer, A_TOKEN,
                            entropy_of(cpl_f32(kept->probs) + t * n, n)};
        write_entry(out, &head, cpl_i32(kept->expert) + t * k, k, cpl_f32(kept->weight) + t * k,
                    NULL, k);
    }
}

int64_t cpl_routing_record_add(cpl_routing_record *r, const char *text)
{
    const entry *head     = (const entry *)(const void *)text;
    const int32_t *expert = (const int32_t *)(const void *)(head + 1);
    const float *weight   = (const float *)(const void *)(expert + r->top_k);
    const int64_t token   = head->layer * r->n_tokens + head->place;
    if (head->kind != A_TOKEN) return 0;
    memcpy(r->choice + token * r->top_k, expert, (size_t)r->top_k * sizeof *expert);
    for (int64_t i = 0; i < r->top_k; i++)
        r->weight[head->layer * r->n_experts + expert[i]] += (double)weight[i];
    r->entropy[head->layer] += head->entropy;
    return entry_bytes(r, false);
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

cpl_status cpl_routing_tokens_init(cpl_routing_tokens *t, cpl_pool *pool, const cpl_texts *texts)
{
    const size_t count = (size_t)texts->n_predictions;
    t->count           = texts->n_predictions;
    t->n_sources       = texts->sources.count;
    t->input           = cpl_pool_take(pool, count * sizeof *t->input);
    t->next            = cpl_pool_take(pool, count * sizeof *t->next);
    t->source          = cpl_pool_take(pool, count * sizeof *t->source);
    CPL_TRY(cpl_pool_status(pool));
    for (int64_t i = 0; i < texts->n_documents; i++)
        for (int64_t k = 0; k < texts->documents[i].predictions; k++) {
            int64_t at    = texts->documents[i].place + k;
            t->input[at]  = cpl_texts_input(texts, i, k);
            t->next[at]   = cpl_texts_target(texts, i, k);
            t->source[at] = (int32_t)texts->documents[i].source;
        }
    return CPL_OK;
}

/* ---- the reading ---- */

bool cpl_routing_is_sampled(int64_t place, int64_t sampled, int64_t all)
{
    return (place + 1) * sampled / all > place * sampled / all;
}

/* The state of one reading. Answers are those of at most `room` tokens at a time. */
typedef struct work {
    cpl_routing_record *record;
    cpl_routing_agreement *agreement;
    cpl_reader *reader;
    int64_t sampled, all, room;
    float *rows, *products, *answers; /* [room,d], [room,D], [n,room] */
    float *logits;                    /* [room,n] of a router with rows */
    double *sum;                      /* [d] of the rows of a batch */
    float *hidden;                    /* [room,r] of factorised gates; r = 0: they are whole */
    int64_t *tokens;                  /* [room] of the batch */
    float *own;                       /* [n] the answers to one token */
    double *score, *answer;           /* [n] */
    void *scratch;
} work;

static cpl_status take_memory(work *w, const cpl_model_settings *c)
{
    const size_t room = (size_t)w->room, n = (size_t)c->n_experts;
    w->rows     = cpl_alloc(room * (size_t)c->d_model * sizeof(float));
    w->products = cpl_alloc(room * (size_t)c->d_expert * sizeof(float));
    w->hidden   = cpl_alloc(room * (size_t)cpl_router_gate_rank(c) * sizeof(float) + 1);
    w->answers  = cpl_alloc(room * n * sizeof(float));
    w->logits   = cpl_alloc(room * n * sizeof(float));
    w->sum      = cpl_alloc((size_t)c->d_model * sizeof *w->sum);
    w->tokens   = cpl_alloc(room * sizeof *w->tokens);
    w->own      = cpl_alloc(n * sizeof *w->own);
    w->score    = cpl_alloc(2 * n * sizeof(double));
    w->scratch  = cpl_alloc(cpl_correlation_scratch((int64_t)n));
    w->answer   = w->score ? w->score + n : NULL;
    return w->rows && w->products && w->hidden && w->answers && w->logits && w->sum && w->tokens &&
                   w->own && w->score && w->scratch
               ? CPL_OK
               : CPL_ERR_MEMORY;
}

static void free_memory(work *w)
{
    cpl_free(w->rows);
    cpl_free(w->products);
    cpl_free(w->hidden);
    cpl_free(w->answers);
    cpl_free(w->logits);
    cpl_free(w->sum);
    cpl_free(w->tokens);
    cpl_free(w->own);
    cpl_free(w->score);
    cpl_free(w->scratch);
}

/* The logits of the `count` gathered tokens; without router rows the scores. */
static void gather_logits(work *w, const cpl_layer_params *layer, const cpl_moe_kept *kept,
                          int64_t count)
{
    const cpl_model_settings *c = &w->reader->model.config;
    const size_t n              = (size_t)c->n_experts;
    if (cpl_routing_has_router(layer))
        w->reader->be.ops->gemm_f32(
            &w->reader->be, cpl_tensor_2d(w->logits, CPL_F32, count, c->n_experts), CPL_AS_IS,
            cpl_tensor_2d(w->rows, CPL_F32, count, c->d_model), CPL_TRANSPOSED, layer->router, 0);
    for (int64_t s = 0; s < count && !cpl_routing_has_router(layer); s++)
        memcpy(w->logits + (size_t)s * n, cpl_f32(kept->probs) + (size_t)w->tokens[s] * n,
               n * sizeof(float));
}

static void write_sum(work *w, cpl_text *out, int64_t layer, int64_t count)
{
    const entry head = {.layer = (int32_t)layer, .kind = A_SUM};
    const int64_t d  = w->reader->model.config.d_model;
    memset(w->sum, 0, (size_t)d * sizeof *w->sum);
    for (int64_t s = 0; s < count; s++)
        for (int64_t k = 0; k < d; k++) w->sum[k] += (double)w->rows[s * d + k];
    cpl_text_append(out, &head, sizeof head);
    cpl_text_append(out, w->sum, (size_t)d * sizeof *w->sum);
}

/* Writes the experts' answers to the `count` gathered tokens, and the router's scores and choices
 * for them. */
static void write_answers(work *w, cpl_text *out, int64_t layer, const cpl_reader_batch *batch,
                          const cpl_moe_kept *kept, int64_t count)
{
    const cpl_model_settings *c = &w->reader->model.config;
    const cpl_layer_params *own = &w->reader->model.master.layer[layer];
    const int64_t n             = c->n_experts;
    cpl_tensor answers          = cpl_tensor_2d(w->answers, CPL_F32, n, count);
    gather_logits(w, own, kept, count);
    cpl_routing_respond(&w->reader->be, answers, own,
                        cpl_tensor_2d(w->rows, CPL_F32, count, c->d_model),
                        cpl_tensor_2d(w->products, CPL_F32, count, c->d_expert),
                        cpl_tensor_2d(w->hidden, CPL_F32, count, cpl_router_gate_rank(c)));
    for (int64_t s = 0; s < count; s++) {
        const entry head = {batch->place[w->tokens[s]], (int32_t)layer, A_SAMPLE, 0};
        for (int64_t e = 0; e < n; e++) w->own[e] = w->answers[e * count + s];
        write_entry(out, &head, cpl_i32(kept->expert) + w->tokens[s] * c->top_k, c->top_k,
                    w->logits + s * n, w->own, n);
    }
    write_sum(w, out, layer, count);
}

static int64_t add_sum(cpl_routing_agreement *a, const entry *head)
{
    const double *sum = (const double *)(const void *)(head + 1);
    for (int64_t k = 0; k < a->d; k++) a->row[k] += sum[k];
    return (int64_t)sizeof *head + a->d * (int64_t)sizeof *sum;
}

/* Returns its bytes. */
static int64_t add_answer(work *w, const char *text)
{
    const cpl_routing_record *r = w->record;
    const entry *head           = (const entry *)(const void *)text;
    cpl_routing_agreement *a    = &w->agreement[head->layer];
    const int32_t *expert       = (const int32_t *)(const void *)(head + 1);
    const float *score          = (const float *)(const void *)(expert + r->top_k);
    if (head->kind == A_SUM) return add_sum(a, head);
    for (int64_t e = 0; e < r->n_experts; e++) {
        w->score[e]  = (double)score[e];
        w->answer[e] = (double)score[r->n_experts + e];
    }
    cpl_routing_agreement_add(a, w->score, w->answer, expert, w->scratch);
    if (a->samples.room)
        cpl_routing_samples_add(&a->samples, head->place, score, score + r->n_experts);
    return entry_bytes(r, true);
}

static void sample(work *w, const cpl_reader_batch *batch, int64_t layer, const cpl_moe_kept *kept)
{
    const int64_t d = w->reader->model.config.d_model;
    int64_t count   = 0;
    for (int64_t t = 0; t < batch->rows * batch->length; t++) {
        if (batch->place[t] < 0 || !cpl_routing_is_sampled(batch->place[t], w->sampled, w->all))
            continue;
        memcpy(w->rows + count * d, cpl_f32(kept->b) + t * d, (size_t)d * sizeof(float));
        w->tokens[count++] = t;
        if (count < w->room) continue;
        write_answers(w, batch->text, layer, batch, kept, count);
        count = 0;
    }
    if (count > 0) write_answers(w, batch->text, layer, batch, kept, count);
}

static cpl_status hear(void *ctx, const cpl_reader_batch *batch, int64_t layer,
                       const cpl_moe_kept *kept)
{
    work *w = ctx;
    cpl_routing_record_write(batch->text, w->record, layer, kept, batch->place,
                             batch->rows * batch->length);
    if (w->agreement && w->sampled > 0) sample(w, batch, layer, kept);
    return w->reader->be.ops->sync(&w->reader->be);
}

static cpl_status add_batch(void *ctx, const char *text, int64_t length)
{
    work *w = ctx;
    for (const char *end = text + length; text < end;) {
        const int64_t bytes = cpl_routing_record_add(w->record, text);
        text += bytes ? bytes : add_answer(w, text);
    }
    return CPL_OK;
}

cpl_status cpl_routing_measure(cpl_routing_record *record, cpl_pool *pool,
                               cpl_routing_agreement *agreement, int64_t sampled,
                               cpl_reader *reader, const cpl_texts *texts)
{
    enum { MOST_ROOM = 512 };
    const cpl_model_settings *config = cpl_hf_config(reader->hf);
    work w = {.record = record, .agreement = agreement, .reader = reader, .sampled = sampled};
    cpl_reader_callbacks callbacks = {.layer = hear, .take = add_batch, .ctx = &w};
    cpl_status status              = CPL_OK;
    w.all                          = texts->n_predictions;
    w.room                         = sampled < 1 ? 1 : sampled < MOST_ROOM ? sampled : MOST_ROOM;
    CPL_ASSERT(sampled <= w.all);
    status = cpl_routing_record_init(record, pool, config, texts->n_predictions);
    if (status == CPL_OK) status = take_memory(&w, config);
    CPL_TRY_DONE(cpl_gather_status(reader->group, status));
    status = cpl_reader_read(reader, texts, &callbacks);
done:
    free_memory(&w);
    return status;
}

/* M [n,n] of any rows [n,d]. */
static cpl_status responses(float *M, cpl_reader *reader, const cpl_layer_params *w,
                            cpl_tensor rows)
{
    const cpl_model_settings *c = &reader->model.config;
    const int64_t n             = c->n_experts;
    float *columns              = cpl_alloc((size_t)(n * n) * sizeof *columns);
    float *products             = cpl_alloc((size_t)(n * c->d_expert) * sizeof *products);
    cpl_status status           = CPL_ERR_MEMORY;
    if (columns && products) {
        cpl_routing_respond(&reader->be, cpl_tensor_2d(columns, CPL_F32, n, n), w, rows,
                            cpl_tensor_2d(products, CPL_F32, n, c->d_expert), cpl_tensor_none());
        status = reader->be.ops->sync(&reader->be);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) M[i * n + j] = columns[j * n + i];
    }
    cpl_free(columns);
    cpl_free(products);
    return status;
}

cpl_status cpl_routing_clean(float *M, float *centred, cpl_reader *reader, int64_t layer)
{
    const cpl_layer_params *w = &reader->model.master.layer[layer];
    cpl_tensor rows           = w->router;
    rows.data                 = cpl_alloc(cpl_tensor_bytes(rows));
    cpl_status status         = rows.data ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = responses(M, reader, w, w->router);
    if (status == CPL_OK) {
        reader->be.ops->centre(&reader->be, rows, w->router);
        status = responses(centred, reader, w, rows);
    }
    cpl_free(rows.data);
    return status;
}
