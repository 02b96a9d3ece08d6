/* plan_run.h - the plan of a training run out of its settings.
 *
 * Room:  app. Gives the planner, which may not see train, the sizes of a step. */
#ifndef CPL_APP_PLAN_RUN_H
#define CPL_APP_PLAN_RUN_H

#include "plan/plan.h"
#include "train/config/settings.h"

/* Over how many devices, for the predicted price of the coupling loss. */
typedef struct cpl_plan_run_for {
    int64_t batch_tokens; /* 0: data.batch_tokens */
    int64_t dp, ep;
} cpl_plan_run_for;

/* Plans the cost of training with `settings`. An unset model.vocab_size comes from data.tokenizer.
 * Settings of the model's sizes that training would refuse are refused here with the same words. */
CPL_NODISCARD cpl_status cpl_plan_run(cpl_plan *plan, const cpl_settings *settings,
                                      const cpl_plan_run_for *what);

/* What compute.dtype means here. */
cpl_dtype cpl_plan_dtype(const cpl_compute_settings *compute);

#endif /* CPL_APP_PLAN_RUN_H */
