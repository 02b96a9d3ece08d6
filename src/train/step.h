/* step.h - the gradient of one optimizer step: the micro-batches, and the coupling loss once.
 *
 * Room:   train. Used by the loop, and by `couplet grad`, which inspects the result.
 * Names:  a batch is [B,S] tokens, computed `micro` sequences at a time; L layers, n experts.
 *
 *             total = ce + sum over the losses of model/aux_losses.def of weight * loss
 *
 *         ce is the mean over all targets of the batch. balance is the mean over layers and over
 *         the spans of balance.scope (model/balance.h). z is the mean over layers and
 *         micro-batches. Losses of weights only are means over layers. erc is the mean or the sum
 *         over the layers of erc.layers (erc.reduce). Losses and figures that need router rows are
 *         absent in a model without them (model/settings.h).
 * Ranks:  each rank has an equal part of the batch. Losses and figures cover the whole batch and
 *         are equal on all ranks. The gradient is a sum over the ranks, of which each rank gets its
 *         parts (share.h). */
#ifndef CPL_TRAIN_STEP_H
#define CPL_TRAIN_STEP_H

#include "model/balance.h"
#include "model/coupling.h"
#include "model/model.h"
#include "train/config/settings.h"
#include "train/metrics.h"
#include "train/share.h"

/* This rank's tokens of one step, in arrays of the caller. */
typedef struct cpl_step_batch {
    const int32_t *ids;       /* [B,S] */
    const int32_t *target;    /* [B,S]; -1 without a target */
    const int32_t *doc_start; /* [B,S], or NULL without a document mask */
    int64_t n_sequences;      /* B, a multiple of micro */
    int64_t n_targets;        /* entries of target that are not -1 */
} cpl_step_batch;

/* The tokens of one micro-batch: ids and target [T], doc_start [micro,S], all I32. */
typedef struct cpl_step_tokens {
    cpl_tensor ids, target, doc_start;
} cpl_step_tokens;

/* The memory of a step: activations, and results of the coupling loss for callers that inspect
 * them. */
typedef struct cpl_step {
    cpl_tensor_arena arena;
    int64_t micro, seq_len;
    cpl_step_tokens tokens; /* tokens of the current micro-batch */
    cpl_pass pass;
    cpl_balance balance;
    cpl_tensor *M, *eps, *delta;     /* [L] each: [n,n], [n], [n,d] of the last coupling loss */
    cpl_tensor rows, drows;          /* [n,d] of one layer: router rows minus their mean, and the
                                        gradient of these rows */
    cpl_coupling_latent latent;      /* scratch of one layer of latent experts: x, v, dx, dv */
    cpl_coupling_outputs centred;    /* results for the centred rows of one layer, without noise */
    cpl_tensor gate_norm;            /* [n] |W_g^j|_F of the layer with the latest figures */
    cpl_tensor gate_spectral;        /* [n] |W_g^j|_2 of this layer */
    cpl_tensor own;                  /* [n] |R_i W_g^i| of this layer, for R or the centred rows */
    cpl_tensor load;                 /* [n] assignments of a layer, for its biases */
    float *host_load;                /* copy of load in host memory */
    float ce_scale;                  /* factor of nll: 1 / targets of the batch of all ranks */
    cpl_tensor diagonal, violations; /* [n], [2,n] I32 of one coupling loss */
    cpl_tensor products;             /* [3] F64 of two gradients */
    cpl_tensor squares;              /* [n] F64 of one layer's gates */
    cpl_tensor figures;              /* [CPL_N_FIGURES] F64 of one layer */
    bool counts_signs;               /* forward passes count the logits below 0 */
    bool has_delta;                  /* delta is given by the caller, not drawn */
    cpl_tensor_mark pass_mark;       /* the beginning of the pass in the arena */
    double *sums;                    /* [1 + 4 L, or n] figures that are summed over the ranks */
    /* F64, read once at the end of the step. First the sums over the micro-batches: nll [1],
     * figures of each layer [L, ..], assignments [L,n], dots of the balance loss [L]. Then the sum
     * of squares of the gradients [1]. */
    cpl_tensor results;
    double *result; /* copy of results in host memory */
    /* With erc.proxy tokens (docs/method.md 3.15), otherwise none: */
    cpl_tensor token_moments; /* [L,2,d] F64, the end of results: sums over the tokens of a step */
    cpl_tensor token_means;   /* [L,d+1] the moving means of x, then of |x|^2 */
    float *host_means;        /* copy of token_means in host memory */
    int64_t n_means;          /* steps that the means cover; the means are not used before 1 */
    /* With router rows and held-out text (step_samples.c), otherwise NULL: */
    cpl_token_samples *samples; /* [L] sampled held-out tokens */
    cpl_token_scratch answers;
    cpl_tensor sample_rows;         /* [answers.room] I32: rows of the batch that are sampled */
    int32_t *host_rows, *choices;   /* copy of sample_rows; [tokens of a batch, K] of a layer */
    int64_t sampled_from;           /* number of held-out tokens */
    int64_t batch_place, batch_end; /* places of the first token of the batch and after its last */
    cpl_share *share;               /* set by cpl_step_init; not owned */
    cpl_mesh *mesh;                 /* NULL for one process */
    cpl_exchange *exchange;  /* exchange of tokens if experts are divided over ranks, otherwise
                                NULL; owned */
    cpl_group alone, *world; /* world: all ranks of the mesh, or `alone` */
} cpl_step;

