/* columns.c - see columns.h */
#include "report/columns.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "report/markup.h"
#include "report/page.h"

/* ---- on a terminal ---- */

static const char *fixed(cpl_pool *pool, double value, int decimals)
{
    if (isnan(value)) return "-";
    if (isinf(value)) return value > 0 ? "inf" : "-inf";
    if (fabs(value) >= 1e6) return cpl_pool_printf(pool, "%.2g", value);
    return cpl_pool_printf(pool, "%.*f", decimals, value);
}

/* Significant digits, as short as may be. */
static const char *scaled(cpl_pool *pool, double value, int digits)
{
    char words[32];
    const double size = fabs(value);
    if (!isfinite(value) || value == 0) return fixed(pool, value, 0);
    if (size >= 1e-3 && size < 1e5) {
        const int decimals = digits - 1 - (int)floor(log10(size));
        return cpl_pool_printf(pool, "%.*f", decimals < 0 ? 0 : decimals > 4 ? 4 : decimals, value);
    }
    snprintf(words, sizeof words, "%.1e", value);
    char *exponent = strchr(words, 'e') + 2; /* after its sign */
    if (*exponent == '0') memmove(exponent, exponent + 1, strlen(exponent));
    return cpl_pool_printf(pool, "%s", words);
}

const char *cpl_columns_plain(cpl_pool *pool, const cpl_column *c, const cpl_shown *s, double value)
{
    if (c->kind == CPL_COLUMN_SCALED && !s->as_it_is) return scaled(pool, value, s->digits);
    if (c->kind == CPL_COLUMN_SHARE && !s->as_it_is) value *= 100;
    return fixed(pool, value, s->digits);
}

/* ---- the columns of a table ---- */

static int first_alpha(const cpl_columns *c, const cpl_shown *s)
{
    return s->alphas == CPL_EACH_ALPHA ? 0 : c->alpha;
}

static int last_alpha(const cpl_columns *c, const cpl_shown *s)
{
    return s->alphas == CPL_EACH_ALPHA ? c->n_alphas - 1 : c->alpha;
}

int64_t cpl_columns_count(const cpl_columns *c, const cpl_shown *shown)
{
    int64_t n = 0;
    for (const cpl_shown *s = shown; s->heading; s++) n += last_alpha(c, s) - first_alpha(c, s) + 1;
    return n;
}

static void set_headings(const char **headings, cpl_pool *pool, const cpl_columns *c,
                         const cpl_shown *shown)
{
    for (const cpl_shown *s = shown; s->heading; s++)
        for (int a = first_alpha(c, s); a <= last_alpha(c, s); a++)
            *headings++ =
                s->alphas ? cpl_pool_printf(pool, "%s%g", s->heading, c->alphas[a]) : s->heading;
}

cpl_status cpl_columns_grid(cpl_grid *g, cpl_pool *pool, const cpl_columns *c,
                            const cpl_shown *shown, int64_t n_rows)
{
    const int64_t n = cpl_columns_count(c, shown);
    int64_t column  = 0;
    CPL_TRY(cpl_grid_open(g, pool, n_rows, n));
    g->fixed = true;
    set_headings(g->columns, pool, c, shown);
    for (const cpl_shown *s = shown; s->heading; s++)
        for (int a = first_alpha(c, s); a <= last_alpha(c, s); a++, column++) {
            if (!s->group) continue;
            if (!g->groups) g->groups = cpl_pool_take(pool, (size_t)n * sizeof *g->groups);
            if (g->groups) g->groups[column] = s->group;
        }
    return cpl_pool_status(pool);
}

void cpl_columns_grid_row(cpl_grid *g, cpl_pool *pool, const cpl_columns *c, const cpl_shown *shown,
                          int64_t at, const char *name, int64_t row)
{
    int64_t column = 0;
    g->rows[at]    = name;
    for (const cpl_shown *s = shown; s->heading; s++)
        for (int a = first_alpha(c, s); a <= last_alpha(c, s); a++) {
            const cpl_column *of = &c->list[s->column];
            const char *text = cpl_columns_plain(pool, of, s, c->value(c->ctx, row, s->column, a));
            if (s->spread)
                text = cpl_pool_printf(
                    pool, "%s +- %s", text,
                    cpl_columns_plain(pool, of, s, c->value(c->ctx, row, s->spread, a)));
            cpl_grid_set(g, at, column++, text);
        }
}

/* ---- in a page ---- */

const char *cpl_columns_words(char out[48], const cpl_column *c, int digits, double value)
{
    const bool shown = isfinite(value);
    if (c->kind == CPL_COLUMN_COUNT && shown)
        snprintf(out, 48, "%.0f", value);
    else if (c->kind == CPL_COLUMN_SHARE && shown)
        snprintf(out, 48, "%.*g %%", digits, 100 * value);
    else if (c->kind == CPL_COLUMN_REAL || c->kind == CPL_COLUMN_BOUND || shown)
        cpl_markup_figure(out, value, digits);
    else
        strcpy(out, "–");
    return out;
}

void cpl_columns_page_open(cpl_text *out, const char *caption, const char *corner,
                           const cpl_columns *c, const cpl_shown *shown)
{
    const int64_t n       = 1 + cpl_columns_count(c, shown);
    cpl_pool pool         = {0};
    const char **headings = cpl_pool_take(&pool, (size_t)n * sizeof *headings);
    if (headings) {
        headings[0] = corner;
        set_headings(headings + 1, &pool, c, shown);
        cpl_page_table_open(out, caption, headings, n);
    }
    out->failed = out->failed || pool.failed;
    cpl_pool_free(&pool);
}

