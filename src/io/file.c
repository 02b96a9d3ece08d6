/* file.c - reads, hashes and writes files, see file.h */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/stop.h"

enum { CHUNK = 1 << 16 }; /* bytes per read */

/* Reports why `path` could not be opened. A missing file and a link to a missing file give
 * different errors. */
static cpl_status cannot_open(const char *path)
{
    int error = errno;
    struct stat info;
    if (error == ENOENT && lstat(path, &info) == 0)
        return CPL_FAIL(CPL_ERR_IO, "%s: is a symbolic link to a file that does not exist", path);
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be opened: %s", path, strerror(error));
}

static cpl_status cannot_read(const char *path)
{
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
}

/* Opens with O_NONBLOCK: otherwise opening a pipe blocks until it has a writer. */
static cpl_status open_any(int *descriptor, struct stat *info, const char *path)
{
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0) return cannot_open(path);
    if (fstat(*descriptor, info) == 0) return CPL_OK;
    cpl_status status = cannot_read(path);
    close(*descriptor);
    return status;
}

cpl_status cpl_file_open(int *descriptor, uint64_t *length, const char *path)
{
    struct stat info;
    CPL_TRY(open_any(descriptor, &info, path));
    *length = (uint64_t)info.st_size;
    if (S_ISREG(info.st_mode)) return CPL_OK;
    close(*descriptor);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is not a regular file", path);
}

cpl_status cpl_file_check(const char *path)
{
    int descriptor;
    uint64_t length;
    CPL_TRY(cpl_file_open(&descriptor, &length, path));
    close(descriptor);
    return CPL_OK;
}

cpl_status cpl_file_open_given(int *descriptor, const char *path)
{
    struct stat info;
    CPL_TRY(open_any(descriptor, &info, path));
    if (!S_ISDIR(info.st_mode)) return CPL_OK;
    close(*descriptor);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is a folder where a file should be", path);
}

cpl_status cpl_file_read_next(int descriptor, void *out, size_t bytes, size_t *got,
                              const char *path)
{
    enum { LOOK_MS = 100 };
    struct pollfd wait = {.fd = descriptor, .events = POLLIN};
    *got               = 0;
    for (;;) { /* a read from a pipe without a writer yet would return end of file */
        CPL_TRY(cpl_stop_check());
        int ready = poll(&wait, 1, LOOK_MS);
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        ssize_t n = ready < 0 ? -1 : read(descriptor, out, bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) return cannot_read(path);
        *got = (size_t)n;
        return CPL_OK;
    }
}

static cpl_status read_some(int descriptor, void *out, size_t bytes, size_t *got, const char *path)
{
    ssize_t n;
    do n = read(descriptor, out, bytes);
    while (n < 0 && errno == EINTR);
    *got = n < 0 ? 0 : (size_t)n;
    return n < 0 ? cannot_read(path) : CPL_OK;
}

static cpl_status too_long(const char *path, size_t max_bytes)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is longer than the %zu bytes such a file may have", path,
                    max_bytes);
}

static cpl_status read_to_end(cpl_text *out, int descriptor, bool given, const char *path,
                              size_t max_bytes)
{
    char chunk[CHUNK];
    for (size_t got;;) {
        CPL_TRY((given ? cpl_file_read_next : read_some)(descriptor, chunk, CHUNK, &got, path));
        if (got == 0) return cpl_text_status(out);
        if (got > max_bytes - out->length) return too_long(path, max_bytes);
        cpl_text_append(out, chunk, got);
        CPL_TRY(cpl_text_status(out));
    }
}

cpl_status cpl_file_read(cpl_text *out, const char *path, size_t max_bytes)
{
    int descriptor;
    uint64_t length;
    cpl_text_clear(out);
    CPL_TRY(cpl_file_open(&descriptor, &length, path));
    cpl_status status = length > max_bytes ? too_long(path, max_bytes)
                                           : read_to_end(out, descriptor, false, path, max_bytes);
    close(descriptor);
    return status;
}

