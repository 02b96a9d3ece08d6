/* shard_whole.c - checks that token files are complete, see internal.h */
#include "data/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

/* The files found for one path of the user. */
typedef struct look {
    const cpl_strings *found;
    const cpl_shard *files; /* [found->count] */
    bool *listed;           /* [found->count] whether a shards.json lists the file */
    char *folder;           /* `path` without slashes at its end, NULL if `path` is no folder */
    cpl_strings indexes;    /* the files shards.json that may list some of `found` */
} look;

static bool is_index(const char *name)
{
    return strcmp(name, "shards.json") == 0;
}

static bool is_unfinished(const char *name)
{
    return strncmp(name, "part-", 5) == 0 && strstr(name, ".npy.tmp-");
}

/* Returns whether `path` is below `folder`. */
static bool is_below(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/* Appends the shards.json of `folder` if the file exists. */
static cpl_status add_index(cpl_strings *paths, const char *folder)
{
    char *path        = cpl_path_join(folder, "shards.json");
    cpl_status status = path ? CPL_OK : CPL_ERR_MEMORY;
    if (path && cpl_path_exists(path)) status = cpl_paths_add(paths, path);
    cpl_free(path);
    return status;
}

/* Finds the shards.json of the files. With --by-source it is in the parent of the files' folder. */
static cpl_status find_indexes(look *l, const char *path)
{
    char *above       = cpl_path_folder(l->folder ? l->folder : path);
    char *further     = above ? cpl_path_folder(above) : NULL;
    cpl_status status = further ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK && l->folder) status = cpl_paths_below(&l->indexes, l->folder, is_index);
    if (status == CPL_OK) status = add_index(&l->indexes, above);
    if (status == CPL_OK && !l->folder) status = add_index(&l->indexes, further);
    cpl_paths_sort(&l->indexes);
    cpl_free(above);
    cpl_free(further);
    return status;
}

static const char *without_dot(const char *path)
{
    return strncmp(path, "./", 2) == 0 ? path + 2 : path;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(without_dot(*(char *const *)a), without_dot(*(char *const *)b));
}

/* Checks one file of an index, which should be at `path`. */
static cpl_status check_file(look *l, const char *path, int64_t n_tokens, const char *index)
{
    char **at = l->found->count
                    ? bsearch(&path, l->found->at, (size_t)l->found->count, sizeof path, by_bytes)
                    : NULL;
    if (at) {
        const cpl_shard *file        = &l->files[at - l->found->at];
        l->listed[at - l->found->at] = true;
        if (file->n_tokens == n_tokens) return CPL_OK;
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: has %lld tokens, %s says %lld: it is not the file that "
                        "was written",
                        path, (long long)file->n_tokens, index, (long long)n_tokens);
    }
    if (!l->folder || !is_below(path, l->folder)) return CPL_OK;
    if (!cpl_path_exists(path))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is missing, %s lists it with %lld tokens: the data is not whole", path,
                        index, (long long)n_tokens);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is not a regular file; %s lists it with %lld tokens", path,
                    index, (long long)n_tokens);
}

static cpl_status check_entries(look *l, const json_t *files, const char *folder, const char *index)
{
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *entry = json_array_get(files, i);
        const char *name    = NULL;
        int64_t n_tokens    = 0;
        CPL_TRY(cpl_json_string(entry, "name", &name, index));
        CPL_TRY(cpl_json_int(entry, "tokens", &n_tokens, 0, INT64_MAX, index));
        char *path = cpl_path_join(folder, name);
        if (!path) return CPL_ERR_MEMORY;
        cpl_status status = check_file(l, path, n_tokens, index);
        cpl_free(path);
        CPL_TRY(status);
    }
    return CPL_OK;
}

/* Returns whether `tokenize encode` wrote the shards.json. Other programs may write other forms. */
static bool is_ours(const json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    return format && strncmp(format, "couplet token shards", 20) == 0;
}

