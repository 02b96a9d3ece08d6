/* exchange.c - see exchange.h */
#include "model/exchange.h"

#include <string.h>

#include "base/arena.h"
#include "tensor/backend/backend.h"

/* Memory that grows and is never copied when it does. */
typedef struct block {
    void *memory; /* of the backend */
    size_t bytes;
} block;

/* What came for one layer. */
typedef struct arrived {
    int64_t rows;             /* R */
    int64_t *sent, *received; /* [E] rows to and from each rank */
    block memory;
    cpl_tensor x, weight; /* [R,d], [R,1] */
    cpl_dispatch plan;    /* of these rows, among this rank's experts */
    cpl_tensor expert;    /* [R,1] I32 */
    cpl_tensor gate, up;  /* [R,D] */
} arrived;

struct cpl_exchange {
    cpl_backend *be;
    cpl_mesh *mesh;
    cpl_model_settings config; /* n_local is that of the mesh */
    int64_t d, n, n_local;
    arrived *layer; /* [n_kept] */
    int64_t n_kept;
    int64_t *counts;  /* [n] sent, [E, n_local] received, [E] and [E] units of one count each */
    int32_t *no_rows; /* [n + 1] zeros: the offsets of no choices */
    block out, in, results; /* rows to be sent, received, and results of both directions */
    int64_t traffic;        /* bytes sent to other ranks, by the counts */
    cpl_status status;
};

/* ---- memory ---- */

cpl_status cpl_exchange_init(cpl_exchange **out, cpl_backend *be, const cpl_model_settings *config,
                             cpl_mesh *mesh, int64_t n_kept)
{
    const int64_t ranks = mesh->experts.size, n = config->n_experts;
    cpl_exchange *x = *out = cpl_alloc(sizeof *x);
    if (!x) return CPL_ERR_MEMORY;
    *x                = (cpl_exchange){.be      = be,
                                       .mesh    = mesh,
                                       .config  = *config,
                                       .d       = config->d_model,
                                       .n       = n,
                                       .n_local = mesh->n_local,
                                       .n_kept  = n_kept};
    x->config.n_local = mesh->n_local;
    x->layer          = cpl_alloc((size_t)n_kept * sizeof *x->layer);
    x->counts         = cpl_alloc((size_t)(2 * n + 2 * ranks) * sizeof *x->counts);
    x->no_rows        = cpl_alloc((size_t)(n + 1) * sizeof *x->no_rows);
    if (x->layer) memset(x->layer, 0, (size_t)n_kept * sizeof *x->layer);
    if (x->no_rows) memset(x->no_rows, 0, (size_t)(n + 1) * sizeof *x->no_rows);
    bool whole = x->layer && x->counts && x->no_rows;
    for (int64_t l = 0; whole && l < n_kept; l++) {
        x->layer[l].sent     = cpl_alloc((size_t)(2 * ranks) * sizeof(int64_t));
        x->layer[l].received = x->layer[l].sent + ranks;
        whole                = x->layer[l].sent != NULL;
    }
    if (whole) return CPL_OK;
    cpl_exchange_free(x);
    *out = NULL;
    return CPL_ERR_MEMORY;
}

void cpl_exchange_free(cpl_exchange *x)
{
    if (!x) return;
    for (int64_t l = 0; x->layer && l < x->n_kept; l++) {
        cpl_free(x->layer[l].sent);
        x->be->ops->give(x->be, x->layer[l].memory.memory);
    }
    cpl_free(x->layer);
    cpl_free(x->counts);
    cpl_free(x->no_rows);
    x->be->ops->give(x->be, x->out.memory);
    x->be->ops->give(x->be, x->in.memory);
    x->be->ops->give(x->be, x->results.memory);
    cpl_free(x);
}

cpl_status cpl_exchange_status(const cpl_exchange *x)
{
    if (x->status == CPL_OK) return CPL_OK;
    return CPL_FAIL(x->status, "out of memory for the tokens that other ranks send to the experts "
                               "of this one; a smaller train.micro_batch needs less");
}

int64_t cpl_exchange_traffic(const cpl_exchange *x)
{
    return x->traffic;
}

size_t cpl_exchange_bytes(const cpl_exchange *x)
{
    size_t sum = x->out.bytes + x->in.bytes + x->results.bytes;
    for (int64_t l = 0; l < x->n_kept; l++) sum += x->layer[l].memory.bytes;
    return sum;
}

/* What a block of `has` bytes (0: none yet) becomes that must hold so many. */
static size_t grown(size_t has, size_t bytes)
{
    return has && bytes <= has ? has : bytes + bytes / 8 + CPL_ALIGNMENT;
}

/* The other ranks do not know of it: no collective of this one may begin any more. */
static void fail(cpl_exchange *x)
{
    x->status = CPL_ERR_MEMORY;
    cpl_group_fail(&x->mesh->experts, cpl_exchange_status(x));
}