const cpl_shown *cpl_columns_page_cells(cpl_text *out, const cpl_columns *c, const cpl_shown *s,
                                        int64_t row)
{
    for (; s->heading && s->column != CPL_COLUMN_WORDS; s++)
        for (int a = first_alpha(c, s); a <= last_alpha(c, s); a++) {
            char value[48], spread[48], both[112];
            const double x = c->value(c->ctx, row, s->column, a);
            cpl_columns_words(value, &c->list[s->column], s->digits, x);
            if (s->spread && isfinite(x)) {
                cpl_markup_figure(spread, c->value(c->ctx, row, s->spread, a), 2);
                snprintf(both, sizeof both, "%s ± %s", value, spread);
            }
            cpl_page_cell(out, s->spread && isfinite(x) ? both : value);
        }
    return s;
}

/* ---- charts ---- */

cpl_chart cpl_columns_chart(const cpl_chart_spec *spec, const char *const *places, int64_t n_places)
{
    return (cpl_chart){.id      = spec->id,
                       .section = spec->section,
                       .title   = spec->title,
                       .caption = spec->caption,
                       .x = {.label = "layer", .whole = true, .names = places, .n_names = n_places},
                       .y = {.label = spec->y_label,
                             .range = {0, spec->share},
                             .log   = spec->log_y,
                             .zero  = spec->from_zero}};
}

/* The values of a column at the places; a quotient whose divisor is 0 is none. */
static const double *values_of(cpl_pool *pool, const cpl_columns *c, int column,
                               const int64_t *rows, int64_t n_places)
{
    double *values = cpl_pool_take(pool, (size_t)n_places * sizeof *values + 1);
    for (int64_t i = 0; values && i < n_places; i++) {
        values[i] = rows[i] < 0 ? (double)NAN : c->value(c->ctx, rows[i], column, c->alpha);
        if (c->list[column].kind == CPL_COLUMN_SCALED && isinf(values[i])) values[i] = NAN;
    }
    return values;
}

int64_t cpl_columns_series(cpl_chart_series *out, cpl_pool *pool, const cpl_chart_spec *spec,
                           const cpl_columns *c, const int64_t *rows, int64_t n_places)
{
    int64_t n = 0;
    for (int k = 0; k < spec->n_lines; k++)
        out[n++] =
            (cpl_chart_series){.name  = spec->lines[k].name,
                               .y     = values_of(pool, c, spec->lines[k].column, rows, n_places),
                               .n     = n_places,
                               .group = spec->lines[k].colour,
                               .style = spec->lines[k].dashed ? CPL_CHART_DASHED : CPL_CHART_LINE,
                               .marks = !spec->lines[k].dashed};
    if (spec->band)
        out[n++] = (cpl_chart_series){.name  = spec->band,
                                      .low   = values_of(pool, c, spec->low, rows, n_places),
                                      .high  = values_of(pool, c, spec->high, rows, n_places),
                                      .n     = n_places,
                                      .group = spec->band_colour};
    if (spec->has_rule)
        out[n++] = (cpl_chart_series){.name  = spec->rule_name,
                                      .y     = &spec->rule,
                                      .n     = 1,
                                      .group = -1,
                                      .style = CPL_CHART_RULE};
    return n;
}

/* ---- JSON ---- */

/* The object that holds the last member of the path, created if absent; moves `key` to that
 * member's name. */
static json_t *object_of(bool *failed, json_t *object, const char **key)
{
    for (const char *dot = strchr(*key, '.'); dot; dot = strchr(*key, '.')) {
        char name[40];
        snprintf(name, sizeof name, "%.*s", (int)(dot - *key), *key);
        json_t *inner = json_object_get(object, name);
        if (!inner) cpl_json_put(failed, object, name, inner = json_object());
        object = inner;
        *key   = dot + 1;
    }
    return object;
}

static void put_each_alpha(bool *failed, json_t *object, const cpl_columns *c, int column,
                           int64_t row)
{
    for (int a = 0; a < c->n_alphas; a++) {
        char key[32];
        snprintf(key, sizeof key, "%.15g", c->alphas[a]);
        cpl_json_put(failed, object, key, cpl_json_number(c->value(c->ctx, row, column, a)));
    }
}

static void put_one(bool *failed, json_t *object, const cpl_columns *c, int column, const char *key,
                    int64_t row)
{
    const cpl_column_kind kind = c->list[column].kind;
    const double value         = c->value(c->ctx, row, column, c->alpha);
    if (kind == CPL_COLUMN_COUNT && isnan(value)) return;
    cpl_json_put(failed, object, key,
                 kind == CPL_COLUMN_COUNT ? cpl_json_count(value) : cpl_json_number(value));
    if (kind == CPL_COLUMN_BOUND && isinf(value)) {
        char infinite[48];
        snprintf(infinite, sizeof infinite, "%.32s_infinite", key);
        cpl_json_put(failed, object, infinite, json_true());
    }
}

void cpl_columns_json(bool *failed, json_t *object, const cpl_columns *c, int part, int64_t row)
{
    for (int i = 0; i < c->n; i++) {
        const char *key = c->list[i].key;
        if (!key || c->list[i].part != part) continue;
        json_t *of = object_of(failed, object, &key);
        if (*key)
            put_one(failed, of, c, i, key, row);
        else
            put_each_alpha(failed, of, c, i, row);
    }
}
