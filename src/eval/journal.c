/* journal.c - see journal.h */
#include "eval/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/text.h"
#include "eval/prompts/rows.h"
#include "io/file.h"
#include "io/json.h"

#define WAY_OUT ": remove the file, or begin anew with --overwrite"

enum { LINE_FLAGS = JSON_COMPACT | JSON_REAL_PRECISION(17) };

/* ---- the check sum of a line ---- */

/* Sets `sum` to the check sum of the object as a line. */
static cpl_status sum_of(char sum[17], const cpl_eval_journal *r, const json_t *object)
{
    char *text = json_dumps(object, LINE_FLAGS);
    if (!text) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for a check sum", r->path);
    snprintf(sum, 17, "%016llx", (unsigned long long)XXH3_64bits(text, strlen(text)));
    cpl_json_text_free(text);
    return CPL_OK;
}

/* Removes the check sum from a line that was read, and compares it. */
static cpl_status check_sum(const cpl_eval_journal *r, json_t *values, int64_t line)
{
    char sum[17], there[17] = "";
    const char *member = json_string_value(json_object_get(values, "xxh3"));
    if (member) snprintf(there, sizeof there, "%s", member);
    json_object_del(values, "xxh3");
    CPL_TRY(sum_of(sum, r, values));
    if (strcmp(sum, there) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: line %lld: is not what was written there (its check sum)%s",
                    r->path, (long long)line, WAY_OUT);
}

/* ---- the lines of an existing journal ---- */

/* Fails, and names the first setting that differs. */
static cpl_status refuse(const cpl_eval_journal *r, const json_t *there, const json_t *now)
{
    cpl_text difference = {0};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)now, name, value)
    {
        const json_t *old = json_object_get(there, name);
        if (difference.length || (old && json_equal(old, value))) continue;
        char *a = old ? json_dumps(old, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        char *b = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        cpl_text_printf(&difference, " (%s was %.200s and is %.200s now)", name,
                        a ? a : "not given", b ? b : "something else");
        cpl_json_text_free(a);
        cpl_json_text_free(b);
    }
    cpl_status status = CPL_FAIL(
        CPL_ERR_INPUT,
        "%s was begun with other settings%s: --overwrite begins anew, or write to another file",
        r->path, difference.length ? difference.bytes : "");
    cpl_text_free(&difference);
    return status;
}

static cpl_status take_sample(cpl_eval_journal *r, json_t *values, int64_t line)
{
    const char *key = json_string_value(json_object_get(values, "task"));
    json_t *sample  = json_object_get(values, "sample");
    json_t *id      = json_object_get(sample, "id");
    char name[32];
    if (!key || !id)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: line %lld: holds no answered question" WAY_OUT, r->path,
                        (long long)line);
    const char *text = json_string_value(id);
    if (!text) {
        snprintf(name, sizeof name, "%lld", (long long)json_integer_value(id));
        text = name;
    }
    json_t *of  = json_object_get(r->done, key);
    bool failed = false;
    if (!of) of = cpl_json_open(&failed, r->done, key, json_object());
    r->count += json_object_get(of, text) == NULL;
    cpl_json_put(&failed, of, text, json_incref(values));
    return failed ? CPL_ERR_MEMORY : CPL_OK;
}

/* Returns a copy of the settings without paths: a copy of a model in another place is the same
 * model. */
static json_t *without_places(const json_t *settings)
{
    json_t *copy = json_deep_copy(settings);
    json_object_del(copy, "model");
    json_object_del(json_object_get(copy, "tokenizer"), "path");
    return copy;
}

/* Checks that the settings in the first line equal the current settings, apart from paths. */
static cpl_status check_settings(const cpl_eval_journal *r, const json_t *there, const json_t *now)
{
    json_t *a = there ? without_places(there) : NULL, *b = without_places(now);
    cpl_status status = b && (a || !there) ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK && !(a && json_equal(a, b))) status = refuse(r, a, b);
    json_decref(a);
    json_decref(b);
    return status;
}

/* Takes one row. The first row holds the settings. */
static cpl_status take_row(cpl_eval_journal *r, const cpl_row *row, const json_t *settings)
{
    const json_t *there = json_object_get(row->values, "settings");
    if (row->bad) return CPL_FAIL(CPL_ERR_INPUT, "%s" WAY_OUT, row->bad);
    CPL_TRY(check_sum(r, row->values, row->line));
    if (row->line > 1) return take_sample(r, row->values, row->line);
    return check_settings(r, there, settings);
}

static cpl_status read_all(cpl_eval_journal *r, const json_t *settings)
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

/* ---- the file itself ---- */