/* At least `bytes`, an eighth more if it must grow; NULL, with the failure kept, if there is
 * none. */
static void *room(cpl_exchange *x, block *b, size_t bytes)
{
    if (bytes <= b->bytes && b->memory) return b->memory;
    x->be->ops->give(x->be, b->memory);
    b->bytes  = grown(0, bytes);
    b->memory = x->be->ops->take(x->be, b->bytes);
    if (b->memory) return b->memory;
    b->bytes = 0;
    fail(x);
    return NULL;
}

static void take_arrived(arrived *a, cpl_tensor_arena *arena, const cpl_model_settings *c)
{
    const int64_t R = a->rows, n_local = cpl_model_local_experts(c);
    a->x           = cpl_tensor_take_2d(arena, R, c->d_model);
    a->weight      = cpl_tensor_take_2d(arena, R, 1);
    a->gate        = cpl_tensor_take_2d(arena, R, c->d_expert);
    a->up          = cpl_tensor_take_2d(arena, R, c->d_expert);
    a->expert      = cpl_tensor_as_2d(cpl_tensor_take_ids(arena, R), R, 1);
    a->plan.offset = cpl_tensor_take_ids(arena, n_local + 1);
    a->plan.token  = cpl_tensor_take_ids(arena, R);
    a->plan.row    = cpl_tensor_as_2d(cpl_tensor_take_ids(arena, R), R, 1);
}

static size_t arrived_bytes(const cpl_model_settings *config, int64_t rows)
{
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    arrived unseen         = {.rows = rows};
    take_arrived(&unseen, &arena, config);
    return cpl_tensor_arena_bytes(&arena);
}

cpl_work cpl_exchange_work(const cpl_model_settings *config, int64_t rows)
{
    return (cpl_work){.n_tokens  = rows,
                      .d_model   = config->d_model,
                      .d_expert  = config->d_expert,
                      .n_experts = cpl_model_local_experts(config),
                      .top_k     = 1,
                      .training  = true};
}

/* Memory for a->rows rows, and scratch for operations on so many; no rows if there is none. */
static void make_room(cpl_exchange *x, cpl_backend *be, arrived *a)
{
    const size_t bytes  = arrived_bytes(&x->config, a->rows);
    const cpl_work work = cpl_exchange_work(&x->config, a->rows);
    char *memory        = room(x, &a->memory, bytes);
    if (memory && cpl_backend_reserve(be, &work) != CPL_OK) fail(x);
    cpl_tensor_arena arena = cpl_tensor_arena_over(be, memory, bytes);
    if (x->status == CPL_OK) take_arrived(a, &arena, &x->config);
}

/* Numbers of the results of both directions: of the rows that came, and of those that return. */
static int64_t forward_results(int64_t rows, int64_t n_sent, int64_t d)
{
    return (rows + n_sent) * d;
}

/* dy and dx of the rows that came, their dweight; dx and dweight that return. */
static int64_t backward_results(int64_t rows, int64_t n_sent, int64_t d)
{
    return 2 * rows * d + rows + n_sent * d + n_sent;
}

size_t cpl_exchange_bytes_for(const cpl_model_settings *c, cpl_dtype compute, int64_t n_kept,
                              int64_t tokens, int64_t rows)
{
    const int64_t n_sent = tokens * c->top_k, d = c->d_model;
    const size_t unit    = (size_t)d * cpl_dtype_bytes(compute);
    const size_t forward = grown(0, (size_t)forward_results(rows, n_sent, d) * sizeof(float));
    const size_t results =
        grown(forward, (size_t)backward_results(rows, n_sent, d) * sizeof(float));
    return (size_t)n_kept * grown(0, arrived_bytes(c, rows)) + results +
           grown(0, (size_t)n_sent * unit) +
           (compute == CPL_F32 ? 0 : grown(0, (size_t)rows * unit));
}

/* ---- what travels ---- */

/* This rank's rows for each rank, and what comes: counts by expert first. */
static void exchange_counts(cpl_exchange *x, arrived *a, cpl_dispatch plan)
{
    cpl_group *g          = &x->mesh->experts;
    const int32_t *offset = cpl_i32(plan.offset);
    int64_t *own = x->counts, *theirs = own + x->n, *units = theirs + x->n;
    for (int64_t e = 0; e < x->n; e++) own[e] = offset[e + 1] - offset[e];
    for (int r = 0; r < g->size; r++) units[r] = 1;
    cpl_group_all_to_all(g, theirs, units, own, units, x->n_local * (int64_t)sizeof *own);
    a->rows = 0;
    for (int r = 0; r < g->size; r++) {
        const int64_t first = r * x->n_local;
        a->sent[r]          = offset[first + x->n_local] - offset[first];
        a->received[r]      = 0;
        for (int64_t e = 0; e < x->n_local; e++) a->received[r] += theirs[first + e];
        a->rows += a->received[r];
    }
}

