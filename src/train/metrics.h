/* metrics.h - the figures of a step (docs/method.md 5.1), their line of JSON, and the file of these
 * lines when a run is resumed.
 *
 * Room:   train.
 * File:   RUN/metrics.jsonl, one object a logged step; docs/formats.md lists every member. */
#ifndef CPL_TRAIN_METRICS_H
#define CPL_TRAIN_METRICS_H

#include <jansson.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/log.h"
#include "model/settings.h"
#include "model/tokens/mean_token.h"
#include "tensor/figures.h"

/* The figures of one layer. */
typedef struct cpl_layer_metrics {
    double aux[CPL_N_AUX_LOSSES]; /* every auxiliary loss, unweighted */
    double entropy;               /* entropy of the router's probabilities, mean over tokens,
                                     nats */
    double scores_negative;       /* share of the router's logits below 0, over all tokens */
    double load_max; /* largest share of assignments in units of the mean, 1: balanced */
    double max_vio;  /* load_max - 1 */
    double dead;     /* number of experts without a token */
    double router_ratio, router_cos; /* R: |gradient of weighted ERC| / |other gradients|, and the
                                        cosine of both */
    double gate_ratio, gate_cos;     /* ratio and cosine for W_g */
    double erc_over_diagonal; /* erc / mean diagonal of M, independent of the scale of weights */
    double erc_clean;         /* loss of the updated masters without noise, at evaluations */
    cpl_coupling_figures figures;
    double erc_centred; /* loss of the centred rows without noise, at erc.alpha */
    cpl_coupling_figures centred;
    double tokens[CPL_MEAN_TOKEN_FIGURES]; /* figures of held-out tokens, at evaluations */
} cpl_layer_metrics;

/* Held-out loss of one source. */
typedef struct cpl_source_loss {
    const char *label; /* borrowed from the loader */
    double nll;        /* sum of the negative log probabilities, nats */
    int64_t targets;
} cpl_source_loss;

/* An auxiliary loss of the model. */
typedef struct cpl_aux_metrics {
    double value;  /* unweighted; mean over layers, for erc the mean or sum by erc.reduce */
    double weight; /* weight in this step; for erc the scheduled weight */
    bool computed; /* the loss was computed in this step */
} cpl_aux_metrics;

typedef struct cpl_metrics {
    int64_t step, tokens; /* tokens: input positions so far */
    double loss;          /* cross-entropy, mean over targets, nats */
    double loss_total;    /* cross-entropy plus the weighted auxiliary losses */
    cpl_aux_metrics aux[CPL_N_AUX_LOSSES];
    double erc_alpha;                /* scheduled value at this step */
    double grad_norm, grad_norm_max; /* before clipping; the largest norm since the last logged
                                        step, including this step */
    double lr;
    double tokens_per_s;       /* over all steps since the last logged step, including this step */
    double peak_share, step_s; /* share of the peak, and seconds, of this step */
    double memory_bytes;       /* peak memory of this process so far */
    int64_t skipped;           /* steps skipped so far */
    bool was_skipped;
    bool has_figures;  /* layer[].figures, scores_negative and the gradient ratios are filled */
    bool has_eval;     /* sources are filled */
    bool has_clean;    /* erc_clean is filled */
    bool has_tokens;   /* layer[].tokens is filled */
    json_t *made_with; /* made_with of the run (trainer.h), borrowed; NULL if omitted */
    json_t *tasks;     /* {TASK: {METRIC: value}} of evaluated tasks; owned; may be NULL */
    json_t *samples;   /* [{"prompt", "text"}] of continued prompts; owned; may be NULL */
    int64_t n_layers, n_experts, n_sources;
    cpl_layer_metrics *layer; /* [L] */
    double *counts;           /* [L,n] assignments to each expert in this step */
    cpl_source_loss *source;  /* [n_sources] */
} cpl_metrics;

/* Takes the arrays from the arena. */
void cpl_metrics_take(cpl_metrics *metrics, cpl_arena *arena, const cpl_model_settings *config,
                      int64_t n_sources);

/* Returns the mean held-out loss over all targets. */
double cpl_metrics_validation(const cpl_metrics *metrics);

/* Returns the line as an object, or NULL if memory is not available. Numbers that are not finite
 * become null. */
json_t *cpl_metrics_json(const cpl_metrics *metrics);

/* ---- metrics.jsonl of a resumed run (metrics_file.c) ----
 *
 * Lines of later steps than the checkpoint's are removed, since these steps are repeated. All other
 * lines stay, byte by byte, including damaged lines, since readers of the file count them. Limits:
 * a regular file, not a link, of at most CPL_METRICS_MOST_BYTES, with lines of at most
 * CPL_METRICS_LINE_BYTES. */
#define CPL_METRICS_MOST_BYTES (INT64_C(1) << 36)
enum { CPL_METRICS_LINE_BYTES = 1 << 28 };

/* Truncates the file at `path` to `step` and opens it for appending. Creates the file if it does
 * not exist. Sets `*lines` to the number of lines that stay. `expected` is the number recorded in
 * the checkpoint of that step, or -1 if no number is recorded. Warns once if damaged lines stay,
 * and once if lines are missing. Returns CPL_ERR_INPUT beyond the limits, CPL_ERR_MEMORY or
 * CPL_ERR_IO. The file is unchanged after a failure. */
CPL_NODISCARD cpl_status cpl_metrics_file_open(FILE **file, int64_t *lines, const char *path,
                                               int64_t step, int64_t expected, const cpl_log *log);

#endif /* CPL_TRAIN_METRICS_H */
