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

static void set_sum(json_t *sums, const char *name, uint64_t hash)
{
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    (void)json_object_set_new(sums, name, json_string(hex));
}

/* Adds the sums of files that `sums` lacks, writes and frees `sums`. NULL gives CPL_ERR_MEMORY. */
static cpl_status write_checksums(const char *folder, json_t *sums)
{
    cpl_strings names = {0};
    cpl_status status = sums ? cpl_folder_list(&names, folder) : CPL_ERR_MEMORY;
    for (int64_t i = 0; status == CPL_OK && i < names.count; i++) {
        if (json_object_get(sums, names.at[i])) continue;
        uint64_t hash = 0;
        char *file    = cpl_path_join(folder, names.at[i]);
        status        = file ? cpl_file_hash(&hash, file) : CPL_ERR_MEMORY;
        set_sum(sums, names.at[i], hash);
        cpl_free(file);
    }
    cpl_paths_free(&names);
    if (status == CPL_OK) return cpl_hf_write_json(folder, "checksums.json", sums);
    json_decref(sums);
    return status;
}

/* ---- saving ---- */

static cpl_status moments(cpl_named_list *list, const cpl_checkpoint *c)
{
    CPL_TRY(cpl_named_params(list, c->m, &c->model->config, "m."));
    return cpl_named_params(list, c->v, &c->model->config, "v.");
}

static const char MEANS[] = "erc.token_means";

static bool has_means(const cpl_checkpoint *c)
{
    return cpl_tensor_is_there(c->token_means);
}

static cpl_status means(cpl_named_list *list, const cpl_checkpoint *c)
{
    return has_means(c) ? cpl_named_add(list, MEANS, c->token_means) : CPL_OK;
}

static cpl_status write_state_json(const char *folder, const cpl_checkpoint *c)
{
    (void)json_object_set_new(c->state, "step", json_integer(c->step));
    if (has_means(c))
        (void)json_object_set_new(c->state, "token_steps", json_integer(c->token_steps));
    return cpl_hf_write_json(folder, "state.json", json_incref(c->state));
}

static cpl_status write_state(const char *folder, const cpl_checkpoint *c)
{
    cpl_named_list list = {.be = c->model->be};
    cpl_status status   = CPL_ERR_MEMORY;
    char *tensors       = cpl_path_join(folder, "state.safetensors");
    if (!tensors) goto done;
    CPL_TRY_DONE(moments(&list, c));
    CPL_TRY_DONE(means(&list, c));
    CPL_TRY_DONE(cpl_named_write(&list, tensors));
    CPL_TRY_DONE(write_state_json(folder, c));
done:
    cpl_named_free(&list);
    cpl_free(tensors);
    return status;
}

static cpl_status make_folder(const char *folder)
{
    if (mkdir(folder, 0777) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s: the folder cannot be made: %s", folder, strerror(errno));
}

static cpl_status write_folder(const char *folder, const cpl_checkpoint *c)
{
    CPL_TRY(make_folder(folder));
    CPL_TRY(cpl_hf_save(folder, c->model, c->tokens, c->tokenizer));
    CPL_TRY(write_state(folder, c));
    CPL_TRY(write_checksums(folder, json_object()));
    return cpl_folder_sync(folder);
}

/* ---- saving a checkpoint of several ranks ---- */

enum { N_PARTS = CPL_SAVED_V + 1 }; /* number of files that a rank writes */

static const char *const prefixes[] = {
    [CPL_SAVED_WEIGHTS] = "", [CPL_SAVED_M] = "m.", [CPL_SAVED_V] = "v."};

/* Sets the name of the file in which rank r writes this set. */
static void part_name(char name[NAME_BYTES], cpl_saved_set which, int r, int ranks)
{
    if (which == CPL_SAVED_WEIGHTS)
        snprintf(name, NAME_BYTES, "model-%05d-of-%05d.safetensors", r + 1, ranks);
    else
        snprintf(name, NAME_BYTES, "state-%05d-of-%05d.safetensors",
                 2 * r + (which == CPL_SAVED_V) + 1, 2 * ranks);
}

static bool is_own(void *ctx, int64_t index, const cpl_param *param, int64_t expert)
{
    const cpl_checkpoint_ranks *r = ctx;
    return r->writer(r->ctx, index, param, expert) == r->world->rank;
}

/* Writes the file of one set and sets *sum to its check sum. */
static cpl_status write_part(int64_t *sum, const char *folder, const cpl_checkpoint *c,
                             cpl_saved_set which, cpl_params *set)
{
    uint64_t hash = 0;
    char name[NAME_BYTES];
    cpl_named_list list           = {.be = c->model->be};
    const cpl_checkpoint_ranks *r = c->ranks;
    part_name(name, which, r->world->rank, r->world->size);
    char *path        = cpl_path_join(folder, name);
    cpl_status status = path ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK)
        status = cpl_named_some(&list, set, &c->model->config, prefixes[which], is_own,
                                (void *)(uintptr_t)r);
    if (status == CPL_OK && which == CPL_SAVED_M && r->world->rank == 0) status = means(&list, c);
    if (status == CPL_OK) status = cpl_named_write(&list, path);
    if (status == CPL_OK) status = cpl_file_hash(&hash, path);
    *sum = (int64_t)hash;
    cpl_named_free(&list);
    cpl_free(path);
    return status;
}

