/* journal.h - what has been answered so far, on the disk: an interrupted evaluation goes on from it.
 *
 * Room:   eval.
 * File:   FILE.partial, JSON lines: {"settings": ...}, then {"task": KEY, "question": SUM, "sample": ...}
 *         for every answered question, with its cpl_question_sum; of two the last counts. Every line
 *         ends in "xxh3", the check sum of what stands before. A last line that was cut by the
 *         interruption is taken off.
 * Lock:   the file is one evaluation's alone while it is open. */
#ifndef CPL_EVAL_JOURNAL_H
#define CPL_EVAL_JOURNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

typedef struct cpl_eval_journal {
    FILE *file; /* locked */
    char *path;
    json_t *done;  /* {KEY: {id: line}} of what was there */
    int64_t count; /* of it */
} cpl_eval_journal;

/* Goes on with `path`, or begins it. `fresh`: what was answered there counts for nothing. Settings
 * agree if they are equal but for "model" and the "path" of "tokenizer", which are only places.
 * CPL_ERR_INPUT where it was begun with other settings, naming one that differs, holds a wrong line,
 * or is open elsewhere, and where it is no such file, which is then left as it is, fresh or not;
 * CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_eval_journal_open(cpl_eval_journal *r, const char *path,
                                               const json_t *settings, bool fresh);
void cpl_eval_journal_close(cpl_eval_journal *r); /* all zero: nothing to do */

/* What was answered to a question; NULL: nothing. Sets `sum` to what that was the sum of, "" where the
 * line tells none. Both borrowed. */
json_t *cpl_eval_journal_find(const cpl_eval_journal *r, const char *key, const char *id,
                              const char **sum);

/* Adds an answered question; it is on the disk when this returns. CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_eval_journal_add(cpl_eval_journal *r, const char *key, const char *sum,
                                              json_t *sample);

/* Closes and removes the file: the results are written. CPL_ERR_IO where it cannot be removed. All
 * zero: nothing to do. */
CPL_NODISCARD cpl_status cpl_eval_journal_remove(cpl_eval_journal *r);

#endif /* CPL_EVAL_JOURNAL_H */
