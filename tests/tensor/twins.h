/* twins.h - every operation of ops.h once, on random inputs of several shapes, for test_twins.
 *
 * A twin runs its operation on a backend and keeps the results. The random inputs repeat whenever
 * taken()->n_random is set to the same number before. */
#ifndef CPL_TESTS_TENSOR_TWINS_H
#define CPL_TESTS_TENSOR_TWINS_H

#include "base/arena.h"
#include "tensor/ops_check.h"

/* ---- shapes ---- */

typedef struct shape {
    const char *what;
    int64_t batch, length, d, n, K, D, V, H, G, h;
    bool hot; /* the first expert is everyone's first choice */
} shape;

static const shape shapes[] = {
    {"one of everything", 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, false},
    {"no tokens", 0, 3, 5, 4, 2, 3, 7, 2, 1, 4, false},
    {"odd sizes", 3, 7, 21, 5, 2, 13, 131, 3, 1, 6, false},
    {"more experts than tokens", 1, 3, 17, 33, 2, 5, 19, 4, 2, 8, false},
    {"one expert has all tokens", 2, 40, 33, 7, 1, 9, 67, 2, 2, 10, true},
    {"all experts have all tokens", 2, 65, 48, 4, 4, 16, 256, 4, 4, 12, false},
    {"heads of 96", 1, 70, 16, 4, 2, 8, 8, 2, 1, 96, false},
    {"heads of 128", 1, 70, 16, 4, 2, 8, 8, 2, 1, 128, false},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static cpl_work work_of(const shape *s)
{
    return (cpl_work){.n_tokens   = s->batch * s->length,
                      .d_model    = s->d > s->H * s->h ? s->d : s->H * s->h,
                      .d_expert   = s->D,
                      .d_shared   = s->V,
                      .gate_rank  = s->D + 1,
                      .n_experts  = s->n,
                      .top_k      = s->K,
                      .n_heads    = s->H,
                      .vocab_size = s->V,
                      .training   = true};
}

/* ---- one operation's results ---- */

enum { MOST_RESULTS = 16 };

typedef struct results {
    cpl_tensor at[MOST_RESULTS];
    int count;
    int64_t terms;  /* terms of the longest sum behind the results */
    cpl_dtype type; /* type of activations, in and out */
    bool rounds;    /* the results are rounded to BF16 numbers, if the type is F32 */
} results;

static cpl_tensor keep(results *r, cpl_tensor x)
{
    assert_true(r->count < MOST_RESULTS);
    return r->at[r->count++] = x;
}

static cpl_tensor kept_2d(results *r, int64_t a, int64_t b)
{
    return keep(r, normal_2d(a, b, 1));
}

static cpl_tensor kept_1d(results *r, int64_t a)
{
    return keep(r, normal_1d(a, 1));
}

/* Rounds an activation that an operation has made to numbers of BF16, if results are rounded. */
static void settle(const results *r, cpl_tensor x)
{
    for (int64_t i = 0; r->rounds && i < cpl_tensor_count(x); i++)
        cpl_f32(x)[i] = cpl_bf16_to_f32(cpl_bf16_from_f32(cpl_f32(x)[i]));
}

static cpl_tensor activation(const results *r, int64_t a, int64_t b)
{
    cpl_tensor x = new_tensor(r->type, a, b);
    randomise(x, 1);
    settle(r, x);
    return x;
}

static cpl_tensor kept_activation(results *r, int64_t a, int64_t b)
{
    return keep(r, activation(r, a, b));
}

static cpl_tensor new_hidden(const results *r, int64_t T, int64_t n, int64_t rank)
{
    return cpl_tensor_3d(activation(r, T * n, rank).storage, r->type, T, n, rank);
}

static void keep_number(results *r, double number)
{
    cpl_f32(kept_1d(r, 1))[0] = (float)number;
}

static cpl_tensor new_3d(int64_t a, int64_t b, int64_t c)
{
    return cpl_tensor_3d(normal_2d(a * b, c, 0.3f).storage, CPL_F32, a, b, c);
}

/* ---- the operations, in the order of ops.def ---- */

static int64_t tokens(const shape *s)
{
    return s->batch * s->length;
}

static void twin_gemm(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s);
    cpl_tensor x = activation(r, T, s->d), w = normal_2d(s->V, s->d, 1);
    cpl_tensor y = kept_2d(r, T, s->V), low = new_tensor(CPL_BF16, s->V, s->d);
    r->terms = s->V + T + s->d;
    be->ops->gemm(be, y, CPL_AS_IS, x, CPL_TRANSPOSED, w, 0);
    be->ops->gemm(be, kept_2d(r, T, s->d), CPL_AS_IS, y, CPL_AS_IS, w, 1);
    be->ops->gemm(be, kept_2d(r, s->V, s->d), CPL_TRANSPOSED, y, CPL_AS_IS, x, 1);
    if (be->compute == CPL_F32) return;
    be->ops->copy(be, low, w);
    be->ops->gemm(be, kept_activation(r, T, s->V), CPL_AS_IS, x, CPL_TRANSPOSED, low, 0);
}

