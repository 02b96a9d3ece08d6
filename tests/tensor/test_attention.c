/* Attention, forward and backward, against plain double. The gradient in double is compared with
 * central differences. */
#include "base/arena.h"
#include "tensor/levels.h"
#include "tensor/ops_check.h"

static const double C    = 16;
static const double BF16 = 0x1p-6; /* operands keep 8 bits; p and its products */

typedef cpl_attention_shape shape;

typedef struct problem {
    shape s;
    cpl_tensor q, k, v, dout, doc_start;
} problem;

/* Returns a problem with documents of `length`, shifted by the sequence, or a single one for 0. */
static problem new_problem(shape s, int64_t length, float size)
{
    const int64_t queries = s.batch * s.n_queries, wide = s.n_heads * s.head_dim;
    const int64_t keys = s.batch * s.key_stride, slim = s.n_kv_heads * s.head_dim;
    problem p = LIST(s, normal_2d(queries, wide, size), normal_2d(keys, slim, size),
                     normal_2d(keys, slim, 1), normal_2d(queries, wide, 1), cpl_tensor_none());
    if (length == 0) return p;
    p.doc_start = new_tensor(CPL_I32, s.batch, s.n_keys);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t i = 0; i < s.n_keys; i++) {
            int64_t start                          = (i + b) / length * length - b;
            cpl_i32(p.doc_start)[b * s.n_keys + i] = (int32_t)(start < 0 ? 0 : start);
        }
    return p;
}

/* ---- the equations in double ---- */

typedef struct wide {
    shape s;
    const int32_t *doc_start;
    double *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
} wide;

static wide widen(const problem *p)
{
    wide w    = {.s = p->s, .doc_start = p->doc_start.storage};
    int64_t q = cpl_tensor_count(p->q), k = cpl_tensor_count(p->k);
    w.q    = doubles_of(p->q);
    w.k    = doubles_of(p->k);
    w.v    = doubles_of(p->v);
    w.dout = doubles_of(p->dout);
    w.out  = new_doubles(q);
    w.lse  = new_doubles(q / p->s.head_dim);
    w.dq   = new_doubles(q);
    w.dk   = new_doubles(k);
    w.dv   = new_doubles(k);
    return w;
}

/* Computes one query of one head. p [n_keys] is scratch. */
static void query(wide *w, int64_t b, int64_t head, int64_t i, double *p, bool backward)
{
    const shape s   = w->s;
    const int64_t h = s.head_dim, at = ((b * s.n_queries + i) * s.n_heads + head) * h;
    const int64_t pos = s.n_keys - s.n_queries + i, step = s.n_kv_heads * h;
    const int64_t base  = b * s.key_stride * step + head / (s.n_heads / s.n_kv_heads) * h;
    const int64_t first = w->doc_start ? w->doc_start[b * s.n_keys + pos] : 0;
    const double scale  = 1 / sqrt((double)h);
    double largest = -INFINITY, sum = 0, dot = 0;
    for (int64_t j = first; j <= pos; j++) {
        p[j] = 0;
        for (int64_t a = 0; a < h; a++) p[j] += scale * w->q[at + a] * w->k[base + j * step + a];
        largest = p[j] > largest ? p[j] : largest;
    }
    for (int64_t j = first; j <= pos; j++) sum += exp(p[j] - largest);
    w->lse[(b * s.n_heads + head) * s.n_queries + i] = largest + log(sum);
    for (int64_t a = 0; a < h; a++) w->out[at + a] = 0;
    for (int64_t j = first; j <= pos; j++) {
        p[j] = exp(p[j] - largest) / sum;
        for (int64_t a = 0; a < h; a++) w->out[at + a] += p[j] * w->v[base + j * step + a];
    }
    for (int64_t a = 0; a < h; a++) dot += w->dout[at + a] * w->out[at + a];
    for (int64_t j = first; backward && j <= pos; j++) {
        double dp = 0;
        for (int64_t a = 0; a < h; a++) dp += w->dout[at + a] * w->v[base + j * step + a];
        const double ds = scale * p[j] * (dp - dot);
        for (int64_t a = 0; a < h; a++) {
            w->dv[base + j * step + a] += p[j] * w->dout[at + a];
            w->dk[base + j * step + a] += ds * w->q[at + a];
            w->dq[at + a] += ds * w->k[base + j * step + a];
        }
    }
}

