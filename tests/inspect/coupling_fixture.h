/* coupling_fixture.h - coupling reports of random matrices with a raised diagonal. They are for
 * tests of the forms of a report. The figures come from the functions that an inspection calls. */
#ifndef CPL_TESTS_INSPECT_COUPLING_FIXTURE_H
#define CPL_TESTS_INSPECT_COUPLING_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/report.h"

typedef struct fixture_kind {
    const char *path, *name, *family, *title;
    int64_t n, n_layers, d, D, K;
    double lift;  /* growth of the diagonal of M in the last layer; 0 in the first layer */
    double scale; /* scale of all weights */
    uint64_t seed;
    bool guessed, silhouette;
    int64_t n_encoder; /* the first `n_encoder` layers are the encoder's */
    int64_t faulty;    /* index of a layer with a fault, or -1 */
    int64_t skipped;   /* index of a layer that is skipped, or -1 */
    int64_t without_M; /* index of a layer whose router and experts read different vectors, or -1 */
    int64_t zero;      /* index of a layer with a diagonal entry of 0 (infinite alpha_min), or -1 */
    int64_t noted;     /* index of a layer with a note, or -1 */
} fixture_kind;

static inline double fixture_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

/* Returns a nearly normal number: the sum of twelve uniform numbers. */
static inline double fixture_normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += fixture_random(state);
    return sum;
}

static inline void *fixture_take(int64_t count, size_t size)
{
    void *made = calloc((size_t)(count ? count : 1), size);
    if (!made) abort();
    return made;
}

/* Sets the figures of M, as an inspection sets them. */
static inline void fixture_compare(cpl_layer_report *layer, const cpl_inspect_options *o)
{
    const int64_t n         = layer->at->n;
    cpl_coupling_figures *f = &layer->figures;
    for (int a = 0; a < o->n_alphas; a++)
        layer->erc[a] = cpl_null_model_erc(layer->M, n, o->alphas[a]);
    if (cpl_null_model_ratios_of(&layer->ratios, layer->M, n) != CPL_OK ||
        cpl_null_model_of(&layer->chance, layer->assigned, layer->M, layer->router_norm,
                          layer->gate_norm, n, o->alphas, o->n_alphas, 1, layer->at->layer))
        abort();
    f->alpha_min          = layer->ratios.most;
    f->kappa_diagonal     = layer->chance.kappa_diagonal;
    f->kappa_off_diagonal = layer->chance.kappa_off_diagonal;
    f->kappa_row_top1     = layer->chance.kappa_row_top1;
    f->kappa_column_top1  = layer->chance.kappa_column_top1;
}

static inline void fixture_spread(double *mean, double *sd, const double *values, int64_t n)
{
    double squares = 0;
    *mean          = 0;
    for (int64_t i = 0; i < n; i++) *mean += values[i] / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (values[i] - *mean) * (values[i] - *mean);
    *sd = sqrt(squares / (double)n);
}

static inline void fixture_fill(cpl_layer_report *layer, const cpl_inspect_options *options,
                                double lift, double scale, uint64_t *state)
{
    cpl_coupling_figures *f = &layer->figures;
    int64_t n               = layer->at->n;
    layer->M                = fixture_take(n * n, sizeof(float));
    layer->eps              = fixture_take(n, sizeof(float));
    layer->router_norm      = fixture_take(n, sizeof(double));
    layer->gate_norm        = fixture_take(n, sizeof(double));
    layer->cosine           = fixture_take(n * (n - 1) / 2, sizeof(float));
    f->eps_min              = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        layer->router_norm[i] = scale * 1.2 * exp(0.2 * fixture_normal(state));
        layer->gate_norm[i]   = scale * 18 * exp(0.08 * fixture_normal(state));
        layer->eps[i]         = (float)(n == 1 ? 0 : 0.35 + 0.05 * fixture_normal(state));
        f->eps_mean += layer->eps[i] / (double)n;
        f->eps_min = fmin(f->eps_min, layer->eps[i]);
        f->eps_max = fmax(f->eps_max, layer->eps[i]);
    }
    for (int64_t i = 0; i < n * (n - 1) / 2; i++) {
        layer->cosine[i] = (float)(0.15 * fixture_normal(state));
        f->router_cos += fabsf(layer->cosine[i]) / ((double)(n * (n - 1)) / 2);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double kappa = 0.03 * exp(0.25 * fixture_normal(state));
            if (i == j) kappa *= 1 + lift * exp(0.3 * fixture_normal(state));
            layer->M[i * n + j] = (float)(kappa * layer->router_norm[i] * layer->gate_norm[j]);
            if (i == j)
                f->m_diagonal += layer->M[i * n + j] / (double)n;
            else
                f->m_off_diagonal += layer->M[i * n + j] / (double)(n * (n - 1));
        }
    fixture_spread(&f->router_norm_mean, &f->router_norm_std, layer->router_norm, n);
    fixture_spread(&f->gate_norm_mean, &f->gate_norm_std, layer->gate_norm, n);
    layer->silhouette = options->silhouette && n > 1 ? 0 : (double)NAN;
    if (options->silhouette) layer->silhouettes = fixture_take(n, sizeof(double));
    for (int64_t i = 0; layer->silhouettes && i < n; i++) {
        layer->silhouettes[i] = n > 1 ? 0.1 * lift + 0.02 * fixture_normal(state) : (double)NAN;
        layer->silhouette += layer->silhouettes[i] / (double)n;
    }
    layer->assigned = fixture_take(n, sizeof *layer->assigned);
    layer->has_M    = true;
}

