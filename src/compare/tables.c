/* tables.c - the tables of a comparison; see internal.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/internal.h"
#include "report/markup.h"

enum { WHOLE_DIGITS = 9 }; /* of a figure that is a count */

/* ---- numbers ---- */

static double shown_value(const cpl_compared_figure *f, double value)
{
    return f->name == CPL_RUN_MEMORY ? value / 0x1p20 : value;
}

static const char *number(cpl_pool *pool, double value, int digits)
{
    char words[48];
    if (digits == WHOLE_DIGITS && fabs(value) < 0x1p53)
        return cpl_pool_printf(pool, "%s", cpl_markup_count(words, (int64_t)value));
    return cpl_pool_printf(pool, "%s", cpl_markup_figure(words, value, digits));
}

static const char *signed_number(cpl_pool *pool, double value, int digits)
{
    return cpl_pool_printf(pool, "%s%s", value > 0 ? "+" : "", number(pool, value, digits));
}

/* Of a group of `n` runs; if only some have the figure, with how many. */
static const char *with_spread(cpl_pool *pool, const cpl_compared_figure *f, const cpl_spread *s,
                               int64_t n)
{
    const char *words = number(pool, shown_value(f, s->mean), f->is->digits);
    if (!isnan(s->sd) && f->is->digits != WHOLE_DIGITS)
        words = cpl_pool_printf(pool, "%s ± %s", words, number(pool, shown_value(f, s->sd), 2));
    if (s->n == 0 || s->n == n) return words;
    return cpl_pool_printf(pool, "%s (n = %lld)", words, (long long)s->n);
}

static const char *interval(cpl_pool *pool, double low, double high)
{
    if (isnan(low) || isnan(high)) return "–";
    return cpl_pool_printf(pool, "%s to %s", signed_number(pool, low, 3),
                           signed_number(pool, high, 3));
}

static const char *count(cpl_pool *pool, int64_t n)
{
    return number(pool, (double)n, WHOLE_DIGITS);
}

/* Opens a table with these columns. */
static cpl_status open_grid(cpl_grid *g, cpl_pool *pool, int64_t n_rows, const char *corner,
                            const char *const *columns, int64_t n_columns)
{
    CPL_TRY(cpl_grid_open(g, pool, n_rows, n_columns));
    g->corner = corner;
    for (int64_t k = 0; k < n_columns; k++) g->columns[k] = columns[k];
    return CPL_OK;
}

/* ---- runs ---- */

static const char *steps_of(cpl_pool *pool, const cpl_run_record *run)
{
    if (!cpl_run_last(run)) return "no step logged yet";
    const long long last = cpl_run_last(run)->step;
    if (run->steps < 0) return cpl_pool_printf(pool, "%lld", last);
    return cpl_pool_printf(pool, "%lld of %lld%s", last, (long long)run->steps,
                           run->in_progress ? ", in progress" : "");
}

static int64_t tokens_of(const cpl_run_record *run)
{
    return (int64_t)cpl_run_last(run)->tokens;
}

static const char *damage_of(cpl_pool *pool, const cpl_run_record *run)
{
    if (run->cut) return "cut";
    return run->n_damaged ? count(pool, run->n_damaged) : "–";
}

static bool any_damage(const cpl_compare *c)
{
    for (int64_t r = 0; r < c->n_runs; r++)
        if (c->runs[r].cut || c->runs[r].n_damaged) return true;
    return false;
}

static cpl_status runs(cpl_grid *g, cpl_pool *pool, const cpl_compare *c)
{
    const char *columns[4] = {"steps", "tokens"};
    int64_t n              = 2;
    const int64_t damage = any_damage(c) ? n++ : -1, group = c->grouped ? n++ : -1;
    if (damage >= 0) columns[damage] = "damaged lines";
    if (group >= 0) columns[group] = "group";
    CPL_TRY(open_grid(g, pool, c->n_runs, "run", columns, n));
    g->title = "Runs";
    for (int64_t r = 0; r < c->n_runs; r++) {
        const cpl_run_record *run = &c->runs[r];
        g->rows[r]                = c->names[r];
        cpl_grid_set(g, r, 0, steps_of(pool, run));
        cpl_grid_set(g, r, 1, cpl_run_last(run) ? count(pool, tokens_of(run)) : "–");
        if (damage >= 0) cpl_grid_set(g, r, damage, damage_of(pool, run));
        if (group >= 0) cpl_grid_set(g, r, group, c->groups[c->group_of[r]].name);
    }
    return cpl_pool_status(pool);
}

