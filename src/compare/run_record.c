/* run_record.c - see run_record.h */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "compare/internal.h"
#include "io/file.h"
#include "io/json.h"
#include "io/stream.h"

#define CPL_RUN_FIGURE(name, key, of, how, start, curve, file, label, digits, sentence)            \
    {key,   CPL_RUN_OF_##of, CPL_RUN_HOW_##how, start, CPL_RUN_CURVE_##curve, file,                \
     label, digits,          sentence},
const cpl_run_figure cpl_run_figures[CPL_RUN_FIGURES] = {
#include "compare/run_figures.def"
};
#undef CPL_RUN_FIGURE

/* ---- files of the folder ---- */

/* Sets `path`, from cpl_alloc, to a file of the folder, and `there`. */
static cpl_status find(char **path, bool *there, const char *folder, const char *name)
{
    *path = cpl_path_join(folder, name);
    if (!*path) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a path");
    *there = cpl_path_exists(*path);
    return CPL_OK;
}

static cpl_status has(bool *there, const char *folder, const char *name)
{
    char *path = NULL;
    CPL_TRY(find(&path, there, folder, name));
    cpl_free(path);
    return CPL_OK;
}

static cpl_status tell_what_it_is(const char *folder)
{
    bool state = false, model = false, gguf = false;
    CPL_TRY(has(&state, folder, "state.json"));
    CPL_TRY(has(&model, folder, "config.json"));
    CPL_TRY(has(&gguf, folder, "model.safetensors"));
    if (state)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a checkpoint, not a run; name the folder of the run, in which it "
                        "lies",
                        folder);
    if (model || gguf)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a model directory, not a run: it has no metrics to compare",
                        folder);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is no run: it has no config.yaml", folder);
}

static cpl_status read_settings(cpl_run_record *run)
{
    char *path = NULL;
    bool there = false;
    CPL_TRY(find(&path, &there, run->folder, "config.yaml"));
    cpl_status status =
        there ? cpl_yaml_flat_read(&run->settings, path) : tell_what_it_is(run->folder);
    cpl_free(path);
    return status;
}

/* A setting as a number; NaN: it is not there or is none. */
static double setting_number(const cpl_run_record *run, const char *name)
{
    const char *text = cpl_yaml_flat_get(&run->settings, name);
    char *end        = NULL;
    const double x   = text ? strtod(text, &end) : (double)NAN;
    return text && end != text && *end == '\0' ? x : (double)NAN;
}

/* Sets `path`, from cpl_alloc, to the file of the folder, plain or compressed; NULL: none is there. */
static cpl_status find_stored(char **path, const char *folder, const char *name)
{
    static const char *const endings[] = {"", ".gz", ".zst"};
    char whole[80];
    bool there = false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        snprintf(whole, sizeof whole, "%.60s%s", name, endings[i]);
        CPL_TRY(find(path, &there, folder, whole));
        if (there) return CPL_OK;
        cpl_free(*path);
        *path = NULL;
    }
    return CPL_OK;
}

static cpl_status read_metrics(cpl_run_record *run)
{
    char *path = NULL;
    CPL_TRY(find_stored(&path, run->folder, "metrics.jsonl"));
    if (!path) return CPL_OK;
    cpl_status status = cpl_run_lines_read(run, path, setting_number(run, "data.batch_tokens"));
    cpl_free(path);
    return status;
}

static cpl_status read_start(cpl_run_record *run)
{
    char *path = NULL;
    bool there = false;
    CPL_TRY(find(&path, &there, run->folder, "start.json"));
    cpl_status status = there ? cpl_run_lines_start(run, path) : CPL_OK;
    cpl_free(path);
    return status;
}

/* ---- what a checkpoint says ---- */

/* A file of the run's checkpoint, by `last` or else in the newest step-; from cpl_alloc, NULL where
 * there is none. */
