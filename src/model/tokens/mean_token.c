/* mean_token.c - see mean_token.h */
#include "model/tokens/mean_token.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats/statistics.h"

const char *const cpl_mean_token_names[] = {
    "agreement", "agreement_centred", "agreement_mu_off",   "pearson_centred", "agreement_chosen",
    "dz",        "main_effect",       "router_mu_negative", "router_mu_cos"};

/* The figures up to PEARSON_CENTRED are sums of a matrix Z. */
enum { SUMS = CPL_MEAN_TOKEN_PEARSON_CENTRED + 1 };

typedef struct ranked {
    double score;
    int64_t expert;
} ranked;

typedef struct work {
    const cpl_token_samples *s;
    int64_t n, draws;                             /* draw 0 has the labels as they are */
    double *mu, *mean_row, *shift;                /* [d], [d] of the rows, [n] R_i . mu */
    double *score_mean, *answer_mean, *answer_sd; /* [n] over the tokens */
    double *x, *y, *u, *v;                        /* [n] numbers of a token, and their ranks */
    ranked *order;                                /* [n] */
    double *Z[SUMS],
        over[SUMS]; /* [n,n] sums over the tokens, with one draw\n                                                     of the diagonal alone; their divisor */
    int32_t *labels;                     /* [draws,n] */
    double *drawn[CPL_MEAN_TOKEN_NULLS]; /* [draws] */
    int64_t *counted;                    /* [draws] tokens of AGREEMENT_CHOSEN */
    double *rest;                        /* [n,n] M_tok less its means */
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
    const size_t labels_size = (size_t)(w->draws * n) * sizeof *w->labels;
    for (size_t i = 0; i < sizeof of_n / sizeof *of_n; i++) *of_n[i] = doubles(w, n);
    for (int f = 0; f < SUMS; f++) w->Z[f] = doubles(w, n * n);
    for (int f = 0; f < CPL_MEAN_TOKEN_NULLS; f++) w->drawn[f] = doubles(w, w->draws);
    w->mu       = doubles(w, w->s->d);
    w->mean_row = doubles(w, w->s->d);
    w->rest     = doubles(w, n * n);
    w->order    = cpl_pool_take(&w->pool, (size_t)n * sizeof *w->order);
    w->labels   = cpl_pool_take(&w->pool, labels_size);
    w->counted  = cpl_pool_take(&w->pool, (size_t)w->draws * sizeof *w->counted);
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

static void add_products(work *w, int figure, const double *x, const double *y)
{
    const int64_t n = w->n;
    double *Z       = w->Z[figure];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = w->draws > 1 ? 0 : i; j < (w->draws > 1 ? n : i + 1); j++)
            Z[i * n + j] += x[i] * y[j];
}

/* Adds the ranks of x and y of a token. */
static void add_ranks(work *w, int figure)
{
    if (!standard_ranks(w->u, w->x, w->n, w->scratch)) return;
    if (!standard_ranks(w->v, w->y, w->n, w->scratch)) return;
    add_products(w, figure, w->u, w->v);
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
    const cpl_token_samples *s = w->s;
    const int64_t n            = w->n;
    double of_scores = 0, of_answers = 0;
    for (int64_t t = 0; t < s->count; t++) {
        for (int64_t i = 0; i < n; i++) {
            w->x[i] = (double)s->score[t * n + i];
            w->y[i] = (double)s->answer[t * n + i];
        }
        add_ranks(w, CPL_MEAN_TOKEN_AGREEMENT);
        if (curve) add_curve(w, curve);
        for (int64_t i = 0; i < n; i++) {
            w->x[i] -= w->score_mean[i];
            w->y[i] -= w->answer_mean[i];
        }
        add_ranks(w, CPL_MEAN_TOKEN_AGREEMENT_CENTRED);
        of_scores += centre(w->x, n);
        of_answers += centre(w->y, n);
        add_products(w, CPL_MEAN_TOKEN_PEARSON_CENTRED, w->x, w->y);
    }
    w->over[CPL_MEAN_TOKEN_PEARSON_CENTRED] = sqrt(of_scores * of_answers);
}

/* ---- the mean token ---- */

/* Sets shift, and returns the share of it that is below 0. */
static double project(work *w, const float *router)
{
    const int64_t d = w->s->d;
    int64_t below   = 0;
    for (int64_t i = 0; i < w->n; i++) {
        for (int64_t k = 0; k < d; k++) w->shift[i] += (double)router[i * d + k] * w->mu[k];
        below += w->shift[i] < 0;
    }
    return (double)below / (double)w->n;
}

