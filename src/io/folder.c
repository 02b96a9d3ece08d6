/* folder.c - names and folders of file.h */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/stop.h"
#include "base/text.h"
#include "io/file.h"
#include "io/paths.h"

bool cpl_path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? S_ISDIR(info.st_mode) : errno == EIO || errno == ENOMEM;
}

bool cpl_path_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 || errno == EIO || errno == ENOMEM;
}

/* Returns whether the open file still has this name: the holder of the lock may have removed it. */
static bool is_named(int file, const char *path)
{
    struct stat mine, there;
    return fstat(file, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

/* Tries once to lock. Leaves *held at -1 if another process has the lock. */
static cpl_status try_lock(int *held, const char *path)
{
    int file = open(path, O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0666), failed;
    *held    = -1;
    if (file < 0 && errno == ELOOP)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a symbolic link, and a lock is taken of no link; "
                        "remove it",
                        path);
    if (file < 0) return CPL_FAIL(CPL_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    do failed = flock(file, LOCK_EX | LOCK_NB);
    while (failed && errno == EINTR);
    if (!failed && is_named(file, path)) {
        *held = file;
        return CPL_OK;
    }
    int why = failed ? errno : EWOULDBLOCK;
    close(file);
    if (why == EWOULDBLOCK) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be locked: %s", path, strerror(why));
}

cpl_status cpl_file_lock(int *held, const char *path, bool wait)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    *held                       = -1;
    CPL_TRY(try_lock(held, path));
    while (*held < 0 && wait) {
        CPL_TRY(cpl_stop_check());
        nanosleep(&pause, NULL);
        CPL_TRY(try_lock(held, path));
    }
    return CPL_OK;
}

bool cpl_path_ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), n = strlen(ending);
    return length >= n && memcmp(path + length - n, ending, n) == 0;
}

bool cpl_path_is_gguf(const char *path)
{
    const char *ending = strrchr(path, '.');
    return ending && strcasecmp(ending, ".gguf") == 0;
}

char *cpl_path_join(const char *folder, const char *name)
{
    size_t length = strlen(folder), name_bytes = strlen(name) + 1;
    bool with_slash = length && folder[length - 1] != '/';
    char *path      = cpl_alloc(length + with_slash + name_bytes);
    if (!path) return NULL;
    memcpy(path, folder, length);
    if (with_slash) path[length] = '/';
    memcpy(path + length + with_slash, name, name_bytes);
    return path;
}

char *cpl_path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return cpl_text_copy(".");
    size_t length = slash == path ? 1 : (size_t)(slash - path);
    char *folder  = cpl_alloc(length + 1);
    if (!folder) return NULL;
    memcpy(folder, path, length);
    folder[length] = '\0';
    return folder;
}

