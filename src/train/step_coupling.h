/* step_coupling.h - the coupling loss of one optimizer step, over all layers; a part of step.h.
 *
 * Room:   train. For step.c alone. */
#ifndef CPL_TRAIN_STEP_COUPLING_H
#define CPL_TRAIN_STEP_COUPLING_H

#include "train/step.h"

/* Takes from `arena` what the figures need in place of the activations, to be measured. */
void cpl_step_coupling_measure(cpl_arena *arena, const cpl_settings *settings,
                               const cpl_model_settings *config);

/* After all other gradients of the step: those of the coupling loss *add* to grads; fills erc,
 * erc_weight, erc_alpha and the layers' figures of `metrics`. As cpl_step_gradient. */
void cpl_step_coupling(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, bool with_figures, bool measure_erc,
                       cpl_metrics *metrics);

#endif /* CPL_TRAIN_STEP_COUPLING_H */