static void twin_linear_backward(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s);
    cpl_tensor dy = normal_2d(T, s->d, 1), x = activation(r, T, s->d), w = normal_2d(s->d, s->d, 1);
    cpl_tensor dx = kept_2d(r, T, s->d), dw = kept_2d(r, s->d, s->d);
    r->terms = s->d + T;
    be->ops->linear_backward(be, dx, dw, dy, x, w, 0);
    be->ops->linear_backward(be, dx, dw, activation(r, T, s->d), x, w, 1);
}

static void twin_gemm_f32(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s);
    cpl_tensor x = activation(r, T, s->d), w = normal_2d(s->n, s->d, 1), y = kept_2d(r, T, s->n);
    r->terms = s->n + T + s->d;
    be->ops->gemm_f32(be, y, CPL_AS_IS, x, CPL_TRANSPOSED, w, 0);
    be->ops->gemm_f32(be, kept_2d(r, T, s->d), CPL_AS_IS, y, CPL_AS_IS, w, 1);
    be->ops->gemm_f32(be, kept_2d(r, s->n, s->d), CPL_TRANSPOSED, y, CPL_AS_IS, x, 1);
}

static void twin_rms_norm(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s);
    r->terms        = s->d;
    be->ops->rms_norm(be, kept_activation(r, T, s->d), kept_1d(r, T), normal_2d(T, s->d, 2),
                      normal_1d(s->d, 1), 1e-5f);
    be->ops->rms_norm(be, kept_activation(r, T, s->d), kept_1d(r, T), activation(r, T, s->d),
                      normal_1d(s->d, 1), 1e-5f);
}

static void twin_rms_norm_backward(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s);
    r->terms        = s->d + T;
    for (int beta = 0; beta < 2; beta++)
        be->ops->rms_norm_backward(be, kept_2d(r, T, s->d), kept_1d(r, s->d), normal_2d(T, s->d, 1),
                                   activation(r, T, s->d), normal_1d(s->d, 1), normal_1d(T, 1),
                                   (float)beta);
}

static void twin_clamp(cpl_backend *be, const shape *s, results *r)
{
    be->ops->clamp(be, kept_activation(r, tokens(s), s->d), activation(r, tokens(s), s->d), 0.5f);
}

static void twin_clamp_backward(cpl_backend *be, const shape *s, results *r)
{
    cpl_tensor dx = kept_2d(r, tokens(s), s->d);
    be->ops->clamp_backward(be, dx, normal_2d(tokens(s), s->d, 1), activation(r, tokens(s), s->d),
                            0.5f);
}

static void twin_centre(cpl_backend *be, const shape *s, results *r)
{
    be->ops->centre(be, kept_2d(r, s->n, s->d), normal_2d(s->n, s->d, 1));
}

static void twin_unit_rows(cpl_backend *be, const shape *s, results *r)
{
    be->ops->unit_rows(be, kept_2d(r, s->n, s->d), normal_2d(s->n, s->d, 1), normal_1d(s->d, 1), 3);
}

static void twin_unit_rows_backward(cpl_backend *be, const shape *s, results *r)
{
    be->ops->unit_rows_backward(be, kept_2d(r, s->n, s->d), normal_2d(s->n, s->d, 1),
                                normal_2d(s->n, s->d, 1), 3);
}

static void twin_add(cpl_backend *be, const shape *s, results *r)
{
    be->ops->add(be, kept_2d(r, tokens(s), s->d), normal_2d(tokens(s), s->d, 1), 1);
}

static void twin_add_product(cpl_backend *be, const shape *s, results *r)
{
    be->ops->add_product(be, kept_2d(r, tokens(s), s->d), normal_2d(tokens(s), s->d, 1),
                         normal_2d(tokens(s), s->d, 1));
}

