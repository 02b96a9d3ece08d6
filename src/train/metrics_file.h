/* metrics_file.h - metrics.jsonl of a run that goes on: cut by step, without losing a line.
 *
 * Room:   train.
 * Rule:   lines of later steps than the checkpoint's go: those steps are made again. All others stay,
 *         byte by byte, damaged ones too: who reads the file counts them.
 * Limits: a regular file, not a link, of at most CPL_METRICS_MOST_BYTES, with lines of at most
 *         CPL_METRICS_LINE_BYTES. */
#ifndef CPL_TRAIN_METRICS_FILE_H
#define CPL_TRAIN_METRICS_FILE_H

#include <stdint.h>
#include <stdio.h>

#include "base/log.h"

#define CPL_METRICS_MOST_BYTES (INT64_C(1) << 36)
enum { CPL_METRICS_LINE_BYTES = 1 << 28 };

/* Opens the file at `path` for appending, made if it is not there, after it was cut back to `step`;
 * sets `*lines` to those that stayed. `expected` is how many the checkpoint of that step knows of,
 * -1 where it does not say. One warning where damaged lines stay, one where lines are missing.
 * CPL_ERR_INPUT beyond the limits, CPL_ERR_MEMORY, CPL_ERR_IO; the file is then as it was. */
CPL_NODISCARD cpl_status cpl_metrics_file_open(FILE **file, int64_t *lines, const char *path,
                                               int64_t step, int64_t expected, const cpl_log *log);

#endif /* CPL_TRAIN_METRICS_FILE_H */
