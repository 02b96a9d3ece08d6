/* mean_token.c - see mean_token.h */
#include "inspect/routing/mean_token.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/stats/statistics.h"

/* The figures up to PEARSON_CENTRED are sums of a matrix Z. The model is draw 0, whose labels are
 * as they are. */
enum { SUMS = CPL_MEAN_TOKEN_PEARSON_CENTRED + 1, DRAWS = 1 + CPL_MEAN_TOKEN_DRAWS, ROOM = 512 };

typedef struct ranked {
    double score;
    int64_t expert;
} ranked;

typedef struct work {
    const cpl_routing_agreement *a;
    const cpl_routing_samples *s;
    int64_t n;
    double *mu, *mean_row, *shift;                /* [d], [d] of the rows, [n] R_i . mu */
    double *score_mean, *answer_mean, *answer_sd; /* [n] over the tokens */
    double *x, *y, *u, *v;                        /* [n] numbers of a token, and their ranks */
    ranked *order;                                /* [n] */
    double *Z[SUMS], over[SUMS];                  /* [n,n] sums over the tokens; their divisor */
    int32_t *labels;                              /* [DRAWS,n] */
    double *drawn[CPL_MEAN_TOKEN_FIGURES];        /* [DRAWS] */
    int64_t *counted;                             /* [DRAWS] tokens of AGREEMENT_CHOSEN */
    double *rest;                                 /* [n,n] M_tok less its means */
    void *scratch;
    cpl_pool pool;
} work;

static double *doubles(work *w, int64_t count)
{
    return cpl_pool_take(&w->pool, (size_t)count * sizeof(double));
}

static cpl_status take_all(work *w)
{
    const int64_t n          = w->n;
    double **const of_n[]    = {&w->shift, &w->score_mean, &w->answer_mean, &w->answer_sd,
                                &w->x,     &w->y,          &w->u,           &w->v};
    const size_t labels_size = (size_t)(DRAWS * n) * sizeof *w->labels;
    for (size_t i = 0; i < sizeof of_n / sizeof *of_n; i++) *of_n[i] = doubles(w, n);
    for (int f = 0; f < SUMS; f++) w->Z[f] = doubles(w, n * n);
    for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++) w->drawn[f] = doubles(w, DRAWS);
    w->mu       = doubles(w, w->s->d);
    w->mean_row = doubles(w, w->s->d);
    w->rest     = doubles(w, n * n);
    w->order    = cpl_pool_take(&w->pool, (size_t)n * sizeof *w->order);
    w->labels   = cpl_pool_take(&w->pool, labels_size);
    w->counted  = cpl_pool_take(&w->pool, DRAWS * sizeof *w->counted);
    w->scratch  = cpl_pool_take(&w->pool, cpl_correlation_scratch(n));
    return cpl_pool_status(&w->pool);
}

/* ---- the tokens ---- */

/* Sets mean [n], and sd [n] (may be NULL), of the columns of x [count,n]. The mean of a column
 * without variance is exact. */
static void moments(double *mean, double *sd, const float *x, int64_t count, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, squares = 0;
        const double first = count ? (double)x[i] : 0;
        for (int64_t t = 0; t < count; t++) sum += (double)x[t * n + i] - first;
        mean[i] = first + sum / (double)count;
        for (int64_t t = 0; sd && t < count; t++) {
            const double rest = (double)x[t * n + i] - mean[i];
            squares += rest * rest;
        }
        if (sd) sd[i] = sqrt(squares / (double)count);
    }
}

static double main_effect(const work *w)
{
    double grand = 0, between = 0, within = 0;
    for (int64_t i = 0; i < w->n; i++) grand += w->answer_mean[i] / (double)w->n;
    for (int64_t i = 0; i < w->n; i++) {
        between += (w->answer_mean[i] - grand) * (w->answer_mean[i] - grand);
        within += w->answer_sd[i] * w->answer_sd[i];
    }
    return between / (between + within);
}

