/* run_dir.c - see run_dir.h */
#include "store/run_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

enum { NAME_BYTES = CPL_RUN_DIR_NAME_BYTES };

/* ---- check sums ---- */

static cpl_status verify_file(const char *folder, const char *name, const json_t *sum)
{
    char hex[17];
    uint64_t hash     = 0;
    char *path        = cpl_path_join(folder, name);
    cpl_status status = path ? cpl_file_hash(&hash, path) : CPL_ERR_MEMORY;
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    if (status == CPL_OK && (!json_is_string(sum) || strcmp(json_string_value(sum), hex) != 0))
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: the check sum is %s, checksums.json says %s: the file was changed "
                          "or damaged after it was saved",
                          path, hex, json_is_string(sum) ? json_string_value(sum) : "nothing");
    cpl_free(path);
    return status;
}

/* Checks that the list has the files without which a run cannot be resumed. For tensors either the
 * file or the index is enough. */
static cpl_status check_complete(const json_t *sums, const char *where)
{
    static const char *const needed[][2] = {
        {"config.json"},
        {"model.safetensors", "model.safetensors.index.json"},
        {"state.json"},
        {"state.safetensors", "state.safetensors.index.json"},
    };
    if (!json_is_object(sums)) return CPL_FAIL(CPL_ERR_INPUT, "%s: not a JSON object", where);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!json_object_get(sums, needed[i][0]) &&
            !(needed[i][1] && json_object_get(sums, needed[i][1])))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: the check sum of %s is missing", where,
                            needed[i][0]);
    return CPL_OK;
}

cpl_status cpl_run_dir_verify(const char *folder, bool *checked)
{
    return cpl_run_dir_verify_share(folder, 0, 1, checked);
}

cpl_status cpl_run_dir_verify_share(const char *folder, int first, int every, bool *checked)
{
    json_t *sums      = NULL, *sum;
    const char *name  = NULL;
    int number        = 0;
    cpl_status status = CPL_OK;
    char *path        = cpl_path_join(folder, "checksums.json");
    if (!path) return CPL_ERR_MEMORY;
    *checked = cpl_path_exists(path);
    if (*checked) status = cpl_json_load(&sums, path);
    if (status == CPL_OK && sums) status = check_complete(sums, path);
    if (status == CPL_OK && sums) json_object_foreach(sums, name, sum)
        {
            const bool is_own = number++ % every == first;
            if (status == CPL_OK && is_own && !strchr(name, '/'))
                status = verify_file(folder, name, sum);
        }
    json_decref(sums);
    cpl_free(path);
    return status;
}

cpl_status cpl_run_dir_verify_model(const char *folder, int64_t most_bytes)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    struct stat model;
    json_t *sums      = NULL;
    cpl_status status = CPL_ERR_MEMORY;
    char *path        = cpl_path_join(folder, "checksums.json"),
         *weights     = cpl_path_join(folder, files[1]);
    if (path && weights) {
        const bool wanted =
            cpl_path_exists(path) && stat(weights, &model) == 0 && model.st_size <= most_bytes;
        status = wanted ? cpl_json_load(&sums, path) : CPL_OK;
    }
    for (int i = 0; sums && status == CPL_OK && i < 2; i++)
        status = verify_file(folder, files[i], json_object_get(sums, files[i]));
    json_decref(sums);
    cpl_free(path);
    cpl_free(weights);
    return status;
}

/* ---- names ---- */

/* Returns the number in a name "step-NNNNNN", or -1 for another name. */
static int64_t step_of(const char *name)
{
    char *end = NULL;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    long long step = strtoll(name + 5, &end, 10);
    return *end ? -1 : (int64_t)step;
}

static int by_step(const void *a, const void *b)
{
    int64_t x = step_of(*(char *const *)a), y = step_of(*(char *const *)b);
    return x < y ? -1 : x > y;
}

/* ---- kinds of folders ---- */

/* The relevant names in a folder. */
typedef struct contents {
    bool weights, last, config_yaml, config_json, state, shards;
    char newest[NAME_BYTES], trace[NAME_BYTES]; /* cpl_run_dir_trace */
} contents;