/* Returns an object with the sums of all parts by name, or NULL if memory is not available. */
static json_t *name_sums(const int64_t *sums, int ranks)
{
    json_t *named = json_object();
    for (int i = 0; named && i < N_PARTS * ranks; i++) {
        char name[NAME_BYTES];
        part_name(name, (cpl_saved_set)(i % N_PARTS), i / N_PARTS, ranks);
        set_sum(named, name, (uint64_t)sums[i]);
    }
    return named;
}

/* Adds all names of a set to `map`, with their files, and their bytes to *bytes. */
static void add_names(json_t *map, int64_t *bytes, const cpl_checkpoint *c, cpl_saved_set which)
{
    cpl_model_settings whole      = c->model->config;
    const cpl_checkpoint_ranks *r = c->ranks;
    whole.first_expert = whole.n_local = 0;
    if (which == CPL_SAVED_M && has_means(c)) {
        char file[NAME_BYTES];
        part_name(file, which, 0, r->world->size);
        *bytes += (int64_t)cpl_tensor_bytes(c->token_means);
        (void)json_object_set_new(map, MEANS, json_string(file));
    }
    for (int64_t i = 0; i < cpl_params_count(&whole); i++) {
        const cpl_param p    = cpl_params_at(&whole, i);
        const int64_t parts  = p.per_expert ? p.shape[0] : 1;
        const int64_t number = p.shape[0] * p.shape[1] * p.shape[2];
        *bytes += number * (int64_t)sizeof(float);
        for (int64_t e = 0; e < parts; e++) {
            char hub[128], name[160], file[NAME_BYTES];
            cpl_param_name(hub, &p, e);
            snprintf(name, sizeof name, "%s%s", prefixes[which], hub);
            part_name(file, which, r->writer(r->ctx, i, &p, p.per_expert ? e : -1), r->world->size);
            (void)json_object_set_new(map, name, json_string(file));
        }
    }
}

static cpl_status write_index(const char *folder, const char *name, const cpl_checkpoint *c,
                              cpl_saved_set first, cpl_saved_set last)
{
    int64_t bytes = 0;
    json_t *map   = json_object();
    for (int which = (int)first; map && which <= (int)last; which++)
        add_names(map, &bytes, c, (cpl_saved_set)which);
    return cpl_hf_write_json(folder, name,
                             json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                                       (json_int_t)bytes, "weight_map", map));
}

/* Writes the files of rank 0 that follow the parts. `sums` are the check sums of the parts. */
static cpl_status write_rest(const char *folder, const cpl_checkpoint *c, const int64_t *sums)
{
    CPL_TRY(cpl_hf_save_config(folder, &c->model->config, c->tokens, c->tokenizer));
    CPL_TRY(write_index(folder, "model.safetensors.index.json", c, CPL_SAVED_WEIGHTS,
                        CPL_SAVED_WEIGHTS));
    CPL_TRY(write_index(folder, "state.safetensors.index.json", c, CPL_SAVED_M, CPL_SAVED_V));
    CPL_TRY(write_state_json(folder, c));
    CPL_TRY(write_checksums(folder, name_sums(sums, c->ranks->world->size)));
    return cpl_folder_sync(folder);
}