static void equations(wide *w, bool backward)
{
    double *p = malloc((size_t)w->s.n_keys * sizeof *p + 8);
    for (int64_t b = 0; b < w->s.batch; b++)
        for (int64_t head = 0; head < w->s.n_heads; head++)
            for (int64_t i = 0; i < w->s.n_queries; i++) query(w, b, head, i, p, backward);
    free(p);
}

static double loss(void *context)
{
    wide *w    = context;
    double sum = 0;
    equations(w, false);
    for (int64_t i = 0; i < w->s.batch * w->s.n_queries * w->s.n_heads * w->s.head_dim; i++)
        sum += w->dout[i] * w->out[i];
    return sum;
}

TEST(equations_agree_with_differences)
{
    problem p = new_problem((shape){2, 5, 5, 5, 4, 2, 3}, 3, 1);
    wide w    = widen(&p);
    equations(&w, true);
    int64_t q = cpl_tensor_count(p.q), k = cpl_tensor_count(p.k);
    assert_doubles("dq", w.dq, gradient(loss, &w, w.q, q), q);
    assert_doubles("dk", w.dk, gradient(loss, &w, w.k, k), k);
    assert_doubles("dv", w.dv, gradient(loss, &w, w.v, k), k);
}

/* ---- the operation ---- */

typedef struct answer {
    cpl_tensor out, lse, dq, dk, dv;
} answer;

static cpl_backend *backend_for(shape s, cpl_dtype compute, int n_threads)
{
    return new_cpu(compute, n_threads,
                   (cpl_work){.n_tokens = s.batch * s.n_queries,
                              .d_model  = s.n_heads * s.head_dim,
                              .n_heads  = s.n_heads,
                              .training = true});
}

static cpl_tensor nans_like(cpl_tensor x)
{
    cpl_tensor y = copy_of(x);
    for (int64_t i = 0; i < cpl_tensor_count(y); i++) cpl_f32(y)[i] = NAN;
    return y;
}

static answer attend(cpl_backend *be, const problem *p, bool backward)
{
    const shape s = p->s;
    answer a      = {.out = nans_like(p->q), .lse = normal_2d(s.batch * s.n_heads, s.n_queries, 1)};
    int64_t before = cpl_alloc_count();
    be->ops->attention(be, a.out, a.lse, p->q, p->k, p->v, p->doc_start, s);
    if (backward) {
        a.dq = nans_like(p->q);
        a.dk = nans_like(p->k);
        a.dv = nans_like(p->k);
        be->ops->attention_backward(be, a.dq, a.dk, a.dv, p->dout, a.out, a.lse, p->q, p->k, p->v,
                                    p->doc_start, s);
    }
    assert_int_equal(cpl_alloc_count(), before);
    assert_ok(be->ops->sync(be));
    return a;
}

/* The floor of a gradient that cancels (one key: ds = 0) comes from the size of its terms. */
static void compare(const answer *a, const problem *p, double limit, bool backward)
{
    wide w       = widen(p);
    double floor = limit * sqrt((double)cpl_tensor_count(p->q));
    equations(&w, true);
    assert_close("out", a->out, w.out, limit, 0);
    assert_close("lse", a->lse, w.lse, limit, floor);
    if (!backward) return;
    assert_close("dq", a->dq, w.dq, limit, floor);
    assert_close("dk", a->dk, w.dk, limit, floor);
    assert_close("dv", a->dv, w.dv, limit, 0);
}

