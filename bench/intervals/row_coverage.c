/* row_coverage.c - how often do the intervals and bounds of `couplet inspect --sample` hold, and
 * what do they say?
 *
 * usage:   row_coverage LAYERS [CHECKPOINT ...]        (make intervals)
 * Does:    draws a sample of each of LAYERS layers, at every share below, as `inspect --sample`
 *          draws it, and compares what it gives with the figures of all rows. Without CHECKPOINT
 *          these are random layers of several kinds; with it LAYERS samples of the layers of each
 *          checkpoint. Every sample has a seed of its own.
 * Prints:  the tables of docs/sampling.md. Of an estimate: in how many of 100 layers its interval
 *          holds the figure, and the median of half its width (z: as it is; others: in per cent of
 *          the figure). Of a bound: the medians of its two ends. "Hold": the least of all bounds'
 *          shares of layers in which the figure is within.
 * Names:   n experts, d model width, D expert width. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "base/stats/statistics.h"
#include "base/text.h"
#include "inspect/families/gate_reader.h"
#include "inspect/report.h"
#include "inspect/row_sample.h"

static const double shares[] = {0.01, 0.02, 0.05, 0.10, 0.25};
enum { SHARES = sizeof shares / sizeof *shares };

/* Stops the program with the library's sentence. */
static void ok(cpl_status status)
{
    if (status == CPL_OK) return;
    fprintf(stderr, "%s\n", cpl_last_error());
    exit(1);
}

static void *room(size_t bytes)
{
    void *memory = cpl_alloc(bytes);
    if (!memory) ok(CPL_FAIL(CPL_ERR_MEMORY, "out of memory"));
    memset(memory, 0, bytes);
    return memory;
}

/* ---- a layer in memory ---- */

/* What the figures need of it: for the rows before row c of expert j the sums of squares. */
typedef struct layer {
    int64_t n, d, D;
    double *squares;  /* [n,D+1,n]: of expert j, rows before c, router row i */
    double *norms;    /* [n,D+1] */
    double *row_norm; /* [n] */
    float *R;         /* [n,d] */
} layer;

static layer new_layer(int64_t n, int64_t d, int64_t D)
{
    return (layer){.n        = n,
                   .d        = d,
                   .D        = D,
                   .squares  = room((size_t)(n * (D + 1) * n) * sizeof(double)),
                   .norms    = room((size_t)(n * (D + 1)) * sizeof(double)),
                   .row_norm = room((size_t)n * sizeof(double)),
                   .R        = room((size_t)(n * d) * sizeof(float))};
}

static void free_layer(layer *l)
{
    cpl_free(l->squares);
    cpl_free(l->norms);
    cpl_free(l->row_norm);
    cpl_free(l->R);
}

static void set_row_norms(layer *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        double sum = 0;
        for (int64_t a = 0; a < l->d; a++)
            sum += (double)l->R[i * l->d + a] * (double)l->R[i * l->d + a];
        l->row_norm[i] = sqrt(sum);
    }
}

/* Row c of expert j. */
static void add_row(layer *l, int64_t j, int64_t c, const float *row)
{
    const double *before = l->squares + (j * (l->D + 1) + c) * l->n;
    double *after = l->squares + (j * (l->D + 1) + c + 1) * l->n, norm = 0;
    for (int64_t a = 0; a < l->d; a++) norm += (double)row[a] * (double)row[a];
    l->norms[j * (l->D + 1) + c + 1] = l->norms[j * (l->D + 1) + c] + norm;
    for (int64_t i = 0; i < l->n; i++) {
        float dot = 0;
        for (int64_t a = 0; a < l->d; a++) dot += l->R[i * l->d + a] * row[a];
        after[i] = before[i] + (double)dot * (double)dot;
    }
}

/* ---- what a layer's figures are ---- */

typedef struct truth {
    cpl_null_model chance;
    cpl_null_model_ratios ratios;
    double m[2], norm, erc, relative;
    float *M; /* [n,n] */
} truth;