/* Sets z [n] to the ranks of x less their mean, with squares whose sum is 1. Returns false if x
 * does not vary. */
static bool standard_ranks(double *z, const double *x, int64_t n, void *scratch)
{
    double squares = 0;
    cpl_rank_of(z, x, n, scratch);
    for (int64_t i = 0; i < n; i++) {
        z[i] -= (double)(n + 1) / 2;
        squares += z[i] * z[i];
    }
    for (int64_t i = 0; squares > 0 && i < n; i++) z[i] /= sqrt(squares);
    return squares > 0;
}

static void add_products(double *Z, const double *x, const double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) Z[i * n + j] += x[i] * y[j];
}

/* Adds the ranks of x and y of a token. */
static void add_ranks(work *w, int figure)
{
    if (!standard_ranks(w->u, w->x, w->n, w->scratch)) return;
    if (!standard_ranks(w->v, w->y, w->n, w->scratch)) return;
    add_products(w->Z[figure], w->u, w->v, w->n);
    w->over[figure]++;
}

/* Subtracts the mean, and returns the sum of squares. Equal numbers become exactly 0. */
static double centre(double *x, int64_t n)
{
    const double first = n ? x[0] : 0;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] -= first;
    for (int64_t i = 0; i < n; i++) {
        x[i] -= sum / (double)n;
        squares += x[i] * x[i];
    }
    return squares;
}

static int by_score(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score < y->score || x->score > y->score) return x->score < y->score ? -1 : 1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

static void add_curve(work *w, double *curve)
{
    for (int64_t i = 0; i < w->n; i++) w->order[i] = (ranked){w->x[i], i};
    qsort(w->order, (size_t)w->n, sizeof *w->order, by_score);
    for (int64_t r = 0; r < w->n; r++) {
        const int64_t i = w->order[r].expert;
        if (w->answer_sd[i] > 0)
            curve[r] += (w->y[i] - w->answer_mean[i]) / w->answer_sd[i] / (double)w->s->count;
    }
}

static void over_tokens(work *w, double *curve)
{
    const cpl_routing_samples *s = w->s;
    const int64_t n              = w->n;
    double of_scores = 0, of_answers = 0;
    for (int64_t t = 0; t < s->count; t++) {
        for (int64_t i = 0; i < n; i++) {
            w->x[i] = (double)s->score[t * n + i];
            w->y[i] = (double)s->answer[t * n + i];
        }
        add_ranks(w, CPL_MEAN_TOKEN_AGREEMENT);
        add_curve(w, curve);
        for (int64_t i = 0; i < n; i++) {
            w->x[i] -= w->score_mean[i];
            w->y[i] -= w->answer_mean[i];
        }
        add_ranks(w, CPL_MEAN_TOKEN_AGREEMENT_CENTRED);
        of_scores += centre(w->x, n);
        of_answers += centre(w->y, n);
        add_products(w->Z[CPL_MEAN_TOKEN_PEARSON_CENTRED], w->x, w->y, n);
    }
    w->over[CPL_MEAN_TOKEN_PEARSON_CENTRED] = sqrt(of_scores * of_answers);
}

/* ---- the mean token ---- */

/* Holds memory for the answers to tokens less their mean, and for the rows. */
typedef struct tensors {
    cpl_tensor_arena arena;
    cpl_tensor rows, products, answers; /* [ROOM,d], [ROOM,D], [n,ROOM] */
    float *row, *answer;                /* [ROOM,d], [n,ROOM] on the host */
    float *router, *product;            /* [n,d], [d] */
} tensors;

static void take_tensors(tensors *t, cpl_tensor_arena *arena, const cpl_layer_params *layer)
{
    const int64_t n = layer->router.shape[0], d = layer->router.shape[1];
    t->rows     = cpl_tensor_take_2d(arena, ROOM, d);
    t->products = cpl_tensor_take_2d(arena, ROOM, layer->w_gate.shape[1]);
    t->answers  = cpl_tensor_take_2d(arena, n, ROOM);
    t->row      = cpl_tensor_take_host(arena, (size_t)(ROOM * d) * sizeof *t->row);
    t->answer   = cpl_tensor_take_host(arena, (size_t)(n * ROOM) * sizeof *t->answer);
    t->router   = cpl_tensor_take_host(arena, (size_t)(n * d) * sizeof *t->router);
    t->product  = cpl_tensor_take_host(arena, (size_t)d * sizeof *t->product);
}

