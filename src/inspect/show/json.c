/* json.c - see show.h */
#include "inspect/show/show.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats/statistics.h"
#include "io/json.h"
#include "report/view.h"

/* The functions set `failed` if memory is not available. */

/* ---- a layer ---- */

/* Lists the expert that the best assignment gives to each router row. */
static json_t *assignment(bool *failed, const cpl_layer_report *l)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < l->at->n; i++)
        cpl_json_add(failed, array, json_integer(l->assigned[i]));
    return array;
}

/* Lists the silhouettes of the experts. A figure is null if n = 1. */
static json_t *silhouettes(bool *failed, const cpl_layer_report *l)
{
    json_t *array = json_array();
    for (int64_t j = 0; j < l->at->n; j++)
        cpl_json_add(failed, array, cpl_json_number(l->silhouettes[j]));
    return array;
}

/* Gives each coupling figure one name. The nested members beside this object are of schema 1. */
static json_t *figures(bool *failed, const cpl_layer_report *l, bool lambda)
{
    json_t *object = json_object();
    for (int i = 0; i < CPL_N_FIGURES; i++) {
        const cpl_figure_row *row = &cpl_figure_rows[i];
        double x;
        memcpy(&x, (const char *)&l->figures + row->offset, sizeof x);
        if ((row->needs_M && !l->has_M) || (row->needs_spectral && !lambda)) continue;
        cpl_json_put(failed, object, row->name,
                     row->count ? cpl_json_count(x) : cpl_json_number(x));
        if (!row->centred || !(row->needs_M ? l->centred.has_M : l->centred.has_rows)) continue;
        memcpy(&x, (const char *)&l->centred.figures + row->offset, sizeof x);
        cpl_json_put(failed, object, row->centred_name, cpl_json_number(x));
    }
    return object;
}

/* Sorts the numbers and returns their quantiles, or null without numbers or if a number is NaN. */
static json_t *quantiles(bool *failed, double *values, int64_t n)
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
    cpl_json_put(failed, object, "mean", cpl_json_number(sum / (double)n));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cpl_json_put(failed, object, rows[i].key,
                     cpl_json_number(cpl_quantile(values, n, rows[i].share)));
    return object;
}

/* Describes the distributions within a layer: of its router rows and of its experts' gates. */
static json_t *distributions(bool *failed, const cpl_layer_report *l)
{
    const int64_t n = l->at->n, pairs = n * (n - 1) / 2;
    json_t *object = json_object();
    double *values = cpl_alloc((size_t)(pairs > n ? pairs : n) * sizeof *values);
    *failed        = *failed || !values;
    if (!values) return object;
    for (int64_t i = 0; i < n; i++) values[i] = (double)l->eps[i];
    cpl_json_put(failed, object, "eps", quantiles(failed, values, n));
    for (int64_t i = 0; i < pairs; i++) values[i] = fabs((double)l->cosine[i]);
    cpl_json_put(failed, object, "router_cos", quantiles(failed, values, pairs));
    memcpy(values, l->router_norm, (size_t)n * sizeof *values);
    cpl_json_put(failed, object, "router_norm", quantiles(failed, values, n));
    memcpy(values, l->gate_norm, (size_t)n * sizeof *values);
    cpl_json_put(failed, object, "gate_norm", quantiles(failed, values, n));
    cpl_free(values);
    return object;
}

static void put_place(bool *failed, json_t *object, const cpl_moe_layer *at)
{
    if (*at->part) cpl_json_put(failed, object, "part", cpl_json_words(at->part));
    cpl_json_put(failed, object, "layer", json_integer(at->layer));
}

/* Puts the names of the tensors between router and latent experts. */
static void put_projection(bool *failed, json_t *object, const cpl_moe_layer *at)
{
    if (!at->projection.weight) return;
    cpl_json_put(failed, object, "projection", cpl_json_words(at->projection.weight->name));
    if (at->projection_by_shape) cpl_json_put(failed, object, "projection_by_shape", json_true());
    if (at->latent_norm.weight)
        cpl_json_put(failed, object, "latent_norm", cpl_json_words(at->latent_norm.weight->name));
}

static json_t *measured(bool *failed, const cpl_coupling_report *r, int64_t layer)
{
    const cpl_layer_report *l = &r->layers[layer];
    const cpl_moe_layer *at   = l->at;
    json_t *object            = json_object();
    put_place(failed, object, at);
    cpl_json_put(failed, object, "figures", figures(failed, l, r->options.lambda));
    cpl_coupling_columns_json(failed, object, r, layer);
    if (l->has_M) cpl_json_put(failed, object, "assignment", assignment(failed, l));
    if (l->silhouettes) cpl_json_put(failed, object, "silhouette_experts", silhouettes(failed, l));
    cpl_json_put(failed, object, "quantiles", distributions(failed, l));
    put_projection(failed, object, at);
    if (at->extra_rows)
        cpl_json_put(failed, object, "router_rows_left_out", json_integer(at->extra_rows));
    if (at->biased) cpl_json_put(failed, object, "biases_left_out", json_true());
    if (!at->comparable) cpl_json_put(failed, object, "comparable", json_false());
    if (at->note) cpl_json_put(failed, object, "note", cpl_json_words(at->note));
    return object;
}

