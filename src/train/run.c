/* run.c - see run.h */
#include "train/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "store/run_dir.h"
#include "train/metrics.h"

static cpl_status take_lock(cpl_run *run)
{
    char *path = cpl_run_path(run, "lock");
    if (!path) return CPL_ERR_MEMORY;
    cpl_status status = cpl_file_lock(&run->lock, path, false);
    cpl_free(path);
    if (status == CPL_OK && run->lock < 0)
        status =
            CPL_FAIL(CPL_ERR_INPUT, "%s: another process is training in this folder", run->folder);
    return status;
}

static bool has(const cpl_run *run, const char *name)
{
    char *path       = cpl_run_path(run, name);
    const bool there = path && cpl_path_exists(path);
    cpl_free(path);
    return there;
}

static cpl_status check_resumable(const cpl_run *run);

static cpl_status refuse_old_run(const cpl_run *run)
{
    char found[CPL_RUN_DIR_NAME_BYTES] = "config.yaml";
    if (!cpl_path_is_folder(run->folder)) return CPL_OK;
    if (!has(run, found)) CPL_TRY(cpl_run_dir_trace(found, run->folder));
    if (!found[0]) return CPL_OK;
    if (has(run, "config.yaml") && check_resumable(run) == CPL_OK)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s holds a run already (%s): go on with `couplet train --resume %s`, or "
                        "name another folder with --out",
                        run->folder, found, run->folder);
    return CPL_FAIL(CPL_ERR_INPUT, "%s holds a run already (%s): name another folder with --out",
                    run->folder, found);
}

/* Checks the folder. A folder with a lock is a run, even one killed before its first step. */
static cpl_status check_place(cpl_run *run)
{
    cpl_strings names = {0};
    if (has(run, "lock")) return CPL_OK;
    CPL_TRY(refuse_old_run(run));
    if (cpl_path_is_folder(run->folder)) CPL_TRY(cpl_folder_list(&names, run->folder));
    run->made = names.count == 0;
    cpl_paths_free(&names);
    if (run->made) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: is not a run and not empty: name another folder with --out, or empty it",
                    run->folder);
}

cpl_status cpl_run_check_place(const char *folder)
{
    cpl_run run = {.folder = (char *)(uintptr_t)folder};
    CPL_TRY(check_place(&run));
    return refuse_old_run(&run);
}

/* Checks that the file system supports links, which `last` needs, before the first checkpoint. */
static cpl_status try_link(const cpl_run *run)
{
    char *path = cpl_run_path(run, ".tmp-link");
    if (!path) return CPL_ERR_MEMORY;
    cpl_status status = CPL_OK;
    unlink(path);
    if (symlink("last", path) != 0)
        status = CPL_FAIL(CPL_ERR_IO,
                          "%s: no symbolic link can be made here, as `last` of a run is (%s): name "
                          "a folder on another file system",
                          run->folder, strerror(errno));
    else
        unlink(path);
    cpl_free(path);
    return status;
}

/* ---- runs without a checkpoint ---- */

static const char unsaved[] = "no checkpoint yet\n";

static cpl_status mark_unsaved(const cpl_run *run)
{
    const ssize_t length = sizeof unsaved - 1;
    if (pwrite(run->lock, unsaved, (size_t)length, 0) == length && fsync(run->lock) == 0)
        return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s/lock: cannot be written: %s", run->folder, strerror(errno));
}

/* Empties the lock. A failure is ignored, since the checkpoint itself is complete. */
void cpl_run_saved(const cpl_run *run)
{
    while (run->lock >= 0 && ftruncate(run->lock, 0) != 0 && errno == EINTR) continue;
}

/* Returns whether the lock records that no checkpoint was saved. The lock is read before it is
 * taken, so that a refused folder is not changed. */
static bool was_never_saved(const cpl_run *run)
{
    char *path       = cpl_run_path(run, "lock");
    cpl_text words   = {0};
    const bool never = path && cpl_file_read(&words, path, sizeof unsaved) == CPL_OK &&
                       words.bytes && strcmp(words.bytes, unsaved) == 0;
    cpl_text_free(&words);
    cpl_free(path);
    return never;
}

