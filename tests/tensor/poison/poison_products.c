/* poison_products.c - the wrapped operations with products in them: products, attention, experts,
 * cross-entropy. */
#include "tensor/poison/poison.h"

/* ---- products ---- */

static void check_gemm(const cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a,
                       cpl_trans tb, cpl_tensor b, float beta)
{
    const int64_t m = a.shape[ta == CPL_TRANSPOSED], k = a.shape[ta != CPL_TRANSPOSED];
    const int64_t n = b.shape[tb != CPL_TRANSPOSED], k_too = b.shape[tb == CPL_TRANSPOSED];
    CPL_ASSERT(a.rank == 2 && b.rank == 2 && c.rank == 2);
    CPL_ASSERT(k == k_too && (beta == 0 || beta == 1));
    cpl_poison_activation(be, c, m, n);
    CPL_ASSERT(c.dtype == CPL_F32 || (ta == CPL_AS_IS && beta == 0));
    cpl_poison_is_float(a);
    cpl_poison_is_float(b);
    cpl_poison_apart(CPL_POISON_LIST(c), CPL_POISON_LIST(a, b));
    if (beta == 0) cpl_poison_set(c);
}

void cpl_poison_gemm(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a, cpl_trans tb,
                     cpl_tensor b, float beta)
{
    check_gemm(be, c, ta, a, tb, b, beta);
    CPL_POISON_CALL(gemm, c, ta, a, tb, b, beta);
}

void cpl_poison_gemm_f32(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a, cpl_trans tb,
                         cpl_tensor b, float beta)
{
    check_gemm(be, c, ta, a, tb, b, beta);
    CPL_POISON_CALL(gemm_f32, c, ta, a, tb, b, beta);
}

void cpl_poison_linear_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dw, cpl_tensor dy,
                                cpl_tensor x, cpl_tensor w, float beta)
{
    CPL_ASSERT(dx.dtype == CPL_F32 && dw.dtype == CPL_F32);
    check_gemm(be, dx, CPL_AS_IS, dy, CPL_AS_IS, w, beta);
    check_gemm(be, dw, CPL_TRANSPOSED, dy, CPL_AS_IS, x, 1);
    cpl_poison_apart(CPL_POISON_LIST(dx), CPL_POISON_LIST(dw, x));
    CPL_POISON_CALL(linear_backward, dx, dw, dy, x, w, beta);
}

/* ---- attention ---- */

static void check_attention(const cpl_backend *be, cpl_tensor q, cpl_tensor k, cpl_tensor v,
                            cpl_tensor doc_start, cpl_attention_shape s)
{
    CPL_ASSERT(s.n_heads % s.n_kv_heads == 0);
    CPL_ASSERT(s.n_queries <= s.n_keys && s.n_keys <= s.key_stride);
    cpl_poison_activation(be, q, s.batch * s.n_queries, s.n_heads * s.head_dim);
    cpl_poison_activation(be, k, s.batch * s.key_stride, s.n_kv_heads * s.head_dim);
    cpl_poison_activation(be, v, s.batch * s.key_stride, s.n_kv_heads * s.head_dim);
    if (!doc_start.storage) return;
    cpl_poison_holds(doc_start, CPL_I32, s.batch * s.n_keys);
    for (int64_t i = 0; i < s.batch * s.n_keys; i++) {
        const int32_t start = cpl_i32(doc_start)[i];
        CPL_ASSERT(start >= 0 && start <= i % s.n_keys);
    }
}

void cpl_poison_attention(cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q,
                          cpl_tensor k, cpl_tensor v, cpl_tensor doc_start,
                          cpl_attention_shape shape)
{
    check_attention(be, q, k, v, doc_start, shape);
    cpl_poison_activation(be, out, cpl_tensor_rows(q), cpl_tensor_cols(q));
    cpl_poison_holds(lse, CPL_F32, shape.batch * shape.n_heads * shape.n_queries);
    cpl_poison_apart(CPL_POISON_LIST(out, lse), CPL_POISON_LIST(q, k, v, doc_start));
    cpl_poison_set(out);
    cpl_poison_set(lse);
    CPL_POISON_CALL(attention, out, lse, q, k, v, doc_start, shape);
}

