/* inspect_case.h - small checkpoints with numbers of the test's choice, and their inspection.
 *
 * Numbers: F32, in the layout of OLMoE: layers of any n, d, D; router R[l] [n,d], gates W[l]
 *          [n,D,d]. A case is changed in memory, then written as one file or one for each layer. */
#ifndef CPL_TESTS_INSPECT_INSPECT_CASE_H
#define CPL_TESTS_INSPECT_INSPECT_CASE_H

#include <math.h>

#include "base/arena.h"
#include "base/rng.h"
#include "inspect/families/layouts.h"
#include "inspect/report.h"
#include "inspect/show/show.h"

enum { CASE_LAYERS = 8 };

typedef struct inspect_layer {
    int n, d, D;
    int64_t number;
    const char *prefix; /* "model." or another prefix; NULL: "model." */
    float *R, *W;
} inspect_layer;

typedef struct inspect_case {
    inspect_layer layers[CASE_LAYERS];
    int n_layers;
    const char *config; /* NULL: OLMoE's with 2 experts a token */
    layout_files *files;
    char folder[64];
} inspect_case;

static inline float case_normal(uint64_t seed, int64_t layer, int64_t i)
{
    cpl_rng_key key = {.seed = seed, .step = (uint64_t)layer, .stream = CPL_STREAM_TEST};
    return cpl_rng_normal(&key, (uint64_t)i);
}

/* Adds a layer of standard normal numbers, with the gates divided by ten. */
static inline inspect_layer *case_add(inspect_case *c, int n, int d, int D)
{
    const int l          = c->n_layers++;
    inspect_layer *layer = &c->layers[l];
    assert_true(l < CASE_LAYERS);
    *layer   = (inspect_layer){.n = n, .d = d, .D = D, .number = l};
    layer->R = malloc(sizeof(float) * (size_t)(n * d));
    layer->W = malloc(sizeof(float) * (size_t)(n * D * d));
    for (int i = 0; i < n * d; i++) layer->R[i] = case_normal(1, l, i);
    for (int i = 0; i < n * D * d; i++) layer->W[i] = 0.1f * case_normal(2, l, i);
    return layer;
}

static inline void case_add_tensors(inspect_case *c, const inspect_layer *l)
{
    char name[160];
    const char *prefix = l->prefix ? l->prefix : "model.";
    const long long at = (long long)l->number;
    int64_t router[2] = {l->n, l->d}, gate[2] = {l->D, l->d};
    size_t bytes = sizeof(float) * (size_t)(l->n * l->d);
    snprintf(name, sizeof name, "%slayers.%lld.mlp.gate.weight", prefix, at);
    memcpy(layout_add(c->files, name, CPL_SAFETENSORS_F32, 2, router, bytes), l->R, bytes);
    bytes = sizeof(float) * (size_t)(l->D * l->d);
    for (int e = 0; e < l->n; e++) {
        snprintf(name, sizeof name, "%slayers.%lld.mlp.experts.%d.gate_proj.weight", prefix, at, e);
        memcpy(layout_add(c->files, name, CPL_SAFETENSORS_F32, 2, gate, bytes),
               l->W + (size_t)e * (size_t)(l->D * l->d), bytes);
    }
}

/* Makes the list of tensors, which the test may still change. */
static inline void case_lay_out(inspect_case *c)
{
    c->files = calloc(1, sizeof *c->files);
    for (int l = 0; l < c->n_layers; l++) case_add_tensors(c, &c->layers[l]);
}

static inline layout_tensor *case_tensor(inspect_case *c, const char *name)
{
    for (int i = 0; i < c->files->count; i++)
        if (strcmp(c->files->all[i].name, name) == 0) return &c->files->all[i];
    fail_msg("%s is in no layer of the case", name);
    return NULL;
}

/* Returns the name of the file that holds shard `s` of `shards`. */
static inline const char *case_shard(const inspect_case *c, int s, int shards)
{
    char name[64];
    snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, shards);
    return in_folder(c->folder, name);
}

/* Writes a folder of `shards` shards (tensors by turns), or of one file without an index. */
static inline const char *case_write(inspect_case *c, int shards)
{
    const char *config =
        c->config ? c->config : "{\"model_type\":\"olmoe\",\"num_experts_per_tok\":2}";
    if (!c->files) case_lay_out(c);
    snprintf(c->folder, sizeof c->folder, "%s", scratch_folder());
    for (int s = 0; s < shards; s++)
        layout_write_file(c->files, case_shard(c, s, shards), s, shards);
    if (!shards) layout_write_file(c->files, in_folder(c->folder, "model.safetensors"), 0, 1);
    if (shards) layout_write_index(c->files, c->folder, shards);
    assert_ok(cpl_file_write_atomic(in_folder(c->folder, "config.json"), config, strlen(config)));
    return c->folder;
}

