/* test_verdict.c - the words for coupling: over the recorded runs, whose words must be those of
 * their training loss, and over layers with figures by hand. COUPLET_RECORDS is the folder of the
 * records, by default build/records, into which experiments/tools/records.py unpack writes them. */
#include "check.h"
#include "inspect/show/show.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "settings/yaml.h"

enum { MOST_LAYERS = 64 };

/* A report without a file. */
typedef struct made {
    cpl_coupling_report report;
    cpl_layer_report layers[MOST_LAYERS];
    cpl_moe_layer at[MOST_LAYERS];
} made;

static cpl_layer_report *add(made *m, int64_t n)
{
    const int64_t l  = m->report.n_layers++;
    m->report.layers = m->layers;
    m->at[l]         = (cpl_moe_layer){.n = n, .layer = l, .part = (char *)""};
    m->layers[l]     = (cpl_layer_report){.at = &m->at[l], .has_M = true};
    return &m->layers[l];
}

static const char *state_of(const made *m)
{
    const char *words = cpl_coupling_state_of(&m->report).words;
    return words ? words : "unknown";
}

static void assert_says(const made *m, const char *words)
{
    cpl_text said = {0};
    cpl_coupling_verdict(&said, &m->report);
    assert_ok(cpl_text_status(&said));
    if (!strstr(said.bytes, words)) fail_msg("\"%s\" does not say \"%s\"", said.bytes, words);
    cpl_text_free(&said);
}

/* ---- the recorded runs ---- */

static double number(const json_t *object, const char *a, const char *b)
{
    const json_t *of = json_object_get(object, a);
    if (b) of = json_object_get(of, b);
    return json_is_number(of) ? json_number_value(of) : (double)NAN;
}

/* Adds a recorded layer. Older records lack the figures of the centred rows. */
static void add_recorded(made *m, const json_t *layer)
{
    const json_t *c = json_object_get(layer, "centred"), *f = json_object_get(layer, "figures");
    cpl_layer_report *l      = add(m, (int64_t)number(layer, "n", NULL));
    l->ratios.most           = number(layer, "alpha_min", NULL);
    l->ratios.violated       = number(layer, "ratio", "violated");
    l->chance.kappa_row_top1 = number(layer, "kappa", "rows_own");
    l->chance.z              = number(layer, "chance", "z");
    l->figures.m_diagonal    = number(layer, "M", "diag_mean");
    if (!c) return;
    l->centred.has_M                 = true;
    l->centred.ratios.most           = number(c, "alpha_min", NULL);
    l->centred.ratios.violated       = number(c, "ratio", "violated");
    l->centred.chance.z              = number(c, "z", NULL);
    l->centred.chance.kappa_row_top1 = number(f, "centred_kappa_row_top1", NULL);
    l->centred.figures.m_diagonal    = number(f, "centred_m_diagonal", NULL);
}

/* Returns the word for the router's choices over text. */
static const char *text_state(const json_t *routing)
{
    const json_t *layers = json_object_get(routing, "layers"), *layer;
    cpl_routing_layer at[MOST_LAYERS];
    cpl_routing_report r = {.layers    = at,
                            .n_layers  = (int64_t)json_array_size(layers),
                            .n_sampled = (int64_t)number(routing, "sampled", NULL)};
    size_t l;
    memset(at, 0, sizeof at);
    json_array_foreach(layers, l, layer) at[l].rho_mean =
        number(layer, "agreement", "spearman_mean");
    const char *words = cpl_routing_state(&r);
    return words ? words : "unknown";
}

/* Kinds of loss that a configuration names. */
enum { VANILLA, BOUND, OTHER, KINDS };

/* Returns the kind of a configuration. alpha above 1 gives a weaker bound, and alpha 0 rewards no
 * response to the own row. The report measures the response of the gate. Other activations bind
 * another response, and silu binds that of the gate after its activation. */
static int kind_of(const cpl_yaml_tree *settings)
{
    const char *activation = cpl_yaml_tree_text(settings, "erc", "activation");
    const double alpha     = atof(cpl_yaml_tree_text(settings, "erc", "alpha"));
    if (atof(cpl_yaml_tree_text(settings, "erc", "weight")) == 0) return VANILLA;
    const bool of_gate = !activation || !strcmp(activation, "gate") || !strcmp(activation, "silu");
    return alpha > 0 && alpha <= 1 && of_gate ? BOUND : OTHER;
}