/* Marks all files below the folder of a shards.json of another program as listed. */
static void mark_all(look *l, const char *folder)
{
    for (int64_t i = 0; i < l->found->count; i++)
        if (is_below(l->found->at[i], folder)) l->listed[i] = true;
}

static cpl_status check_index(look *l, const char *index)
{
    json_t *root = NULL, *files = NULL;
    char *folder      = cpl_path_folder(index);
    cpl_status status = folder ? cpl_json_load(&root, index) : CPL_ERR_MEMORY;
    if (status == CPL_OK && !is_ours(root))
        mark_all(l, folder);
    else if (status == CPL_OK)
        status = cpl_json_array(root, "files", &files, index);
    if (files && status == CPL_OK) status = check_entries(l, files, folder, index);
    json_decref(root);
    cpl_free(folder);
    return status;
}

static bool is_covered(const look *l, const char *path)
{
    for (int64_t i = 0; i < l->indexes.count; i++) {
        size_t folder = strlen(l->indexes.at[i]) - strlen("shards.json");
        if (strncmp(path, l->indexes.at[i], folder) == 0) return true;
    }
    return false;
}

static cpl_status check_unfinished(look *l)
{
    cpl_strings paths = {0};
    cpl_status status = CPL_OK;
    if (!l->folder) return CPL_OK;
    CPL_TRY_DONE(cpl_paths_below(&paths, l->folder, is_unfinished));
    for (int64_t i = 0; i < paths.count; i++)
        if (!is_covered(l, paths.at[i]))
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT,
                                  "%s: is a file that `tokenize encode` did not finish: it still "
                                  "runs, or it was ended; remove the folder and encode again",
                                  paths.at[i]));
done:
    cpl_paths_free(&paths);
    return status;
}

/* Warns of files with sidecars of `tokenize encode` that no shards.json lists. */
static cpl_status warn_of_unlisted(const look *l, const cpl_log *log)
{
    int64_t count = 0, first = -1;
    for (int64_t i = 0; i < l->found->count; i++) {
        if (l->listed[i]) continue;
        char *sidecar = cpl_shard_companion(l->found->at[i], ".sources.tsv");
        if (!sidecar) return CPL_ERR_MEMORY;
        if (cpl_path_exists(sidecar) && count++ == 0) first = i;
        cpl_free(sidecar);
    }
    if (count)
        cpl_log_warn(log,
                     "%s%s: no shards.json lists %s, though `tokenize encode` writes one last: the "
                     "data may not be whole",
                     l->found->at[first], count > 1 ? ", ..." : "", count > 1 ? "them" : "it");
    return CPL_OK;
}

cpl_status cpl_shards_check_whole(const cpl_strings *found, const cpl_shard *files,
                                  const char *path, const cpl_log *log)
{
    look l               = {.found = found, .files = files};
    cpl_status status    = CPL_OK;
    const bool is_folder = cpl_path_is_folder(path); /* called once: the result may change */
    l.listed             = cpl_alloc((size_t)found->count + 1);
    if (is_folder) l.folder = cpl_text_copy(path);
    if (!l.listed || (is_folder && !l.folder)) CPL_TRY_DONE(CPL_ERR_MEMORY);
    memset(l.listed, 0, (size_t)found->count + 1);
    for (size_t n = l.folder ? strlen(l.folder) : 0; n > 1 && l.folder[n - 1] == '/';)
        l.folder[--n] = '\0';
    CPL_TRY_DONE(find_indexes(&l, path));
    for (int64_t i = 0; i < l.indexes.count; i++) CPL_TRY_DONE(check_index(&l, l.indexes.at[i]));
    CPL_TRY_DONE(check_unfinished(&l));
    status = warn_of_unlisted(&l, log);
done:
    cpl_paths_free(&l.indexes);
    cpl_free(l.folder);
    cpl_free(l.listed);
    return status;
}