static inline void fixture_layer(cpl_coupling_report *report, int64_t i, const fixture_kind *kind,
                                 uint64_t *state)
{
    cpl_layer_report *layer = &report->layers[i];
    cpl_moe_layer *at       = &report->map.layers[i];
    bool encoder            = i < kind->n_encoder;
    *at                     = (cpl_moe_layer){.part       = !kind->n_encoder ? ""
                                                            : encoder        ? "encoder"
                                                                             : "decoder",
                                              .prefix     = "model.layers.",
                                              .layer      = encoder ? i : i - kind->n_encoder,
                                              .comparable = i != kind->without_M,
                                              .biased     = i == kind->noted,
                                              .note       = i == kind->noted ? "its experts have no gate: the one "
                                                                               "input matrix stands for it"
                                                                             : NULL,
                                              .n          = kind->n,
                                              .d          = kind->d,
                                              .D          = kind->D,
                                              .K          = kind->K};
    layer->at               = at;
    if (i == kind->faulty || i == kind->skipped) {
        layer->skipped = i == kind->skipped;
        layer->fault = strdup(layer->skipped ? "hash-routed: a fixed table sends tokens to experts"
                                             : "model-00002.safetensors: tensor "
                                               "model.layers.2.mlp.gate.weight has 3 values that "
                                               "are not finite, the first at [0,<7>]");
        return;
    }
    double depth = kind->n_layers > 1 ? (double)i / (double)(kind->n_layers - 1) : 1;
    fixture_fill(layer, &report->options, kind->lift * depth, kind->scale, state);
    report->n_measured++;
    if (i == kind->without_M) {
        layer->has_M = false;
        free(layer->M);
        layer->M = NULL;
        return;
    }
    if (i == kind->zero) layer->M[0] = 0;
    fixture_compare(layer, &report->options);
}

static inline void fixture_open(cpl_coupling_report *report, const fixture_kind *kind)
{
    static const double alphas[] = {1, 2, 3, 4, 5};
    uint64_t state               = kind->seed * 7919 + 17;
    memset(report, 0, sizeof *report);
    report->path               = strdup(kind->path);
    report->name               = strdup(kind->name);
    report->options.n_alphas   = 5;
    report->options.silhouette = kind->silhouette;
    memcpy(report->options.alphas, alphas, sizeof alphas);
    report->map        = (cpl_moe_map){.family   = kind->family,
                                       .title    = kind->title,
                                       .guessed  = kind->guessed,
                                       .guess    = kind->guessed ? "No row of the table of families: "
                                                                   "mlp.switch.weight was taken for the "
                                                                   "router & mlp.w1 for the gates."
                                                                 : "",
                                       .n_layers = kind->n_layers,
                                       .n_dense  = 1};
    report->map.layers = fixture_take(kind->n_layers, sizeof *report->map.layers);
    report->layers     = fixture_take(kind->n_layers, sizeof *report->layers);
    report->n_layers   = kind->n_layers;
    for (int64_t i = 0; i < kind->n_layers; i++) fixture_layer(report, i, kind, &state);
}

static inline void fixture_close(cpl_coupling_report *report)
{
    for (int64_t i = 0; i < report->n_layers; i++) {
        cpl_layer_report *layer = &report->layers[i];
        free(layer->fault);
        free(layer->M);
        free(layer->eps);
        free(layer->router_norm);
        free(layer->gate_norm);
        free(layer->cosine);
        free(layer->silhouettes);
        free(layer->assigned);
    }
    free(report->layers);
    free(report->map.layers);
    free(report->path);
    free(report->name);
    memset(report, 0, sizeof *report);
}

/* The cases of the tests. */
static const fixture_kind fixture_small =
    LIST(.path = "/models/small-moe", .name = "small-moe", .family = "olmoe", .title = "OLMoE",
         .n = 8, .n_layers = 16, .d = 64, .D = 32, .K = 2, .lift = 1.2, .scale = 1, .seed = 1,
         .faulty = -1, .skipped = -1, .without_M = -1, .zero = -1, .noted = -1);
static const fixture_kind fixture_wide =
    LIST(.path = "/models/wide-64e.gguf", .name = "wide-64e.gguf", .family = "mixtral",
         .title = "Mixtral", .n = 64, .n_layers = 3, .d = 128, .D = 96, .K = 8, .lift = 0.3,
         .scale = 3, .silhouette = true, .seed = 2, .faulty = -1, .skipped = -1, .without_M = -1,
         .zero = -1, .noted = -1);
/* Encoder and decoder, with every kind of fault, and a name that must be escaped. */
static const fixture_kind fixture_odd =
    LIST(.path = "/models/<b>&\"x", .name = "<b>&\"x", .family = "switch_like",
         .title = "switch_like", .n = 12, .n_layers = 10, .d = 64, .D = 40, .lift = 0.8,
         .scale = 0.01, .silhouette = true, .seed = 3, .guessed = true, .n_encoder = 4, .faulty = 2,
         .skipped = 5, .without_M = 6, .zero = 8, .noted = 3);
static const fixture_kind fixture_single =
    LIST(.path = "/models/one", .name = "one", .family = "one", .title = "One", .n = 1,
         .n_layers = 1, .d = 8, .D = 8, .K = 1, .scale = 1, .silhouette = true, .seed = 4,
         .faulty = -1, .skipped = -1, .without_M = -1, .zero = -1, .noted = -1);

#endif /* CPL_TESTS_INSPECT_COUPLING_FIXTURE_H */
