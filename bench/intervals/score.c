/* score.c - see score.h.
 *
 * Prints:  of an estimate: in how many of 100 samples its interval holds the figure, and the median of
 *          half its width (z: as it is; others: in per cent of the figure), of the samples that give
 *          it. Of a bound: the medians of its two ends; "hold" is the least of all bounds' shares of
 *          samples in which the figure is within. "All of M": the share in which all n^2 intervals of
 *          its entries hold at once. Means are of GROUP layers at a time, with the sums of the ends of
 *          their intervals, as in the closing sentence of `inspect --sample`. */
#include "score.h"

#include <math.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/stats/statistics.h"

const double cover_shares[COVER_SHARES] = {0.01, 0.02, 0.05, 0.10, 0.25};

enum { GROUP = 4 };

static const int estimates[] = {COVER_KAPPA_OWN, COVER_KAPPA_OTHERS, COVER_Z, COVER_NORM};
static const int bounds[]    = {COVER_ALPHA_MIN, COVER_RELATIVE, COVER_VIOLATED, COVER_ROWS,
                                COVER_ASSIGNED};
enum { ESTIMATES = sizeof estimates / sizeof *estimates, PRINTED = sizeof bounds / sizeof *bounds };

cover_score cover_score_new(int64_t layers, int64_t samples)
{
    cover_score s = {.layers = layers, .samples = samples};
    for (int a = 0; a < COVER_SHARES; a++)
        s.at[a] = cover_room((size_t)(layers * samples) * sizeof(cover_result));
    return s;
}

void cover_score_free(cover_score *s)
{
    for (int a = 0; a < COVER_SHARES; a++) cpl_free(s->at[a]);
}

/* ---- one sample ---- */

static void take(cover_result *to, int k, cpl_interval x, double is)
{
    to->figure[k]    = x;
    to->figure_is[k] = is;
}

static void take_bound(cover_result *to, int k, cpl_interval x, double is)
{
    to->bound[k]    = x;
    to->bound_is[k] = is;
}

static bool all_within(const cover_layer *l, const cover_truth *t, const cpl_row_sums *sums,
                       bool scale_free)
{
    const int64_t n = l->n;
    double *low     = cover_room(2 * (size_t)(n * n) * sizeof *low);
    bool held       = true;
    cpl_row_sums_entries(low, low + n * n, sums, l->row_norm, scale_free);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double norm = sqrt(l->norms[j * (l->D + 1) + l->D]) * l->row_norm[i];
            const double is = (double)t->M[i * n + j] / (scale_free ? norm : 1), slack = 1e-6 * is;
            held = held && low[i * n + j] <= is + slack && is - slack <= low[n * n + i * n + j];
        }
    cpl_free(low);
    return held;
}

static void judge(cover_result *to, const cover_layer *l, const cover_truth *t, double share,
                  uint64_t seed)
{
    const double one        = 1;
    const cpl_row_plan plan = cpl_row_plan_of(l->D, 1, share);
    cpl_row_sums sums       = cover_layer_draw(l, &plan, seed);
    cpl_row_estimates e;
    cpl_row_bounds b;
    cover_ok(cpl_row_sums_estimate(&e, &sums, l->row_norm));
    cover_ok(cpl_row_sums_bound(&b, &sums, l->row_norm, &one, 1));
    take(to, COVER_KAPPA_OWN, e.kappa_diagonal, t->chance.kappa_diagonal);
    take(to, COVER_KAPPA_OTHERS, e.kappa_off_diagonal, t->chance.kappa_off_diagonal);
    take(to, COVER_Z, e.z, t->chance.z);
    take(to, COVER_M_OWN, e.m_diagonal, t->m[0]);
    take(to, COVER_M_OTHERS, e.m_off_diagonal, t->m[1]);
    take(to, COVER_NORM, e.gate_norm, t->norm);
    take_bound(to, COVER_ALPHA_MIN, b.alpha_min, t->ratios.most);
    take_bound(to, COVER_RELATIVE, b.erc_relative[0], t->relative);
    take_bound(to, COVER_VIOLATED, b.violated, t->ratios.violated);
    take_bound(to, COVER_ROWS, b.rows_own, t->chance.kappa_row_top1);
    take_bound(to, COVER_COLUMNS, b.columns_own, t->chance.kappa_column_top1);
    take_bound(to, COVER_ASSIGNED, b.assigned, t->chance.assignment_accuracy);
    to->all_m     = all_within(l, t, &sums, false);
    to->all_kappa = all_within(l, t, &sums, true);
    cpl_free(sums.squares);
    cpl_free(sums.norms);
}

void cover_score_layer(cover_score *s, int64_t layer, const cover_layer *l)
{
    cover_truth t = cover_truth_of(l);
    for (int64_t r = 0; r < s->samples; r++)
        for (int a = 0; a < COVER_SHARES; a++)
            judge(&s->at[a][layer * s->samples + r], l, &t, cover_shares[a],
                  (uint64_t)(layer * s->samples + r) + 1);
    cpl_free(t.M);
}

