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
#include "io/paths.h"
#include "io/stream.h"
#include "store/run_dir.h"

/* ---- files of the folder ---- */

/* A file of the folder; NULL: it is not there, or there is no memory. */
static const char *find(cpl_pool *pool, const char *folder, const char *name)
{
    char *path        = cpl_path_join(folder, name);
    const bool there  = path && cpl_path_exists(path);
    const char *found = there ? cpl_pool_copy(pool, path, strlen(path)) : NULL;
    pool->failed      = pool->failed || !path;
    cpl_free(path);
    return pool->failed ? NULL : found;
}

/* The same, plain or compressed. */
static const char *find_stored(cpl_pool *pool, const char *folder, const char *name)
{
    static const char *const endings[] = {"", ".gz", ".zst"};
    char whole[80];
    const char *path = NULL;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && !path; i++) {
        snprintf(whole, sizeof whole, "%.60s%s", name, endings[i]);
        path = find(pool, folder, whole);
    }
    return path;
}

/* A setting as a number; NaN: it is not there or is none. */
static double setting_number(const cpl_run_record *run, const char *name)
{
    const char *text = cpl_yaml_flat_get(&run->settings, name);
    char *end        = NULL;
    const double x   = text ? strtod(text, &end) : (double)NAN;
    return text && end != text && *end == '\0' ? x : (double)NAN;
}

static cpl_status read_files(cpl_run_record *run)
{
    const char *settings = find(&run->pool, run->folder, "config.yaml");
    const char *metrics  = find_stored(&run->pool, run->folder, "metrics.jsonl");
    const char *start    = find(&run->pool, run->folder, "start.json");
    CPL_TRY(cpl_pool_status(&run->pool));
    CPL_TRY(cpl_yaml_flat_read(&run->settings, settings));
    if (metrics)
        CPL_TRY(cpl_run_lines_read(run, metrics, setting_number(run, "data.batch_tokens")));
    return start ? cpl_run_lines_start(run, start) : CPL_OK;
}

/* ---- facts of a checkpoint ---- */

/* A file of the run's checkpoint, by `last` or else in the newest step-; NULL: there is none. */
static const char *in_checkpoint(cpl_run_record *run, const char *name)
{
    cpl_strings names = {0};
    char part[600];
    snprintf(part, sizeof part, "last/%s", name);
    const char *path = find(&run->pool, run->folder, part);
    if (path || cpl_folder_list(&names, run->folder) != CPL_OK) return path;
    for (int64_t i = names.count; i-- > 0 && !path;) {
        if (strncmp(names.at[i], "step-", 5) != 0) continue;
        snprintf(part, sizeof part, "%.500s/%s", names.at[i], name);
        path = find(&run->pool, run->folder, part);
    }
    cpl_paths_free(&names);
    return path;
}

static void read_fingerprint(cpl_run_record *run)
{
    json_t *state     = NULL;
    const char *words = NULL, *path = run->data ? NULL : in_checkpoint(run, "state.json");
    if (path && cpl_json_load(&state, path) == CPL_OK)
        words = json_string_value(json_object_get(state, "data"));
    if (words) run->data = cpl_pool_copy(&run->pool, words, strlen(words));
    json_decref(state);
}

static void read_tokenizer(cpl_run_record *run)
{
    uint64_t hash    = 0;
    const char *path = run->tokenizer ? NULL : in_checkpoint(run, "tokenizer.json");
    if (path && cpl_file_hash(&hash, path) == CPL_OK)
        run->tokenizer = cpl_pool_printf(&run->pool, "%016" PRIx64, hash);
}

/* ---- the whole ---- */

/* Called only if all steps are made, because the test holds the lock for a moment. */
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

static void finish_record(cpl_run_record *run)
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
    CPL_TRY_DONE(cpl_run_dir_check(folder));
    run->name = name_of(run);
    CPL_TRY_DONE(read_files(run));
    read_fingerprint(run);
    read_tokenizer(run);
    finish_record(run);
    status = cpl_pool_status(&run->pool);
done:
    if (status != CPL_OK) cpl_run_record_close(run);
    return status;
}

void cpl_run_record_close(cpl_run_record *run)
{
    cpl_yaml_flat_free(&run->settings);
    cpl_free(run->lines);
    cpl_paths_free(&run->sources);
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
            runs[k].duplicate = cpl_pool_copy(&runs[k].pool, folders[i], strlen(folders[i]));
        CPL_TRY(cpl_pool_status(&runs[k].pool));
    }
    return CPL_OK;
}

/* ---- look-up ---- */

const cpl_run_line *cpl_run_last(const cpl_run_record *run)
{
    return run->n_lines ? &run->lines[run->n_lines - 1] : NULL;
}

const cpl_run_line *cpl_run_line_before(const cpl_run_record *run, double tokens)
{
    int64_t low = 0, high = run->n_lines; /* lines below `low`: at or before; from `high`: after */
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
        if (strcmp(run->sources.at[i], source) == 0) return line->sources[i];
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

static cpl_status read_json(json_t **out, cpl_pool *pool, const cpl_run_record *run,
                            const char *name)
{
    const char *path = find_stored(pool, run->folder, name);
    cpl_text text    = {0};
    if (!path) return cpl_pool_status(pool);
    cpl_status status = read_whole(&text, path);
    if (status == CPL_OK)
        status = cpl_json_parse(out, text.bytes ? text.bytes : "", text.length, path);
    cpl_text_free(&text);
    return status;
}

cpl_status cpl_run_files(json_t *files[2], const char **reason, cpl_pool *pool,
                         const cpl_run_record *const runs[2], const char *name,
                         const char *(*fault)(cpl_pool *pool, const json_t *file))
{
    cpl_status status = CPL_OK;
    files[0] = files[1] = NULL;
    for (int i = 0; i < 2 && status != CPL_ERR_MEMORY; i++) {
        status            = read_json(&files[i], pool, runs[i], name);
        const char *wrong = files[i] && fault ? fault(pool, files[i]) : NULL;
        if (status != CPL_OK) *reason = cpl_pool_printf(pool, "%s", cpl_last_error());
        if (wrong) *reason = cpl_pool_printf(pool, "%s/%s: %s", runs[i]->folder, name, wrong);
    }
    if (status != CPL_ERR_MEMORY) return CPL_OK;
    json_decref(files[0]);
    json_decref(files[1]);
    return status;
}
