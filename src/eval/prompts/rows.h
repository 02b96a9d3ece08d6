/* rows.h - the rows of a published benchmark file as JSON objects, one after the other.
 *
 * Room:   eval/prompts. Uses stream (compression) and jansson. Depends on no benchmark.
 * Memory: one row at a time. Files may be larger than memory, compressed or not.
 * Errors: a row that cannot be used is reported with one sentence that names file and line, and
 *         reading continues after it. If the rows after the damage are no longer delimited, reading
 *         ends with an error of the file: a JSON file that is cut or breaks the grammar, a
 *         compressed stream that is cut or damaged.
 * Text:   strings are UTF-8 without NULs. A byte order mark at the beginning is ignored. */
#ifndef CPL_EVAL_PROMPTS_ROWS_H
#define CPL_EVAL_PROMPTS_ROWS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "settings/settings.h"

typedef enum cpl_rows_format {
    /* Each line is an object. Blank lines are ignored. */
    CPL_ROWS_JSONL,
    /* The rows are the objects of an array. The file is that array, or an object that has it as
     * `member`. If no member is named, the object is the only row. */
    CPL_ROWS_JSON,
    /* RFC 4180: line ends, commas and doubled quotes inside quotes. A quote is text inside a field
     * that does not begin with a quote. All values are strings, named by the first line, or "0",
     * "1", ... if `headless`. Empty lines are ignored. */
    CPL_ROWS_CSV,
    CPL_ROWS_TSV, /* like CSV with tabs; a quote is text everywhere */
    /* Each line, also an empty one, is a row {"line": text}. */
    CPL_ROWS_LINES,
} cpl_rows_format;

enum { CPL_ROWS_MAX_BYTES = 1 << 26, CPL_ROWS_MAX_COLUMNS = 4096 };
#define CPL_ROWS_MAX_FILE (UINT64_C(1) << 32) /* bytes of a file, decompressed; more is an error */

typedef struct cpl_rows_kind {
    cpl_rows_format format;
    const char *member; /* name of the array in a JSON file; outlives the reader */
    bool headless;      /* true for a CSV or TSV file without a line of names */
    size_t max_bytes;   /* limit of a row, in bytes of the file; 0: CPL_ROWS_MAX_BYTES */
} cpl_rows_kind;

typedef struct cpl_row {
    json_t *values;  /* an object that the caller gives back with json_decref, or NULL */
    const char *bad; /* the reason why the row is bad, valid until the next call, or NULL */
    int64_t line;    /* the line on which the row begins, from 1 */
} cpl_row;

typedef struct cpl_rows cpl_rows;

CPL_NODISCARD cpl_status cpl_rows_open(cpl_rows **rows, const char *path,
                                       const cpl_rows_kind *kind);
void cpl_rows_close(cpl_rows *rows); /* NULL is allowed */

/* Sets the next row: its values, or the reason why it is bad, or neither at the end. A failure ends
 * the reading. */
CPL_NODISCARD cpl_status cpl_rows_next(cpl_rows *rows, cpl_row *row);

/* Sets the files of a published name, sorted by bytes: FOLDER/task/name, or, if no such file
 * exists, FOLDER/name, each also with .gz or .zst appended (a plain file comes first). Only `*` in
 * the name is a pattern: it matches any text without a '/' and without a dot at its beginning.
 * CPL_ERR_INPUT if no file exists. The caller gives `*paths` to cpl_paths_free. */
CPL_NODISCARD cpl_status cpl_rows_find(cpl_strings *paths, const char *folder, const char *task,
                                       const char *name);

#endif /* CPL_EVAL_PROMPTS_ROWS_H */
