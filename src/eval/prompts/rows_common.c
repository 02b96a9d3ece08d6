/* rows_common.c - shared by the readers of rows, and the files of a published name;
 * see internal.h, rows.h */
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/prompts/internal.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

bool cpl_rows_fill(cpl_rows *r)
{
    r->at = r->got = 0;
    if (r->status != CPL_OK) return false;
    r->status = cpl_stream_read(r->stream, r->chunk, CPL_ROWS_CHUNK_BYTES, &r->got);
    return r->status == CPL_OK && r->got > 0;
}

/* Sets the message: file, line, column (left out if 0) and the reason. */
static void set_message(cpl_rows *r, int64_t line, int64_t column, const char *format, va_list args)
{
    char why[512];
    vsnprintf(why, sizeof why, format, args);
    cpl_text_clear(&r->message);
    cpl_text_printf(&r->message, "%s: line %lld", r->path, (long long)line);
    if (column) cpl_text_printf(&r->message, ", column %lld", (long long)column);
    cpl_text_printf(&r->message, ": %s", why);
}

void cpl_rows_bad(cpl_rows *r, int64_t line, int64_t column, const char *format, ...)
{
    va_list args;
    if (r->message.length) return;
    va_start(args, format);
    set_message(r, line, column, format, args);
    va_end(args);
}

void cpl_rows_fail(cpl_rows *r, int64_t line, int64_t column, const char *format, ...)
{
    va_list args;
    if (r->status != CPL_OK) return;
    va_start(args, format);
    set_message(r, line, column, format, args);
    va_end(args);
    r->status = cpl_text_status(&r->message);
    if (r->status == CPL_OK) r->status = CPL_FAIL(CPL_ERR_INPUT, "%s", r->message.bytes);
}

void cpl_rows_no_memory(cpl_rows *r)
{
    if (r->status == CPL_OK)
        r->status = CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for a row of this file", r->path);
}

void cpl_rows_begin(cpl_rows *r, int64_t line)
{
    cpl_text_clear(&r->text);
    r->row_bytes = 0;
    r->row_line  = line;
}

void cpl_rows_keep(cpl_rows *r, const char *bytes, size_t length)
{
    r->row_bytes += length;
    if (r->row_bytes > r->kind.max_bytes)
        cpl_rows_bad(r, r->row_line, 0, "this row is longer than the %zu bytes it may have",
                     r->kind.max_bytes);
    if (!r->message.length) cpl_text_append(&r->text, bytes, length);
}

json_t *cpl_rows_string(cpl_rows *r, int64_t line, const char *bytes, size_t length)
{
    json_t *string = NULL;
    if (length && memchr(bytes, '\0', length))
        cpl_rows_bad(r, line, 0, "a NUL character in a text");
    else if (!cpl_utf8_is(bytes, length))
        cpl_rows_bad(r, line, 0, "a text that is not UTF-8");
    else if (!(string = json_stringn_nocheck(length ? bytes : "", length)))
        cpl_rows_no_memory(r);
    return string;
}

void cpl_rows_set(cpl_rows *r, json_t *row, const char *name, json_t *value)
{
    if (!value) return;
    if (!row)
        json_decref(value);
    else if (json_object_set_new_nocheck(row, name, value) != 0)
        cpl_rows_no_memory(r);
}

json_t *cpl_rows_parse(cpl_rows *r, int64_t line, int64_t column)
{
    json_t *json = NULL;
    if (r->message.length || r->text.failed) return NULL;
    cpl_status status =
        cpl_json_parse_at(&json, r->text.bytes, r->text.length, r->path, line, column);
    if (status == CPL_ERR_INPUT) cpl_text_printf(&r->message, "%s", cpl_last_error());
    if (status == CPL_ERR_MEMORY) r->status = status;
    if (json_is_object(json)) return json;
    if (json) cpl_rows_bad(r, line, column, "an array where an object is expected");
    json_decref(json);
    return NULL;
}

/* ---- the files of a name ---- */

static const char *const endings[] = {"", ".gz", ".zst"};

enum { N_ENDINGS = sizeof endings / sizeof *endings };

