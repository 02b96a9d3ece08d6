/* exchange.c - see exchange.h */
#include "model/exchange.h"

#include <string.h>

#include "base/arena.h"
#include "model/params.h"
#include "parallel/tensors.h"
#include "tensor/backend/backend.h"

/* Memory that can grow. Growing loses the contents. */
typedef struct block {
    void *memory; /* memory of the backend or of the host */
    size_t bytes;
} block;

/* Rows of a pass in both directions: results for the rows received, and results returned for the
 * rows sent. */
typedef struct passing {
    cpl_tensor made, back;                /* [R,d], [sent,d]: outputs, or dx */
    cpl_tensor dy, dweight, back_dweight; /* [R,d], [R,1], [sent,1]: backward only */
} passing;

/* The rows received for one layer. */
typedef struct arrived {
    int64_t rows;             /* R */
    int64_t *sent, *received; /* [E] rows to and from each rank */
    block memory;
    cpl_tensor x, weight; /* [R,d], [R,1] */
    cpl_dispatch plan;    /* the rows sorted by this rank's experts */
    cpl_tensor expert;    /* [R,1] I32 */
    cpl_tensor gate, up;  /* [R,D] */
} arrived;

struct cpl_exchange {
    cpl_backend *be;
    cpl_mesh *mesh;
    cpl_model_settings config; /* the model's settings, with n_local of the mesh */
    int64_t d, n, n_local;
    arrived *layer; /* [n_kept] */
    int64_t n_kept;
    int64_t *counts;        /* [n] sent, [E, n_local] received, [E] units of one count each */
    int32_t *offset;        /* [n + 1] offsets of the rows sent, in host memory */
    cpl_tensor no_rows;     /* [n + 1] I32 zeros: the offsets of an empty set of choices */
    block out, in, passing; /* rows sent, rows received, rows of `passing` */
    block message;          /* the message, in host memory */
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
                                       .d       = cpl_model_expert_input(config),
                                       .n       = n,
                                       .n_local = mesh->n_local,
                                       .n_kept  = n_kept};
    x->config.n_local = mesh->n_local;
    x->layer          = cpl_alloc((size_t)n_kept * sizeof *x->layer);
    x->counts         = cpl_alloc((size_t)(2 * n + 2 * ranks) * sizeof *x->counts);
    x->offset         = cpl_alloc((size_t)(n + 1) * sizeof *x->offset);
    if (x->layer) memset(x->layer, 0, (size_t)n_kept * sizeof *x->layer);
    bool whole = x->layer && x->counts && x->offset &&
                 cpl_tensor_reserve(&x->no_rows, be, CPL_I32, n + 1) == CPL_OK;
    if (whole) be->ops->fill(be, x->no_rows, 0);
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
    cpl_free(x->offset);
    cpl_free(x->message.memory);
    cpl_tensor_free(&x->no_rows, x->be);
    x->be->ops->give(x->be, x->out.memory);
    x->be->ops->give(x->be, x->in.memory);
    x->be->ops->give(x->be, x->passing.memory);
    cpl_free(x);
}

cpl_status cpl_exchange_status(const cpl_exchange *x)
{
    if (x->status == CPL_OK) return CPL_OK;
    return CPL_FAIL(x->status, "out of memory for the tokens that other ranks send to the experts "
                               "of this one; a smaller train.micro_batch needs less");
}

size_t cpl_exchange_bytes(const cpl_exchange *x)
{
    size_t sum = x->out.bytes + x->in.bytes + x->passing.bytes + x->message.bytes;
    for (int64_t l = 0; l < x->n_kept; l++) sum += x->layer[l].memory.bytes;
    return sum;
}

/* Returns the new size of a block of `has` bytes (0: not allocated) that must hold `bytes`. */
static size_t grown(size_t has, size_t bytes)
{
    return has && bytes <= has ? has : bytes + bytes / 8 + CPL_ALIGNMENT;
}

/* Records a failure that is unknown to other ranks. This process must begin no further
 * collective. */
static void record_failure(cpl_exchange *x)
{
    x->status = CPL_ERR_MEMORY;
    cpl_group_fail(&x->mesh->experts, cpl_exchange_status(x));
}

