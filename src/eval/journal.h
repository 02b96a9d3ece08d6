/* journal.h - a file of the answered questions, from which an interrupted evaluation resumes.
 *
 * Room:   eval.
 * Source: FILE.partial, JSON lines: {"settings": ...}, then {"task": KEY, "question": SUM,
 *         "sample": ...} for every answered question, with its cpl_question_sum. The last of
 *         several lines of one question counts. Every line ends in "xxh3", the check sum of the
 *         bytes before it. A last line that the interruption cut is removed.
 * Use:    one evaluation locks the file while it is open. */
#ifndef CPL_EVAL_JOURNAL_H
#define CPL_EVAL_JOURNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

typedef struct cpl_eval_journal {
    FILE *file; /* locked */
    char *path;
    json_t *done;  /* {KEY: {id: line}}: the answers that the file held when it was opened */
    int64_t count; /* number of answers in `done` */
} cpl_eval_journal;

/* Resumes the journal at `path`, or begins it. `fresh`: its answers are discarded. Settings agree
 * if they are equal apart from "model" and the "path" of "tokenizer", which are only paths.
 * CPL_ERR_INPUT if the journal was begun with other settings (the sentence names one that differs),
 * holds a wrong line, or is open elsewhere, and for a file that is not a journal, which stays
 * unchanged even if `fresh`. CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_eval_journal_open(cpl_eval_journal *r, const char *path,
                                               const json_t *settings, bool fresh);
void cpl_eval_journal_close(cpl_eval_journal *r); /* all zero is allowed */

/* Returns the recorded answer to a question, or NULL. Sets `sum` to the recorded hash of the
 * question, or to "" if the line has no hash. Both are borrowed. */
json_t *cpl_eval_journal_find(const cpl_eval_journal *r, const char *key, const char *id,
                              const char **sum);

/* Adds an answered question, and writes it to the disk. CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_eval_journal_add(cpl_eval_journal *r, const char *key, const char *sum,
                                              json_t *sample);

/* Closes and removes the file, once the results are written. CPL_ERR_IO if it cannot be removed.
 * All zero is allowed. */
CPL_NODISCARD cpl_status cpl_eval_journal_remove(cpl_eval_journal *r);

#endif /* CPL_EVAL_JOURNAL_H */
