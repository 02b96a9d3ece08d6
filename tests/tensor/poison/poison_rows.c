/* poison_rows.c - the wrapped operations on rows: norms, flat arrays, embedding, positions. */
#include "tensor/poison/poison.h"

void cpl_poison_rms_norm(cpl_backend *be, cpl_tensor y, cpl_tensor inv, cpl_tensor x,
                         cpl_tensor weight, float eps)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    cpl_poison_activation(be, x, T, d);
    cpl_poison_activation(be, y, T, d);
    cpl_poison_holds(inv, CPL_F32, T);
    cpl_poison_holds(weight, CPL_F32, d);
    cpl_poison_apart(CPL_POISON_LIST(y, inv), CPL_POISON_LIST(x, weight));
    cpl_poison_set(y);
    cpl_poison_set(inv);
    CPL_POISON_CALL(rms_norm, y, inv, x, weight, eps);
}

/* dx may be dy. */
void cpl_poison_rms_norm_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dweight, cpl_tensor dy,
                                  cpl_tensor x, cpl_tensor weight, cpl_tensor inv, float beta)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    CPL_ASSERT(beta == 0 || beta == 1);
    cpl_poison_activation(be, x, T, d);
    cpl_poison_fits(dx, CPL_F32, T, d);
    cpl_poison_fits(dy, CPL_F32, T, d);
    cpl_poison_holds(dweight, CPL_F32, d);
    cpl_poison_holds(weight, CPL_F32, d);
    cpl_poison_holds(inv, CPL_F32, T);
    cpl_poison_apart(CPL_POISON_LIST(dx, dweight), CPL_POISON_LIST(x, weight, inv));
    if (dx.storage != dy.storage)
        cpl_poison_apart(CPL_POISON_LIST(dx, dweight), CPL_POISON_LIST(dy));
    if (beta == 0 && dx.storage != dy.storage) cpl_poison_set(dx);
    CPL_POISON_CALL(rms_norm_backward, dx, dweight, dy, x, weight, inv, beta);
}

/* Poisons y unless it is x itself. y must not be a part of x. */
static void poison_unless_same(const cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    cpl_poison_activation(be, x, cpl_tensor_rows(x), cpl_tensor_cols(x));
    cpl_poison_activation(be, y, cpl_tensor_rows(x), cpl_tensor_cols(x));
    if (y.storage == x.storage) return;
    cpl_poison_apart(CPL_POISON_LIST(y), CPL_POISON_LIST(x));
    cpl_poison_set(y);
}

void cpl_poison_clamp(cpl_backend *be, cpl_tensor y, cpl_tensor x, float limit)
{
    CPL_ASSERT(limit >= 0);
    poison_unless_same(be, y, x);
    CPL_POISON_CALL(clamp, y, x, limit);
}

void cpl_poison_clamp_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dy, cpl_tensor x,
                               float limit)
{
    cpl_poison_holds(dy, CPL_F32, cpl_tensor_count(x));
    cpl_poison_apart(CPL_POISON_LIST(dx), CPL_POISON_LIST(x));
    poison_unless_same(be, dx, dy);
    CPL_POISON_CALL(clamp_backward, dx, dy, x, limit);
}

void cpl_poison_centre(cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    cpl_poison_fits(y, CPL_F32, x.shape[0], x.shape[1]);
    cpl_poison_is_float(x);
    poison_unless_same(be, y, x);
    CPL_POISON_CALL(centre, y, x);
}

void cpl_poison_unit_rows(cpl_backend *be, cpl_tensor y, cpl_tensor x, cpl_tensor mean,
                          double scale)
{
    cpl_poison_holds(x, CPL_F32, cpl_tensor_count(x));
    cpl_poison_holds(y, CPL_F32, cpl_tensor_count(x));
    cpl_poison_holds(mean, CPL_F32, x.shape[1]);
    cpl_poison_apart(CPL_POISON_LIST(y), CPL_POISON_LIST(mean));
    poison_unless_same(be, y, x);
    CPL_POISON_CALL(unit_rows, y, x, mean, scale);
}

void cpl_poison_unit_rows_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dy, cpl_tensor x,
                                   double scale)
{
    cpl_poison_holds(dx, CPL_F32, cpl_tensor_count(x));
    cpl_poison_holds(dy, CPL_F32, cpl_tensor_count(x));
    cpl_poison_apart(CPL_POISON_LIST(dx), CPL_POISON_LIST(x));
    poison_unless_same(be, dx, dy);
    CPL_POISON_CALL(unit_rows_backward, dx, dy, x, scale);
}

void cpl_poison_add(cpl_backend *be, cpl_tensor y, cpl_tensor x, float scale)
{
    cpl_poison_holds(y, y.dtype == CPL_F64 ? CPL_F64 : CPL_F32, cpl_tensor_count(x));
    cpl_poison_apart(CPL_POISON_LIST(y), CPL_POISON_LIST(x));
    CPL_POISON_CALL(add, y, x, scale);
}