static void twin_fill(cpl_backend *be, const shape *s, results *r)
{
    be->ops->fill(be, kept_2d(r, tokens(s), s->d), 0.25f);
}

static void twin_copy(cpl_backend *be, const shape *s, results *r)
{
    cpl_tensor low = new_tensor(CPL_BF16, tokens(s), s->d);
    be->ops->copy(be, low, normal_2d(tokens(s), s->d, 1));
    be->ops->copy(be, kept_2d(r, tokens(s), s->d), low);
}

static cpl_tensor random_ids(int64_t count, int64_t below)
{
    cpl_tensor ids = new_1d(CPL_I32, count);
    randomise_ids(ids, (int32_t)below);
    return ids;
}

static void twin_embed(cpl_backend *be, const shape *s, results *r)
{
    be->ops->embed(be, kept_2d(r, tokens(s), s->d), normal_2d(s->V, s->d, 1),
                   random_ids(tokens(s), s->V));
}

static void twin_embed_backward(cpl_backend *be, const shape *s, results *r)
{
    r->terms = tokens(s);
    be->ops->embed_backward(be, kept_2d(r, s->V, s->d), normal_2d(tokens(s), s->d, 1),
                            random_ids(tokens(s), s->V));
}

static cpl_tensor rope_table(cpl_backend *be, int64_t positions, int64_t h)
{
    cpl_tensor table = new_tensor(CPL_F32, positions, h);
    table            = cpl_tensor_3d(table.storage, CPL_F32, positions, h / 2, 2);
    be->ops->rope_table(be, table, 10000);
    return table;
}

static void twin_rope_table(cpl_backend *be, const shape *s, results *r)
{
    keep(r, rope_table(be, s->length, s->h));
}

static void twin_rope(cpl_backend *be, const shape *s, results *r)
{
    cpl_tensor table = rope_table(be, s->length + 2, s->h);
    be->ops->rope(be, kept_activation(r, tokens(s), s->H * s->h), table, s->H, s->length, 2, 1);
    be->ops->rope(be, kept_2d(r, tokens(s), s->H * s->h), table, s->H, s->length, 0, -1);
}

static void twin_rope_at(cpl_backend *be, const shape *s, results *r)
{
    cpl_tensor table = rope_table(be, s->length + 2, s->h);
    be->ops->rope_at(be, kept_2d(r, tokens(s), s->H * s->h), table, s->H,
                     random_ids(tokens(s), s->length + 2));
}

/* Returns document starts: a document begins at every third position. */
static cpl_tensor new_doc_start(int64_t batch, int64_t n_keys)
{
    cpl_tensor start = new_tensor(CPL_I32, batch, n_keys);
    for (int64_t i = 0; i < batch * n_keys; i++) cpl_i32(start)[i] = (int32_t)(i % n_keys / 3 * 3);
    return start;
}

/* Runs attention with a cache longer than the keys, and with documents. */
static void twin_attention(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s), width = s->G * s->h;
    cpl_attention_shape a = {s->batch, s->length, s->length + 1, s->length + 2, s->H, s->G, s->h};
    cpl_tensor q = activation(r, T, s->H * s->h), k = activation(r, s->batch * a.key_stride, width);
    cpl_tensor v = activation(r, s->batch * a.key_stride, width), none = cpl_tensor_none();
    r->terms = s->length + s->h;
    be->ops->attention(be, kept_activation(r, T, s->H * s->h), kept_1d(r, T * s->H), q, k, v, none,
                       a);
    be->ops->attention(be, kept_activation(r, T, s->H * s->h), kept_1d(r, T * s->H), q, k, v,
                       new_doc_start(s->batch, a.n_keys), a);
}

static void twin_attention_backward(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s), wide = s->H * s->h, width = s->G * s->h;
    cpl_attention_shape a = {s->batch, s->length, s->length, s->length, s->H, s->G, s->h};
    cpl_tensor q = activation(r, T, wide), k = activation(r, T, width), v = activation(r, T, width);
    cpl_tensor out = new_tensor(r->type, T, wide), lse = new_1d(CPL_F32, T * s->H);
    cpl_tensor doc_start = new_doc_start(s->batch, s->length);
    r->terms             = s->length + s->h;
    be->ops->attention(be, out, lse, q, k, v, doc_start, a);
    settle(r, out);
    be->ops->attention_backward(be, kept_2d(r, T, wide), kept_2d(r, T, width), kept_2d(r, T, width),
                                normal_2d(T, wide, 1), out, lse, q, k, v, doc_start, a);
}