/* Return the memory of a step, and the part of it that is in host memory with a GPU too. */
size_t cpl_step_bytes(const cpl_settings *settings, const cpl_model_settings *config,
                      int64_t micro);
size_t cpl_step_host_bytes(const cpl_settings *settings, const cpl_model_settings *config,
                           int64_t micro);

/* Takes the memory of a step. The backend's scratch must be reserved for cpl_step_work. `share`
 * belongs to the optimizer, which must outlive the step. It is NULL for one process. */
CPL_NODISCARD cpl_status cpl_step_init(cpl_step *step, cpl_backend *be,
                                       const cpl_settings *settings,
                                       const cpl_model_settings *config, int64_t micro,
                                       cpl_share *share);
void cpl_step_free(cpl_step *step);

/* Returns the first known failure of a step: of the backend, the exchange or the group. */
CPL_NODISCARD cpl_status cpl_step_status(const cpl_step *step);
cpl_work cpl_step_work(const cpl_settings *settings, const cpl_model_settings *config,
                       int64_t micro);

/* *Adds* the gradient of `total` to grads (with several ranks, to this rank's parts). Fills the
 * losses, loads and erc figures of `metrics`. metrics->step determines the noise and the schedule
 * of erc. With a share also sets grad_norm, the norm of all gradients, equal on all ranks. Without
 * figures it waits once for the backend, at its end. `with_figures` also fills
 * metrics->layer[].figures and compares the coupling gradient with the other gradients, in the
 * memory of the activations. `measure_erc` computes M and the loss even if its weight is 0. */
void cpl_step_gradient(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, const cpl_step_batch *batch, bool with_figures,
                       bool measure_erc, cpl_metrics *metrics);

/* Updates the biases of the routers (model.router_bias) from the loads of the step in `metrics`.
 * Call it after the optimizer's update. */
void cpl_step_move_biases(cpl_step *step, cpl_model *model, const cpl_settings *settings,
                          const cpl_metrics *metrics);

/* ---- step_tokens.c: the moving means of erc.proxy tokens ---- */

/* Takes the memory of token_means. */
void cpl_step_tokens_take(cpl_step *step, const cpl_model_settings *config);

/* Updates the means by the tokens of the last step, of all ranks. Call it after the optimizer's
 * update. Does nothing unless erc.proxy is tokens. Collective. */
void cpl_step_move_means(cpl_step *step, const cpl_settings *settings);

/* Takes over token_means, which a checkpoint of `folder` has set and which cover n_means steps.
 * Returns CPL_ERR_INPUT if a number is not finite or a mean of |x|^2 is below 0. */
