/* passing_origin.h - an origin that passes every call on to the local file system, counts files and
 * shows a test each read. */
#ifndef CPL_TESTS_SUPPORT_PASSING_ORIGIN_H
#define CPL_TESTS_SUPPORT_PASSING_ORIGIN_H

#include "base/arena.h"
#include "check.h"
#include "io/source.h"

typedef struct passing_origin {
    cpl_origin origin;
    const char *prefix,
        *folder; /* paths begin with `prefix` in place of `folder`; NULL: paths stay unchanged */
    int64_t n_opened, n_open; /* files: opened so far, and open now */
    int64_t n_expected;       /* files that were announced */
    bool fails;               /* every test whether a file exists fails */

    /* NULL, or a function that is called before each reading. */
    void (*see_reading)(const cpl_source *source, size_t bytes, uint64_t offset);
    void (*see_plan)(cpl_origin_plan *plan, const cpl_source_pieces *pieces);
} passing_origin;

typedef struct passing_file {
    cpl_source source;
    cpl_source *local;
    passing_origin *from;
} passing_file;

static inline passing_origin *passing_of(const cpl_origin *origin)
{
    return (passing_origin *)(uintptr_t)origin;
}

static inline const char *passing_path(const cpl_origin *origin, const char *path)
{
    static char name[512];
    const passing_origin *o = passing_of(origin);
    const size_t length     = o->prefix ? strlen(o->prefix) : 0;
    if (!o->prefix) return path;
    assert_int_equal(strncmp(path, o->prefix, length), 0);
    snprintf(name, sizeof name, "%s%s", o->folder, path + length);
    return name;
}

static inline cpl_status passing_read_at(const cpl_source *source, void *out, size_t bytes,
                                         uint64_t offset)
{
    const passing_file *file = (const passing_file *)source;
    if (file->from->see_reading) file->from->see_reading(source, bytes, offset);
    return cpl_source_read_at(file->local, out, bytes, offset);
}

static inline void passing_prefetch(const cpl_source *source, uint64_t offset, size_t bytes)
{
    (void)source, (void)offset, (void)bytes;
}

static inline void passing_close(cpl_source *source)
{
    ((passing_file *)source)->from->n_open--;
    cpl_source_close(((passing_file *)source)->local);
    cpl_free(source->path);
    cpl_free(source);
}

static inline cpl_status passing_open(const cpl_origin *origin, cpl_source **source,
                                      const char *path)
{
    static const cpl_source_ops ops = {passing_read_at, passing_prefetch, passing_close};
    passing_origin *o               = passing_of(origin);
    cpl_source *local;
    CPL_TRY(cpl_origin_open(NULL, &local, passing_path(origin, path)));
    passing_file *file = cpl_alloc(sizeof *file);
    *file              = (passing_file){{&ops, cpl_text_copy(path), local->length}, local, o};
    *source            = &file->source;
    o->n_opened++;
    o->n_open++;
    return CPL_OK;
}

static inline cpl_status passing_read(const cpl_origin *origin, cpl_text *out, const char *path,
                                      size_t most)
{
    return cpl_origin_read(NULL, out, passing_path(origin, path), most);
}

static inline cpl_status passing_exists(const cpl_origin *origin, bool *there, const char *path)
{
    if (passing_of(origin)->fails) return CPL_FAIL(CPL_ERR_IO, "%s: the server is gone", path);
    return cpl_origin_exists(NULL, there, passing_path(origin, path));
}

static inline cpl_status passing_list(const cpl_origin *origin, cpl_strings *names,
                                      const char *path)
{
    *names = (cpl_strings){0};
    return origin->lists ? cpl_origin_list(NULL, names, passing_path(origin, path)) : CPL_OK;
}

static inline bool passing_is_folder(const cpl_origin *origin, const char *path)
{
    return cpl_origin_is_folder(NULL, passing_path(origin, path));
}

static inline void passing_expect(const cpl_origin *origin, const cpl_strings *paths)
{
    passing_of(origin)->n_expected += paths->count;
}

static inline cpl_status passing_plan(const cpl_origin *origin, cpl_origin_plan *plan,
                                      const cpl_source_pieces *pieces)
{
    passing_of(origin)->see_plan(plan, pieces);
    return CPL_OK;
}

static const cpl_origin_ops passing_ops = {passing_open, passing_read,      passing_exists,
                                           passing_list, passing_is_folder, passing_expect,
                                           passing_plan};

#endif /* CPL_TESTS_SUPPORT_PASSING_ORIGIN_H */
