/* questions_rows.c - the rows of a split, one after the other; see internal.h */
#include <string.h>

#include "base/arena.h"
#include "eval/prompts/internal.h"
#include "eval/prompts/rows.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

enum { MOST_SUBJECT_BYTES = 200 };

/* ---- files ---- */

/* Adds the files of a name, and sets `there` to whether any exists. */
static cpl_status add_files(bool *there, cpl_strings *to, const cpl_split_files *files,
                            const char *name)
{
    cpl_strings hits  = {0};
    cpl_status status = cpl_rows_find(&hits, files->data, files->task->id, name);
    *there            = status == CPL_OK;
    for (int64_t i = 0; i < hits.count && status == CPL_OK; i++)
        status = cpl_paths_add(to, hits.at[i]);
    cpl_paths_free(&hits);
    return status == CPL_ERR_INPUT ? CPL_OK : status;
}

static cpl_status find_source(bool *there, cpl_split_files *files, const cpl_task_source *source)
{
    *there = true;
    for (int64_t i = 0; *there && i < source->files.count; i++)
        CPL_TRY(add_files(there, &files->paths, files, source->files.at[i]));
    if (!*there || !source->labels) return CPL_OK;
    return add_files(there, &files->labels, files, source->labels);
}

void cpl_split_files_free(cpl_split_files *files)
{
    cpl_paths_free(&files->paths);
    cpl_paths_free(&files->labels);
}

cpl_status cpl_split_find(cpl_split_files *files, const cpl_task *task, const cpl_split *split,
                          const char *data)
{
    bool there        = false;
    cpl_status status = CPL_OK;
    *files            = (cpl_split_files){.task = task, .split = split, .data = data, .source = -1};
    for (int64_t i = 0; i < split->n_sources && status == CPL_OK && !there; i++) {
        status = find_source(&there, files, &split->sources[i]);
        if (there && status == CPL_OK)
            files->source = i;
        else
            cpl_split_files_free(files);
    }
    return status;
}

cpl_status cpl_split_find_of(cpl_strings *paths, const cpl_task *task, const char *data,
                             const char *name, const char *subject)
{
    cpl_text text = {0};
    for (const char *c = name; *c; c++)
        if (*c == '*' && subject)
            cpl_text_append(&text, subject, strlen(subject));
        else
            cpl_text_char(&text, *c);
    cpl_status status = cpl_text_status(&text);
    if (status == CPL_OK) status = cpl_rows_find(paths, data, task->id, text.bytes);
    cpl_text_free(&text);
    return status;
}

/* Appends the files of a split: "dev.jsonl, or val.jsonl, published at URL (LICENCE)". */
static void append_files(cpl_text *out, const cpl_task *task, const cpl_split *split)
{
    for (int64_t i = 0; i < split->n_sources; i++) {
        const cpl_task_source *source = &split->sources[i];
        cpl_text_printf(out, "%s", i ? ", or " : "");
        for (int64_t k = 0; k < source->files.count; k++)
            cpl_text_printf(out, "%s%s", k ? " and " : "", source->files.at[k]);
        if (source->labels) cpl_text_printf(out, " and %s", source->labels);
    }
    if (task->source)
        cpl_text_printf(out, ", published at %s (%s)", task->source,
                        task->licence ? task->licence : "licence not stated");
}

const char *cpl_questions_data_word(const cpl_questions_options *options)
{
    return options->of_run ? "eval.tasks_data:" : "--data";
}

const char *cpl_questions_skip_advice(const cpl_questions_options *options)
{
    return options->of_run ? NULL : "--skip-bad leaves such rows out and counts them";
}

bool cpl_questions_of_samples(const cpl_questions_options *options)
{
    return options->own && strcmp(options->data, options->own) == 0;
}

