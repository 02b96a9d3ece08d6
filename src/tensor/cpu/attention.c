/* attention.c - causal attention on tiles of scores.
 *
 * Room:    tensor/cpu. Operations: ops.h.
 * Names:   B sequences, H query heads on G key heads (r = H/G each), h head width, scale =
 *          1/sqrt(h). A tile is up to TILE_QUERIES queries by TILE_KEYS keys of one head: s scores,
 *          p = exp(scale s - lse) or, before lse is known, exp(scale s - largest so far).
 * Method:  forward: running maximum and sum per query, out rescaled when the maximum rises.
 *          backward: ds = scale p (dp - dot(dout, out)) with dp = dout v^T; then dv += p^T dout, dk
 *          += ds^T q, dq += ds k. Five products a tile. The products are plain matrix products;
 *          operands are the tensors themselves in F32 and separate panels in bf16. No T x T matrix.
 *          Segments: a tile's keys are multiplied in place if they are contiguous, otherwise they
 *          are gathered into panels. For a few queries each key is multiplied separately.
 * Threads: forward takes (sequence, head, tile of queries) as a task. Backward takes (sequence, key
 *          head), so that dk and dv, sums over r query heads, are added to in one order. */
#include <math.h>
#include <omp.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/operand.h"

enum { TILE_QUERIES = 128, TILE_KEYS = 512 };
/* Limits for segments: few queries, and a run of contiguous keys that is worth a product. */
enum { FEW_QUERIES = 8, LONG_RUN = 64 };

typedef struct job {
    cpl_backend *be;
    cpl_operand_form form;
    cpl_attention_shape s;
    float scale;
    float *lse;
    cpl_tensor out, q, k, v;
    const int32_t *doc_start; /* [B, n_keys] or NULL */
    const int32_t *key_row;   /* [n_keys] rows of a segment's keys, or NULL */
    cpl_tensor dout;
    float *dq, *dk, *dv;
} job;

/* One thread's scratch. */
typedef struct tile_work {
    float *s, *dp;        /* [TILE_QUERIES, TILE_KEYS] */
    float *largest, *sum; /* [TILE_QUERIES] of the forward's rows; sum also holds backward's dots */
    void *q, *dout;       /* panels [TILE_QUERIES, h] */
    void *k, *v;          /* panels [TILE_KEYS, h] */
    void *p, *ds;         /* panels [TILE_QUERIES, TILE_KEYS] */
    float *out;           /* [TILE_QUERIES, h] for an out in BF16 */
} tile_work;

/* Queries first ... first + rows - 1 of head `head` of sequence `b`, and the range of keys that
 * these queries attend to: begin ... end - 1. */
typedef struct tile {
    int64_t b, head, first, rows, begin, end;
} tile;

/* ---- scratch ---- */

static tile_work take_work(cpl_arena *arena, int64_t h, bool packs)
{
    const size_t rows = TILE_QUERIES * sizeof(float), keys = TILE_KEYS;
    tile_work w = {0};
    w.s         = cpl_arena_take(arena, rows * keys);
    w.dp        = cpl_arena_take(arena, rows * keys);
    w.largest   = cpl_arena_take(arena, rows);
    w.sum       = cpl_arena_take(arena, rows);
    w.k         = cpl_arena_take(arena, keys * (size_t)h * sizeof(float));
    w.v         = cpl_arena_take(arena, keys * (size_t)h * sizeof(float));
    if (!packs) return w;
    w.q    = cpl_arena_take(arena, rows * (size_t)h);
    w.dout = cpl_arena_take(arena, rows * (size_t)h);
    w.p    = cpl_arena_take(arena, rows * keys);
    w.ds   = cpl_arena_take(arena, rows * keys);
    w.out  = cpl_arena_take(arena, rows * (size_t)h);
    return w;
}

static size_t work_bytes(int64_t h, bool packs)
{
    cpl_arena measure = cpl_arena_over(NULL, SIZE_MAX);
    (void)take_work(&measure, h, packs);
    return measure.used;
}

/* Returns the scratch of the calling thread. Pieces of all threads have equal size. */
static tile_work own_work(const job *j)
{
    const bool packs   = j->be->compute != CPL_F32;
    const size_t bytes = work_bytes(j->s.head_dim, packs);
    const size_t at    = (size_t)omp_get_thread_num() * bytes;
    CPL_ASSERT(at + bytes <= j->be->scratch_bytes);
    cpl_arena arena = cpl_arena_over((char *)j->be->scratch + at, bytes);
    return take_work(&arena, j->s.head_dim, packs);
}

/* ---- positions in memory ---- */

