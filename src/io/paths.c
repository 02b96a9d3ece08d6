/* paths.c - see paths.h */
#include "io/paths.h"

#include <errno.h>
#include <fts.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/file.h"

#ifndef COUPLET_MODULE_DIR
#    define COUPLET_MODULE_DIR "/usr/local/lib/couplet"
#endif

cpl_status cpl_paths_add(cpl_strings *paths, const char *path)
{
    int64_t n = paths->count;
    if (n == 0 || (n >= 16 && (n & (n - 1)) == 0)) { /* 16, 32, 64, ... places */
        size_t places = n == 0 ? 16 : 2 * (size_t)n;
        char **at     = cpl_realloc(paths->at, places * sizeof *at);
        if (!at) return CPL_ERR_MEMORY;
        paths->at = at;
    }
    char *copy = cpl_text_copy(path);
    if (!copy) return CPL_ERR_MEMORY;
    paths->at[paths->count++] = copy;
    return CPL_OK;
}

void cpl_paths_free(cpl_strings *paths)
{
    for (int64_t i = 0; i < paths->count; i++) cpl_free(paths->at[i]);
    cpl_free(paths->at);
    memset(paths, 0, sizeof *paths);
}

char *cpl_path_label(const char *path)
{
    const char *end = strrchr(path, '/'), *begin = end;
    if (!end) return cpl_text_copy("default");
    while (begin > path && begin[-1] != '/') begin--;
    if (begin == end || strncmp(begin, ".", (size_t)(end - begin)) == 0 ||
        strncmp(begin, "..", (size_t)(end - begin)) == 0)
        return cpl_text_copy("default");
    char *label = cpl_text_copy(begin);
    if (label) label[end - begin] = '\0';
    return label;
}

void cpl_paths_sort(cpl_strings *paths)
{
    int64_t kept = 0;
    if (paths->count) qsort(paths->at, (size_t)paths->count, sizeof *paths->at, cpl_order_strings);
    for (int64_t i = 0; i < paths->count; i++) {
        if (kept && strcmp(paths->at[kept - 1], paths->at[i]) == 0)
            cpl_free(paths->at[i]);
        else
            paths->at[kept++] = paths->at[i];
    }
    paths->count = kept;
}

/* Returns whether this is a folder "attributes" with a sibling folder "documents". */
static bool is_attributes(const FTSENT *entry)
{
    struct stat info;
    char sibling[4096];
    if (strcmp(entry->fts_name, "attributes") != 0) return false;
    int length = snprintf(sibling, sizeof sibling, "%.*s/documents",
                          (int)(entry->fts_pathlen - entry->fts_namelen - 1), entry->fts_path);
    return length > 0 && (size_t)length < sizeof sibling && stat(sibling, &info) == 0 &&
           S_ISDIR(info.st_mode);
}

static cpl_status visit(cpl_strings *paths, FTS *tree, FTSENT *entry,
                        bool (*wanted)(const char *name))
{
    bool hidden = entry->fts_level > 0 && entry->fts_name[0] == '.';
    bool listed = !hidden && wanted(entry->fts_name);
    switch (entry->fts_info) {
    case FTS_D:
        if (hidden || (entry->fts_level > 0 && is_attributes(entry)))
            fts_set(tree, entry, FTS_SKIP);
        return CPL_OK;
    case FTS_F:
        return listed ? cpl_paths_add(paths, entry->fts_path) : CPL_OK;
    case FTS_DEFAULT:
        if (!listed) return CPL_OK;
        return CPL_FAIL(CPL_ERR_INPUT, "%s: is not a regular file", entry->fts_path);
    case FTS_SLNONE:
        if (!listed) return CPL_OK;
        return CPL_FAIL(CPL_ERR_INPUT, "%s: is a symbolic link to a file that does not exist",
                        entry->fts_path);
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return CPL_FAIL(CPL_ERR_IO, "%s: cannot be read: %s", entry->fts_path,
                        strerror(entry->fts_errno));
    default: /* the end of a folder, or a cycle */
        return CPL_OK;
    }
}