void cpl_poison_add_product(cpl_backend *be, cpl_tensor y, cpl_tensor a, cpl_tensor b)
{
    const int64_t count = cpl_tensor_count(y);
    cpl_poison_holds(y, CPL_F32, count);
    cpl_poison_holds(a, CPL_F32, count);
    cpl_poison_holds(b, CPL_F32, count);
    cpl_poison_apart(CPL_POISON_LIST(y), CPL_POISON_LIST(a, b));
    CPL_POISON_CALL(add_product, y, a, b);
}

void cpl_poison_fill(cpl_backend *be, cpl_tensor y, float value)
{
    cpl_poison_holds(y, y.dtype, cpl_tensor_count(y));
    CPL_ASSERT(y.dtype != CPL_BF16);
    cpl_poison_set(y);
    CPL_POISON_CALL(fill, y, value);
}

void cpl_poison_copy(cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    cpl_poison_is_float(x);
    cpl_poison_is_float(y);
    cpl_poison_holds(y, y.dtype, cpl_tensor_count(x));
    cpl_poison_apart(CPL_POISON_LIST(y), CPL_POISON_LIST(x));
    cpl_poison_set(y);
    CPL_POISON_CALL(copy, y, x);
}

void cpl_poison_embed(cpl_backend *be, cpl_tensor y, cpl_tensor table, cpl_tensor ids)
{
    cpl_poison_is_float(table);
    cpl_poison_activation(be, y, cpl_tensor_count(ids), table.shape[1]);
    cpl_poison_in_range(ids, 0, table.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(y), CPL_POISON_LIST(table, ids));
    cpl_poison_set(y);
    CPL_POISON_CALL(embed, y, table, ids);
}

void cpl_poison_embed_backward(cpl_backend *be, cpl_tensor dtable, cpl_tensor dy, cpl_tensor ids)
{
    cpl_poison_fits(dy, CPL_F32, cpl_tensor_count(ids), dtable.shape[1]);
    cpl_poison_fits(dtable, CPL_F32, dtable.shape[0], dtable.shape[1]);
    cpl_poison_in_range(ids, 0, dtable.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(dtable), CPL_POISON_LIST(dy, ids));
    CPL_POISON_CALL(embed_backward, dtable, dy, ids);
}

void cpl_poison_rope_table(cpl_backend *be, cpl_tensor table, float theta)
{
    CPL_ASSERT(table.rank == 3 && table.shape[2] == 2 && theta > 0);
    cpl_poison_set(table);
    CPL_POISON_CALL(rope_table, table, theta);
}

void cpl_poison_rope(cpl_backend *be, cpl_tensor x, cpl_tensor table, int64_t n_heads,
                     int64_t n_queries, int64_t first, int direction)
{
    CPL_ASSERT(table.rank == 3 && table.shape[2] == 2);
    CPL_ASSERT(direction == 1 || direction == -1);
    CPL_ASSERT(first >= 0 && first + n_queries <= table.shape[0]);
    cpl_poison_activation(be, x, cpl_tensor_rows(x), n_heads * table.shape[1] * 2);
    cpl_poison_apart(CPL_POISON_LIST(x), CPL_POISON_LIST(table));
    CPL_POISON_CALL(rope, x, table, n_heads, n_queries, first, direction);
}

void cpl_poison_rope_at(cpl_backend *be, cpl_tensor x, cpl_tensor table, int64_t n_heads,
                        cpl_tensor position)
{
    CPL_ASSERT(table.rank == 3 && table.shape[2] == 2);
    cpl_poison_activation(be, x, cpl_tensor_rows(x), n_heads * table.shape[1] * 2);
    cpl_poison_holds(position, CPL_I32, cpl_tensor_rows(x));
    cpl_poison_in_range(position, 0, table.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(x), CPL_POISON_LIST(table, position));
    CPL_POISON_CALL(rope_at, x, table, n_heads, position);
}

/* ---- whole tensors: sums, optimizer, random numbers, drawing ---- */

void cpl_poison_sum(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    cpl_poison_holds(out, CPL_F64, 1);
    cpl_poison_holds(x, CPL_F32, cpl_tensor_count(x));
    CPL_POISON_CALL(sum, out, x);
}

void cpl_poison_count_negative(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    cpl_poison_holds(out, CPL_F64, 1);
    cpl_poison_holds(x, CPL_F32, cpl_tensor_count(x));
    CPL_POISON_CALL(count_negative, out, x);
}

void cpl_poison_column_moments(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    cpl_poison_is_float(x);
    cpl_poison_holds(out, CPL_F64, 2 * x.shape[1]);
    CPL_POISON_CALL(column_moments, out, x);
}

