/* checkpoint.c - see checkpoint.h */
#include "store/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/weights.h"
#include "io/file.h"
#include "io/json.h"
#include "store/hf.h"
#include "store/named.h"

enum { NAME_BYTES = 64 };

static const int64_t MOST_STEPS = 1000000000000; /* the bound of train.steps */

void cpl_checkpoint_clean(const char *run)
{
    char **names  = NULL;
    int64_t count = 0;
    if (cpl_folder_list(&names, &count, run) != CPL_OK) return;
    for (int64_t i = 0; i < count; i++) {
        char *path = strstr(names[i], ".tmp-") ? cpl_path_join(run, names[i]) : NULL;
        if (path && unlink(path) != 0) cpl_folder_remove(path);
        cpl_free(path);
    }
    cpl_folder_list_free(names, count);
}

/* ---- check sums ---- */

static cpl_status write_checksums(const char *folder)
{
    cpl_status status = CPL_OK;
    char **names      = NULL;
    int64_t count     = 0;
    json_t *sums      = json_object();
    char *path        = cpl_path_join(folder, "checksums.json");
    if (!path || !sums) status = CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_folder_list(&names, &count, folder);
    for (int64_t i = 0; status == CPL_OK && i < count; i++) {
        char hex[17], *file = cpl_path_join(folder, names[i]);
        uint64_t hash = 0;
        status        = file ? cpl_file_hash(&hash, file) : CPL_ERR_MEMORY;
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
        (void)json_object_set_new(sums, names[i], json_string(hex));
        cpl_free(file);
    }
    if (status == CPL_OK) status = cpl_json_write_atomic(path, sums, JSON_INDENT(2));
    cpl_folder_list_free(names, count);
    json_decref(sums);
    cpl_free(path);
    return status;
}

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

/* Without these there is nothing to go on with, so a list that leaves one out is no list. */
static cpl_status check_complete(const json_t *sums, const char *where)
{
    static const char *const needed[] = {"config.json", "model.safetensors", "state.json",
                                         "state.safetensors"};
    if (!json_is_object(sums)) return CPL_FAIL(CPL_ERR_INPUT, "%s: not a JSON object", where);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!json_object_get(sums, needed[i]))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: there is no check sum of %s", where, needed[i]);
    return CPL_OK;
}

cpl_status cpl_checkpoint_verify(const char *folder, bool *checked)
{
    json_t *sums      = NULL, *sum;
    const char *name  = NULL;
    cpl_status status = CPL_OK;
    char *path        = cpl_path_join(folder, "checksums.json");
    if (!path) return CPL_ERR_MEMORY;
    *checked = cpl_path_exists(path);
    if (*checked) status = cpl_json_load(&sums, path);
    if (status == CPL_OK && sums) status = check_complete(sums, path);
    if (status == CPL_OK && sums) json_object_foreach(sums, name, sum)
        {
            if (status == CPL_OK && !strchr(name, '/')) status = verify_file(folder, name, sum);
        }
    json_decref(sums);
    cpl_free(path);
    return status;
}

cpl_status cpl_checkpoint_verify_model(const char *folder, int64_t most_bytes)
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

/* ---- saving ---- */

static cpl_status moments(cpl_named_list *list, const cpl_checkpoint *c)
{
    CPL_TRY(cpl_named_params(list, c->m, &c->model->config, "m."));
    return cpl_named_params(list, c->v, &c->model->config, "v.");
}

static cpl_status write_state(const char *folder, const cpl_checkpoint *c)
{
    cpl_named_list list = {0};
    cpl_status status   = CPL_ERR_MEMORY;
    char *tensors       = cpl_path_join(folder, "state.safetensors");
    char *json          = cpl_path_join(folder, "state.json");
    if (!tensors || !json) goto done;
    (void)json_object_set_new(c->state, "step", json_integer(c->step));
    CPL_TRY_DONE(moments(&list, c));
    CPL_TRY_DONE(cpl_named_write(&list, tensors, NULL));
    CPL_TRY_DONE(cpl_json_write_atomic(json, c->state, JSON_INDENT(2)));
done:
    cpl_named_free(&list);
    cpl_free(tensors);
    cpl_free(json);
    return status;
}

