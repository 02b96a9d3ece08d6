/* writer.c - the atomic writer of file.h */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"

/* Numbers the temporary files of this process, so that two writers never share one. */
static atomic_uint serial;

static char *temporary_name(const char *path)
{
    cpl_text name = {0};
    cpl_text_printf(&name, "%s.tmp-%ld-%u", path, (long)getpid(), atomic_fetch_add(&serial, 1));
    if (!name.failed) return name.bytes;
    cpl_text_free(&name);
    return NULL;
}

/* A new file under a name nobody has: leavings of a killed process with our number are passed by.
 * Not mkstemp, which would give the finished file permissions that others cannot read with. */
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
    return CPL_FAIL(CPL_ERR_IO, "%s: no free temporary name beside it", w->path);
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

/* Taking the name of a device or a pipe would remove it: /dev/null, for one who may. */
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
    /* Some file systems cannot sync a folder and say so with EINVAL: there is no more to do. */
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
    cpl_free(w->temporary); /* it has its own name now */
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