/* Asserts that segments lie in q and in key_row, and share no row of either. */
static void check_segments(cpl_tensor q, cpl_segments segments)
{
    const cpl_segment *list = (const cpl_segment *)(void *)cpl_i32(segments.at);
    int64_t row = 0, key = 0;
    for (int64_t i = 0; i < segments.at.shape[0]; i++) {
        const cpl_segment *at = &list[i];
        CPL_ASSERT(at->n_queries > 0 && at->n_queries <= at->n_keys);
        CPL_ASSERT(at->first >= row && at->first_key >= key);
        row = at->first + at->n_queries;
        key = at->first_key + at->n_keys;
    }
    CPL_ASSERT(row <= cpl_tensor_rows(q) && key <= cpl_tensor_count(segments.key_row));
}

/* Rows of out outside of all segments keep their numbers, so that out is not filled first. */
void cpl_poison_attention_segments(cpl_backend *be, cpl_tensor out, cpl_tensor q, cpl_tensor k,
                                   cpl_tensor v, cpl_segments segments)
{
    const cpl_segment *list = (const cpl_segment *)(void *)cpl_i32(segments.at);
    const int64_t width     = segments.n_kv_heads * segments.head_dim;
    CPL_ASSERT(segments.n_heads % segments.n_kv_heads == 0);
    cpl_poison_fits(q, CPL_F32, cpl_tensor_rows(q), segments.n_heads * segments.head_dim);
    cpl_poison_fits(out, CPL_F32, cpl_tensor_rows(q), cpl_tensor_cols(q));
    cpl_poison_fits(k, CPL_F32, cpl_tensor_rows(k), width);
    cpl_poison_fits(v, CPL_F32, cpl_tensor_rows(k), width);
    cpl_poison_holds(segments.key_row, CPL_I32, cpl_tensor_count(segments.key_row));
    cpl_poison_in_range(segments.key_row, 0, cpl_tensor_rows(k));
    cpl_poison_fits(segments.at, CPL_I32, segments.at.shape[0], 4);
    check_segments(q, segments);
    cpl_poison_apart(CPL_POISON_LIST(out), CPL_POISON_LIST(q, k, v, segments.key_row));
    for (int64_t i = 0; i < segments.at.shape[0]; i++) {
        const cpl_segment *at = &list[i];
        cpl_poison_set(cpl_tensor_2d(cpl_f32(out) + at->first * cpl_tensor_cols(out), CPL_F32,
                                     at->n_queries, cpl_tensor_cols(out)));
    }
    CPL_POISON_CALL(attention_segments, out, q, k, v, segments);
}

void cpl_poison_attention_backward(cpl_backend *be, cpl_tensor dq, cpl_tensor dk, cpl_tensor dv,
                                   cpl_tensor dout, cpl_tensor out, cpl_tensor lse, cpl_tensor q,
                                   cpl_tensor k, cpl_tensor v, cpl_tensor doc_start,
                                   cpl_attention_shape shape)
{
    check_attention(be, q, k, v, doc_start, shape);
    CPL_ASSERT(shape.n_queries == shape.n_keys && shape.n_keys == shape.key_stride);
    cpl_poison_fits(dq, CPL_F32, cpl_tensor_rows(q), cpl_tensor_cols(q));
    cpl_poison_fits(dout, CPL_F32, cpl_tensor_rows(q), cpl_tensor_cols(q));
    cpl_poison_activation(be, out, cpl_tensor_rows(q), cpl_tensor_cols(q));
    cpl_poison_fits(dk, CPL_F32, cpl_tensor_rows(k), cpl_tensor_cols(k));
    cpl_poison_fits(dv, CPL_F32, cpl_tensor_rows(v), cpl_tensor_cols(v));
    cpl_poison_holds(lse, CPL_F32, shape.batch * shape.n_heads * shape.n_queries);
    cpl_poison_apart(CPL_POISON_LIST(dq, dk, dv),
                     CPL_POISON_LIST(dout, out, lse, q, k, v, doc_start));
    cpl_poison_set(dq);
    cpl_poison_set(dk);
    cpl_poison_set(dv);
    CPL_POISON_CALL(attention_backward, dq, dk, dv, dout, out, lse, q, k, v, doc_start, shape);
}

/* ---- experts ---- */

