/* internal.h - declarations shared by the files of rows.h, and by the files of questions.h.
 *
 * Room:   eval/prompts. The first failure of a file is kept in its `status`, and from then on the
 *         file seems to end. A reader checks `status` only to distinguish a failure from the end.
 *         questions_rows.c finds the files of a split and passes on its rows. prompt_builder.c
 *         makes a question or a few-shot example of a row. fewshot.c makes the text before a
 *         question. questions.c joins them. */
#ifndef CPL_EVAL_PROMPTS_INTERNAL_H
#define CPL_EVAL_PROMPTS_INTERNAL_H

#include "base/text.h"
#include "eval/prompts/questions.h"
#include "eval/prompts/rows.h"
#include "eval/tasks/task_parts.h"
#include "io/stream.h"
#include "settings/settings.h"

/* ---- rows*.c: a cursor over the bytes of a file, and errors of a row and of the file ---- */

enum { CPL_ROWS_CHUNK_BYTES = 1 << 16 }; /* bytes of one read */

struct cpl_rows {
    char *path;
    cpl_rows_kind kind;
    cpl_stream *stream;
    cpl_status status;
    cpl_text text;    /* the row or the field that is being read */
    size_t row_bytes; /* bytes of the row so far, with parts that are not kept */
    int64_t row_line; /* line on which the row begins; 0: no row has begun */
    cpl_text message; /* the reason why the row is bad; empty: the row is good */

    char *chunk; /* bytes [at, got) are read and not yet passed */
    size_t at, got;
    int64_t line, column; /* place of the next byte, counted from 1; columns are characters */

    json_t *names;   /* array of the names of columns; NULL until known */
    int place;       /* place in a JSON file, an enum of rows_json.c */
    bool after_item; /* true if a comma or the end of a JSON array is next */
};

/* Reads the next chunk. Returns false at the end of the file and after a failure. */
bool cpl_rows_fill(cpl_rows *rows);

/* Returns the next byte without passing it, or -1 at the end of the file and after a failure. */
static inline int cpl_rows_peek(cpl_rows *rows)
{
    if (rows->at == rows->got && !cpl_rows_fill(rows)) return -1;
    return (unsigned char)rows->chunk[rows->at];
}

/* Passes the byte that was peeked at. */
static inline void cpl_rows_pass(cpl_rows *rows)
{
    unsigned char byte = (unsigned char)rows->chunk[rows->at++];
    if ((byte & 0xC0) != 0x80) rows->column++;
    if (byte != '\n') return;
    rows->line++;
    rows->column = 1;
}

/* Begins a row on this line. */
void cpl_rows_begin(cpl_rows *rows, int64_t line);

/* Adds bytes to the text unless the row is bad. A row that is too long becomes bad. */
void cpl_rows_keep(cpl_rows *rows, const char *bytes, size_t length);

/* Keeps the byte that was peeked at and passes it. */
static inline void cpl_rows_take(cpl_rows *rows)
{
    cpl_rows_keep(rows, rows->chunk + rows->at, 1);
    cpl_rows_pass(rows);
}

/* Marks the row as bad, with the reason, unless it is bad already. `column` 0 is not named. */
void cpl_rows_bad(cpl_rows *rows, int64_t line, int64_t column, const char *format, ...)
    CPL_PRINTF(4, 5);

/* Marks the file as failed, with the reason. No further row is read. */
void cpl_rows_fail(cpl_rows *rows, int64_t line, int64_t column, const char *format, ...)
    CPL_PRINTF(4, 5);

/* Marks the file as failed with CPL_ERR_MEMORY. */
void cpl_rows_no_memory(cpl_rows *rows);

/* Returns a new string, or NULL if these bytes make the row bad or memory runs out. `line` is the
 * line of the bytes. */
json_t *cpl_rows_string(cpl_rows *rows, int64_t line, const char *bytes, size_t length);

/* Adds a new value, which may be NULL, to a row, which may be NULL. */
void cpl_rows_set(cpl_rows *rows, json_t *row, const char *name, json_t *value);

/* Returns the row that the text holds as JSON, or NULL if the row is bad. */
json_t *cpl_rows_parse(cpl_rows *rows, int64_t line, int64_t column);

/* Begin the next row and return its new object, or NULL if the row is bad. At the end of the file
 * no row begins. */
json_t *cpl_rows_next_json(cpl_rows *rows);
json_t *cpl_rows_next_columns(cpl_rows *rows);

/* ---- questions.c ---- */

