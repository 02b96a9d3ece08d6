/* source.h - files that are read at any position, and the origins that open them.
 *
 * Room:    io. The reader of a checkpoint uses files only as sources. The origin that a caller
 *          passes decides whether a file is on a disk or on a server.
 * Origin:  NULL is the local file system, as everywhere in the library. The program passes another
 *          origin for names such as https://... The library itself opens no connection.
 * Names:   `path` is a name of the origin. Joining a folder and a name with '/'
 *          (cpl_path_join) gives the path of the file in it, for every origin.
 * Errors:  one sentence that begins with the path. */
#ifndef CPL_IO_SOURCE_H
#define CPL_IO_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct cpl_source cpl_source;
typedef struct cpl_origin cpl_origin;

typedef struct cpl_source_ops {
    cpl_status (*read_at)(const cpl_source *source, void *out, size_t bytes, uint64_t offset);
    void (*prefetch)(const cpl_source *source, uint64_t offset, size_t bytes);
    void (*close)(cpl_source *source);
} cpl_source_ops;

/* An open file, read-only for callers. It is the first member of an origin's own struct. */
struct cpl_source {
    const cpl_source_ops *ops;
    char *path;      /* owned */
    uint64_t length; /* bytes */
};

/* Reads exactly `bytes` bytes at `offset` into `out`. A file that ends earlier is an error. Several
 * threads may read one source. */
CPL_NODISCARD cpl_status cpl_source_read_at(const cpl_source *source, void *out, size_t bytes,
                                            uint64_t offset);

/* Advises that these bytes will be read soon. */
void cpl_source_prefetch(const cpl_source *source, uint64_t offset, size_t bytes);
void cpl_source_close(cpl_source *source); /* NULL is allowed */

/* Origins --------------------------------------------------------------------------------------*/

/* Bytes [offset, offset + bytes) of a file, which will be read. */
typedef struct cpl_source_piece {
    const cpl_source *source;
    uint64_t offset, bytes;
} cpl_source_piece;

/* Pieces in the order in which they will be read. All zero is an empty list. */
typedef struct cpl_source_pieces {
    cpl_source_piece *at; /* (count), owned */
    int64_t count, room;
} cpl_source_pieces;

/* Adds a piece, unless it is empty. Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_source_pieces_add(cpl_source_pieces *pieces, const cpl_source *source,
                                               uint64_t offset, uint64_t bytes);
void cpl_source_pieces_free(cpl_source_pieces *pieces);

/* Cost of reading a list of pieces from an origin. */
typedef struct cpl_origin_plan {
    int64_t n_requests;      /* requests to come */
    int64_t n_requests_made; /* requests so far, for names, headers and metadata */
    double bytes;            /* bytes of the requests to come, including gaps between pieces */
    double kept_bytes;       /* bytes of pieces that an earlier run has kept: no request */
} cpl_origin_plan;

typedef struct cpl_origin_ops {
    cpl_status (*open)(const cpl_origin *origin, cpl_source **source, const char *path);
    cpl_status (*read)(const cpl_origin *origin, cpl_text *out, const char *path, size_t max_bytes);
    cpl_status (*exists)(const cpl_origin *origin, bool *there, const char *path);
    cpl_status (*list)(const cpl_origin *origin, cpl_strings *names, const char *folder);
    bool (*is_folder)(const cpl_origin *origin, const char *path);
    void (*expect)(const cpl_origin *origin, const cpl_strings *paths);
    cpl_status (*plan)(const cpl_origin *origin, cpl_origin_plan *plan,
                       const cpl_source_pieces *pieces);
} cpl_origin_ops;

struct cpl_origin {
    const cpl_origin_ops *ops;
    bool lists;          /* true if folders can be listed; else every list is empty */
    double memory_bytes; /* largest memory in use while pieces are read */
};

/* Opens a file of a folder (local files with cpl_file_open). The caller closes the source. */
CPL_NODISCARD cpl_status cpl_origin_open(const cpl_origin *origin, cpl_source **source,
                                         const char *path);

/* Sets `out` (initialised) to a whole small file of at most `max_bytes`, like cpl_file_read. */
CPL_NODISCARD cpl_status cpl_origin_read(const cpl_origin *origin, cpl_text *out, const char *path,
                                         size_t max_bytes);

/* Sets `there` to whether an entry has this name. Fails if a server does not answer. */
CPL_NODISCARD cpl_status cpl_origin_exists(const cpl_origin *origin, bool *there, const char *path);

/* Sets the names in a folder, sorted by bytes. The caller frees them with cpl_paths_free. */
CPL_NODISCARD cpl_status cpl_origin_list(const cpl_origin *origin, cpl_strings *names,
                                         const char *folder);
bool cpl_origin_is_folder(const cpl_origin *origin, const char *path);

/* Advises that these files will be opened soon. */
void cpl_origin_expect(const cpl_origin *origin, const cpl_strings *paths);

/* Announces the pieces that will be read, in this order, from sources of this origin that stay
 * open, and sets `plan`. No request is made before the first of these bytes is read. Other bytes
 * may be read too. The local system needs no requests. May return CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_origin_plan_set(const cpl_origin *origin, cpl_origin_plan *plan,
                                             const cpl_source_pieces *pieces);

#endif /* CPL_IO_SOURCE_H */
