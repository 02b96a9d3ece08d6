/* trainer.h - the state of a run while it trains, for loop.c, trainer.c and resume.c only.
 *
 * Room:   train. */
#ifndef CPL_TRAIN_TRAINER_H
#define CPL_TRAIN_TRAINER_H

#include "store/checkpoint.h"
#include "store/hf.h"
#include "tensor/backend/backend.h"
#include "train/data.h"
#include "train/loop.h"
#include "train/optimizer.h"
#include "train/pace.h"
#include "train/ranks.h"
#include "train/run.h"
#include "train/step.h"

typedef struct cpl_trainer {
    cpl_settings *settings;  /* settings of the job */
    cpl_group alone, *world; /* world: the job's world, or `alone` */
    cpl_mesh mesh;
    cpl_model_settings config; /* settings->model, with the experts of this rank */
    cpl_checkpoint_ranks ranks;
    cpl_log silence;
    const cpl_log *log; /* log of the job, or `silence` */
    cpl_run run;
    cpl_train_data data;
    cpl_hf_tokens tokens;
    char *tokenizer_path; /* copied into checkpoints; may be NULL */
    cpl_backend backend;
    cpl_model model;
    cpl_optimizer optimizer;
    cpl_step step;
    cpl_arena arena; /* metrics and the batch */
    cpl_metrics metrics;
    cpl_batch batch; /* the whole batch of a step */
    cpl_pace pace;
    json_t *made_with;   /* cpl_resume_made_with */
    double longest_step; /* seconds of the longest step of this process, with its evaluation */
    double peak;         /* FLOP/s of all ranks together */
    int64_t done;        /* steps completed */
    int64_t saved;       /* step of the newest checkpoint; -1 without a checkpoint */
    int64_t lines;       /* lines of metrics that the checkpoint records; -1 if not recorded */
    int64_t skipped, skipped_in_row;
    int64_t unlogged;     /* steps of this process since the last logged step */
    double unlogged_s;    /* seconds of the unlogged steps */
    double grad_norm_max; /* largest finite norm of the unlogged steps, also before a resume */
} cpl_trainer;

/* Returns whether this rank writes the folder of the run and calls the callbacks. */
bool cpl_trainer_leads(const cpl_trainer *t);

/* Opens the data, completes the settings, makes the model and loads or draws its weights. */
CPL_NODISCARD cpl_status cpl_trainer_open(cpl_trainer *t, const cpl_train_job *job);
void cpl_trainer_close(cpl_trainer *t);

/* Makes an object, owned by the caller, with every setting that may not change when a run is
 * resumed: the dotted name and the value's text in config.yaml. Defined in resume.c, like the next
 * functions. */
CPL_NODISCARD cpl_status cpl_resume_settings(json_t **object, const cpl_settings *settings);

/* Compares an object of settings, from the file `where`, with the run's config.yaml. A missing
 * setting counts as its default. Differences of train.steps and of paths are warnings, other
 * differences CPL_ERR_INPUT. */
CPL_NODISCARD cpl_status cpl_resume_check(const json_t *object, const char *where,
                                          const cpl_settings *config, int64_t ranks,
                                          const cpl_log *log);

/* Makes an object, owned by the caller, with precision, kernels, threads of a rank, ranks, device,
 * and versions of its libraries, of oneDNN and of this program. Returns NULL if memory is not
 * available. */
json_t *cpl_resume_made_with(const cpl_backend *backend, int n_ranks);

/* Warns once of all differences between `now` and `was`, which comes from the file `where`. */
CPL_NODISCARD cpl_status cpl_resume_compare(const json_t *was, const char *where, const json_t *now,
                                            const cpl_log *log);

/* Writes RUN/step-NNNNNN for the steps made so far. Collective. */
CPL_NODISCARD cpl_status cpl_trainer_save(cpl_trainer *t);

#endif /* CPL_TRAIN_TRAINER_H */