static bool among(const char *word, const char *a, const char *b)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

/* Counts a run by its training loss. KINDS counts the runs without a coupling matrix. */
static void check_run(const char *records, const char *name, int counts[KINDS + 1])
{
    char path[4096];
    cpl_yaml_tree settings = {0};
    json_t *report         = NULL, *layer;
    size_t l;
    made *m = calloc(1, sizeof *m);
    snprintf(path, sizeof path, "%s/%s/config.yaml", records, name);
    assert_ok(cpl_yaml_tree_read(&settings, path));
    snprintf(path, sizeof path, "%s/%s/report.json", records, name);
    assert_ok(cpl_json_load(&report, path));
    json_array_foreach(json_object_get(report, "layers"), l, layer) add_recorded(m, layer);
    const int kind   = m->report.n_layers ? kind_of(&settings) : KINDS;
    const char *said = state_of(m), *of_text = text_state(json_object_get(report, "routing"));
    counts[kind]++;
    if (kind == BOUND ? strcmp(said, "coupled") != 0
                      : kind < KINDS && !among(said, "weakly coupled", "not coupled"))
        fail_msg("%s: \"%s\"", name, said);
    /* the routers without a matrix choose by the responses themselves */
    if (kind == KINDS ? strcmp(of_text, "follow") != 0
                      : !among(of_text, "do not follow", "follow in part"))
        fail_msg("%s: on text \"%s\"", name, of_text);
    json_decref(report);
    cpl_yaml_tree_free(&settings);
    free(m);
}

TEST(recorded_runs_get_the_words_of_their_loss)
{
    int counts[KINDS + 1] = {0};
    cpl_strings runs      = {0};
    const char *given = getenv("COUPLET_RECORDS"), *records = given ? given : "build/records";
    assert_ok(cpl_folder_list(&runs, records));
    for (int64_t i = 0; i < runs.count; i++)
        if (strchr(runs.at[i], '-')) check_run(records, runs.at[i], counts);
    assert_int_equal(counts[VANILLA], 69);
    assert_int_equal(counts[BOUND], 130);
    assert_int_equal(counts[OTHER], 13);
    assert_int_equal(counts[KINDS], 25);
    cpl_paths_free(&runs);
}

/* ---- by hand ---- */

static void set(cpl_layer_report *l, double violated, double most, double own, double z)
{
    l->figures.m_diagonal    = 1;
    l->ratios.violated       = violated;
    l->ratios.most           = most;
    l->chance.kappa_row_top1 = own;
    l->chance.z              = z;
}

TEST(some_layers_are_named)
{
    made *m = calloc(1, sizeof *m);
    for (int l = 0; l < 48; l++)
        set(add(m, 64), l % 10 == 7 ? 0 : 0.6, l % 10 == 7 ? 0.9 : 4, 0.1, 5);
    assert_string_equal(state_of(m), "partly coupled");
    assert_int_equal(cpl_coupling_state_of(&m->report).coupled, 5);
    assert_says(m, "partly coupled (coupled layers: 5 of 48, namely 7, 17, 27, 37, 47).");
    assert_says(m, "10 % excite their own expert most (chance: 1.56 %), 53.8 % of the pairs");
    assert_says(m, "alpha without loss is 0.9 to 4; z = 34.6 (chance: 0 +- 1).");
    for (int l = 0; l < 44; l++) set(&m->layers[l], 0.01, 1.1, 0.9, 5);
    assert_string_equal(state_of(m), "coupled");
    assert_says(m, "coupled (coupled layers: 45 of 48, all but 44, 45, 46).");
    set(&m->layers[40], 0.2, 2, 0.9, 5);
    set(&m->layers[41], 0.2, 2, 0.9, 5);
    assert_says(m, "partly coupled (coupled layers: 43 of 48, all but 40, 41, 44, 45, 46).");
    free(m);
}

/* The rows with fewer violated pairs decide. A matrix of equal numbers violates no pair, and shows
 * no coupling. */
