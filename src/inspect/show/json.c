/* json.c - see show.h */
#include "inspect/show/show.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats/statistics.h"
#include "io/json.h"
#include "report/view.h"

/* The state of the conversion to JSON. */
typedef struct maker {
    bool failed; /* out of memory */
} maker;

static void put_member(maker *m, json_t *object, const char *key, json_t *value)
{
    cpl_json_put(&m->failed, object, key, value);
}

static void add(maker *m, json_t *array, json_t *value)
{
    cpl_json_add(&m->failed, array, value);
}

/* ---- a layer ---- */

/* Lists the expert that the best assignment gives to each router row. */
static json_t *assignment(maker *m, const cpl_layer_report *l)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < l->at->n; i++) add(m, array, json_integer(l->assigned[i]));
    return array;
}

/* A figure is null if n = 1. */
static json_t *silhouettes(maker *m, const cpl_layer_report *l)
{
    json_t *array = json_array();
    for (int64_t j = 0; j < l->at->n; j++) add(m, array, cpl_json_number(l->silhouettes[j]));
    return array;
}

/* Every coupling figure has one name here. The nested members beside this object are of schema
 * 1. */
static json_t *figures(maker *m, const cpl_layer_report *l, bool lambda)
{
    json_t *object = json_object();
    for (int i = 0; i < CPL_N_FIGURES; i++) {
        const cpl_figure_row *row = &cpl_figure_rows[i];
        double x;
        memcpy(&x, (const char *)&l->figures + row->offset, sizeof x);
        if ((row->needs_M && !l->has_M) || (row->needs_spectral && !lambda)) continue;
        put_member(m, object, row->name, row->count ? cpl_json_count(x) : cpl_json_number(x));
        if (!row->centred || !(row->needs_M ? l->centred.has_M : l->centred.has_rows)) continue;
        memcpy(&x, (const char *)&l->centred.figures + row->offset, sizeof x);
        put_member(m, object, row->centred_name, cpl_json_number(x));
    }
    return object;
}

/* Sorts the numbers and returns their quantiles; null for no numbers, and if one is NaN. */
static json_t *quantiles(maker *m, double *values, int64_t n)
{
    static const struct {
        const char *key;
        double share;
    } rows[]   = {{"low", 0},    {"q05", 0.05}, {"q25", 0.25}, {"q50", 0.5},
                  {"q75", 0.75}, {"q95", 0.95}, {"high", 1}};
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += values[i];
    if (n == 0 || isnan(sum)) return json_null();
    json_t *object = json_object();
    put_member(m, object, "mean", cpl_json_number(sum / (double)n));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        put_member(m, object, rows[i].key, cpl_json_number(cpl_quantile(values, n, rows[i].share)));
    return object;
}

/* The distributions within a layer: of its router rows and of its experts' gates. */
static json_t *distributions(maker *m, const cpl_layer_report *l)
{
    const int64_t n = l->at->n, pairs = n * (n - 1) / 2;
    json_t *object = json_object();
    double *values = cpl_alloc((size_t)(pairs > n ? pairs : n) * sizeof *values);
    m->failed      = m->failed || !values;
    if (!values) return object;
    for (int64_t i = 0; i < n; i++) values[i] = (double)l->eps[i];
    put_member(m, object, "eps", quantiles(m, values, n));
    for (int64_t i = 0; i < pairs; i++) values[i] = fabs((double)l->cosine[i]);
    put_member(m, object, "router_cos", quantiles(m, values, pairs));
    memcpy(values, l->router_norm, (size_t)n * sizeof *values);
    put_member(m, object, "router_norm", quantiles(m, values, n));
    memcpy(values, l->gate_norm, (size_t)n * sizeof *values);
    put_member(m, object, "gate_norm", quantiles(m, values, n));
    cpl_free(values);
    return object;
}

static void put_place(maker *m, json_t *object, const cpl_moe_layer *at)
{
    if (*at->part) put_member(m, object, "part", cpl_json_words(at->part));
    put_member(m, object, "layer", json_integer(at->layer));
}

static json_t *measured(maker *m, const cpl_coupling_report *r, int64_t layer)
{
    const cpl_layer_report *l = &r->layers[layer];
    const cpl_moe_layer *at   = l->at;
    json_t *object            = json_object();
    put_place(m, object, at);
    put_member(m, object, "figures", figures(m, l, r->options.lambda));
    cpl_coupling_columns_json(&m->failed, object, r, layer);
    if (l->has_M) put_member(m, object, "assignment", assignment(m, l));
    if (l->silhouettes) put_member(m, object, "silhouette_experts", silhouettes(m, l));
    put_member(m, object, "quantiles", distributions(m, l));
    if (at->extra_rows) put_member(m, object, "router_rows_left_out", json_integer(at->extra_rows));
    if (at->biased) put_member(m, object, "biases_left_out", json_true());
    if (!at->comparable) put_member(m, object, "comparable", json_false());
    if (at->note) put_member(m, object, "note", cpl_json_words(at->note));
    return object;
}

/* ---- a checkpoint ---- */

static json_t *left_out(maker *m, const cpl_layer_report *l)
{
    json_t *object = json_object();
    put_place(m, object, l->at);
    put_member(m, object, "reason", cpl_json_words(l->fault));
    return object;
}

