/* traffic.h - what a rank sends in one optimizer step, predicted: the formulas of docs/parallel.md.
 *
 * Room:   train. Exact for everything but the tokens, whose number depends on the router. */
#ifndef CPL_TRAIN_TRAFFIC_H
#define CPL_TRAIN_TRAFFIC_H

#include "model/model.h"
#include "train/config/settings.h"
#include "train/share.h"

/* Bytes to other ranks, and messages of the collectives, of a step that is neither logged nor
 * evaluated nor saved. */
typedef struct cpl_step_traffic {
    int64_t gradients;  /* cpl_share_start_sums */
    int64_t parameters; /* cpl_share_start_gather */
    int64_t coupling;   /* of all layers that have the loss */
    int64_t balance;    /* loads of the whole batch: balance.scope global */
    int64_t figures;    /* losses, loads, norm, agreement */
} cpl_step_traffic;

/* Of this rank of the share's mesh. `compute`: the model's set of that name. */
void cpl_traffic_of_step(cpl_step_traffic *out, const cpl_settings *settings,
                         const cpl_model_settings *config, const cpl_share *share,
                         cpl_params *compute);

#endif /* CPL_TRAIN_TRAFFIC_H */
