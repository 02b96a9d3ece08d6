/* evaluate.h - held-out loss per source, and the clean, deterministic coupling of the weights.
 *
 * Room:   train. */
#ifndef CPL_TRAIN_EVALUATE_H
#define CPL_TRAIN_EVALUATE_H

#include "data/loader/loader.h"
#include "train/step.h"

/* Fills metrics->source with the loss of at most `max_sequences` of every label of `held_out`, in
 * fixed order, with the step's activations and the caller's `batch` (step->micro sequences, as the
 * loader's batches are). */
CPL_NODISCARD cpl_status cpl_evaluate_loss(cpl_step *step, cpl_model *model, cpl_loader *held_out,
                                           int64_t max_sequences, cpl_batch *batch,
                                           cpl_metrics *metrics);

/* Fills layer[].erc_clean: the loss of every layer at erc.alpha with erc.activation, from the F32
 * masters, without noise; the same number for anyone who computes it from the checkpoint.
 * `figures`: also layer[].figures, as they are without noise. Says so in has_clean and
 * has_figures; without a router there is nothing to compute. */
void cpl_evaluate_coupling(cpl_step *step, cpl_model *model, const cpl_settings *settings,
                           bool figures, cpl_metrics *metrics);

#endif /* CPL_TRAIN_EVALUATE_H */
