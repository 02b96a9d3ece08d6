/* coupling_json.c - see coupling_json.h */
#include "study/coupling_json.h"

#include <math.h>
#include <stdio.h>

#include "study/coupling_verdict.h"

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* {"mean": ..., "std": ...} and the like */
static json_t *pair(const char *one, double a, const char *other, double b)
{
    return json_pack("{s:o, s:o}", one, number(a), other, number(b));
}

static void put(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

/* "1" or "0.5": as short as says it */
static const char *alpha_key(char out[32], double alpha)
{
    snprintf(out, 32, "%.15g", alpha);
    return out;
}

/* ---- a layer ---- */

static json_t *by_alpha(const cpl_inspect_options *o, const double *values)
{
    char key[32];
    json_t *object = json_object();
    for (int a = 0; a < o->n_alphas; a++)
        put(object, alpha_key(key, o->alphas[a]), number(values[a]));
    return object;
}

static json_t *kappa(const cpl_chance *c)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "diag_mean", number(c->kappa_diagonal), "offdiag_mean",
                     number(c->kappa_off_diagonal), "rows_own", number(c->kappa_rows_own),
                     "columns_own", number(c->kappa_columns_own));
}

static json_t *chance(const cpl_layer_report *l, const cpl_inspect_options *o)
{
    const cpl_chance *c = &l->chance;
    json_t *object      = json_object();
    put(object, "own", number(1.0 / (double)l->at->n));
    put(object, "assignment_own", number(c->assignment_own));
    put(object, "kappa_diag_expected", number(c->expected));
    put(object, "kappa_diag_std", number(c->deviation));
    put(object, "z", number(c->z));
    put(object, "erc_mean", by_alpha(o, c->erc_mean));
    put(object, "erc_std", by_alpha(o, c->erc_sd));
    put(object, "pairings", json_integer(CPL_CHANCE_PAIRINGS));
    return object;
}

static json_t *ratios(const cpl_chance_ratios *r)
{
    json_t *object = json_pack("{s:o, s:o, s:o, s:o}", "q50", number(r->q50), "q90", number(r->q90),
                               "q99", number(r->q99), "violated", number(r->violated));
    put(object, "row", json_integer(r->most_row));
    put(object, "column", json_integer(r->most_column));
    return object;
}

/* What needs M. */
static void put_coupling(json_t *object, const cpl_layer_report *l, const cpl_inspect_options *o)
{
    const cpl_coupling_figures *f = &l->figures;
    double relative[CPL_CHANCE_MAX_ALPHAS];
    for (int a = 0; a < o->n_alphas; a++) relative[a] = l->erc[a] / f->m_diagonal;
    put(object, "erc", by_alpha(o, l->erc));
    put(object, "erc_relative", by_alpha(o, relative));
    put(object, "alpha_min", number(l->ratios.most));
    if (isinf(l->ratios.most)) put(object, "alpha_min_infinite", json_true());
    put(object, "M", pair("diag_mean", f->m_diagonal, "offdiag_mean", f->m_off_diagonal));
    put(object, "violated", pair("rows", f->active_rows, "columns", f->active_columns));
    put(object, "ratio", ratios(&l->ratios));
    put(object, "kappa", kappa(&l->chance));
    put(object, "chance", chance(l, o));
}

static json_t *home(const cpl_coupling_figures *f)
{
    json_t *object = pair("top1", f->home_clean_top1, "topk", f->home_clean_topk);
    put(object, "noisy_top1", number(f->home_top1));
    put(object, "noisy_topk", number(f->home_topk));
    return object;
}

static void put_place(json_t *object, const cpl_moe_layer *at)
{
    if (*at->part) put(object, "part", json_string(at->part));
    put(object, "layer", json_integer(at->layer));
}

