/* traffic.h - predicts the messages of a rank in one optimizer step, by the formulas of
 * docs/scale.md.
 *
 * Room:   train. The prediction is exact. It excludes the exchange of tokens, whose number depends
 *         on the router (model/exchange.h). */
#ifndef CPL_TRAIN_TRAFFIC_H
#define CPL_TRAIN_TRAFFIC_H

#include "model/exchange.h"
#include "model/model.h"
#include "train/config/settings.h"
#include "train/share.h"

/* Bytes and messages that a rank sends in a step that is neither logged nor evaluated nor saved. */
typedef struct cpl_step_traffic {
    cpl_sent gradients;  /* cpl_share_start_sums */
    cpl_sent parameters; /* cpl_share_start_gather */
    cpl_sent coupling;   /* the loss of all layers of erc.layers */
    cpl_sent balance;    /* loads of the whole batch: balance.scope global */
    cpl_sent figures;    /* losses, loads, norm, agreement */
} cpl_step_traffic;

/* Sets `out` for this rank of the share's mesh, of which only ranks and sizes are read. `config` is
 * the model with the experts of this rank, `compute` is cpl_model.compute. */
void cpl_traffic_of_step(cpl_step_traffic *out, const cpl_settings *settings,
                         const cpl_model_settings *config, const cpl_share *share,
                         cpl_params *compute);

#endif /* CPL_TRAIN_TRAFFIC_H */