struct cpl_questions_store {
    cpl_pool pool;
    cpl_strings files;
    cpl_question *question; /* (room) */
    int64_t room;
    cpl_request_spec *forms; /* forms of the prompt specs, with the options' max_gen_toks */
    json_t *fewshot_split;   /* subject ("": all) -> usable rows */
    json_t *before;          /* subject -> texts before a question, one for each number of shots */
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
    const char *subject; /* NULL: no subject, or a bad row whose subject is unknown */
    int64_t index;       /* index within its subject, from 0 */
    int64_t source;      /* index of the row's source in the split */
    json_t *values;      /* NULL: the row is bad */
    const char *bad;     /* the reason, with file and line */
    const char *path;
    int64_t line;
    bool passed_over; /* set by `take` if the row does not count towards `limit` */
} cpl_seen_row;

/* The files of the first source of a split that exists. */
typedef struct cpl_split_files {
    const cpl_task *task;
    const cpl_split *split;
    const char *data;
    int64_t source; /* index of the source; -1: no source exists */
    cpl_strings paths, labels;
} cpl_split_files;

void cpl_split_files_free(cpl_split_files *files);

/* Finds the files of a split below the folder `data`. */
CPL_NODISCARD cpl_status cpl_split_find(cpl_split_files *files, const cpl_task *task,
                                        const cpl_split *split, const char *data);

/* Calls `take` with rows [offset, offset + limit) of each subject, in the order of the files, and
 * with every bad row whose subject is unknown. A limit below 0 stands for all rows. `schemas` has
 * an element for each source of the split. */
CPL_NODISCARD cpl_status cpl_split_walk(const cpl_split_files *files, const cpl_row_schema *schemas,
                                        int64_t offset, int64_t limit,
                                        cpl_status (*take)(void *ctx, cpl_seen_row *row),
                                        void *ctx);

/* Sets the files of a name in which `*` stands for the subject, which may be NULL, as
 * cpl_rows_find. */
CPL_NODISCARD cpl_status cpl_split_find_of(cpl_strings *paths, const cpl_task *task,
                                           const char *data, const char *name, const char *subject);

/* Fails with CPL_ERR_INPUT, and lists the missing files and the folder for them. */
CPL_NODISCARD cpl_status cpl_split_missing(const cpl_task *task, const cpl_split *split,
                                           const cpl_questions_options *options);

/* Returns whether few-shot examples are rows of a split. */
bool cpl_reading_shows(const cpl_reading *r);

/* Returns the prompt spec of a subject, which may be NULL. */
const cpl_prompt_spec *cpl_reading_spec(const cpl_resolved_profile *resolved, const char *subject);

/* Handles a bad row: fails, or leaves the row out with a warning. The reason is `bad`, or, if the
 * row has values, the last failure. */
CPL_NODISCARD cpl_status cpl_reading_leave_out(cpl_reading *r, const cpl_seen_row *row);

/* Adds the names of the files to the list of files that were read. */
CPL_NODISCARD cpl_status cpl_reading_add_files(cpl_reading *r, const cpl_split_files *files);

/* ---- prompt_builder.c ---- */

/* The surroundings of a row that becomes a question or a few-shot example. */
typedef struct cpl_prompt_input {
    const cpl_task *task;
    const cpl_prompt_spec *spec;
    const cpl_row_schema *schema;
    const char *subject; /* NULL: no subject */
    const json_t *row;
    bool one_option; /* true if the row may have one option */
} cpl_prompt_input;

/* Sets all members of a question except its id. `before` precedes the context, and the description
 * precedes `before` if `described`. The pool owns the texts. CPL_ERR_INPUT: the row is bad. */
CPL_NODISCARD cpl_status cpl_prompt_builder_question(cpl_question *question, cpl_pool *pool,
                                                     const cpl_prompt_input *input,
                                                     const char *before, bool described);

/* Appends a few-shot example. CPL_ERR_INPUT: the row is bad. */
CPL_NODISCARD cpl_status cpl_prompt_builder_fewshot(cpl_text *out, const cpl_prompt_input *input);

/* ---- fewshot.c ---- */

/* Reads all few-shot examples that the questions need. */
CPL_NODISCARD cpl_status cpl_reading_fewshot(cpl_reading *r);

/* Sets `*list`, borrowed, to the texts before a question of a subject, one for each number of
 * few-shot examples. */
CPL_NODISCARD cpl_status cpl_reading_before(const json_t **list, cpl_reading *r,
                                            const cpl_prompt_spec *spec, const char *subject);

#endif /* CPL_EVAL_PROMPTS_INTERNAL_H */