static json_t *measured(const cpl_layer_report *l, const cpl_inspect_options *o)
{
    const cpl_moe_layer *at       = l->at;
    const cpl_coupling_figures *f = &l->figures;
    json_t *object                = json_object();
    put_place(object, at);
    if (at->K) put(object, "K", json_integer(at->K));
    put(object, "n", json_integer(at->n));
    put(object, "d", json_integer(at->d));
    put(object, "D", json_integer(at->D));
    if (l->has_M) put_coupling(object, l, o);
    json_t *eps = json_pack("{s:o, s:o, s:o}", "mean", number(f->eps_mean), "min",
                            number(f->eps_min), "max", number(f->eps_max));
    put(eps, "above_1", json_integer((json_int_t)f->eps_above_1));
    put(object, "eps", eps);
    put(object, "router_norm", pair("mean", f->router_norm_mean, "std", f->router_norm_sd));
    put(object, "expert_norm", pair("mean", f->gate_norm_mean, "std", f->gate_norm_sd));
    put(object, "router_cos", json_pack("{s:o}", "mean_abs", number(f->router_cos)));
    put(object, "zero_rows", json_integer((json_int_t)f->zero_rows));
    put(object, "home", home(f));
    if (at->extra_rows) put(object, "router_rows_left_out", json_integer(at->extra_rows));
    if (at->biased) put(object, "biases_left_out", json_true());
    if (!at->comparable) put(object, "comparable", json_false());
    if (at->note) put(object, "note", json_string(at->note));
    return object;
}

/* ---- a checkpoint ---- */

static json_t *left_out(const cpl_layer_report *l)
{
    json_t *object = json_object();
    put_place(object, l->at);
    put(object, "reason", json_string(l->fault));
    return object;
}

static json_t *picture(const cpl_picture *p)
{
    json_t *object = json_object();
    if (p->fault) put(object, "reason", json_string(p->fault));
    if (p->n_points == 0) return object;
    put(object, "layer", json_integer(p->layer));
    put(object, "stride", json_integer(p->stride));
    put(object, "experts", json_integer(p->n_experts));
    put(object, "every_row", json_integer(p->every));
    put(object, "points", json_integer(p->n_points));
    put(object, "perplexity", number(p->perplexity));
    put(object, "iterations", json_integer(p->iterations));
    put(object, "kl", number(p->kl));
    return object;
}

static json_t *notes(const cpl_moe_map *map)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < map->n_notes; i++)
        json_array_append_new(array, json_string(map->notes[i]));
    return array;
}

static void put_layers(json_t *object, const cpl_coupling_report *r)
{
    json_t *layers = json_array(), *skipped = json_array(), *faulty = json_array();
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_layer_report *layer = &r->layers[l];
        if (!layer->fault)
            json_array_append_new(layers, measured(layer, &r->options));
        else
            json_array_append_new(layer->skipped ? skipped : faulty, left_out(layer));
    }
    put(object, "layers", layers);
    put(object, "skipped", skipped);
    put(object, "faulty", faulty);
}

static json_t *checkpoint(const cpl_coupling_report *r)
{
    cpl_text verdict = {0};
    json_t *object   = json_object();
    put(object, "checkpoint", json_string(r->path));
    put(object, "family", json_string(r->map.family));
    put(object, "guessed", json_boolean(r->map.guessed));
    if (r->map.guessed && r->map.guess) put(object, "guess", json_string(r->map.guess));
    if (r->options.noisy)
        put(object, "noise_seed", json_integer((json_int_t)r->options.noise_seed));
    put(object, "seed", json_integer((json_int_t)r->options.seed));
    put_layers(object, r);
    put(object, "dense_layers", json_integer(r->map.n_dense));
    put(object, "mtp_layers", json_integer(r->map.n_mtp));
    put(object, "notes", notes(&r->map));
    if (r->options.picture) put(object, "tsne", picture(&r->picture));
    cpl_coupling_verdict(&verdict, r);
    put(object, "verdict", json_string(verdict.bytes ? verdict.bytes : ""));
    cpl_text_free(&verdict);
    return object;
}

json_t *cpl_coupling_json(const cpl_coupling_report *reports, int64_t count)
{
    if (count == 1) return checkpoint(reports);
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++) json_array_append_new(array, checkpoint(&reports[i]));
    return json_pack("{s:o}", "checkpoints", array);
}