/* The expert of each row that comes, [E, n_local] counts after another, and their dispatch. */
static void sort_rows(const cpl_exchange *x, cpl_backend *be, arrived *a)
{
    const int64_t *theirs = x->counts + x->n;
    int32_t *expert       = cpl_i32(a->expert);
    for (int64_t i = 0; i < x->n; i++)
        for (int64_t k = 0; k < theirs[i]; k++) *expert++ = (int32_t)(i % x->n_local);
    be->ops->dispatch(be, a->plan, a->expert, x->n_local);
}

static int64_t total(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += counts[i];
    return sum;
}

/* to [R,d] F32 = the rows of from [T,d] at `token`, as the other ranks send theirs, in the type of
 * the products. */
static void send_rows(cpl_exchange *x, cpl_backend *be, const arrived *a, cpl_tensor to,
                      cpl_tensor from, cpl_tensor token)
{
    cpl_group *g         = &x->mesh->experts;
    const int64_t n_sent = total(a->sent, g->size),
                  unit   = x->d * (int64_t)cpl_dtype_bytes(be->compute);
    const bool rounds    = be->compute != CPL_F32;
    void *out            = room(x, &x->out, (size_t)(n_sent * unit));
    void *in             = rounds ? room(x, &x->in, (size_t)(a->rows * unit)) : to.data;
    if (x->status != CPL_OK) return;
    be->ops->embed(be, cpl_tensor_2d(out, be->compute, n_sent, x->d), from, token);
    cpl_group_all_to_all(g, in, a->received, out, a->sent, unit);
    if (rounds) be->ops->copy(be, to, cpl_tensor_2d(in, be->compute, a->rows, x->d));
}

/* Results of the rows that came go back, F32 [rows, width]: what returns for this rank's own. */
static void return_rows(cpl_exchange *x, const arrived *a, void *to, const void *from,
                        int64_t width)
{
    cpl_group_all_to_all(&x->mesh->experts, to, a->sent, from, a->received,
                         width * (int64_t)sizeof(float));
}

/* Each row that leaves goes as an operand, and each row that came returns as F32; one of the two
 * with the weight or its gradient. */
static int64_t rows_bytes(const cpl_model_settings *c, cpl_dtype compute, int64_t away,
                          int64_t here)
{
    return away * c->d_model * (int64_t)cpl_dtype_bytes(compute) +
           here * c->d_model * (int64_t)sizeof(float);
}

/* All-to-alls: counts, rows, weights, results. */
cpl_sent cpl_exchange_forward_sent(const cpl_model_settings *c, int64_t ranks, cpl_dtype compute,
                                   int64_t away, int64_t here)
{
    const int64_t counts = (ranks - 1) * cpl_model_local_experts(c) * (int64_t)sizeof(int64_t);
    return (cpl_sent){rows_bytes(c, compute, away, here) + away * (int64_t)sizeof(float) + counts,
                      4 * (ranks - 1)};
}

/* All-to-alls: rows, results, gradients of the weights. */
cpl_sent cpl_exchange_backward_sent(const cpl_model_settings *c, int64_t ranks, cpl_dtype compute,
                                    int64_t away, int64_t here)
{
    return (cpl_sent){rows_bytes(c, compute, away, here) + here * (int64_t)sizeof(float),
                      3 * (ranks - 1)};
}

/* Of this rank's rows, those that leave it; of the rows that came, those of other ranks. */
static int64_t away_of(const cpl_exchange *x, const arrived *a)
{
    return total(a->sent, x->mesh->experts.size) - a->sent[x->mesh->experts.rank];
}

static int64_t here_of(const cpl_exchange *x, const arrived *a)
{
    return a->rows - a->received[x->mesh->experts.rank];
}

/* ---- the operations ---- */

/* Number i of x [T,K] as a row of one number, and such a table of sorted rows. */
static cpl_tensor as_rows(cpl_tensor x)
{
    return cpl_tensor_2d(x.data, x.dtype, cpl_tensor_count(x), 1);
}

static cpl_tensor as_ids(cpl_tensor x)
{
    return cpl_tensor_1d(x.data, CPL_I32, cpl_tensor_count(x));
}

/* The weight of every choice, to the rank of its expert. */
static void send_weights(cpl_exchange *x, cpl_backend *be, const arrived *a, cpl_tensor weight,
                         cpl_dispatch plan)
{
    const int64_t n_sent = cpl_tensor_count(weight);
    float *sorted        = room(x, &x->out, (size_t)n_sent * sizeof *sorted);
    const cpl_tensor to  = cpl_tensor_2d(sorted, CPL_F32, n_sent, 1);
    if (!sorted) return;
    be->ops->fill(be, to, 0);
    be->ops->embed_backward(be, to, as_rows(weight), as_ids(plan.row));
    cpl_group_all_to_all(&x->mesh->experts, a->weight.data, a->received, sorted, a->sent,
                         (int64_t)sizeof *sorted);
}