/* Every sequence has a segment. Its keys lie anywhere, in the second call behind each other. */
static void twin_attention_segments(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s), keys = s->length + 1, width = s->G * s->h,
                  rows = s->batch * keys + 1;
    cpl_tensor q = normal_2d(T, s->H * s->h, 1), k = normal_2d(rows, width, 1);
    cpl_tensor v = normal_2d(rows, width, 1), row = random_ids(s->batch * keys, rows);
    cpl_segment at[8];
    CPL_ASSERT(s->batch <= 8);
    cpl_segments segments = {cpl_tensor_2d(at, CPL_I32, s->length > 0 ? s->batch : 0, 4), row, s->H,
                             s->G, s->h};
    r->terms              = s->length + s->h;
    for (int64_t b = 0; b < s->batch; b++)
        at[b] = (cpl_segment){(int32_t)(b * s->length), (int32_t)s->length, (int32_t)(b * keys),
                              (int32_t)keys};
    be->ops->attention_segments(be, kept_2d(r, T, s->H * s->h), q, k, v, segments);
    for (int64_t i = 0; i < s->batch * keys; i++) cpl_i32(row)[i] = (int32_t)i;
    be->ops->attention_segments(be, kept_2d(r, T, s->H * s->h), q, k, v, segments);
}

/* ---- routing and experts ---- */

typedef struct routed {
    cpl_tensor probs, lse, expert, weight;
} routed;

static routed route_by(cpl_backend *be, const shape *s, cpl_routing how)
{
    const int64_t T   = tokens(s);
    cpl_tensor logits = normal_2d(T, s->n, 2);
    routed x = {new_tensor(CPL_F32, T, s->n), new_1d(CPL_F32, T), new_tensor(CPL_I32, T, s->K),
                new_tensor(CPL_F32, T, s->K)};
    for (int64_t t = 0; s->hot && t < T; t++) cpl_f32(logits)[t * s->n] += 30;
    be->ops->route(be, x.probs, x.lse, x.expert, x.weight, logits, how);
    return x;
}

/* Routings by softmax, by sigmoid, by sigmoid with a bias, and by softmax with a centred z-loss, all
 * renormalised. */
enum { N_ROUTINGS = 4 };

static cpl_routing routing_of(const shape *s, int which)
{
    return (cpl_routing){.sigmoid     = which == 1 || which == 2,
                         .renormalise = true,
                         .z_centred   = which == 3,
                         .bias        = which == 2 ? normal_1d(s->n, 0.2f) : cpl_tensor_none()};
}

static routed route(cpl_backend *be, const shape *s)
{
    return route_by(be, s, routing_of(s, 0));
}

static void twin_route(cpl_backend *be, const shape *s, results *r)
{
    r->terms = s->n;
    for (int i = 0; i < N_ROUTINGS; i++) {
        routed x = route_by(be, s, routing_of(s, i));
        keep(r, x.probs), keep(r, x.lse), keep(r, x.expert), keep(r, x.weight);
    }
}

static void twin_route_stats(cpl_backend *be, const shape *s, results *r)
{
    r->terms = s->n;
    for (int i = 0; i < N_ROUTINGS; i++) {
        cpl_routing how = routing_of(s, i);
        routed x        = route_by(be, s, how);
        be->ops->route_stats(be, kept_1d(r, s->n), kept_1d(r, s->n), kept_1d(r, 1), kept_1d(r, 1),
                             x.probs, x.lse, x.expert, how.sigmoid);
    }
}

static void twin_route_backward(cpl_backend *be, const shape *s, results *r)
{
    r->terms = s->n;
    for (int i = 0; i < N_ROUTINGS; i++) {
        cpl_routing how   = routing_of(s, i);
        routed x          = route_by(be, s, how);
        cpl_tensor counts = normal_1d(s->n, 1), dweight = normal_2d(tokens(s), s->K, 1);
        be->ops->route_backward(be, kept_2d(r, tokens(s), s->n), dweight, x.probs, x.lse, x.expert,
                                x.weight, counts, 0.1f, how.sigmoid ? 0.0f : 0.2f, how);
    }
}

