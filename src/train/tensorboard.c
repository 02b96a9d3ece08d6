/* tensorboard.c - see tensorboard.h */
#include "train/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "io/stream.h"
#include "report/event_file.h"
#include "tensor/figures.h"
#include "train/metrics.h"

enum { MOST_EVENT = 1 << 28, MOST_CONFIG = 1 << 20, MOST_NAME = 120 };
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

static void value_of(cpl_text *values, const char *tag, const json_t *value);

/* `value` as tag/name. */
static void inner_value(cpl_text *values, const char *tag, const char *name, const json_t *value,
                        void (*of)(cpl_text *, const char *, const json_t *))
{
    cpl_text inner = {0};
    cpl_text_printf(&inner, "%s/%s", tag, name);
    values->failed |= inner.failed;
    if (!inner.failed) of(values, inner.bytes, value);
    cpl_text_free(&inner);
}

static void value_of(cpl_text *values, const char *tag, const json_t *value)
{
    char layer[32];
    const char *name;
    json_t *member;
    if (json_is_number(value)) cpl_event_scalar(values, tag, json_number_value(value));
    for (size_t l = 0; json_is_array(value) && l < json_array_size(value); l++) {
        const json_t *one = json_array_get(value, l);
        snprintf(layer, sizeof layer, "layer_%zu", l);
        if (json_is_array(one)) inner_value(values, tag, layer, one, histogram);
        if (json_is_number(one)) inner_value(values, tag, layer, one, value_of);
    }
    if (!json_is_object(value)) return;
    json_object_foreach((json_t *)value, name, member)
    {
        inner_value(values, tag, name, member, value_of);
    }
}

/* A continued prompt as Markdown: two blocks of code, so that nothing in it is taken for markup. */
static void sample(cpl_text *values, const char *tag, const json_t *one)
{
    cpl_text words      = {0};
    const char *parts[] = {json_string_value(json_object_get(one, "prompt")),
                           json_string_value(json_object_get(one, "text"))};
    if (!parts[0] || !parts[1]) return;
    for (int i = 0; i < 2; i++) {
        cpl_text_printf(&words, "%s\n\n    ", i ? "\n\ncontinued" : "prompt");
        for (const char *c = parts[i]; *c; c++) {
            const bool ends = *c == '\n' || *c == '\r'; /* alone, or as "\r\n" */
            if (*c == '\r' && c[1] == '\n') c++;
            cpl_text_char(&words, ends ? '\n' : *c);
            if (ends) cpl_text_printf(&words, "    ");
        }
    }
    values->failed |= words.failed;
    if (!words.failed) cpl_event_words(values, tag, words.bytes, words.length);
    cpl_text_free(&words);
}

static void samples_of(cpl_text *values, const json_t *list)
{
    char number[32];
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(number, sizeof number, "%zu", i + 1);
        inner_value(values, "samples", number, json_array_get(list, i), sample);
    }
}

void cpl_tensorboard_values(cpl_text *values, const json_t *line)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value)
    {
        if (strcmp(key, "schema") == 0 || strcmp(key, "step") == 0 || is_old_key(key)) continue;
        if (strcmp(key, "samples") == 0)
            samples_of(values, value);
        else if (json_is_number(value))
            inner_value(values, strcmp(key, "val_loss") == 0 ? "validation" : "train", key, value,
                        value_of);
        else
            value_of(values, key, value);
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

/* Whether it is a name that `create` gives: SECONDS.couplet.PROCESS after the beginning. */
static bool is_ours(const char *name)
{
    static const char mark[] = ".couplet.";
    if (strncmp(name, begins, sizeof begins - 1) != 0) return false;
    name += sizeof begins - 1;
    const size_t digits = strspn(name, "0123456789");
    if (digits == 0 || strncmp(name + digits, mark, sizeof mark - 1) != 0) return false;
    name += digits + sizeof mark - 1;
    return *name && name[strspn(name, "0123456789")] == '\0';
}

/* Sets `*stays` to the bytes of the whole frames of steps up to `step` at the beginning. */
static cpl_status frames_up_to(uint64_t *stays, int file, uint64_t size, int64_t step,
                               const char *path)
{
    char head[CPL_EVENT_HEAD], *event = NULL;
    uint64_t length;
    cpl_status status = CPL_OK;
    for (*stays = 0; size - *stays >= CPL_EVENT_HEAD + CPL_EVENT_TAIL;) {
        CPL_TRY_DONE(cpl_file_read_at(file, head, sizeof head, *stays, path));
        if (!cpl_event_head(head, &length) || length > MOST_EVENT ||
            length > size - *stays - CPL_EVENT_HEAD - CPL_EVENT_TAIL)
            break;
        char *room = cpl_realloc(event, length + CPL_EVENT_TAIL);
        if (!room) CPL_TRY_DONE(CPL_ERR_MEMORY);
        event = room;
        CPL_TRY_DONE(
            cpl_file_read_at(file, event, length + CPL_EVENT_TAIL, *stays + CPL_EVENT_HEAD, path));
        if (!cpl_event_is_whole(event, length) || cpl_event_step(event, length) > step) break;
        *stays += CPL_EVENT_HEAD + length + CPL_EVENT_TAIL;
    }
done:
    cpl_free(event);
    return status;
}

/* Leaves alone what is no regular file, or does not begin with a frame. */
static cpl_status cut(const char *path, int64_t step)
{
    struct stat what;
    uint64_t stays;
    const int file = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return CPL_OK;
    cpl_status status = CPL_OK;
    if (fstat(file, &what) == 0 && S_ISREG(what.st_mode)) {
        status = frames_up_to(&stays, file, (uint64_t)what.st_size, step, path);
        if (status == CPL_OK && stays && stays < (uint64_t)what.st_size &&
            ftruncate(file, (off_t)stays) != 0)
            status = CPL_FAIL(CPL_ERR_IO, "%s: cannot be cut: %s", path, strerror(errno));
    }
    close(file);
    return status;
}

/* Counts the older files in `*files`. */
static cpl_status cut_all(int64_t *files, const char *run, int64_t step)
{
    cpl_strings names = {0};
    *files            = 0;
    CPL_TRY(cpl_folder_list(&names, run));
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < names.count && status == CPL_OK; i++) {
        if (!is_ours(names.at[i])) continue;
        char *path = cpl_path_join(run, names.at[i]);
        status     = path ? cut(path, step) : CPL_ERR_MEMORY;
        cpl_free(path);
        ++*files;
    }
    cpl_paths_free(&names);
    return status;
}