static void assert_same_answer(const answer *a, const answer *b, bool backward)
{
    assert_same_bits(a->out, b->out);
    assert_same_bits(a->lse, b->lse);
    if (!backward) return;
    assert_same_bits(a->dq, b->dq);
    assert_same_bits(a->dk, b->dk);
    assert_same_bits(a->dv, b->dv);
}

static void check(const problem *p, cpl_dtype compute, double limit)
{
    const shape s       = p->s;
    const bool backward = s.n_queries == s.n_keys && s.key_stride == s.n_keys;
    answer one          = attend(backend_for(s, compute, 1), p, backward);
    answer two          = attend(backend_for(s, compute, 2), p, backward);
    answer again        = attend(backend_for(s, compute, 2), p, backward);
    compare(&one, p, limit, backward);
    compare(&two, p, limit, backward);
    assert_same_answer(&two, &again, backward);
}

static double f32_limit(shape s)
{
    return sum_tolerance(C, s.n_keys + s.head_dim);
}

/* Columns: batch, queries, keys, stride, heads, key heads, width, and length of the documents. */
static const struct {
    shape s;
    int64_t documents;
} cases[] = {
    {{1, 1, 1, 1, 1, 1, 1}, 0},       {{2, 7, 7, 7, 3, 3, 5}, 0},
    {{2, 40, 40, 40, 4, 2, 8}, 0},    {{3, 33, 33, 33, 6, 1, 6}, 10},
    {{1, 129, 129, 129, 2, 2, 4}, 0}, {{2, 200, 200, 200, 2, 1, 16}, 1},
    {{1, 700, 700, 700, 2, 1, 8}, 0}, {{1, 1100, 1100, 1100, 1, 1, 4}, 600},
    {{2, 1, 20, 32, 4, 2, 8}, 0},     {{2, 1, 600, 700, 2, 2, 8}, 0},
    {{2, 5, 23, 40, 4, 4, 6}, 9},     {{1, 150, 650, 800, 2, 1, 4}, 0},
    {{0, 4, 4, 4, 2, 1, 4}, 0},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

TEST(attention_in_f32)
{
    for (int i = 0; i < N_CASES; i++) {
        problem p = new_problem(cases[i].s, cases[i].documents, 1);
        check(&p, CPL_F32, f32_limit(p.s));
        release_all(NULL);
    }
}

TEST(attention_in_bf16)
{
    for (int i = 0; i < N_CASES; i++) {
        problem p = new_problem(cases[i].s, cases[i].documents, 1);
        check(&p, CPL_BF16, BF16);
        release_all(NULL);
    }
}

/* Scores are hundreds, and only the differences from the largest score matter. */
TEST(large_scores)
{
    problem p                 = new_problem((shape){1, 600, 600, 600, 1, 1, 4}, 0, 16);
    static const double SCORE = 1000; /* size of the scores, to which their errors are relative */
    check(&p, CPL_F32, SCORE * f32_limit(p.s));
}

/* A query near the end of a long cache gives the result of the whole sequence at its place. */
TEST(one_query_is_the_last_of_many)
{
    const shape whole = {1, 77, 77, 77, 4, 2, 8}, last = {1, 1, 77, 77, 4, 2, 8};
    problem p = new_problem(whole, 0, 1), q = p;
    q.s            = last;
    q.q            = cpl_tensor_2d(cpl_f32(p.q) + 76 * 32, CPL_F32, 1, 32);
    answer a       = attend(backend_for(whole, CPL_F32, 2), &p, false);
    answer b       = attend(backend_for(last, CPL_F32, 2), &q, false);
    cpl_tensor row = cpl_tensor_2d(cpl_f32(a.out) + 76 * 32, CPL_F32, 1, 32);
    assert_close("out", b.out, doubles_of(row), f32_limit(whole), 0);
}

/* No query of one document reads a number of another. */
TEST(documents_do_not_mix)
{
    problem p = new_problem((shape){1, 300, 300, 300, 2, 1, 8}, 100, 1), q = p;
    q.k = copy_of(p.k);
    q.v = copy_of(p.v);
    for (int64_t i = 0; i < 100 * 8; i++) cpl_f32(q.k)[i] = cpl_f32(q.v)[i] = 1e30f;
    answer a = attend(backend_for(p.s, CPL_F32, 2), &p, false);
    answer b = attend(backend_for(p.s, CPL_F32, 2), &q, false);
    assert_memory_equal(cpl_f32(a.out) + 100 * 16, cpl_f32(b.out) + 100 * 16, 200 * 16 * 4);
}

/* ---- segments ---- */

/* Returns where key i of the sequences' `keys` lies in a store of `rows`: behind each other,
 * anywhere, or behind a common beginning anywhere. */
static int32_t row_of(int64_t i, int64_t keys, int64_t rows, int kind)
{
    if (kind == 0 || (kind == 2 && i < keys / 2)) return (int32_t)i;
    return (int32_t)((i * 37 + 11) % rows);
}

static void check_segments(shape s, int kind)
{
    enum { lead = 3 }; /* rows of q that belong to no segment */
    const int64_t rows = 2 * s.n_keys + 5, width = s.n_heads * s.head_dim;
    const int64_t T = 2 * s.n_queries + lead, slim = s.n_kv_heads * s.head_dim;
    cpl_backend *be =
        new_cpu(CPL_F32, 2, (cpl_work){.n_tokens = T, .d_model = width, .n_heads = s.n_heads});
    cpl_tensor q = normal_2d(T, width, 1), k = normal_2d(rows, slim, 1),
               v   = normal_2d(rows, slim, 1);
    cpl_tensor out = normal_2d(T, width, 1), old = copy_of(out);
    cpl_tensor key_row    = new_1d(CPL_I32, 2 * s.n_keys);
    const int32_t queries = (int32_t)s.n_queries, keys = (int32_t)s.n_keys;
    const cpl_segment at[] = {{lead, queries, 0, keys}, {lead + queries, queries, keys, keys}};
    for (int64_t i = 0; i < 2 * s.n_keys; i++)
        cpl_i32(key_row)[i] = row_of(i % s.n_keys, s.n_keys, rows, i < s.n_keys ? kind : 1);
    const cpl_segments segments = {cpl_tensor_2d((void *)(uintptr_t)at, CPL_I32, 2, 4), key_row,
                                   s.n_heads, s.n_kv_heads, s.head_dim};
    be->ops->attention_segments(be, out, q, k, v, segments);
    assert_ok(be->ops->sync(be));
    assert_memory_equal(out.storage, old.storage, (size_t)(lead * width) * sizeof(float));
    for (int i = 0; i < 2; i++) {
        problem p = new_problem(s, 0, 1);
        memcpy(p.q.storage, cpl_f32(q) + at[i].first * width, cpl_tensor_bytes(p.q));
        for (int64_t key = 0; key < s.n_keys; key++) {
            const int64_t row = cpl_i32(key_row)[at[i].first_key + key];
            memcpy(cpl_f32(p.k) + key * slim, cpl_f32(k) + row * slim,
                   (size_t)slim * sizeof(float));
            memcpy(cpl_f32(p.v) + key * slim, cpl_f32(v) + row * slim,
                   (size_t)slim * sizeof(float));
        }
        wide w = widen(&p);
        equations(&w, false);
        assert_close("out",
                     cpl_tensor_2d(cpl_f32(out) + at[i].first * width, CPL_F32, s.n_queries, width),
                     w.out, f32_limit(s), 0);
    }
}

TEST(segments_in_any_rows)
{
    static const shape some[] = {{1, 1, 1, 1, 1, 1, 4},      {1, 1, 70, 70, 2, 1, 16},
                                 {1, 8, 9, 9, 3, 3, 6},      {1, 9, 9, 9, 2, 2, 12},
                                 {1, 40, 300, 300, 4, 2, 8}, {1, 150, 700, 700, 2, 1, 32},
                                 {1, 2, 1100, 1100, 2, 2, 8}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (int kind = 0; kind < 3; kind++, release_all(state)) check_segments(some[i], kind);
}
