/* path_guard.c - see path_guard.h */
#include "io/path_guard.h"

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

/* Whether a single file lies in a folder that is a checkpoint's own: known by what stands beside it. */
static cpl_status has_own_folder(bool *has, const char *folder)
{
    static const char *const signs[] = {"config.json", "params.json",
                                        "model.safetensors.index.json",
                                        "consolidated.safetensors.index.json"};
    *has                             = false;
    for (size_t i = 0; i < sizeof signs / sizeof *signs && !*has; i++) {
        char *sign = cpl_path_join(folder, signs[i]);
        if (!sign) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a path");
        *has = cpl_path_exists(sign);
        cpl_free(sign);
    }
    return CPL_OK;
}

static cpl_status refuse(const char *target, const char *checkpoint)
{
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: lies in %s, where nothing is written; name a place outside it", target,
                    checkpoint);
}

/* `there` is where the target will lie. */
static cpl_status check_against(const cpl_text *there, const char *kept_path, const char *target,
                                const char *checkpoint)
{
    cpl_text kept     = {0};
    cpl_status status = resolve(&kept, kept_path);
    if (status == CPL_OK && is_at_or_below(there, &kept)) status = refuse(target, checkpoint);
    cpl_text_free(&kept);
    return status;
}

/* The folder that a path names a file in, where that is a checkpoint's own. */
static cpl_status check_folder_of(const cpl_text *there, const char *file, const char *target,
                                  const char *checkpoint)
{
    bool own          = false;
    char *folder      = cpl_path_folder(file);
    cpl_status status = folder ? has_own_folder(&own, folder)
                               : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a path");
    if (status == CPL_OK && own) status = check_against(there, folder, target, checkpoint);
    cpl_free(folder);
    return status;
}

/* A single file: itself, and its folder both as named and where links lead. */
static cpl_status check_file(const cpl_text *there, const char *target, const char *checkpoint)
{
    cpl_text real     = {0};
    cpl_status status = resolve(&real, checkpoint);
    if (status == CPL_OK) status = check_against(there, checkpoint, target, checkpoint);
    if (status == CPL_OK) status = check_folder_of(there, checkpoint, target, checkpoint);
    if (status == CPL_OK) status = check_folder_of(there, real.bytes, target, checkpoint);
    cpl_text_free(&real);
    return status;
}

/* Weights are no place for results, whosever they are: another part of a split file, say. */
static bool is_weights(const char *path)
{
    static const char *const endings[] = {".safetensors", ".gguf", ".bin", ".pt", ".pth"};
    const size_t length                = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t own = strlen(endings[i]);
        if (length > own && strcmp(path + length - own, endings[i]) == 0) return true;
    }
    return false;
}

cpl_status cpl_path_guard_check(const char *target, const char *checkpoint)
{
    cpl_text there    = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(resolve(&there, target));
    if (cpl_path_is_folder(checkpoint))
        CPL_TRY_DONE(check_against(&there, checkpoint, target, checkpoint));
    else if (cpl_path_exists(checkpoint))
        CPL_TRY_DONE(check_file(&there, target, checkpoint));
    if (is_weights(target) && cpl_path_exists(target))
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: is there and looks like weights; name another file",
                          target);
done:
    cpl_text_free(&there);
    return status;
}
