/* show.c - see show.h; the JSON is in json.c */
#include "certify/show.h"

#include <math.h>
#include <string.h>

#include "report/grid.h"

/* ---- the table ---- */

static bool is_judged(const cpl_certificate *c)
{
    return c->verdict == CPL_CERTIFY_RIGHT;
}

static void set_row(cpl_grid *grid, cpl_pool *pool, int64_t row, const cpl_certify_figure *f,
                    const cpl_certificate *c)
{
    grid->rows[row] = f->name;
    cpl_grid_set(grid, row, 0, cpl_pool_printf(pool, "%.6g", f->expected));
    cpl_grid_set(grid, row, 1, f->given ? cpl_pool_printf(pool, "%.6g", f->got) : "absent: 0");
    cpl_grid_set(grid, row, 2, cpl_pool_printf(pool, "%.1e", f->distance));
    if (!is_judged(c)) cpl_grid_set(grid, row, 3, cpl_pool_printf(pool, "%.1e", f->fault_distance));
}

static cpl_status put_table(cpl_text *out, const cpl_certificate *c)
{
    cpl_pool pool = {0};
    cpl_grid grid = {0};
    int64_t rows  = 0;
    for (int k = 0; k < CPL_CERTIFY_FIGURES; k++) rows += c->figures[k].name != NULL;
    cpl_status status = cpl_grid_open(&grid, &pool, rows, is_judged(c) ? 3 : 4);
    if (status == CPL_OK) {
        grid.columns[0] = "right";
        grid.columns[1] = "dump";
        grid.columns[2] = "distance";
        if (!is_judged(c)) grid.columns[3] = "from the fault's";
        rows = 0;
        for (int k = 0; k < CPL_CERTIFY_FIGURES; k++)
            if (c->figures[k].name) set_row(&grid, &pool, rows++, &c->figures[k], c);
        grid.note = "loss: value; others: norm. Distance: norm(dump - right) / norm(right).";
        cpl_grid_text(out, &grid);
    }
    if (status == CPL_OK) status = cpl_pool_status(&pool);
    cpl_pool_free(&pool);
    return status;
}

static void put_facts(cpl_text *out, const cpl_certificate *c, const char *path)
{
    cpl_text_printf(out,
                    "%s: n %lld, d %lld, D %lld, alpha %g, weight %g, layers %g, %s; %lld of "
                    "%lld hinges active\n\n",
                    path, (long long)c->n, (long long)c->d, (long long)c->D, c->alpha, c->weight,
                    c->layers, c->has_delta ? "with noise" : "without noise", (long long)c->active,
                    (long long)(2 * c->n * (c->n - 1)));
}

/* ---- the verdict ---- */

static void put_set(cpl_text *out, const cpl_certificate *c, cpl_fault_set faults)
{
    const char *between = "";
    for (int f = 0; f < CPL_N_FAULTS; f++) {
        if (!(faults >> f & 1)) continue;
        cpl_text_printf(out, "%s%s", between, cpl_faults[f].sentence);
        if (f == CPL_FAULT_FACTOR) cpl_text_printf(out, ", %.6g", c->factor);
        between = "; ";
    }
}

void cpl_certify_clause(cpl_text *out, const cpl_certificate *c)
{
    if (c->verdict == CPL_CERTIFY_UNKNOWN)
        cpl_text_printf(out, "no known fault and no pair of them explains it");
    else
        put_set(out, c, c->faults);
}

/* What is furthest from the right one. */
static const cpl_certify_figure *worst_of(const cpl_certificate *c)
{
    const cpl_certify_figure *worst = &c->figures[0];
    for (int k = 1; k < CPL_CERTIFY_FIGURES; k++)
        if (c->figures[k].name && c->figures[k].distance > worst->distance) worst = &c->figures[k];
    return worst;
}