static void twin_dispatch(cpl_backend *be, const shape *s, results *r)
{
    cpl_dispatch plan = dispatch_of(be, route(be, s).expert, s->n);
    keep(r, plan.offset), keep(r, plan.token), keep(r, plan.row);
}

static void twin_balance_bias(cpl_backend *be, const shape *s, results *r)
{
    be->ops->balance_bias(be, kept_1d(r, s->n), normal_1d(s->n, 1), 0.125f);
}

static void twin_orthogonality(cpl_backend *be, const shape *s, results *r)
{
    cpl_tensor R = normal_2d(s->n, s->d, 1);
    r->terms     = s->n + s->d;
    keep_number(r, orthogonality_of(be, kept_2d(r, s->n, s->d), R, 0.5f));
    keep_number(r, orthogonality_of(be, cpl_tensor_none(), R, 0.5f));
}

/* Returns experts whose gates take inputs of width r. */
static cpl_expert_weights new_experts_of(const shape *s, int64_t r)
{
    cpl_expert_weights w;
    w.w_gate = new_3d(s->n, s->D, r);
    w.w_up   = new_3d(s->n, s->D, s->d);
    w.w_down = new_3d(s->n, s->d, s->D);
    return w;
}

static cpl_expert_weights new_experts(const shape *s)
{
    return new_experts_of(s, s->d);
}

/* Runs experts with gates of x, or of hidden vectors of width r. */
static void run_experts(cpl_backend *be, const shape *s, results *r, cpl_tensor hidden,
                        cpl_expert_weights w)
{
    const int64_t T   = tokens(s);
    routed x          = route(be, s);
    cpl_dispatch plan = dispatch_of(be, x.expert, s->n);
    cpl_tensor in = activation(r, T, s->d), none = cpl_tensor_none();
    be->ops->experts(be, kept_2d(r, T, s->d), kept_activation(r, T * s->K, s->D),
                     kept_activation(r, T * s->K, s->D), in, hidden, x.weight, plan, w);
    be->ops->experts(be, kept_2d(r, T, s->d), none, none, in, hidden, x.weight, plan, w);
}

static void twin_experts(cpl_backend *be, const shape *s, results *r)
{
    const int64_t rank = s->D + 1;
    r->terms           = s->d + s->D;
    run_experts(be, s, r, cpl_tensor_none(), new_experts(s));
    run_experts(be, s, r, new_hidden(r, tokens(s), s->n, rank), new_experts_of(s, rank));
}

static void run_experts_backward(cpl_backend *be, const shape *s, results *r, cpl_tensor hidden,
                                 cpl_tensor dhidden, int64_t gate_width)
{
    const int64_t T      = tokens(s);
    routed x             = route(be, s);
    cpl_dispatch plan    = dispatch_of(be, x.expert, s->n);
    cpl_expert_weights w = new_experts_of(s, gate_width), dw = new_experts_of(s, gate_width);
    cpl_tensor in = activation(r, T, s->d), y = new_tensor(CPL_F32, T, s->d);
    cpl_tensor gate = new_tensor(r->type, T * s->K, s->D), up = copy_of(gate);
    cpl_tensor dy = normal_2d(T, s->d, 1);
    be->ops->experts(be, y, gate, up, in, hidden, x.weight, plan, w);
    settle(r, gate), settle(r, up);
    be->ops->experts_backward(be, kept_2d(r, T, s->d), dhidden, kept_2d(r, T, s->K), dw, dy, gate,
                              up, in, hidden, x.weight, plan, w);
    keep(r, dw.w_gate), keep(r, dw.w_up), keep(r, dw.w_down);
}

static void twin_experts_backward(cpl_backend *be, const shape *s, results *r)
{
    const int64_t rank = s->D + 1;
    r->terms           = s->d + s->D + tokens(s);
    run_experts_backward(be, s, r, cpl_tensor_none(), cpl_tensor_none(), s->d);
    run_experts_backward(be, s, r, new_hidden(r, tokens(s), s->n, rank),
                         kept_2d(r, tokens(s) * s->K, rank), rank);
}