cpl_status cpl_file_read_given(cpl_text *out, const char *path, size_t max_bytes)
{
    int descriptor;
    cpl_text_clear(out);
    CPL_TRY(cpl_file_open_given(&descriptor, path));
    cpl_status status = read_to_end(out, descriptor, true, path, max_bytes);
    close(descriptor);
    return status;
}

cpl_status cpl_file_read_at(int descriptor, void *out, size_t bytes, uint64_t offset,
                            const char *path)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(descriptor, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return CPL_FAIL(CPL_ERR_IO, "%s: cannot be read at byte %llu: %s", path,
                            (unsigned long long)(offset + done), strerror(errno));
        if (got == 0)
            return CPL_FAIL(CPL_ERR_IO, "%s: ends at byte %llu; it became shorter while in use",
                            path, (unsigned long long)(offset + done));
        done += (size_t)got;
    }
    return CPL_OK;
}

cpl_status cpl_file_hash(uint64_t *hash, const char *path)
{
    cpl_status status = CPL_OK;
    int descriptor    = -1;
    uint64_t length;
    size_t got = 1;
    CPL_TRY(cpl_file_open(&descriptor, &length, path));
    char *chunk          = cpl_alloc(CPL_WRITER_BUFFER);
    XXH3_state_t *hasher = chunk ? XXH3_createState() : NULL;
    if (!hasher) CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to check it", path));
    XXH3_64bits_reset(hasher);
    while (got) {
        CPL_TRY_DONE(read_some(descriptor, chunk, CPL_WRITER_BUFFER, &got, path));
        XXH3_64bits_update(hasher, chunk, got);
    }
    *hash = XXH3_64bits_digest(hasher);
done:
    if (hasher) XXH3_freeState(hasher);
    cpl_free(chunk);
    close(descriptor);
    return status;
}

bool cpl_file_is_lfs_pointer(const void *bytes, size_t length)
{
    static const char begin[] = "version https://git-lfs";
    return length >= sizeof begin - 1 && memcmp(bytes, begin, sizeof begin - 1) == 0;
}