static void put_ties(cpl_text *out, const cpl_certificate *c)
{
    static const char *const words[] = {
        [CPL_CERTIFY_TIES_STRICT] = "they give no gradient here (PyTorch's clamp since 2.15), the "
                                    "reference lets it pass",
        [CPL_CERTIFY_TIES_HALF]   = "they give half of the gradient here, the reference all of it",
        [CPL_CERTIFY_TIES_OTHER]  = "some give their gradient here and some do not, the reference "
                                    "lets all pass",
    };
    if (c->ties < CPL_CERTIFY_TIES_STRICT) return;
    cpl_text_printf(out,
                    "Ties: %lld hinges are exactly at their bound; %s. That is a convention, "
                    "no fault.\n",
                    (long long)c->n_ties, words[c->ties]);
}

static void put_right(cpl_text *out, const cpl_certificate *c)
{
    cpl_text_printf(out, "right: loss%s and gradients are those of the coupling loss%s\n",
                    c->has_M ? ", M" : "", c->rounded ? ", within what rounding to bf16 does" : "");
}

static void put_fault(cpl_text *out, const cpl_certificate *c)
{
    const cpl_certify_figure *worst = worst_of(c);
    for (int f = 0; f < CPL_N_FAULTS; f++) {
        if (!(c->faults >> f & 1)) continue;
        cpl_text_printf(out, "fault %s: ", cpl_faults[f].key);
        put_set(out, c, (cpl_fault_set)1 << f);
        cpl_text_printf(out, ".\n  To fix it: %s.\n", cpl_faults[f].remedy);
    }
    cpl_text_printf(
        out, "Measured: the distance of %s is %.1e from the right one and %.1e from what %s.\n",
        worst->name, worst->distance, worst->fault_distance,
        c->faults & (c->faults - 1) ? "these faults give" : "this fault gives");
    for (int k = 0; k < c->n_alternatives; k++) {
        cpl_text_printf(out, "The same numbers come from: ");
        put_set(out, c, c->alternatives[k]);
        cpl_text_printf(out, ".\n");
    }
}

static void put_unknown(cpl_text *out, const cpl_certificate *c)
{
    cpl_text_printf(out,
                    "not right, and no known fault and no pair of them explains it.\nNearest: ");
    if (c->faults)
        put_set(out, c, c->faults);
    else
        cpl_text_printf(out, "the right loss itself");
    cpl_text_printf(out, "; the last column is its distance.\n");
}

/* ---- what cannot be told ---- */

static bool is_first_with(const cpl_certificate *c, int f)
{
    for (int g = 0; g < f; g++)
        if ((c->untold >> g & 1) && strcmp(c->reasons[g], c->reasons[f]) == 0) return false;
    return true;
}

static void put_untold(cpl_text *out, const cpl_certificate *c)
{
    if (!c->untold) return;
    cpl_text_printf(out, "\nThis dump would not show:\n");
    for (int f = 0; f < CPL_N_FAULTS; f++) {
        const char *between = "  ";
        if (!(c->untold >> f & 1) || !is_first_with(c, f)) continue;
        for (int g = f; g < CPL_N_FAULTS; g++) {
            if (!(c->untold >> g & 1) || strcmp(c->reasons[g], c->reasons[f]) != 0) continue;
            cpl_text_printf(out, "%s%s", between, cpl_faults[g].key);
            between = ", ";
        }
        cpl_text_printf(out, ": %s\n", c->reasons[f]);
    }
    if (c->active == 0)
        cpl_text_printf(out, "  Use inputs with active hinges, such as new random weights.\n");
}

cpl_status cpl_certify_text(cpl_text *out, const cpl_certificate *c, const char *path)
{
    put_facts(out, c, path);
    CPL_TRY(put_table(out, c));
    cpl_text_char(out, '\n');
    if (c->verdict == CPL_CERTIFY_RIGHT) put_right(out, c);
    if (c->verdict == CPL_CERTIFY_FAULT) put_fault(out, c);
    if (c->verdict == CPL_CERTIFY_UNKNOWN) put_unknown(out, c);
    put_ties(out, c);
    put_untold(out, c);
    return cpl_text_status(out);
}
