/* json.c - see json.h */
#include "inspect/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "inspect/verdict.h"
#include "io/json.h"

/* What all of it is made with. */
typedef struct maker {
    const cpl_inspect_options *o; /* of the report at hand */
    bool failed;                  /* there was no memory for something */
} maker;

/* {"mean": ..., "std": ...} and the like */
static json_t *pair(const char *one, double a, const char *other, double b)
{
    return json_pack("{s:o, s:o}", one, cpl_json_number(a), other, cpl_json_number(b));
}

static void put(maker *m, json_t *object, const char *key, json_t *value)
{
    m->failed = json_object_set_new(object, key, value) != 0 || m->failed;
}

static void add(maker *m, json_t *array, json_t *value)
{
    m->failed = json_array_append_new(array, value) != 0 || m->failed;
}

/* "1" or "0.5": as short as says it */
static const char *alpha_key(char out[32], double alpha)
{
    snprintf(out, 32, "%.15g", alpha);
    return out;
}

/* ---- a layer ---- */

static json_t *by_alpha(maker *m, const double *values)
{
    char key[32];
    json_t *object = json_object();
    for (int a = 0; a < m->o->n_alphas; a++)
        put(m, object, alpha_key(key, m->o->alphas[a]), cpl_json_number(values[a]));
    return object;
}

static json_t *kappa(const cpl_null_model *c)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "diag_mean", cpl_json_number(c->kappa_diagonal),
                     "offdiag_mean", cpl_json_number(c->kappa_off_diagonal), "rows_own",
                     cpl_json_number(c->kappa_row_top1), "columns_own",
                     cpl_json_number(c->kappa_column_top1));
}

static json_t *chance(maker *m, const cpl_layer_report *l)
{
    const cpl_null_model *c = &l->chance;
    json_t *object          = json_object();
    put(m, object, "own", cpl_json_number(1.0 / (double)l->at->n));
    put(m, object, "assignment_accuracy", cpl_json_number(c->assignment_own));
    put(m, object, "assignment_own", cpl_json_number(c->assignment_own));
    put(m, object, "kappa_diag_expected", cpl_json_number(c->expected));
    put(m, object, "kappa_diag_std", cpl_json_number(c->deviation));
    put(m, object, "z", cpl_json_number(c->z));
    put(m, object, "erc_mean", by_alpha(m, c->erc_mean));
    put(m, object, "erc_std", by_alpha(m, c->erc_sd));
    put(m, object, "pairings", json_integer(CPL_CHANCE_PAIRINGS));
    return object;
}

static json_t *ratios(maker *m, const cpl_null_model_ratios *r)
{
    json_t *object = json_pack("{s:o, s:o, s:o, s:o}", "q50", cpl_json_number(r->q50), "q90",
                               cpl_json_number(r->q90), "q99", cpl_json_number(r->q99), "violated",
                               cpl_json_number(r->violated));
    put(m, object, "row", json_integer(r->most_row));
    put(m, object, "column", json_integer(r->most_column));
    return object;
}

/* The expert that the best assignment gives to each router row. */
static json_t *assignment(maker *m, const cpl_layer_report *l)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < l->at->n; i++) add(m, array, json_integer(l->assigned[i]));
    return array;
}

/* What needs M. */
static void put_coupling(maker *m, json_t *object, const cpl_layer_report *l)
{
    const cpl_coupling_figures *f = &l->figures;
    double relative[CPL_CHANCE_MAX_ALPHAS];
    for (int a = 0; a < m->o->n_alphas; a++) relative[a] = l->erc[a] / f->m_diagonal;
    put(m, object, "erc", by_alpha(m, l->erc));
    put(m, object, "erc_relative", by_alpha(m, relative));
    put(m, object, "alpha_min", cpl_json_number(l->ratios.most));
    if (isinf(l->ratios.most)) put(m, object, "alpha_min_infinite", json_true());
    put(m, object, "M", pair("diag_mean", f->m_diagonal, "offdiag_mean", f->m_off_diagonal));
    put(m, object, "violated", pair("rows", f->active_rows, "columns", f->active_columns));
    put(m, object, "ratio", ratios(m, &l->ratios));
    put(m, object, "kappa", kappa(&l->chance));
    put(m, object, "chance", chance(m, l));
    put(m, object, "assignment", assignment(m, l));
}

/* Where they were asked for; null where n = 1. */
static void put_silhouette(maker *m, json_t *object, const cpl_layer_report *l)
{
    json_t *array = json_array();
    for (int64_t j = 0; j < l->at->n; j++) add(m, array, cpl_json_number(l->silhouettes[j]));
    put(m, object, "silhouette", cpl_json_number(l->silhouette));
    put(m, object, "silhouette_experts", array);
}

static json_t *home(maker *m, const cpl_coupling_figures *f)
{
    json_t *object = pair("top1", f->row_route_top1, "topk", f->row_route_topk);
    if (!m->o->noisy) return object;
    put(m, object, "noisy_top1", cpl_json_number(f->proxy_route_top1));
    put(m, object, "noisy_topk", cpl_json_number(f->proxy_route_topk));
    return object;
}

/* Every coupling figure under its one name; the nested members around it are those of schema 1. */
static json_t *figures(maker *m, const cpl_layer_report *l)
{
    json_t *object = json_object();
    for (int i = 0; i < CPL_N_FIGURES; i++) {
        const cpl_figure_row *row = &cpl_figure_rows[i];
        double x;
        memcpy(&x, (const char *)&l->figures + row->offset, sizeof x);
        if (row->needs_M && !l->has_M) continue;
        put(m, object, row->name, row->count ? cpl_json_count(x) : cpl_json_number(x));
    }
    return object;
}

