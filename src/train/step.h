/* step.h - the gradient of one optimizer step: micro-batches, then the coupling loss once.
 *
 * Room:   train. Used by the loop, and by `couplet grad`, which inspects the result.
 * Names:  a batch is [B,S] tokens, computed `micro` sequences at a time; L layers, n experts.
 *
 *             total = ce + sum over the losses of model/aux_losses.def of weight * loss
 *
 *         ce is the mean over all targets of the batch; balance is the mean over layers and over
 *         the spans of balance.scope (model/balance.h), z that over layers and micro-batches;
 *         losses of the weights alone are means over layers; erc is the mean or the sum over the
 *         layers that have it (erc.reduce, erc.layers). A model without router rows
 *         (model/settings.h) has no loss and no figure that needs them.
 * Ranks:  each has an equal part of the batch. Every loss and figure is that of the whole batch,
 *         the same on all ranks. The gradient is a sum over the ranks, of which each gets its parts
 *         (share.h). */
#ifndef CPL_TRAIN_STEP_H
#define CPL_TRAIN_STEP_H

#include "model/balance.h"
#include "model/coupling.h"
#include "model/model.h"
#include "train/config/settings.h"
#include "train/metrics.h"
#include "train/share.h"

/* The tokens of one step, of this rank; arrays of the caller. */
typedef struct cpl_step_batch {
    const int32_t *ids;       /* [B,S] */
    const int32_t *target;    /* [B,S]; -1: none */
    const int32_t *doc_start; /* [B,S], or NULL: no document mask */
    int64_t n_sequences;      /* B, a multiple of micro */
    int64_t n_targets;        /* entries of target that are not -1 */
} cpl_step_batch;

/* The tokens of one micro-batch: I32, [T], the last [micro,S]. */
typedef struct cpl_step_tokens {
    cpl_tensor ids, target, doc_start;
} cpl_step_tokens;

/* Lives as long as the step: activations, and the results of the coupling loss for callers that
 * inspect them. */
typedef struct cpl_step {
    cpl_tensor_arena arena;
    int64_t micro, seq_len;
    cpl_step_tokens tokens; /* of the micro-batch that is computed */
    cpl_pass pass;
    cpl_balance balance;
    cpl_tensor *M, *eps, *delta; /* [L] each: [n,n], [n], [n,d] of the last coupling loss */
    cpl_tensor rows, drows;      /* [n,d] of one layer: its router rows less their mean; gradient */
    cpl_coupling_outputs centred;    /* of one layer, for figures of its clean centred rows */
    cpl_tensor gate_norm;            /* [n] |W_g^j|_F of the layer whose figures were made last */
    cpl_tensor gate_spectral;        /* [n] |W_g^j|_2 of the same */
    cpl_tensor own;                  /* [n] |R_i W_g^i| of the same, R or its centred rows */
    cpl_tensor load;                 /* [n] assignments of a layer, for its biases */
    float *host_load;                /* the same in the host's memory */
    float ce_scale;                  /* of nll in the loss: 1 / targets of the batch of all ranks */
    cpl_tensor diagonal, violations; /* [n], [2,n] I32 of one coupling loss */
    cpl_tensor products;             /* [3] F64 of two gradients */
    cpl_tensor squares;              /* [n] F64 of one layer's gates */
    cpl_tensor figures;              /* [CPL_N_FIGURES] F64 of one layer */
    bool counts_signs;               /* forward passes count the logits below 0 */
    bool has_delta;                  /* delta is given by the caller, not drawn */
    cpl_tensor_mark pass_mark;       /* the beginning of the pass in the arena */
    double *sums;                    /* [1 + 4 L, or n] figures that are summed over the ranks */
    cpl_tensor results;      /* F64: what the host reads once, at the end of the step; sums over
                                     the micro-batches of nll [1], of numbers of each layer [L, ..],
                                     and of assignments [L,n]; of the balance loss [L]; squares of
                                     the gradients [1] */
    double *result;          /* the same in the host's memory */
    cpl_share *share;        /* set by cpl_step_init; not owned */
    cpl_mesh *mesh;          /* NULL: one process */
    cpl_exchange *exchange;  /* of the tokens, if the experts are divided over ranks; owned */
    cpl_group alone, *world; /* of the mesh, or `alone` */
} cpl_step;