/* ---- settings ---- */

static bool came_before(const cpl_compare *c, const cpl_compared_setting *s,
                        const cpl_run_group *group, int64_t i)
{
    for (int64_t k = 0; k < i; k++)
        if (cpl_compare_same(c, s, group->members[k], group->members[i])) return true;
    return false;
}

/* The values of the members, each once. */
static const char *values_of(cpl_pool *pool, const cpl_compare *c, const cpl_compared_setting *s,
                             const cpl_run_group *group)
{
    cpl_text out = {0};
    for (int64_t i = 0; i < group->n; i++)
        if (!came_before(c, s, group, i))
            cpl_text_printf(&out, "%s%s", out.length ? ", " : "", s->texts[group->members[i]]);
    pool->failed       = pool->failed || out.failed;
    const char *result = cpl_pool_copy(pool, out.bytes ? out.bytes : "", out.length);
    cpl_text_free(&out);
    return result;
}

static const char *group_title(cpl_pool *pool, const cpl_compare *c, int64_t g)
{
    const cpl_run_group *group = &c->groups[g];
    if (!c->grouped) return group->name;
    return cpl_pool_printf(pool, "%s (%lld run%s)", group->name, (long long)group->n,
                           group->n == 1 ? "" : "s");
}

/* What differs: settings that matter, then seeds, then bookkeeping. */
static cpl_status settings(cpl_grid *g, cpl_pool *pool, const cpl_compare *c)
{
    int64_t n = 0, row = 0;
    for (int64_t i = 0; i < c->n_settings; i++) n += c->settings[i].differs;
    CPL_TRY(cpl_grid_open(g, pool, n, c->n_groups));
    g->title  = "Settings that differ";
    g->corner = "setting";
    for (int64_t k = 0; k < c->n_groups; k++) g->columns[k] = group_title(pool, c, k);
    for (int64_t i = 0; i < c->n_settings; i++) {
        const cpl_compared_setting *s = &c->settings[i];
        if (!s->differs) continue;
        g->rows[row] = s->name;
        for (int64_t k = 0; k < c->n_groups; k++)
            cpl_grid_set(g, row, k, values_of(pool, c, s, &c->groups[k]));
        row++;
    }
    return cpl_pool_status(pool);
}

/* ---- figures ---- */

static bool any_has(const cpl_compare *c, const cpl_compared_figure *f)
{
    for (int64_t r = 0; r < c->n_runs; r++)
        if (!isnan(f->values[r])) return true;
    return false;
}

/* Whether some figure is one of some runs of a group, and not of all. */
static bool any_lacks(const cpl_compare *c)
{
    for (int64_t i = 0; i < c->n_figures; i++)
        for (int64_t g = 0; g < c->n_groups; g++)
            if (c->figures[i].spread[g].n && c->figures[i].spread[g].n < c->groups[g].n)
                return true;
    return false;
}

/* By groups, mean and deviation; or by runs. */
static cpl_status figures(cpl_grid *g, cpl_pool *pool, const cpl_compare *c, bool by_runs)
{
    const int64_t columns = by_runs ? c->n_runs : c->n_groups;
    char words[CPL_POINT_WORDS];
    int64_t n = 0, row = 0;
    for (int64_t i = 0; i < c->n_figures; i++) n += any_has(c, &c->figures[i]);
    CPL_TRY(cpl_grid_open(g, pool, n, columns));
    g->title  = cpl_pool_printf(pool, "Figures %s", cpl_compare_point_words(words, c));
    g->corner = "figure";
    if (!by_runs && any_lacks(c)) g->note = "n: so many runs of the group have the figure.";
    for (int64_t k = 0; k < columns; k++)
        g->columns[k] = by_runs ? c->names[k] : group_title(pool, c, k);
    for (int64_t i = 0; i < c->n_figures; i++) {
        const cpl_compared_figure *f = &c->figures[i];
        if (!any_has(c, f)) continue;
        g->rows[row] = f->is->label;
        for (int64_t k = 0; k < columns; k++)
            cpl_grid_set(g, row, k,
                         by_runs ? number(pool, shown_value(f, f->values[k]), f->is->digits)
                                 : with_spread(pool, f, &f->spread[k], c->groups[k].n));
        row++;
    }
    return cpl_pool_status(pool);
}