/* ---- figures of all samples at one share ---- */

static double per_cent(int64_t part, int64_t of)
{
    return of ? 100 * (double)part / (double)of : (double)NAN;
}

static bool within(cpl_interval x, double is)
{
    return x.low <= is && is <= x.high;
}

/* How often the interval holds, where there is an estimate, and in how many samples there is. NaN:
 * none. */
static double held(const cover_score *s, int share, int k, int64_t *given)
{
    int64_t count = 0;
    *given        = 0;
    for (int64_t r = 0; r < s->layers * s->samples; r++) {
        const cover_result *at = &s->at[share][r];
        if (isnan(at->figure[k].estimate)) continue;
        (*given)++;
        count += within(at->figure[k], at->figure_is[k]);
    }
    return per_cent(count, *given);
}

/* The same of means over GROUP layers. Their samples of one number are put together. */
static double held_by_means(const cover_score *s, int share, int k)
{
    int64_t count = 0, given = 0;
    for (int64_t r = 0; r < s->layers / GROUP * s->samples; r++) {
        const int64_t first = r / s->samples * GROUP * s->samples + r % s->samples;
        cpl_interval parts[GROUP];
        double is = 0;
        for (int64_t g = 0; g < GROUP; g++) {
            const cover_result *at = &s->at[share][first + g * s->samples];
            parts[g]               = at->figure[k];
            is += at->figure_is[k] / GROUP;
        }
        const cpl_interval mean = cpl_interval_sum(parts, GROUP, 1.0 / GROUP);
        if (isnan(mean.estimate)) continue;
        given++;
        count += within(mean, is);
    }
    return per_cent(count, given);
}

static double held_all(const cover_score *s, int share, bool kappa)
{
    int64_t count = 0;
    for (int64_t r = 0; r < s->layers * s->samples; r++)
        count += kappa ? s->at[share][r].all_kappa : s->at[share][r].all_m;
    return per_cent(count, s->layers * s->samples);
}

/* Of the bound that holds least often. */
static double held_by_bounds(const cover_score *s, int share)
{
    double least = 100;
    for (int k = 0; k < COVER_BOUNDS; k++) {
        int64_t count = 0;
        for (int64_t r = 0; r < s->layers * s->samples; r++) {
            const cover_result *at = &s->at[share][r];
            const double is = at->bound_is[k], slack = 1e-6 * fabs(is);
            count += at->bound[k].low <= is + slack && is - slack <= at->bound[k].high;
        }
        least = fmin(least, per_cent(count, s->layers * s->samples));
    }
    return least;
}

/* Where most are infinite, so is the median, and what lies between two such is no number. */
static double middle_of(double *values, int64_t n)
{
    if (!n) return (double)NAN;
    const double median = cpl_quantile(values, n, 0.5);
    return isnan(median) ? (double)INFINITY : median;
}

enum what { HALF, FIGURE_IS, LOW, HIGH, BOUND_IS };

/* HALF: half the width of an interval, over the figure but for z. */
static double value_of(const cover_result *at, enum what what, int k)
{
    const cpl_interval x = at->figure[k];
    switch (what) {
    case HALF:
        return (x.high - x.low) / 2 / (k == COVER_Z ? 1 : fabs(at->figure_is[k]));
    case FIGURE_IS:
        return at->figure_is[k];
    case LOW:
        return at->bound[k].low;
    case HIGH:
        return at->bound[k].high;
    case BOUND_IS:
        return at->bound_is[k];
    }
    return (double)NAN;
}

/* The median; of half widths that of the samples with an estimate. NaN: of nothing. */
static double middle(const cover_score *s, int share, enum what what, int k)
{
    double *values = cover_room((size_t)(s->layers * s->samples) * sizeof *values);
    int64_t count  = 0;
    for (int64_t r = 0; r < s->layers * s->samples; r++)
        if (what != HALF || !isnan(s->at[share][r].figure[k].estimate))
            values[count++] = value_of(&s->at[share][r], what, k);
    const double median = middle_of(values, count);
    cpl_free(values);
    return median;
}

/* ---- tables of a kind ---- */

static void print_estimate(const cover_score *s, int share, int k)
{
    int64_t given;
    const double holds = held(s, share, k, &given);
    if (!given)
        printf(" - |");
    else
        printf(" %.1f; %.3g%s |", holds, (k == COVER_Z ? 1 : 100) * middle(s, share, HALF, k),
               k == COVER_Z ? "" : " %");
}

static double no_z(const cover_score *s, int share)
{
    int64_t given;
    held(s, share, COVER_Z, &given);
    return 100 - per_cent(given, s->layers * s->samples);
}