static cpl_status in_checkpoint(char **path, const char *folder, const char *name)
{
    char **names = NULL;
    char part[600];
    int64_t count = 0;
    bool there    = false;
    snprintf(part, sizeof part, "last/%s", name);
    CPL_TRY(find(path, &there, folder, part));
    if (there) return CPL_OK;
    cpl_free(*path);
    *path = NULL;
    if (cpl_folder_list(&names, &count, folder) != CPL_OK) return CPL_OK;
    cpl_status status = CPL_OK;
    for (int64_t i = count; i-- > 0 && !there && status == CPL_OK;) {
        if (strncmp(names[i], "step-", 5) != 0) continue;
        snprintf(part, sizeof part, "%.500s/%s", names[i], name);
        status = find(path, &there, folder, part);
        if (there || status != CPL_OK) break;
        cpl_free(*path);
        *path = NULL;
    }
    cpl_folder_list_free(names, count);
    return status;
}

static cpl_status read_fingerprint(cpl_run_record *run)
{
    char *path        = NULL;
    json_t *state     = NULL;
    const char *words = NULL;
    if (run->data) return CPL_OK;
    CPL_TRY(in_checkpoint(&path, run->folder, "state.json"));
    if (path && cpl_json_load(&state, path) == CPL_OK)
        words = json_string_value(json_object_get(state, "data"));
    if (words) run->data = cpl_pool_copy(&run->pool, words, strlen(words));
    json_decref(state);
    cpl_free(path);
    return CPL_OK;
}

static cpl_status read_tokenizer(cpl_run_record *run)
{
    char *path    = NULL;
    uint64_t hash = 0;
    if (run->tokenizer) return CPL_OK;
    CPL_TRY(in_checkpoint(&path, run->folder, "tokenizer.json"));
    if (path && cpl_file_hash(&hash, path) == CPL_OK)
        run->tokenizer = cpl_pool_printf(&run->pool, "%016" PRIx64, hash);
    cpl_free(path);
    return CPL_OK;
}

/* ---- the whole ---- */

/* Asked only where all steps are made, as to ask is to hold the lock for a moment. */
static bool is_locked(const char *folder)
{
    char *path = cpl_path_join(folder, "lock");
    int lock   = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    bool held  = lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (lock >= 0) close(lock);
    cpl_free(path);
    return held;
}

/* The last part of the path as the system resolves it: "." has a name too. */
static const char *name_of(cpl_run_record *run)
{
    char *real       = realpath(run->folder, NULL);
    const char *path = real ? real : run->folder, *slash = strrchr(path, '/');
    const char *last = slash && slash[1] ? slash + 1 : path;
    last             = cpl_pool_copy(&run->pool, last, strlen(last));
    free(real);
    return last;
}

static void settle(cpl_run_record *run)
{
    const double steps       = setting_number(run, "train.steps");
    run->steps               = steps >= 0 && steps < 1e15 ? (int64_t)steps : INT64_C(-1);
    const cpl_run_line *last = cpl_run_last(run);
    run->in_progress         = !last || last->step < run->steps || is_locked(run->folder);
}

cpl_status cpl_run_record_open(cpl_run_record *run, const char *folder)
{
    cpl_status status = CPL_OK;
    memset(run, 0, sizeof *run);
    run->folder = cpl_pool_copy(&run->pool, folder, strlen(folder));
    if (!cpl_path_is_folder(folder))
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT,
                              cpl_path_exists(folder) ? "%s: is no folder of a run"
                                                      : "%s: there is no such folder",
                              folder));
    run->name = name_of(run);
    CPL_TRY_DONE(read_settings(run));
    CPL_TRY_DONE(read_metrics(run));
    CPL_TRY_DONE(read_start(run));
    CPL_TRY_DONE(read_fingerprint(run));
    CPL_TRY_DONE(read_tokenizer(run));
    settle(run);
    status = cpl_pool_status(&run->pool);
done:
    if (status != CPL_OK) cpl_run_record_close(run);
    return status;
}

void cpl_run_record_close(cpl_run_record *run)
{
    cpl_yaml_flat_free(&run->settings);
    cpl_free(run->lines);
    cpl_free((void *)run->sources);
    cpl_pool_free(&run->pool);
    memset(run, 0, sizeof *run);
}

/* ---- several ---- */

