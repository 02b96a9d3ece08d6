/* record.c - see record.h */
#include "study/eval/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/file.h"
#include "io/rows.h"

/* ---- what is there ---- */

/* "model.path is a, not b" of the first setting that differs. */
static cpl_status refuse(const cpl_record *r, const json_t *there, const json_t *now)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)now, name, value)
    {
        const json_t *old = json_object_get(there, name);
        if (old && json_equal(old, value)) continue;
        char *a = old ? json_dumps(old, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        char *b = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        cpl_status status =
            CPL_FAIL(CPL_ERR_INPUT,
                     "%s was begun with other settings (%s was %.200s and is %.200s now): "
                     "--overwrite begins anew, or write to another file",
                     r->path, name, a ? a : "not given", b ? b : "something else");
        free(a);
        free(b);
        return status;
    }
    return CPL_FAIL(
        CPL_ERR_INPUT,
        "%s was begun with other settings: --overwrite begins anew, or write to another "
        "file",
        r->path);
}

static cpl_status take_sample(cpl_record *r, const json_t *values, int64_t line)
{
    const char *key = json_string_value(json_object_get(values, "task"));
    json_t *sample  = json_object_get(values, "sample");
    json_t *id      = json_object_get(sample, "id");
    char name[32];
    if (!key || !id)
        return CPL_FAIL(CPL_ERR_INPUT, "%s:%lld: no answered question", r->path, (long long)line);
    const char *text = json_string_value(id);
    if (!text) {
        snprintf(name, sizeof name, "%lld", (long long)json_integer_value(id));
        text = name;
    }
    json_t *of = json_object_get(r->done, key);
    if (!of) {
        of = json_object();
        if (!of || json_object_set_new(r->done, key, of) != 0) return CPL_ERR_MEMORY;
    }
    r->count += json_object_get(of, text) == NULL;
    return json_object_set(of, text, sample) == 0 ? CPL_OK : CPL_ERR_MEMORY;
}

/* One row; the first holds the settings. */
static cpl_status take_row(cpl_record *r, const cpl_row *row, const json_t *settings)
{
    const json_t *there = json_object_get(row->values, "settings");
    if (row->bad) return CPL_FAIL(CPL_ERR_INPUT, "%s", row->bad);
    if (row->line > 1) return take_sample(r, row->values, row->line);
    return there && json_equal(there, settings) ? CPL_OK : refuse(r, there, settings);
}

static cpl_status read_all(cpl_record *r, const json_t *settings)
{
    const cpl_rows_kind kind = {.format = CPL_ROWS_JSONL};
    cpl_rows *rows           = NULL;
    cpl_status status        = cpl_rows_open(&rows, r->path, &kind);
    bool more                = status == CPL_OK;
    while (more) {
        cpl_row row = {0};
        status      = cpl_rows_next(rows, &row);
        more        = status == CPL_OK && (row.values || row.bad);
        if (more) status = take_row(r, &row, settings);
        json_decref(row.values);
        more = more && status == CPL_OK;
    }
    cpl_rows_close(rows);
    return status;
}

/* Takes off what stands behind the last line end. */
static cpl_status cut_last_line(const char *path)
{
    FILE *file = fopen(path, "r+");
    long end = 0, at = 0;
    if (!file) return CPL_FAIL(CPL_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    for (int c = getc(file); c != EOF; c = getc(file)) {
        at++;
        if (c == '\n') end = at;
    }
    bool cut = at == end || ftruncate(fileno(file), end) == 0;
    if (fclose(file) != 0 || !cut)
        return CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    return CPL_OK;
}

/* ---- writing ---- */

static cpl_status write_line(cpl_record *r, json_t *line)
{
    if (!line) return CPL_ERR_MEMORY;
    bool written = json_dumpf(line, r->file, JSON_COMPACT | JSON_REAL_PRECISION(17)) == 0 &&
                   fputc('\n', r->file) != EOF && fflush(r->file) == 0;
    json_decref(line);
    if (written) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", r->path, strerror(errno));
}

cpl_status cpl_record_open(cpl_record *r, const char *path, const json_t *settings, bool fresh)
{
    cpl_status status = CPL_OK;
    *r                = (cpl_record){.path = cpl_text_copy(path), .done = json_object()};
    if (!r->path || !r->done) {
        cpl_record_close(r);
        return CPL_ERR_MEMORY;
    }
    bool there = !fresh && cpl_path_exists(path);
    if (there) {
        CPL_TRY_DONE(cut_last_line(path));
        CPL_TRY_DONE(read_all(r, settings));
    }
    r->file = fopen(path, there ? "a" : "w");
    if (!r->file) {
        status = CPL_FAIL(CPL_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
        goto done;
    }
    if (fseek(r->file, 0, SEEK_END) == 0 && ftell(r->file) == 0)
        status = write_line(r, json_pack("{s:O}", "settings", (json_t *)settings));
done:
    if (status != CPL_OK) cpl_record_close(r);
    return status;
}

void cpl_record_close(cpl_record *r)
{
    if (r->file) fclose(r->file);
    cpl_free(r->path);
    json_decref(r->done);
    *r = (cpl_record){0};
}

json_t *cpl_record_find(const cpl_record *r, const char *key, const char *id)
{
    return json_object_get(json_object_get(r->done, key), id);
}

cpl_status cpl_record_add(cpl_record *r, const char *key, json_t *sample)
{
    return write_line(r, json_pack("{s:s,s:O}", "task", key, "sample", sample));
}

void cpl_record_remove(cpl_record *r)
{
    if (r->path) unlink(r->path);
    cpl_record_close(r);
}
