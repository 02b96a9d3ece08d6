/* metrics.h - the figures of a step (docs/method.md 5.1), and their line of JSON.
 *
 * Room:   train.
 * File:   RUN/metrics.jsonl, one object a logged step; docs/formats.md lists every member. */
#ifndef CPL_TRAIN_METRICS_H
#define CPL_TRAIN_METRICS_H

#include <jansson.h>

#include "base/arena.h"
#include "model/settings.h"
#include "tensor/figures.h"

/* Of one layer. */
typedef struct cpl_layer_metrics {
    double aux[CPL_N_AUX_LOSSES]; /* every auxiliary loss, unweighted */
    double entropy;               /* of the router's probabilities, mean over tokens, nats */
    double load_max; /* largest share of assignments in units of the mean, 1: balanced */
    double dead;     /* experts without a token */
    double router_ratio,
        router_cos;              /* |gradient of the weighted ERC| / |the rest|, and their cosine */
    double gate_ratio, gate_cos; /* the same for W_g */
    double erc_over_diagonal;    /* erc over the mean diagonal of M: free of the weights\' scale */
    double erc_clean;            /* clean R, masters, after the update: at evaluations */
    cpl_coupling_figures figures;
} cpl_layer_metrics;

/* Held-out loss of one source. */
typedef struct cpl_source_loss {
    const char *label; /* borrowed from the loader */
    double nll;        /* sum */
    int64_t targets;
} cpl_source_loss;

/* An auxiliary loss of the model. */
typedef struct cpl_aux_metrics {
    double value;  /* unweighted; mean over layers, erc after erc.reduce */
    double weight; /* its weight in this step: of erc as the schedule has it */
    bool computed; /* in this step */
} cpl_aux_metrics;

typedef struct cpl_metrics {
    int64_t step, tokens; /* tokens: input positions so far */
    double loss;          /* cross-entropy, mean over targets, nats */
    double loss_total;    /* the weighted sum */
    cpl_aux_metrics aux[CPL_N_AUX_LOSSES];
    double erc_alpha; /* as the schedule has it at this step */
    double grad_norm; /* before clipping */
    double lr, tokens_per_s, peak_share, step_s;
    double memory_bytes; /* the most this process has had in memory so far */
    int64_t skipped;     /* steps skipped so far */
    bool was_skipped;
    bool has_figures; /* layer[].figures and the gradient ratios are filled */
    bool has_eval;    /* sources are filled */
    bool has_clean;   /* erc_clean is filled */
    json_t *tasks;    /* {TASK: {METRIC: value}} of evaluated tasks; owned; NULL: none */
    int64_t n_layers, n_experts, n_sources;
    cpl_layer_metrics *layer; /* [L] */
    double *counts;           /* [L,n] assignments to each expert in this step */
    cpl_source_loss *source;  /* [n_sources] */
} cpl_metrics;

/* Takes the arrays from the arena. */
void cpl_metrics_take(cpl_metrics *metrics, cpl_arena *arena, const cpl_model_settings *config,
                      int64_t n_sources);

/* Mean held-out loss over all targets. */
double cpl_metrics_validation(const cpl_metrics *metrics);

/* The line as an object; NULL if there is no memory. What is not finite becomes null. */
json_t *cpl_metrics_json(const cpl_metrics *metrics);

#endif /* CPL_TRAIN_METRICS_H */
