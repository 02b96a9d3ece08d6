/* run.h - the folder of a run: its lock, its configuration, its metrics.
 *
 * Room:    train.
 * Layout:  RUN/config.yaml     complete, as used
 *          RUN/metrics.jsonl   an object a logged step
 *          RUN/start.json      the same figures before the first step (evaluation only)
 *          RUN/lock            held by the process that writes the run; with the words "no
 *                              checkpoint yet" until there was one
 *          RUN/tokens/         token shards made of documents
 *          RUN/tokenizer.json  that of the initial model, if data.tokenizer is unset
 *          RUN/step-NNNNNN/, RUN/last   checkpoints (store/checkpoint.h) */
#ifndef CPL_TRAIN_RUN_H
#define CPL_TRAIN_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/log.h"
#include "train/config/settings.h"

typedef struct cpl_run {
    char *folder;
    FILE *metrics;
    int64_t lines;   /* of metrics.jsonl */
    int lock;        /* descriptor */
    bool made;       /* content made since cpl_run_open; cpl_run_close removes it */
    size_t existing; /* bytes of `folder` that existed before: see cpl_path_existing */
} cpl_run;

/* Makes the folder if it does not exist and locks it. `fresh`: CPL_ERR_INPUT if it already holds a
 * run or any other file; otherwise if it has metrics of a run whose checkpoints are gone, or only
 * compressed ones. CPL_ERR_INPUT with a sentence if another process writes it. CPL_ERR_IO if it
 * cannot hold a link. */
CPL_NODISCARD cpl_status cpl_run_open(cpl_run *run, const char *folder, int fresh);

/* Whether a new run could be begun in this folder, there or not: nothing is written. CPL_ERR_INPUT as
 * cpl_run_open. */
CPL_NODISCARD cpl_status cpl_run_check_place(const char *folder);

/* For a rank that writes nothing in the folder: only the path. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_run_follow(cpl_run *run, const char *folder);

/* A checkpoint was saved: without one the run is not begun again. */
void cpl_run_saved(const cpl_run *run);

/* From now on closing leaves a fresh run as it is; until now it takes away all that was made. */
void cpl_run_keep(cpl_run *run);
void cpl_run_close(cpl_run *run);

/* A path in the run's folder, from cpl_alloc. */
char *cpl_run_path(const cpl_run *run, const char *name);

/* Cuts metrics.jsonl back to the lines of steps up to `step`, of which `lines` are expected (-1:
 * not known), and opens it for appending; see metrics.h. */
CPL_NODISCARD cpl_status cpl_run_open_metrics(cpl_run *run, int64_t step, int64_t lines,
                                              const cpl_log *log);

/* Appends one line and hands it to the system. CPL_ERR_IO on a full disk. Takes the object over. */
CPL_NODISCARD cpl_status cpl_run_log(cpl_run *run, json_t *line);

/* Makes the lines appended so far survive a power failure; nothing before the file is open. */
CPL_NODISCARD cpl_status cpl_run_sync(const cpl_run *run);

/* Writes the object as one line to RUN/`name`, atomically. Takes the object over. */
CPL_NODISCARD cpl_status cpl_run_write(const cpl_run *run, const char *name, json_t *object);

#endif /* CPL_TRAIN_RUN_H */