void cpl_exchange_experts(cpl_exchange *x, cpl_backend *be, int64_t kept, cpl_tensor y,
                          cpl_tensor in, cpl_tensor weight, cpl_dispatch plan, cpl_expert_weights w)
{
    arrived *a           = &x->layer[kept];
    const int64_t n_sent = cpl_tensor_count(weight), d = x->d;
    be->ops->fill(be, y, 0);
    exchange_counts(x, a, plan);
    make_room(x, be, a);
    float *results =
        room(x, &x->results, (size_t)forward_results(a->rows, n_sent, d) * sizeof *results);
    if (x->status != CPL_OK) return;
    sort_rows(x, be, a);
    send_rows(x, be, a, a->x, in, plan.token);
    send_weights(x, be, a, weight, plan);
    if (x->status != CPL_OK) return;
    const cpl_tensor made = cpl_tensor_2d(results, CPL_F32, a->rows, d);
    const cpl_tensor back = cpl_tensor_2d(results + a->rows * d, CPL_F32, n_sent, d);
    if (a->rows)
        be->ops->experts(be, made, a->gate, a->up, a->x, cpl_tensor_none(), a->weight, a->plan, w);
    return_rows(x, a, back.data, made.data, d);
    x->traffic += cpl_exchange_forward_sent(&x->config, x->mesh->experts.size, be->compute,
                                            away_of(x, a), here_of(x, a))
                      .bytes;
    be->ops->embed_backward(be, y, back, plan.token);
}

void cpl_exchange_serve(cpl_exchange *x, cpl_backend *be, int64_t kept, cpl_expert_weights w)
{
    const cpl_tensor ids    = cpl_tensor_1d(NULL, CPL_I32, 0);
    const cpl_tensor rows   = cpl_tensor_2d(NULL, CPL_F32, 0, x->d);
    const cpl_tensor weight = cpl_tensor_2d(NULL, CPL_F32, 0, x->config.top_k);
    const cpl_dispatch plan = {.offset = cpl_tensor_1d(x->no_rows, CPL_I32, x->n + 1),
                               .token  = ids,
                               .row    = cpl_tensor_2d(NULL, CPL_I32, 0, x->config.top_k)};
    cpl_exchange_experts(x, be, kept, rows, rows, weight, plan, w);
}

int cpl_exchange_meet(cpl_exchange *x, bool active)
{
    int32_t count = active;
    cpl_group_sum_i32(&x->mesh->experts, &count, 1);
    return (int)count;
}

void cpl_exchange_experts_backward(cpl_exchange *x, cpl_backend *be, int64_t kept, cpl_tensor dx,
                                   cpl_tensor dweight, cpl_expert_weights dw, cpl_tensor dy,
                                   cpl_dispatch plan, cpl_expert_weights w)
{
    arrived *a            = &x->layer[kept];
    const cpl_tensor none = cpl_tensor_none();
    const int64_t n_sent = cpl_tensor_count(dweight), d = x->d, R = a->rows;
    float *results = room(x, &x->results, (size_t)backward_results(R, n_sent, d) * sizeof *results);
    be->ops->fill(be, dweight, 0);
    if (x->status != CPL_OK) return;
    const cpl_tensor dy_in = cpl_tensor_2d(results, CPL_F32, R, d);
    const cpl_tensor dx_in = cpl_tensor_2d(results + R * d, CPL_F32, R, d);
    const cpl_tensor dw_in = cpl_tensor_2d(results + 2 * R * d, CPL_F32, R, 1);
    float *back = results + 2 * R * d + R, *back_weight = back + n_sent * d;
    send_rows(x, be, a, dy_in, dy, plan.token);
    if (x->status != CPL_OK) return;
    be->ops->fill(be, dx_in, 0);
    if (R)
        be->ops->experts_backward(be, dx_in, none, dw_in, dw, dy_in, a->gate, a->up, a->x, none,
                                  a->weight, a->plan, w);
    return_rows(x, a, back, dx_in.data, d);
    return_rows(x, a, back_weight, dw_in.data, 1);
    x->traffic += cpl_exchange_backward_sent(&x->config, x->mesh->experts.size, be->compute,
                                             away_of(x, a), here_of(x, a))
                      .bytes;
    be->ops->embed_backward(be, dx, cpl_tensor_2d(back, CPL_F32, n_sent, d), plan.token);
    be->ops->embed(be, as_rows(dweight), cpl_tensor_2d(back_weight, CPL_F32, n_sent, 1),
                   as_ids(plan.row));
}