cpl_status cpl_paths_below(cpl_strings *paths, const char *folder, bool (*wanted)(const char *name))
{
    cpl_status status = CPL_OK;
    char *root        = cpl_text_copy(folder);
    if (!root) return CPL_ERR_MEMORY;
    size_t length = strlen(root);
    while (length > 1 && root[length - 1] == '/') root[--length] = '\0';
    char *roots[] = {root, NULL};
    FTS *tree     = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    if (!tree) {
        status = CPL_FAIL(CPL_ERR_IO, "%s: cannot be read: %s", folder, strerror(errno));
        goto done;
    }
    for (FTSENT *entry; (entry = fts_read(tree));) CPL_TRY_DONE(visit(paths, tree, entry, wanted));
done:
    if (tree) fts_close(tree);
    cpl_free(root);
    return status;
}

static cpl_status add_existing(cpl_strings *paths, const char *path, const struct stat *info,
                               bool (*wanted)(const char *name))
{
    return S_ISDIR(info->st_mode) ? cpl_paths_below(paths, path, wanted)
                                  : cpl_paths_add(paths, path);
}

static cpl_status add_pattern(cpl_strings *paths, const char *pattern,
                              bool (*wanted)(const char *name))
{
    cpl_status status = CPL_OK;
    glob_t hits       = {0};
    struct stat info;
    if (glob(pattern, 0, NULL, &hits) == 0)
        for (size_t i = 0; i < hits.gl_pathc; i++) {
            const char *hit = hits.gl_pathv[i];
            if (stat(hit, &info) != 0)
                CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "%s: %s", hit, strerror(errno)));
            CPL_TRY_DONE(add_existing(paths, hit, &info, wanted));
        }
done:
    globfree(&hits);
    return status;
}

cpl_status cpl_paths_expand(cpl_strings *paths, const char *input, bool (*wanted)(const char *name),
                            const char *what)
{
    struct stat info;
    int64_t before = paths->count;
    if (stat(input, &info) == 0)
        CPL_TRY(add_existing(paths, input, &info, wanted));
    else if (strpbrk(input, "*?["))
        CPL_TRY(add_pattern(paths, input, wanted));
    else
        return CPL_FAIL(CPL_ERR_INPUT, "%s: %s", input, strerror(errno));
    if (paths->count > before) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: no %s found", input, what);
}

bool cpl_path_has_extension(const char *path, const char *extension)
{
    size_t length = strlen(path), n = strlen(extension);
    if (length > 3 && memcmp(path + length - 3, ".gz", 3) == 0)
        length -= 3;
    else if (length > 4 && memcmp(path + length - 4, ".zst", 4) == 0)
        length -= 4;
    return length > n && memcmp(path + length - n, extension, n) == 0;
}

static bool is_document_name(const char *name)
{
    return cpl_path_has_extension(name, ".txt") || cpl_path_has_extension(name, ".json") ||
           cpl_path_has_extension(name, ".jsonl");
}

cpl_status cpl_documents_expand(cpl_strings *paths, const char *const *inputs, int64_t n_inputs)
{
    memset(paths, 0, sizeof *paths);
    for (int64_t i = 0; i < n_inputs; i++) {
        cpl_status status = cpl_paths_expand(paths, inputs[i], is_document_name,
                                             "document files (.jsonl, .json.gz, .jsonl.zst, .txt)");
        if (status != CPL_OK) {
            cpl_paths_free(paths);
            return status;
        }
    }
    cpl_paths_sort(paths);
    return CPL_OK;
}

/* ---- modules ---- */

/* Sets `out` to the folder of the program, or to "." if the system does not report the folder. */
static void own_folder(char out[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (length <= 0) length = snprintf(out, PATH_MAX, "./x");
    out[length] = '\0';
    char *slash = strrchr(out, '/');
    if (slash) *slash = '\0';
}

bool cpl_module_find(char path[CPL_MODULE_PATH], const char *name)
{
    static const char *const places[] = {"", "/../lib/couplet"};
    char folder[PATH_MAX];
    own_folder(folder);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, CPL_MODULE_PATH, "%s%s/%s", folder, places[i], name);
        if (access(path, R_OK) == 0) return true;
    }
    snprintf(path, CPL_MODULE_PATH, COUPLET_MODULE_DIR "/%s", name);
    return access(path, R_OK) == 0;
}
