/* record.c - see record.h */
#include "inspect/routing/record.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/stats/statistics.h"
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

/* Returns the entropy of the scores over their sum, or 0 if all scores are 0. */
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

/* ---- entries of one batch, as a text for all ranks ---- */

/* Holds the head of an entry. In an entry of a token in one layer K experts and their K weights
 * follow the head. In the entry of a sampled token K experts, n scores, n answers and the d numbers
 * of x follow. */
typedef struct entry {
    int64_t place;
    int32_t layer;
    enum { A_TOKEN, A_SAMPLE } kind;
    double entropy;
} entry;

/* Returns the bytes of an entry of this many numbers, a multiple of 8. */
static int64_t entry_bytes(int64_t numbers)
{
    return (int64_t)sizeof(entry) + (4 * numbers + 7) / 8 * 8;
}

/* Appends the head and the K experts, which other numbers follow. */
static void begin_entry(cpl_text *out, const entry *head, const int32_t *expert, int64_t k)
{
    cpl_text_append(out, head, sizeof *head);
    cpl_text_append(out, expert, (size_t)k * sizeof *expert);
}

static void add_numbers(cpl_text *out, const float *x, int64_t count)
{
    cpl_text_append(out, x, (size_t)count * sizeof *x);
}

/* Ends an entry of this many numbers. */
static void end_entry(cpl_text *out, int64_t numbers)
{
    static const float padding = 0;
    add_numbers(out, &padding, numbers % 2);
}