static void note_name(contents *c, const char *name)
{
    const struct {
        const char *name;
        bool *there;
    } files[] = {{"last", &c->last},
                 {"config.yaml", &c->config_yaml},
                 {"state.json", &c->state},
                 {"config.json", &c->config_json},
                 {"shards.json", &c->shards}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        *files[i].there |= strcmp(name, files[i].name) == 0;
    c->weights |= cpl_path_ends_in(name, ".safetensors") || cpl_path_is_gguf(name) ||
                  cpl_path_ends_in(name, ".safetensors.index.json");
    const bool metrics = !strcmp(name, "metrics.jsonl") || !strcmp(name, "metrics.jsonl.gz") ||
                         !strcmp(name, "metrics.jsonl.zst");
    if (metrics || (!c->trace[0] && !strcmp(name, "start.json")))
        snprintf(c->trace, NAME_BYTES, "%s", name);
    if (strlen(name) < NAME_BYTES && step_of(name) > step_of(c->newest))
        snprintf(c->newest, NAME_BYTES, "%s", name);
}

static cpl_status list_contents(contents *c, const char *folder)
{
    cpl_strings names = {0};
    *c                = (contents){0};
    CPL_TRY(cpl_folder_list(&names, folder));
    for (int64_t i = 0; i < names.count; i++) note_name(c, names.at[i]);
    cpl_paths_free(&names);
    /* step 0 is from a run with --from that was killed before its first step */
    if (step_of(c->newest) > 0) memcpy(c->trace, c->newest, NAME_BYTES);
    return CPL_OK;
}

/* Returns whether the folder holds a run that has begun, with or without other files. */
static bool is_begun_run(const contents *c)
{
    return c->config_yaml && (c->trace[0] || c->last || c->newest[0]);
}

/* Returns true for a folder that cannot be listed, so that its reader reports the reason. */
bool cpl_run_dir_has_checkpoint(const char *run)
{
    contents c;
    if (!cpl_path_is_folder(run)) return false;
    return list_contents(&c, run) != CPL_OK || c.last || c.newest[0];
}

cpl_status cpl_run_dir_trace(char name[NAME_BYTES], const char *folder)
{
    contents c;
    CPL_TRY(list_contents(&c, folder));
    memcpy(name, c.trace, NAME_BYTES);
    return CPL_OK;
}

cpl_status cpl_run_dir_check(const char *folder)
{
    contents c;
    if (!cpl_path_exists(folder))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: no such folder: name the folder of a run", folder);
    if (!cpl_path_is_folder(folder))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: is not the folder of a run", folder);
    CPL_TRY(list_contents(&c, folder));
    if (is_begun_run(&c) || (c.config_yaml && !c.weights)) return CPL_OK;
    if (c.state)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a checkpoint, not a run; name the folder of the run, in which it "
                        "lies",
                        folder);
    if (c.weights || c.config_json)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a model directory, not a run: it has no metrics of training",
                        folder);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is no run: it has %s%sno config.yaml", folder, c.trace,
                    c.trace[0] ? " but " : "");
}

/* ---- checkpoints of a run ---- */

static bool is_whole(const char *run, const char *name)
{
    char *folder     = cpl_path_join(run, name);
    bool checked     = false;
    const bool whole = folder && cpl_run_dir_verify(folder, &checked) == CPL_OK && checked;
    cpl_free(folder);
    return whole;
}

/* Returns the quotes that a shell needs around the path. */
static const char *quote_of(const char *run)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+";
    return !run[strspn(run, plain)] ? "" : strchr(run, '\'') ? "\"" : "'";
}

/* Returns the error for a `last` that leads to no checkpoint. `what` describes its target. */
static cpl_status leads_nowhere(const char *run, const char *name, const char *what)
{
    const char *quote = quote_of(run);
    cpl_strings names = {0};
    CPL_TRY(cpl_folder_list(&names, run));
    int64_t at = names.count - 1;
    if (at > 0) qsort(names.at, (size_t)names.count, sizeof *names.at, by_step);
    while (at >= 0 && step_of(names.at[at]) >= 0 && !is_whole(run, names.at[at])) at--;
    const char *whole = at >= 0 && step_of(names.at[at]) >= 0 ? names.at[at] : NULL;
    cpl_status status =
        whole ? CPL_FAIL(CPL_ERR_INPUT,
                         "%s: `last` leads to %s, which is %s; the newest whole checkpoint "
                         "is %s: `ln -sfn %s %s%s/last%s` makes it the last one",
                         run, name, what, whole, whole, quote, run, quote)
              : CPL_FAIL(CPL_ERR_INPUT,
                         "%s: `last` leads to %s, which is %s, and no other checkpoint is "
                         "whole",
                         run, name, what);
    cpl_paths_free(&names);
    return status;
}

/* Returns the error for a `last` that is not a link: usually a copy of the checkpoint, made by a
 * program that follows links. `last` is the path. */