cpl_status cpl_split_missing(const cpl_task *task, const cpl_split *split,
                             const cpl_questions_options *options)
{
    cpl_text wanted = {0};
    append_files(&wanted, task, split);
    const char *names = wanted.bytes ? wanted.bytes : "";
    cpl_status status =
        cpl_questions_of_samples(options)
            ? CPL_FAIL(CPL_ERR_INPUT,
                       "%s: there are no rows of the split %s among the samples that come with the "
                       "program; %s DIR names a folder of yours: put into DIR/%s/ the file %s",
                       task->id, split->name, cpl_questions_data_word(options), task->id, names)
            : CPL_FAIL(CPL_ERR_INPUT,
                       "%s: there are no rows of the split %s in %s; put into %s/%s/ the file %s",
                       task->id, split->name, options->data, options->data, task->id, names);
    cpl_text_free(&wanted);
    return status;
}

/* ---- formats ---- */

static cpl_rows_kind kind_of(const char *name, const cpl_task_source *source)
{
    static const struct {
        const char *end;
        cpl_rows_format format;
    } formats[]        = {{".jsonl", CPL_ROWS_JSONL},
                          {".json", CPL_ROWS_JSON},
                          {".csv", CPL_ROWS_CSV},
                          {".tsv", CPL_ROWS_TSV}};
    cpl_rows_kind kind = {
        .format = CPL_ROWS_LINES, .member = source->member, .headless = source->headless};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (cpl_path_ends_in(name, formats[i].end)) kind.format = formats[i].format;
    return kind;
}

/* Returns the length of a path without its ending of compression. */
static size_t plain_length(const char *path)
{
    size_t length = strlen(path);
    if (cpl_path_ends_in(path, ".gz")) length -= 3;
    if (cpl_path_ends_in(path, ".zst")) length -= 4;
    return length;
}

/* ---- walking ---- */

typedef struct walk {
    const cpl_split_files *files;
    const cpl_task_source *source;
    const cpl_row_schema *schema;
    int64_t offset, end;
    cpl_status (*take)(void *ctx, cpl_seen_row *row);
    void *ctx;
    json_t *counts; /* subject -> rows seen */
    bool full;      /* no further row of this file is needed */
} walk;

/* Returns the name among the source's files that `path` matches in any folder. */
static const char *name_of(const walk *w, const char *path)
{
    for (int64_t i = 0; i < w->source->files.count; i++) {
        const char *name = w->source->files.at[i], *star = strrchr(name, '*');
        const char *end = star ? star + 1 : name;
        size_t length = plain_length(path), n = strlen(end);
        if (length >= n && strncmp(path + length - n, end, n) == 0) return name;
    }
    return w->source->files.at[0];
}

/* Appends the part of the path that matches the `*` of `name`, which stands after its last
 * slash. */
static void append_subject(cpl_text *out, const char *path, const char *name)
{
    const char *star = strchr(name, '*'), *slash = strrchr(name, '/'), *last = strrchr(path, '/');
    const char *file = last ? last + 1 : path;
    size_t before = (size_t)(star - (slash ? slash + 1 : name)), behind = strlen(star + 1);
    size_t length = plain_length(path) - (size_t)(file - path);
    if (length >= before + behind) cpl_text_append(out, file + before, length - before - behind);
}

/* Appends the subject of a row, if a template makes it. */
static cpl_status make_subject(cpl_text *subject, const walk *w, const json_t *values)
{
    cpl_scope scope   = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(cpl_scope_start(&scope, &w->schema->fields, values));
    CPL_TRY_DONE(cpl_template_make(subject, &w->schema->subject, &scope));
    if (!subject->length || subject->length > MOST_SUBJECT_BYTES)
        status = CPL_FAIL(CPL_ERR_INPUT, "its subject is empty or longer than %d bytes",
                          MOST_SUBJECT_BYTES);
done:
    cpl_scope_end(&scope);
    return status;
}

/* Sets the row's place within its subject ("": no subject), and passes the row to `take` if the
 * place is within the limits. */