cpl_status cpl_tensorboard_cut(const char *run, int64_t step)
{
    int64_t files;
    return cut_all(&files, run, step);
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

/* How a file begins: version, with `again` that what follows `step` is new, configuration. */
static cpl_status head_of(cpl_text *file, const char *run, double seconds, int64_t step, bool again)
{
    cpl_text values   = {0};
    cpl_status status = config_of(&values, run);
    cpl_event_file_version(file, seconds);
    if (again) cpl_event_start(file, seconds, step + 1);
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
    int64_t older        = 0;
    *file                = NULL;
    cpl_status status    = cut_all(&older, run, step);
    /* A run that was interrupted before its first checkpoint begins again at step 0. */
    if (status == CPL_OK) status = head_of(&head, run, seconds, step, step > 0 || older > 0);
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
    return done > 0 && speed > 0 && isfinite(done / speed) ? done / speed : 0;
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

/* The name of an export: with that of the run's folder and a hash of its path, so that it is
 * replaced by another one of the same run alone. */
static cpl_status export_name(char *name, size_t size, const char *run)
{
    char *path = realpath(run, NULL);
    if (!path) return CPL_FAIL(CPL_ERR_IO, "%s: cannot be found: %s", run, strerror(errno));
    const char *last    = strrchr(path, '/') + 1;
    const size_t length = strlen(last);
    snprintf(name, size, "%s0000000000.couplet-export.%.*s.%08x", begins,
             (int)(length < MOST_NAME ? length : MOST_NAME), last,
             (unsigned)XXH3_64bits(path, strlen(path)));
    free(path);
    return CPL_OK;
}

/* Several event files of one folder are one run to TensorBoard. */
static cpl_status check_alone(const char *folder, const char *name)
{
    cpl_strings names = {0};
    cpl_status status = CPL_OK;
    if (!cpl_path_is_folder(folder)) return CPL_OK;
    CPL_TRY(cpl_folder_list(&names, folder));
    for (int64_t i = 0; i < names.count && status == CPL_OK; i++)
        if (strncmp(names.at[i], begins, sizeof begins - 1) == 0 &&
            strcmp(names.at[i], name) != 0 && !strstr(names.at[i], ".tmp-"))
            status = CPL_FAIL(CPL_ERR_INPUT,
                              "%s: has event files of something else (%s), and TensorBoard would "
                              "show both as one run; name another folder",
                              folder, names.at[i]);
    cpl_paths_free(&names);
    return status;
}

static cpl_status write_export(const export *e, const char *folder, const char *run)
{
    char name[sizeof begins + MOST_NAME + 40];
    CPL_TRY(cpl_text_status(&e->file));
    CPL_TRY(export_name(name, sizeof name, run));
    CPL_TRY(check_alone(folder, name));
    CPL_TRY(cpl_folder_make(folder));
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
    if (e.lines == 0)
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "%s: has no line of a step that can be read", path));
    CPL_TRY_DONE(head_of(&e.file, run, e.seconds, 0, false));
    CPL_TRY_DONE(each_line(&e, path, true));
    CPL_TRY_DONE(write_export(&e, folder, run));
    *lines   = e.lines;
    *damaged = e.damaged;
done:
    cpl_text_free(&e.file);
    cpl_free(path);
    return status;
}