static bool is_same_folder(const char *one, const char *other)
{
    struct stat a, b;
    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

cpl_status cpl_run_records_open(cpl_run_record *runs, int64_t *n, const char *const *folders,
                                int64_t n_folders)
{
    *n = 0;
    for (int64_t i = 0; i < n_folders; i++) {
        int64_t k = 0;
        while (k < *n && !is_same_folder(runs[k].folder, folders[i])) k++;
        if (k == *n)
            CPL_TRY(cpl_run_record_open(&runs[(*n)++], folders[i]));
        else
            runs[k].again = cpl_pool_copy(&runs[k].pool, folders[i], strlen(folders[i]));
        CPL_TRY(cpl_pool_status(&runs[k].pool));
    }
    return CPL_OK;
}

/* ---- asking ---- */

const cpl_run_line *cpl_run_last(const cpl_run_record *run)
{
    return run->n_lines ? &run->lines[run->n_lines - 1] : NULL;
}

const cpl_run_line *cpl_run_line_before(const cpl_run_record *run, double tokens)
{
    int64_t low  = 0,
            high = run->n_lines; /* lines below `low` are at or before, from `high` behind */
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (run->lines[middle].tokens <= tokens)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &run->lines[low - 1] : NULL;
}

const cpl_run_line *cpl_run_line_at(const cpl_run_record *run, double tokens)
{
    const cpl_run_line *line = cpl_run_line_before(run, tokens);
    return line && line->tokens == tokens ? line : NULL;
}

double cpl_run_val_loss(const cpl_run_record *run, const cpl_run_line *line, const char *source)
{
    if (!source) return line->values[CPL_RUN_VAL_LOSS];
    for (int64_t i = 0; i < line->n_sources; i++)
        if (strcmp(run->sources[i], source) == 0) return line->sources[i];
    return (double)NAN;
}

bool cpl_run_evaluated(const cpl_run_line *line)
{
    return !isnan(line->values[CPL_RUN_VAL_LOSS]);
}

/* The whole content of a file that may be compressed. */
static cpl_status read_whole(cpl_text *out, const char *path)
{
    cpl_stream *stream = NULL;
    cpl_status status  = CPL_OK;
    char chunk[1 << 14];
    size_t got = 1;
    CPL_TRY(cpl_stream_open(&stream, path, CPL_ZSTD_WINDOW_LOG));
    cpl_stream_limit(stream, CPL_JSON_MAX_BYTES);
    while (got && status == CPL_OK) {
        status = cpl_stream_read(stream, chunk, sizeof chunk, &got);
        if (status == CPL_OK) cpl_text_append(out, chunk, got);
    }
    cpl_stream_close(stream);
    return status == CPL_OK ? cpl_text_status(out) : status;
}

static cpl_status read_json(json_t **out, const cpl_run_record *run, const char *name)
{
    char *path    = NULL;
    cpl_text text = {0};
    CPL_TRY(find_stored(&path, run->folder, name));
    if (!path) return CPL_OK;
    cpl_status status = read_whole(&text, path);
    if (status == CPL_OK)
        status = cpl_json_parse(out, text.bytes ? text.bytes : "", text.length, path);
    cpl_text_free(&text);
    cpl_free(path);
    return status;
}

cpl_status cpl_run_files(json_t *files[2], const char **reason, cpl_pool *pool,
                         const cpl_run_record *const runs[2], const char *name,
                         const char *(*fault)(cpl_pool *pool, const json_t *file))
{
    cpl_status status = CPL_OK;
    files[0] = files[1] = NULL;
    for (int i = 0; i < 2 && status != CPL_ERR_MEMORY; i++) {
        status            = read_json(&files[i], runs[i], name);
        const char *wrong = files[i] && fault ? fault(pool, files[i]) : NULL;
        if (status != CPL_OK) *reason = cpl_pool_printf(pool, "%s", cpl_last_error());
        if (wrong) *reason = cpl_pool_printf(pool, "%s/%s: %s", runs[i]->folder, name, wrong);
    }
    if (status != CPL_ERR_MEMORY) return CPL_OK;
    json_decref(files[0]);
    json_decref(files[1]);
    return status;
}
