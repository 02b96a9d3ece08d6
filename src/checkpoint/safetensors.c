/* safetensors.c - see safetensors.h */
#include "checkpoint/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"
#include "io/file.h"
#include "tensor/backend/backend.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#    error "the values of safetensors files are little-endian, and so must be the processor"
#endif

/* Checks the length of the header at the beginning of the file. Sets `header_bytes`. */
static cpl_status check_length(uint64_t *header_bytes, const char *start, size_t start_bytes,
                               uint64_t file_bytes, const char *path)
{
    uint64_t n;
    if (cpl_file_is_lfs_pointer(start, start_bytes))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a Git LFS pointer, not the file itself; fetch it with `git lfs "
                        "pull`",
                        path);
    if (file_bytes < sizeof n)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: header too small: the file has %llu bytes, a safetensors file at "
                        "least 8",
                        path, (unsigned long long)file_bytes);
    memcpy(&n, start, sizeof n);
    if (n > CPL_SAFETENSORS_MAX_HEADER)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is %s: its first 8 bytes stand for a header of %llu bytes, and a "
                        "safetensors file has at most %d%s",
                        path,
                        memcmp(start, "GGUF", 4) == 0 ? "no safetensors file"
                                                      : "neither a safetensors nor a GGUF file",
                        (unsigned long long)n, CPL_SAFETENSORS_MAX_HEADER,
                        cpl_file_hint(start, start_bytes));
    if (n > file_bytes - sizeof n)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: invalid header length: %llu bytes are announced, %llu follow; it was "
                        "cut short, or is no safetensors file",
                        path, (unsigned long long)n, (unsigned long long)(file_bytes - sizeof n));
    *header_bytes = n;
    return CPL_OK;
}

/* Returns a bound of the memory of the tables, from the text: each tensor has a brace, each
 * dimension a comma before or after it. The array of entries grows by doubling, with a copy. */
static double table_bytes(const char *text, uint64_t length)
{
    double sum = (double)length;
    for (uint64_t i = 0; i < length; i++)
        sum += text[i] == '{'   ? (double)(2 * sizeof(cpl_safetensors_entry) + sizeof(void *))
               : text[i] == ',' ? (double)sizeof(uint64_t)
                                : 0;
    return sum;
}

static cpl_status read_header(cpl_safetensors *file, double room)
{
    char start[32];
    const uint64_t file_bytes = file->source->length;
    uint64_t n                = 0;
    size_t start_bytes        = file_bytes < sizeof start ? (size_t)file_bytes : sizeof start;
    CPL_TRY(cpl_source_read_at(file->source, start, start_bytes, 0));
    CPL_TRY(check_length(&n, start, start_bytes, file_bytes, file->path));
    CPL_TRY(cpl_memory_hold_table(file->path, (double)n, room));
    file->data_at = sizeof n + n;
    file->text    = cpl_alloc((size_t)n);
    if (!file->text) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to open it", file->path);
    CPL_TRY(cpl_source_read_at(file->source, file->text, (size_t)n, sizeof n));
    CPL_TRY(cpl_memory_hold_table(file->path, table_bytes(file->text, n), room));
    return cpl_safetensors_parse_header(file, (size_t)n, file_bytes - file->data_at);
}

cpl_status cpl_safetensors_open_from(cpl_safetensors **out, const cpl_origin *origin,
                                     const char *path, double room)
{
    cpl_status status     = CPL_OK;
    *out                  = NULL;
    cpl_safetensors *file = cpl_alloc(sizeof *file);
    if (!file) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to open it", path);
    memset(file, 0, sizeof *file);
    CPL_TRY_DONE(cpl_origin_open(origin, &file->source, path));
    file->path = file->source->path;
    CPL_TRY_DONE(read_header(file, room));
    *out = file;
done:
    if (status != CPL_OK) cpl_safetensors_close(file);
    return status;
}

cpl_status cpl_safetensors_open(cpl_safetensors **out, const char *path)
{
    return cpl_safetensors_open_from(out, NULL, path, (double)INFINITY);
}

void cpl_safetensors_close(cpl_safetensors *file)
{
    if (!file) return;
    cpl_source_close(file->source);
    cpl_free(file->entries);
    cpl_free((void *)file->by_name);
    cpl_free((void *)file->metadata);
    cpl_free(file->dims);
    cpl_free(file->text);
    cpl_free(file);
}

static int against_name(const void *name, const void *entry)
{
    return strcmp(name, (*(const cpl_safetensors_entry *const *)entry)->name);
}

const cpl_safetensors_entry *cpl_safetensors_find(const cpl_safetensors *file, const char *name)
{
    const cpl_safetensors_entry **found = bsearch(name, (void *)file->by_name, (size_t)file->count,
                                                  sizeof *file->by_name, against_name);
    return found ? *found : NULL;
}

cpl_status cpl_safetensors_read_raw(const cpl_safetensors *file, const cpl_safetensors_entry *entry,
                                    void *out, uint64_t first_byte, size_t bytes)
{
    uint64_t size = entry->end - entry->begin;
    if (first_byte > size || bytes > size - first_byte)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: tensor %.200s has %llu bytes, %zu from byte %llu requested",
                        file->path, entry->name, (unsigned long long)size, bytes,
                        (unsigned long long)first_byte);
    return cpl_source_read_at(file->source, out, bytes, file->data_at + entry->begin + first_byte);
}

cpl_status cpl_safetensors_read_f32(const cpl_safetensors *file, const cpl_safetensors_entry *entry,
                                    float *out, int64_t first, int64_t count)
{
    unsigned char raw[1 << 15];
    const cpl_format format = cpl_safetensors_dtype_format(entry->dtype);
    const size_t bytes      = (size_t)cpl_format_block_bytes(format);
    if (format == CPL_FORMAT_OTHER || cpl_format_block_numbers(format) != 1)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: tensor %.200s is %s, which cannot be read as numbers "
                        "with a fraction",
                        file->path, entry->name, cpl_safetensors_dtype_name(entry->dtype));
    if (first < 0 || count < 0 || first > entry->n_elements || count > entry->n_elements - first)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: tensor %.200s has %lld elements, %lld from element %lld requested",
                        file->path, entry->name, (long long)entry->n_elements, (long long)count,
                        (long long)first);
    if (format == CPL_FORMAT_F32)
        return cpl_safetensors_read_raw(file, entry, out, 4 * (uint64_t)first, 4 * (size_t)count);
    size_t at_once = sizeof raw / bytes, left = (size_t)count;
    for (uint64_t at = (uint64_t)first; left;) {
        size_t n = left < at_once ? left : at_once;
        CPL_TRY(cpl_safetensors_read_raw(file, entry, raw, at * bytes, n * bytes));
        cpl_cpu_on_host()->decode(out, format, raw, (cpl_decode_shape){1, (int64_t)n, 0, 0, 1});
        out += n, at += n, left -= n;
    }
    return CPL_OK;
}
