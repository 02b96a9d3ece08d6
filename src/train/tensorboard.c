/* tensorboard.c - see tensorboard.h */
#include "train/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "io/stream.h"
#include "report/event_file.h"
#include "tensor/figures.h"
#include "train/metrics.h"

enum { MOST_BYTES = 1 << 30, MOST_TAG = 400, MOST_CONFIG = 1 << 20 };
static const char begins[] = "events.out.tfevents.";

/* ---- a line ---- */

static bool is_old_key(const char *key)
{
    for (int i = 0; i < CPL_N_FIGURES; i++)
        if (strcmp(cpl_figure_rows[i].old_name, key) == 0 &&
            strcmp(cpl_figure_rows[i].name, key) != 0)
            return true;
    return false;
}

static void histogram(cpl_text *values, const char *tag, const json_t *numbers)
{
    const size_t n = json_array_size(numbers);
    double *copied = cpl_alloc(n * sizeof *copied);
    values->failed |= n && !copied;
    for (size_t i = 0; copied && i < n; i++) {
        const json_t *one = json_array_get(numbers, i);
        copied[i]         = json_is_number(one) ? json_number_value(one) : (double)NAN;
    }
    if (copied) cpl_event_histogram(values, tag, copied, (int64_t)n);
    cpl_free(copied);
}

static void value_of(cpl_text *values, const char *tag, const json_t *value)
{
    char inner[MOST_TAG];
    const char *name;
    json_t *member;
    if (json_is_number(value)) cpl_event_scalar(values, tag, json_number_value(value));
    for (size_t l = 0; json_is_array(value) && l < json_array_size(value); l++) {
        const json_t *layer = json_array_get(value, l);
        snprintf(inner, sizeof inner, "%s/layer_%zu", tag, l);
        if (json_is_array(layer))
            histogram(values, inner, layer);
        else if (json_is_number(layer))
            cpl_event_scalar(values, inner, json_number_value(layer));
    }
    if (!json_is_object(value)) return;
    json_object_foreach((json_t *)value, name, member)
    {
        snprintf(inner, sizeof inner, "%s/%s", tag, name);
        value_of(values, inner, member);
    }
}

void cpl_tensorboard_values(cpl_text *values, const json_t *line)
{
    char tag[MOST_TAG];
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value)
    {
        if (strcmp(key, "schema") == 0 || strcmp(key, "step") == 0 || is_old_key(key)) continue;
        const char *group = strcmp(key, "val_loss") == 0 ? "validation/" : "train/";
        snprintf(tag, sizeof tag, "%s%s", json_is_number(value) ? group : "", key);
        value_of(values, tag, value);
    }
}

static void event_of(cpl_text *file, const json_t *line, double seconds)
{
    cpl_text values = {0};
    cpl_tensorboard_values(&values, line);
    cpl_event_summary(file, seconds, json_integer_value(json_object_get(line, "step")), &values);
    cpl_text_free(&values);
}

/* ---- the files of a run ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static cpl_status cut(const char *path, int64_t step)
{
    cpl_text file     = {0};
    cpl_status status = cpl_file_read(&file, path, MOST_BYTES);
    if (status == CPL_OK) {
        const size_t stays = cpl_event_file_up_to(file.bytes, file.length, step);
        if (stays < file.length && truncate(path, (off_t)stays) != 0)
            status = CPL_FAIL(CPL_ERR_IO, "%s: cannot be cut: %s", path, strerror(errno));
    }
    cpl_text_free(&file);
    return status;
}

static cpl_status cut_all(const char *run, int64_t step)
{
    cpl_strings names = {0};
    CPL_TRY(cpl_folder_list(&names, run));
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < names.count && status == CPL_OK; i++) {
        if (strncmp(names.at[i], begins, sizeof begins - 1) != 0) continue;
        char *path = cpl_path_join(run, names.at[i]);
        status     = path ? cut(path, step) : CPL_ERR_MEMORY;
        cpl_free(path);
    }
    cpl_paths_free(&names);
    return status;
}

/* The configuration, as a block of code. */
static cpl_status config_of(cpl_text *values, const char *run)
{
    char *path      = cpl_path_join(run, "config.yaml");
    cpl_text config = {0}, block = {0};
    cpl_status status = path ? cpl_file_read(&config, path, MOST_CONFIG) : CPL_ERR_MEMORY;
    if (status == CPL_OK) {
        const char *at = config.bytes, *end = at ? at + config.length : at;
        while (at && at < end) { /* four blanks make a line of code in Markdown */
            const char *line    = memchr(at, '\n', (size_t)(end - at));
            const size_t length = line ? (size_t)(line - at) + 1 : (size_t)(end - at);
            cpl_text_append(&block, "    ", 4);
            cpl_text_append(&block, at, length);
            at += length;
        }
        values->failed |= block.failed;
        cpl_event_words(values, "config", block.bytes ? block.bytes : "", block.length);
    }
    cpl_text_free(&config);
    cpl_text_free(&block);
    cpl_free(path);
    return status;
}

/* How a file begins: its version, that what follows `step` is new, the configuration. */
static cpl_status head_of(cpl_text *file, const char *run, double seconds, int64_t step)
{
    cpl_text values   = {0};
    cpl_status status = config_of(&values, run);
    cpl_event_file_version(file, seconds);
    if (step) cpl_event_start(file, seconds, step + 1);
    cpl_event_summary(file, seconds, step, &values);
    cpl_text_free(&values);
    return status == CPL_OK ? cpl_text_status(file) : status;
}

