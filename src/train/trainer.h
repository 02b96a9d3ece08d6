/* trainer.h - everything a run holds while it trains; shared only by loop.c, trainer.c and
 * resume.c.
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
    cpl_settings *settings;  /* the job's */
    cpl_group alone, *world; /* the job's, or `alone` */
    cpl_mesh mesh;
    cpl_model_settings config; /* settings->model, with the experts of this rank */
    cpl_checkpoint_ranks ranks;
    cpl_log silence;
    const cpl_log *log; /* the job's, or `silence` */
    cpl_run run;
    cpl_train_data data;
    cpl_hf_tokens tokens;
    char *tokenizer_path; /* copied into checkpoints; NULL: none */
    cpl_backend backend;
    cpl_model model;
    cpl_optimizer optimizer;
    cpl_step step;
    cpl_arena arena; /* metrics and the batch */
    cpl_metrics metrics;
    cpl_batch batch; /* the whole batch of a step */
    cpl_pace pace;
    json_t *made_with;   /* cpl_resume_made_with */
    double longest_step; /* seconds, of this process so far, with its evaluation */
    double peak;         /* FLOP/s of all ranks */
    int64_t done;        /* steps made */
    int64_t saved;       /* the step of the newest checkpoint; -1: none yet */
    int64_t lines;       /* of metrics, as the checkpoint records; -1: not recorded */
    int64_t skipped, skipped_in_row;
    int64_t unlogged;     /* steps since the last logged one, of this process */
    double unlogged_s;    /* seconds of theirs */
    double grad_norm_max; /* the largest finite one of them, of the whole run */
} cpl_trainer;

/* Whether this rank writes the folder of the run and calls back. */
bool cpl_trainer_leads(const cpl_trainer *t);

/* Opens the data, completes the settings, makes the model and loads what it begins with. */
CPL_NODISCARD cpl_status cpl_trainer_open(cpl_trainer *t, const cpl_train_job *job);
void cpl_trainer_close(cpl_trainer *t);

/* Sets an object of the caller's with every setting that may not change when a run is resumed:
 * dotted name to text, as config.yaml has it. In resume.c, as the next one. */
CPL_NODISCARD cpl_status cpl_resume_settings(json_t **object, const cpl_settings *settings);

/* Compares such an object, of the file `where`, with the run's config.yaml. A setting that it lacks
 * counts as its default. A warning for train.steps and for paths, CPL_ERR_INPUT for others. */
CPL_NODISCARD cpl_status cpl_resume_check(const json_t *object, const char *where,
                                          const cpl_settings *config, int64_t ranks,
                                          const cpl_log *log);

/* An object of the caller's with what a run computes with: precision, kernels, threads of a rank,
 * ranks, device, versions of its libraries, of oneDNN and of this program; NULL without memory. */
json_t *cpl_resume_made_with(const cpl_backend *backend, int n_ranks);

/* One warning with all that `now` has otherwise than `was`, of the file `where`. */
CPL_NODISCARD cpl_status cpl_resume_compare(const json_t *was, const char *where, const json_t *now,
                                            const cpl_log *log);

/* Writes RUN/step-NNNNNN for the steps made so far. Collective. */
CPL_NODISCARD cpl_status cpl_trainer_save(cpl_trainer *t);

#endif /* CPL_TRAIN_TRAINER_H */