/* Returns the index of the first element of row `row` of head `head`, one of `heads` heads. */
static int64_t place(const job *j, int64_t row, int64_t heads, int64_t head)
{
    return (row * heads + head) * j->s.head_dim;
}

static int64_t query_place(const job *j, const tile *t)
{
    return place(j, t->b * j->s.n_queries + t->first, j->s.n_heads, t->head);
}

static int64_t key_place(const job *j, const tile *t, int64_t key)
{
    int64_t shared = j->s.n_heads / j->s.n_kv_heads;
    return place(j, t->b * j->s.key_stride + key, j->s.n_kv_heads, t->head / shared);
}

/* Returns `rows` rows of one head as operand: in place, or in the panel if their form differs. */
static cpl_operand head_rows(const job *j, void *panel, cpl_tensor x, int64_t at, int64_t heads,
                             int64_t rows)
{
    const int64_t stride = heads * j->s.head_dim;
    if (cpl_operand_form_fits(j->form, x.dtype))
        return (cpl_operand){(char *)x.storage + (size_t)at * cpl_dtype_bytes(x.dtype), x.dtype,
                             CPL_AS_IS, stride};
    return cpl_pack(j->form, panel, x.storage, x.dtype, at, stride, rows, j->s.head_dim, 1);
}

static cpl_operand query_rows(const job *j, void *panel, cpl_tensor x, const tile *t)
{
    return head_rows(j, panel, x, query_place(j, t), j->s.n_heads, t->rows);
}

/* Returns the number of keys from `key` on that are contiguous in memory. */
static int64_t run_of(const job *j, int64_t key, int64_t end)
{
    int64_t next = key + 1;
    while (next < end && j->key_row[next] == j->key_row[next - 1] + 1) next++;
    return next - key;
}

/* Returns the number of keys of the tile that one product takes, from `key` on. */
static int64_t keys_at(const job *j, const tile *t, int64_t key)
{
    const int64_t left = t->end - key, most = left < TILE_KEYS ? left : TILE_KEYS;
    if (!j->key_row) return most;
    const int64_t run = run_of(j, key, key + most);
    return run >= LONG_RUN ? run : most;
}

/* Returns rows of a segment's keys as operand: in place if contiguous, otherwise in the panel. */
static cpl_operand segment_rows(const job *j, void *panel, cpl_tensor all, const tile *t,
                                int64_t key, int64_t keys)
{
    const float *x  = cpl_f32(all);
    const int64_t h = j->s.head_dim, heads = j->s.n_kv_heads,
                  head   = t->head / (j->s.n_heads / heads);
    const int64_t stride = heads * h;
    if (run_of(j, key, key + keys) == keys)
        return (cpl_operand){x + place(j, j->key_row[key], heads, head), CPL_F32, CPL_AS_IS,
                             stride};
    for (int64_t i = 0; i < keys; i++)
        memcpy((float *)panel + i * h, x + place(j, j->key_row[key + i], heads, head),
               (size_t)h * sizeof *x);
    return (cpl_operand){panel, CPL_F32, CPL_AS_IS, h};
}

static cpl_operand key_rows(const job *j, void *panel, cpl_tensor x, const tile *t, int64_t key,
                            int64_t keys)
{
    if (j->key_row) return segment_rows(j, panel, x, t, key, keys);
    return head_rows(j, panel, x, key_place(j, t, key), j->s.n_kv_heads, keys);
}

/* Returns a tile [rows, keys] of F32 numbers as operand. */
static cpl_operand scores(const job *j, void *panel, const float *x, int64_t rows, int64_t keys)
{
    if (j->form == CPL_FORM_F32) return (cpl_operand){x, CPL_F32, CPL_AS_IS, keys};
    return cpl_pack(j->form, panel, x, CPL_F32, 0, keys, rows, keys, 1);
}

static void multiply(const job *j, float *c, int64_t c_stride, cpl_operand a, cpl_operand b,
                     int64_t m, int64_t n, int64_t k, float beta)
{
    cpl_multiply(j->be, 1, c, c_stride, a, b, (cpl_product_shape){m, n, k}, beta);
}

/* ---- visible keys of a query ---- */

static int64_t position(const job *j, int64_t query)
{
    return j->s.n_keys - j->s.n_queries + query;
}

/* Returns the first visible key of a query of sequence b. The last key is at its position. */
static int64_t first_key(const job *j, int64_t b, int64_t query)
{
    if (!j->doc_start) return 0;
    int64_t at = position(j, query), start = j->doc_start[b * j->s.n_keys + at];
    CPL_ASSERT(start >= 0 && start <= at);
    return start;
}

