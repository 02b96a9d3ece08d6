/* source.c - sources of the local file system, see source.h. Files stay open and are read with
 * pread, not mapped: a file that becomes shorter while in use gives an error and not a signal. */
#include "io/source.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"

typedef struct local_file {
    cpl_source source;
    int descriptor; /* open for reading; owned */
} local_file;

static cpl_status read_local(const cpl_source *source, void *out, size_t bytes, uint64_t offset)
{
    const local_file *file = (const local_file *)source;
    return cpl_file_read_at(file->descriptor, out, bytes, offset, source->path);
}

static void prefetch_local(const cpl_source *source, uint64_t offset, size_t bytes)
{
    const local_file *file = (const local_file *)source;
    (void)posix_fadvise(file->descriptor, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}

static void close_local(cpl_source *source)
{
    local_file *file = (local_file *)source;
    if (file->descriptor >= 0) close(file->descriptor);
    cpl_free(source->path);
    cpl_free(file);
}

static const cpl_source_ops local_ops = {read_local, prefetch_local, close_local};

static cpl_status open_local(cpl_source **source, const char *path)
{
    cpl_status status = CPL_OK;
    local_file *file  = cpl_alloc(sizeof *file);
    if (!file) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to open it", path);
    *file =
        (local_file){.source = {.ops = &local_ops, .path = cpl_text_copy(path)}, .descriptor = -1};
    if (!file->source.path)
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to open it", path));
    status = cpl_file_open(&file->descriptor, &file->source.length, path);
    if (status != CPL_OK) file->descriptor = -1; /* the descriptor is closed */
    CPL_TRY_DONE(status);
    *source = &file->source;
done:
    if (status != CPL_OK) close_local(&file->source);
    return status;
}

/* ---- sources ---- */

cpl_status cpl_source_read_at(const cpl_source *source, void *out, size_t bytes, uint64_t offset)
{
    return source->ops->read_at(source, out, bytes, offset);
}

void cpl_source_prefetch(const cpl_source *source, uint64_t offset, size_t bytes)
{
    source->ops->prefetch(source, offset, bytes);
}

void cpl_source_close(cpl_source *source)
{
    if (source) source->ops->close(source);
}

cpl_status cpl_source_pieces_add(cpl_source_pieces *pieces, const cpl_source *source,
                                 uint64_t offset, uint64_t bytes)
{
    if (!bytes) return CPL_OK;
    if (pieces->count == pieces->room) {
        int64_t room         = pieces->room ? 2 * pieces->room : 256;
        cpl_source_piece *at = cpl_realloc(pieces->at, (size_t)room * sizeof *at);
        if (!at) return CPL_ERR_MEMORY;
        pieces->at   = at;
        pieces->room = room;
    }
    pieces->at[pieces->count++] = (cpl_source_piece){source, offset, bytes};
    return CPL_OK;
}

void cpl_source_pieces_free(cpl_source_pieces *pieces)
{
    cpl_free(pieces->at);
    *pieces = (cpl_source_pieces){0};
}

/* ---- origins ---- */

cpl_status cpl_origin_open(const cpl_origin *origin, cpl_source **source, const char *path)
{
    *source = NULL;
    return origin ? origin->ops->open(origin, source, path) : open_local(source, path);
}

cpl_status cpl_origin_read(const cpl_origin *origin, cpl_text *out, const char *path,
                           size_t max_bytes)
{
    return origin ? origin->ops->read(origin, out, path, max_bytes)
                  : cpl_file_read(out, path, max_bytes);
}

cpl_status cpl_origin_exists(const cpl_origin *origin, bool *there, const char *path)
{
    *there = false;
    if (origin) return origin->ops->exists(origin, there, path);
    *there = cpl_path_exists(path);
    return CPL_OK;
}

cpl_status cpl_origin_list(const cpl_origin *origin, cpl_strings *names, const char *folder)
{
    return origin ? origin->ops->list(origin, names, folder) : cpl_folder_list(names, folder);
}

bool cpl_origin_is_folder(const cpl_origin *origin, const char *path)
{
    return origin ? origin->ops->is_folder(origin, path) : cpl_path_is_folder(path);
}

void cpl_origin_expect(const cpl_origin *origin, const cpl_strings *paths)
{
    if (origin) origin->ops->expect(origin, paths);
}

cpl_status cpl_origin_plan_set(const cpl_origin *origin, cpl_origin_plan *plan,
                               const cpl_source_pieces *pieces)
{
    *plan = (cpl_origin_plan){0};
    return origin ? origin->ops->plan(origin, plan, pieces) : CPL_OK;
}