static truth truth_of(const layer *l)
{
    const int64_t n  = l->n;
    const double one = 1;
    truth t          = {.M = room((size_t)(n * n) * sizeof(float))};
    double *norm     = room((size_t)n * sizeof *norm);
    for (int64_t j = 0; j < n; j++) {
        norm[j] = sqrt(l->norms[j * (l->D + 1) + l->D]);
        t.norm += norm[j] / (double)n;
        for (int64_t i = 0; i < n; i++) {
            const double m = sqrt(l->squares[(j * (l->D + 1) + l->D) * n + i]);
            t.M[i * n + j] = (float)m;
            t.m[i != j] += i == j ? m / (double)n : m / (double)(n * (n - 1));
        }
    }
    ok(cpl_null_model_of(&t.chance, NULL, t.M, l->row_norm, norm, n, &one, 1, 1, 0));
    ok(cpl_null_model_ratios_of(&t.ratios, t.M, n));
    t.erc      = cpl_null_model_erc(t.M, n, 1);
    t.relative = t.erc / t.m[0];
    cpl_free(norm);
    return t;
}

/* ---- a sample of it ---- */

static cpl_row_sums draw(const layer *l, const cpl_row_plan *plan, uint64_t seed)
{
    const int64_t n = l->n, b = plan->n_read;
    cpl_row_sums s = {n, b, plan->n_blocks, room((size_t)(n * b * n) * sizeof(double)),
                      room((size_t)(n * b) * sizeof(double))};
    for (int64_t j = 0; j < n; j++) {
        int64_t chosen[CPL_ROW_BLOCKS], rows;
        cpl_row_plan_choose(chosen, plan, seed, 0, 0, j);
        for (int64_t k = 0; k < b; k++) {
            const int64_t first = cpl_row_plan_block(plan, chosen[k], &rows) + j * (l->D + 1);
            s.norms[j * b + k]  = l->norms[first + rows] - l->norms[first];
            for (int64_t i = 0; i < n; i++)
                s.squares[(j * b + k) * n + i] =
                    l->squares[(first + rows) * n + i] - l->squares[first * n + i];
        }
    }
    return s;
}

/* ---- what it is worth ---- */

enum { KAPPA_OWN, KAPPA_OTHERS, Z, M_OWN, M_OTHERS, NORM, FIGURES };
enum { ENTRIES_M, ENTRIES_KAPPA, ALPHA_MIN, RELATIVE, VIOLATED, ROWS, COLUMNS, ASSIGNED, BOUNDS };
typedef struct score {
    int64_t layers, open_z; /* without an estimate of z */
    int64_t held[FIGURES], bounded[BOUNDS];
    double *half[FIGURES], *is_of[FIGURES], *low[BOUNDS], *high[BOUNDS], *is[BOUNDS]; /* [layers] */
} score;

static score new_score(int64_t layers)
{
    score s = {0};
    for (int k = 0; k < FIGURES; k++) {
        s.half[k]  = room((size_t)layers * sizeof(double));
        s.is_of[k] = room((size_t)layers * sizeof(double));
    }
    for (int k = 0; k < BOUNDS; k++) {
        s.low[k]  = room((size_t)layers * sizeof(double));
        s.high[k] = room((size_t)layers * sizeof(double));
        s.is[k]   = room((size_t)layers * sizeof(double));
    }
    return s;
}

static void free_score(score *s)
{
    for (int k = 0; k < FIGURES; k++) {
        cpl_free(s->half[k]);
        cpl_free(s->is_of[k]);
    }
    for (int k = 0; k < BOUNDS; k++) {
        cpl_free(s->low[k]);
        cpl_free(s->high[k]);
        cpl_free(s->is[k]);
    }
}

static void take(score *s, int k, cpl_interval x, double is)
{
    s->held[k] += x.low <= is && is <= x.high;
    s->is_of[k][s->layers] = is;
    s->half[k][s->layers]  = (x.high - x.low) / 2 / (k == Z ? 1 : fabs(is));
}

static void take_bound(score *s, int k, cpl_interval x, double is)
{
    const double slack = 1e-6 * fabs(is);
    s->bounded[k] += x.low <= is + slack && is - slack <= x.high;
    s->low[k][s->layers]  = x.low;
    s->high[k][s->layers] = x.high;
    s->is[k][s->layers]   = is;
}

