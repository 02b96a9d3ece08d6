/* plan_run.h - makes the plan of a training run from its settings.
 *
 * Room:  app. Passes the sizes of a step to the planner, since room plan must not include train. */
#ifndef CPL_APP_PLAN_RUN_H
#define CPL_APP_PLAN_RUN_H

#include "plan/plan.h"
#include "train/config/settings.h"

typedef struct cpl_plan_run_for {
    int64_t batch_tokens; /* 0: data.batch_tokens; else any number */
    int64_t ranks;        /* number of ranks; dist.expert_parallel divides the experts */
    cpl_backend *backend; /* backend of the training (plan.h); NULL: the CPU */
    cpl_plan_machine machine;
} cpl_plan_run_for;

/* Plans the cost of training with `settings`. An unset model.vocab_size comes from data.tokenizer.
 * Sizes of the model and numbers of ranks that training refuses are refused with the same
 * message. */
CPL_NODISCARD cpl_status cpl_plan_run(cpl_plan *plan, const cpl_settings *settings,
                                      const cpl_plan_run_for *what);

/* Sets largest_micro of a plan for a GPU: the largest number of sequences that divides the batch
 * and with which the run fits. */
CPL_NODISCARD cpl_status cpl_plan_run_largest(cpl_plan *plan, const cpl_settings *settings,
                                              const cpl_plan_run_for *what);

/* Checks that the plan fits this machine with its cpl_mpi_local_ranks ranks. CPL_ERR_MEMORY, naming
 * a micro-batch that fits and settings that need less memory. */
CPL_NODISCARD cpl_status cpl_plan_run_fits(cpl_plan *plan, const cpl_settings *settings,
                                           const cpl_plan_run_for *what);

/* Sets the speed in FLOP/s of a large product on the backend, measured for a third of a second. */
CPL_NODISCARD cpl_status cpl_plan_speed(double *flops, cpl_backend *be);

#endif /* CPL_APP_PLAN_RUN_H */