static tile tile_at(const job *j, int64_t b, int64_t head, int64_t first)
{
    int64_t left = j->s.n_queries - first;
    tile t       = {.b = b, .head = head, .first = first};
    t.rows       = left < TILE_QUERIES ? left : TILE_QUERIES;
    t.end        = position(j, first + t.rows - 1) + 1;
    t.begin      = t.end;
    for (int64_t i = 0; i < t.rows; i++) {
        int64_t begin = first_key(j, b, first + i);
        t.begin       = begin < t.begin ? begin : t.begin;
    }
    return t;
}

/* Sets *begin ... *end - 1 to the visible keys of row i of the tile, counted from `key` and limited
 * to `keys` keys. */
static void set_seen_keys(const job *j, const tile *t, int64_t i, int64_t key, int64_t keys,
                          int64_t *begin, int64_t *end)
{
    int64_t from = first_key(j, t->b, t->first + i) - key;
    int64_t to   = position(j, t->first + i) + 1 - key;
    *begin       = from < 0 ? 0 : from < keys ? from : keys;
    *end         = to < *begin ? *begin : to < keys ? to : keys;
}

/* ---- forward ---- */

/* Replaces scores s [keys] by exponentials relative to the new largest score, and rescales the
 * row's running sum and `out` [h] to the new largest score. */
static void soften_row(const job *j, float *s, int64_t begin, int64_t end, int64_t keys,
                       float *largest, float *sum, float *out)
{
    float most = cpl_largest(s + begin, end - begin) * j->scale, total = 0;
    most = most > *largest ? most : *largest;
    for (int64_t i = 0; i < begin; i++) s[i] = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = begin; i < end; i++) {
        s[i] = cpl_exp(s[i] * j->scale - most);
        total += s[i];
    }
    for (int64_t i = end; i < keys; i++) s[i] = 0;
    if (*largest > -INFINITY && most > *largest) {
        float shrink = cpl_exp(*largest - most);
        *sum *= shrink;
        for (int64_t i = 0; i < j->s.head_dim; i++) out[i] *= shrink;
    }
    *sum += total;
    *largest = most;
}

static void forward_tile(const job *j, const tile_work *w, const tile *t)
{
    const int64_t h = j->s.head_dim, wide = j->s.n_heads * h, place = query_place(j, t);
    const int64_t stride = j->out.dtype == CPL_F32 ? wide : h;
    float *out           = cpl_row_begin(j->out, place, w->out);
    cpl_operand q        = query_rows(j, w->q, j->q, t);
    for (int64_t i = 0; i < t->rows; i++) {
        w->largest[i] = -INFINITY;
        w->sum[i]     = 0;
    }
    for (int64_t key = t->begin, keys; key < t->end; key += keys) {
        keys          = keys_at(j, t, key);
        cpl_operand k = key_rows(j, w->k, j->k, t, key, keys);
        cpl_operand v = key_rows(j, w->v, j->v, t, key, keys);
        multiply(j, w->s, keys, q, cpl_transposed(k), t->rows, keys, h, 0);
        for (int64_t i = 0; i < t->rows; i++) {
            int64_t begin, end;
            set_seen_keys(j, t, i, key, keys, &begin, &end);
            soften_row(j, w->s + i * keys, begin, end, keys, &w->largest[i], &w->sum[i],
                       out + i * stride);
        }
        multiply(j, out, stride, scores(j, w->p, w->s, t->rows, keys), v, t->rows, h, keys,
                 key > t->begin ? 1.0f : 0.0f);
    }
    float *lse =
        j->lse ? j->lse + (t->b * j->s.n_heads + t->head) * j->s.n_queries + t->first : NULL;
    for (int64_t i = 0; i < t->rows; i++) {
        const float part = 1.0f / w->sum[i];
        for (int64_t x = 0; x < h; x++) out[i * stride + x] *= part;
        cpl_row_end(j->out, place + i * wide, h, out + i * stride);
        if (lse) lse[i] = w->largest[i] + logf(w->sum[i]);
    }
}

static job job_of(cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q, cpl_tensor k,
                  cpl_tensor v, cpl_tensor doc_start, cpl_attention_shape s)
{
    CPL_ASSERT(s.n_queries <= s.n_keys && s.n_keys <= s.key_stride && s.n_kv_heads > 0);
    CPL_ASSERT(s.n_heads % s.n_kv_heads == 0 && s.head_dim > 0);
    return (job){.be        = be,
                 .form      = cpl_operand_form_of(be),
                 .s         = s,
                 .scale     = 1.0f / sqrtf((float)s.head_dim),
                 .lse       = cpl_f32(lse),
                 .out       = out,
                 .q         = q,
                 .k         = k,
                 .v         = v,
                 .doc_start = doc_start.storage ? cpl_i32(doc_start) : NULL};
}

