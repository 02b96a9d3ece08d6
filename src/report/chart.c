/* chart.c - see chart.h */
#include "report/chart.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/json.h"
#include "report/markup.h"

/* ---- ranges and quantiles ---- */

cpl_chart_range cpl_chart_range_none(void)
{
    return (cpl_chart_range){DBL_MAX, -DBL_MAX};
}

void cpl_chart_range_add(cpl_chart_range *range, double value)
{
    if (!isfinite(value)) return;
    if (value < range->low) range->low = value;
    if (value > range->high) range->high = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int64_t n, double share)
{
    double at = share * (double)(n - 1);
    int64_t i = (int64_t)at;
    if (i >= n - 1) return sorted[n - 1];
    return sorted[i] + (sorted[i + 1] - sorted[i]) * (at - (double)i);
}

cpl_status cpl_chart_box_of(cpl_chart_box *out, const double *values, int64_t n)
{
    *out       = (cpl_chart_box){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, n};
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += values[i];
    if (n <= 0 || !isfinite(sum)) return CPL_OK;
    double *sorted = cpl_alloc((size_t)n * sizeof *sorted);
    if (!sorted) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the quantiles of a chart");
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    *out = (cpl_chart_box){.low  = sorted[0],
                           .q05  = quantile(sorted, n, 0.05),
                           .q25  = quantile(sorted, n, 0.25),
                           .q50  = quantile(sorted, n, 0.5),
                           .q75  = quantile(sorted, n, 0.75),
                           .q95  = quantile(sorted, n, 0.95),
                           .high = sorted[n - 1],
                           .mean = sum / (double)n,
                           .n    = n};
    cpl_free(sorted);
    return CPL_OK;
}

/* ---- JSON ---- */

enum { STEPS = 65534, NO_NUMBER = 65535, MOST_COMPARED = 8 };

static void put(cpl_charts *charts, json_t *object, const char *key, json_t *value)
{
    cpl_json_put(&charts->failed, object, key, value);
}

static void append(cpl_charts *charts, json_t *array, json_t *value)
{
    cpl_json_add(&charts->failed, array, value);
}

/* With six digits, more than a chart shows. */
static json_t *number(double value)
{
    char digits[32];
    if (!isfinite(value)) return json_null();
    if (value == floor(value) && fabs(value) < 1e15) return json_integer((json_int_t)value);
    snprintf(digits, sizeof digits, "%.6g", value);
    return json_real(strtod(digits, NULL));
}

static json_t *numbers(cpl_charts *charts, const double *values, int64_t n)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++)
        append(charts, array, values ? number(values[i]) : json_integer(i));
    return array;
}

static json_t *words(cpl_charts *charts, const char *const *names, int64_t n)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++) append(charts, array, cpl_json_words(names[i]));
    return array;
}

/* ---- what all kinds have ---- */

static json_t *axis(cpl_charts *charts, const cpl_chart_axis *a)
{
    const bool given = isfinite(a->range.low) && a->range.low <= a->range.high &&
                       (a->range.low != 0 || a->range.high != 0);
    json_t *object = json_object();
    put(charts, object, "label", cpl_json_words(a->label ? a->label : ""));
    put(charts, object, "unit", json_string(""));
    put(charts, object, "scale", json_string(a->log ? "log" : "linear"));
    put(charts, object, "from", given ? number(a->range.low) : json_null());
    put(charts, object, "to", given ? number(a->range.high) : json_null());
    put(charts, object, "zero", json_boolean(a->zero));
    put(charts, object, "percent", json_boolean(a->percent));
    put(charts, object, "whole", json_boolean(a->whole));
    if (a->names) put(charts, object, "names", words(charts, a->names, a->n_names));
    return object;
}