/* Sets shift, and returns the share of it that is below 0. */
static double project(work *w, const tensors *t)
{
    const int64_t d = w->s->d;
    int64_t below   = 0;
    for (int64_t i = 0; i < w->n; i++) {
        for (int64_t k = 0; k < d; k++) w->shift[i] += (double)t->router[i * d + k] * w->mu[k];
        below += w->shift[i] < 0;
    }
    return (double)below / (double)w->n;
}

/* Returns the mean cosine of the centred rows and W_i^T W_i mu. */
static double mean_cosine(const work *w, const tensors *t, cpl_backend *be,
                          const cpl_layer_params *layer)
{
    const int64_t d = w->s->d, n = w->n;
    cpl_tensor mu = cpl_tensor_range(t->rows, 0, 1), out = cpl_tensor_range(t->rows, 1, 1);
    cpl_tensor product = cpl_tensor_range(t->products, 0, 1);
    double sum = 0, count = 0;
    moments(w->mean_row, NULL, t->router, n, d);
    for (int64_t k = 0; k < d; k++) t->row[k] = (float)w->mu[k];
    be->ops->put(be, mu, t->row);
    for (int64_t i = 0; i < n; i++) {
        const cpl_tensor gate = cpl_tensor_at(layer->w_gate, i);
        double dot = 0, rows = 0, products = 0;
        be->ops->gemm_f32(be, product, CPL_AS_IS, mu, CPL_TRANSPOSED, gate, 0);
        be->ops->gemm_f32(be, out, CPL_AS_IS, product, CPL_AS_IS, gate, 0);
        be->ops->get(be, t->product, out);
        for (int64_t k = 0; k < d; k++) {
            const double x = (double)t->router[i * d + k] - w->mean_row[k];
            const double y = (double)t->product[k];
            dot += x * y;
            rows += x * x;
            products += y * y;
        }
        if (!(rows > 0 && products > 0)) continue;
        sum += dot / sqrt(rows * products);
        count++;
    }
    return sum / count;
}

/* Adds the ranks of `count` tokens from `first` on, less the mean token. */
static void add_off(work *w, const tensors *t, cpl_backend *be, const cpl_layer_params *layer,
                    int64_t first, int64_t count)
{
    const int64_t n = w->n, d = w->s->d;
    cpl_tensor rows    = cpl_tensor_range(t->rows, 0, count);
    cpl_tensor answers = cpl_tensor_as_2d(cpl_tensor_numbers(t->answers, 0, n * count), n, count);
    for (int64_t i = 0; i < count * d; i++)
        t->row[i] = (float)((double)w->s->x[first * d + i] - w->mu[i % d]);
    be->ops->put(be, rows, t->row);
    cpl_routing_respond(be, answers, layer, rows, cpl_tensor_range(t->products, 0, count),
                        cpl_tensor_none());
    be->ops->get(be, t->answer, answers);
    for (int64_t s = 0; s < count; s++) {
        for (int64_t i = 0; i < n; i++) {
            w->x[i] = (double)w->s->score[(first + s) * n + i] - w->shift[i];
            w->y[i] = (double)t->answer[i * count + s];
        }
        add_ranks(w, CPL_MEAN_TOKEN_AGREEMENT_MU_OFF);
    }
}

