/* file.h - reading, hashing and atomic writing of whole files, names and folders. A crash or a full
 * disk never leaves half a file.
 *
 * Room:   io. Every error names the file and gives the system's error.
 * Names:  `path` is a name of the operating system. Symbolic links are followed.
 * Hash:   XXH3, 64 bits, seed 0, over the bytes of the file. */
#ifndef CPL_IO_FILE_H
#define CPL_IO_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* Reading ---------------------------------------------------------------------------------------*/

/* There are two rules. A name that is looked up in a folder (config.json, a shard, ...) must be a
 * regular file or a link to a regular file: a folder, pipe, socket or device is an error at once,
 * as the user did not choose it. A file that the user named (_given) may also be a pipe, a terminal
 * or a device, whose data is waited for until cpl_stop_check fails. In both cases the caller gives
 * the largest length. */

/* Replaces the content of `out`, which must be initialised, by the content of a file of a folder. A
 * file of more than `max_bytes` is an error. */
CPL_NODISCARD cpl_status cpl_file_read(cpl_text *out, const char *path, size_t max_bytes);

/* Does what cpl_file_read does, for a file that the user named. */
CPL_NODISCARD cpl_status cpl_file_read_given(cpl_text *out, const char *path, size_t max_bytes);

/* Opens a file of a folder for reading. Sets its length and its descriptor, which the caller
 * closes. */
CPL_NODISCARD cpl_status cpl_file_open(int *descriptor, uint64_t *length, const char *path);

/* Returns CPL_OK if cpl_file_open would open the file, else its error. */
CPL_NODISCARD cpl_status cpl_file_check(const char *path);

/* Opens a file that the user named, for cpl_file_read_next. The caller closes the descriptor. */
CPL_NODISCARD cpl_status cpl_file_open_given(int *descriptor, const char *path);

/* Waits for the next bytes and reads at most `bytes` into `out`. `*got` is the number of bytes
 * read, 0 at the end. This room need not have opened the descriptor, such as the standard input.
 * Returns CPL_ERR_IO or CPL_ERR_STOPPED on failure. */
CPL_NODISCARD cpl_status cpl_file_read_next(int descriptor, void *out, size_t bytes, size_t *got,
                                            const char *path);

/* Reads exactly `bytes` bytes at `offset` into `out`. A file that ends earlier is an error. Several
 * threads may read one descriptor. `path` is named in the error. */
CPL_NODISCARD cpl_status cpl_file_read_at(int descriptor, void *out, size_t bytes, uint64_t offset,
                                          const char *path);

CPL_NODISCARD cpl_status cpl_file_hash(uint64_t *hash, const char *path);

/* Returns whether the first bytes of a file are a Git LFS pointer in place of the file. */
bool cpl_file_is_lfs_pointer(const void *bytes, size_t length);

/* Returns a hint on a file of the wrong kind, from its first bytes: "; it looks like a web page,
 * ...", or "" if they match no known kind. The text is static. */
const char *cpl_file_hint(const void *bytes, size_t length);

/* Writing ---------------------------------------------------------------------------------------*/

/* A file being written in the folder of `path` with a temporary name (path, ".tmp-", process,
 * number). It takes its name at commit, so that `path` is at any moment the old file or the whole
 * new file. All zero is a closed writer, and abort of a closed writer does nothing. Not
 * thread-safe. */
typedef struct cpl_writer {
    char *path, *temporary; /* owned */
    unsigned char *buffer;  /* owned; CPL_WRITER_BUFFER bytes, `buffered` of them waiting */
    size_t buffered;
    int descriptor;
    int error; /* errno of the first write that failed, else 0 */
    bool open;
} cpl_writer;

enum { CPL_WRITER_BUFFER = 1 << 18 };

/* Creates the temporary file. Returns CPL_ERR_IO if the file cannot be created, or if `path` exists
 * and is not a regular file. */
CPL_NODISCARD cpl_status cpl_writer_open(cpl_writer *writer, const char *path);