static cpl_status figures_by_groups(cpl_grid *g, cpl_pool *pool, const cpl_compare *c)
{
    return figures(g, pool, c, false);
}
/* Without groups it would be the same again. */
static cpl_status figures_by_runs(cpl_grid *g, cpl_pool *pool, const cpl_compare *c)
{
    return c->grouped ? figures(g, pool, c, true) : cpl_grid_open(g, pool, 0, 0);
}

/* ---- pairs ---- */

static cpl_status pairs(cpl_grid *g, cpl_pool *pool, const cpl_compare *c)
{
    static const char *const columns[] = {"pairs", "mean difference", "sd", "95 % interval",
                                          "detectable at 80 %"};
    CPL_TRY(open_grid(g, pool, c->n_pairings, "group", columns, 5));
    g->fixed = true;
    g->title = cpl_pool_printf(pool, "Validation loss, difference to %s in pairs of the same data",
                               c->groups[c->baseline].name);
    for (int64_t p = 0; p < c->n_pairings; p++) {
        const cpl_pairing *of = &c->pairings[p];
        const double mean     = of->spread.mean;
        g->rows[p]            = c->groups[of->group].name;
        cpl_grid_set(g, p, 0, count(pool, of->n));
        cpl_grid_set(g, p, 1, signed_number(pool, mean, 3));
        cpl_grid_set(g, p, 2, number(pool, of->spread.sd, 2));
        cpl_grid_set(g, p, 3, interval(pool, mean - of->half, mean + of->half));
        cpl_grid_set(g, p, 4, number(pool, of->detectable, 3));
    }
    return cpl_pool_status(pool);
}

static cpl_status each_pair(cpl_grid *g, cpl_pool *pool, const cpl_compare *c)
{
    static const char *const columns[] = {"against", "difference"};
    int64_t n = 0, row = 0;
    for (int64_t p = 0; p < c->n_pairings; p++) n += c->pairings[p].n;
    CPL_TRY(open_grid(g, pool, n, "run", columns, 2));
    g->title = "Each pair";
    for (int64_t p = 0; p < c->n_pairings; p++)
        for (int64_t i = 0; i < c->pairings[p].n; i++, row++) {
            const cpl_run_pair *pair = &c->pairings[p].pairs[i];
            g->rows[row]             = c->names[pair->other];
            cpl_grid_set(g, row, 0, c->names[pair->base]);
            cpl_grid_set(g, row, 1, signed_number(pool, pair->difference, 3));
        }
    return cpl_pool_status(pool);
}

/* ---- documents and questions ---- */

static void put_set(cpl_grid *g, cpl_pool *pool, int64_t row, const cpl_document_set *set)
{
    cpl_grid_set(g, row, 0, count(pool, set->n));
    cpl_grid_set(g, row, 1, number(pool, set->base, 4));
    cpl_grid_set(g, row, 2, number(pool, set->other, 4));
    cpl_grid_set(g, row, 3, signed_number(pool, set->difference, 3));
    cpl_grid_set(g, row, 4, interval(pool, set->low, set->high));
}

static const char *left_out(cpl_pool *pool, const cpl_compare *c)
{
    int64_t base = 0, other = 0;
    for (int64_t p = 0; p < c->n_pairings; p++) {
        base += c->pairings[p].documents.only_base;
        other += c->pairings[p].documents.only_other;
    }
    if (base + other == 0) return "";
    return cpl_pool_printf(
        pool,
        " %lld document%s of the baseline and %lld of the others are on one side "
        "only and left out.",
        (long long)base, base == 1 ? "" : "s", (long long)other);
}

/* A group compared by a single pair of runs has no spread over seeds. */
static bool any_single_pair(const cpl_compare *c)
{
    for (int64_t p = 0; p < c->n_pairings; p++)
        if (c->pairings[p].documents.n_sets && c->pairings[p].n == 1) return true;
    return false;
}

static const char *interval_note(cpl_pool *pool, const cpl_compare *c)
{
    return cpl_pool_printf(
        pool,
        "95 %% interval, bootstrap over documents: 2,000 resamples, the same documents for all "
        "pairs.%s%s",
        any_single_pair(c) ? " With one pair of runs it is of these two runs, not of the settings."
                           : "",
        left_out(pool, c));
}