static cpl_status mean_token(work *w, cpl_routing_mean_token *out, cpl_backend *be,
                             const cpl_layer_params *layer)
{
    tensors t                 = {0};
    cpl_tensor_arena measured = cpl_tensor_arena_measure();
    const int64_t all         = w->s->count;
    take_tensors(&t, &measured, layer);
    CPL_TRY(cpl_tensor_arena_init(&t.arena, be, &measured, "answers without the mean token"));
    take_tensors(&t, &t.arena, layer);
    be->ops->get(be, t.router, layer->router);
    out->negative = project(w, &t);
    out->cosine   = mean_cosine(w, &t, be, layer);
    for (int64_t first = 0; first < all; first += ROOM)
        add_off(w, &t, be, layer, first, all - first < ROOM ? all - first : ROOM);
    cpl_status status = be->ops->sync(be);
    cpl_tensor_arena_free(&t.arena);
    return status;
}

/* ---- permuted experts ---- */

/* Sets the labels of every draw to a permutation of n. */
static void set_labels(work *w, int64_t n, int64_t layer, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) w->labels[i] = (int32_t)i;
    for (int64_t t = 1; t < DRAWS; t++) {
        const cpl_rng_key key = {seed, (uint64_t)t - 1, (uint32_t)layer, CPL_STREAM_LABELS};
        cpl_null_model_shuffle(w->labels + t * n, n, &key);
    }
}

static void draw_sums(work *w)
{
    const int64_t n = w->n;
    for (int f = 0; f < SUMS; f++)
        for (int64_t t = 0; t < DRAWS; t++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += w->Z[f][i * n + w->labels[t * n + i]];
            w->drawn[f][t] = sum / w->over[f];
        }
}

/* Adds the correlation of a token's K experts to every draw. u [K] are the ranks of the scores. A
 * rank of an answer is found by comparisons, from minus K to K and 0 in the mean. */
static void add_chosen(work *w, const float *answer, const int32_t *chosen, int64_t K)
{
    for (int64_t t = 0; t < DRAWS; t++) {
        const int32_t *label = w->labels + t * w->n;
        double dot = 0, squares = 0;
        for (int64_t k = 0; k < K; k++) w->v[k] = (double)answer[label[chosen[k]]];
        for (int64_t k = 0; k < K; k++) {
            int64_t rank = 0;
            for (int64_t l = 0; l < K; l++) rank += (w->v[l] < w->v[k]) - (w->v[l] > w->v[k]);
            dot += w->u[k] * (double)rank;
            squares += (double)(rank * rank);
        }
        if (!(squares > 0)) continue;
        w->drawn[CPL_MEAN_TOKEN_AGREEMENT_CHOSEN][t] += dot / sqrt(squares);
        w->counted[t]++;
    }
}

static void draw_chosen(work *w, const cpl_routing_record *record, int64_t layer)
{
    const int64_t n = w->n, K = record->top_k;
    for (int64_t t = 0; t < w->s->count; t++) {
        const int32_t *chosen = cpl_routing_record_at(record, layer, w->s->place[t]);
        for (int64_t k = 0; k < K; k++) w->x[k] = (double)w->s->score[t * n + chosen[k]];
        if (standard_ranks(w->u, w->x, K, w->scratch))
            add_chosen(w, w->s->answer + t * n, chosen, K);
    }
    for (int64_t t = 0; t < DRAWS; t++)
        w->drawn[CPL_MEAN_TOKEN_AGREEMENT_CHOSEN][t] /= (double)w->counted[t];
}

/* Sets rest [m,m] to M_tok of the m kept experts less its row and column means plus the mean.
 * Returns m. */
static int64_t set_rest(work *w)
{
    const cpl_routing_agreement *a = w->a;
    const int64_t n                = a->n;
    int64_t m                      = 0;
    double *to                     = w->rest;
    for (int64_t i = 0; i < n; i++) {
        m += a->routed[i] >= CPL_ROUTING_FEW;
        for (int64_t j = 0; j < n; j++)
            if (a->routed[i] >= CPL_ROUTING_FEW && a->routed[j] >= CPL_ROUTING_FEW)
                *to++ = a->sums[i * n + j] / (double)a->routed[i];
    }
    for (int64_t i = 0; i < m; i++) centre(w->rest + i * m, m);
    for (int64_t j = 0; j < m; j++) {
        for (int64_t i = 0; i < m; i++) w->x[i] = w->rest[i * m + j];
        centre(w->x, m);
        for (int64_t i = 0; i < m; i++) w->rest[i * m + j] = w->x[i];
    }
    return m;
}