/* Letters, digits and - of a text. */
static json_t *plain_id(const char *text)
{
    cpl_text id = {0};
    for (; *text; text++) {
        const bool plain = isalnum((unsigned char)*text) && (unsigned char)*text < 0x80;
        if (plain)
            cpl_text_char(&id, *text);
        else if (id.length && id.bytes[id.length - 1] != '-')
            cpl_text_char(&id, '-');
    }
    json_t *value = id.failed ? NULL : json_string(id.length ? id.bytes : "chart");
    cpl_text_free(&id);
    return value;
}

static const char *id_of(const json_t *chart)
{
    const char *id = json_string_value(json_object_get(chart, "id"));
    return id ? id : ""; /* there was no memory for one */
}

static bool is_taken(const cpl_charts *charts, const char *id)
{
    size_t i;
    json_t *chart;
    json_array_foreach(charts->array, i, chart)
    {
        if (strcmp(id_of(chart), id) == 0) return true;
    }
    return false;
}

static json_t *unique_id(const cpl_charts *charts, const char *text)
{
    json_t *id = plain_id(text), *other = NULL;
    for (int k = 2; id && is_taken(charts, json_string_value(other ? other : id)); k++) {
        json_decref(other);
        other = json_sprintf("%s-%d", json_string_value(id), k);
    }
    if (!other) return id;
    json_decref(id);
    return other;
}

static json_t *begin(cpl_charts *charts, const cpl_chart *chart, const char *kind)
{
    json_t *object = json_object(), *notes = json_array();
    if (!charts->array) charts->array = json_array();
    put(charts, object, "id", unique_id(charts, chart->id));
    put(charts, object, "section", cpl_json_words(chart->section));
    put(charts, object, "title", cpl_json_words(chart->title));
    put(charts, object, "caption", cpl_json_words(chart->caption ? chart->caption : ""));
    put(charts, object, "kind", json_string(kind));
    put(charts, object, "x", axis(charts, &chart->x));
    put(charts, object, "y", axis(charts, &chart->y));
    if (chart->n_groups)
        put(charts, object, "groups", words(charts, chart->groups, chart->n_groups));
    if (chart->ramp[0]) put(charts, object, "ramp", words(charts, chart->ramp, 2));
    if (chart->note) append(charts, notes, cpl_json_words(chart->note));
    put(charts, object, "notes", notes);
    return object;
}

static void finish(cpl_charts *charts, json_t *object)
{
    append(charts, charts->array, object);
}

/* ---- lines ---- */

/* The places of a curve that are +infinity: gaps in "y". */
static void put_infinite(cpl_charts *charts, json_t *object, const cpl_chart_series *s)
{
    json_t *array = json_array();
    for (int64_t i = 0; s->y && i < s->n; i++)
        if (isinf(s->y[i]) && s->y[i] > 0)
            append(charts, array, s->x ? number(s->x[i]) : json_integer(i));
    if (json_array_size(array))
        put(charts, object, "infinite", array);
    else
        json_decref(array);
}

static json_t *series_json(cpl_charts *charts, const cpl_chart_series *s)
{
    static const char *const styles[] = {"line", "dashed", "rule", "dots"};
    json_t *object                    = json_object();
    put(charts, object, "name", s->name ? cpl_json_words(s->name) : json_null());
    put(charts, object, "group", s->ramp ? json_null() : json_integer(s->group));
    if (s->ramp) put(charts, object, "share", number(s->share));
    put(charts, object, "x", numbers(charts, s->x, s->n));
    if (s->y) put(charts, object, "y", numbers(charts, s->y, s->n));
    put_infinite(charts, object, s);
    if (s->low) put(charts, object, "low", numbers(charts, s->low, s->n));
    if (s->high) put(charts, object, "high", numbers(charts, s->high, s->n));
    put(charts, object, "style", json_string(styles[s->style]));
    put(charts, object, "marks", json_boolean(s->marks));
    return object;
}