static cpl_status last_is_no_link(const char *run, const char *last)
{
    char name[NAME_BYTES];
    int64_t step  = -1;
    json_t *state = NULL;
    char *path = cpl_path_join(last, "state.json"), *own = NULL;
    if (path && cpl_path_exists(path) && cpl_json_load(&state, path) == CPL_OK)
        step = json_integer_value(json_object_get(state, "step"));
    json_decref(state);
    cpl_free(path);
    if (step < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: `last` is neither a link nor a checkpoint of a run: move it away, and "
                        "the newest checkpoint counts",
                        run);
    snprintf(name, sizeof name, "step-%06lld", (long long)step);
    own = cpl_path_join(run, name);
    if (!own) return CPL_ERR_MEMORY;
    const bool twice = cpl_path_exists(own);
    const char *q    = quote_of(run);
    cpl_free(own);
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: `last` is a folder, not a link: `mv %s%s/last%s %s%s/%s%s && ln -s %s "
                    "%s%s/last%s` makes it one",
                    run, q, run, q, q, run, twice ? "copy-of-last" : name, q, name, q, run, q);
}

cpl_status cpl_run_dir_last(char **folder, const char *run)
{
    contents c;
    char name[4096] = "", *link = cpl_path_join(run, "last");
    if (!link) return CPL_ERR_MEMORY;
    const ssize_t length = readlink(link, name, sizeof name - 1);
    cpl_status status    = CPL_OK;
    if (length < 0 && errno == EINVAL)
        status = last_is_no_link(run, link);
    else if (length < 0 && errno != ENOENT)
        status = CPL_FAIL(CPL_ERR_IO, "%s: cannot be read: %s", link, strerror(errno));
    cpl_free(link);
    CPL_TRY(status);
    if (length < 0) { /* no link: the run was killed before its first link, or copied without
                         links */
        CPL_TRY(list_contents(&c, run));
        memcpy(name, c.newest, NAME_BYTES);
    }
    if (length >= 0 && (length >= NAME_BYTES - 1 || step_of(name) < 0))
        return leads_nowhere(run, name, "not the name of a checkpoint in this folder");
    if (step_of(name) < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: `last` does not lead to a checkpoint; the run saved none yet", run);
    *folder = cpl_path_join(run, name);
    if (!*folder) return CPL_ERR_MEMORY;
    if (cpl_path_is_folder(*folder)) return CPL_OK;
    cpl_free(*folder);
    *folder = NULL;
    return leads_nowhere(run, name, "not there");
}

/* Returns a folder without weights and checkpoints unchanged, so that its reader reports what is
 * missing. */
cpl_status cpl_run_dir_resolve(char **folder, const char *path)
{
    contents c;
    if (!cpl_path_is_folder(path)) return CPL_FAIL(CPL_ERR_INPUT, "%s: no such folder", path);
    CPL_TRY(list_contents(&c, path));
    const bool own = c.weights && !is_begun_run(&c);
    if (!own && (c.last || c.newest[0])) return cpl_run_dir_last(folder, path);
    if (!own && c.trace[0])
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a run without a checkpoint: it has %s, and no weights", path,
                        c.trace);
    if (!own && c.shards)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: is a folder of token shards, not a model", path);
    *folder = cpl_text_copy(path);
    return *folder ? CPL_OK : CPL_ERR_MEMORY;
}

/* ---- removing ---- */

/* Renames a folder before it is removed, so that no folder is ever incomplete. Steps later than
 * `step` are from before the run was resumed at an earlier checkpoint. They are neither counted nor
 * removed. */
void cpl_run_dir_prune(const char *run, int64_t step, int64_t keep)
{
    cpl_strings names = {0};
    int64_t steps     = 0;
    if (cpl_folder_list(&names, run) != CPL_OK) return;
    qsort(names.at, (size_t)names.count, sizeof *names.at, by_step);
    for (int64_t i = 0; i < names.count; i++)
        steps += step_of(names.at[i]) >= 0 && step_of(names.at[i]) <= step;
    char *doomed = cpl_path_join(run, ".tmp-old");
    for (int64_t i = 0; doomed && i < names.count; i++) {
        if (step_of(names.at[i]) < 0 || steps-- <= keep) continue;
        char *path = cpl_path_join(run, names.at[i]);
        if (path && rename(path, doomed) == 0) cpl_folder_remove(doomed);
        cpl_free(path);
    }
    cpl_free(doomed);
    cpl_paths_free(&names);
}

void cpl_run_dir_clean(const char *run)
{
    cpl_strings names = {0};
    if (cpl_folder_list(&names, run) != CPL_OK) return;
    for (int64_t i = 0; i < names.count; i++) {
        char *path = strstr(names.at[i], ".tmp-") ? cpl_path_join(run, names.at[i]) : NULL;
        if (path && unlink(path) != 0) cpl_folder_remove(path);
        cpl_free(path);
    }
    cpl_paths_free(&names);
}