static cpl_status cannot(const cpl_eval_journal *r, const char *what)
{
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be %s: %s", r->path, what, strerror(errno));
}

/* Opens the file, or creates it, and locks it for this evaluation until it is closed. */
static cpl_status take_file(cpl_eval_journal *r)
{
    int held;
    CPL_TRY(cpl_file_lock(&held, r->path, false));
    if (held < 0)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "%s: another evaluation is writing to it: wait for its end, or write to another file",
            r->path);
    r->file = fdopen(held, "r+");
    if (r->file) return CPL_OK;
    close(held);
    return cannot(r, "opened");
}

/* Refuses a file that does not begin as a journal does. A file shorter than that beginning is
 * compared as far as it goes, since an interruption may have cut the first line too. */
static cpl_status check_ours(const cpl_eval_journal *r)
{
    static const char begin[] = "{\"settings\":";
    char there[sizeof begin];
    const size_t n = fread(there, 1, sizeof begin - 1, r->file);
    if (ferror(r->file)) return cannot(r, "read");
    rewind(r->file);
    if (memcmp(there, begin, n) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: is not the record of an evaluation, whose first line begins with %s: "
                    "rename or remove it, or write the results to another file",
                    r->path, begin);
}

/* Removes the bytes after the last line end, or all bytes if `fresh`. */
static cpl_status cut_last_line(const cpl_eval_journal *r, bool fresh)
{
    long end = 0, at = 0;
    for (int c = fresh ? EOF : getc(r->file); c != EOF; c = getc(r->file)) {
        at++;
        if (c == '\n') end = at;
    }
    if (ferror(r->file)) return cannot(r, "read");
    if (ftruncate(fileno(r->file), end) != 0) return cannot(r, "written");
    return CPL_OK;
}

/* ---- writing ---- */

static cpl_status write_line(cpl_eval_journal *r, json_t *line)
{
    char sum[17];
    cpl_status status = line ? cpl_json_check(r->path) : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = sum_of(sum, r, line);
    if (status == CPL_OK && json_object_set_new(line, "xxh3", json_string(sum)) != 0)
        status = CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for a check sum", r->path);
    if (status != CPL_OK) {
        json_decref(line);
        return status;
    }
    bool written = json_dumpf(line, r->file, LINE_FLAGS) == 0 && fputc('\n', r->file) != EOF &&
                   fflush(r->file) == 0;
    json_decref(line);
    return written ? CPL_OK : cannot(r, "written");
}

cpl_status cpl_eval_journal_open(cpl_eval_journal *r, const char *path, const json_t *settings,
                                 bool fresh)
{
    cpl_status status = CPL_OK;
    *r                = (cpl_eval_journal){.path = cpl_text_copy(path), .done = json_object()};
    if (!r->path || !r->done) {
        cpl_eval_journal_close(r);
        return CPL_ERR_MEMORY;
    }
    CPL_TRY_DONE(take_file(r));
    CPL_TRY_DONE(check_ours(r));
    CPL_TRY_DONE(cut_last_line(r, fresh));
    CPL_TRY_DONE(read_all(r, settings));
    if (fseek(r->file, 0, SEEK_END) != 0) CPL_TRY_DONE(cannot(r, "written"));
    if (ftell(r->file) == 0)
        status = write_line(r, json_pack("{s:O}", "settings", (json_t *)settings));
done:
    if (status != CPL_OK) cpl_eval_journal_close(r);
    return status;
}

void cpl_eval_journal_close(cpl_eval_journal *r)
{
    if (r->file) fclose(r->file);
    cpl_free(r->path);
    json_decref(r->done);
    *r = (cpl_eval_journal){0};
}

json_t *cpl_eval_journal_find(const cpl_eval_journal *r, const char *key, const char *id,
                              const char **sum)
{
    const json_t *line   = json_object_get(json_object_get(r->done, key), id);
    const char *recorded = json_string_value(json_object_get(line, "question"));
    *sum                 = recorded ? recorded : "";
    return json_object_get(line, "sample");
}

cpl_status cpl_eval_journal_add(cpl_eval_journal *r, const char *key, const char *sum,
                                json_t *sample)
{
    return write_line(r,
                      json_pack("{s:s,s:s,s:O}", "task", key, "question", sum, "sample", sample));
}

cpl_status cpl_eval_journal_remove(cpl_eval_journal *r)
{
    cpl_status status = CPL_OK;
    if (r->path && unlink(r->path) != 0 && errno != ENOENT)
        status = cannot(r, "removed, though the results are written");
    cpl_eval_journal_close(r);
    return status;
}