CPL_NODISCARD cpl_status cpl_step_use_means(cpl_step *step, int64_t n_means, const char *folder);

/* Returns whether erc.proxy is tokens and no step has been seen: there is no coupling loss yet. */
bool cpl_step_waits_for_tokens(const cpl_step *step, const cpl_erc_settings *erc);

/* Returns the settings of the loss, with erc.proxy row for figures while the loss waits. */
cpl_erc_settings cpl_step_erc(const cpl_step *step, const cpl_erc_settings *erc);

/* Returns m and sigma of layer l, or nothing before the first step. */
cpl_coupling_tokens cpl_step_tokens_of(const cpl_step *step, int64_t l);

/* ---- step_samples.c: held-out tokens, evenly spread, and the figures of mean_token.h ---- */

/* Takes the memory of at most 1,024 tokens of each layer, if the run has held-out text and router
 * rows. */
void cpl_step_samples_take(cpl_step *step, const cpl_settings *settings,
                           const cpl_model_settings *config);

/* Begins an evaluation over `all` held-out tokens. */
void cpl_step_samples_begin(cpl_step *step, int64_t n_layers, int64_t all);

/* Keeps, in the next forward pass, the sampled ones of the first `count` tokens of the batch. The
 * first token has the place `place` of `all`. */
void cpl_step_samples_watch(cpl_step *step, int64_t place, int64_t count);

/* Sets layer[].tokens from the kept tokens of all ranks and the F32 masters, which must be whole.
 * Does nothing without samples. Collective. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_step_samples_measure(cpl_step *step, cpl_model *model,
                                                  cpl_metrics *metrics);

/* ---- step_coupling.c ---- */

/* Fills layer[l].figures from the layer's M, eps and delta, which cpl_coupling has set. Also fills
 * layer[l].centred and erc_centred, for which it calls cpl_coupling with the given type of
 * products, settings and alpha, and the experts and W_l of `w`. Collective. */
void cpl_step_figures(cpl_step *step, cpl_model *model, cpl_dtype compute,
                      const cpl_layer_params *w, const cpl_erc_settings *erc, double alpha,
                      int64_t l, cpl_metrics *metrics);

/* Returns the projection of the layer `w` with the step's scratch, as an argument of cpl_coupling
 * without its gradient. w is none without latent experts. */
cpl_coupling_latent cpl_step_latent(const cpl_step *step, const cpl_layer_params *w);

/* ---- for step.c only ---- */

/* Indices of a layer's results: its auxiliary losses, then the following results. */
enum { CPL_STEP_ENTROPY = CPL_N_AUX_LOSSES, CPL_STEP_NEGATIVE, CPL_N_STEP_RESULTS };

/* Returns the index of a result of layer l in step->results. The result itself is [1] F64. */
static inline int64_t cpl_step_result_at(int64_t l, int which)
{
    return 1 + l * CPL_N_STEP_RESULTS + which;
}

static inline cpl_tensor cpl_step_result(const cpl_step *step, int64_t l, int which)
{
    return cpl_tensor_range(step->results, cpl_step_result_at(l, which), 1);
}

/* Sets the coupling losses of the layers, and their mean or sum, after the results are read. */
void cpl_step_read_coupling(const cpl_step *step, const cpl_erc_settings *erc,
                            cpl_metrics *metrics);

/* Measures, in `arena`, the memory of the figures that replaces the activations. */
void cpl_step_coupling_measure(cpl_tensor_arena *arena, const cpl_settings *settings,
                               const cpl_model_settings *config);

/* *Adds* the gradient of the coupling loss to grads, after all other gradients of the step, or,
 * without figures, before them. Fills erc, erc_weight, erc_alpha and the layers' figures of
 * `metrics`. The arguments are as in cpl_step_gradient. Figures overwrite the activations. */
void cpl_step_coupling(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, bool with_figures, bool measure_erc,
                       cpl_metrics *metrics);

#endif /* CPL_TRAIN_STEP_H */
