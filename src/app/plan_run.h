/* plan_run.h - the plan of a training run out of its settings.
 *
 * Room:  app. Gives the planner, which may not see train, the sizes of a step. */
#ifndef CPL_APP_PLAN_RUN_H
#define CPL_APP_PLAN_RUN_H

#include "plan/plan.h"
#include "train/config/settings.h"

typedef struct cpl_plan_run_for {
    int64_t batch_tokens; /* 0: data.batch_tokens; else it need not be whole micro-batches */
    int64_t ranks;        /* the experts are divided by dist.expert_parallel */
    cpl_backend *backend; /* that will train (plan.h); NULL: the CPU */
    cpl_plan_machine machine;
} cpl_plan_run_for;

/* Plans the cost of training with `settings`. An unset model.vocab_size comes from data.tokenizer.
 * Settings of the model's sizes, and ranks, that training would refuse are refused here with the
 * same words. */
CPL_NODISCARD cpl_status cpl_plan_run(cpl_plan *plan, const cpl_settings *settings,
                                      const cpl_plan_run_for *what);

/* Sets largest_micro of the plan of a GPU: of the numbers of sequences that divide the batch, the largest
 * with which the run fits there. */
CPL_NODISCARD cpl_status cpl_plan_run_largest(cpl_plan *plan, const cpl_settings *settings,
                                              const cpl_plan_run_for *what);

/* Whether the plan fits this machine, on which the launcher runs several ranks:
 * cpl_mpi_local_ranks. CPL_ERR_MEMORY with what would fit, and the settings that take less. */
CPL_NODISCARD cpl_status cpl_plan_run_fits(cpl_plan *plan, const cpl_settings *settings,
                                           const cpl_plan_run_for *what);

/* The speed in FLOP/s of a large product on the backend, measured for a third of a second. */
CPL_NODISCARD cpl_status cpl_plan_speed(double *flops, cpl_backend *be);

#endif /* CPL_APP_PLAN_RUN_H */
