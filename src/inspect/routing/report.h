/* report.h - the routing of a model over real text, layer by layer.
 *
 * Room:    inspect/routing. The text is read once with the model, and once with every other
 *          checkpoint of the run that still exists. The functions of show.h show the report.
 * Names:   T tokens (predictions, texts.h), n experts, K a token, L layers, S tokens sampled for
 *          the experts' answers. Figures are those of counts.h and response.h. */
#ifndef CPL_INSPECT_ROUTING_REPORT_H
#define CPL_INSPECT_ROUTING_REPORT_H

#include "infer/reader.h"
#include "inspect/routing/counts.h"
#include "inspect/routing/response.h"
#include "model/tokens/mean_token.h"

typedef struct cpl_routing_options {
    const char *const *inputs; /* (n_inputs) files, folders, patterns */
    int64_t n_inputs;
    cpl_texts_options texts; /* the tokenizer sets `eos` */
    cpl_reader_options reader;
    int64_t response_tokens; /* largest S; every T/S-th token of the text is sampled */
    double alphas[CPL_NULL_MODEL_MAX_ALPHAS];
    int n_alphas;
    uint64_t seed; /* seed of the order in which ids are dealt anew, and of permuted experts */
} cpl_routing_options;

enum { CPL_ROUTING_PAIRS = 8 };

typedef struct cpl_routing_layer {
    cpl_routing_load load;
    int64_t *assignments;  /* [n] */
    double *mean_weight;   /* [n] over an expert's assignments; NaN without assignments */
    double router_entropy; /* mean over tokens, nats; at most ln n */
    int64_t *together;     /* [n,n] */
    cpl_routing_pair pairs[CPL_ROUTING_PAIRS];
    int n_pairs;
    double domain_distance;                 /* cpl_routing_count_domains */
    int64_t *by_source;                     /* [sources,n] assignments */
    double rho_mean, rho_sd, top1, overlap; /* agreement of choice and answers; sd divides by S */
    cpl_routing_m_tok m_tok;
    cpl_routing_signs signs, centred_signs; /* signs of the scores; NaN without router rows */
    double mean_score, token_mean_norm;     /* over sampled tokens and experts; |mean of x| */
    double *token_mean;                     /* [d] mean of the sampled tokens */
    cpl_mean_token mean_token;              /* set with router rows, and so is curve */
    double *curve;                          /* [n] */
    float *M, *M_centred; /* [n,n] clean, of rows and of centred rows; NULL without router rows */
    float *M_tok;         /* [n,n] */
    int64_t *routed;      /* [n] sampled tokens routed to an expert */
    cpl_routing_vocabulary input;
} cpl_routing_layer;

/* Holds the figures of another checkpoint of the run than the last. */
typedef struct cpl_routing_step {
    int64_t step;
    double *topk, *top1; /* [L] */
} cpl_routing_step;

typedef struct cpl_routing_report {
    const char *path; /* as the user gave it */
    cpl_routing_options options;
    cpl_reader reader;
    cpl_texts texts;
    int64_t n_layers, n_experts, top_k, d_model;
    int64_t n_sampled;
    int64_t *source_tokens; /* [sources] */
    cpl_routing_layer *layers;
    cpl_routing_step *steps; /* by rising step */
    int64_t n_steps;
    int64_t n_lost; /* checkpoints that could not be read any more */
    cpl_pool pool;  /* memory of the arrays */
} cpl_routing_report;

/* Holds the cost of a report. */
typedef struct cpl_routing_cost {
    int64_t tokens, checkpoints; /* tokens of the text; checkpoints that read it */
    double flops;
} cpl_routing_cost;

/* Opens model and tokenizer and reads the text. The strings of `options` are needed until the run.
 * `report` must not be moved afterwards. On failure `report` is empty. This function and
 * cpl_routing_run are collective with a group of the reader (infer/reader.h), and all ranks get the
 * report. */
CPL_NODISCARD cpl_status cpl_routing_open(cpl_routing_report *report, cpl_routing_cost *cost,
                                          const char *model_dir, const cpl_routing_options *options,
                                          const cpl_log *log);

/* Fills the report. A message is written to `log` when each reading begins. A checkpoint of the run
 * that cannot be read is reported as a warning and left out: an older one may be removed during the
 * run. */
CPL_NODISCARD cpl_status cpl_routing_run(cpl_routing_report *report, const cpl_log *log);
void cpl_routing_close(cpl_routing_report *report); /* `report` may be all zero */

#endif /* CPL_INSPECT_ROUTING_REPORT_H */
