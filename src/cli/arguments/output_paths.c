/* output_paths.c - see output_paths.h */
#include "cli/arguments/output_paths.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "checkpoint/safetensors.h"
#include "cli/terminal/output.h"
#include "io/file.h"
#include "io/json.h"
#include "remote/remote.h"

/* Flags of results, and the words printed before their paths. */
static const struct result {
    const char *flag, *word;
} results[] = {
    {"--json", "json"}, {"--html", "page"}, {"--rows", "rows"}, {"--out", NULL}, {"--gguf", NULL}};

enum { N_RESULTS = sizeof results / sizeof *results };

/* Returns the flag's value, or NULL if the verb has no such flag or it is not given. */
static const char *path_of(const cpl_arguments *args, const char *flag)
{
    return cpl_flag_known(args, flag) ? cpl_flag_text(args, flag) : NULL;
}

bool cpl_output_paths_is_file(const cpl_arguments *args, const char *flag)
{
    const char *path = path_of(args, flag);
    if (!path || (strcmp(flag, "--json") == 0 && strcmp(path, "-") == 0)) return false;
    return !cpl_output_is_stream(path);
}

cpl_status cpl_output_paths_outside(const cpl_arguments *args)
{
    for (int r = 0; r < N_RESULTS; r++) {
        if (!cpl_output_paths_is_file(args, results[r].flag)) continue;
        const bool is_weights = !results[r].word;
        for (int i = 0; i < args->n_words; i++)
            if (!cpl_remote_is(args->words[i]))
                CPL_TRY((is_weights ? cpl_path_guard_outside : cpl_path_guard_check)(
                    path_of(args, results[r].flag), args->words[i]));
    }
    return CPL_OK;
}

cpl_status cpl_output_paths_keep(const cpl_arguments *args, const char *file)
{
    struct stat kept, there;
    if (!file || stat(file, &kept) != 0) return CPL_OK;
    for (int r = 0; r < N_RESULTS; r++) {
        const char *path = path_of(args, results[r].flag);
        if (!path || stat(path, &there) != 0) continue;
        if (kept.st_dev == there.st_dev && kept.st_ino == there.st_ino)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s %s: is read, and not written over: name another file",
                            results[r].flag, path);
    }
    return CPL_OK;
}

/* ---- existing files ---- */

static bool begins(const char *path, const char *with)
{
    char bytes[16];
    int file;
    uint64_t length;
    const size_t count = strlen(with);
    CPL_ASSERT(count <= sizeof bytes);
    if (cpl_file_open(&file, &length, path) != CPL_OK) return false;
    const bool is = length >= count && cpl_file_read_at(file, bytes, count, 0, path) == CPL_OK &&
                    memcmp(bytes, with, count) == 0;
    close(file);
    return is;
}

/* Returns true if the JSON object or the tensors of a file have one of the members. */
static bool has_one(const json_t *object, const cpl_safetensors *tensors, const char *members)
{
    char name[32];
    for (const char *at = members; *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        CPL_ASSERT(length < sizeof name);
        memcpy(name, at, length);
        name[length] = '\0';
        at += length;
        if (object ? json_object_get(object, name) != NULL : !!cpl_safetensors_find(tensors, name))
            return true;
    }
    return false;
}

/* Returns true if the file is empty or holds what this flag writes. */
static bool is_result(const char *path, const char *flag, const char *members)
{
    struct stat there;
    json_t *object           = NULL;
    cpl_safetensors *tensors = NULL;
    bool is                  = false;
    if (stat(path, &there) != 0 || there.st_size == 0) return true;
    if (strcmp(flag, "--html") == 0) return begins(path, "<!DOCTYPE html>");
    if (strcmp(flag, "--rows") == 0) return begins(path, "\x93NUMPY");
    if (strcmp(flag, "--gguf") == 0) return begins(path, "GGUF");
    if (begins(path, "{"))
        is = cpl_json_load(&object, path) == CPL_OK && has_one(object, NULL, members);
    else
        is = cpl_safetensors_open(&tensors, path) == CPL_OK && has_one(NULL, tensors, members);
    json_decref(object);
    cpl_safetensors_close(tensors);
    return is;
}

/* Refuses an existing file. --overwrite replaces results, but not weights or rows named by
 * mistake. */
static cpl_status check_new(const cpl_arguments *args, const char *flag, const char *members)
{
    const char *path = path_of(args, flag);
    if (!cpl_path_exists(path)) return CPL_OK;
    if (!cpl_flag_given(args, "--overwrite"))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s is there already: --overwrite replaces it, or write to another file",
                        path);
    if (is_result(path, flag, members)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s %s: is there and holds no results of couplet %s, which is all that "
                    "--overwrite replaces: name another file, or take it away",
                    flag, path, args->verb->name);
}

/* Checks that the file can be written, before the work is done. */
static cpl_status check_file_place(const char *path)
{
    cpl_status status = CPL_OK;
    char *folder      = cpl_path_folder(path);
    if (!folder) return CPL_ERR_MEMORY;
    if (cpl_path_is_folder(path))
        status = CPL_FAIL(CPL_ERR_IO, "%s: is a folder, not a file to write", path);
    else if (!cpl_path_is_folder(folder))
        status = CPL_FAIL(CPL_ERR_IO, "%s: there is no folder %s", path, folder);
    else if (access(folder, W_OK) != 0)
        status = CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    cpl_free(folder);
    return status;
}

cpl_status cpl_output_paths_check(const cpl_arguments *args, const char *members)
{
    const char *json = path_of(args, "--json"), *html = path_of(args, "--html");
    if (json && html && strcmp(json, html) == 0)
        return CPL_FAIL(CPL_ERR_USAGE, "--json and --html both name %s", json);
    for (int r = 0; r < N_RESULTS; r++) {
        if (!cpl_output_paths_is_file(args, results[r].flag)) continue;
        if (strcmp(path_of(args, results[r].flag), "-") == 0)
            return CPL_FAIL(
                CPL_ERR_USAGE, "%s -: must be a file%s", results[r].flag,
                cpl_flag_known(args, "--json") ? "; --json alone goes to standard output" : "");
        CPL_TRY(check_file_place(path_of(args, results[r].flag)));
        CPL_TRY(check_new(args, results[r].flag, members));
    }
    return CPL_OK;
}

/* ---- written results ---- */

void cpl_output_paths_describe(const cpl_arguments *args)
{
    const char *json = path_of(args, "--json");
    FILE *out        = json && strcmp(json, "-") == 0 ? stderr : stdout;
    for (int r = 0; r < N_RESULTS; r++)
        if (results[r].word && cpl_output_paths_is_file(args, results[r].flag))
            fprintf(out, "%s: %s\n", results[r].word, path_of(args, results[r].flag));
}
