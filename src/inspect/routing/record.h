/* record.h - the router's choices in every layer for every token of a text.
 *
 * Room:    inspect/routing. A record is filled in one reading (reader.h) and counted afterwards
 *          (counts.h), so that checkpoints of a run can be compared token by token.
 * Memory:  L T K numbers of 4 bytes, and no array of size T n.
 * Names:   T tokens (predictions of the texts, by place), n experts, K of them a token, L
 *          layers. */
#ifndef CPL_INSPECT_ROUTING_RECORD_H
#define CPL_INSPECT_ROUTING_RECORD_H

#include "infer/reader.h"
#include "inspect/routing/response.h"

typedef struct cpl_routing_record {
    int64_t n_layers, n_tokens, n_experts, top_k;
    int32_t *choice; /* [L,T,K], best first */
    double *weight;  /* [L,n] sum of the routing weights of an expert's assignments */
    double *entropy; /* [L] sum over tokens of the entropy of the router's distribution, nats */
} cpl_routing_record;

/* Makes an empty record, whose memory is from the pool. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_record_init(cpl_routing_record *record, cpl_pool *pool,
                                                 const cpl_model_settings *config,
                                                 int64_t n_tokens);

/* Holds the output of a layer's router for the T tokens of a batch, in the host's memory. */
typedef struct cpl_routing_choices {
    float *probs;    /* [T,n] */
    int32_t *expert; /* [T,K], best first */
    float *weight;   /* [T,K] */
} cpl_routing_choices;

/* Appends an entry for each of the `count` tokens of one layer of one batch. A token at place -1
 * has no entry. A distribution is the router's scores over their sum. */
void cpl_routing_record_write(cpl_text *out, const cpl_routing_record *record, int64_t layer,
                              const cpl_routing_choices *choices, const int64_t *place,
                              int64_t count);

/* Adds the entry at `text`, which is aligned to 8 bytes, and returns its bytes. Returns 0 for an
 * entry of another kind. */
int64_t cpl_routing_record_add(cpl_routing_record *record, const char *text);

/* Returns the K choices of a token. */
const int32_t *cpl_routing_record_at(const cpl_routing_record *record, int64_t layer,
                                     int64_t token);

/* Sets router saturation (OLMoE), as means over tokens. `topk` is the share of a token's K experts
 * that both records chose, `top1` the share of equal first choices. Both records are of one text
 * and one shape. */
void cpl_routing_saturation(double *topk, double *top1, const cpl_routing_record *a,
                            const cpl_routing_record *b, int64_t layer);

/* Holds the id and source of every token. */
typedef struct cpl_routing_tokens {
    int64_t count, n_sources;
    int32_t *input;  /* (count) the id that is read */
    int32_t *source; /* (count) */
} cpl_routing_tokens;

CPL_NODISCARD cpl_status cpl_routing_tokens_init(cpl_routing_tokens *tokens, cpl_pool *pool,
                                                 const cpl_texts *texts);

/* ---- the reading ---- */

/* Reads the texts and sets the record. agreement [L] (initialised, may be NULL) is filled from
 * `sampled` tokens. */
CPL_NODISCARD cpl_status cpl_routing_measure(cpl_routing_record *record, cpl_pool *pool,
                                             cpl_routing_agreement *agreement, int64_t sampled,
                                             cpl_reader *reader, const cpl_texts *texts);

/* Sets M [n,n], the clean coupling matrix |R_i W_g^j| of a loaded model's layer that has router
 * rows, and centred [n,n], the matrix of the centred rows. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_clean(float *M, float *centred, cpl_reader *reader,
                                           int64_t layer);

#endif /* CPL_INSPECT_ROUTING_RECORD_H */
