/* loop.h - a training run from its settings to its last checkpoint.
 *
 * Room:   train. Reports to `callbacks` and in the files of the run (run.h, metrics.h,
 *         store/checkpoint.h). Prints nothing.
 * Resume: a step depends only on the settings, the step's number and the content of a checkpoint.
 *         On the same machine with the same threads, a run that is killed and resumed gives the
 *         same bits as an uninterrupted run.
 * Ranks:  all ranks read the data and a checkpoint. Each rank writes its part of a checkpoint. Rank
 *         0 writes all other files. If one rank fails, all ranks return its failure. */
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
    const cpl_settings *settings; /* complete, with all derived values */
    const char *run;
    int64_t first_step; /* the first step that this process runs */
    int64_t parameters, active_parameters;
    int64_t train_tokens; /* tokens of an epoch */
    int64_t steps_per_epoch;
    double flops_per_step, peak; /* peak: FLOP/s of a large product on this machine, in `dtype` */
    const char *dtype;           /* "f32" or "bf16" */
    int n_threads;               /* threads of all ranks together */
    const char *gpu;             /* name of the GPU; NULL on the CPU */
    int n_ranks;
} cpl_train_facts;

/* The callbacks of a run. Every function may be NULL. */
typedef struct cpl_train_callbacks {
    void *ctx;
    /* Called when the settings are complete, before the backend's memory is taken. The run ends if
     * it does not return CPL_OK. */
    cpl_status (*approve)(void *ctx, const cpl_settings *settings, cpl_backend *be);
    void (*began)(void *ctx, const cpl_train_facts *facts);
    void (*stepped)(void *ctx, const cpl_metrics *metrics); /* after every step */
    void (*saved)(void *ctx, int64_t step);
    /* Called every eval.tasks_every steps if there are eval.tasks or eval.prompts. Sets the
     * reported results of the tasks, an object of objects of figures, and the continued prompts, a
     * list of {"prompt", "text"}, or leaves them NULL. Must not change the model. All ranks call
     * it. `exchange` reaches the ranks that hold the other experts. It is NULL if this process has
     * all experts. */
    cpl_status (*evaluate)(void *ctx, cpl_model *model, cpl_exchange *exchange, json_t **tasks,
                           json_t **samples);
} cpl_train_callbacks;

typedef struct cpl_train_job {
    cpl_settings *settings;      /* completed by the run: vocabulary, heads, derived seeds */
    const char *run;             /* the folder of the run */
    int64_t positions;           /* positions that the model supports, at least data.seq_len */
    const char *from;            /* directory of an OLMoE with the initial weights; NULL for drawn
                                    weights */
    const bool *given;           /* [settings of section model] set by the user; may be NULL */
    bool resume;                 /* resume the run in `run` */
    const cpl_settings *written; /* config.yaml of a resumed run, unchanged */
    cpl_group *world;            /* the ranks that train together, all with the same job; NULL for
                                    one process */
    const cpl_log *log;          /* the log of rank 0; other ranks log nothing */
    const cpl_train_callbacks *callbacks; /* called on rank 0; `approve`, `evaluate` on all ranks */
} cpl_train_job;

typedef struct cpl_train_outcome {
    int64_t step; /* the last step completed */
    bool stopped; /* the run ended before its last step because of a request (base/stop.h) */
} cpl_train_outcome;

CPL_NODISCARD cpl_status cpl_train(const cpl_train_job *job, cpl_train_outcome *outcome);

/* Checks whether a run with the settings `old` in its config.yaml may be resumed with `fresh` over
 * `ranks` ranks. Threads, intervals, dist.* and (with a warning) train.steps may differ. Any other
 * difference is CPL_ERR_INPUT, naming both values. A value equal to the result of an automatic
 * value is not a difference. In this case `fresh` gets the automatic value. cpl_train checks that
 * config.yaml itself is unchanged. */
CPL_NODISCARD cpl_status cpl_train_may_resume(const cpl_settings *old, cpl_settings *fresh,
                                              int64_t ranks, const cpl_log *log);

/* ---- settings that follow from others, from data, model and machine (resolve.c) ---- */

/* Sets the type of the model's activations, and whether norms are recomputed. */
void cpl_train_set_activations(cpl_model_settings *model, const cpl_settings *settings);

/* Returns `status`. If it is CPL_ERR_MEMORY, appends to the message the settings with which this
 * run would need less memory. */
CPL_NODISCARD cpl_status cpl_train_advise(const cpl_settings *settings, cpl_status status);

/* Replaces auto in compute.dtype, compute.activations and balance.scope by the values for this
 * machine, which a run records. compute.threads 0 stays. `be` is the backend of the training, or
 * NULL for the CPU. In a `resumed` run auto stands for scope micro and activations f32. Returns
 * CPL_ERR_USAGE for activations in bf16 with products in f32. */
CPL_NODISCARD cpl_status cpl_train_resolve_machine(cpl_settings *settings, const cpl_backend *be,
                                                   int64_t ranks, bool resumed);

/* Replaces automatic values that other settings determine, for `ranks` ranks. Used to compare two
 * configurations. A configuration file keeps the automatic values. */
void cpl_train_derive(cpl_settings *settings, int64_t ranks);

/* Completes the settings as far as possible without data. Settings of section model that are not
 * `given` come from the initial model `from` (may be NULL), and so does the tokenizer if
 * data.tokenizer is unset. Returns CPL_ERR_INPUT, with both values, if a given setting differs from
 * the initial model, or if batch, sequence, micro-batch or schedule do not fit each other. */
CPL_NODISCARD cpl_status cpl_train_resolve(cpl_settings *settings, const cpl_hf *from,
                                           const bool *given);

/* Logs the losses and the model of a run on `be`, with a warning if they are unusual or slow. */
void cpl_train_announce(const cpl_settings *settings, const cpl_backend *be, const cpl_log *log);

/* Returns CPL_ERR_INPUT, naming both settings, if train.router_lr does not fit model.router or
 * erc.gradient. */
CPL_NODISCARD cpl_status cpl_train_check_router(const cpl_settings *settings);

/* Returns CPL_ERR_INPUT if `ranks` ranks do not form a mesh with these settings, or cannot divide
 * the batch into equal parts of whole micro-batches. */
CPL_NODISCARD cpl_status cpl_train_check_mesh(const cpl_settings *settings, int64_t ranks);
CPL_NODISCARD cpl_status cpl_train_check_batch(const cpl_settings *settings, int64_t ranks);

/* Fits model.vocab_size to `ids`, the number of ids of the data (0: unknown), rounding up if it is
 * unset, and resolves section model. Returns CPL_ERR_INPUT if vocab_size is too small for the ids
 * or for `eos`, the id that ends documents (-1: none). */
CPL_NODISCARD cpl_status cpl_train_resolve_vocabulary(cpl_settings *settings, int64_t ids,
                                                      int64_t eos);

/* If data.tokenizer is the initial model's, copies it to RUN/tokenizer.json (if `writes`) and sets
 * data.tokenizer to the copy, since the initial model may be removed later. */
CPL_NODISCARD cpl_status cpl_train_keep_tokenizer(cpl_settings *settings, const cpl_hf *from,
                                                  const cpl_run *run, bool writes);

#endif /* CPL_TRAIN_LOOP_H */