size_t cpl_step_bytes(const cpl_settings *settings, const cpl_model_settings *config,
                      int64_t micro);

/* The backend's scratch must have been reserved for cpl_step_work. `share`: that of the optimizer,
 * which must outlive the step; NULL: one process. */
CPL_NODISCARD cpl_status cpl_step_init(cpl_step *step, cpl_backend *be,
                                       const cpl_settings *settings,
                                       const cpl_model_settings *config, int64_t micro,
                                       cpl_share *share);
void cpl_step_free(cpl_step *step);

/* The first failure of a step that is known: of the backend, of what it does between ranks. */
CPL_NODISCARD cpl_status cpl_step_status(const cpl_step *step);
cpl_work cpl_step_work(const cpl_settings *settings, const cpl_model_settings *config,
                       int64_t micro);

/* *Adds* the gradient of `total` to grads (of several ranks: to this rank's parts of them) and
 * fills the losses, loads and erc figures of `metrics` (whose step determines which noise is drawn
 * and the position in the schedule of erc), and with a share its grad_norm, the square root of the
 * sum of squares of all gradients, the same on every rank. Without figures it waits once for the
 * backend, at its end. `with_figures`: also metrics->layer[].figures and the
 * relation of the coupling gradient to the rest, for which the activations' memory is reused.
 * `measure_erc`: compute M and the loss even if its weight is 0. */
void cpl_step_gradient(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, const cpl_step_batch *batch, bool with_figures,
                       bool measure_erc, cpl_metrics *metrics);

/* After the optimizer's update: moves the biases of a router that is balanced by them
 * (model.router_bias) by the loads of the step, as `metrics` counted them. */
void cpl_step_move_biases(cpl_step *step, cpl_model *model, const cpl_settings *settings,
                          const cpl_metrics *metrics);

/* ---- step_coupling.c ---- */

/* Fills layer[l].figures, after cpl_coupling has made the layer's M and eps, and its delta where
 * erc has noise, and layer[l].centred and erc_centred, for which it is called again: with this
 * type of products, these experts, settings and alpha. Collective. */
void cpl_step_figures(cpl_step *step, cpl_model *model, cpl_dtype compute,
                      cpl_expert_weights experts, const cpl_erc_settings *erc, double alpha,
                      int64_t l, cpl_metrics *metrics);

/* ---- the rest only for step.c ---- */

/* The results of a layer: its auxiliary losses, then these. */
enum { CPL_STEP_ENTROPY = CPL_N_AUX_LOSSES, CPL_STEP_NEGATIVE, CPL_N_STEP_RESULTS };

/* The place of a result of layer l in step->results; the result, [1] F64. */
static inline int64_t cpl_step_result_at(int64_t l, int which)
{
    return 1 + l * CPL_N_STEP_RESULTS + which;
}

static inline cpl_tensor cpl_step_result(const cpl_step *step, int64_t l, int which)
{
    return cpl_tensor_range(step->results, cpl_step_result_at(l, which), 1);
}

/* After the results were read: the layers' coupling losses, their mean or sum. */
void cpl_step_read_coupling(const cpl_step *step, const cpl_erc_settings *erc,
                            cpl_metrics *metrics);

/* Takes from `arena` what the figures need in place of the activations, to be measured. */
void cpl_step_coupling_measure(cpl_tensor_arena *arena, const cpl_settings *settings,
                               const cpl_model_settings *config);

/* After all other gradients of the step, or before all (no figures then): those of the coupling
 * loss *add* to grads; fills erc, erc_weight, erc_alpha and the layers' figures of `metrics`. As
 * cpl_step_gradient. With figures the activations are written over. */
void cpl_step_coupling(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, bool with_figures, bool measure_erc,
                       cpl_metrics *metrics);

#endif /* CPL_TRAIN_STEP_H */
