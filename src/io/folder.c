/* folder.c - names and folders of file.h */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/stop.h"
#include "base/text.h"
#include "io/file.h"

bool cpl_path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool cpl_path_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 || errno == EIO || errno == ENOMEM;
}

/* Whether the open file still has this name: who held the lock may have removed it. */
static bool is_named(int file, const char *path)
{
    struct stat mine, there;
    return fstat(file, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

/* One try; leaves *held at -1 where somebody else has the lock. */
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

static int64_t listed(const cpl_text *list)
{
    return (int64_t)(list->length / sizeof(char *));
}

/* Adds copies of all names to `list`, an array of pointers. */
static cpl_status add_names(cpl_text *list, DIR *entries, const char *folder)
{
    for (;;) {
        errno                      = 0;
        const struct dirent *entry = readdir(entries);
        if (!entry && errno)
            return CPL_FAIL(CPL_ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
        if (!entry) return CPL_OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *name = cpl_text_copy(entry->d_name);
        if (name) cpl_text_append(list, &name, sizeof name);
        if (!name || list->failed) {
            cpl_free(name);
            return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to list it", folder);
        }
    }
}

cpl_status cpl_folder_list(char ***names, int64_t *count, const char *folder)
{
    cpl_text list = {0};
    *names        = NULL;
    *count        = 0;
    DIR *entries  = opendir(folder);
    if (!entries) return CPL_FAIL(CPL_ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
    cpl_status status = add_names(&list, entries, folder);
    closedir(entries);
    char **found = (char **)(void *)list.bytes;
    if (status != CPL_OK) {
        cpl_folder_list_free(found, listed(&list));
        return status;
    }
    if (found) qsort(found, (size_t)listed(&list), sizeof *found, cpl_order_strings);
    *names = found;
    *count = listed(&list);
    return CPL_OK;
}

void cpl_folder_list_free(char **names, int64_t count)
{
    for (int64_t i = 0; i < count; i++) cpl_free(names[i]);
    cpl_free(names);
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

size_t cpl_path_there(const char *folder)
{
    char path[4096]; /* a longer one the system does not take */
    size_t there = 0;
    if (strlen(folder) >= sizeof path) return strlen(folder);
    for (const char *slash = folder; slash;) {
        slash         = strchr(slash + 1, '/');
        size_t length = slash ? (size_t)(slash - folder) : strlen(folder);
        memcpy(path, folder, length);
        path[length] = '\0';
        if (!cpl_path_exists(path)) break;
        there = length;
    }
    return there;
}

void cpl_folder_unmake(const char *folder, size_t there)
{
    char *path = cpl_text_copy(folder);
    for (size_t n = path ? strlen(path) : 0; n > there; n--)
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

void cpl_folder_empty(const char *folder)
{
    char **names  = NULL;
    int64_t count = 0;
    if (cpl_folder_list(&names, &count, folder) != CPL_OK) return;
    for (int64_t i = 0; i < count; i++) {
        char *path = cpl_path_join(folder, names[i]);
        if (path) cpl_folder_remove(path);
        cpl_free(path);
    }
    cpl_folder_list_free(names, count);
}
