/* columns.c - see columns.h */
#include "report/columns.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "report/markup.h"

/* ---- on a terminal ---- */

static const char *fixed(cpl_pool *pool, double value, int decimals)
{
    if (isnan(value)) return "-";
    if (isinf(value)) return value > 0 ? "inf" : "-inf";
    if (fabs(value) >= 1e6) return cpl_pool_printf(pool, "%.2g", value);
    return cpl_pool_printf(pool, "%.*f", decimals, value);
}

/* Writes a number with significant digits in the shortest form. */
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

/* Counts the alphas that have a column each. */
static int n_shown(const cpl_columns *c, const cpl_shown *s)
{
    return s->alphas == CPL_EACH_ALPHA ? c->n_alphas : 1;
}

/* Counts the columns, with one for each alpha. */
static int64_t count_columns(const cpl_columns *c, const cpl_shown *shown)
{
    int64_t n = 0;
    for (const cpl_shown *s = shown; s->heading; s++) n += n_shown(c, s);
    return n;
}

cpl_status cpl_columns_grid(cpl_grid *g, cpl_pool *pool, const cpl_columns *c,
                            const cpl_shown *shown, int64_t n_rows)
{
    const int64_t n = count_columns(c, shown);
    int64_t column  = 0;
    CPL_TRY(cpl_grid_open(g, pool, n_rows, n));
    for (const cpl_shown *s = shown; s->heading; s++)
        for (int a = 0; a < n_shown(c, s); a++, column++) {
            g->columns[column] =
                s->alphas ? cpl_pool_printf(pool, "%s%g", s->heading, c->alphas[a]) : s->heading;
            if (s->group && !g->groups)
                g->groups = cpl_pool_take(pool, (size_t)n * sizeof *g->groups);
            if (s->group && g->groups) g->groups[column] = s->group;
        }
    return cpl_pool_status(pool);
}

/* Returns "value +- spread". */
static const char *with_spread(cpl_pool *pool, const cpl_column *of, const cpl_shown *s,
                               const char *value, double spread)
{
    const char *text = s->spread_digits ? scaled(pool, spread, s->spread_digits)
                                        : cpl_columns_plain(pool, of, s, spread);
    return cpl_pool_printf(pool, "%s +- %s", value, text);
}

void cpl_columns_grid_row(cpl_grid *g, cpl_pool *pool, const cpl_columns *c, const cpl_shown *shown,
                          int64_t at, const char *name, int64_t row)
{
    int64_t column = 0;
    g->rows[at]    = name;
    for (const cpl_shown *s = shown; s->heading; s++)
        for (int a = 0; a < n_shown(c, s); a++) {
            const cpl_column *of = &c->list[s->column];
            const double value   = c->value(c->ctx, row, s->column, a);
            const char *text     = cpl_columns_plain(pool, of, s, value);
            if (s->spread && !isnan(value))
                text = with_spread(pool, of, s, text, c->value(c->ctx, row, s->spread, a));
            cpl_grid_set(g, at, column++, text);
        }
}

/* ---- JSON ---- */

/* Returns the object that holds the last member of the path `key`, created if absent. Moves `key`
 * to that member's name. */
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
    const double value         = c->value(c->ctx, row, column, 0);
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
