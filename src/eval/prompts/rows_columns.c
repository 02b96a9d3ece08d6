/* rows_columns.c - rows of CSV and TSV files; see rows.h
 *
 * A record is read field by field. Each field is decoded into the reader's text and made a string.
 * A bad record is still read to its end, so that the next record begins at the right place. */
#include <stdio.h>

#include "base/text.h"
#include "eval/prompts/internal.h"

typedef struct columns_record {
    json_t *fields; /* array of strings, at most one for each column */
    size_t count;   /* number of fields, with fields that are not kept */
} columns_record;

static void keep_byte(cpl_rows *r, int c)
{
    char byte = (char)c;
    cpl_rows_keep(r, &byte, 1);
}

/* Keeps the text up to the next separator or line end. After a field in quotes any text is an
 * error. */
static void rest_of_field(cpl_rows *r, int separator, bool was_quoted)
{
    for (int c; (c = cpl_rows_peek(r)) >= 0 && c != separator && c != '\n';) {
        int64_t line = r->line, column = r->column;
        cpl_rows_pass(r);
        if (c == '\r' && (cpl_rows_peek(r) == '\n' || cpl_rows_peek(r) < 0)) return;
        if (was_quoted)
            cpl_rows_bad(r, line, column, "text after the quote that closes the field");
        else if (c == '\r')
            cpl_rows_bad(r, line, column, "a carriage return inside the line");
        keep_byte(r, c);
    }
}

/* Keeps the text between quotes. An unclosed quote replaces all other faults of the row, since it
 * may have taken all text after it. */
static void quoted_field(cpl_rows *r)
{
    int64_t line = r->line, column = r->column;
    cpl_rows_pass(r);
    for (int c; (c = cpl_rows_peek(r)) >= 0;) {
        cpl_rows_pass(r);
        if (c == '"') {
            if (cpl_rows_peek(r) != '"') return;
            cpl_rows_pass(r);
        }
        keep_byte(r, c);
    }
    cpl_text_clear(&r->message);
    cpl_rows_bad(r, line, column, "the quote that opens here is not closed before the file ends");
}

static void add_field(cpl_rows *r, columns_record *record, int64_t line)
{
    size_t most = r->names ? json_array_size(r->names) : CPL_ROWS_MAX_COLUMNS;
    if (++record->count > most || r->message.length || r->text.failed) return;
    json_t *field = cpl_rows_string(r, line, r->text.bytes, r->text.length);
    if (field && json_array_append_new(record->fields, field) != 0) cpl_rows_no_memory(r);
}

static bool next_field(cpl_rows *r, columns_record *record, int separator)
{
    int64_t line = r->line;
    bool quoted  = separator == ',' && cpl_rows_peek(r) == '"';
    cpl_text_clear(&r->text);
    if (quoted) quoted_field(r);
    rest_of_field(r, separator, quoted);
    add_field(r, record, line);
    if (cpl_rows_peek(r) != separator) return false;
    cpl_rows_pass(r);
    r->row_bytes++;
    return true;
}

/* Reads the next record that is not an empty line. It has no fields at the end of the file. */
static columns_record next_record(cpl_rows *r)
{
    int separator         = r->kind.format == CPL_ROWS_CSV ? ',' : '\t';
    columns_record record = {.fields = NULL};
    while (cpl_rows_peek(r) == '\n' || cpl_rows_peek(r) == '\r') cpl_rows_pass(r);
    if (cpl_rows_peek(r) < 0) return record;
    cpl_rows_begin(r, r->line);
    if (!(record.fields = json_array())) cpl_rows_no_memory(r);
    while (next_field(r, &record, separator)) continue;
    if (cpl_rows_peek(r) == '\n') cpl_rows_pass(r);
    return record;
}

/* ---- names ---- */

/* Checks that the names differ, since members of the rows would be lost otherwise. */
static void check_names(cpl_rows *r, const json_t *names)
{
    for (size_t i = 1; i < json_array_size(names); i++)
        for (size_t k = 0; k < i; k++)
            if (json_equal(json_array_get(names, i), json_array_get(names, k)))
                cpl_rows_fail(r, r->row_line, 0, "two columns are called \"%.64s\"",
                              json_string_value(json_array_get(names, i)));
}

static void read_names(cpl_rows *r)
{
    columns_record record = next_record(r);
    if (!record.count)
        cpl_rows_fail(r, r->line, 0, "the file is empty; a line that names columns is missing");
    if (record.count > CPL_ROWS_MAX_COLUMNS)
        cpl_rows_fail(r, r->row_line, 0, "%zu columns; there may be %d", record.count,
                      (int)CPL_ROWS_MAX_COLUMNS);
    if (r->message.length && r->status == CPL_OK)
        r->status =
            CPL_FAIL(CPL_ERR_INPUT, "%s, in the line that names the columns", r->message.bytes);
    if (r->status == CPL_OK && !r->text.failed) check_names(r, record.fields);
    r->names = record.fields;
}

/* Sets the names "0", "1", ... for as many columns as the first record has. */
static void number_names(cpl_rows *r, const columns_record *record)
{
    if (record->count > CPL_ROWS_MAX_COLUMNS) {
        cpl_rows_bad(r, r->row_line, 0, "%zu columns; there may be %d", record->count,
                     (int)CPL_ROWS_MAX_COLUMNS);
        return;
    }
    if (!(r->names = json_array())) cpl_rows_no_memory(r);
    for (size_t i = 0; r->names && i < record->count; i++) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        if (json_array_append_new(r->names, json_string(name)) != 0) cpl_rows_no_memory(r);
    }
}

/* ---- rows ---- */

static json_t *row_of(cpl_rows *r, const columns_record *record)
{
    if (!r->names && !r->message.length) number_names(r, record);
    if (r->message.length || r->status != CPL_OK || r->text.failed) return NULL;
    size_t columns = json_array_size(r->names);
    if (record->count != columns) {
        cpl_rows_bad(r, r->row_line, 0, "%zu fields where there should be %zu", record->count,
                     columns);
        return NULL;
    }
    json_t *row = json_object();
    if (!row) cpl_rows_no_memory(r);
    for (size_t i = 0; row && i < columns; i++)
        cpl_rows_set(r, row, json_string_value(json_array_get(r->names, i)),
                     json_incref(json_array_get(record->fields, i)));
    return row;
}

json_t *cpl_rows_next_columns(cpl_rows *r)
{
    if (!r->names && !r->kind.headless) read_names(r);
    r->row_line = 0;
    if (r->status != CPL_OK || r->text.failed) return NULL;
    columns_record record = next_record(r);
    json_t *row           = record.count ? row_of(r, &record) : NULL;
    json_decref(record.fields);
    return row;
}
