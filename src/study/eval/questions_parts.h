/* questions_parts.h - rows of a split one after the other, and what is made of one.
 *
 * Room:   study/eval, for questions*.c. */
#ifndef CPL_STUDY_EVAL_QUESTIONS_PARTS_H
#define CPL_STUDY_EVAL_QUESTIONS_PARTS_H

#include "base/settings.h"
#include "study/eval/questions.h"
#include "study/eval/task_parts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- questions_rows.c ---- */

typedef struct cpl_seen_row {
    const char *subject; /* NULL: none, or not known of a bad row */
    int64_t index;       /* within its subject, from 0 */
    int64_t source;      /* of the split */
    json_t *values;      /* NULL: the row is a bad one */
    const char *bad;     /* and why, with file and line */
    const char *path;
    int64_t line;
} cpl_seen_row;

/* The files of a split that are there: those of the first alternative that is there. */
typedef struct cpl_split_files {
    int64_t source;    /* -1: there are none */
    cpl_strings paths; /* the caller gives them back with cpl_paths_free */
} cpl_split_files;

CPL_NODISCARD cpl_status cpl_split_find(cpl_split_files *files, const cpl_task *task,
                                        const cpl_split *split, const char *data);

/* CPL_ERR_INPUT that says what is missing and what to put where. */
CPL_NODISCARD cpl_status cpl_split_missing(const cpl_task *task, const cpl_split *split,
                                           const char *data);

/* Hands over rows [offset, offset + limit) of each subject, in the order of the files, and all rows
 * that are bad before their subject is known. `sheets` are those of the split's sources. */
CPL_NODISCARD cpl_status cpl_split_walk(const cpl_split_files *files, const cpl_task *task,
                                        const cpl_split *split, const cpl_sheet *sheets,
                                        const char *data, int64_t offset, int64_t limit,
                                        cpl_status (*take)(void *who, const cpl_seen_row *row),
                                        void *who);

/* ---- questions_make.c ---- */

/* What stands around a row when it becomes a question or an exemplar. */
typedef struct cpl_making {
    const cpl_task *task;
    const cpl_manner *manner;
    const cpl_sheet *sheet;
    const char *subject; /* NULL: none */
    const json_t *row;
    bool one_option; /* is enough */
} cpl_making;

/* Sets all of a question but its id; `before` stands before its context, and the description before
 * that where it is `described`. Texts are the pool's. CPL_ERR_INPUT: the row is a bad one. */
CPL_NODISCARD cpl_status cpl_making_question(cpl_question *question, cpl_pool *pool,
                                             const cpl_making *making, const char *before,
                                             bool described);

/* Appends an exemplar. The same. */
CPL_NODISCARD cpl_status cpl_making_exemplar(cpl_text *out, const cpl_making *making);

/* ---- questions_prompt.c ---- */

/* Appends what a profile's prompt file puts before a question of a subject. */
CPL_NODISCARD cpl_status cpl_prompt_read(cpl_text *out, const cpl_task *task,
                                         const cpl_manner *manner, const char *subject,
                                         const char *data, cpl_strings *files);

#ifdef __cplusplus
}
#endif
#endif /* CPL_STUDY_EVAL_QUESTIONS_PARTS_H */