/* Returns an arena over at least `bytes` of the block, which grows to an eighth more if necessary.
 * Without memory the arena is empty and the failure is recorded. */
static cpl_tensor_arena room(cpl_exchange *x, block *b, size_t bytes)
{
    if (bytes > b->bytes || !b->memory) {
        x->be->ops->give(x->be, b->memory);
        b->bytes  = grown(0, bytes);
        b->memory = x->be->ops->take(x->be, b->bytes);
        if (!b->memory) {
            b->bytes = 0;
            record_failure(x);
        }
    }
    return b->memory ? cpl_tensor_arena_over(x->be, b->memory, b->bytes)
                     : cpl_tensor_arena_measure();
}

/* Returns at least `bytes` of host memory for a message. If memory is not available, records the
 * failure and returns NULL. */
static void *message_room(cpl_exchange *x, size_t bytes)
{
    block *b = &x->message;
    if (bytes <= b->bytes && b->memory) return b->memory;
    cpl_free(b->memory);
    b->bytes  = grown(0, bytes);
    b->memory = cpl_alloc(b->bytes);
    if (b->memory) return b->memory;
    b->bytes = 0;
    record_failure(x);
    return NULL;
}

static void take_arrived(arrived *a, cpl_tensor_arena *arena, const cpl_model_settings *c)
{
    const int64_t R = a->rows, n_local = cpl_model_local_experts(c);
    const cpl_tensor slim = cpl_tensor_2d(NULL, c->activations, R, c->d_expert);
    a->x =
        cpl_tensor_take(arena, cpl_tensor_2d(NULL, c->activations, R, cpl_model_expert_input(c)));
    a->weight      = cpl_tensor_take_2d(arena, R, 1);
    a->gate        = cpl_tensor_take(arena, slim);
    a->up          = cpl_tensor_take(arena, slim);
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
                      .d_model   = cpl_model_expert_input(config),
                      .d_expert  = config->d_expert,
                      .n_experts = cpl_model_local_experts(config),
                      .top_k     = 1,
                      .training  = true};
}

/* Takes memory for a->rows rows, and scratch for operations on them. Sets a->rows to 0 if memory is
 * not available. */
static void make_room(cpl_exchange *x, cpl_backend *be, arrived *a)
{
    const cpl_work work    = cpl_exchange_work(&x->config, a->rows);
    cpl_tensor_arena arena = room(x, &a->memory, arrived_bytes(&x->config, a->rows));
    if (x->status == CPL_OK && cpl_backend_reserve(be, &work) != CPL_OK) record_failure(x);
    if (x->status == CPL_OK) take_arrived(a, &arena, &x->config);
}

static void take_passing(passing *p, cpl_tensor_arena *arena, int64_t rows, int64_t n_sent,
                         int64_t d, bool backward)
{
    p->made = cpl_tensor_take_2d(arena, rows, d);
    p->back = cpl_tensor_take_2d(arena, n_sent, d);
    if (!backward) return;
    p->dy           = cpl_tensor_take_2d(arena, rows, d);
    p->dweight      = cpl_tensor_take_2d(arena, rows, 1);
    p->back_dweight = cpl_tensor_take_2d(arena, n_sent, 1);
}

static size_t passing_bytes(int64_t rows, int64_t n_sent, int64_t d, bool backward)
{
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    passing unseen;
    take_passing(&unseen, &arena, rows, n_sent, d, backward);
    return cpl_tensor_arena_bytes(&arena);
}

static passing make_passing(cpl_exchange *x, int64_t rows, int64_t n_sent, bool backward)
{
    passing p              = {0};
    cpl_tensor_arena arena = room(x, &x->passing, passing_bytes(rows, n_sent, x->d, backward));
    take_passing(&p, &arena, rows, n_sent, x->d, backward);
    return p;
}

