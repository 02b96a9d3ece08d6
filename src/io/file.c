/* file.c - reading and hashing of file.h; writing is in writer.c, folders in folder.c */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/stop.h"

enum { CHUNK = 1 << 16 }; /* bytes read at a time */

/* Says why `path` could not be opened; a missing file and a link to a missing file differ. */
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

/* Without O_NONBLOCK to open a pipe is to wait for somebody who writes into it. */
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
    for (;;) { /* before anybody writes into a pipe, to read from it would look like its end */
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
