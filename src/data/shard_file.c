/* shard_file.c - see shard_file.h */
#include "data/shard_file.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"

/* Sequences are read in random order: reading ahead would be in vain. */
static cpl_status open_random(int *descriptor, uint64_t *length, const char *path)
{
    CPL_TRY(cpl_file_open(descriptor, length, path));
    (void)posix_fadvise(*descriptor, 0, 0, POSIX_FADV_RANDOM);
    return CPL_OK;
}

cpl_status cpl_shard_file_open(cpl_shard_file *file, const char *path, bool keep)
{
    int descriptor = -1;
    memset(file, 0, sizeof *file);
    CPL_TRY(open_random(&descriptor, &file->length, path));
    file->path = cpl_text_copy(path);
    if (file->path && keep) {
        file->descriptor = descriptor;
        file->kept       = true;
        return CPL_OK;
    }
    close(descriptor);
    return file->path ? CPL_OK : CPL_ERR_MEMORY;
}

void cpl_shard_file_close(cpl_shard_file *file)
{
    if (file->kept) close(file->descriptor);
    cpl_free(file->path);
    memset(file, 0, sizeof *file);
}

cpl_status cpl_shard_file_read(const cpl_shard_file *file, void *out, size_t bytes, uint64_t offset)
{
    if (file->kept) return cpl_file_read_at(file->descriptor, out, bytes, offset, file->path);
    int descriptor    = -1;
    uint64_t length   = 0;
    cpl_status status = CPL_OK;
    CPL_TRY(open_random(&descriptor, &length, file->path));
    if (length != file->length)
        status = CPL_FAIL(CPL_ERR_IO, "%s: has %llu bytes, it had %llu: it changed while in use",
                          file->path, (unsigned long long)length, (unsigned long long)file->length);
    if (status == CPL_OK) status = cpl_file_read_at(descriptor, out, bytes, offset, file->path);
    close(descriptor);
    return status;
}