static cpl_status put(FILE *file, const cpl_text *bytes)
{
    CPL_TRY(cpl_text_status(bytes));
    if (fwrite(bytes->bytes, 1, bytes->length, file) != bytes->length || fflush(file) != 0)
        return CPL_FAIL(CPL_ERR_IO, "events for TensorBoard cannot be written: %s",
                        strerror(errno));
    return CPL_OK;
}

static cpl_status create(FILE **file, const char *run, double seconds)
{
    char name[96];
    snprintf(name, sizeof name, "%s%010lld.couplet.%lld", begins, (long long)seconds,
             (long long)getpid());
    char *path = cpl_path_join(run, name);
    if (!path) return CPL_ERR_MEMORY;
    int descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    *file          = descriptor < 0 ? NULL : fdopen(descriptor, "a");
    cpl_status status =
        *file ? CPL_OK : CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (!*file && descriptor >= 0) close(descriptor);
    cpl_free(path);
    return status;
}

cpl_status cpl_tensorboard_open(FILE **file, const char *run, int64_t step)
{
    cpl_text head        = {0};
    const double seconds = now();
    *file                = NULL;
    cpl_status status    = cut_all(run, step);
    if (status == CPL_OK) status = head_of(&head, run, seconds, step);
    if (status == CPL_OK) status = create(file, run, seconds);
    if (status == CPL_OK) status = put(*file, &head);
    if (status != CPL_OK && *file) fclose(*file);
    if (status != CPL_OK) *file = NULL;
    cpl_text_free(&head);
    return status;
}

cpl_status cpl_tensorboard_log(FILE *file, const json_t *line)
{
    cpl_text event = {0};
    event_of(&event, line, now());
    cpl_status status = put(file, &event);
    cpl_text_free(&event);
    return status;
}

/* ---- an old run ---- */

typedef struct export
{
    cpl_text file;
    double seconds; /* of the next line */
    int64_t lines, damaged;
    double tokens; /* of the line before */
}
export;

/* Seconds that the steps since the line before took. */
static double span_of(const export *e, const json_t *line)
{
    const json_t *tokens = json_object_get(line, "tokens"),
                 *rate   = json_object_get(line, "tokens_per_s");
    double done = json_number_value(tokens) - e->tokens, speed = json_number_value(rate);
    return done > 0 && speed > 0 ? done / speed : 0;
}

/* `event`: append it; else count its time only. */
static cpl_status each_line(export *e, const char *path, bool event)
{
    cpl_stream *stream = NULL;
    cpl_pieces pieces  = {0};
    cpl_piece piece    = {0};
    cpl_status status  = CPL_OK;
    e->tokens          = 0;
    e->lines = e->damaged = 0;
    CPL_TRY_DONE(cpl_stream_open(&stream, path, CPL_ZSTD_WINDOW_LOG));
    cpl_stream_limit(stream, (uint64_t)CPL_METRICS_MOST_BYTES);
    CPL_TRY_DONE(cpl_pieces_init(&pieces, stream, "\n", CPL_METRICS_LINE_BYTES));
    for (;;) {
        json_t *line = NULL;
        CPL_TRY_DONE(cpl_pieces_next(&pieces, &piece));
        if (piece.end) break;
        if (!piece.too_long) {
            status = cpl_json_parse(&line, piece.bytes, piece.length, path);
            if (status == CPL_ERR_MEMORY) goto done;
            status = CPL_OK;
        }
        if (json_is_integer(json_object_get(line, "step"))) {
            const double span = span_of(e, line);
            e->seconds += event ? span : -span;
            e->tokens = json_number_value(json_object_get(line, "tokens"));
            e->lines++;
            if (event) event_of(&e->file, line, e->seconds);
        } else
            e->damaged++;
        json_decref(line);
    }
done:
    cpl_pieces_free(&pieces);
    cpl_stream_close(stream);
    return status;
}

static cpl_status find(char **path, const char *run)
{
    static const char *const names[] = {"metrics.jsonl", "metrics.jsonl.gz", "metrics.jsonl.zst"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *path = cpl_path_join(run, names[i]);
        if (!*path) return CPL_ERR_MEMORY;
        if (cpl_path_exists(*path)) return CPL_OK;
        cpl_free(*path);
    }
    *path = NULL;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is no run: there is no metrics.jsonl", run);
}

static cpl_status write_export(const export *e, const char *folder, double last)
{
    char name[96];
    CPL_TRY(cpl_text_status(&e->file));
    CPL_TRY(cpl_folder_make(folder));
    snprintf(name, sizeof name, "%s%010lld.couplet", begins, (long long)last);
    char *path = cpl_path_join(folder, name);
    if (!path) return CPL_ERR_MEMORY;
    cpl_status status = cpl_file_write_atomic(path, e->file.bytes, e->file.length);
    cpl_free(path);
    return status;
}

cpl_status cpl_tensorboard_export(const char *run, const char *folder, int64_t *lines,
                                  int64_t *damaged)
{
    struct stat what;
    export e          = {0};
    char *path        = NULL;
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(find(&path, run));
    if (stat(path, &what) != 0)
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_IO, "%s: cannot be read: %s", path, strerror(errno)));
    e.seconds = (double)what.st_mtime;
    CPL_TRY_DONE(each_line(&e, path, false));
    CPL_TRY_DONE(head_of(&e.file, run, e.seconds, 0));
    CPL_TRY_DONE(each_line(&e, path, true));
    CPL_TRY_DONE(write_export(&e, folder, (double)what.st_mtime));
    *lines   = e.lines;
    *damaged = e.damaged;
done:
    cpl_text_free(&e.file);
    cpl_free(path);
    return status;
}