static void twin_hidden_backward(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s), width = s->D + 1;
    routed x        = route(be, s);
    cpl_tensor norm = normal_2d(T, s->n, 1);
    for (int64_t i = 0; i < T * s->n; i++) cpl_f32(norm)[i] = fabsf(cpl_f32(norm)[i]) + 0.5f;
    be->ops->hidden_backward(be, keep(r, new_hidden(r, T, s->n, width)), norm,
                             normal_2d(T, s->n, 1), normal_2d(T * s->K, width, 1), x.expert,
                             dispatch_of(be, x.expert, s->n));
}

/* ---- losses, sums, steps ---- */

static cpl_tensor random_targets(const shape *s)
{
    cpl_tensor target = random_ids(tokens(s), s->V);
    if (tokens(s) > 2) cpl_i32(target)[2] = -1;
    return target;
}

static void twin_xent(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s);
    r->terms        = s->V + s->d;
    be->ops->xent(be, kept_1d(r, T), activation(r, T, s->d), normal_2d(s->V, s->d, 1),
                  random_targets(s));
}

static void twin_log_probs(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s);
    r->terms        = s->V;
    be->ops->log_probs(be, kept_1d(r, 2 * T), normal_2d(T, s->V, 1), random_ids(2 * T, T),
                       random_ids(2 * T, s->V));
}

static void twin_xent_train(cpl_backend *be, const shape *s, results *r)
{
    const int64_t T = tokens(s);
    r->terms        = s->V + s->d + T;
    be->ops->xent_train(be, kept_1d(r, T), kept_2d(r, T, s->d), kept_2d(r, s->V, s->d),
                        activation(r, T, s->d), normal_2d(s->V, s->d, 1), random_targets(s), 0.5f);
}

static void twin_sum(cpl_backend *be, const shape *s, results *r)
{
    keep_number(r, sum_of(be, normal_2d(tokens(s), s->d, 1)));
}

static void twin_count_negative(cpl_backend *be, const shape *s, results *r)
{
    keep_number(r, negatives_of(be, normal_2d(tokens(s), s->d, 1)));
}

static void twin_dot(cpl_backend *be, const shape *s, results *r)
{
    keep_number(r, dot_of(be, normal_2d(s->V, s->d, 1), normal_2d(s->V, s->d, 1)));
}

static void twin_row_norms(cpl_backend *be, const shape *s, results *r)
{
    be->ops->row_norms(be, kept_1d(r, s->n), new_3d(s->n, s->D, s->d));
    be->ops->row_norms(be, kept_1d(r, tokens(s)), activation(r, tokens(s), s->V));
}

static void twin_column_moments(cpl_backend *be, const shape *s, results *r)
{
    double sums[2 * 64] = {0};
    r->terms            = tokens(s);
    assert_true(s->d <= 64);
    be->ops->column_moments(be, cpl_tensor_2d(sums, CPL_F64, 2, s->d),
                            activation(r, tokens(s), s->d));
    cpl_tensor kept = kept_2d(r, 2, s->d);
    for (int64_t i = 0; i < 2 * s->d; i++) cpl_f32(kept)[i] = (float)sums[i];
}

static void twin_spectral_norms(cpl_backend *be, const shape *s, results *r)
{
    r->terms = s->D + s->d;
    be->ops->spectral_norms(be, kept_1d(r, s->n), new_3d(s->n, s->D, s->d));
}

static void twin_own_responses(cpl_backend *be, const shape *s, results *r)
{
    const cpl_tensor rows = normal_2d(s->n, s->d, 1), x = new_3d(s->n, s->D, s->d);
    cpl_tensor low = x;
    r->terms       = s->D + s->d;
    be->ops->own_responses(be, kept_1d(r, s->n), rows, x);
    low.storage = new_tensor(CPL_BF16, s->n * s->D, s->d).storage, low.dtype = CPL_BF16;
    be->ops->copy(be, low, x);
    be->ops->own_responses(be, kept_1d(r, s->n), rows, low);
}