/* Checks the matrices of experts. r: width of the gates' input. */
static void check_matrices(cpl_expert_weights w, int64_t n, int64_t D, int64_t d, int64_t r)
{
    cpl_poison_is_float(w.w_gate);
    CPL_ASSERT(w.w_up.dtype == w.w_gate.dtype && w.w_down.dtype == w.w_gate.dtype);
    CPL_ASSERT(w.w_gate.rank == 3 && w.w_up.rank == 3 && w.w_down.rank == 3);
    CPL_ASSERT(w.w_gate.shape[0] == n && w.w_up.shape[0] == n && w.w_down.shape[0] == n);
    cpl_poison_fits(w.w_gate, w.w_gate.dtype, n * D, r);
    cpl_poison_fits(w.w_up, w.w_gate.dtype, n * D, d);
    cpl_poison_fits(w.w_down, w.w_gate.dtype, n * d, D);
}

/* Checks `hidden`, which may be absent, and returns the width of the gates' input. */
static int64_t check_hidden(const cpl_backend *be, cpl_tensor hidden, int64_t T, int64_t n,
                            int64_t d)
{
    if (!hidden.storage) return d;
    CPL_ASSERT(hidden.rank == 3 && hidden.shape[0] == T);
    cpl_poison_activation(be, hidden, T * n, hidden.shape[2]);
    return hidden.shape[2];
}

void cpl_poison_experts(cpl_backend *be, cpl_tensor y, cpl_tensor gate, cpl_tensor up, cpl_tensor x,
                        cpl_tensor hidden, cpl_tensor weight, cpl_dispatch plan,
                        cpl_expert_weights w)
{
    const int64_t T = weight.shape[0], K = weight.shape[1];
    const int64_t n = w.w_up.shape[0], D = w.w_up.shape[1], d = w.w_up.shape[2];
    check_matrices(w, n, D, d, check_hidden(be, hidden, T, n, d));
    cpl_poison_plan(plan, T, K, n);
    cpl_poison_activation(be, x, T, d);
    cpl_poison_fits(y, CPL_F32, T, d);
    cpl_poison_fits(weight, CPL_F32, T, K);
    CPL_ASSERT(!gate.storage == !up.storage);
    if (gate.storage) cpl_poison_activation(be, gate, T * K, D);
    if (up.storage) cpl_poison_activation(be, up, T * K, D);
    cpl_poison_apart(CPL_POISON_LIST(y, gate, up),
                     CPL_POISON_LIST(x, hidden, weight, w.w_gate, w.w_up, w.w_down, plan.offset,
                                     plan.token, plan.row));
    cpl_poison_set(y);
    cpl_poison_set(gate);
    cpl_poison_set(up);
    CPL_POISON_CALL(experts, y, gate, up, x, hidden, weight, plan, w);
}

/* The contents of gate and up are undefined afterwards, so that they are poisoned. */
void cpl_poison_experts_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dhidden,
                                 cpl_tensor dweight, cpl_expert_weights dw, cpl_tensor dy,
                                 cpl_tensor gate, cpl_tensor up, cpl_tensor x, cpl_tensor hidden,
                                 cpl_tensor weight, cpl_dispatch plan, cpl_expert_weights w)
{
    const int64_t T = weight.shape[0], K = weight.shape[1];
    const int64_t n = w.w_up.shape[0], D = w.w_up.shape[1], d = w.w_up.shape[2];
    const int64_t r = check_hidden(be, hidden, T, n, d);
    check_matrices(w, n, D, d, r);
    check_matrices(dw, n, D, d, r);
    CPL_ASSERT(!hidden.storage == !dhidden.storage);
    if (dhidden.storage) cpl_poison_fits(dhidden, CPL_F32, T * K, r);
    CPL_ASSERT(dw.w_gate.dtype == CPL_F32);
    cpl_poison_plan(plan, T, K, n);
    cpl_poison_fits(dx, CPL_F32, T, d);
    cpl_poison_fits(dy, CPL_F32, T, d);
    cpl_poison_activation(be, x, T, d);
    cpl_poison_fits(dweight, CPL_F32, T, K);
    cpl_poison_activation(be, gate, T * K, D);
    cpl_poison_activation(be, up, T * K, D);
    cpl_poison_apart(CPL_POISON_LIST(dx, dhidden, dweight, dw.w_gate, dw.w_up, dw.w_down, gate, up),
                     CPL_POISON_LIST(dy, x, hidden, weight, w.w_gate, w.w_up, w.w_down, plan.offset,
                                     plan.token, plan.row));
    cpl_poison_set(dweight);
    cpl_poison_set(dhidden);
    CPL_POISON_CALL(experts_backward, dx, dhidden, dweight, dw, dy, gate, up, x, hidden, weight,
                    plan, w);
    cpl_poison_set(gate);
    cpl_poison_set(up);
}