TEST(either_rows_count)
{
    made *m             = calloc(1, sizeof *m);
    cpl_layer_report *l = add(m, 16);
    set(l, 0.7, 4, 0.1, 0);
    assert_string_equal(state_of(m), "not coupled");
    assert_says(m, "z = 0 (chance: 0 +- 1).");
    l->centred.has_M              = true;
    l->centred.figures.m_diagonal = 1;
    l->centred.ratios             = (cpl_null_model_ratios){.most = 0.9};
    l->centred.chance             = (cpl_null_model){.z = 12, .kappa_row_top1 = 1};
    assert_string_equal(state_of(m), "coupled");
    assert_says(m, "Centred rows");
    l->centred.ratios.violated = 0.2;
    assert_string_equal(state_of(m), "weakly coupled");
    l->centred.chance.z = l->chance.z = NAN;
    l->ratios.violated                = 0;
    assert_string_equal(state_of(m), "unknown");
    free(m);
}

TEST(few_experts_need_many_layers)
{
    made *m = calloc(1, sizeof *m);
    for (int layers = 1; layers <= 12; layers++) {
        set(add(m, 2), 0, 0.9, 1, 1);
        assert_string_equal(state_of(m), layers <= 3 ? "unknown" : "coupled");
    }
    m->report.n_layers = 1;
    assert_says(
        m, "cannot be told (coupled layers: 0 of 1; 1 more may be chance: random weights of so few "
           "experts have as many).");
    assert_int_equal(cpl_coupling_state_of(&m->report).coupled, 0);
    m->at[0].n = 4;
    assert_string_equal(state_of(m), "coupled");
    m->at[0].n = 1;
    assert_says(m, "nothing to compare");
    free(m);
}

TEST(a_text_of_few_tokens_has_no_verdict)
{
    cpl_routing_layer layer = {.rho_mean = 0.9};
    cpl_routing_report r    = {.layers = &layer, .n_layers = 1, .n_experts = 8, .n_sampled = 99};
    cpl_text said           = {0};
    assert_null(cpl_routing_state(&r));
    cpl_routing_verdict(&said, &r);
    assert_non_null(strstr(said.bytes, "cannot be told: responses to fewer than 100 tokens"));
    cpl_text_free(&said);
    r.n_sampled = 100;
    assert_string_equal(cpl_routing_state(&r), "follow");
}

/* If chance may have coupled one of two layers, a few violated pairs of the other do not count. */
TEST(chance_is_not_weakly_coupled)
{
    made *m = calloc(1, sizeof *m);
    set(add(m, 2), 0, 0.9, 1, 1);
    set(add(m, 2), 0.5, 1.2, 1, 1);
    assert_string_equal(state_of(m), "unknown");
    free(m);
}

/* In 48 layers of 4 experts, one coupled layer may be chance, five are not. */
TEST(a_coupled_layer_of_few_experts_may_be_chance)
{
    made *m = calloc(1, sizeof *m);
    for (int l = 0; l < 48; l++) set(add(m, 4), 0.8, 0.8, 2, 0);
    assert_string_equal(state_of(m), "not coupled");
    for (int l = 0; l < 5; l++) {
        set(&m->layers[7 * l], 0, 0.9, 1, 2);
        assert_string_equal(state_of(m), l < 1 ? "not coupled" : "partly coupled");
        assert_int_equal(cpl_coupling_state_of(&m->report).coupled, l < 1 ? 0 : l + 1);
        assert_says(m, l < 1 ? "not coupled (coupled layers: 0 of 48; 1 more may be chance"
                             : "of 48, namely");
    }
    assert_says(m, "partly coupled (coupled layers: 5 of 48, namely 0, 7, 14, 21, 28");
    free(m);
}

TEST(text_is_not_advised_where_it_was_read)
{
    made *m       = calloc(1, sizeof *m);
    cpl_text said = {0};
    set(add(m, 8), 0, 0.9, 1, 6);
    assert_says(m, "--text measures it");
    m->report.options.text = true;
    cpl_coupling_verdict(&said, &m->report);
    assert_null(strstr(said.bytes, "--text"));
    cpl_text_free(&said);
    free(m);
}