const char *cpl_file_hint(const void *bytes, size_t length)
{
    static const struct {
        const char *begin, *hint;
    } known[] = {
        {"PK\x03\x04", "; it looks like a PyTorch .bin or .pt file: convert it to safetensors"},
        {"\x80\x02", "; it looks like an old PyTorch or pickle file: convert it to safetensors"},
        {"\x80\x04", "; it looks like a pickle file: convert it to safetensors"},
        {"GGUF", "; it is a GGUF file"},
        {"\x93NUMPY", "; it is a NumPy file"},
        {"\x89HDF", "; it is an HDF5 file"},
        {"\x1f\x8b", "; it is compressed with gzip"},
        {"\x28\xb5\x2f\xfd", "; it is compressed with zstd"},
        {"<!DOCTYPE", "; it looks like a web page, as a failed download leaves one"},
        {"<html", "; it looks like a web page, as a failed download leaves one"},
        {"{", "; it looks like JSON"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (length >= strlen(known[i].begin) &&
            memcmp(bytes, known[i].begin, strlen(known[i].begin)) == 0)
            return known[i].hint;
    return "";
}

/* ---- writing ---- */

/* Number of temporary files so far, part of their names, so that two writers never share a file. */
static atomic_uint serial;

static char *temporary_name(const char *path)
{
    cpl_text name = {0};
    cpl_text_printf(&name, "%s.tmp-%ld-%u", path, (long)getpid(), atomic_fetch_add(&serial, 1));
    if (!name.failed) return name.bytes;
    cpl_text_free(&name);
    return NULL;
}

/* Creates a file with an unused name. Names left by a killed process with our process number are
 * skipped. mkstemp would make a file that other users cannot read. */
static cpl_status create(cpl_writer *w)
{
    enum { TRIES = 100 };
    for (int i = 0; i < TRIES; i++) {
        w->temporary = temporary_name(w->path);
        if (!w->temporary) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", w->path);
        w->descriptor = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->descriptor >= 0) return CPL_OK;
        int error = errno;
        cpl_free(w->temporary);
        w->temporary = NULL;
        if (error != EEXIST)
            return CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", w->path, strerror(error));
    }
    return CPL_FAIL(CPL_ERR_IO, "%s: no free temporary name in its folder", w->path);
}

static void release(cpl_writer *w)
{
    if (w->temporary) {
        if (w->descriptor >= 0) close(w->descriptor);
        unlink(w->temporary);
    }
    cpl_free(w->temporary);
    cpl_free(w->buffer);
    cpl_free(w->path);
    memset(w, 0, sizeof *w);
}

/* Refuses a device or a pipe, such as /dev/null: with enough permissions the rename would remove
 * it. */
static cpl_status refuse_special(const char *path)
{
    struct stat what;
    if (stat(path, &what) != 0 || S_ISREG(what.st_mode)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: it is not a regular file", path);
}

cpl_status cpl_writer_open(cpl_writer *w, const char *path)
{
    cpl_status status = CPL_OK;
    memset(w, 0, sizeof *w);
    w->descriptor = -1;
    w->path       = cpl_text_copy(path);
    w->buffer     = cpl_alloc(CPL_WRITER_BUFFER);
    if (!w->path || !w->buffer)
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to write it", path));
    CPL_TRY_DONE(refuse_special(path));
    CPL_TRY_DONE(create(w));
    w->open = true;
done:
    if (status != CPL_OK) release(w);
    return status;
}

static void write_out(cpl_writer *w, const unsigned char *bytes, size_t length)
{
    while (length && !w->error) {
        ssize_t wrote = write(w->descriptor, bytes, length);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
            w->error = wrote < 0 ? errno : ENOSPC;
            return;
        }
        bytes += wrote;
        length -= (size_t)wrote;
    }
}

static void flush(cpl_writer *w)
{
    write_out(w, w->buffer, w->buffered);
    w->buffered = 0;
}

void cpl_writer_put(cpl_writer *w, const void *bytes, size_t length)
{
    CPL_ASSERT(w->open);
    if (!length) return;
    if (length > CPL_WRITER_BUFFER - w->buffered) flush(w);
    if (length >= CPL_WRITER_BUFFER) {
        write_out(w, bytes, length);
        return;
    }
    memcpy(w->buffer + w->buffered, bytes, length);
    w->buffered += length;
}

cpl_status cpl_writer_status(const cpl_writer *w)
{
    if (!w->error) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s (what was there before is untouched)",
                    w->path, strerror(w->error));
}

cpl_status cpl_folder_sync(const char *folder)
{
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error      = descriptor < 0 ? errno : 0;
    if (!error && fsync(descriptor) != 0) error = errno;
    if (descriptor >= 0) close(descriptor);
    /* EINVAL: the file system cannot sync folders. */
    if (!error || error == EINVAL) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s: the folder cannot be synced: %s", folder, strerror(error));
}

static cpl_status sync_folder_of(const char *path)
{
    char *folder = cpl_path_folder(path);
    if (!folder) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", path);
    cpl_status status = cpl_folder_sync(folder);
    cpl_free(folder);
    return status;
}

cpl_status cpl_writer_commit(cpl_writer *w)
{
    cpl_status status = CPL_OK;
    CPL_ASSERT(w->open);
    flush(w);
    if (!w->error && fsync(w->descriptor) != 0) w->error = errno;
    if (close(w->descriptor) != 0 && !w->error) w->error = errno;
    w->descriptor = -1;
    if (!w->error && rename(w->temporary, w->path) != 0) w->error = errno;
    CPL_TRY_DONE(cpl_writer_status(w));
    cpl_free(w->temporary); /* the file has its final name */
    w->temporary = NULL;
    CPL_TRY_DONE(sync_folder_of(w->path));
done:
    release(w);
    return status;
}

void cpl_writer_abort(cpl_writer *w)
{
    if (w->open) release(w);
}

cpl_status cpl_file_write_atomic(const char *path, const void *bytes, size_t length)
{
    cpl_writer writer;
    CPL_TRY(cpl_writer_open(&writer, path));
    cpl_writer_put(&writer, bytes, length);
    return cpl_writer_commit(&writer);
}