static cpl_status add_names(cpl_strings *names, DIR *entries, const char *folder)
{
    for (;;) {
        errno                      = 0;
        const struct dirent *entry = readdir(entries);
        if (!entry && errno)
            return CPL_FAIL(CPL_ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
        if (!entry) return CPL_OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (cpl_paths_add(names, entry->d_name) != CPL_OK)
            return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to list it", folder);
    }
}

cpl_status cpl_folder_list(cpl_strings *names, const char *folder)
{
    *names       = (cpl_strings){0};
    DIR *entries = opendir(folder);
    if (!entries) return CPL_FAIL(CPL_ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
    cpl_status status = add_names(names, entries, folder);
    closedir(entries);
    if (status == CPL_OK)
        cpl_paths_sort(names);
    else
        cpl_paths_free(names);
    return status;
}

cpl_status cpl_folder_make(const char *folder)
{
    cpl_text path = {0};
    for (const char *slash = folder; slash;) { /* every parent, then the folder itself */
        slash = strchr(slash + 1, '/');
        cpl_text_clear(&path);
        cpl_text_append(&path, folder, slash ? (size_t)(slash - folder) : strlen(folder));
        if (path.failed) break;
        if (mkdir(path.bytes, 0777) != 0 && errno != EEXIST) {
            cpl_text_free(&path);
            return CPL_FAIL(CPL_ERR_IO, "%s: the folder cannot be made: %s", folder,
                            strerror(errno));
        }
    }
    cpl_status status = cpl_text_status(&path);
    cpl_text_free(&path);
    if (status == CPL_OK && !cpl_path_is_folder(folder))
        return CPL_FAIL(CPL_ERR_INPUT, "%s is not a folder", folder);
    return status;
}

size_t cpl_path_existing(const char *folder)
{
    char path[4096]; /* the system accepts no longer path */
    size_t existing = 0;
    if (strlen(folder) >= sizeof path) return strlen(folder);
    for (const char *slash = folder; slash;) {
        slash         = strchr(slash + 1, '/');
        size_t length = slash ? (size_t)(slash - folder) : strlen(folder);
        memcpy(path, folder, length);
        path[length] = '\0';
        if (!cpl_path_exists(path)) break;
        existing = length;
    }
    return existing;
}

void cpl_folder_unmake(const char *folder, size_t existing)
{
    char *path = cpl_text_copy(folder);
    for (size_t n = path ? strlen(path) : 0; n > existing; n--)
        if (path[n] == '/' || path[n] == '\0') {
            path[n] = '\0';
            (void)rmdir(path);
        }
    cpl_free(path);
}

static int remove_entry(const char *path, const struct stat *what, int kind, struct FTW *where)
{
    (void)what, (void)kind, (void)where;
    (void)remove(path);
    return 0;
}

void cpl_folder_remove(const char *folder)
{
    (void)nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Renames the entry before removing it: an entry that still has its name is complete, even if the
 * process is killed here. */
static void remove_within(const char *folder, const char *name)
{
    char *path = cpl_path_join(folder, name), *doomed = cpl_path_join(folder, ".tmp-removed");
    if (path && doomed) {
        cpl_folder_remove(doomed);
        cpl_folder_remove(rename(path, doomed) == 0 ? doomed : path);
    }
    cpl_free(path);
    cpl_free(doomed);
}

void cpl_folder_empty(const char *folder, const char *last)
{
    cpl_strings names;
    if (cpl_folder_list(&names, folder) != CPL_OK) return;
    char *path = last ? cpl_path_join(folder, last) : NULL;
    for (int64_t i = 0; i < names.count; i++)
        if (!last || strcmp(names.at[i], last) != 0) remove_within(folder, names.at[i]);
    if (last && path) (void)unlink(path);
    cpl_free(path);
    cpl_paths_free(&names);
}

/* ---- output paths ---- */

/* Appends one component to an absolute path. ".." removes the last component. */
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

/* Sets `out` to the resolved location of `path`: its longest existing beginning as the system
 * resolves it, and the remaining components as written. */
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

/* Sets `*has` to whether the folder of a single file is a checkpoint, judged by its other files. */
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

/* Refuses the target if its resolved location `there` is at or below `kept_path`. */
static cpl_status check_against(const cpl_text *there, const char *kept_path, const char *target,
                                const char *checkpoint)
{
    cpl_text kept     = {0};
    cpl_status status = resolve(&kept, kept_path);
    if (status == CPL_OK && is_at_or_below(there, &kept)) status = refuse(target, checkpoint);
    cpl_text_free(&kept);
    return status;
}

/* Checks the folder of a file if the folder is a checkpoint. */
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

/* Checks a single file: the file, and its folder both as named and with links resolved. */
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

/* Returns whether the path has the extension of weights: results must not overwrite the weights of
 * any checkpoint, such as another part of a split file. */
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

cpl_status cpl_path_guard_outside(const char *target, const char *checkpoint)
{
    cpl_text there    = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(resolve(&there, target));
    if (cpl_path_is_folder(checkpoint))
        CPL_TRY_DONE(check_against(&there, checkpoint, target, checkpoint));
    else if (cpl_path_exists(checkpoint))
        CPL_TRY_DONE(check_file(&there, target, checkpoint));
done:
    cpl_text_free(&there);
    return status;
}

cpl_status cpl_path_guard_check(const char *target, const char *checkpoint)
{
    CPL_TRY(cpl_path_guard_outside(target, checkpoint));
    if (is_weights(target) && cpl_path_exists(target))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: is there and looks like weights; name another file",
                        target);
    return CPL_OK;
}
