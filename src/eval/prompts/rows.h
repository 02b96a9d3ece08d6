/* rows.h - the rows of a published benchmark file, one after the other, as JSON objects.
 *
 * Room:   eval/prompts. Uses stream (compression) and jansson; depends on no benchmark.
 * Memory: that of one row. Files may be larger than memory, compressed or not.
 * Bad:    a row that cannot be used is reported with one sentence that names file and line, and
 *         reading continues after it: nothing is dropped silently. If the rows after the damage
 *         are no longer delimited, reading ends with an error of the file: a JSON file that is cut
 *         or breaks the grammar, a compressed stream that is cut or damaged.
 * Text:   strings are UTF-8 without NULs; a byte order mark at the beginning is passed over. */
#ifndef CPL_EVAL_PROMPTS_ROWS_H
#define CPL_EVAL_PROMPTS_ROWS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "settings/settings.h"

typedef enum cpl_rows_format {
    /* An object a line; blank lines are passed over. */
    CPL_ROWS_JSONL,
    /* The objects of an array: the file is that array, or an object that has it as `member`. If no
     * member is named, an object is itself the only row. */
    CPL_ROWS_JSON,
    /* RFC 4180: line ends, commas and doubled quotes inside quotes; a quote inside a field that
     * does not begin with one is text. All values are strings, named by the first line, or "0",
     * "1", ... if `headless`. Empty lines are passed over. */
    CPL_ROWS_CSV,
    CPL_ROWS_TSV, /* the same with tabs, and a quote is text everywhere */
    /* Each line, an empty one too, as {"line": text}. */
    CPL_ROWS_LINES,
} cpl_rows_format;

enum { CPL_ROWS_MAX_BYTES = 1 << 26, CPL_ROWS_MAX_COLUMNS = 4096 };
#define CPL_ROWS_MAX_FILE (UINT64_C(1) << 32) /* bytes of a file, decompressed; more is an error */

typedef struct cpl_rows_kind {
    cpl_rows_format format;
    const char *member; /* name of the array in a JSON file; not owned, outlives the reader */
    bool headless;      /* a CSV or TSV file without a line of names */
    size_t max_bytes;   /* most bytes of a row in the file; 0: CPL_ROWS_MAX_BYTES */
} cpl_rows_kind;

typedef struct cpl_row {
    json_t *values;  /* an object that the caller gives back with json_decref; NULL: none */
    const char *bad; /* why this row cannot be used, valid until the next call; NULL: it can */
    int64_t line;    /* on which the row begins, from 1 */
} cpl_row;

typedef struct cpl_rows cpl_rows;

CPL_NODISCARD cpl_status cpl_rows_open(cpl_rows **rows, const char *path,
                                       const cpl_rows_kind *kind);
void cpl_rows_close(cpl_rows *rows); /* NULL is allowed */

/* Sets the next row: its values, or why it is bad, or at the end neither. After a failure there are
 * no more rows. */
CPL_NODISCARD cpl_status cpl_rows_next(cpl_rows *rows, cpl_row *row);

/* Sets the files of a published name, sorted by bytes: FOLDER/task/name, or, if there is no such
 * file, FOLDER/name, each also with .gz or .zst appended (the plain one goes first). Only `*` in
 * the name is a pattern: anything but a '/' and a dot at the beginning. CPL_ERR_INPUT if there is
 * no file. The caller gives `*paths` to cpl_paths_free. */
CPL_NODISCARD cpl_status cpl_rows_find(cpl_strings *paths, const char *folder, const char *task,
                                       const char *name);

#endif /* CPL_EVAL_PROMPTS_ROWS_H */