void cpl_routing_record_write(cpl_text *out, const cpl_routing_record *r, int64_t layer,
                              const cpl_routing_choices *c, const int64_t *place, int64_t count)
{
    const int64_t n = r->n_experts, k = r->top_k;
    for (int64_t t = 0; t < count; t++) {
        if (place[t] < 0) continue;
        const entry head = {place[t], (int32_t)layer, A_TOKEN, entropy_of(c->probs + t * n, n)};
        begin_entry(out, &head, c->expert + t * k, k);
        add_numbers(out, c->weight + t * k, k);
        end_entry(out, 2 * k);
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
    return entry_bytes(2 * r->top_k);
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
    t->source          = cpl_pool_take(pool, count * sizeof *t->source);
    CPL_TRY(cpl_pool_status(pool));
    for (int64_t i = 0; i < texts->n_documents; i++)
        for (int64_t k = 0; k < texts->documents[i].predictions; k++) {
            int64_t at    = texts->documents[i].place + k;
            t->input[at]  = cpl_texts_input(texts, i, k);
            t->source[at] = (int32_t)texts->documents[i].source;
        }
    return CPL_OK;
}

/* ---- the reading ---- */

/* Holds the state of one reading. Answers are computed for at most `room` tokens at a time. */
typedef struct work {
    cpl_routing_record *record;
    cpl_routing_agreement *agreement;
    cpl_reader *reader;
    int64_t sampled, all, room;
    cpl_tensor_arena arena;
    cpl_tensor ids;                    /* [room] I32: tokens of the batch */
    cpl_tensor rows, products, hidden; /* [room,d], [room,D], [room,r]; r = 0: gates are whole */
    cpl_tensor answers, logits;        /* [n,room], [room,n] */
    cpl_routing_choices choices;       /* choices of the batch: owned, for `capacity` tokens */
    int64_t capacity;
    int32_t *tokens;             /* copy of `ids` on the host */
    float *row, *answer, *score; /* copies of `rows`, `answers`, `logits` or probs */
    float *own;                  /* [n] the answers to one token */
    double *scores;              /* [2,n] scores and answers of a token */
    void *scratch;
} work;

static void take_tensors(work *w, cpl_tensor_arena *arena)
{
    const cpl_model_settings *c = cpl_hf_config(w->reader->hf);
    const int64_t n             = c->n_experts;
    const size_t number = sizeof(float), room = (size_t)w->room;
    w->ids      = cpl_tensor_take_ids(arena, w->room);
    w->rows     = cpl_tensor_take_2d(arena, w->room, c->d_model);
    w->products = cpl_tensor_take_2d(arena, w->room, c->d_expert);
    w->hidden   = cpl_tensor_take_2d(arena, w->room, cpl_router_gate_rank(c));
    w->answers  = cpl_tensor_take_2d(arena, n, w->room);
    w->logits   = cpl_tensor_take_2d(arena, w->room, n);
    w->tokens   = cpl_tensor_take_host(arena, room * sizeof *w->tokens);
    w->row      = cpl_tensor_take_host(arena, room * (size_t)c->d_model * number);
    w->answer   = cpl_tensor_take_host(arena, room * (size_t)n * number);
    w->score    = cpl_tensor_take_host(arena, room * (size_t)n * number);
    w->own      = cpl_tensor_take_host(arena, (size_t)n * number);
    w->scores   = cpl_tensor_take_host(arena, 2 * (size_t)n * sizeof *w->scores);
    w->scratch  = cpl_tensor_take_host(arena, cpl_correlation_scratch(n));
}

static cpl_status take_memory(work *w)
{
    cpl_tensor_arena measured = cpl_tensor_arena_measure();
    take_tensors(w, &measured);
    CPL_TRY(cpl_tensor_arena_init(&w->arena, &w->reader->be, &measured, "choices and answers"));
    take_tensors(w, &w->arena);
    return CPL_OK;
}

static void free_choices(work *w)
{
    cpl_free(w->choices.probs);
    cpl_free(w->choices.expert);
    cpl_free(w->choices.weight);
}

static cpl_status get_choices(work *w, const cpl_moe_kept *kept)
{
    cpl_backend *be      = &w->reader->be;
    const int64_t tokens = kept->probs.shape[0];
    if (tokens > w->capacity) {
        free_choices(w);
        w->choices.probs  = cpl_alloc(cpl_tensor_bytes(kept->probs));
        w->choices.expert = cpl_alloc(cpl_tensor_bytes(kept->expert));
        w->choices.weight = cpl_alloc(cpl_tensor_bytes(kept->weight));
        if (!w->choices.probs || !w->choices.expert || !w->choices.weight) return CPL_ERR_MEMORY;
        w->capacity = tokens;
    }
    be->ops->get(be, w->choices.probs, kept->probs);
    be->ops->get(be, w->choices.expert, kept->expert);
    be->ops->get(be, w->choices.weight, kept->weight);
    return CPL_OK;
}

/* Computes the logits of the `count` gathered tokens, or without router rows the scores. */
static void get_scores(work *w, const cpl_layer_params *layer, int64_t count)
{
    const int64_t n   = w->reader->model.config.n_experts;
    cpl_backend *be   = &w->reader->be;
    cpl_tensor logits = cpl_tensor_range(w->logits, 0, count);
    if (cpl_routing_has_router(layer)) {
        be->ops->gemm_f32(be, logits, CPL_AS_IS, cpl_tensor_range(w->rows, 0, count),
                          CPL_TRANSPOSED, layer->router, 0);
        be->ops->get(be, w->score, logits);
        return;
    }
    for (int64_t s = 0; s < count; s++)
        memcpy(w->score + s * n, w->choices.probs + w->tokens[s] * n, (size_t)n * sizeof(float));
}

/* Gathers the rows of `count` tokens, and gets the experts' answers to them. */
static void get_answers(work *w, const cpl_layer_params *layer, cpl_tensor b, int64_t count)
{
    cpl_backend *be    = &w->reader->be;
    const int64_t n    = w->answers.shape[0];
    cpl_tensor ids     = cpl_tensor_range(w->ids, 0, count);
    cpl_tensor rows    = cpl_tensor_range(w->rows, 0, count);
    cpl_tensor answers = cpl_tensor_as_2d(cpl_tensor_numbers(w->answers, 0, n * count), n, count);
    be->ops->put(be, ids, w->tokens);
    be->ops->embed(be, rows, b, ids);
    cpl_tokens_respond(be, answers, layer, rows, cpl_tensor_range(w->products, 0, count),
                       cpl_tensor_range(w->hidden, 0, count));
    be->ops->get(be, w->row, rows);
    be->ops->get(be, w->answer, answers);
}

/* Writes the experts' answers to `count` tokens of the batch, and the router's scores and choices
 * for them. */
static void write_answers(work *w, const cpl_reader_batch *batch, int64_t layer, cpl_tensor b,
                          int64_t count)
{
    const cpl_model_settings *c = &w->reader->model.config;
    const cpl_layer_params *own = &w->reader->model.master.layer[layer];
    const int64_t n = c->n_experts, d = c->d_model, k = c->top_k;
    get_answers(w, own, b, count);
    get_scores(w, own, count);
    for (int64_t s = 0; s < count; s++) {
        const entry head = {batch->place[w->tokens[s]], (int32_t)layer, A_SAMPLE, 0};
        for (int64_t e = 0; e < n; e++) w->own[e] = w->answer[e * count + s];
        begin_entry(batch->text, &head, w->choices.expert + w->tokens[s] * k, k);
        add_numbers(batch->text, w->score + s * n, n);
        add_numbers(batch->text, w->own, n);
        add_numbers(batch->text, w->row + s * d, d);
        end_entry(batch->text, k + 2 * n + d);
    }
}

/* Adds the entry and returns its bytes. */
static int64_t add_answer(work *w, const char *text)
{
    const cpl_routing_record *r = w->record;
    const entry *head           = (const entry *)(const void *)text;
    cpl_routing_agreement *a    = &w->agreement[head->layer];
    const int32_t *expert       = (const int32_t *)(const void *)(head + 1);
    const float *score          = (const float *)(const void *)(expert + r->top_k);
    const float *answer = score + r->n_experts, *x = answer + r->n_experts;
    for (int64_t i = 0; i < 2 * r->n_experts; i++) w->scores[i] = (double)score[i];
    cpl_routing_agreement_add(a, w->scores, w->scores + r->n_experts, expert, w->scratch);
    for (int64_t k = 0; k < a->d; k++) a->row[k] += (double)x[k];
    if (a->samples.room) cpl_token_samples_add(&a->samples, head->place, score, answer, x, expert);
    return entry_bytes(r->top_k + 2 * r->n_experts + a->d);
}

static void sample(work *w, const cpl_reader_batch *batch, int64_t layer, cpl_tensor b)
{
    int64_t count = 0;
    for (int64_t t = 0; t < batch->rows * batch->length; t++) {
        if (batch->place[t] < 0 || cpl_tokens_sample_at(batch->place[t], w->sampled, w->all) < 0)
            continue;
        w->tokens[count++] = (int32_t)t;
        if (count < w->room) continue;
        write_answers(w, batch, layer, b, count);
        count = 0;
    }
    if (count > 0) write_answers(w, batch, layer, b, count);
}

static cpl_status record_batch(void *ctx, const cpl_reader_batch *batch, int64_t layer,
                               const cpl_moe_kept *kept)
{
    work *w = ctx;
    CPL_TRY(get_choices(w, kept));
    cpl_routing_record_write(batch->text, w->record, layer, &w->choices, batch->place,
                             batch->rows * batch->length);
    if (w->agreement && w->sampled > 0) sample(w, batch, layer, kept->b);
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
    cpl_reader_callbacks callbacks = {.layer = record_batch, .take = add_batch, .ctx = &w};
    cpl_status status              = CPL_OK;
    w.all                          = texts->n_predictions;
    w.room                         = sampled < 1 ? 1 : sampled < MOST_ROOM ? sampled : MOST_ROOM;
    CPL_ASSERT(sampled <= w.all);
    status = cpl_routing_record_init(record, pool, config, texts->n_predictions);
    if (status == CPL_OK) status = take_memory(&w);
    CPL_TRY_DONE(cpl_gather_status(reader->group, status));
    status = cpl_reader_read(reader, texts, &callbacks);
done:
    free_choices(&w);
    cpl_tensor_arena_free(&w.arena);
    return status;
}

/* Holds memory for the clean coupling matrix. */
typedef struct clean {
    cpl_tensor rows, products; /* [n,d], [n,D] */
    cpl_tensor columns;        /* [n,n] answers of expert j to row i: [j,i] */
    float *answers;            /* copy of `columns` on the host */
} clean;

static void take_clean(clean *c, cpl_tensor_arena *arena, const cpl_model_settings *config)
{
    const int64_t n = config->n_experts;
    c->rows         = cpl_tensor_take_2d(arena, n, config->d_model);
    c->products     = cpl_tensor_take_2d(arena, n, config->d_expert);
    c->columns      = cpl_tensor_take_2d(arena, n, n);
    c->answers      = cpl_tensor_take_host(arena, (size_t)(n * n) * sizeof *c->answers);
}

/* Computes M [n,n] of any rows [n,d]. */
static void responses(float *M, const clean *c, cpl_backend *be, const cpl_layer_params *layer,
                      cpl_tensor rows)
{
    const int64_t n = c->columns.shape[0];
    cpl_tokens_respond(be, c->columns, layer, rows, c->products, cpl_tensor_none());
    be->ops->get(be, c->answers, c->columns);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) M[i * n + j] = c->answers[j * n + i];
}

cpl_status cpl_routing_clean(float *M, float *centred, cpl_reader *reader, int64_t layer)
{
    const cpl_model_settings *config = &reader->model.config;
    const cpl_layer_params *w        = &reader->model.master.layer[layer];
    cpl_tensor_arena arena           = cpl_tensor_arena_measure();
    cpl_backend *be                  = &reader->be;
    clean c;
    take_clean(&c, &arena, config);
    CPL_TRY(cpl_tensor_arena_init(&arena, be, &arena, "a coupling matrix"));
    take_clean(&c, &arena, config);
    responses(M, &c, be, w, w->router);
    be->ops->centre(be, c.rows, w->router);
    responses(centred, &c, be, w, c.rows);
    cpl_status status = be->ops->sync(be);
    cpl_tensor_arena_free(&arena);
    return status;
}