/* Writes the parts of all ranks and gathers their sums [ranks, N_PARTS]. Every rank reads its parts
 * again to compute the sums. Collective: a failure of one rank is a failure of all. */
static cpl_status write_parts(int64_t *sums, const char *folder, const cpl_checkpoint *c)
{
    cpl_group *world = c->ranks->world;
    for (int which = 0; which < N_PARTS; which++) {
        cpl_params *set = c->ranks->gather(c->ranks->ctx, (cpl_saved_set)which);
        CPL_TRY(cpl_group_agree(world, write_part(&sums[world->rank * N_PARTS + which], folder, c,
                                                  (cpl_saved_set)which, set)));
    }
    cpl_group_sum_i64(world, sums, (int64_t)world->size * N_PARTS);
    return cpl_group_status(world);
}

/* Writes the checkpoint's folder. Collective. */
static cpl_status write_folder_together(const char *folder, const cpl_checkpoint *c)
{
    cpl_group *world   = c->ranks->world;
    const bool leads   = world->rank == 0;
    const size_t bytes = (size_t)world->size * N_PARTS * sizeof(int64_t);
    int64_t *sums      = cpl_alloc(bytes);
    cpl_status status  = sums ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK) memset(sums, 0, bytes);
    if (status == CPL_OK && leads) status = make_folder(folder);
    CPL_TRY_DONE(cpl_group_agree(world, status));
    CPL_TRY_DONE(write_parts(sums, folder, c));
    status = cpl_group_agree(world, leads ? write_rest(folder, c, sums) : CPL_OK);
done:
    cpl_free(sums);
    return status;
}

