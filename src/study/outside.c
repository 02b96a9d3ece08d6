/* outside.c - see outside.h */
#include "study/outside.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"

/* Appends one component to an absolute path: ".." takes the last away. */
static void append_component(cpl_text *path, const char *name, size_t length)
{
    if (length == 0 || (length == 1 && name[0] == '.')) return;
    if (length == 2 && memcmp(name, "..", 2) == 0) {
        while (path->length && path->bytes[path->length - 1] != '/') path->length--;
        if (path->length) path->bytes[--path->length] = '\0';
        return;
    }
    cpl_text_char(path, '/');
    cpl_text_append(path, name, length);
}

/* Sets `out` to where `path` will lie: its longest part that is there as the system resolves it,
 * then the components behind it as they are written. */
static cpl_status resolve(cpl_text *out, const char *path)
{
    cpl_status status = CPL_OK;
    char *head        = cpl_text_copy(path), *real;
    size_t length     = strlen(path);
    cpl_text_clear(out);
    if (!head) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a path");
    while (!(real = realpath(*head ? head : (*path == '/' ? "/" : "."), NULL)) && length > 0) {
        while (length > 0 && head[length - 1] == '/') length--;
        while (length > 0 && head[length - 1] != '/') length--;
        head[length] = '\0';
    }
    if (!real) CPL_TRY_DONE(CPL_FAIL(CPL_ERR_IO, "%s: cannot be resolved", path));
    if (strcmp(real, "/") != 0) cpl_text_append(out, real, strlen(real));
    for (const char *tail = path + length; *tail;) {
        size_t size = strcspn(tail, "/");
        append_component(out, tail, size);
        tail += size + strspn(tail + size, "/");
    }
    status = cpl_text_status(out);
done:
    free(real);
    cpl_free(head);
    return status;
}

static bool is_at_or_below(const cpl_text *path, const cpl_text *folder)
{
    return path->length >= folder->length &&
           memcmp(path->bytes, folder->bytes, folder->length) == 0 &&
           (path->length == folder->length || path->bytes[folder->length] == '/');
}

/* Whether a single file lies in a folder that is a checkpoint's own. */
static cpl_status has_own_folder(bool *has, const char *file)
{
    char *folder = cpl_path_folder(file);
    char *config = folder ? cpl_path_join(folder, "config.json") : NULL;
    cpl_free(folder);
    if (!config) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a path");
    *has = cpl_path_exists(config);
    cpl_free(config);
    return CPL_OK;
}

cpl_status cpl_outside_check(const char *target, const char *checkpoint)
{
    cpl_status status = CPL_OK;
    cpl_text there = {0}, kept = {0};
    bool own = false;
    if (!cpl_path_exists(checkpoint)) return CPL_OK;
    CPL_TRY_DONE(resolve(&kept, checkpoint));
    if (!cpl_path_is_folder(checkpoint)) {
        CPL_TRY_DONE(has_own_folder(&own, kept.length ? kept.bytes : checkpoint));
        if (own) append_component(&kept, "..", 2);
    }
    CPL_TRY_DONE(resolve(&there, target));
    if (is_at_or_below(&there, &kept))
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: lies in the checkpoint %s, where nothing is written; name a place "
                          "outside it",
                          target, checkpoint);
done:
    cpl_text_free(&there);
    cpl_text_free(&kept);
    return status;
}
