/* loop.h - a training run from its settings to its last checkpoint.
 *
 * Room:   train. Prints nothing itself: it reports to `callbacks` and in the files of the run
 *         (run.h, metrics.h, store/checkpoint.h).
 * Resume: everything a step depends on is a function of the settings, the step's number and the
 *         content of a checkpoint. So a run that was killed and resumed gives bit for bit the
 *         results of an uninterrupted run, on the same machine with the same threads.
 * Ranks:  all read the data and a checkpoint; rank 0 alone writes the folder of the run, but for
 *         the parts of a checkpoint, of which each writes its own. What one cannot do, all give up,
 *         with its sentence. */
#ifndef CPL_TRAIN_LOOP_H
#define CPL_TRAIN_LOOP_H

#include "base/log.h"
#include "model/model.h"
#include "parallel/group.h"
#include "store/hf.h"
#include "train/config/settings.h"
#include "train/metrics.h"
#include "train/run.h"

/* Facts of a run at its first step. */
typedef struct cpl_train_facts {
    const cpl_settings *settings; /* complete: nothing left to derive */
    const char *run;
    int64_t first_step; /* the first to be made */
    int64_t parameters, active_parameters;
    int64_t train_tokens; /* of an epoch */
    int64_t steps_per_epoch;
    double flops_per_step, peak; /* FLOP/s of a large product here, in the compute dtype */
    const char *dtype;           /* "f32" or "bf16" */
    int n_threads;               /* of all ranks */
    const char *gpu;             /* that computes; NULL: processors do */
    int n_ranks;
} cpl_train_facts;

/* Every function may be NULL. */
typedef struct cpl_train_callbacks {
    void *ctx;
    /* The settings are complete and nothing large has been taken of the backend; not CPL_OK ends the
     * run. */
    cpl_status (*approve)(void *ctx, const cpl_settings *settings, cpl_backend *be);
    void (*began)(void *ctx, const cpl_train_facts *facts);
    void (*stepped)(void *ctx, const cpl_metrics *metrics); /* after every step */
    void (*saved)(void *ctx, int64_t step);
    /* Called every eval.tasks_every steps if there are eval.tasks or eval.prompts. Sets the reported
     * results of the tasks, an object of objects of figures, and the continued prompts, a list of
     * {"prompt", "text"}, or leaves them NULL. Does not change the model. Over ranks all call it;
     * `exchange`: those that hold the other experts, NULL if the model is whole. */
    cpl_status (*evaluate)(void *ctx, cpl_model *model, cpl_exchange *exchange, json_t **tasks,
                           json_t **samples);
} cpl_train_callbacks;

typedef struct cpl_train_job {
    cpl_settings *settings; /* completed by the run: vocabulary, heads, derived seeds */
    const char *run;        /* its folder */
    int64_t positions;      /* that the model must be able to read; fewer than data.seq_len: that */
    const char *from;       /* NULL, or an OLMoE directory whose weights the run begins with */
    const bool *given;      /* [settings of section model] set by the user; NULL: none */
    bool resume;            /* resume the run in `run` */
    const cpl_settings *written; /* of a resumed run: its config.yaml, unchanged */
    cpl_group *world;   /* NULL, or the ranks that train together: every one has the same job */
    const cpl_log *log; /* of rank 0; the others say nothing */
    const cpl_train_callbacks *callbacks; /* of rank 0, but for `approve` and `evaluate` */
} cpl_train_job;

typedef struct cpl_train_outcome {
    int64_t step; /* the last one made */
    bool stopped; /* before its last step, since a stop was requested (base/stop.h) */
} cpl_train_outcome;

CPL_NODISCARD cpl_status cpl_train(const cpl_train_job *job, cpl_train_outcome *outcome);

/* Whether a run with `old` in its config.yaml may be resumed with `fresh` over so many ranks:
 * threads, cadences, dist.* and (with a warning) train.steps may differ; anything else is
 * CPL_ERR_INPUT naming both values. A value that an automatic one of the run became is no change:
 * `fresh` then gets the run's own. cpl_train checks that the config.yaml is still the run's own. */
CPL_NODISCARD cpl_status cpl_train_may_resume(const cpl_settings *old, cpl_settings *fresh,
                                              int64_t ranks, const cpl_log *log);

/* ---- settings that follow from others, from data, model and machine (resolve.c) ---- */

/* Sets the type of the model's activations, and whether its norms are made again. */
void cpl_train_set_activations(cpl_model_settings *model, const cpl_settings *settings);

/* `status`; if it is CPL_ERR_MEMORY, its sentence goes on with the settings with which this run would
 * take less memory. */
CPL_NODISCARD cpl_status cpl_train_advise(const cpl_settings *settings, cpl_status status);

/* Sets what the machine makes of compute.dtype, compute.activations and balance.scope auto; a run
 * keeps these values, and compute.threads 0 as it is. `be`: that will train; NULL: the CPU. `resumed`: of
 * a run, whose scope auto was micro and whose activations auto were f32. CPL_ERR_USAGE for activations in
 * bf16 with products in f32. */
CPL_NODISCARD cpl_status cpl_train_resolve_machine(cpl_settings *settings, const cpl_backend *be,
                                                   int64_t ranks, bool resumed);

/* Sets what other settings alone make of automatic values, over so many ranks. A configuration keeps
 * the automatic ones, so that they follow when it is used again; this is for comparing two. */
void cpl_train_derive(cpl_settings *settings, int64_t ranks);

/* Completes the settings as far as that needs no data: those of section model that are not `given`
 * are those of the initial model (NULL: none), and so is the tokenizer if data.tokenizer is unset.
 * CPL_ERR_INPUT if a given one differs from that model's (with both values), and if batch,
 * sequence, micro-batch or schedule do not fit each other. */
CPL_NODISCARD cpl_status cpl_train_resolve(cpl_settings *settings, const cpl_hf *from,
                                           const bool *given);

/* Says what the losses and the model of a run on `be` are, and warns where that is unusual or slow. */
void cpl_train_announce(const cpl_settings *settings, const cpl_backend *be, const cpl_log *log);

/* CPL_ERR_INPUT naming both if train.router_lr does not fit model.router or erc.gradient. */
CPL_NODISCARD cpl_status cpl_train_check_router(const cpl_settings *settings);

/* CPL_ERR_INPUT if so many ranks are no mesh for these settings, or cannot have equal parts of the
 * batch in whole micro-batches. */
CPL_NODISCARD cpl_status cpl_train_check_mesh(const cpl_settings *settings, int64_t ranks);
CPL_NODISCARD cpl_status cpl_train_check_batch(const cpl_settings *settings, int64_t ranks);

/* Fits model.vocab_size to `ids`, the number of ids of the data (0: unknown), rounding up if it is
 * unset, and resolves section model. CPL_ERR_INPUT if it is too small for them or for the id that
 * ends documents (-1: none). */
CPL_NODISCARD cpl_status cpl_train_resolve_vocabulary(cpl_settings *settings, int64_t ids,
                                                      int64_t eos);

/* If data.tokenizer is the one of the initial model, copies it (`writes`) to RUN/tokenizer.json and
 * sets data.tokenizer to that, since checkpoints may be removed. */
CPL_NODISCARD cpl_status cpl_train_keep_tokenizer(cpl_settings *settings, const cpl_hf *from,
                                                  const cpl_run *run, bool writes);

#endif /* CPL_TRAIN_LOOP_H */
