/* checkpoint.c - see checkpoint.h */
#include "store/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/stored.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "store/hf.h"
#include "store/named.h"
#include "store/run_dir.h"

enum { NAME_BYTES = 64 };

static const int64_t MOST_STEPS = 1000000000000; /* the bound of train.steps */

/* ---- check sums ---- */

static cpl_status write_checksums(const char *folder)
{
    cpl_status status = CPL_OK;
    cpl_strings names = {0};
    json_t *sums      = json_object();
    char *path        = cpl_path_join(folder, "checksums.json");
    if (!path || !sums) status = CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_folder_list(&names, folder);
    for (int64_t i = 0; status == CPL_OK && i < names.count; i++) {
        char hex[17], *file = cpl_path_join(folder, names.at[i]);
        uint64_t hash = 0;
        status        = file ? cpl_file_hash(&hash, file) : CPL_ERR_MEMORY;
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
        (void)json_object_set_new(sums, names.at[i], json_string(hex));
        cpl_free(file);
    }
    if (status == CPL_OK) status = cpl_json_write_atomic(path, sums, JSON_INDENT(2));
    cpl_paths_free(&names);
    json_decref(sums);
    cpl_free(path);
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
    CPL_TRY_DONE(cpl_named_write(&list, tensors));
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
    cpl_run_dir_prune(run, c->step, keep);
done:
    if (status != CPL_OK && fresh) cpl_folder_remove(fresh);
    cpl_free(fresh);
    cpl_free(path);
    cpl_free(old);
    return status;
}

/* ---- loading ---- */

static cpl_status load_state(const char *folder, cpl_checkpoint *c, const cpl_log *log)
{
    cpl_named_list list       = {0};
    cpl_stored_files *weights = NULL;
    cpl_status status         = CPL_ERR_MEMORY;
    char *tensors             = cpl_path_join(folder, "state.safetensors");
    char *json                = cpl_path_join(folder, "state.json");
    if (!tensors || !json) goto done;
    CPL_TRY_DONE(cpl_json_load(&c->state, json));
    CPL_TRY_DONE(cpl_json_int(c->state, "step", &c->step, 0, MOST_STEPS, json));
    CPL_TRY_DONE(cpl_stored_open_strict(&weights, tensors, log));
    CPL_TRY_DONE(moments(&list, c));
    CPL_TRY_DONE(cpl_named_read(&list, weights));
done:
    cpl_named_free(&list);
    cpl_stored_close(weights);
    cpl_free(tensors);
    cpl_free(json);
    return status;
}

cpl_status cpl_checkpoint_load(const char *folder, cpl_checkpoint *c, const cpl_log *log)
{
    cpl_hf *hf        = NULL;
    bool checked      = false;
    cpl_status status = CPL_OK;
    CPL_TRY(cpl_run_dir_verify(folder, &checked));
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