static bool all_within(const layer *l, const truth *t, const cpl_row_sums *sums, bool scale_free)
{
    const int64_t n = l->n;
    double *low     = room(2 * (size_t)(n * n) * sizeof *low);
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

static void judge(score *s, const layer *l, const truth *t, double share, uint64_t seed)
{
    const double one        = 1;
    const cpl_row_plan plan = cpl_row_plan_of(l->D, 1, share);
    cpl_row_sums sums       = draw(l, &plan, seed);
    cpl_row_estimates e;
    cpl_row_bounds b;
    ok(cpl_row_sums_estimate(&e, &sums, l->row_norm));
    ok(cpl_row_sums_bound(&b, &sums, l->row_norm, &one, 1));
    take(s, KAPPA_OWN, e.kappa_diagonal, t->chance.kappa_diagonal);
    take(s, KAPPA_OTHERS, e.kappa_off_diagonal, t->chance.kappa_off_diagonal);
    take(s, Z, e.z, t->chance.z);
    take(s, M_OWN, e.m_diagonal, t->m[0]);
    take(s, M_OTHERS, e.m_off_diagonal, t->m[1]);
    take(s, NORM, e.gate_norm, t->norm);
    s->open_z += isnan(e.z.estimate);
    take_bound(s, ALPHA_MIN, b.alpha_min, t->ratios.most);
    take_bound(s, RELATIVE, b.erc_relative[0], t->relative);
    take_bound(s, VIOLATED, b.violated, t->ratios.violated);
    take_bound(s, ROWS, b.rows_own, t->chance.kappa_row_top1);
    take_bound(s, COLUMNS, b.columns_own, t->chance.kappa_column_top1);
    take_bound(s, ASSIGNED, b.assigned, t->chance.assignment_accuracy);
    s->bounded[ENTRIES_M] += all_within(l, t, &sums, false);
    s->bounded[ENTRIES_KAPPA] += all_within(l, t, &sums, true);
    s->layers++;
    cpl_free(sums.squares);
    cpl_free(sums.norms);
}

/* ---- tables ---- */

/* The widths of figures that are 0 have no meaning. */
static void print_estimate(score *s, int k)
{
    printf(" %.1f; %.3g%s |", 100 * (double)s->held[k] / (double)s->layers,
           (k == Z ? 1 : 100) * cpl_median(s->half[k], s->layers), k == Z ? "" : " %");
}

/* Where most are infinite, so is the median, and what lies between two such is no number. */
static double middle_of(double *values, int64_t n)
{
    const double median = cpl_median(values, n);
    return isnan(median) ? (double)INFINITY : median;
}

static void print_bound(score *s, int k)
{
    const double scale = k >= VIOLATED ? 100 : 1;
    printf(" %.3g to %.3g |", scale * middle_of(s->low[k], s->layers),
           scale * middle_of(s->high[k], s->layers));
}

static void print_estimates(score s[SHARES])
{
    static const int estimates[] = {KAPPA_OWN, KAPPA_OTHERS, Z, NORM};
    printf("\n| share | kappa own | kappa others | z | norm of gates | no z |\n"
           "|---|---|---|---|---|---|\n");
    for (int a = 0; a < SHARES; a++) {
        printf("| %.0f %% |", 100 * shares[a]);
        for (size_t k = 0; k < sizeof estimates / sizeof *estimates; k++)
            print_estimate(&s[a], estimates[k]);
        printf(" %.1f |\n", 100 * (double)s[a].open_z / (double)s[a].layers);
    }
    printf("| all rows | %.3g | %.3g | %.3g | | |\n", cpl_median(s->is_of[KAPPA_OWN], s->layers),
           cpl_median(s->is_of[KAPPA_OTHERS], s->layers), cpl_median(s->is_of[Z], s->layers));
}

/* The last column is how often the bound holds that holds least often. */
static void print_bounds(score s[SHARES])
{
    static const int bounds[] = {ALPHA_MIN, RELATIVE, VIOLATED, ROWS, ASSIGNED};
    printf("\n| share | alpha_min | ERC / diagonal | violated | rows own | assigned | hold |\n"
           "|---|---|---|---|---|---|---|\n");
    for (int a = 0; a < SHARES; a++) {
        int64_t least = s[a].layers;
        printf("| %.0f %% |", 100 * shares[a]);
        for (size_t k = 0; k < sizeof bounds / sizeof *bounds; k++) print_bound(&s[a], bounds[k]);
        for (int k = ALPHA_MIN; k < BOUNDS; k++)
            least = s[a].bounded[k] < least ? s[a].bounded[k] : least;
        printf(" %.1f |\n", 100 * (double)least / (double)s[a].layers);
    }
    printf("| all rows |");
    for (size_t k = 0; k < sizeof bounds / sizeof *bounds; k++)
        printf(" %.3g |",
               (bounds[k] >= VIOLATED ? 100 : 1) * cpl_median(s->is[bounds[k]], s->layers));
    printf(" |\n");
}

/* A line of the last table: of 100 layers, at every share. */
static void sum_up(cpl_text *out, const score s[SHARES], const char *name)
{
    static const int estimates[] = {KAPPA_OWN, KAPPA_OTHERS, Z, NORM};
    double least                 = 100;
    cpl_text_printf(out, "| %s |", name);
    for (size_t k = 0; k < sizeof estimates / sizeof *estimates; k++)
        for (int a = 0; a < SHARES; a++)
            cpl_text_printf(out, "%s%.0f%s", a ? ", " : " ",
                            100 * (double)s[a].held[estimates[k]] / (double)s[a].layers,
                            a + 1 == SHARES ? " |" : "");
    for (int a = 0; a < SHARES; a++)
        for (int k = ALPHA_MIN; k < BOUNDS; k++)
            least = fmin(least, 100 * (double)s[a].bounded[k] / (double)s[a].layers);
    cpl_text_printf(out, " %.1f |\n", least);
}

static void print_all(score s[SHARES], cpl_text *summary, const char *name)
{
    sum_up(summary, s, name);
    print_estimates(s);
    print_bounds(s);
    printf("\nAll n^2 intervals of M together (of kappa):");
    for (int a = 0; a < SHARES; a++)
        printf("%s %.1f (%.1f)", a ? "," : "",
               100 * (double)s[a].bounded[ENTRIES_M] / (double)s[a].layers,
               100 * (double)s[a].bounded[ENTRIES_KAPPA] / (double)s[a].layers);
    printf(" of 100 layers. M own, M others:");
    for (int a = 0; a < SHARES; a++)
        printf("%s %.1f, %.1f", a ? ";" : "", 100 * (double)s[a].held[M_OWN] / (double)s[a].layers,
               100 * (double)s[a].held[M_OTHERS] / (double)s[a].layers);
    printf(".\n");
    for (int a = 0; a < SHARES; a++) free_score(&s[a]);
    fflush(stdout);
}

/* ---- random layers ---- */

typedef struct kind {
    const char *name;
    int64_t n, d, D;
    double own;    /* each gate has its router row added, this large, times a number of every row */
    double tail;   /* standard deviation of the logarithm of a row's norm */
    bool sorted;   /* rows by falling norm */
    double common; /* the same vector added to all router rows */
} kind;

static const kind kinds[] = {
    {"random", 16, 64, 1024, 0, 0, false, 0},
    {"random, more experts of fewer rows", 64, 64, 512, 0, 0, false, 0},
    {"weakly coupled, router rows with a common part", 16, 64, 1024, 0.5, 0.3, false, 1},
    {"coupled", 16, 64, 1024, 3, 0.3, false, 0},
    {"coupled, few experts", 8, 16, 1024, 1.5, 0, false, 0},
    {"coupled, more rows", 16, 64, 4096, 3, 0.3, false, 0},
    {"rows of gates sorted by norm", 16, 64, 1024, 0, 0.3, true, 0},
    {"norms of rows lognormal with 0.5", 16, 64, 1024, 0, 0.5, false, 2},
    {"norms of rows lognormal with 1", 16, 64, 1024, 1, 1, false, 0},
    {"the same, sorted by norm", 16, 64, 1024, 1, 1, true, 0},
};

static float normal(cpl_rng_key *key, uint64_t *at)
{
    return cpl_rng_normal(key, (*at)++);
}

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static layer random_layer(const kind *k, uint64_t seed)
{
    cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_TEST};
    uint64_t at     = 0;
    layer l         = new_layer(k->n, k->d, k->D);
    float *row = room((size_t)k->d * sizeof *row), *common = room((size_t)k->d * sizeof *common);
    double *scale = room((size_t)k->D * sizeof *scale);
    for (int64_t a = 0; a < k->d; a++) common[a] = (float)k->common * normal(&key, &at);
    for (int64_t i = 0; i < k->n * k->d; i++) l.R[i] = normal(&key, &at) + common[i % k->d];
    set_row_norms(&l);
    for (int64_t j = 0; j < k->n; j++) {
        for (int64_t c = 0; c < k->D; c++) scale[c] = exp(k->tail * (double)normal(&key, &at));
        if (k->sorted) qsort(scale, (size_t)k->D, sizeof *scale, falling);
        for (int64_t c = 0; c < k->D; c++) {
            const float own = (float)(k->own / l.row_norm[j]) * normal(&key, &at);
            for (int64_t a = 0; a < k->d; a++)
                row[a] = (float)scale[c] * (normal(&key, &at) + own * l.R[j * k->d + a]);
            add_row(&l, j, c, row);
        }
    }
    cpl_free(row);
    cpl_free(common);
    cpl_free(scale);
    return l;
}