/* The figures of the verdict of one set of rows. */
static json_t *rows_json(maker *m, const cpl_coupling_rows *rows)
{
    json_t *object = json_object();
    put_member(m, object, "own", cpl_json_number(rows->own));
    put_member(m, object, "violated", cpl_json_number(rows->violated));
    put_member(m, object, "z", cpl_json_number(rows->z));
    put_member(m, object, "alpha_min_least", cpl_json_number(rows->least));
    if (isinf(rows->least)) put_member(m, object, "alpha_min_least_infinite", json_true());
    put_member(m, object, "alpha_min_most", cpl_json_number(rows->most));
    if (isinf(rows->most)) put_member(m, object, "alpha_min_most_infinite", json_true());
    return object;
}

static json_t *summary(maker *m, const cpl_coupling_report *r)
{
    const cpl_coupling_summary s = cpl_coupling_summary_of(r);
    json_t *object               = json_object();
    put_member(m, object, "own_by_chance", cpl_json_number(s.own_by_chance));
    put_member(m, object, "violated_by_chance", cpl_json_number(s.violated_by_chance));
    if (s.stored.layers) put_member(m, object, "stored", rows_json(m, &s.stored));
    if (s.centred.layers) put_member(m, object, "centred", rows_json(m, &s.centred));
    return object;
}

static json_t *notes(maker *m, const cpl_moe_map *map)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < map->n_notes; i++) add(m, array, cpl_json_words(map->notes[i]));
    return array;
}

static void put_layers(maker *m, json_t *object, const cpl_coupling_report *r)
{
    json_t *layers = json_array(), *skipped = json_array(), *faulty = json_array();
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_layer_report *layer = &r->layers[l];
        if (!layer->fault)
            add(m, layers, measured(m, r, l));
        else
            add(m, layer->skipped ? skipped : faulty, left_out(m, layer));
    }
    put_member(m, object, "layers", layers);
    put_member(m, object, "skipped", skipped);
    put_member(m, object, "faulty", faulty);
}

static json_t *checkpoint(maker *m, const cpl_coupling_report *r)
{
    const cpl_coupling_state state = cpl_coupling_state_of(r);
    cpl_text verdict               = {0};
    json_t *object                 = json_object();
    put_member(m, object, "checkpoint", cpl_json_words(r->path));
    put_member(m, object, "family", cpl_json_words(r->map.family));
    put_member(m, object, "guessed", json_boolean(r->map.guessed));
    if (r->map.guessed && r->map.guess)
        put_member(m, object, "guess", cpl_json_words(r->map.guess));
    if (r->options.noisy)
        put_member(m, object, "noise_seed", json_integer((json_int_t)r->options.noise_seed));
    put_member(m, object, "seed", json_integer((json_int_t)r->options.seed));
    if (r->options.sample > 0)
        put_member(m, object, "sample_share", cpl_json_number(r->options.sample));
    put_layers(m, object, r);
    put_member(m, object, "dense_layers", json_integer(r->map.n_dense));
    put_member(m, object, "mtp_layers", json_integer(r->map.n_mtp));
    put_member(m, object, "notes", notes(m, &r->map));
    cpl_coupling_verdict(&verdict, r);
    m->failed = verdict.failed || m->failed;
    put_member(m, object, "verdict", cpl_json_words(verdict.bytes ? verdict.bytes : ""));
    cpl_text_free(&verdict);
    put_member(m, object, "state", state.words ? json_string(state.words) : json_null());
    if (r->options.sample > 0) return object;
    put_member(m, object, "summary", summary(m, r));
    put_member(m, object, "coupled_layers", json_integer(state.coupled));
    return object;
}

static json_t *checkpoints(maker *m, const cpl_coupling_report *reports, int64_t count)
{
    json_t *object = json_object(), *array = json_array();
    for (int64_t i = 0; i < count; i++) add(m, array, checkpoint(m, &reports[i]));
    put_member(m, object, "checkpoints", array);
    return object;
}

json_t *cpl_coupling_json(const cpl_coupling_report *reports, int64_t count)
{
    maker m      = {0};
    json_t *json = count == 1 ? checkpoint(&m, reports) : checkpoints(&m, reports, count);
    put_member(&m, json, "schema", json_integer(CPL_FIGURES_SCHEMA));
    if (!m.failed) return json;
    json_decref(json);
    return NULL;
}

/* ---- for a page ---- */

static bool put_map(json_t *layers, size_t at, const cpl_layer_report *l)
{
    json_t *map = cpl_view_matrix(l->M, l->at->n, l->at->n);
    return map && json_object_set_new(json_array_get(layers, at), "map", map) == 0;
}

cpl_status cpl_coupling_maps(json_t *json, const cpl_coupling_report *reports, int64_t count)
{
    json_t *all = json_object_get(json, "checkpoints");
    for (int64_t i = 0; i < count; i++) {
        const cpl_coupling_report *r = &reports[i];
        json_t *layers = json_object_get(all ? json_array_get(all, (size_t)i) : json, "layers");
        size_t at      = 0;
        for (int64_t l = 0; l < r->n_layers; l++) {
            if (r->layers[l].fault) continue;
            if (r->layers[l].has_M && !put_map(layers, at, &r->layers[l]))
                return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the maps of the page");
            at++;
        }
    }
    return CPL_OK;
}