static cpl_status documents(cpl_grid *g, cpl_pool *pool, const cpl_compare *c)
{
    static const char *const columns[] = {"documents", "baseline", "group", "difference",
                                          "95 % interval"};
    int64_t n = 0, row = 0;
    for (int64_t p = 0; p < c->n_pairings; p++) n += c->pairings[p].documents.n_sets;
    CPL_TRY(open_grid(g, pool, n, "group", columns, 5));
    g->title = "Bits per byte of held-out documents";
    g->note  = n ? interval_note(pool, c) : NULL;
    for (int64_t p = 0; p < c->n_pairings; p++) {
        const cpl_document_difference *of = &c->pairings[p].documents;
        for (int64_t s = 0; s < of->n_sets; s++, row++) {
            const char *source = of->sets[s].source, *name = c->groups[c->pairings[p].group].name;
            g->rows[row] =
                source ? cpl_pool_printf(pool, "%s, %s", name, *source ? source : "no source")
                       : name;
            put_set(g, pool, row, &of->sets[s]);
        }
    }
    return cpl_pool_status(pool);
}

static void put_questions(cpl_grid *g, cpl_pool *pool, int64_t row, const cpl_compare *c,
                          const cpl_run_pair *pair, const cpl_question_table *t)
{
    const int64_t counts[] = {t->both, t->only_base, t->only_other, t->neither, t->left_out};
    const char *comma      = *t->metric ? ", " : "";
    g->rows[row]           = c->names[pair->other];
    cpl_grid_set(g, row, 0, c->names[pair->base]);
    cpl_grid_set(g, row, 1, cpl_pool_printf(pool, "%s%s%s", t->task, comma, t->metric));
    for (int k = 0; k < 5; k++) cpl_grid_set(g, row, k + 2, count(pool, counts[k]));
    cpl_grid_set(g, row, 7, number(pool, t->p, 3));
}

static cpl_status questions(cpl_grid *g, cpl_pool *pool, const cpl_compare *c)
{
    static const char *const columns[] = {"against",   "task",    "both right", "baseline alone",
                                          "run alone", "neither", "left out",   "p (McNemar)"};
    int64_t n = 0, row = 0;
    for (int64_t p = 0; p < c->n_pairings; p++)
        for (int64_t i = 0; i < c->pairings[p].n; i++) n += c->pairings[p].pairs[i].n_tasks;
    CPL_TRY(open_grid(g, pool, n, "run", columns, 8));
    g->title = "Questions answered right";
    for (int64_t p = 0; p < c->n_pairings; p++)
        for (int64_t i = 0; i < c->pairings[p].n; i++) {
            const cpl_run_pair *pair = &c->pairings[p].pairs[i];
            for (int64_t k = 0; k < pair->n_tasks; k++)
                put_questions(g, pool, row++, c, pair, &pair->tasks[k]);
        }
    return cpl_pool_status(pool);
}

/* ---- all ---- */

const cpl_compare_table cpl_compare_tables[CPL_COMPARE_TABLES] = {
    {.make = runs},
    {.make = settings, .words = "Bookkeeping, which changes no figure, comes last."},
    {.make    = figures_by_groups,
     .heading = "Figures at equal tokens",
     .words = "Mean ± standard deviation over the runs of a group; in brackets how many they are.",
     .of_groups = true},
    {.make = pairs,
     .words =
         "Pairs share the seed, the data and its order. Negative: better than the baseline. The "
         "interval is Student's; detectable is the smallest true difference that so many pairs "
         "with this spread find at 5 % with a power of 80 %."},
    {.make = documents},
    {.make  = questions,
     .words = "Of the questions that both runs answered; McNemar's exact test, two-sided."},
    {.make = figures_by_runs, .details = true, .heading = "Figures of each run"},
    {.make    = each_pair,
     .details = true,
     .words   = "Difference of validation loss at the point of comparison."},
};

cpl_status cpl_compare_text(cpl_text *out, const cpl_compare *c)
{
    cpl_pool pool     = {0};
    cpl_status status = CPL_OK;
    cpl_grid g;
    for (int64_t i = 0; i < c->warnings.count; i++)
        cpl_text_printf(out, "warning: %s\n", c->warnings.at[i]);
    for (int i = 0; i < CPL_COMPARE_TABLES && !cpl_compare_tables[i].details; i++) {
        CPL_TRY_DONE(cpl_compare_tables[i].make(&g, &pool, c));
        cpl_grid_text(out, &g);
    }
    status = cpl_text_status(out);
done:
    cpl_pool_free(&pool);
    return status;
}