static cpl_status check_resumable(const cpl_run *run)
{
    char found[CPL_RUN_DIR_NAME_BYTES];
    const bool packed = has(run, "metrics.jsonl.gz") || has(run, "metrics.jsonl.zst");
    if (cpl_run_dir_has_checkpoint(run->folder)) {
        if (!packed || has(run, "metrics.jsonl")) return CPL_OK;
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its metrics are compressed: unpack them to metrics.jsonl to go on",
                        run->folder);
    }
    CPL_TRY(cpl_run_dir_trace(found, run->folder));
    if (strncmp(found, "metrics", 7) != 0 || (!packed && was_never_saved(run))) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: has %s and no checkpoint: there is nothing to resume, and beginning again "
                    "would replace its record; begin a new run with `couplet train %s/config.yaml "
                    "--out NEW`",
                    run->folder, found, run->folder);
}

/* ---- opening ---- */

cpl_status cpl_run_open(cpl_run *run, const char *folder, int fresh)
{
    cpl_status status = CPL_OK;
    memset(run, 0, sizeof *run);
    run->lock   = -1;
    run->folder = cpl_text_copy(folder);
    if (!run->folder) return CPL_ERR_MEMORY;
    if (!fresh && !cpl_path_is_folder(folder)) {
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: there is no such run", folder);
        goto done;
    }
    CPL_TRY_DONE(fresh ? check_place(run) : check_resumable(run));
    run->existing = cpl_path_existing(folder);
    CPL_TRY_DONE(cpl_folder_make(folder));
    CPL_TRY_DONE(take_lock(run));
    if (fresh) CPL_TRY_DONE(refuse_old_run(run));
    CPL_TRY_DONE(try_link(run));
    if (fresh) status = mark_unsaved(run);
done:
    if (status != CPL_OK) cpl_run_close(run);
    return status;
}

cpl_status cpl_run_follow(cpl_run *run, const char *folder)
{
    memset(run, 0, sizeof *run);
    run->lock   = -1;
    run->folder = cpl_text_copy(folder);
    return run->folder ? CPL_OK : CPL_ERR_MEMORY;
}

void cpl_run_keep(cpl_run *run)
{
    run->made = false;
}

void cpl_run_close(cpl_run *run)
{
    if (run->metrics) fclose(run->metrics);
    if (run->made && run->lock >= 0) cpl_folder_empty(run->folder, "lock"); /* see check_place */
    if (run->made) cpl_folder_unmake(run->folder, run->existing);
    if (run->lock >= 0) close(run->lock);
    cpl_free(run->folder);
    memset(run, 0, sizeof *run);
    run->lock = -1;
}

char *cpl_run_path(const cpl_run *run, const char *name)
{
    return cpl_path_join(run->folder, name);
}

cpl_status cpl_run_open_metrics(cpl_run *run, int64_t step, int64_t lines, const cpl_log *log)
{
    char *path = cpl_run_path(run, "metrics.jsonl");
    if (!path) return CPL_ERR_MEMORY;
    cpl_status status = cpl_metrics_file_open(&run->metrics, &run->lines, path, step, lines, log);
    cpl_free(path);
    return status;
}

static char *dump(json_t *object)
{
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (text && cpl_json_check("metrics.jsonl") == CPL_OK) return text;
    (void)CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a line of metrics");
    cpl_json_text_free(text);
    return NULL;
}

static cpl_status cannot_write(const cpl_run *run)
{
    return CPL_FAIL(CPL_ERR_IO, "%s/metrics.jsonl: cannot be written: %s", run->folder,
                    strerror(errno));
}

cpl_status cpl_run_log(cpl_run *run, json_t *line)
{
    char *text = dump(line);
    if (!text) return CPL_ERR_MEMORY;
    int failed = fprintf(run->metrics, "%s\n", text) < 0;
    failed |= fflush(run->metrics) != 0;
    cpl_json_text_free(text);
    if (failed) return cannot_write(run);
    run->lines++;
    return CPL_OK;
}

cpl_status cpl_run_sync(const cpl_run *run)
{
    return run->metrics && fsync(fileno(run->metrics)) != 0 ? cannot_write(run) : CPL_OK;
}

cpl_status cpl_run_write(const cpl_run *run, const char *name, json_t *object)
{
    char *text = dump(object), *path = cpl_run_path(run, name);
    cpl_status status = CPL_ERR_MEMORY;
    if (text && path) {
        size_t length = strlen(text);
        text[length]  = '\n'; /* replaces the NUL */
        status        = cpl_file_write_atomic(path, text, length + 1);
    }
    cpl_json_text_free(text);
    cpl_free(path);
    return status;
}