void CPL_ISA_NAME(cpl_cpu_attention)(cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q,
                                     cpl_tensor k, cpl_tensor v, cpl_tensor doc_start,
                                     cpl_attention_shape s)
{
    job j               = job_of(be, out, lse, q, k, v, doc_start, s);
    const int64_t tiles = (s.n_queries + TILE_QUERIES - 1) / TILE_QUERIES;
#pragma omp parallel for num_threads(be->n_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < s.batch * s.n_heads * tiles; i++) {
        int64_t at = tiles - 1 - i % tiles, head = i / tiles % s.n_heads;
        tile t      = tile_at(&j, i / tiles / s.n_heads, head, at * TILE_QUERIES);
        tile_work w = own_work(&j);
        forward_tile(&j, &w, &t);
    }
}

/* ---- segments ---- */

/* Sets out [h] to the attention of one query q [h] to the first `keys` keys. */
static void visit_keys(const job *j, const tile_work *w, float *out, const float *q, int64_t keys,
                       int64_t key_head)
{
    const int64_t h = j->s.head_dim, heads = j->s.n_kv_heads;
    float largest = -INFINITY, sum = 0;
    memset(out, 0, (size_t)h * sizeof *out);
    for (int64_t first = 0; first < keys; first += TILE_KEYS) {
        const int64_t count = keys - first < TILE_KEYS ? keys - first : TILE_KEYS;
        const int32_t *row  = j->key_row + first;
        for (int64_t i = 0; i < count; i++) {
            const float *k = cpl_f32(j->k) + place(j, row[i], heads, key_head);
            float dot      = 0;
#pragma omp simd reduction(+ : dot)
            for (int64_t x = 0; x < h; x++) dot += q[x] * k[x];
            w->s[i] = dot;
        }
        soften_row(j, w->s, 0, count, count, &largest, &sum, out);
        for (int64_t i = 0; i < count; i++) {
            const float *v = cpl_f32(j->v) + place(j, row[i], heads, key_head);
            const float p  = w->s[i];
#pragma omp simd
            for (int64_t x = 0; x < h; x++) out[x] += p * v[x];
        }
    }
    for (int64_t x = 0; x < h; x++) out[x] *= 1.0f / sum;
}

/* Computes one head of one segment. */
static void segment_head(const job *j, int64_t head)
{
    tile_work w = own_work(j);
    if (j->s.n_queries <= FEW_QUERIES) {
        for (int64_t i = 0; i < j->s.n_queries; i++) {
            const int64_t at = place(j, i, j->s.n_heads, head);
            visit_keys(j, &w, cpl_f32(j->out) + at, cpl_f32(j->q) + at, position(j, i) + 1,
                       head / (j->s.n_heads / j->s.n_kv_heads));
        }
        return;
    }
    for (int64_t first = 0; first < j->s.n_queries; first += TILE_QUERIES) {
        tile t = tile_at(j, 0, head, first);
        forward_tile(j, &w, &t);
    }
}

void CPL_ISA_NAME(cpl_cpu_attention_segments)(cpl_backend *be, cpl_tensor out, cpl_tensor q,
                                              cpl_tensor k, cpl_tensor v, cpl_segments segments)
{
    const int64_t H = segments.n_heads, G = segments.n_kv_heads, h = segments.head_dim;
    const cpl_tensor none = cpl_tensor_none();
#pragma omp parallel for num_threads(be->n_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < segments.at.shape[0] * H; i++) {
        const cpl_segment *at       = (const cpl_segment *)(void *)cpl_i32(segments.at) + i / H;
        const cpl_attention_shape s = {1, at->n_queries, at->n_keys, at->n_keys, H, G, h};
        job j                       = job_of(be, out, none, q, k, v, none, s);
        j.form                      = CPL_FORM_F32;
        j.out                       = cpl_tensor_range(out, at->first, at->n_queries);
        j.q                         = cpl_tensor_range(q, at->first, at->n_queries);
        j.key_row                   = cpl_i32(segments.key_row) + at->first_key;
        segment_head(&j, i % H);
    }
}

/* ---- backward ---- */

/* Turns row i of a tile from scores s to p, and from dp to ds. */
static void backward_row(const job *j, float *s, float *dp, int64_t begin, int64_t end,
                         int64_t keys, float lse, float dot)
{
    const float scale = j->scale;
    for (int64_t i = 0; i < begin; i++) s[i] = dp[i] = 0;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        s[i]  = cpl_exp(s[i] * scale - lse);
        dp[i] = scale * s[i] * (dp[i] - dot);
    }
    for (int64_t i = end; i < keys; i++) s[i] = dp[i] = 0;
}