size_t cpl_exchange_bytes_for(const cpl_model_settings *c, cpl_dtype compute, int64_t n_kept,
                              int64_t tokens, int64_t rows)
{
    const int64_t n_sent = tokens * c->top_k, d = cpl_model_expert_input(c);
    const size_t unit    = (size_t)d * cpl_dtype_bytes(compute);
    const size_t forward = grown(0, passing_bytes(rows, n_sent, d, false));
    const size_t both    = grown(forward, passing_bytes(rows, n_sent, d, true));
    const size_t operands =
        grown(0, (size_t)n_sent * unit) + (compute == CPL_F32 ? 0 : grown(0, (size_t)rows * unit));
    const size_t counted = grown(0, (size_t)rows * sizeof(int32_t)),
                 out     = grown(counted, (size_t)(n_sent + rows) * unit),
                 message = grown(out, (size_t)((n_sent + rows) * d) * sizeof(float));
    return (size_t)n_kept * grown(0, arrived_bytes(c, rows)) + both + operands + message;
}

/* ---- messages ---- */

/* Exchanges counts by expert and sets the numbers of rows sent to and received from each rank. */
static void exchange_counts(cpl_exchange *x, arrived *a, cpl_dispatch plan)
{
    cpl_group *g    = &x->mesh->experts;
    int32_t *offset = x->offset;
    int64_t *own = x->counts, *theirs = own + x->n, *units = theirs + x->n;
    x->be->ops->get(x->be, offset, plan.offset);
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

/* Sets the expert of each row received, from the [E, n_local] counts, and dispatches the rows. */
static void sort_rows(cpl_exchange *x, cpl_backend *be, arrived *a)
{
    const int64_t *theirs = x->counts + x->n;
    int32_t *experts = message_room(x, (size_t)a->rows * sizeof *experts), *next = experts;
    if (!experts) return;
    for (int64_t i = 0; i < x->n; i++)
        for (int64_t k = 0; k < theirs[i]; k++) *next++ = (int32_t)(i % x->n_local);
    be->ops->put(be, a->expert, experts);
    be->ops->dispatch(be, a->plan, a->expert, x->n_local);
}

static int64_t total(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += counts[i];
    return sum;
}

/* Sends the rows `from` to the other ranks in an all-to-all and stores the rows received in `to`.
 * Both tensors are [rows, width]. */
static void exchange_rows(cpl_exchange *x, cpl_tensor to, const int64_t *received, cpl_tensor from,
                          const int64_t *sent)
{
    void *message = message_room(x, cpl_tensor_bytes(to) + cpl_tensor_bytes(from));
    if (message)
        cpl_group_all_to_all_tensor(&x->mesh->experts, x->be, to, received, from, sent, message);
}

/* Sends the rows `token` of from [T,d] to the ranks of their experts, in the type of the products.
 * Sets to [R,d] to the rows received. */
static void send_rows(cpl_exchange *x, cpl_backend *be, const arrived *a, cpl_tensor to,
                      cpl_tensor from, cpl_tensor token)
{
    cpl_tensor out = cpl_tensor_2d(NULL, be->compute, total(a->sent, x->mesh->experts.size), x->d);
    cpl_tensor in  = cpl_tensor_2d(NULL, be->compute, a->rows, x->d);
    const bool rounds      = be->compute != to.dtype;
    cpl_tensor_arena going = room(x, &x->out, cpl_tensor_bytes(out));
    out                    = cpl_tensor_take(&going, out);
    if (rounds) {
        cpl_tensor_arena coming = room(x, &x->in, cpl_tensor_bytes(in));
        in                      = cpl_tensor_take(&coming, in);
    }
    if (x->status != CPL_OK) return;
    be->ops->embed(be, out, from, token);
    exchange_rows(x, rounds ? in : to, a->received, out, a->sent);
    if (rounds) be->ops->copy(be, to, in);
}

/* Returns the bytes sent for the rows of one pass. A row of this rank's tokens is sent in the type
 * of the products, a row of other ranks' tokens is returned in F32. The weight, or its gradient,
 * adds one F32. */
static int64_t rows_bytes(const cpl_model_settings *c, cpl_dtype compute, int64_t away,
                          int64_t here)
{
    const int64_t width = cpl_model_expert_input(c);
    return away * width * (int64_t)cpl_dtype_bytes(compute) + here * width * (int64_t)sizeof(float);
}

/* Counts all-to-alls of counts, rows, weights and results. */
cpl_sent cpl_exchange_forward_sent(const cpl_model_settings *c, int64_t ranks, cpl_dtype compute,
                                   int64_t away, int64_t here)
{
    const int64_t counts = (ranks - 1) * cpl_model_local_experts(c) * (int64_t)sizeof(int64_t);
    return (cpl_sent){rows_bytes(c, compute, away, here) + away * (int64_t)sizeof(float) + counts,
                      4 * (ranks - 1)};
}

/* Counts all-to-alls of rows, results and gradients of the weights. */
cpl_sent cpl_exchange_backward_sent(const cpl_model_settings *c, int64_t ranks, cpl_dtype compute,
                                    int64_t away, int64_t here)
{
    return (cpl_sent){rows_bytes(c, compute, away, here) + here * (int64_t)sizeof(float),
                      3 * (ranks - 1)};
}

/* ---- the operations ---- */

/* Returns x [T,K] as T K rows of one number. */
static cpl_tensor as_rows(cpl_tensor x)
{
    return cpl_tensor_as_2d(x, cpl_tensor_count(x), 1);
}

/* Sends the weight of every choice to the rank of its expert. */
static void send_weights(cpl_exchange *x, cpl_backend *be, const arrived *a, cpl_tensor weight,
                         cpl_dispatch plan)
{
    cpl_tensor sorted      = cpl_tensor_2d(NULL, CPL_F32, cpl_tensor_count(weight), 1);
    cpl_tensor_arena going = room(x, &x->out, cpl_tensor_bytes(sorted));
    if (x->status != CPL_OK) return;
    sorted = cpl_tensor_take(&going, sorted);
    be->ops->fill(be, sorted, 0);
    be->ops->embed_backward(be, sorted, as_rows(weight), cpl_tensor_as_1d(plan.row));
    exchange_rows(x, a->weight, a->received, sorted, a->sent);
}

void cpl_exchange_experts(cpl_exchange *x, cpl_backend *be, int64_t kept, cpl_tensor y,
                          cpl_tensor in, cpl_tensor weight, cpl_dispatch plan, cpl_expert_weights w)
{
    arrived *a = &x->layer[kept];
    be->ops->fill(be, y, 0);
    exchange_counts(x, a, plan);
    make_room(x, be, a);
    const passing p = make_passing(x, a->rows, cpl_tensor_count(weight), false);
    if (x->status != CPL_OK) return;
    sort_rows(x, be, a);
    send_rows(x, be, a, a->x, in, plan.token);
    send_weights(x, be, a, weight, plan);
    if (x->status != CPL_OK) return;
    if (a->rows)
        be->ops->experts(be, p.made, a->gate, a->up, a->x, cpl_tensor_none(), a->weight, a->plan,
                         w);
    exchange_rows(x, p.back, a->sent, p.made, a->received);
    be->ops->embed_backward(be, y, p.back, plan.token);
}

void cpl_exchange_serve(cpl_exchange *x, cpl_backend *be, int64_t kept, cpl_expert_weights w)
{
    const cpl_tensor ids    = cpl_tensor_1d(NULL, CPL_I32, 0);
    const cpl_tensor rows   = cpl_tensor_2d(NULL, CPL_F32, 0, x->d);
    const cpl_tensor weight = cpl_tensor_2d(NULL, CPL_F32, 0, x->config.top_k);
    const cpl_dispatch plan = {.offset = x->no_rows,
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
    const passing p       = make_passing(x, a->rows, cpl_tensor_count(dweight), true);
    be->ops->fill(be, dweight, 0);
    if (x->status != CPL_OK) return;
    send_rows(x, be, a, p.dy, dy, plan.token);
    if (x->status != CPL_OK) return;
    be->ops->fill(be, p.made, 0);
    if (a->rows)
        be->ops->experts_backward(be, p.made, none, p.dweight, dw, p.dy, a->gate, a->up, a->x, none,
                                  a->weight, a->plan, w);
    exchange_rows(x, p.back, a->sent, p.made, a->received);
    exchange_rows(x, p.back_dweight, a->sent, p.dweight, a->received);
    be->ops->embed_backward(be, dx, p.back, plan.token);
    be->ops->embed(be, as_rows(dweight), p.back_dweight, cpl_tensor_as_1d(plan.row));
}