/* Adds bytes. A failure is remembered, all later bytes are dropped, and commit returns it. */
void cpl_writer_put(cpl_writer *writer, const void *bytes, size_t length);

/* Returns the remembered failure, for callers that stop early. */
CPL_NODISCARD cpl_status cpl_writer_status(const cpl_writer *writer);

/* Flushes, syncs the file, renames, syncs the folder, closes. On failure the temporary file is
 * removed and a file that was at `path` is untouched. */
CPL_NODISCARD cpl_status cpl_writer_commit(cpl_writer *writer);
void cpl_writer_abort(cpl_writer *writer); /* closes and removes the temporary file */

/* Creates, writes and commits in one call. */
CPL_NODISCARD cpl_status cpl_file_write_atomic(const char *path, const void *bytes, size_t length);

/* Names and folders -----------------------------------------------------------------------------*/

/* Returns true if `path` is a folder, or if the disk fails: reading the folder then gives the
 * error. */
bool cpl_path_is_folder(const char *path);
/* Returns true if `path` exists, is a dangling link, or if the disk fails: opening the path then
 * gives the error. */
bool cpl_path_exists(const char *path);

bool cpl_path_ends_in(const char *path, const char *ending);
bool cpl_path_is_gguf(const char *path); /* the name ends in .gguf, in any case */

/* Return a path that the caller frees with cpl_free, or NULL if memory is not available. */
char *cpl_path_join(const char *folder, const char *name);
char *cpl_path_folder(const char *path); /* the part before the last '/', or "." */

/* Creates the folder and its parents where they do not exist. */
CPL_NODISCARD cpl_status cpl_folder_make(const char *folder);

/* Returns the length in bytes of the beginning of `folder` that names existing folders. With it
 * cpl_folder_unmake removes the folders that cpl_folder_make creates after that beginning, if they
 * are empty. */
size_t cpl_path_existing(const char *folder);
void cpl_folder_unmake(const char *folder, size_t existing);

/* Removes the folder and its content, as far as the system allows. Links are not followed. */
void cpl_folder_remove(const char *folder);
/* Removes only the content of the folder, the file `last` (may be NULL) after all other entries. A
 * program that is killed meanwhile leaves `last`, the remaining entries unchanged, and at most one
 * incomplete entry, named ".tmp-removed". */
void cpl_folder_empty(const char *folder, const char *last);

/* Locks the file `path`, which is created if needed, for this process. Closing `*held` or the end
 * of the process releases the lock. The file may be removed while the lock is held. If another
 * process has the lock, waits for it (`wait`) or leaves `*held` at -1. Returns CPL_ERR_INPUT if
 * `path` is a symbolic link, CPL_ERR_STOPPED if stopped while waiting, and CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_file_lock(int *held, const char *path, bool wait);

/* Syncs the folder, so that files renamed or created in it survive a power failure. */
CPL_NODISCARD cpl_status cpl_folder_sync(const char *folder);

/* Sets the names in a folder, sorted by bytes, without "." and "..". The caller frees them with
 * cpl_paths_free. */
CPL_NODISCARD cpl_status cpl_folder_list(cpl_strings *names, const char *folder);

/* Returns CPL_ERR_INPUT if `target` is the folder of the checkpoint, lies below that folder, or is
 * the file of the checkpoint. `target` is a file or folder to be written and need not exist yet.
 * Links are followed. For a checkpoint given as one file, the whole folder is protected if it
 * contains a config.json, params.json or an index, else only the file. The folder of the file that
 * a link leads to is protected by the same rule. An existing target with the extension of weights
 * is refused too. A checkpoint that does not exist protects nothing. */
CPL_NODISCARD cpl_status cpl_path_guard_check(const char *target, const char *checkpoint);

/* Does what cpl_path_guard_check does, but does not refuse an existing target for its extension. It
 * is for targets that are weights. */
CPL_NODISCARD cpl_status cpl_path_guard_outside(const char *target, const char *checkpoint);

#endif /* CPL_IO_FILE_H */