static void try_kind(const kind *k, int64_t layers, cpl_text *summary)
{
    score s[SHARES];
    for (int a = 0; a < SHARES; a++) s[a] = new_score(layers);
    printf("\n%s: n = %d, d = %d, D = %d; %d layers\n", k->name, (int)k->n, (int)k->d, (int)k->D,
           (int)layers);
#pragma omp parallel for schedule(dynamic)
    for (int64_t r = 0; r < layers; r++) {
        layer l = random_layer(k, (uint64_t)r + 1);
        truth t = truth_of(&l);
#pragma omp critical
        for (int a = 0; a < SHARES; a++) judge(&s[a], &l, &t, shares[a], (uint64_t)r + 1);
        cpl_free(t.M);
        free_layer(&l);
    }
    print_all(s, summary, k->name);
}

/* ---- layers of checkpoints ---- */

static layer read_layer(cpl_backend *be, const cpl_moe_layer *at)
{
    layer l       = new_layer(at->n, at->d, at->D);
    float *row    = room((size_t)at->d * sizeof *row);
    cpl_gate gate = {0};
    ok(cpl_router_read(be, cpl_tensor_2d(l.R, CPL_F32, at->n, at->d), at));
    set_row_norms(&l);
    for (int64_t j = 0; j < at->n; j++) {
        ok(cpl_gate_load(be, &gate, at, j));
        for (int64_t c = 0; c < at->D; c++) {
            cpl_gate_rows(be, cpl_tensor_2d(row, CPL_F32, 1, at->d), &gate, c);
            add_row(&l, j, c, row);
        }
    }
    cpl_gate_free(&gate);
    cpl_free(row);
    return l;
}