/* Appends text for glob(3), with a backslash before each character of `special`. */
static void append_plain(cpl_text *pattern, const char *text, const char *special)
{
    for (; *text; text++) {
        if (strchr(special, *text)) cpl_text_char(pattern, '\\');
        cpl_text_char(pattern, *text);
    }
}

/* Returns whether an error of glob(3) is a failure. A missing folder has no files. A folder that
 * may not be read is a failure. */
static int is_failure(const char *path, int error)
{
    (void)path;
    return error != ENOENT && error != ENOTDIR;
}

static cpl_status add_hits(cpl_strings *paths, const char *pattern)
{
    cpl_status status = CPL_OK;
    glob_t hits       = {0};
    int found         = glob(pattern, GLOB_NOSORT, is_failure, &hits);
    if (found == GLOB_NOSPACE)
        status = CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to list these files", pattern);
    if (found == GLOB_ABORTED)
        status = CPL_FAIL(CPL_ERR_IO, "%s: a folder of these files cannot be read", pattern);
    for (size_t i = 0; status == CPL_OK && found == 0 && i < hits.gl_pathc; i++)
        if (!cpl_path_is_folder(hits.gl_pathv[i])) status = cpl_paths_add(paths, hits.gl_pathv[i]);
    globfree(&hits);
    return status;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Returns whether the list has a better copy of `path`: a plain file, or a .gz of a .zst file. */
static bool is_copy(const cpl_strings *sorted, const char *path, cpl_text *other)
{
    size_t length = strlen(path);
    for (int i = 1; i < N_ENDINGS; i++) {
        size_t n = strlen(endings[i]);
        if (length <= n || strcmp(path + length - n, endings[i]) != 0) continue;
        for (int k = 0; k < i; k++) {
            cpl_text_clear(other);
            cpl_text_append(other, path, length - n);
            cpl_text_append(other, endings[k], strlen(endings[k]));
            if (!other->failed && bsearch(&other->bytes, sorted->at, (size_t)sorted->count,
                                          sizeof *sorted->at, by_bytes))
                return true;
        }
    }
    return false;
}

/* Adds the files to `paths`, which is empty, in their order and without worse copies. */
static cpl_status leave_copies_out(cpl_strings *paths, const cpl_strings *sorted)
{
    cpl_text other    = {0};
    cpl_status status = CPL_OK;
    for (int64_t i = 0; status == CPL_OK && i < sorted->count; i++)
        if (!is_copy(sorted, sorted->at[i], &other)) status = cpl_paths_add(paths, sorted->at[i]);
    if (status == CPL_OK) status = cpl_text_status(&other);
    cpl_text_free(&other);
    return status;
}

/* Adds the files with this name in FOLDER/TASK, or in FOLDER if `task` is NULL. */
static cpl_status look_in(cpl_strings *paths, const char *folder, const char *task,
                          const char *name)
{
    cpl_strings all   = {0};
    cpl_text pattern  = {0};
    cpl_status status = CPL_OK;
    for (int i = 0; i < N_ENDINGS; i++) {
        cpl_text_clear(&pattern);
        append_plain(&pattern, folder, "*?[\\");
        if (task) cpl_text_char(&pattern, '/');
        if (task) append_plain(&pattern, task, "*?[\\");
        cpl_text_char(&pattern, '/');
        append_plain(&pattern, name, "?[\\");
        append_plain(&pattern, endings[i], "");
        CPL_TRY_DONE(cpl_text_status(&pattern));
        CPL_TRY_DONE(add_hits(&all, pattern.bytes));
    }
    cpl_paths_sort(&all);
    CPL_TRY_DONE(leave_copies_out(paths, &all));
done:
    cpl_text_free(&pattern);
    cpl_paths_free(&all);
    return status;
}

cpl_status cpl_rows_find(cpl_strings *paths, const char *folder, const char *task, const char *name)
{
    cpl_status status = CPL_OK;
    memset(paths, 0, sizeof *paths);
    CPL_TRY_DONE(look_in(paths, folder, task, name));
    if (!paths->count) CPL_TRY_DONE(look_in(paths, folder, NULL, name));
    if (!paths->count)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: holds neither %s/%s nor %s, also not with .gz or .zst after it",
                          folder, task, name, name);
done:
    if (status != CPL_OK) cpl_paths_free(paths);
    return status;
}