static bool are_equal(const cpl_chart_series *a, const cpl_chart_series *b)
{
    int64_t finite = 0;
    if (!a->y || !b->y || a->n != b->n || a->x != b->x) return false;
    for (int64_t i = 0; i < a->n; i++) {
        const bool both = isfinite(a->y[i]) && isfinite(b->y[i]);
        if (both ? fabs(a->y[i] - b->y[i]) > 1e-9 * fabs(a->y[i])
                 : isfinite(a->y[i]) || isfinite(b->y[i]))
            return false;
        finite += both;
    }
    return finite > 0;
}

/* One curve hides another that is equal to it. */
static void note_equal(cpl_charts *charts, json_t *notes, const cpl_chart_series *s, int64_t n)
{
    if (n > MOST_COMPARED) return;
    for (int64_t i = 1; i < n; i++)
        for (int64_t k = 0; k < i; k++) {
            if (!s[i].name || !s[k].name || !are_equal(&s[k], &s[i])) continue;
            cpl_text note = {0};
            cpl_text_printf(&note, "The curves \"%s\" and \"%s\" are equal and cover each other.",
                            s[k].name, s[i].name);
            append(charts, notes, note.failed ? NULL : cpl_json_words(note.bytes));
            cpl_text_free(&note);
            break;
        }
}

void cpl_charts_lines(cpl_charts *charts, const cpl_chart *chart, const cpl_chart_series *series,
                      int64_t n_series)
{
    json_t *object = begin(charts, chart, "lines"), *array = json_array();
    for (int64_t i = 0; i < n_series; i++) append(charts, array, series_json(charts, &series[i]));
    note_equal(charts, json_object_get(object, "notes"), series, n_series);
    put(charts, object, "series", array);
    finish(charts, object);
}

/* ---- boxes ---- */

void cpl_charts_boxes(cpl_charts *charts, const cpl_chart *chart, const cpl_chart_box *boxes)
{
    json_t *object = begin(charts, chart, "boxes"), *array = json_array();
    const int64_t places = chart->x.n_names, groups = chart->n_groups ? chart->n_groups : 1;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < places; i++) {
            const cpl_chart_box *b = &boxes[g * places + i];
            json_t *box            = json_object();
            if (isnan(b->low)) {
                json_decref(box);
                continue;
            }
            put(charts, box, "name", cpl_json_words(chart->x.names[i]));
            put(charts, box, "group", json_integer(g));
            put(charts, box, "place", json_integer(i));
            put(charts, box, "n", json_integer(b->n));
            put(charts, box, "low", number(b->low));
            put(charts, box, "q05", number(b->q05));
            put(charts, box, "q25", number(b->q25));
            put(charts, box, "q50", number(b->q50));
            put(charts, box, "q75", number(b->q75));
            put(charts, box, "q95", number(b->q95));
            put(charts, box, "high", number(b->high));
            put(charts, box, "mean", number(b->mean));
            append(charts, array, box);
        }
    put(charts, object, "boxes", array);
    finish(charts, object);
}

/* ---- heat ---- */

static double cell(const cpl_chart_matrix *m, int64_t row, int64_t column)
{
    if (m->order) {
        row    = m->order[row];
        column = m->order[column];
    }
    return (double)m->values[row * m->columns + column] * m->scale;
}

/* Of the values that can be placed on the scale; low < high. */
static cpl_chart_range limits_of(const cpl_chart_matrix *m, bool *zeros)
{
    cpl_chart_range range = cpl_chart_range_none();
    *zeros                = false;
    for (int64_t i = 0; i < m->rows; i++)
        for (int64_t j = 0; j < m->columns; j++) {
            const double value = cell(m, i, j);
            if (m->log && value <= 0)
                *zeros = true;
            else
                cpl_chart_range_add(&range, value);
        }
    if (range.low > range.high) range = (cpl_chart_range){m->log ? 1 : 0, 1};
    if (range.high <= range.low * (1 + 1e-9))
        range.high = range.low > 0 ? range.low * 1.0001 : range.low + 1;
    return range;
}