static void print_estimates(const cover_score *s)
{
    printf("\n| share | kappa own | kappa others | z | norm of gates | no z |\n"
           "|---|---|---|---|---|---|\n");
    for (int a = 0; a < COVER_SHARES; a++) {
        printf("| %.0f %% |", 100 * cover_shares[a]);
        for (int k = 0; k < ESTIMATES; k++) print_estimate(s, a, estimates[k]);
        printf(" %.1f |\n", no_z(s, a));
    }
    printf("| all rows | %.3g | %.3g | %.3g | | |\n", middle(s, 0, FIGURE_IS, COVER_KAPPA_OWN),
           middle(s, 0, FIGURE_IS, COVER_KAPPA_OTHERS), middle(s, 0, FIGURE_IS, COVER_Z));
}

static double unit_of(int bound)
{
    return bound >= COVER_VIOLATED ? 100 : 1;
}

static void print_bounds(const cover_score *s)
{
    printf("\n| share | alpha_min | ERC / diagonal | violated | rows own | assigned | hold | "
           "all of M |\n"
           "|---|---|---|---|---|---|---|---|\n");
    for (int a = 0; a < COVER_SHARES; a++) {
        printf("| %.0f %% |", 100 * cover_shares[a]);
        for (int k = 0; k < PRINTED; k++)
            printf(" %.3g to %.3g |", unit_of(bounds[k]) * middle(s, a, LOW, bounds[k]),
                   unit_of(bounds[k]) * middle(s, a, HIGH, bounds[k]));
        printf(" %.1f | %.1f |\n", held_by_bounds(s, a), held_all(s, a, false));
    }
    printf("| all rows |");
    for (int k = 0; k < PRINTED; k++)
        printf(" %.3g |", unit_of(bounds[k]) * middle(s, 0, BOUND_IS, bounds[k]));
    printf(" | |\n");
}

/* ---- tables of all kinds ---- */

/* A cell with the value of every share; "-": there is none. */
static void add_cell(cpl_text *line, const double values[COVER_SHARES])
{
    for (int a = 0; a < COVER_SHARES; a++)
        if (isnan(values[a]))
            cpl_text_printf(line, "%s-", a ? ", " : " ");
        else
            cpl_text_printf(line, "%s%.0f", a ? ", " : " ", values[a]);
    cpl_text_printf(line, " |");
}

static void add_estimates(cpl_text *line, const cover_score *s, const char *name)
{
    double values[COVER_SHARES];
    int64_t given;
    cpl_text_printf(line, "| %s |", name);
    for (int k = 0; k < ESTIMATES; k++) {
        for (int a = 0; a < COVER_SHARES; a++) values[a] = held(s, a, estimates[k], &given);
        add_cell(line, values);
    }
    for (int a = 0; a < COVER_SHARES; a++) values[a] = no_z(s, a);
    add_cell(line, values);
    cpl_text_printf(line, "\n");
}

static void add_others(cpl_text *line, const cover_score *s, const char *name)
{
    double values[COVER_SHARES], least = 100;
    for (int a = 0; a < COVER_SHARES; a++) least = fmin(least, held_by_bounds(s, a));
    cpl_text_printf(line, "| %s | %.1f |", name, least);
    for (int kappa = 0; kappa < 2; kappa++) {
        for (int a = 0; a < COVER_SHARES; a++) values[a] = held_all(s, a, kappa);
        add_cell(line, values);
    }
    for (int k = 0; k < ESTIMATES; k++) {
        for (int a = 0; a < COVER_SHARES; a++) values[a] = held_by_means(s, a, estimates[k]);
        add_cell(line, values);
    }
    cpl_text_printf(line, "\n");
}

void cover_score_print(const cover_score *s, cpl_text lines[2], const char *name)
{
    int64_t given;
    printf("\n%s: %d layers, %d samples of each\n", name, (int)s->layers, (int)s->samples);
    print_estimates(s);
    print_bounds(s);
    printf("\nM own, M others:");
    for (int a = 0; a < COVER_SHARES; a++)
        printf("%s %.1f, %.1f", a ? ";" : "", held(s, a, COVER_M_OWN, &given),
               held(s, a, COVER_M_OTHERS, &given));
    printf(" of 100.\n");
    fflush(stdout);
    add_estimates(&lines[0], s, name);
    add_others(&lines[1], s, name);
}

void cover_score_print_last(const cpl_text lines[2])
{
    printf(
        "\n| intervals that hold, of 100 | kappa own | kappa others | z | norm of gates | no z |\n"
        "|---|---|---|---|---|---|\n%s",
        lines[0].bytes ? lines[0].bytes : "");
    printf("\n| of 100 | bounds | all of M | all of kappa | mean kappa own | mean kappa others | "
           "mean z | mean norm |\n"
           "|---|---|---|---|---|---|---|---|\n%s",
           lines[1].bytes ? lines[1].bytes : "");
}
