/* rows_find.c - the files that a published name stands for; see rows.h */
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "eval/prompts/rows.h"
#include "io/file.h"
#include "io/paths.h"

static const char *const endings[] = {"", ".gz", ".zst"};

enum { N_ENDINGS = sizeof endings / sizeof *endings };

/* Appends text for glob(3), which means only what `special` leaves out. */
static void append_plain(cpl_text *pattern, const char *text, const char *special)
{
    for (; *text; text++) {
        if (strchr(special, *text)) cpl_text_char(pattern, '\\');
        cpl_text_char(pattern, *text);
    }
}

/* A folder that is not there has no files; one that may not be read is a failure. */
static int is_failure(const char *path, int error)
{
    (void)path;
    return error != ENOENT && error != ENOTDIR;
}

static cpl_status add_hits(cpl_strings *paths, const char *pattern)
{
    cpl_status status = CPL_OK;
    glob_t hits       = {0};
    int found         = glob(pattern, GLOB_NOSORT, is_failure, &hits);
    if (found == GLOB_NOSPACE)
        status = CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to list these files", pattern);
    if (found == GLOB_ABORTED)
        status = CPL_FAIL(CPL_ERR_IO, "%s: a folder of these files cannot be read", pattern);
    for (size_t i = 0; status == CPL_OK && found == 0 && i < hits.gl_pathc; i++)
        if (!cpl_path_is_folder(hits.gl_pathv[i])) status = cpl_paths_add(paths, hits.gl_pathv[i]);
    globfree(&hits);
    return status;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Is `path` a compressed file beside the plain one, or a .zst beside the .gz? */
static bool is_copy(const cpl_strings *sorted, const char *path, cpl_text *other)
{
    size_t length = strlen(path);
    for (int i = 1; i < N_ENDINGS; i++) {
        size_t n = strlen(endings[i]);
        if (length <= n || strcmp(path + length - n, endings[i]) != 0) continue;
        for (int k = 0; k < i; k++) {
            cpl_text_clear(other);
            cpl_text_append(other, path, length - n);
            cpl_text_append(other, endings[k], strlen(endings[k]));
            if (!other->failed && bsearch(&other->bytes, sorted->at, (size_t)sorted->count,
                                          sizeof *sorted->at, by_bytes))
                return true;
        }
    }
    return false;
}

/* The files without those of which there is a better copy; `paths` is empty and sorted after. */
static cpl_status leave_copies_out(cpl_strings *paths, const cpl_strings *sorted)
{
    cpl_text other    = {0};
    cpl_status status = CPL_OK;
    for (int64_t i = 0; status == CPL_OK && i < sorted->count; i++)
        if (!is_copy(sorted, sorted->at[i], &other)) status = cpl_paths_add(paths, sorted->at[i]);
    if (status == CPL_OK) status = cpl_text_status(&other);
    cpl_text_free(&other);
    return status;
}

/* Adds what there is of the name in FOLDER/TASK, or in FOLDER where `task` is NULL. */
static cpl_status look(cpl_strings *paths, const char *folder, const char *task, const char *name)
{
    cpl_strings all   = {0};
    cpl_text pattern  = {0};
    cpl_status status = CPL_OK;
    for (int i = 0; i < N_ENDINGS; i++) {
        cpl_text_clear(&pattern);
        append_plain(&pattern, folder, "*?[\\");
        if (task) cpl_text_char(&pattern, '/');
        if (task) append_plain(&pattern, task, "*?[\\");
        cpl_text_char(&pattern, '/');
        append_plain(&pattern, name, "?[\\");
        append_plain(&pattern, endings[i], "");
        CPL_TRY_DONE(cpl_text_status(&pattern));
        CPL_TRY_DONE(add_hits(&all, pattern.bytes));
    }
    cpl_paths_sort(&all);
    CPL_TRY_DONE(leave_copies_out(paths, &all));
done:
    cpl_text_free(&pattern);
    cpl_paths_free(&all);
    return status;
}

cpl_status cpl_rows_find(cpl_strings *paths, const char *folder, const char *task, const char *name)
{
    cpl_status status = CPL_OK;
    memset(paths, 0, sizeof *paths);
    CPL_TRY_DONE(look(paths, folder, task, name));
    if (!paths->count) CPL_TRY_DONE(look(paths, folder, NULL, name));
    if (!paths->count)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: holds neither %s/%s nor %s, also not with .gz or .zst behind it",
                          folder, task, name, name);
done:
    if (status != CPL_OK) cpl_paths_free(paths);
    return status;
}
