/* cache.c - see cache.h */
#include "remote/cache.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "io/file.h"

enum { DIGITS = 16 };

/* Holds the part of a file before the bytes of the range, and the path of the file. */
typedef struct entry {
    cpl_text head; /* the key, and with bytes their hash */
    cpl_text path;
} entry;

static void free_entry(entry *e)
{
    cpl_text_free(&e->head);
    cpl_text_free(&e->path);
}

/* Sets the entry of a range, without the hash. free_entry releases the entry in any case. */
static cpl_status find_entry(entry *e, const char *folder, const cpl_fetch_file *file,
                             uint64_t begin, uint64_t end)
{
    *e = (entry){0};
    if (!*file->tag) return CPL_FAIL(CPL_ERR_INPUT, "%s: the server gives no ETag", file->path);
    cpl_text_printf(&e->head, "couplet range 1\n%s %s %s %" PRIu64 "-%" PRIu64 "\n", file->url,
                    file->tag, file->linked, begin, end);
    CPL_TRY(cpl_text_status(&e->head));
    const XXH128_hash_t hash = XXH3_128bits(e->head.bytes, e->head.length);
    cpl_text_printf(&e->path, "%s/%016" PRIx64 "%016" PRIx64 ".range", folder,
                    (uint64_t)hash.high64, (uint64_t)hash.low64);
    return cpl_text_status(&e->path);
}

static cpl_status add_hash(entry *e, const void *bytes, size_t n)
{
    cpl_text_printf(&e->head, "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(bytes, n));
    return cpl_text_status(&e->head);
}

bool cpl_cache_has(const char *folder, const cpl_fetch_file *file, uint64_t begin, uint64_t end)
{
    entry e;
    const bool has =
        find_entry(&e, folder, file, begin, end) == CPL_OK && access(e.path.bytes, R_OK) == 0;
    free_entry(&e);
    return has;
}

/* Returns whether the file has the key of the entry, and bytes with the hash in its head. */
static bool read_entry(entry *e, int descriptor, uint64_t length, void *out, size_t bytes)
{
    const size_t head = e->head.length + DIGITS + 1;
    char *found       = cpl_alloc(head);
    const bool good   = found && length == head + bytes &&
                      cpl_file_read_at(descriptor, found, head, 0, e->path.bytes) == CPL_OK &&
                      cpl_file_read_at(descriptor, out, bytes, head, e->path.bytes) == CPL_OK &&
                      add_hash(e, out, bytes) == CPL_OK && memcmp(found, e->head.bytes, head) == 0;
    cpl_free(found);
    return good;
}

bool cpl_cache_load(const char *folder, const cpl_fetch_file *file, uint64_t begin, uint64_t end,
                    void *out)
{
    entry e;
    uint64_t length;
    int descriptor;
    bool good = find_entry(&e, folder, file, begin, end) == CPL_OK &&
                cpl_file_open(&descriptor, &length, e.path.bytes) == CPL_OK;
    if (good) {
        good = read_entry(&e, descriptor, length, out, (size_t)(end - begin));
        close(descriptor);
    }
    free_entry(&e);
    return good;
}

cpl_status cpl_cache_store(const char *folder, const cpl_fetch_file *file, uint64_t begin,
                           uint64_t end, const void *bytes)
{
    const size_t n    = (size_t)(end - begin);
    cpl_status status = CPL_OK;
    cpl_writer writer;
    entry e = {0};
    if (!*file->tag) return CPL_OK;
    CPL_TRY_DONE(find_entry(&e, folder, file, begin, end));
    CPL_TRY_DONE(add_hash(&e, bytes, n));
    CPL_TRY_DONE(cpl_writer_open(&writer, e.path.bytes));
    cpl_writer_put(&writer, e.head.bytes, e.head.length);
    cpl_writer_put(&writer, bytes, n);
    status = cpl_writer_commit(&writer);
done:
    free_entry(&e);
    return status;
}