static cpl_status hand_over(walk *w, cpl_seen_row *row)
{
    const char *subject = row->subject ? row->subject : "";
    bool failed         = false;
    row->index          = json_integer_value(json_object_get(w->counts, subject));
    if (row->index >= w->offset && row->index < w->end) CPL_TRY(w->take(w->ctx, row));
    cpl_json_put(&failed, w->counts, subject, json_integer(row->index + !row->passed_over));
    if (failed)
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to count rows", w->files->task->id);
    if (!row->passed_over)
        w->full = row->index + 1 >= w->end && w->schema->subject_kind != CPL_SUBJECT_MADE;
    return CPL_OK;
}

static cpl_status visit_row(walk *w, const char *path, const char *subject, const cpl_row *row)
{
    cpl_text made = {0};
    char sentence[1024];
    cpl_seen_row seen = {.subject = subject,
                         .source  = w->files->source,
                         .values  = row->values,
                         .bad     = row->bad,
                         .path    = path,
                         .line    = row->line};
    cpl_status status = CPL_OK;
    if (w->schema->subject_kind != CPL_SUBJECT_MADE) return hand_over(w, &seen);
    if (row->values) status = make_subject(&made, w, row->values);
    if (status == CPL_ERR_INPUT) {
        snprintf(sentence, sizeof sentence, "%s: line %lld: %s", path, (long long)row->line,
                 cpl_last_error());
        seen.values = NULL;
        seen.bad    = sentence;
        status      = CPL_OK;
    }
    seen.subject = made.bytes;
    seen.index   = -1;
    if (status == CPL_OK) status = seen.values ? hand_over(w, &seen) : w->take(w->ctx, &seen);
    cpl_text_free(&made);
    return status;
}

/* Adds the next line of the labels to a row. */
static cpl_status add_label(cpl_rows *labels, const char *path, cpl_row *row)
{
    cpl_row label     = {0};
    cpl_status status = cpl_rows_next(labels, &label);
    if (status != CPL_OK) return status;
    if (!label.values && !label.bad)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: line %lld: the labels end before this row", path,
                        (long long)row->line);
    if (label.bad) row->bad = label.bad;
    if (row->values && label.values &&
        json_object_set(row->values, "line", json_object_get(label.values, "line")))
        status = CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for a label", path);
    json_decref(label.values);
    if (row->bad) {
        json_decref(row->values);
        row->values = NULL;
    }
    return status;
}

/* Checks that only empty labels follow the last row. */
static cpl_status check_rest(cpl_rows *labels, const char *path)
{
    cpl_row label = {0};
    for (;;) {
        CPL_TRY(cpl_rows_next(labels, &label));
        if (!label.values) return CPL_OK;
        bool more = json_string_length(json_object_get(label.values, "line")) > 0;
        json_decref(label.values);
        if (more) return CPL_FAIL(CPL_ERR_INPUT, "%s: fewer rows than its labels have lines", path);
    }
}

static cpl_status walk_rows(walk *w, cpl_rows *rows, cpl_rows *labels, const char *path,
                            const char *subject)
{
    for (w->full = false; !w->full;) {
        cpl_row row = {0};
        CPL_TRY(cpl_rows_next(rows, &row));
        if (!row.values && !row.bad) return labels ? check_rest(labels, path) : CPL_OK;
        cpl_status status = labels ? add_label(labels, path, &row) : CPL_OK;
        if (status == CPL_OK) status = visit_row(w, path, subject, &row);
        json_decref(row.values);
        if (status != CPL_OK) return status;
    }
    return CPL_OK;
}

/* Opens the labels of a file: `labels` of the source, with the subject in place of `*`. */
static cpl_status open_labels(cpl_rows **labels, const walk *w, const char *subject)
{
    const cpl_rows_kind kind = {.format = CPL_ROWS_LINES};
    cpl_strings paths        = {0};
    cpl_status status =
        cpl_split_find_of(&paths, w->files->task, w->files->data, w->source->labels, subject);
    if (status == CPL_OK) status = cpl_rows_open(labels, paths.at[0], &kind);
    cpl_paths_free(&paths);
    return status;
}