/* Sets t->row [d] to W^T W mu of the expert at `i` of this rank. t->rows has mu. */
static void set_product(const cpl_token_scratch *t, cpl_backend *be, const cpl_layer_params *layer,
                        int64_t i)
{
    const cpl_ops *ops    = be->ops;
    const cpl_tensor gate = cpl_tensor_at(layer->w_gate, i), down = layer->latent_down;
    const bool latent        = cpl_tensor_is_there(down);
    const cpl_tensor product = cpl_tensor_range(t->products, 0, 1);
    const cpl_tensor mu = cpl_tensor_range(t->rows, 0, 1), out = cpl_tensor_range(t->rows, 1, 1);
    const cpl_tensor read = latent ? cpl_tensor_range(t->hidden, 0, 1) : mu;
    const cpl_tensor back = latent ? cpl_tensor_range(t->hidden, 1, 1) : out;
    if (latent) ops->gemm_f32(be, read, CPL_AS_IS, mu, CPL_TRANSPOSED, down, 0);
    ops->gemm_f32(be, product, CPL_AS_IS, read, CPL_TRANSPOSED, gate, 0);
    ops->gemm_f32(be, back, CPL_AS_IS, product, CPL_AS_IS, gate, 0);
    if (latent) ops->gemm_f32(be, out, CPL_AS_IS, back, CPL_AS_IS, down, 0);
    ops->get(be, t->row, out);
}

/* Returns the mean cosine of the centred rows and W_i^T W_i mu. */
static double mean_cosine(work *w, const cpl_token_scratch *t, cpl_backend *be,
                          const cpl_layer_params *layer)
{
    const int64_t d = w->s->d;
    double sums[2]  = {0}; /* the cosines, and their number */
    moments(w->mean_row, NULL, t->router, w->n, d);
    for (int64_t k = 0; k < d; k++) t->row[k] = (float)w->mu[k];
    be->ops->put(be, cpl_tensor_range(t->rows, 0, 1), t->row);
    for (int64_t i = 0; i < t->n_own; i++) {
        const float *row = t->router + (t->at + i) * d;
        double dot = 0, rows = 0, products = 0;
        set_product(t, be, layer, t->first + i);
        for (int64_t k = 0; k < d; k++) {
            const double x = (double)row[k] - w->mean_row[k], y = (double)t->row[k];
            dot += x * y;
            rows += x * x;
            products += y * y;
        }
        if (!(rows > 0 && products > 0)) continue;
        sums[0] += dot / sqrt(rows * products);
        sums[1]++;
    }
    if (t->world) cpl_group_sum_f64(t->world, sums, 2);
    return sums[0] / sums[1];
}

/* Adds the ranks of `count` tokens from `first` on, less the mean token. */
static void add_off(work *w, const cpl_token_scratch *t, cpl_backend *be,
                    const cpl_layer_params *layer, int64_t first, int64_t count)
{
    const int64_t n = w->n, d = w->s->d;
    for (int64_t i = 0; i < count * d; i++)
        t->row[i] = (float)((double)w->s->x[first * d + i] - w->mu[i % d]);
    cpl_token_scratch_answer(t, be, layer, count);
    for (int64_t s = 0; s < count; s++) {
        for (int64_t i = 0; i < n; i++) {
            w->x[i] = (double)w->s->score[(first + s) * n + i] - w->shift[i];
            w->y[i] = (double)t->answer[i * count + s];
        }
        add_ranks(w, CPL_MEAN_TOKEN_AGREEMENT_MU_OFF);
    }
}

static void mean_token(work *w, double *value, cpl_backend *be, const cpl_layer_params *layer,
                       const cpl_token_scratch *t)
{
    const int64_t all = w->s->count;
    be->ops->get(be, t->router, layer->router);
    value[CPL_MEAN_TOKEN_ROUTER_MU_NEGATIVE] = project(w, t->router);
    value[CPL_MEAN_TOKEN_ROUTER_MU_COS]      = mean_cosine(w, t, be, layer);
    for (int64_t first = 0; first < all; first += t->room)
        add_off(w, t, be, layer, first, all - first < t->room ? all - first : t->room);
}

/* ---- permuted experts ---- */

/* Sets the labels of every draw to a permutation of n. */
static void set_labels(work *w, int64_t n, const cpl_rng_key *key)
{
    for (int64_t i = 0; i < n; i++) w->labels[i] = (int32_t)i;
    for (int64_t t = 1; t < w->draws; t++) {
        cpl_rng_key own = *key;
        own.step        = (uint64_t)t - 1;
        cpl_rng_shuffle(w->labels + t * n, n, &own);
    }
}

static void draw_sums(work *w)
{
    const int64_t n = w->n;
    for (int f = 0; f < SUMS; f++)
        for (int64_t t = 0; t < w->draws; t++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += w->Z[f][i * n + w->labels[t * n + i]];
            w->drawn[f][t] = sum / w->over[f];
        }
}

/* Adds the correlation of a token's K experts to every draw. u [K] are the ranks of the scores. A
 * rank of an answer is found by comparisons, from minus K to K and 0 in the mean. */
