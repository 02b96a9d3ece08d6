/* signs.c - see signs.h */
#include "inspect/routing/signs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats/statistics.h"

/* ---- means of rho ---- */

typedef struct mean {
    double sum;
    int64_t count;
} mean;

static void add(mean *m, double rho)
{
    if (isnan(rho)) return;
    m->sum += rho;
    m->count++;
}

static double value_of(const mean *m)
{
    return m->count ? m->sum / (double)m->count : (double)NAN;
}

typedef struct means {
    mean all, above, below, size;
} means;

static cpl_routing_rho rho_of(const means *m)
{
    return (cpl_routing_rho){value_of(&m->all), value_of(&m->above), value_of(&m->below)};
}

/* Holds lists of a token or an expert, and memory for parts of them. */
typedef struct lists {
    double *sign; /* numbers whose sign counts */
    double *score, *answer;
    double *x, *y;
    void *scratch;
} lists;

static cpl_status take_lists(lists *l, int64_t length)
{
    const size_t bytes = (size_t)length * sizeof(double);
    l->sign            = cpl_alloc(5 * bytes + 1);
    l->scratch         = cpl_alloc(cpl_correlation_scratch(length));
    if (!l->sign || !l->scratch) return CPL_ERR_MEMORY;
    l->score  = l->sign + length;
    l->answer = l->score + length;
    l->x      = l->answer + length;
    l->y      = l->x + length;
    return CPL_OK;
}

static void free_lists(lists *l)
{
    cpl_free(l->sign);
    cpl_free(l->scratch);
}

/* Returns rho of the entries whose sign times `side` is above 0, or of all for `side` 0. */
static double rho_of_side(const lists *l, int64_t length, double side)
{
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++) {
        if (side != 0 && !(side * l->sign[i] > 0)) continue;
        l->x[count]   = l->score[i];
        l->y[count++] = l->answer[i];
    }
    if (count < CPL_SIGNS_LEAST) return NAN;
    return cpl_correlation_spearman(l->x, l->y, count, l->scratch);
}

static void add_lists(means *m, const lists *l, int64_t length)
{
    add(&m->all, rho_of_side(l, length, 0));
    add(&m->above, rho_of_side(l, length, 1));
    add(&m->below, rho_of_side(l, length, -1));
}

/* Turns the scores into their sizes, after add_lists. */
static void add_size(means *m, const lists *l, int64_t length)
{
    for (int64_t i = 0; i < length; i++) l->score[i] = fabs(l->score[i]);
    add(&m->size, rho_of_side(l, length, 0));
}

/* ---- scores ---- */

/* Returns the number that is taken from all scores of a token: their mean, or 0. */
static double origin_of(const float *score, int64_t n, bool centred)
{
    double sum = 0;
    for (int64_t e = 0; e < n; e++) sum += (double)score[e];
    return centred ? sum / (double)n : 0;
}

static void read_token(const lists *l, const cpl_token_samples *s, int64_t t, const double *origin)
{
    for (int64_t e = 0; e < s->n; e++) {
        l->sign[e] = l->score[e] = (double)s->score[t * s->n + e] - origin[t];
        l->answer[e]             = (double)s->answer[t * s->n + e];
    }
}

static void over_tokens(means *m, double *negative, const lists *l, const cpl_token_samples *s,
                        const double *origin)
{
    int64_t below = 0;
    for (int64_t t = 0; t < s->count; t++) {
        read_token(l, s, t, origin);
        for (int64_t e = 0; e < s->n; e++) below += l->sign[e] < 0;
        add_lists(m, l, s->n);
        add_size(m, l, s->n);
    }
    *negative = (double)below / (double)(s->count * s->n);
}

static void over_experts(means *m, const lists *l, const cpl_token_samples *s, const double *origin)
{
    for (int64_t e = 0; e < s->n; e++) {
        for (int64_t t = 0; t < s->count; t++) {
            l->sign[t] = l->score[t] = (double)s->score[t * s->n + e] - origin[t];
            l->answer[t]             = (double)s->answer[t * s->n + e];
        }
        add_lists(m, l, s->count);
        add_size(m, l, s->count);
    }
}

/* ---- within an id ---- */

typedef struct sampled {
    int32_t id;
    int64_t token; /* index of the token among the samples */
} sampled;

static int by_id(const void *a, const void *b)
{
    const sampled *x = a, *y = b;
    if (x->id != y->id) return (x->id > y->id) - (x->id < y->id);
    return (x->token > y->token) - (x->token < y->token);
}

/* Adds the tokens of one id, with their means subtracted. mean_score, mean_answer [n]: scratch. */
static void add_group(means *m, const lists *l, const cpl_token_samples *s, const double *origin,
                      const sampled *group, int64_t count, double *mean_score, double *mean_answer)
{
    memset(mean_score, 0, (size_t)s->n * sizeof *mean_score);
    memset(mean_answer, 0, (size_t)s->n * sizeof *mean_answer);
    for (int64_t i = 0; i < count; i++) {
        read_token(l, s, group[i].token, origin);
        for (int64_t e = 0; e < s->n; e++) {
            mean_score[e] += l->score[e] / (double)count;
            mean_answer[e] += l->answer[e] / (double)count;
        }
    }
    for (int64_t i = 0; i < count; i++) {
        read_token(l, s, group[i].token, origin);
        for (int64_t e = 0; e < s->n; e++) {
            l->score[e] -= mean_score[e];
            l->answer[e] -= mean_answer[e];
        }
        add_lists(m, l, s->n);
    }
}

static cpl_status within_ids(means *m, const lists *l, const cpl_token_samples *s,
                             const int32_t *id, const double *origin)
{
    const int64_t n = s->n, all = s->count;
    sampled *order = cpl_alloc((size_t)all * sizeof *order + 1);
    double *both   = cpl_alloc(2 * (size_t)n * sizeof *both);
    for (int64_t t = 0; order && t < all; t++) order[t] = (sampled){id[s->place[t]], t};
    if (order) qsort(order, (size_t)all, sizeof *order, by_id);
    for (int64_t first = 0, end; order && both && first < all; first = end) {
        for (end = first + 1; end < all && order[end].id == order[first].id;) end++;
        if (end - first > 1) add_group(m, l, s, origin, order + first, end - first, both, both + n);
    }
    const bool whole = order && both;
    cpl_free(order);
    cpl_free(both);
    return whole ? CPL_OK : CPL_ERR_MEMORY;
}

/* ---- all figures ---- */

cpl_status cpl_routing_signs_of(cpl_routing_signs *out, const cpl_token_samples *s,
                                const int32_t *id, bool centred)
{
    means tokens = {0}, ids = {0}, experts = {0};
    lists l           = {0};
    double *origin    = cpl_alloc((size_t)s->count * sizeof *origin + 1);
    cpl_status status = take_lists(&l, s->count > s->n ? s->count : s->n);
    if (!origin) status = CPL_ERR_MEMORY;
    if (status == CPL_OK) {
        for (int64_t t = 0; t < s->count; t++)
            origin[t] = origin_of(s->score + t * s->n, s->n, centred);
        over_tokens(&tokens, &out->negative, &l, s, origin);
        over_experts(&experts, &l, s, origin);
        status = within_ids(&ids, &l, s, id, origin);
    }
    out->tokens       = rho_of(&tokens);
    out->tokens_size  = value_of(&tokens.size);
    out->ids          = rho_of(&ids);
    out->experts      = rho_of(&experts);
    out->experts_size = value_of(&experts.size);
    cpl_free(origin);
    free_lists(&l);
    return status;
}