void cpl_poison_dot(cpl_backend *be, cpl_tensor out, cpl_tensor x, cpl_tensor y)
{
    cpl_poison_holds(out, CPL_F64, 1);
    cpl_poison_holds(x, CPL_F32, cpl_tensor_count(x));
    cpl_poison_holds(y, CPL_F32, cpl_tensor_count(x));
    CPL_POISON_CALL(dot, out, x, y);
}

void cpl_poison_row_norms(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    cpl_poison_activation(be, x, cpl_tensor_rows(x), cpl_tensor_cols(x));
    cpl_poison_holds(out, CPL_F32, x.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(out), CPL_POISON_LIST(x));
    cpl_poison_set(out);
    CPL_POISON_CALL(row_norms, out, x);
}

void cpl_poison_spectral_norms(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    cpl_poison_is_float(x);
    cpl_poison_holds(out, CPL_F32, x.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(out), CPL_POISON_LIST(x));
    cpl_poison_set(out);
    CPL_POISON_CALL(spectral_norms, out, x);
}

void cpl_poison_own_responses(cpl_backend *be, cpl_tensor out, cpl_tensor rows, cpl_tensor x)
{
    cpl_poison_is_float(x);
    cpl_poison_holds(out, CPL_F32, x.shape[0]);
    cpl_poison_fits(rows, CPL_F32, x.shape[0], x.shape[2]);
    cpl_poison_apart(CPL_POISON_LIST(out), CPL_POISON_LIST(rows, x));
    cpl_poison_set(out);
    CPL_POISON_CALL(own_responses, out, rows, x);
}

void cpl_poison_coupling_figures(cpl_backend *be, cpl_tensor out, cpl_tensor M, cpl_tensor eps,
                                 cpl_tensor R, cpl_tensor rows, cpl_tensor delta,
                                 cpl_tensor gate_norm, cpl_tensor gate_spectral, cpl_tensor own,
                                 double alpha, int64_t top_k)
{
    const int64_t n = R.shape[0], d = R.shape[1];
    cpl_poison_holds(out, CPL_F64, CPL_N_FIGURES);
    cpl_poison_fits(M, CPL_F32, n, n);
    cpl_poison_holds(eps, CPL_F32, n);
    cpl_poison_fits(R, CPL_F32, n, d);
    cpl_poison_fits(rows, CPL_F32, n, d);
    if (delta.storage) cpl_poison_fits(delta, CPL_F32, n, d);
    cpl_poison_holds(gate_norm, CPL_F32, n);
    if (gate_spectral.storage) cpl_poison_holds(gate_spectral, CPL_F32, n);
    if (own.storage) cpl_poison_holds(own, CPL_F32, n);
    CPL_POISON_CALL(coupling_figures, out, M, eps, R, rows, delta, gate_norm, gate_spectral, own,
                    alpha, top_k);
}

void cpl_poison_adamw(cpl_backend *be, cpl_tensor p, cpl_tensor m, cpl_tensor v, cpl_tensor copy,
                      cpl_tensor grad, float coef, float lr, float decay, float beta1, float beta2,
                      float eps, double correct1, double correct2)
{
    const int64_t count = cpl_tensor_count(p);
    cpl_poison_holds(p, CPL_F32, count);
    cpl_poison_holds(m, CPL_F32, count);
    cpl_poison_holds(v, CPL_F32, count);
    cpl_poison_holds(grad, CPL_F32, count);
    if (copy.storage) cpl_poison_holds(copy, CPL_BF16, count);
    cpl_poison_apart(CPL_POISON_LIST(p, m, v, copy), CPL_POISON_LIST(grad));
    cpl_poison_set(copy);
    CPL_POISON_CALL(adamw, p, m, v, copy, grad, coef, lr, decay, beta1, beta2, eps, correct1,
                    correct2);
}

void cpl_poison_normal(cpl_backend *be, cpl_tensor y, float std, float cut, cpl_rng_key key,
                       int64_t first)
{
    cpl_poison_holds(y, CPL_F32, cpl_tensor_count(y));
    cpl_poison_set(y);
    CPL_POISON_CALL(normal, y, std, cut, key, first);
}

void cpl_poison_sample(cpl_backend *be, cpl_tensor id, cpl_tensor logits, float temperature,
                       float top_p, float uniform)
{
    cpl_poison_holds(id, CPL_I32, 1);
    cpl_poison_holds(logits, CPL_F32, cpl_tensor_count(logits));
    CPL_ASSERT(uniform >= 0 && uniform < 1);
    cpl_poison_set(id);
    CPL_POISON_CALL(sample, id, logits, temperature, top_p, uniform);
    cpl_poison_in_range(id, 0, cpl_tensor_count(logits));
}