static cpl_status write_folder(const char *folder, const cpl_checkpoint *c)
{
    if (mkdir(folder, 0777) != 0)
        return CPL_FAIL(CPL_ERR_IO, "%s: the folder cannot be made: %s", folder, strerror(errno));
    CPL_TRY(cpl_hf_save(folder, c->model, c->tokens, c->tokenizer));
    CPL_TRY(write_state(folder, c));
    CPL_TRY(write_checksums(folder));
    return cpl_folder_sync(folder);
}

static cpl_status move(const char *from, const char *to)
{
    return rename(from, to) == 0
               ? CPL_OK
               : CPL_FAIL(CPL_ERR_IO, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
}

/* `last` becomes a link to `name` without a moment in which there is none. */
static cpl_status point_last(const char *run, const char *name)
{
    char *fresh = cpl_path_join(run, ".tmp-last"), *last = cpl_path_join(run, "last");
    cpl_status status = fresh && last ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK) {
        unlink(fresh);
        if (symlink(name, fresh) != 0)
            status =
                CPL_FAIL(CPL_ERR_IO, "%s: the link cannot be made: %s", fresh, strerror(errno));
    }
    if (status == CPL_OK) {
        status = move(fresh, last);
        if (status != CPL_OK) unlink(fresh);
    }
    if (status == CPL_OK) status = cpl_folder_sync(run);
    cpl_free(fresh);
    cpl_free(last);
    return status;
}

/* "step-NNNNNN" -> NNNNNN; -1 for another name. */
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

/* A folder is renamed first, so that none is ever half there. Later ones can only be left over from before the run went back to an earlier
 * checkpoint: they neither count nor go. */
void cpl_checkpoint_prune(const char *run, int64_t step, int64_t keep)
{
    char **names  = NULL;
    int64_t count = 0, steps = 0;
    if (cpl_folder_list(&names, &count, run) != CPL_OK) return;
    qsort(names, (size_t)count, sizeof *names, by_step);
    for (int64_t i = 0; i < count; i++)
        steps += step_of(names[i]) >= 0 && step_of(names[i]) <= step;
    char *doomed = cpl_path_join(run, ".tmp-old");
    for (int64_t i = 0; doomed && i < count; i++) {
        if (step_of(names[i]) < 0 || steps-- <= keep) continue;
        char *path = cpl_path_join(run, names[i]);
        if (path && rename(path, doomed) == 0) cpl_folder_remove(doomed);
        cpl_free(path);
    }
    cpl_free(doomed);
    cpl_folder_list_free(names, count);
}

cpl_status cpl_checkpoint_save(const char *run, const cpl_checkpoint *c, int64_t keep)
{
    char name[NAME_BYTES];
    cpl_status status = CPL_ERR_MEMORY;
    snprintf(name, sizeof name, "step-%06lld", (long long)c->step);
    char *fresh = cpl_path_join(run, ".tmp-step"), *path = cpl_path_join(run, name);
    char *old = cpl_path_join(run, ".tmp-old");
    if (!fresh || !path || !old) goto done;
    cpl_folder_remove(fresh);
    CPL_TRY_DONE(write_folder(fresh, c));
    if (cpl_path_exists(path)) { /* the same step saved again: the old one steps aside */
        CPL_TRY_DONE(move(path, old));
        cpl_folder_remove(old);
    }
    CPL_TRY_DONE(move(fresh, path));
    CPL_TRY_DONE(cpl_folder_sync(run));
    CPL_TRY_DONE(point_last(run, name));
    cpl_checkpoint_prune(run, c->step, keep);
done:
    if (status != CPL_OK && fresh) cpl_folder_remove(fresh);
    cpl_free(fresh);
    cpl_free(path);
    cpl_free(old);
    return status;
}

/* ---- loading ---- */