/* Sets dz of every draw from the sum and squares of the diagonal: all entries add up to 0. */
static void draw_dz(work *w, int64_t m)
{
    const double off = (double)(m * (m - 1));
    double all       = 0;
    for (int64_t i = 0; i < m * m; i++) all += w->rest[i] * w->rest[i];
    for (int64_t t = 0; t < DRAWS; t++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < m; i++) {
            const double own = w->rest[i * m + w->labels[t * m + i]];
            sum += own;
            squares += own * own;
        }
        const double variance          = (all - squares) / off - sum / off * (sum / off);
        w->drawn[CPL_MEAN_TOKEN_DZ][t] = m < 3 ? (double)NAN : sum / (double)m / sqrt(variance);
    }
}

static cpl_mean_token_null null_of(const double *drawn)
{
    cpl_mean_token_null null = {0};
    double count = 0, far = 0;
    for (int64_t t = 1; t < DRAWS; t++) {
        if (!isfinite(drawn[t])) continue;
        null.mean += drawn[t];
        count++;
    }
    null.mean /= count;
    for (int64_t t = 1; t < DRAWS; t++) {
        if (!isfinite(drawn[t])) continue;
        null.sd += (drawn[t] - null.mean) * (drawn[t] - null.mean);
        far += fabs(drawn[t] - null.mean) >= fabs(drawn[0] - null.mean) - 1e-12;
    }
    null.sd = sqrt(null.sd / count);
    null.p  = (1 + far) / (1 + count);
    return null;
}

static bool are_finite(const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* Sets every figure to NaN. */
static void set_none(cpl_routing_mean_token *out, double *curve, int64_t n)
{
    const cpl_mean_token_null none = {(double)NAN, (double)NAN, (double)NAN};
    for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++) {
        out->value[f] = (double)NAN;
        out->null[f]  = none;
    }
    out->main_effect = out->negative = out->cosine = (double)NAN;
    for (int64_t i = 0; i < n; i++) curve[i] = (double)NAN;
}

cpl_status cpl_routing_mean_token_of(cpl_routing_mean_token *out, double *curve, cpl_backend *be,
                                     const cpl_layer_params *layer, const cpl_routing_agreement *a,
                                     const cpl_routing_record *record, int64_t index, uint64_t seed)
{
    work w            = {.a = a, .s = &a->samples, .n = a->n};
    cpl_status status = take_all(&w);
    if (status != CPL_OK) goto done;
    set_none(out, curve, w.n);
    moments(w.mu, NULL, w.s->x, w.s->count, w.s->d);
    moments(w.score_mean, NULL, w.s->score, w.s->count, w.n);
    moments(w.answer_mean, w.answer_sd, w.s->answer, w.s->count, w.n);
    if (!are_finite(w.mu, w.s->d) || !are_finite(w.score_mean, w.n) ||
        !are_finite(w.answer_mean, w.n))
        goto done;
    out->main_effect = main_effect(&w);
    memset(curve, 0, (size_t)w.n * sizeof *curve);
    over_tokens(&w, curve);
    CPL_TRY_DONE(mean_token(&w, out, be, layer));
    set_labels(&w, w.n, index, seed);
    draw_sums(&w);
    draw_chosen(&w, record, index);
    const int64_t kept = set_rest(&w);
    set_labels(&w, kept, index, seed);
    draw_dz(&w, kept);
    for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++) {
        if (!isfinite(w.drawn[f][0])) continue;
        out->value[f] = w.drawn[f][0];
        out->null[f]  = null_of(w.drawn[f]);
    }
done:
    cpl_pool_free(&w.pool);
    return status;
}