static inline void case_free(inspect_case *c)
{
    for (int l = 0; l < c->n_layers; l++) {
        free(c->layers[l].R);
        free(c->layers[l].W);
    }
    for (int i = 0; c->files && i < c->files->count; i++) free(c->files->all[i].data);
    free(c->files);
    memset(c, 0, sizeof *c);
}

/* ---- inspecting ---- */

static inline cpl_inspect_options inspect_plainly(void)
{
    return (cpl_inspect_options){
        .alphas = {1, 2, 3.5}, .n_alphas = 3, .n_threads = 1, .memory_bytes = INFINITY, .seed = 1};
}

/* Opens and inspects a checkpoint. On failure the report is empty. */
static inline cpl_status inspect_all(cpl_coupling_report *report, const char *path,
                                     const cpl_inspect_options *options)
{
    cpl_inspect_cost cost;
    CPL_TRY(cpl_inspect_open(report, &cost, path, options, NULL));
    cpl_status status = cpl_inspect_run(report);
    if (status != CPL_OK) cpl_inspect_close(report);
    return status;
}

/* Returns the report of the case, which is written as one file unless it is written already. */
static inline cpl_coupling_report inspected(inspect_case *c, cpl_inspect_options options)
{
    cpl_coupling_report report;
    if (!*c->folder) case_write(c, 0);
    assert_ok(inspect_all(&report, c->folder, &options));
    return report;
}

static inline void case_close(inspect_case *c, cpl_coupling_report *report)
{
    cpl_inspect_close(report);
    case_free(c);
}

/* ---- cases, damage and comparisons that several tests share ---- */

static inline inspect_case case_of(int n, int d, int D)
{
    inspect_case c = {0};
    case_add(&c, n, d, D);
    return c;
}

/* Returns layers of different sizes. One of them has a single expert. */
static inline inspect_case mixed_case(void)
{
    static const int sizes[][3] = {{5, 40, 17}, {2, 40, 9}, {1, 24, 8}, {24, 33, 12}, {9, 40, 30}};
    inspect_case c              = {0};
    for (int l = 0; l < 5; l++) case_add(&c, sizes[l][0], sizes[l][1], sizes[l][2]);
    return c;
}

static inline void put_nan(inspect_case *c, const char *name, size_t at)
{
    const float nan = NAN;
    memcpy(case_tensor(c, name)->data + at * sizeof nan, &nan, sizeof nan);
}

static inline void check_same_layer(const cpl_layer_report *a, const cpl_layer_report *b)
{
    const size_t n = (size_t)a->at->n;
    assert_int_equal(a->at->n, b->at->n);
    assert_null(a->fault);
    assert_null(b->fault);
    assert_int_equal(a->has_M, b->has_M);
    assert_memory_equal(a->M, b->M, n * n * sizeof(float));
    assert_memory_equal(a->eps, b->eps, n * sizeof(float));
    assert_memory_equal(a->router_norm, b->router_norm, n * sizeof(double));
    assert_memory_equal(a->gate_norm, b->gate_norm, n * sizeof(double));
    if (n > 1) assert_memory_equal(a->cosine, b->cosine, n * (n - 1) / 2 * sizeof(float));
    assert_memory_equal(a->erc, b->erc, sizeof a->erc);
    assert_memory_equal(&a->figures, &b->figures, sizeof a->figures);
    assert_memory_equal(&a->ratios, &b->ratios, sizeof a->ratios);
    assert_memory_equal(&a->chance, &b->chance, sizeof a->chance);
    assert_int_equal(a->silhouettes != NULL, b->silhouettes != NULL);
    if (!a->silhouettes) return;
    assert_memory_equal(a->silhouettes, b->silhouettes, n * sizeof(double));
    assert_memory_equal(&a->silhouette, &b->silhouette, sizeof a->silhouette);
}

static inline void check_same_report(const cpl_coupling_report *a, const cpl_coupling_report *b)
{
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_measured, b->n_measured);
    for (int64_t l = 0; l < a->n_layers; l++) check_same_layer(&a->layers[l], &b->layers[l]);
}

#endif /* CPL_TESTS_INSPECT_INSPECT_CASE_H */