void cpl_poison_hidden_backward(cpl_backend *be, cpl_tensor hidden, cpl_tensor norm,
                                cpl_tensor dnorm, cpl_tensor dchosen, cpl_tensor expert,
                                cpl_dispatch plan)
{
    const int64_t T = expert.shape[0], K = expert.shape[1], n = norm.shape[1];
    const int64_t r = check_hidden(be, hidden, T, n, hidden.shape[2]);
    cpl_poison_fits(norm, CPL_F32, T, n);
    cpl_poison_fits(dnorm, CPL_F32, T, n);
    cpl_poison_fits(dchosen, CPL_F32, T * K, r);
    cpl_poison_fits(expert, CPL_I32, T, K);
    cpl_poison_in_range(expert, 0, n);
    cpl_poison_plan(plan, T, K, n);
    cpl_poison_apart(CPL_POISON_LIST(hidden), CPL_POISON_LIST(norm, dnorm, dchosen, expert,
                                                              plan.offset, plan.token, plan.row));
    CPL_ASSERT(hidden.storage != NULL);
    CPL_POISON_CALL(hidden_backward, hidden, norm, dnorm, dchosen, expert, plan);
}

/* ---- cross-entropy ---- */

static void check_xent(const cpl_backend *be, cpl_tensor nll, cpl_tensor x, cpl_tensor head,
                       cpl_tensor target)
{
    CPL_ASSERT(head.rank == 2);
    cpl_poison_is_float(head);
    cpl_poison_activation(be, x, x.shape[0], head.shape[1]);
    cpl_poison_holds(nll, CPL_F32, x.shape[0]);
    cpl_poison_holds(target, CPL_I32, x.shape[0]);
    cpl_poison_in_range(target, -1, head.shape[0]);
}

void cpl_poison_xent(cpl_backend *be, cpl_tensor nll, cpl_tensor x, cpl_tensor head,
                     cpl_tensor target)
{
    check_xent(be, nll, x, head, target);
    cpl_poison_apart(CPL_POISON_LIST(nll), CPL_POISON_LIST(x, head, target));
    cpl_poison_set(nll);
    CPL_POISON_CALL(xent, nll, x, head, target);
}

void cpl_poison_log_probs(cpl_backend *be, cpl_tensor out, cpl_tensor logits, cpl_tensor row,
                          cpl_tensor id)
{
    const int64_t P = cpl_tensor_count(out);
    cpl_poison_fits(logits, CPL_F32, logits.shape[0], logits.shape[1]);
    cpl_poison_holds(out, CPL_F32, P);
    cpl_poison_holds(row, CPL_I32, P);
    cpl_poison_holds(id, CPL_I32, P);
    cpl_poison_in_range(row, 0, logits.shape[0]);
    cpl_poison_in_range(id, 0, logits.shape[1]);
    cpl_poison_apart(CPL_POISON_LIST(out), CPL_POISON_LIST(logits, row, id));
    cpl_poison_set(out);
    CPL_POISON_CALL(log_probs, out, logits, row, id);
}

void cpl_poison_xent_train(cpl_backend *be, cpl_tensor nll, cpl_tensor dx, cpl_tensor dhead,
                           cpl_tensor x, cpl_tensor head, cpl_tensor target, float scale)
{
    check_xent(be, nll, x, head, target);
    cpl_poison_fits(dx, CPL_F32, x.shape[0], x.shape[1]);
    cpl_poison_fits(dhead, CPL_F32, head.shape[0], head.shape[1]);
    cpl_poison_apart(CPL_POISON_LIST(nll, dx, dhead), CPL_POISON_LIST(x, head, target));
    cpl_poison_set(nll);
    cpl_poison_set(dx);
    CPL_POISON_CALL(xent_train, nll, dx, dhead, x, head, target, scale);
}
