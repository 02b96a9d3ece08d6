/* test_metrics.c - the line of metrics.jsonl: every member from its field, values that are not
 * finite or not computed, and the old keys of the figures. */
#include "train/metrics.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "model/aux_losses.h"

enum { L = 2, N = 3 };

typedef struct line {
    cpl_arena arena;
    cpl_metrics m;
    json_t *json;
} line;

static line take(void)
{
    const cpl_model_settings config = {.n_layers = L, .n_experts = N};
    line l                          = {0};
    assert_ok(cpl_arena_init(&l.arena, 1 << 16, "metrics"));
    cpl_metrics_take(&l.m, &l.arena, &config, 2);
    memset(l.m.layer, 0, L * sizeof *l.m.layer);
    memset(l.m.counts, 0, (size_t)(L * N) * sizeof *l.m.counts);
    return l;
}

static void drop(line *l)
{
    json_decref(l->json);
    cpl_arena_free(&l->arena);
}

static double number(const line *l, const char *key)
{
    const json_t *value = json_object_get(l->json, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

static double of_layer(const line *l, const char *key, size_t layer)
{
    const json_t *array = json_object_get(l->json, key);
    if (json_array_size(array) != L) fail_msg("%s is no array of layers", key);
    return json_number_value(json_array_get(array, layer));
}

TEST(every_loss_has_its_keys)
{
    for (int absent = 0; absent < CPL_N_AUX_LOSSES; absent++) {
        line l = take();
        for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
            l.m.aux[i] = (cpl_aux_metrics){.value = 10 + i, .weight = 0.5, .computed = i != absent};
            for (int layer = 0; layer < L; layer++) l.m.layer[layer].aux[i] = 100 * layer + i;
        }
        l.json = cpl_metrics_json(&l.m);
        for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
            char layers[64];
            snprintf(layers, sizeof layers, "%s_layers", cpl_aux_losses[i].name);
            if (i == absent) {
                assert_true(json_is_null(json_object_get(l.json, cpl_aux_losses[i].name)));
                assert_null(json_object_get(l.json, layers));
                continue;
            }
            assert_near(number(&l, cpl_aux_losses[i].name), 10 + i, 0);
            assert_near(of_layer(&l, layers, 1), 100 + i, 0);
        }
        drop(&l);
    }
}

TEST(every_figure_has_its_key_and_its_old_one)
{
    line l          = take();
    double *first   = (double *)(void *)&l.m.layer[1].figures;
    double *centred = (double *)(void *)&l.m.layer[1].centred;
    int n_centred   = 0;
    for (int i = 0; i < CPL_N_FIGURES; i++) first[i] = i + 1;
    for (int i = 0; i < CPL_N_FIGURES; i++) centred[i] = 500 + i;
    l.json = cpl_metrics_json(&l.m);
    for (int i = 0; i < CPL_N_FIGURES; i++)
        assert_null(json_object_get(l.json, cpl_figure_rows[i].name)); /* absent without figures */
    json_decref(l.json);
    l.m.has_figures = true;
    l.json          = cpl_metrics_json(&l.m);
    for (int i = 0; i < CPL_N_FIGURES; i++) {
        assert_near(of_layer(&l, cpl_figure_rows[i].name, 1), i + 1, 0);
        assert_near(of_layer(&l, cpl_figure_rows[i].old_name, 1), i + 1, 0);
        const cpl_figure_row *row = &cpl_figure_rows[i];
        n_centred += row->centred;
        if (row->centred)
            assert_near(of_layer(&l, row->centred_name, 1), 500 + i, 0);
        else
            assert_null(json_object_get(l.json, row->centred_name));
    }
    assert_int_equal(n_centred, 15);
    assert_near(of_layer(&l, "home_top1", 1), of_layer(&l, "proxy_route_top1", 1), 0);
    assert_near(number(&l, "schema"), CPL_FIGURES_SCHEMA, 0);
    drop(&l);
}