static void try_checkpoint(cpl_backend *be, const char *path, int64_t layers, cpl_text *summary)
{
    const cpl_inspect_options options = {.n_threads = 1, .memory_bytes = (double)INFINITY};
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    ok(cpl_inspect_open(&report, &cost, path, &options, NULL));
    printf("\n%s: n = %d, d = %d, D = %d; %d samples of %d layers\n", path,
           (int)report.layers[0].at->n, (int)report.layers[0].at->d, (int)report.layers[0].at->D,
           (int)(layers / report.n_layers * report.n_layers), (int)report.n_layers);
    score s[SHARES];
    for (int a = 0; a < SHARES; a++) s[a] = new_score(layers);
    for (int64_t k = 0; k < report.n_layers; k++) {
        layer l = read_layer(be, report.layers[k].at);
        truth t = truth_of(&l);
        for (int64_t r = 0; r < layers / report.n_layers; r++)
            for (int a = 0; a < SHARES; a++)
                judge(&s[a], &l, &t, shares[a], (uint64_t)(k * layers + r) + 1);
        cpl_free(t.M);
        free_layer(&l);
    }
    print_all(s, summary, report.name);
    cpl_inspect_close(&report);
}

int main(int argc, char **argv)
{
    const int64_t layers = argc > 1 ? atoll(argv[1]) : 0;
    cpl_backend be;
    cpl_text summary = {0};
    cpl_backend_cpu(&be, CPL_F32, 1);
    if (layers < 1) {
        fprintf(stderr, "usage: row_coverage LAYERS [CHECKPOINT ...]\n");
        return 2;
    }
    for (int k = 2; k < argc; k++) try_checkpoint(&be, argv[k], layers, &summary);
    for (size_t k = 0; argc < 3 && k < sizeof kinds / sizeof *kinds; k++)
        try_kind(&kinds[k], layers, &summary);
    printf("\n| intervals that hold, of 100 | kappa own | kappa others | z | norm of gates | "
           "bounds |\n"
           "|---|---|---|---|---|---|\n%s",
           summary.bytes ? summary.bytes : "");
    cpl_text_free(&summary);
    return 0;
}
