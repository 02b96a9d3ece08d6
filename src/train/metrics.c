/* metrics.c - see metrics.h */
#include "train/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "model/aux_losses.h"

void cpl_metrics_take(cpl_metrics *m, cpl_arena *arena, const cpl_model_settings *config,
                      int64_t n_sources)
{
    memset(m, 0, sizeof *m);
    m->n_layers  = config->n_layers;
    m->n_experts = config->n_experts;
    m->n_sources = n_sources;
    m->layer     = cpl_arena_take(arena, (size_t)m->n_layers * sizeof *m->layer);
    m->counts    = cpl_arena_take(arena, (size_t)(m->n_layers * m->n_experts) * sizeof *m->counts);
    m->source    = cpl_arena_take(arena, (size_t)n_sources * sizeof *m->source);
}

double cpl_metrics_validation(const cpl_metrics *m)
{
    double nll = 0, targets = 0;
    for (int64_t i = 0; i < m->n_sources; i++) {
        nll += m->source[i].nll;
        targets += (double)m->source[i].targets;
    }
    return targets > 0 ? nll / targets : NAN;
}

static void put_number(json_t *object, const char *key, double x)
{
    (void)json_object_set_new(object, key, cpl_json_number(x));
}

/* Adds an array with the member at `offset` of every cpl_layer_metrics, converted by `number`. */
static void put_layers(json_t *object, const char *key, const cpl_metrics *m, size_t offset,
                       json_t *(*number)(double))
{
    json_t *array = json_array();
    for (int64_t l = 0; l < m->n_layers; l++) {
        double x;
        memcpy(&x, (const char *)&m->layer[l] + offset, sizeof x);
        (void)json_array_append_new(array, number(x));
    }
    (void)json_object_set_new(object, key, array);
}

typedef struct member {
    const char *key;
    size_t offset;
    bool count; /* a count of experts, an integer */
} member;

static void put_members(json_t *object, const member *list, size_t n, const cpl_metrics *m)
{
    for (const member *one = list; one < list + n; one++)
        put_layers(object, one->key, m, one->offset, one->count ? cpl_json_count : cpl_json_number);
}

static const member figure_members[] = {
    {"scores_negative", offsetof(cpl_layer_metrics, scores_negative), false},
    {"erc_centred", offsetof(cpl_layer_metrics, erc_centred), false},
    {"erc_over_diagonal", offsetof(cpl_layer_metrics, erc_over_diagonal), false},
    {"erc_grad_ratio_router", offsetof(cpl_layer_metrics, router_ratio), false},
    {"erc_grad_cos_router", offsetof(cpl_layer_metrics, router_cos), false},
    {"erc_grad_ratio_gate", offsetof(cpl_layer_metrics, gate_ratio), false},
    {"erc_grad_cos_gate", offsetof(cpl_layer_metrics, gate_cos), false},
};

static const member layer_members[] = {
    {"routing_entropy", offsetof(cpl_layer_metrics, entropy), false},
    {"load_max", offsetof(cpl_layer_metrics, load_max), false},
    {"max_vio", offsetof(cpl_layer_metrics, max_vio), false},
    {"dead_experts", offsetof(cpl_layer_metrics, dead), true},
};

/* Adds NAME_layers of every auxiliary loss that was computed. */
static void put_aux_layers(json_t *object, const cpl_metrics *m)
{
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_layers", cpl_aux_losses[i].name);
        if (m->aux[i].computed)
            put_layers(object, key, m,
                       offsetof(cpl_layer_metrics, aux) + (size_t)i * sizeof(double),
                       cpl_json_number);
    }
}

/* Adds a coupling figure, also under its old key if renamed, and its value for the centred rows. */
static void put_figure(json_t *object, const cpl_metrics *m, const cpl_figure_row *row)
{
    const size_t own          = offsetof(cpl_layer_metrics, figures) + row->offset;
    const size_t centred      = offsetof(cpl_layer_metrics, centred) + row->offset;
    json_t *(*number)(double) = row->count ? cpl_json_count : cpl_json_number;
    put_layers(object, row->name, m, own, number);
    if (strcmp(row->name, row->old_name) != 0) put_layers(object, row->old_name, m, own, number);
    if (row->centred) put_layers(object, row->centred_name, m, centred, number);
}

static void put_figures(json_t *object, const cpl_metrics *m)
{
    for (int i = 0; i < CPL_N_FIGURES; i++) put_figure(object, m, &cpl_figure_rows[i]);
    put_members(object, figure_members, sizeof figure_members / sizeof *figure_members, m);
}

static void put_counts(json_t *object, const cpl_metrics *m)
{
    json_t *layers = json_array();
    for (int64_t l = 0; l < m->n_layers; l++) {
        json_t *counts = json_array();
        for (int64_t e = 0; e < m->n_experts; e++)
            (void)json_array_append_new(counts,
                                        json_integer((json_int_t)m->counts[l * m->n_experts + e]));
        (void)json_array_append_new(layers, counts);
    }
    (void)json_object_set_new(object, "tokens_per_expert", layers);
}

static void put_evaluation(json_t *object, const cpl_metrics *m)
{
    json_t *sources = json_object();
    put_number(object, "val_loss", cpl_metrics_validation(m));
    for (int64_t i = 0; i < m->n_sources; i++)
        if (m->source[i].targets > 0)
            put_number(sources, m->source[i].label,
                       m->source[i].nll / (double)m->source[i].targets);
    (void)json_object_set_new(object, "val_loss_by_source", sources);
    if (m->has_clean)
        put_layers(object, "erc_clean", m, offsetof(cpl_layer_metrics, erc_clean), cpl_json_number);
    for (size_t f = 0; m->has_tokens && f < CPL_MEAN_TOKEN_FIGURES; f++)
        put_layers(object, cpl_mean_token_names[f], m,
                   offsetof(cpl_layer_metrics, tokens) + f * sizeof(double), cpl_json_number);
}

json_t *cpl_metrics_json(const cpl_metrics *m)
{
    json_t *o = json_object();
    (void)json_object_set_new(o, "schema", json_integer(CPL_FIGURES_SCHEMA));
    (void)json_object_set_new(o, "step", json_integer(m->step));
    (void)json_object_set_new(o, "tokens", json_integer(m->tokens));
    put_number(o, "loss", m->loss);
    put_number(o, "loss_total", m->loss_total);
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
        put_number(o, cpl_aux_losses[i].name, m->aux[i].computed ? m->aux[i].value : NAN);
    put_number(o, "grad_norm", m->grad_norm);
    put_number(o, "grad_norm_max", m->grad_norm_max);
    put_number(o, "lr", m->lr);
    put_number(o, "erc_weight", m->aux[CPL_AUX_ERC].weight);
    put_number(o, "erc_alpha", m->erc_alpha);
    put_number(o, "tokens_per_s", m->tokens_per_s);
    put_number(o, "peak_share", m->peak_share);
    put_number(o, "step_s", m->step_s);
    (void)json_object_set_new(o, "memory_bytes", cpl_json_count(m->memory_bytes));
    (void)json_object_set_new(o, "skipped", json_integer(m->skipped));
    if (m->made_with) (void)json_object_set(o, "made_with", m->made_with);
    put_aux_layers(o, m);
    put_members(o, layer_members, sizeof layer_members / sizeof *layer_members, m);
    if (m->has_figures) put_figures(o, m);
    put_counts(o, m);
    if (m->has_eval) put_evaluation(o, m);
    if (m->tasks) (void)json_object_set(o, "tasks", m->tasks);
    if (m->samples) (void)json_object_set(o, "samples", m->samples);
    return o;
}