static void twin_coupling_figures(cpl_backend *be, const shape *s, results *r)
{
    enum { N_FIGURES = sizeof(cpl_coupling_figures) / sizeof(double) };
    cpl_coupling_figures figures;
    cpl_tensor M = normal_2d(s->n, s->n, 1), eps = normal_1d(s->n, 1);
    cpl_tensor gate_norm = normal_1d(s->n, 1), gate_spectral = normal_1d(s->n, 1);
    double all[N_FIGURES];
    r->terms = s->d + s->n;
    for (int64_t j = 0; j < s->n; j++) cpl_f32(gate_norm)[j] = fabsf(cpl_f32(gate_norm)[j]) + 1;
    for (int64_t i = 0; i < s->n * s->n; i++) cpl_f32(M)[i] = fabsf(cpl_f32(M)[i]) + 0.1f;
    be->ops->coupling_figures(be, cpl_tensor_1d(&figures, CPL_F64, N_FIGURES), M, eps,
                              normal_2d(s->n, s->d, 1), normal_2d(s->n, s->d, 1),
                              normal_2d(s->n, s->d, 1), gate_norm, gate_spectral,
                              normal_1d(s->n, 1), 0.7, s->K);
    memcpy(all, &figures, sizeof all);
    cpl_tensor out = kept_1d(r, N_FIGURES);
    /* A single expert has no share of a noise bound. */
    for (int i = 0; i < N_FIGURES; i++) cpl_f32(out)[i] = isnan(all[i]) ? 0 : (float)all[i];
}

static void twin_adamw(cpl_backend *be, const shape *s, results *r)
{
    const int64_t count = s->V * s->d;
    cpl_tensor v = kept_1d(r, count), low = new_1d(CPL_BF16, count);
    for (int64_t i = 0; i < count; i++) cpl_f32(v)[i] = fabsf(cpl_f32(v)[i]);
    be->ops->adamw(be, kept_1d(r, count), kept_1d(r, count), v, low, normal_1d(count, 1), 0.5f,
                   0.01f, 0.1f, 0.9f, 0.95f, 1e-8f, 0.1, 0.05);
}

static void twin_normal(cpl_backend *be, const shape *s, results *r)
{
    cpl_rng_key key = {.seed = 5, .stream = CPL_STREAM_TEST};
    be->ops->normal(be, kept_2d(r, s->V, s->d), 0.02f, 3, key, 0);
    be->ops->normal(be, kept_1d(r, s->d), 0.02f, 3, key, s->d); /* sets the second row again */
}

static void twin_sample(cpl_backend *be, const shape *s, results *r)
{
    cpl_tensor logits = normal_1d(s->V, 1);
    keep_number(r, sample_of(be, logits, 0, 1, 0.5f));
    keep_number(r, sample_of(be, logits, 0.8f, 1, 0.3f));
    keep_number(r, sample_of(be, logits, 0.8f, 0.6f, 0.7f));
}

/* ---- the coupling loss ---- */

static void twin_nearest(cpl_backend *be, const shape *s, results *r)
{
    r->terms = s->d;
    be->ops->erc.nearest(be, kept_1d(r, s->n), normal_2d(s->n, s->d, 1));
}

static void twin_noise(cpl_backend *be, const shape *s, results *r)
{
    cpl_rng_key key = {.seed = 6, .stream = CPL_STREAM_NOISE};
    be->ops->erc.noise(be, kept_2d(r, s->n, s->d), normal_1d(s->n, 0.1f), key, 3);
}

/* Returns weights as products read them, in the type of the activations. */
static cpl_tensor as_read(cpl_backend *be, const results *r, cpl_tensor w)
{
    cpl_tensor to = new_tensor(r->type, w.shape[0] * w.shape[1], w.shape[2]);
    to            = cpl_tensor_3d(to.storage, r->type, w.shape[0], w.shape[1], w.shape[2]);
    be->ops->copy(be, to, w);
    return to;
}

/* Runs a job whose activation and alpha are set over all rows and experts, with every gradient, in
 * three phases or in a single call. */
static void run_coupling(cpl_backend *be, const shape *s, results *r, cpl_erc_job job, bool at_once)
{
    const int64_t n      = s->n;
    cpl_expert_weights w = new_experts(s), dw = new_experts(s);
    double loss    = 0;
    job.i1         = n;
    job.j1         = n;
    job.compute    = be->compute;
    job.weight     = 0.7;
    job.R          = normal_2d(n, s->d, 1);
    job.delta      = normal_2d(n, s->d, 1);
    job.gate       = as_read(be, r, w.w_gate);
    job.up         = as_read(be, r, w.w_up);
    job.down       = as_read(be, r, w.w_down);
    job.dR         = kept_2d(r, n, s->d);
    job.dgate      = keep(r, dw.w_gate);
    job.dup        = keep(r, dw.w_up);
    job.ddown      = keep(r, dw.w_down);
    job.M          = kept_2d(r, n, n);
    job.loss       = cpl_tensor_1d(&loss, CPL_F64, 1);
    job.diagonal   = kept_1d(r, n);
    job.violations = keep(r, new_tensor(CPL_I32, 2, n));
    r->terms       = s->D + s->d + n;
    if (at_once) {
        be->ops->erc.run_local(be, job);
    } else {
        be->ops->erc.diagonals(be, job);
        be->ops->erc.sweep(be, job);
        be->ops->erc.add_diagonal(be, job);
    }
    keep_number(r, loss);
}

