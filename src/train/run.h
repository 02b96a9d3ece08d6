/* run.h - the folder of a run: its lock, its configuration, its metrics.
 *
 * Room:    train.
 * Layout:  RUN/config.yaml     the complete settings
 *          RUN/metrics.jsonl   one object per logged step
 *          RUN/start.json      figures before the first step (evaluation only)
 *          RUN/lock            locked by the process that writes the run; contains "no checkpoint
 *                              yet" until the first checkpoint is saved
 *          RUN/tokens/         token shards encoded from documents
 *          RUN/tokenizer.json  the initial model's tokenizer, if data.tokenizer is unset
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
    int64_t lines;   /* number of lines of metrics.jsonl */
    int lock;        /* file descriptor of RUN/lock */
    bool made;       /* cpl_run_close removes the files made since cpl_run_open */
    size_t existing; /* bytes of `folder` that existed before: see cpl_path_existing */
} cpl_run;

/* Makes the folder if it does not exist and locks it. If `fresh`, returns CPL_ERR_INPUT for a
 * folder that holds a run or any other file. Otherwise returns CPL_ERR_INPUT for metrics of a run
 * whose checkpoints were removed, or with compressed metrics only. Returns CPL_ERR_INPUT if another
 * process has locked the folder, and CPL_ERR_IO if the file system has no links. */
CPL_NODISCARD cpl_status cpl_run_open(cpl_run *run, const char *folder, int fresh);

/* Checks, without writing, whether a new run can begin in this folder, which need not exist.
 * Returns CPL_ERR_INPUT like cpl_run_open. */
CPL_NODISCARD cpl_status cpl_run_check_place(const char *folder);

/* Sets only the path, for a rank that does not write to the folder. Returns CPL_ERR_MEMORY if
 * memory is not available. */
CPL_NODISCARD cpl_status cpl_run_follow(cpl_run *run, const char *folder);

/* Records in the lock that a checkpoint was saved. If all checkpoints are removed later,
 * cpl_run_open refuses to begin the run again. */
void cpl_run_saved(const cpl_run *run);

/* Keeps the files of a fresh run. Without this call, cpl_run_close removes them. */
void cpl_run_keep(cpl_run *run);
void cpl_run_close(cpl_run *run);

/* Returns a path in the run's folder, from cpl_alloc. */
char *cpl_run_path(const cpl_run *run, const char *name);

/* Cuts metrics.jsonl back to the lines of steps up to `step`, of which `lines` are expected (-1:
 * not known), and opens it for appending. See metrics.h. */
CPL_NODISCARD cpl_status cpl_run_open_metrics(cpl_run *run, int64_t step, int64_t lines,
                                              const cpl_log *log);

/* Appends one line and flushes it to the system. Returns CPL_ERR_IO on a full disk. Takes ownership
 * of the object. */
CPL_NODISCARD cpl_status cpl_run_log(cpl_run *run, json_t *line);

/* Writes the lines appended so far to the disk (fsync). Does nothing before the file is open. */
CPL_NODISCARD cpl_status cpl_run_sync(const cpl_run *run);

/* Writes the object as one line to RUN/`name`, atomically. Takes ownership of the object. */
CPL_NODISCARD cpl_status cpl_run_write(const cpl_run *run, const char *name, json_t *object);

#endif /* CPL_TRAIN_RUN_H */
