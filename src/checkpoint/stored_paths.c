/* stored_paths.c - see stored_internal.h: the files of a safetensors checkpoint, from its index */

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "checkpoint/stored_internal.h"
#include "io/file.h"

bool cpl_stored_ends_with(const char *text, const char *ending)
{
    size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}

/* The folder has none of the names we look for: says what it has instead. */
static cpl_status nothing_found(const char *folder)
{
    char **names;
    int64_t count;
    const char *shard = NULL, *foreign = NULL;
    CPL_TRY(cpl_folder_list(&names, &count, folder));
    for (int64_t i = 0; i < count; i++) {
        if (cpl_stored_ends_with(names[i], ".safetensors")) shard = names[i];
        if (cpl_stored_ends_with(names[i], ".bin") || cpl_stored_ends_with(names[i], ".pt") ||
            cpl_stored_ends_with(names[i], ".pth") || cpl_stored_ends_with(names[i], ".ckpt"))
            foreign = names[i];
    }
    cpl_status status = CPL_OK;
    if (shard)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: has neither model.safetensors nor model.safetensors.index.json, but "
                          "%.200s: fetch the index, or name the file itself",
                          folder, shard);
    else if (foreign)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: has weights only in PyTorch's own form (%.200s), which can run code "
                          "when loaded: save them again as safetensors (in Python: "
                          "model.save_pretrained(folder, safe_serialization=True))",
                          folder, foreign);
    else
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: has no weights (looked for model.safetensors.index.json, "
                          "model.safetensors and the same as consolidated)",
                          folder);
    cpl_folder_list_free(names, count);
    return status;
}

cpl_status cpl_stored_paths_discover(char **found, const char *path)
{
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors",
                                        "consolidated.safetensors.index.json",
                                        "consolidated.safetensors"};
    *found                           = NULL;
    if (!cpl_path_is_folder(path)) {
        *found = cpl_text_copy(path);
        return *found ? CPL_OK : CPL_ERR_MEMORY;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *candidate = cpl_path_join(path, names[i]);
        if (!candidate) return CPL_ERR_MEMORY;
        if (cpl_path_exists(candidate)) {
            *found = candidate;
            return CPL_OK;
        }
        cpl_free(candidate);
    }
    return CPL_OK;
}

/* A name from the index must stay in the index's folder. */
static cpl_status check_name(const char *name, const char *tensor, const char *index)
{
    bool plain = *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    if (plain && !strpbrk(name, "/\\")) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: tensor %.200s: \"%.200s\" is not the name of a file beside the index",
                    index, tensor, name);
}

/* Sets `files` to the paths of the distinct ones among `names`, which are sorted. */
static cpl_status add_paths(cpl_stored_paths *files, const char **names, size_t count)
{
    cpl_status status = CPL_OK;
    char *folder      = cpl_path_folder(files->path);
    files->paths      = cpl_alloc(count * sizeof *files->paths);
    if (!folder || !files->paths) CPL_TRY_DONE(CPL_ERR_MEMORY);
    for (size_t i = 0; i < count; i++) {
        if (i && strcmp(names[i - 1], names[i]) == 0) continue;
        char *path = cpl_path_join(folder, names[i]);
        if (!path) CPL_TRY_DONE(CPL_ERR_MEMORY);
        files->paths[files->count++] = path;
    }
done:
    cpl_free(folder);
    return status;
}

/* Every file of the weight_map, once. */
static cpl_status read_map(cpl_stored_paths *files)
{
    cpl_status status = CPL_OK;
    const char *tensor;
    json_t *value;
    CPL_TRY(cpl_json_object(files->index, "weight_map", &files->map, files->path));
    size_t count = 0, size = json_object_size(files->map);
    const char **names = cpl_alloc(size * sizeof *names);
    if (!names) return CPL_ERR_MEMORY;
    json_object_foreach(files->map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name)
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s: its file must be a string",
                                  files->path, tensor));
        CPL_TRY_DONE(check_name(name, tensor, files->path));
        names[count++] = name;
    }
    if (count) qsort((void *)names, count, sizeof *names, cpl_order_strings);
    CPL_TRY_DONE(add_paths(files, names, count));
done:
    cpl_free((void *)names);
    return status;
}

static cpl_status the_only_file(cpl_stored_paths *files)
{
    files->paths = cpl_alloc(sizeof *files->paths);
    if (!files->paths) return CPL_ERR_MEMORY;
    files->paths[0] = cpl_text_copy(files->path);
    if (!files->paths[0]) return CPL_ERR_MEMORY;
    files->count = 1;
    return CPL_OK;
}

cpl_status cpl_stored_paths_find(cpl_stored_paths *files, const char *path)
{
    cpl_status status = CPL_OK;
    memset(files, 0, sizeof *files);
    CPL_TRY_DONE(cpl_stored_paths_discover(&files->path, path));
    if (!files->path) CPL_TRY_DONE(nothing_found(path));
    if (cpl_stored_ends_with(files->path, ".json")) {
        CPL_TRY_DONE(cpl_json_load(&files->index, files->path));
        CPL_TRY_DONE(read_map(files));
    } else {
        CPL_TRY_DONE(the_only_file(files));
    }
done:
    if (status != CPL_OK) cpl_stored_paths_free(files);
    return status;
}

void cpl_stored_paths_free(cpl_stored_paths *files)
{
    for (int64_t i = 0; i < files->count; i++) cpl_free(files->paths[i]);
    cpl_free(files->paths);
    if (files->index) json_decref(files->index);
    cpl_free(files->path);
    memset(files, 0, sizeof *files);
}