static cpl_status walk_file(walk *w, const char *path)
{
    cpl_text subject = {0};
    cpl_rows *rows = NULL, *labels = NULL;
    const char *name   = name_of(w, path);
    cpl_rows_kind kind = kind_of(name, w->source);
    cpl_status status  = CPL_OK;
    bool by_file       = w->schema->subject_kind == CPL_SUBJECT_FILE;
    if (by_file) append_subject(&subject, path, name);
    CPL_TRY_DONE(cpl_text_status(&subject));
    if (by_file && (!subject.length || subject.length > MOST_SUBJECT_BYTES))
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "%s: names no subject, as %s does", path, name));
    if (by_file && !cpl_utf8_is(subject.bytes, subject.length))
        CPL_TRY_DONE(CPL_FAIL(
            CPL_ERR_INPUT,
            "%s: a subject is called as its file, and this name is not UTF-8: rename the file",
            path));
    CPL_TRY_DONE(cpl_rows_open(&rows, path, &kind));
    if (w->source->labels) CPL_TRY_DONE(open_labels(&labels, w, subject.bytes));
    status = walk_rows(w, rows, labels, path, subject.bytes);
done:
    cpl_rows_close(rows);
    cpl_rows_close(labels);
    cpl_text_free(&subject);
    return status;
}

cpl_status cpl_split_walk(const cpl_split_files *files, const cpl_row_schema *schemas,
                          int64_t offset, int64_t limit,
                          cpl_status (*take)(void *ctx, cpl_seen_row *row), void *ctx)
{
    walk w            = {.files  = files,
                         .source = &files->split->sources[files->source],
                         .schema = &schemas[files->source],
                         .offset = offset,
                         .end    = limit < 0 || limit > INT64_MAX - offset ? INT64_MAX : offset + limit,
                         .take   = take,
                         .ctx    = ctx,
                         .counts = json_object()};
    cpl_status status = w.counts ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory to count rows");
    for (int64_t i = 0; status == CPL_OK && i < files->paths.count; i++) {
        status = walk_file(&w, files->paths.at[i]);
        if (w.full && w.schema->subject_kind == CPL_SUBJECT_NONE) break;
    }
    json_decref(w.counts);
    return status;
}

/* ---- processing of the rows ---- */

const cpl_prompt_spec *cpl_reading_spec(const cpl_resolved_profile *resolved, const char *subject)
{
    for (int64_t i = 1; subject && i < resolved->n_specs; i++)
        if (cpl_string_list_holds(&resolved->specs[i].subjects, subject))
            return &resolved->specs[i];
    return &resolved->specs[0];
}

cpl_status cpl_reading_leave_out(cpl_reading *r, const cpl_seen_row *row)
{
    char sentence[1024];
    if (row->values)
        snprintf(sentence, sizeof sentence, "%s: line %lld: %s", row->path, (long long)row->line,
                 cpl_last_error());
    else
        snprintf(sentence, sizeof sentence, "%s", row->bad);
    const char *advice = cpl_questions_skip_advice(r->options);
    if (!r->options->skip_bad)
        return CPL_FAIL(CPL_ERR_INPUT, "%s%s%s", sentence, advice ? "; " : "",
                        advice ? advice : "");
    r->q->skipped++;
    if (r->options->log) cpl_log_warn(r->options->log, "%s; the row is left out", sentence);
    return CPL_OK;
}

cpl_status cpl_reading_add_files(cpl_reading *r, const cpl_split_files *files)
{
    for (int64_t i = 0; i < files->paths.count; i++)
        CPL_TRY(cpl_paths_add(&r->store->files, files->paths.at[i]));
    for (int64_t i = 0; i < files->labels.count; i++)
        CPL_TRY(cpl_paths_add(&r->store->files, files->labels.at[i]));
    return CPL_OK;
}

bool cpl_reading_shows(const cpl_reading *r)
{
    return r->most_shots > 0 && r->resolved->specs[0].prompt == CPL_PROMPT_NONE;
}
