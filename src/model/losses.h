/* losses.h - the settings of all losses beside the cross-entropy, settled against the model.
 *
 * Room:   model. What one setting leaves open another decides here, and what contradicts another is
 *         refused with both names, before anything is allocated. */
#ifndef CPL_MODEL_LOSSES_H
#define CPL_MODEL_LOSSES_H

#include <stdbool.h>

#include "model/settings.h"

/* Fills the weights that are unset: erc 1, or 0 for Autonomy-of-Experts, which has no router;
 * z 0.001 with softmax scores, else 0. CPL_ERR_INPUT naming both settings where a loss has a weight
 * that this model cannot have, and where erc.layers names a layer that is not there. `model` is
 * settled. */
CPL_NODISCARD cpl_status cpl_losses_settle(cpl_erc_settings *erc, cpl_z_settings *z,
                                           const cpl_orth_settings *orth,
                                           const cpl_model_settings *model);

/* Whether layer `layer` has the coupling loss (erc.layers); settings that are settled. */
bool cpl_erc_layer_enabled(const cpl_erc_settings *erc, int64_t layer);

/* Layers of the first n_layers that have it. */
int64_t cpl_losses_coupled_layers(const cpl_erc_settings *erc, int64_t n_layers);

#endif /* CPL_MODEL_LOSSES_H */