static void backward_tile(const job *j, const tile_work *w, const tile *t)
{
    const int64_t h = j->s.head_dim, wide = j->s.n_heads * h, slim = j->s.n_kv_heads * h;
    const float *lse    = j->lse + (t->b * j->s.n_heads + t->head) * j->s.n_queries + t->first;
    const int64_t place = query_place(j, t);
    cpl_operand q = query_rows(j, w->q, j->q, t), dout = query_rows(j, w->dout, j->dout, t);
    for (int64_t i = 0; i < t->rows; i++) {
        const float *x = cpl_f32(j->dout) + place + i * wide;
        const float *y = cpl_row_read(j->out, place + i * wide, h, w->out);
        float dot      = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t a = 0; a < h; a++) dot += x[a] * y[a];
        w->sum[i] = dot;
    }
    for (int64_t key = t->begin; key < t->end; key += TILE_KEYS) {
        const int64_t keys = t->end - key < TILE_KEYS ? t->end - key : TILE_KEYS;
        const int64_t at   = key_place(j, t, key);
        cpl_operand k      = key_rows(j, w->k, j->k, t, key, keys);
        cpl_operand v      = key_rows(j, w->v, j->v, t, key, keys);
        multiply(j, w->s, keys, q, cpl_transposed(k), t->rows, keys, h, 0);
        multiply(j, w->dp, keys, dout, cpl_transposed(v), t->rows, keys, h, 0);
        for (int64_t i = 0; i < t->rows; i++) {
            int64_t begin, end;
            set_seen_keys(j, t, i, key, keys, &begin, &end);
            backward_row(j, w->s + i * keys, w->dp + i * keys, begin, end, keys, lse[i], w->sum[i]);
        }
        cpl_operand p  = scores(j, w->p, w->s, t->rows, keys);
        cpl_operand ds = scores(j, w->ds, w->dp, t->rows, keys);
        multiply(j, j->dv + at, slim, cpl_transposed(p), dout, keys, h, t->rows, 1);
        multiply(j, j->dk + at, slim, cpl_transposed(ds), q, keys, h, t->rows, 1);
        multiply(j, j->dq + place, wide, ds, k, t->rows, h, keys, key > t->begin ? 1.0f : 0.0f);
    }
}

static void clear_head(const job *j, float *x, int64_t b, int64_t key_head)
{
    for (int64_t i = 0; i < j->s.n_keys; i++)
        memset(x + place(j, b * j->s.key_stride + i, j->s.n_kv_heads, key_head), 0,
               (size_t)j->s.head_dim * sizeof *x);
}

/* Computes all queries of all heads that read one key head of one sequence. */
static void backward_head(const job *j, int64_t b, int64_t key_head)
{
    const int64_t shared = j->s.n_heads / j->s.n_kv_heads;
    tile_work w          = own_work(j);
    clear_head(j, j->dk, b, key_head);
    clear_head(j, j->dv, b, key_head);
    for (int64_t head = key_head * shared; head < (key_head + 1) * shared; head++)
        for (int64_t first = 0; first < j->s.n_queries; first += TILE_QUERIES) {
            tile t = tile_at(j, b, head, first);
            backward_tile(j, &w, &t);
        }
}

void CPL_ISA_NAME(cpl_cpu_attention_backward)(cpl_backend *be, cpl_tensor dq, cpl_tensor dk,
                                              cpl_tensor dv, cpl_tensor dout, cpl_tensor out,
                                              cpl_tensor lse, cpl_tensor q, cpl_tensor k,
                                              cpl_tensor v, cpl_tensor doc_start,
                                              cpl_attention_shape s)
{
    CPL_ASSERT(s.n_queries == s.n_keys && s.n_keys == s.key_stride);
    job j  = job_of(be, out, lse, q, k, v, doc_start, s);
    j.dout = dout;
    j.dq   = cpl_f32(dq);
    j.dk   = cpl_f32(dk);
    j.dv   = cpl_f32(dv);
#pragma omp parallel for num_threads(be->n_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < s.batch * s.n_kv_heads; i++)
        backward_head(&j, i / s.n_kv_heads, i % s.n_kv_heads);
}

size_t CPL_ISA_NAME(cpl_cpu_attention_scratch)(const cpl_backend *be, const cpl_work *work)
{
    if (work->n_heads == 0) return 0;
    int64_t h = work->d_model / work->n_heads;
    return (size_t)be->n_threads * work_bytes(h, be->compute != CPL_F32);
}
