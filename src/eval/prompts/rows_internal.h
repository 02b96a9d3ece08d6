/* rows_internal.h - shared by the readers of the formats: a cursor over the file's bytes, and the
 * two kinds of errors, of a row and of the file.
 *
 * Room:   eval/prompts, for rows*.c alone.
 * Method: the first failure is remembered in `status`, and from then on the file seems to end. So a
 *         reader checks `status` only if it must distinguish a failure from the end. */
#ifndef CPL_EVAL_PROMPTS_ROWS_INTERNAL_H
#define CPL_EVAL_PROMPTS_ROWS_INTERNAL_H

#include "base/text.h"
#include "eval/prompts/rows.h"
#include "io/stream.h"

enum { CPL_ROWS_CHUNK_BYTES = 1 << 16 }; /* that are read at once */

typedef struct cpl_rows_xml cpl_rows_xml;

struct cpl_rows {
    char *path;
    cpl_rows_kind kind;
    cpl_stream *stream;
    cpl_status status;
    cpl_text text;    /* of the row or the field that is being read */
    size_t row_bytes; /* of the row so far, kept or not */
    int64_t row_line; /* on which the row begins; 0: no row was begun */
    cpl_text message; /* why the row is bad; empty: it is not */

    char *chunk; /* [at, got) is read and not yet passed */
    size_t at, got;
    int64_t line, column; /* of the next byte, in characters from 1 */

    json_t *names;     /* of columns, an array; NULL until known */
    int place;         /* in a JSON file, as rows_json.c has it */
    bool after_item;   /* there: a comma or the end of the array is next */
    cpl_rows_xml *xml; /* NULL for other formats */
};

/* The next chunk; false at the end of the file and after a failure. */
bool cpl_rows_fill(cpl_rows *rows);

/* The next byte, not passed; -1 at the end of the file and after a failure. */
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

/* A row begins on this line. */
void cpl_rows_begin(cpl_rows *rows, int64_t line);

/* Adds bytes to the text unless the row is bad or longer than it may be; then it is bad. */
void cpl_rows_keep(cpl_rows *rows, const char *bytes, size_t length);

/* Keeps the byte that was peeked at and passes it. */
static inline void cpl_rows_take(cpl_rows *rows)
{
    cpl_rows_keep(rows, rows->chunk + rows->at, 1);
    cpl_rows_pass(rows);
}

/* Marks the row as bad, with the reason, unless it is already; `column` 0: none is named. */
void cpl_rows_bad(cpl_rows *rows, int64_t line, int64_t column, const char *format, ...)
    CPL_PRINTF(4, 5);

/* The same of the file, which ends here. */
void cpl_rows_fail(cpl_rows *rows, int64_t line, int64_t column, const char *format, ...)
    CPL_PRINTF(4, 5);

/* CPL_ERR_MEMORY as the file's failure. */
void cpl_rows_no_memory(cpl_rows *rows);

/* A new string; NULL if the row is bad because of these bytes, or there is no memory. `line` is the
 * line of the bytes. */
json_t *cpl_rows_string(cpl_rows *rows, int64_t line, const char *bytes, size_t length);

/* Adds a new value, which may be NULL, to a row, which may be NULL. */
void cpl_rows_set(cpl_rows *rows, json_t *row, const char *name, json_t *value);

/* The row that the text is by itself, as JSON; NULL if it is bad. */
json_t *cpl_rows_parse(cpl_rows *rows, int64_t line, int64_t column);

/* The readers: each begins the next row and returns its new object, NULL if it is bad; at the end
 * no row is begun. */
json_t *cpl_rows_next_json(cpl_rows *rows);
json_t *cpl_rows_next_columns(cpl_rows *rows);
json_t *cpl_rows_next_xml(cpl_rows *rows);

CPL_NODISCARD cpl_status cpl_rows_xml_open(cpl_rows *rows);
void cpl_rows_xml_close(cpl_rows_xml *xml); /* NULL is allowed */

#endif /* CPL_EVAL_PROMPTS_ROWS_INTERNAL_H */