static void twin_phases_gate(cpl_backend *be, const shape *s, results *r)
{
    run_coupling(be, s, r, (cpl_erc_job){.activation = CPL_ERC_GATE, .alpha = 0.5}, false);
}

static void twin_phases_output(cpl_backend *be, const shape *s, results *r)
{
    run_coupling(be, s, r, (cpl_erc_job){.activation = CPL_ERC_OUTPUT, .alpha = 0.5}, false);
}

/* The case makes about half of the hinges active. */
#define RUN_LOCAL(name, value)                                                                     \
    static void twin_local_##name(cpl_backend *be, const shape *s, results *r)                     \
    {                                                                                              \
        run_coupling(be, s, r, (cpl_erc_job){.activation = value, .alpha = 1}, true);              \
    }
RUN_LOCAL(gate, CPL_ERC_GATE)
RUN_LOCAL(up, CPL_ERC_UP)
RUN_LOCAL(silu, CPL_ERC_SILU)
RUN_LOCAL(swiglu, CPL_ERC_SWIGLU)
RUN_LOCAL(output, CPL_ERC_OUTPUT)
RUN_LOCAL(gate_up, CPL_ERC_GATE_UP)

typedef void (*twin)(cpl_backend *be, const shape *s, results *r);

static const struct {
    const char *name;
    twin run;
} operations[] = {
#define CPL_OP(name) {#name, twin_##name},
#include "tensor/ops.def"
    {"erc.nearest", twin_nearest},
    {"erc.noise", twin_noise},
    {"erc phases, gate", twin_phases_gate},
    {"erc phases, output", twin_phases_output},
    {"erc.run_local, gate", twin_local_gate},
    {"erc.run_local, up", twin_local_up},
    {"erc.run_local, silu", twin_local_silu},
    {"erc.run_local, swiglu", twin_local_swiglu},
    {"erc.run_local, output", twin_local_output},
    {"erc.run_local, gate_up", twin_local_gate_up},
};
enum { N_OPERATIONS = sizeof operations / sizeof *operations };

/* ---- two backends agree as sums of k terms in different orders do: C eps sqrt(k) of the norm, eps
 * being that of the type of the operands ---- */

static const double C = 8;

/* ---- comparing ---- */

/* Runs an operation with the same random numbers for every backend. */
static results run_on(cpl_backend *be, int operation, const shape *s, cpl_dtype type, bool rounds)
{
    results r         = {.terms = 1, .type = type, .rounds = rounds};
    taken()->n_random = 1000;
    be->failure       = CPL_OK;
    operations[operation].run(be, s, &r);
    assert_ok(be->ops->sync(be));
    return r;
}

static void compare(const char *what, const results *a, const results *b, double eps)
{
    for (int i = 0; i < a->count; i++) {
        if (a->at[i].dtype == CPL_I32 || eps == 0)
            assert_same_bits(a->at[i], b->at[i]);
        else
            assert_close(what, a->at[i], doubles_of(b->at[i]),
                         C * eps * sqrt((double)(a->terms > 0 ? a->terms : 1)), 0);
    }
}

/* Checks all operations of two backends on one shape and type. With `eps` 0 the bits must agree. */
static void check_shape(void **state, cpl_backend *a, cpl_backend *b, const shape *s,
                        cpl_dtype type, double eps)
{
    char what[128];
    const cpl_work work = whole_work(work_of(s));
    assert_ok(cpl_backend_reserve(a, &work));
    assert_ok(cpl_backend_reserve(b, &work));
    for (int i = 0; i < N_OPERATIONS; i++, release_all(state)) {
        snprintf(what, sizeof what, "%s, %s", operations[i].name, s->what);
        results of_a = run_on(a, i, s, type, false), of_b = run_on(b, i, s, type, false);
        compare(what, &of_a, &of_b, eps);
    }
}

#endif /* CPL_TESTS_TENSOR_TWINS_H */