/* Sets every other number to a value that differs from all others. */
TEST(every_number_has_its_key)
{
    line l = take();
    const struct {
        const char *key;
        double *at;
    } of_step[]    = {{"loss", &l.m.loss},
                      {"loss_total", &l.m.loss_total},
                      {"grad_norm", &l.m.grad_norm},
                      {"grad_norm_max", &l.m.grad_norm_max},
                      {"lr", &l.m.lr},
                      {"erc_weight", &l.m.aux[CPL_AUX_ERC].weight},
                      {"erc_alpha", &l.m.erc_alpha},
                      {"tokens_per_s", &l.m.tokens_per_s},
                      {"peak_share", &l.m.peak_share},
                      {"step_s", &l.m.step_s},
                      {"memory_bytes", &l.m.memory_bytes}},
      of_layer_1[] = {{"erc_over_diagonal", &l.m.layer[1].erc_over_diagonal},
                      {"erc_grad_ratio_router", &l.m.layer[1].router_ratio},
                      {"erc_grad_cos_router", &l.m.layer[1].router_cos},
                      {"erc_grad_ratio_gate", &l.m.layer[1].gate_ratio},
                      {"erc_grad_cos_gate", &l.m.layer[1].gate_cos},
                      {"routing_entropy", &l.m.layer[1].entropy},
                      {"scores_negative", &l.m.layer[1].scores_negative},
                      {"load_max", &l.m.layer[1].load_max},
                      {"max_vio", &l.m.layer[1].max_vio},
                      {"erc_centred", &l.m.layer[1].erc_centred},
                      {"dead_experts", &l.m.layer[1].dead},
                      {"erc_clean", &l.m.layer[1].erc_clean},
                      {"agreement", &l.m.layer[1].tokens[CPL_MEAN_TOKEN_AGREEMENT]},
                      {"dz", &l.m.layer[1].tokens[CPL_MEAN_TOKEN_DZ]},
                      {"router_mu_cos", &l.m.layer[1].tokens[CPL_MEAN_TOKEN_ROUTER_MU_COS]}};
    enum { OF_STEP = sizeof of_step / sizeof *of_step };
    enum { OF_LAYER = sizeof of_layer_1 / sizeof *of_layer_1 };
    l.m.step = 1, l.m.tokens = 2, l.m.skipped = 3;
    l.m.has_figures = l.m.has_eval = l.m.has_clean = l.m.has_tokens = true;
    for (int i = 0; i < OF_STEP; i++) *of_step[i].at = 10 + i;
    for (int i = 0; i < OF_LAYER; i++) *of_layer_1[i].at = 30 + i;
    l.json = cpl_metrics_json(&l.m);
    assert_near(number(&l, "step"), 1, 0);
    assert_near(number(&l, "tokens"), 2, 0);
    assert_near(number(&l, "skipped"), 3, 0);
    for (int i = 0; i < OF_STEP; i++) assert_near(number(&l, of_step[i].key), 10 + i, 0);
    for (int i = 0; i < OF_LAYER; i++) {
        assert_near(of_layer(&l, of_layer_1[i].key, 1), 30 + i, 0);
        assert_near(of_layer(&l, of_layer_1[i].key, 0), 0, 0);
    }
    drop(&l);
}

TEST(what_is_not_finite_is_null)
{
    line l               = take();
    l.m.loss             = NAN;
    l.m.grad_norm        = INFINITY;
    l.m.lr               = 0.25;
    l.m.layer[1].entropy = NAN;
    l.json               = cpl_metrics_json(&l.m);
    assert_true(json_is_null(json_object_get(l.json, "loss")));
    assert_true(json_is_null(json_object_get(l.json, "grad_norm")));
    assert_near(number(&l, "lr"), 0.25, 0);
    assert_true(json_is_null(json_array_get(json_object_get(l.json, "routing_entropy"), 1)));
    assert_true(json_is_number(json_array_get(json_object_get(l.json, "routing_entropy"), 0)));
    drop(&l);
}

TEST(validation_is_the_mean_over_targets)
{
    line l        = take();
    l.m.source[0] = (cpl_source_loss){"a", 30, 10};
    l.m.source[1] = (cpl_source_loss){"b", 10, 30};
    assert_near(cpl_metrics_validation(&l.m), 1, 0); /* 40 / 40, not the mean of 3 and 1/3 */
    l.m.has_eval = true;
    l.json       = cpl_metrics_json(&l.m);
    assert_near(number(&l, "val_loss"), 1, 0);
    const json_t *sources = json_object_get(l.json, "val_loss_by_source");
    assert_near(json_number_value(json_object_get(sources, "a")), 3, 0);
    assert_null(json_object_get(l.json, "erc_clean"));
    drop(&l);
}

TEST(counts_are_integers_by_layer)
{
    line l = take();
    for (int i = 0; i < L * N; i++) l.m.counts[i] = i;
    l.json              = cpl_metrics_json(&l.m);
    const json_t *layer = json_array_get(json_object_get(l.json, "tokens_per_expert"), 1);
    assert_int_equal(json_array_size(layer), N);
    for (size_t e = 0; e < N; e++) {
        assert_true(json_is_integer(json_array_get(layer, e)));
        assert_int_equal(json_integer_value(json_array_get(layer, e)), N + (json_int_t)e);
    }
    drop(&l);
}
