/* sampled_show.c - a report with --sample as tables for a terminal; see show.h */
#include "inspect/show.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/arena.h"

/* A figure: its place in cpl_row_estimates, or in cpl_row_bounds. */
typedef struct column {
    const char *heading, *group;
    size_t offset;
    int digits;
    bool percent, norms; /* norms: of the gates alone, in the table of the stored rows */
} column;

#define ESTIMATE(member) offsetof(cpl_row_estimates, member)
#define BOUND(member)    offsetof(cpl_row_bounds, member)

static const column estimates[] = {
    {"own", "kappa", ESTIMATE(kappa_diagonal), .digits = 4},
    {"others", "kappa", ESTIMATE(kappa_off_diagonal), .digits = 4},
    {"z", NULL, ESTIMATE(z), .digits = 2},
    {"mean", "|W_g|", ESTIMATE(gate_norm), .digits = 3, .norms = true},
    {0}};

/* ERC is at the first alpha. */
static const column bounds[] = {
    {"row", "% own largest", BOUND(rows_own), .digits = 1, .percent = true},
    {"column", "% own largest", BOUND(columns_own), .digits = 1, .percent = true},
    {"assigned", "%", BOUND(assigned), .digits = 1, .percent = true},
    {"violated", "% of pairs", BOUND(violated), .digits = 1, .percent = true},
    {"diagonal", "ERC / mean", BOUND(erc_relative), .digits = 3},
    {"50 %", "M_ij / diagonal", BOUND(ratio_50), .digits = 2},
    {"alpha_min", "M_ij / diagonal", BOUND(alpha_min), .digits = 2},
    {0}};

/* In the order of the enum. */
static const struct table {
    const char *title;
    const column *columns;
    bool centred, bounds;
} tables[] = {
    [CPL_SAMPLED_ESTIMATES] = {"Estimates with 95 % intervals, each for itself", estimates, false,
                               false},
    [CPL_SAMPLED_CENTRED]   = {"The same of the centred rows R_i - mean R", estimates, true, false},
    [CPL_SAMPLED_BOUNDS] =
        {"Bounds, no estimates: what every M within wide intervals of its entries "
         "allows",
         bounds, false, true},
    [CPL_SAMPLED_CENTRED_BOUNDS] = {"The same of the centred rows", bounds, true, true},
};

/* ---- values ---- */

static const void *place_of(const cpl_sample_report *s, const struct table *t)
{
    if (t->bounds) return t->centred ? &s->centred_bounds : &s->bounds;
    return t->centred ? &s->centred_estimates : &s->estimates;
}

static cpl_interval value_of(const cpl_layer_report *l, const struct table *t, const column *c)
{
    cpl_interval x;
    memcpy(&x, (const char *)place_of(l->sample, t) + c->offset, sizeof x);
    return x;
}

static bool has_value(const cpl_layer_report *l, const struct table *t, const column *c)
{
    if (l->fault || !l->sample) return false;
    return c->norms ? !t->centred : t->centred ? l->sample->has_centred : l->sample->has_M;
}

static const char *number(cpl_pool *pool, const column *c, double x)
{
    if (isnan(x)) return "-";
    if (isinf(x)) return "inf";
    return cpl_pool_printf(pool, "%.*f", c->digits, c->percent ? 100 * x : x);
}

static const char *words(cpl_pool *pool, const struct table *t, const column *c, cpl_interval x)
{
    if (isnan(x.low)) return "-";
    const char *low = number(pool, c, x.low), *high = number(pool, c, x.high);
    if (t->bounds) return cpl_pool_printf(pool, "%s to %s", low, high);
    return cpl_pool_printf(pool, "%s [%s, %s]", number(pool, c, x.estimate), low, high);
}

/* ---- tables ---- */

static int64_t count_columns(const struct table *t)
{
    int64_t n = 0;
    for (const column *c = t->columns; c->heading; c++) n += !(c->norms && t->centred);
    return n;
}

static bool has_row(const cpl_layer_report *l, const struct table *t)
{
    bool any = false;
    for (const column *c = t->columns; c->heading; c++) any = any || has_value(l, t, c);
    return any;
}

