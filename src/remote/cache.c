/* cache.c - see cache.h */
#include "remote/cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "io/file.h"

enum { DIGITS = 16 };

/* The lines before the bytes, without their hash. */
static cpl_status write_key(cpl_text *key, const cpl_fetch_file *file, uint64_t begin, uint64_t end)
{
    cpl_text_printf(key, "couplet range 1\n%s %s %s %" PRIu64 "-%" PRIu64 "\n", file->url,
                    file->tag, file->linked, begin, end);
    return cpl_text_status(key);
}

static cpl_status write_path(cpl_text *path, const char *folder, const cpl_text *key)
{
    const XXH128_hash_t hash = XXH3_128bits(key->bytes, key->length);
    cpl_text_printf(path, "%s/%016" PRIx64 "%016" PRIx64 ".range", folder, (uint64_t)hash.high64,
                    (uint64_t)hash.low64);
    return cpl_text_status(path);
}

/* Sets key and path, both initialised. */
static cpl_status find(cpl_text *key, cpl_text *path, const char *folder,
                       const cpl_fetch_file *file, uint64_t begin, uint64_t end)
{
    if (!*file->tag) return CPL_FAIL(CPL_ERR_INPUT, "%s: has no ETag", file->path);
    CPL_TRY(write_key(key, file, begin, end));
    return write_path(path, folder, key);
}

bool cpl_cache_has(const char *folder, const cpl_fetch_file *file, uint64_t begin, uint64_t end)
{
    cpl_text key = {0}, path = {0};
    const bool has =
        find(&key, &path, folder, file, begin, end) == CPL_OK && access(path.bytes, R_OK) == 0;
    cpl_text_free(&key);
    cpl_text_free(&path);
    return has;
}

/* Whether the file holds this key and bytes with the hash that it gives. */
static bool read_range(void *out, size_t bytes, const cpl_text *key, const char *path)
{
    char *head = cpl_alloc(key->length + DIGITS + 1), hash[DIGITS + 2];
    uint64_t length;
    int descriptor = -1;
    bool good      = head && cpl_file_open(&descriptor, &length, path) == CPL_OK;
    if (!good) descriptor = -1;
    good = good && length == key->length + DIGITS + 1 + bytes;
    good = good &&
           cpl_file_read_at(descriptor, head, key->length + DIGITS + 1, 0, path) == CPL_OK &&
           cpl_file_read_at(descriptor, out, bytes, key->length + DIGITS + 1, path) == CPL_OK;
    if (descriptor >= 0) close(descriptor);
    if (good) snprintf(hash, sizeof hash, "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(out, bytes));
    good = good && memcmp(head, key->bytes, key->length) == 0 &&
           memcmp(head + key->length, hash, DIGITS + 1) == 0;
    cpl_free(head);
    return good;
}

bool cpl_cache_load(const char *folder, const cpl_fetch_file *file, uint64_t begin, uint64_t end,
                    void *out)
{
    cpl_text key = {0}, path = {0};
    const bool good = find(&key, &path, folder, file, begin, end) == CPL_OK &&
                      read_range(out, (size_t)(end - begin), &key, path.bytes);
    cpl_text_free(&key);
    cpl_text_free(&path);
    return good;
}

static cpl_status write_range(const cpl_text *key, const char *path, const void *bytes, size_t n)
{
    cpl_writer writer;
    char hash[DIGITS + 2];
    snprintf(hash, sizeof hash, "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(bytes, n));
    CPL_TRY(cpl_writer_open(&writer, path));
    cpl_writer_put(&writer, key->bytes, key->length);
    cpl_writer_put(&writer, hash, DIGITS + 1);
    cpl_writer_put(&writer, bytes, n);
    return cpl_writer_commit(&writer);
}

cpl_status cpl_cache_store(const char *folder, const cpl_fetch_file *file, uint64_t begin,
                           uint64_t end, const void *bytes)
{
    cpl_text key = {0}, path = {0};
    cpl_status status = CPL_OK;
    if (!*file->tag) return CPL_OK;
    CPL_TRY_DONE(find(&key, &path, folder, file, begin, end));
    status = write_range(&key, path.bytes, bytes, (size_t)(end - begin));
done:
    cpl_text_free(&key);
    cpl_text_free(&path);
    return status;
}