static cpl_status move(const char *from, const char *to)
{
    return rename(from, to) == 0
               ? CPL_OK
               : CPL_FAIL(CPL_ERR_IO, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
}

/* Replaces `last` by a link to `name`, atomically. */
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

/* Makes the new folder `fresh` the newest checkpoint. */
static cpl_status publish(const char *run, const char *fresh, const cpl_checkpoint *c, int64_t keep)
{
    char name[NAME_BYTES];
    cpl_status status = CPL_ERR_MEMORY;
    snprintf(name, sizeof name, "step-%06lld", (long long)c->step);
    char *path = cpl_path_join(run, name), *old = cpl_path_join(run, ".tmp-old");
    if (!path || !old) goto done;
    if (cpl_path_exists(path)) { /* the step is saved again: the old folder is renamed first */
        CPL_TRY_DONE(move(path, old));
        cpl_folder_remove(old);
    }
    CPL_TRY_DONE(move(fresh, path));
    CPL_TRY_DONE(cpl_folder_sync(run));
    CPL_TRY_DONE(point_last(run, name));
    cpl_run_dir_prune(run, c->step, keep);
done:
    cpl_free(path);
    cpl_free(old);
    return status;
}

cpl_status cpl_checkpoint_save(const char *run, const cpl_checkpoint *c, int64_t keep)
{
    const bool leads  = !c->ranks || c->ranks->world->rank == 0;
    cpl_status status = CPL_OK;
    char *fresh       = cpl_path_join(run, ".tmp-step");
    if (!fresh) status = CPL_ERR_MEMORY;
    if (fresh && leads) cpl_folder_remove(fresh);
    if (c->ranks) {
        CPL_TRY_DONE(cpl_group_agree(c->ranks->world, status));
        CPL_TRY_DONE(write_folder_together(fresh, c));
        CPL_TRY_DONE(
            cpl_group_agree(c->ranks->world, leads ? publish(run, fresh, c, keep) : CPL_OK));
    } else if (fresh) {
        CPL_TRY_DONE(write_folder(fresh, c));
        CPL_TRY_DONE(publish(run, fresh, c, keep));
    }
done:
    if (status != CPL_OK && fresh && leads) cpl_folder_remove(fresh);
    cpl_free(fresh);
    return status;
}

/* ---- loading ---- */

/* Returns the path of state.safetensors or its index, from cpl_alloc, or NULL for lack of
 * memory. */
static char *state_tensors(const char *folder)
{
    char *index = cpl_path_join(folder, "state.safetensors.index.json");
    if (index && cpl_path_exists(index)) return index;
    cpl_free(index);
    return cpl_path_join(folder, "state.safetensors");
}

/* Reads the sets one after another, since ranks have memory for one set of whole tensors. */
static cpl_status read_parts(const cpl_stored_files *weights, cpl_checkpoint *c)
{
    for (int which = CPL_SAVED_M; which <= CPL_SAVED_V; which++) {
        cpl_named_list list = {.be = c->model->be};
        cpl_params *set     = c->ranks->room(c->ranks->ctx, (cpl_saved_set)which);
        cpl_status status   = cpl_named_params(&list, set, &c->model->config, prefixes[which]);
        if (status == CPL_OK) status = cpl_named_read(&list, weights);
        cpl_named_free(&list);
        CPL_TRY(status);
        c->ranks->keep(c->ranks->ctx, (cpl_saved_set)which);
    }
    return CPL_OK;
}

static cpl_status read_moments(const cpl_stored_files *weights, cpl_checkpoint *c)
{
    cpl_named_list list = {.be = c->model->be};
    if (c->ranks) return read_parts(weights, c);
    cpl_status status = moments(&list, c);
    if (status == CPL_OK) status = cpl_named_read(&list, weights);
    cpl_named_free(&list);
    return status;
}

/* Reads the means of the tokens, which a checkpoint without `token_steps` does not have. */
static cpl_status read_means(const cpl_stored_files *weights, cpl_checkpoint *c, const char *json)
{
    cpl_named_list list = {.be = c->model->be};
    if (!has_means(c)) return CPL_OK;
    CPL_TRY(cpl_json_int_or(c->state, "token_steps", &c->token_steps, 0, c->step, 0, json));
    if (c->token_steps == 0) return CPL_OK;
    cpl_status status = means(&list, c);
    if (status == CPL_OK) status = cpl_named_read(&list, weights);
    cpl_named_free(&list);
    return status;
}

static cpl_status load_state(const char *folder, cpl_checkpoint *c, const cpl_log *log)
{
    cpl_stored_files *weights = NULL;
    cpl_status status         = CPL_ERR_MEMORY;
    char *tensors             = state_tensors(folder);
    char *json                = cpl_path_join(folder, "state.json");
    if (!tensors || !json) goto done;
    CPL_TRY_DONE(cpl_json_load(&c->state, json));
    CPL_TRY_DONE(cpl_json_int(c->state, "step", &c->step, 0, MOST_STEPS, json));
    CPL_TRY_DONE(cpl_stored_open_strict(&weights, tensors, log));
    CPL_TRY_DONE(read_moments(weights, c));
    CPL_TRY_DONE(read_means(weights, c, json));
done:
    cpl_stored_close(weights);
    cpl_free(tensors);
    cpl_free(json);
    return status;
}

/* Verifies the check sums of the files number `first`, `first` + `every`, ... of the checkpoint. */
static cpl_status verify(const char *folder, int first, int every)
{
    bool checked = false;
    CPL_TRY(cpl_run_dir_verify_share(folder, first, every, &checked));
    if (checked) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: checksums.json is missing: this is not a complete checkpoint of a run",
                    folder);
}

/* Verifies all check sums. The ranks divide the files. Collective. */
static cpl_status verify_together(const char *folder, cpl_group *world)
{
    return cpl_group_agree(world, verify(folder, world->rank, world->size));
}

cpl_status cpl_checkpoint_load(const char *folder, cpl_checkpoint *c, const cpl_log *log)
{
    cpl_hf *hf        = NULL;
    cpl_status status = CPL_OK;
    CPL_TRY(c->ranks ? verify_together(folder, c->ranks->world) : verify(folder, 0, 1));
    CPL_TRY(cpl_hf_open(&hf, folder, NULL));
    CPL_TRY_DONE(cpl_hf_config_agrees(&c->model->config, cpl_hf_config(hf), NULL, folder));
    CPL_TRY_DONE(cpl_hf_load(hf, c->model));
    if (c->ranks) c->ranks->keep(c->ranks->ctx, CPL_SAVED_WEIGHTS);
    CPL_TRY_DONE(load_state(folder, c, log));
done:
    cpl_hf_close(hf);
    return status;
}