static void put_place(maker *m, json_t *object, const cpl_moe_layer *at)
{
    if (*at->part) put(m, object, "part", cpl_json_words(at->part));
    put(m, object, "layer", json_integer(at->layer));
}

static json_t *measured(maker *m, const cpl_layer_report *l)
{
    const cpl_moe_layer *at       = l->at;
    const cpl_coupling_figures *f = &l->figures;
    json_t *object                = json_object();
    put_place(m, object, at);
    if (at->K) put(m, object, "K", json_integer(at->K));
    put(m, object, "n", json_integer(at->n));
    put(m, object, "d", json_integer(at->d));
    put(m, object, "D", json_integer(at->D));
    put(m, object, "figures", figures(m, l));
    if (l->has_M) put_coupling(m, object, l);
    json_t *eps = json_pack("{s:o, s:o, s:o}", "mean", cpl_json_number(f->eps_mean), "min",
                            cpl_json_number(f->eps_min), "max", cpl_json_number(f->eps_max));
    put(m, eps, "above_1", json_integer((json_int_t)f->eps_above_1));
    put(m, object, "eps", eps);
    put(m, object, "router_norm", pair("mean", f->router_norm_mean, "std", f->router_norm_std));
    put(m, object, "expert_norm", pair("mean", f->gate_norm_mean, "std", f->gate_norm_std));
    put(m, object, "router_cos", json_pack("{s:o}", "mean_abs", cpl_json_number(f->router_cos)));
    put(m, object, "zero_rows", json_integer((json_int_t)f->zero_rows));
    put(m, object, "home", home(m, f));
    if (l->silhouettes) put_silhouette(m, object, l);
    if (at->extra_rows) put(m, object, "router_rows_left_out", json_integer(at->extra_rows));
    if (at->biased) put(m, object, "biases_left_out", json_true());
    if (!at->comparable) put(m, object, "comparable", json_false());
    if (at->note) put(m, object, "note", cpl_json_words(at->note));
    return object;
}

/* ---- a checkpoint ---- */

static json_t *left_out(maker *m, const cpl_layer_report *l)
{
    json_t *object = json_object();
    put_place(m, object, l->at);
    put(m, object, "reason", cpl_json_words(l->fault));
    return object;
}

static json_t *picture(maker *m, const cpl_coupling_report *r)
{
    const cpl_tsne_plot *p = &r->picture;
    json_t *object         = json_object();
    if (p->fault) put(m, object, "reason", cpl_json_words(p->fault));
    if (p->n_points == 0) return object;
    put_place(m, object, r->layers[p->index].at);
    put(m, object, "stride", json_integer(p->stride));
    put(m, object, "experts", json_integer(p->n_experts));
    put(m, object, "every_row", json_integer(p->every));
    put(m, object, "points", json_integer(p->n_points));
    put(m, object, "perplexity", cpl_json_number(p->perplexity));
    put(m, object, "iterations", json_integer(p->iterations));
    put(m, object, "kl", cpl_json_number(p->kl));
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
            add(m, layers, measured(m, layer));
        else
            add(m, layer->skipped ? skipped : faulty, left_out(m, layer));
    }
    put(m, object, "layers", layers);
    put(m, object, "skipped", skipped);
    put(m, object, "faulty", faulty);
}

static json_t *checkpoint(maker *m, const cpl_coupling_report *r)
{
    cpl_text verdict = {0};
    json_t *object   = json_object();
    m->o             = &r->options;
    put(m, object, "checkpoint", cpl_json_words(r->path));
    put(m, object, "family", cpl_json_words(r->map.family));
    put(m, object, "guessed", json_boolean(r->map.guessed));
    if (r->map.guessed && r->map.guess) put(m, object, "guess", cpl_json_words(r->map.guess));
    if (r->options.noisy)
        put(m, object, "noise_seed", json_integer((json_int_t)r->options.noise_seed));
    put(m, object, "seed", json_integer((json_int_t)r->options.seed));
    put_layers(m, object, r);
    put(m, object, "dense_layers", json_integer(r->map.n_dense));
    put(m, object, "mtp_layers", json_integer(r->map.n_mtp));
    put(m, object, "notes", notes(m, &r->map));
    if (r->options.picture) put(m, object, "tsne", picture(m, r));
    cpl_coupling_verdict(&verdict, r);
    m->failed = verdict.failed || m->failed;
    put(m, object, "verdict", cpl_json_words(verdict.bytes ? verdict.bytes : ""));
    cpl_text_free(&verdict);
    return object;
}

static json_t *checkpoints(maker *m, const cpl_coupling_report *reports, int64_t count)
{
    json_t *object = json_object(), *array = json_array();
    for (int64_t i = 0; i < count; i++) add(m, array, checkpoint(m, &reports[i]));
    put(m, object, "checkpoints", array);
    return object;
}

json_t *cpl_coupling_json(const cpl_coupling_report *reports, int64_t count)
{
    maker m      = {0};
    json_t *json = count == 1 ? checkpoint(&m, reports) : checkpoints(&m, reports, count);
    put(&m, json, "schema", json_integer(CPL_FIGURES_SCHEMA));
    if (!m.failed) return json;
    json_decref(json);
    return NULL;
}