/* The newest step-NNNNNN of the run; "" if it has none. */
static void newest(char name[NAME_BYTES], const char *run)
{
    char **names  = NULL;
    int64_t count = 0, most = -1;
    if (cpl_folder_list(&names, &count, run) != CPL_OK) return;
    for (int64_t i = 0; i < count; i++) {
        if (step_of(names[i]) <= most || strlen(names[i]) >= NAME_BYTES) continue;
        most = step_of(names[i]);
        snprintf(name, NAME_BYTES, "%s", names[i]);
    }
    cpl_folder_list_free(names, count);
}

bool cpl_checkpoint_exists(const char *run)
{
    char name[NAME_BYTES] = "", *last = cpl_path_join(run, "last");
    bool linked = last && cpl_path_exists(last);
    cpl_free(last);
    if (!linked) newest(name, run);
    return linked || name[0];
}

cpl_status cpl_checkpoint_last(char **folder, const char *run)
{
    char name[NAME_BYTES] = "", *link = cpl_path_join(run, "last");
    if (!link) return CPL_ERR_MEMORY;
    ssize_t length = readlink(link, name, sizeof name - 1);
    cpl_free(link);
    if (length < 0) newest(name, run); /* killed before the first link, or copied without links */
    if (length >= NAME_BYTES - 1 || step_of(name) < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: `last` does not lead to a checkpoint; the run saved none yet", run);
    *folder = cpl_path_join(run, name);
    if (!*folder) return CPL_ERR_MEMORY;
    if (cpl_path_is_folder(*folder)) return CPL_OK;
    cpl_free(*folder);
    *folder = NULL;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: `last` leads to %s, which is not there", run, name);
}

cpl_status cpl_checkpoint_resolve(char **folder, const char *path)
{
    char *last = cpl_path_join(path, "last"), *config = cpl_path_join(path, "config.json");
    cpl_status status = CPL_ERR_MEMORY;
    if (last && config) {
        status = CPL_OK;
        if (!cpl_path_is_folder(path))
            status = CPL_FAIL(CPL_ERR_INPUT, "%s: there is no such folder", path);
        else if (!cpl_path_exists(config) && cpl_path_exists(last))
            status = cpl_checkpoint_last(folder, path);
        else if (!(*folder = cpl_text_copy(path)))
            status = CPL_ERR_MEMORY;
    }
    cpl_free(last);
    cpl_free(config);
    return status;
}

static cpl_status load_state(const char *folder, cpl_checkpoint *c, const cpl_log *log)
{
    cpl_named_list list  = {0};
    cpl_weights *weights = NULL;
    cpl_status status    = CPL_ERR_MEMORY;
    char *tensors        = cpl_path_join(folder, "state.safetensors");
    char *json           = cpl_path_join(folder, "state.json");
    if (!tensors || !json) goto done;
    CPL_TRY_DONE(cpl_json_load(&c->state, json));
    CPL_TRY_DONE(cpl_json_int(c->state, "step", &c->step, 0, MOST_STEPS, json));
    CPL_TRY_DONE(cpl_weights_open(&weights, tensors, log));
    CPL_TRY_DONE(moments(&list, c));
    CPL_TRY_DONE(cpl_named_read(&list, weights));
done:
    cpl_named_free(&list);
    cpl_weights_close(weights);
    cpl_free(tensors);
    cpl_free(json);
    return status;
}

cpl_status cpl_checkpoint_load(const char *folder, cpl_checkpoint *c, const cpl_log *log)
{
    cpl_hf *hf        = NULL;
    bool checked      = false;
    cpl_status status = CPL_OK;
    CPL_TRY(cpl_checkpoint_verify(folder, &checked));
    if (!checked)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: checksums.json is not there; this is no whole "
                        "checkpoint of a run",
                        folder);
    CPL_TRY(cpl_hf_open(&hf, folder, NULL));
    CPL_TRY_DONE(cpl_hf_config_agrees(&c->model->config, cpl_hf_config(hf), NULL, folder));
    CPL_TRY_DONE(cpl_hf_load(hf, c->model));
    CPL_TRY_DONE(load_state(folder, c, log));
done:
    cpl_hf_close(hf);
    return status;
}