static void set_row(cpl_grid *g, cpl_pool *pool, const cpl_layer_report *l, const struct table *t,
                    int64_t row)
{
    char label[48];
    int64_t at   = 0;
    g->rows[row] = cpl_pool_printf(pool, "%s", cpl_coupling_layer_label(label, l));
    for (const column *c = t->columns; c->heading; c++) {
        if (c->norms && t->centred) continue;
        cpl_grid_set(g, row, at++, has_value(l, t, c) ? words(pool, t, c, value_of(l, t, c)) : "-");
    }
}

cpl_status cpl_sampled_grid(cpl_grid *g, cpl_pool *pool, const cpl_coupling_report *r,
                            cpl_sampled_table table)
{
    const struct table *t = &tables[table];
    int64_t n = 0, at = 0;
    for (int64_t i = 0; i < r->n_layers; i++) n += has_row(&r->layers[i], t);
    CPL_TRY(cpl_grid_open(g, pool, n, count_columns(t)));
    g->title  = t->title;
    g->corner = "layer";
    g->groups = cpl_pool_take(pool, (size_t)g->n_columns * sizeof *g->groups);
    if (!g->groups) return CPL_ERR_MEMORY;
    for (const column *c = t->columns; c->heading; c++) {
        if (c->norms && t->centred) continue;
        g->columns[at]  = c->heading;
        g->groups[at++] = c->group;
    }
    n = 0;
    for (int64_t i = 0; i < r->n_layers; i++)
        if (has_row(&r->layers[i], t)) set_row(g, pool, &r->layers[i], t, n++);
    return cpl_pool_status(pool);
}

/* ---- several checkpoints ---- */

/* The mean over the layers that have the figure: layers are sampled independently of each other. Bounds hold together no
 * less than their mean. */
static cpl_interval mean_of(const cpl_coupling_report *r, const struct table *t, const column *c,
                            cpl_interval *parts)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_layers; i++)
        if (has_value(&r->layers[i], t, c)) {
            parts[n] = value_of(&r->layers[i], t, c);
            n += !isnan(parts[n].low);
        }
    if (!t->bounds) return cpl_interval_sum(parts, n, 1 / (double)n);
    cpl_interval mean = {NAN, n ? 0 : (double)NAN, n ? 0 : (double)NAN};
    for (int64_t i = 0; i < n; i++) {
        mean.low += parts[i].low / (double)n;
        mean.high += parts[i].high / (double)n;
    }
    return mean;
}

static void set_heading(cpl_grid *g, cpl_pool *pool, int64_t row, const struct table *t,
                        const column *c)
{
    g->rows[row] = cpl_pool_printf(pool, "%s%s%s%s", c->group ? c->group : "", c->group ? " " : "",
                                   c->heading, t->centred ? ", of centred rows" : "");
}

cpl_status cpl_sampled_grid_compare(cpl_grid *g, cpl_pool *pool, const cpl_coupling_report *reports,
                                    int64_t count)
{
    const int n_tables = sizeof tables / sizeof *tables;
    int64_t rows = 0, most = 1, at = 0;
    for (int t = 0; t < n_tables; t++) rows += count_columns(&tables[t]);
    for (int64_t v = 0; v < count; v++)
        most = reports[v].n_layers > most ? reports[v].n_layers : most;
    cpl_interval *parts = cpl_alloc((size_t)most * sizeof *parts);
    cpl_status status   = parts ? cpl_grid_open(g, pool, rows, count) : CPL_ERR_MEMORY;
    if (status != CPL_OK) goto done;
    for (int64_t v = 0; v < count; v++)
        g->columns[v] = cpl_pool_printf(pool, "(%lld)", (long long)v + 1);
    for (const struct table *t = tables; t < tables + n_tables; t++)
        for (const column *c = t->columns; c->heading; c++) {
            if (c->norms && t->centred) continue;
            set_heading(g, pool, at, t, c);
            for (int64_t v = 0; v < count; v++)
                cpl_grid_set(g, at, v, words(pool, t, c, mean_of(&reports[v], t, c, parts)));
            at++;
        }
    status = cpl_pool_status(pool);
done:
    cpl_free(parts);
    return status;
}