static uint16_t quantum(const cpl_chart_matrix *m, cpl_chart_range range, bool zeros, double value)
{
    if (!isfinite(value)) return NO_NUMBER;
    if (m->log && value <= 0) return 0;
    const double share = m->log ? log(value / range.low) / log(range.high / range.low)
                                : (value - range.low) / (range.high - range.low);
    const double at    = floor(STEPS * fmin(fmax(share, 0), 1) + 0.5);
    return (uint16_t)(zeros && at < 1 ? 1 : at);
}

static json_t *cells(cpl_charts *charts, const cpl_chart_matrix *m, cpl_chart_range range,
                     bool zeros)
{
    const int64_t n      = m->rows * m->columns;
    unsigned char *bytes = cpl_alloc(2 * (size_t)n + 1);
    cpl_text text        = {0};
    json_t *value        = NULL;
    for (int64_t i = 0; bytes && i < n; i++) {
        const uint16_t q = quantum(m, range, zeros, cell(m, i / m->columns, i % m->columns));
        bytes[2 * i]     = (unsigned char)(q & 255);
        bytes[2 * i + 1] = (unsigned char)(q >> 8);
    }
    if (bytes) cpl_markup_base64(&text, bytes, 2 * (size_t)n);
    if (bytes && !text.failed) value = json_string(text.bytes ? text.bytes : "");
    charts->failed = charts->failed || !value;
    cpl_free(bytes);
    cpl_text_free(&text);
    return value;
}

static void put_order(cpl_charts *charts, json_t *heat, const cpl_chart_matrix *m)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < m->rows; i++) append(charts, array, json_integer(m->order[i]));
    put(charts, heat, "row_names", json_incref(array));
    put(charts, heat, "column_names", array);
}

void cpl_charts_heat(cpl_charts *charts, const cpl_chart *chart, const cpl_chart_matrix *m)
{
    bool zeros;
    const cpl_chart_range range = limits_of(m, &zeros);
    const bool given            = m->colours.low != 0 || m->colours.high != 0;
    const cpl_chart_range shown = given ? m->colours : range;
    json_t *object = begin(charts, chart, "heat"), *heat = json_object();
    put(charts, heat, "rows", json_integer(m->rows));
    put(charts, heat, "columns", json_integer(m->columns));
    /* All digits: cells are computed from them. */
    put(charts, heat, "low", cpl_json_number(range.low));
    put(charts, heat, "high", cpl_json_number(range.high));
    put(charts, heat, "scale", json_string(m->log ? "log" : "linear"));
    put(charts, heat, "zeros", json_boolean(zeros));
    put(charts, heat, "diverging", json_boolean(m->diverging));
    put(charts, heat, "colours", json_pack("[o,o]", number(shown.low), number(shown.high)));
    put(charts, heat, "row_label", cpl_json_words(chart->y.label));
    put(charts, heat, "column_label", cpl_json_words(chart->x.label));
    put(charts, heat, "value_label", cpl_json_words(m->value_label));
    if (m->raw_label) {
        put(charts, heat, "raw_label", cpl_json_words(m->raw_label));
        put(charts, heat, "raw_factor", cpl_json_number(1 / m->scale));
    }
    if (m->label) put(charts, heat, "label", cpl_json_words(m->label));
    put(charts, heat, "group", json_integer(m->group));
    if (m->order) put_order(charts, heat, m);
    put(charts, heat, "data", cells(charts, m, range, zeros));
    put(charts, object, "heat", heat);
    finish(charts, object);
}

/* ---- the list ---- */

cpl_status cpl_charts_into(json_t *report, cpl_charts *charts, json_t *made)
{
    json_t *series = json_object();
    put(charts, series, "version", json_integer(1));
    if (made) put(charts, series, "made", made);
    put(charts, series, "charts", charts->array ? charts->array : json_array());
    charts->array = NULL;
    put(charts, report, "series", series);
    return charts->failed ? CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the charts") : CPL_OK;
}

void cpl_charts_close(cpl_charts *charts)
{
    json_decref(charts->array);
    *charts = (cpl_charts){0};
}
