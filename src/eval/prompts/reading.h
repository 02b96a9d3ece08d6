/* reading.h - from the rows of a split to questions: shared by the files of questions.h.
 *
 * Room:   eval/prompts. questions_rows.c finds the files of a split and passes on its rows;
 *         prompt_builder.c makes a question, or a few-shot example, of one; fewshot.c makes the
 *         text before a question; questions.c joins them. */
#ifndef CPL_EVAL_PROMPTS_READING_H
#define CPL_EVAL_PROMPTS_READING_H

#include "eval/prompts/questions.h"
#include "eval/tasks/task_internal.h"
#include "settings/settings.h"

struct cpl_questions_store {
    cpl_pool pool;
    cpl_strings files;
    cpl_question *question; /* (room) */
    int64_t room;
    cpl_request_spec *forms; /* the prompt specs', with the max_gen_toks of the options */
    json_t *fewshot_split;   /* subject ("": all) -> rows that can be shown */
    json_t *before; /* subject -> the texts before a question, one for each number of shots */
};

typedef struct cpl_reading {
    cpl_questions *q;
    struct cpl_questions_store *store;
    const cpl_task *task;
    const cpl_resolved_profile *resolved;
    const cpl_questions_options *options;
    const int64_t *shots; /* (n_shots) */
    int64_t n_shots, most_shots;
    int64_t fewshot_source; /* source of the few-shot examples */
} cpl_reading;

/* ---- questions_rows.c ---- */

typedef struct cpl_seen_row {
    const char *subject; /* NULL: none, or not known of a bad row */
    int64_t index;       /* within its subject, from 0 */
    int64_t source;      /* of the split */
    json_t *values;      /* NULL: the row is a bad one */
    const char *bad;     /* and why, with file and line */
    const char *path;
    int64_t line;
    bool passed_over; /* set by the taker: it does not count towards `limit` */
} cpl_seen_row;

/* The files of a split that are there: those of the first alternative that is there. */
typedef struct cpl_split_files {
    const cpl_task *task;
    const cpl_split *split;
    const char *data;
    int64_t source; /* -1: there are none */
    cpl_strings paths, labels;
} cpl_split_files;

void cpl_split_files_free(cpl_split_files *files);

CPL_NODISCARD cpl_status cpl_split_find(cpl_split_files *files, const cpl_task *task,
                                        const cpl_split *split, const char *data);

/* Calls `take` with rows [offset, offset + limit) of each subject, in the order of the files, and
 * with all rows that are bad before their subject is found. A limit below 0: all. `schemas` are
 * those of the split's sources. */
CPL_NODISCARD cpl_status cpl_split_walk(const cpl_split_files *files, const cpl_row_schema *schemas,
                                        int64_t offset, int64_t limit,
                                        cpl_status (*take)(void *ctx, cpl_seen_row *row),
                                        void *ctx);

/* Sets the files of a name whose `*` is the subject (NULL: none). As cpl_rows_find. */
CPL_NODISCARD cpl_status cpl_split_find_of(cpl_strings *paths, const cpl_task *task,
                                           const char *data, const char *name, const char *subject);

/* CPL_ERR_INPUT that lists the missing files and where to put them. */
CPL_NODISCARD cpl_status cpl_split_missing(const cpl_task *task, const cpl_split *split,
                                           const cpl_questions_options *options);

/* Whether rows of a split of their own are few-shot examples. */
bool cpl_reading_shows(const cpl_reading *r);

/* The prompt spec of a subject, which may be NULL. */
const cpl_prompt_spec *cpl_reading_spec(const cpl_resolved_profile *resolved, const char *subject);

/* Handles a bad row: an error, or left out with a warning. The reason is `bad`, or, if the row has
 * values, the last failure. */
CPL_NODISCARD cpl_status cpl_reading_leave_out(cpl_reading *r, const cpl_seen_row *row);

/* Adds the names of files that are read. */
CPL_NODISCARD cpl_status cpl_reading_add_files(cpl_reading *r, const cpl_split_files *files);

/* ---- prompt_builder.c ---- */

/* What surrounds a row when it becomes a question or a few-shot example. */
typedef struct cpl_prompt_input {
    const cpl_task *task;
    const cpl_prompt_spec *spec;
    const cpl_row_schema *schema;
    const char *subject; /* NULL: none */
    const json_t *row;
    bool one_option; /* is enough */
} cpl_prompt_input;

typedef struct cpl_prompt_builder cpl_prompt_builder;

/* Sets all of a question but its id. `before` is put before its context, and before that the
 * description if `described`. Texts are the pool's. CPL_ERR_INPUT: the row is a bad one. */
CPL_NODISCARD cpl_status cpl_prompt_builder_question(cpl_question *question, cpl_pool *pool,
                                                     const cpl_prompt_input *input,
                                                     const char *before, bool described);

/* Appends a few-shot example. The same. */
CPL_NODISCARD cpl_status cpl_prompt_builder_fewshot(cpl_text *out, const cpl_prompt_input *input);

/* The `build` of request kinds: options with their contexts and the right ones; or a prompt with
 * the references of its answers. */
CPL_NODISCARD cpl_status cpl_prompt_builder_options(cpl_question *q, cpl_prompt_builder *m);
CPL_NODISCARD cpl_status cpl_prompt_builder_text(cpl_question *q, cpl_prompt_builder *m);

/* ---- fewshot.c ---- */

/* Reads all few-shot examples that the questions need. */
CPL_NODISCARD cpl_status cpl_reading_fewshot(cpl_reading *r);

/* Sets the text before a question of a subject: one for each number of few-shot examples.
 * Borrowed. */
CPL_NODISCARD cpl_status cpl_reading_before(const json_t **list, cpl_reading *r,
                                            const cpl_prompt_spec *spec, const char *subject);

#endif /* CPL_EVAL_PROMPTS_READING_H */