static void add_chosen(work *w, const float *answer, const int32_t *chosen, int64_t K)
{
    for (int64_t t = 0; t < w->draws; t++) {
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

static void draw_chosen(work *w)
{
    const int64_t n = w->n, K = w->s->top_k;
    for (int64_t t = 0; t < w->s->count; t++) {
        const int32_t *chosen = w->s->chosen + t * K;
        for (int64_t k = 0; k < K; k++) w->x[k] = (double)w->s->score[t * n + chosen[k]];
        if (standard_ranks(w->u, w->x, K, w->scratch))
            add_chosen(w, w->s->answer + t * n, chosen, K);
    }
    for (int64_t t = 0; t < w->draws; t++)
        w->drawn[CPL_MEAN_TOKEN_AGREEMENT_CHOSEN][t] /= (double)w->counted[t];
}

/* Sets rest [n,n] to the sums of the answers over the tokens of each expert, and w->u [n] to the
 * numbers of these tokens. */
static void sum_by_expert(work *w)
{
    const cpl_token_samples *s = w->s;
    for (int64_t c = 0; c < s->count * s->top_k; c++) {
        const int64_t i = s->chosen[c], t = c / s->top_k;
        w->u[i]++;
        for (int64_t j = 0; j < w->n; j++) w->rest[i * w->n + j] += (double)s->answer[t * w->n + j];
    }
}

/* Sets rest [m,m] to M_tok of the m kept experts less its row and column means plus the mean.
 * Returns m. */
static int64_t set_rest(work *w)
{
    const int64_t n = w->n;
    int64_t m       = 0;
    double *to      = w->rest;
    memset(w->u, 0, (size_t)n * sizeof *w->u);
    sum_by_expert(w);
    for (int64_t i = 0; i < n; i++) {
        m += w->u[i] >= CPL_TOKENS_FEW;
        for (int64_t j = 0; j < n; j++)
            if (w->u[i] >= CPL_TOKENS_FEW && w->u[j] >= CPL_TOKENS_FEW)
                *to++ = w->rest[i * n + j] / w->u[i];
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
    for (int64_t t = 0; t < w->draws; t++) {
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

static cpl_mean_token_null null_of(const double *drawn, int64_t draws)
{
    cpl_mean_token_null null = {0};
    double count = 0, far = 0;
    for (int64_t t = 1; t < draws; t++) {
        if (!isfinite(drawn[t])) continue;
        null.mean += drawn[t];
        count++;
    }
    null.mean /= count;
    for (int64_t t = 1; t < draws; t++) {
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

/* Sets every figure and null to NaN. */
static void set_none(cpl_mean_token *out, double *curve, int64_t n)
{
    const cpl_mean_token_null none = {(double)NAN, (double)NAN, (double)NAN};
    for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++) out->value[f] = (double)NAN;
    for (int f = 0; f < CPL_MEAN_TOKEN_NULLS; f++) out->null[f] = none;
    for (int64_t i = 0; curve && i < n; i++) curve[i] = (double)NAN;
}

/* Sets the figures that have a null from their draws. */
static void draw(work *w, cpl_mean_token *out, const cpl_rng_key *key)
{
    set_labels(w, w->n, key);
    draw_sums(w);
    draw_chosen(w);
    const int64_t kept = set_rest(w);
    set_labels(w, kept, key);
    draw_dz(w, kept);
    for (int f = 0; f < CPL_MEAN_TOKEN_NULLS; f++) {
        if (!isfinite(w->drawn[f][0])) continue;
        out->value[f] = w->drawn[f][0];
        if (key) out->null[f] = null_of(w->drawn[f], w->draws);
    }
}

cpl_status cpl_mean_token_of(cpl_mean_token *out, double *curve, cpl_backend *be,
                             const cpl_layer_params *layer, const cpl_token_samples *s,
                             const cpl_token_scratch *scratch, const cpl_rng_key *key)
{
    work w            = {.s = s, .n = s->n, .draws = key ? 1 + CPL_MEAN_TOKEN_DRAWS : 1};
    cpl_status status = take_all(&w);
    set_none(out, curve, w.n);
    if (status != CPL_OK) goto done;
    moments(w.mu, NULL, s->x, s->count, s->d);
    moments(w.score_mean, NULL, s->score, s->count, w.n);
    moments(w.answer_mean, w.answer_sd, s->answer, s->count, w.n);
    if (!are_finite(w.mu, s->d) || !are_finite(w.score_mean, w.n) ||
        !are_finite(w.answer_mean, w.n))
        goto done;
    out->value[CPL_MEAN_TOKEN_MAIN_EFFECT] = main_effect(&w);
    if (curve) memset(curve, 0, (size_t)w.n * sizeof *curve);
    over_tokens(&w, curve);
    mean_token(&w, out->value, be, layer, scratch);
    draw(&w, out, key);
    status = be->ops->sync(be);
done:
    cpl_pool_free(&w.pool);
    return status;
}