/* ---- a checkpoint ---- */

static json_t *left_out(bool *failed, const cpl_layer_report *l)
{
    json_t *object = json_object();
    put_place(failed, object, l->at);
    cpl_json_put(failed, object, "reason", cpl_json_words(l->fault));
    return object;
}

/* Lists the figures of the verdict of one set of rows. */
static json_t *rows_json(bool *failed, const cpl_coupling_rows *rows)
{
    json_t *object = json_object();
    cpl_json_put(failed, object, "own", cpl_json_number(rows->own));
    cpl_json_put(failed, object, "violated", cpl_json_number(rows->violated));
    cpl_json_put(failed, object, "z", cpl_json_number(rows->z));
    cpl_json_put(failed, object, "alpha_min_least", cpl_json_number(rows->least));
    if (isinf(rows->least)) cpl_json_put(failed, object, "alpha_min_least_infinite", json_true());
    cpl_json_put(failed, object, "alpha_min_most", cpl_json_number(rows->most));
    if (isinf(rows->most)) cpl_json_put(failed, object, "alpha_min_most_infinite", json_true());
    return object;
}

static json_t *summary(bool *failed, const cpl_coupling_report *r)
{
    const cpl_coupling_summary s = cpl_coupling_summary_of(r);
    json_t *object               = json_object();
    cpl_json_put(failed, object, "own_by_chance", cpl_json_number(s.own_by_chance));
    cpl_json_put(failed, object, "violated_by_chance", cpl_json_number(s.violated_by_chance));
    if (s.stored.layers) cpl_json_put(failed, object, "stored", rows_json(failed, &s.stored));
    if (s.centred.layers) cpl_json_put(failed, object, "centred", rows_json(failed, &s.centred));
    return object;
}

static json_t *notes(bool *failed, const cpl_moe_map *map)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < map->n_notes; i++)
        cpl_json_add(failed, array, cpl_json_words(map->notes[i]));
    return array;
}

static void put_layers(bool *failed, json_t *object, const cpl_coupling_report *r)
{
    json_t *layers = json_array(), *skipped = json_array(), *faulty = json_array();
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_layer_report *layer = &r->layers[l];
        if (!layer->fault)
            cpl_json_add(failed, layers, measured(failed, r, l));
        else
            cpl_json_add(failed, layer->skipped ? skipped : faulty, left_out(failed, layer));
    }
    cpl_json_put(failed, object, "layers", layers);
    cpl_json_put(failed, object, "skipped", skipped);
    cpl_json_put(failed, object, "faulty", faulty);
}

static json_t *checkpoint(bool *failed, const cpl_coupling_report *r)
{
    const cpl_coupling_state state = cpl_coupling_state_of(r);
    cpl_text verdict               = {0};
    json_t *object                 = json_object();
    cpl_json_put(failed, object, "checkpoint", cpl_json_words(r->path));
    cpl_json_put(failed, object, "family", cpl_json_words(r->map.family));
    cpl_json_put(failed, object, "guessed", json_boolean(r->map.guessed));
    if (r->map.guessed && r->map.guess)
        cpl_json_put(failed, object, "guess", cpl_json_words(r->map.guess));
    if (r->options.noisy)
        cpl_json_put(failed, object, "noise_seed", json_integer((json_int_t)r->options.noise_seed));
    cpl_json_put(failed, object, "seed", json_integer((json_int_t)r->options.seed));
    if (r->options.sample > 0)
        cpl_json_put(failed, object, "sample_share", cpl_json_number(r->options.sample));
    put_layers(failed, object, r);
    cpl_json_put(failed, object, "dense_layers", json_integer(r->map.n_dense));
    cpl_json_put(failed, object, "mtp_layers", json_integer(r->map.n_mtp));
    cpl_json_put(failed, object, "notes", notes(failed, &r->map));
    cpl_coupling_verdict(&verdict, r);
    *failed = *failed || verdict.failed;
    cpl_json_put(failed, object, "verdict", cpl_json_words(verdict.bytes ? verdict.bytes : ""));
    cpl_text_free(&verdict);
    cpl_json_put(failed, object, "state", state.words ? json_string(state.words) : json_null());
    if (r->options.sample > 0) return object;
    cpl_json_put(failed, object, "summary", summary(failed, r));
    cpl_json_put(failed, object, "coupled_layers", json_integer(state.coupled));
    return object;
}

static json_t *checkpoints(bool *failed, const cpl_coupling_report *reports, int64_t count)
{
    json_t *object = json_object(), *array = json_array();
    for (int64_t i = 0; i < count; i++)
        cpl_json_add(failed, array, checkpoint(failed, &reports[i]));
    cpl_json_put(failed, object, "checkpoints", array);
    return object;
}

json_t *cpl_coupling_json(const cpl_coupling_report *reports, int64_t count)
{
    bool failed  = false;
    json_t *json = count == 1 ? checkpoint(&failed, reports) : checkpoints(&failed, reports, count);
    cpl_json_put(&failed, json, "schema", json_integer(CPL_FIGURES_SCHEMA));
    if (!failed) return json;
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
