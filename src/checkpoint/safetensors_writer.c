/* safetensors_writer.c - see safetensors_writer.h */
#include "checkpoint/safetensors_writer.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json_pull.h"

struct cpl_safetensors_writer {
    char *path;        /* owned */
    cpl_text entries;  /* array of cpl_safetensors_entry; owns names and shapes */
    cpl_text metadata; /* array of char *, key and value in turn; owned */
    cpl_writer file;
    uint64_t data_bytes, put_bytes;
};

static cpl_safetensors_entry *entries_of(const cpl_safetensors_writer *w)
{
    return (cpl_safetensors_entry *)(void *)w->entries.bytes;
}

static char **metadata_of(const cpl_safetensors_writer *w)
{
    return (char **)(void *)w->metadata.bytes;
}

static size_t n_strings(const cpl_safetensors_writer *w)
{
    return w->metadata.length / sizeof(char *);
}

int64_t cpl_safetensors_writer_count(const cpl_safetensors_writer *w)
{
    return (int64_t)(w->entries.length / sizeof(cpl_safetensors_entry));
}

static cpl_status no_memory(const char *path)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to write it", path);
}

cpl_status cpl_safetensors_writer_begin(cpl_safetensors_writer **out, const char *path)
{
    cpl_safetensors_writer *w = cpl_alloc(sizeof *w);
    *out                      = NULL;
    if (!w) return no_memory(path);
    memset(w, 0, sizeof *w);
    w->path = cpl_text_copy(path);
    if (!w->path) {
        cpl_free(w);
        return no_memory(path);
    }
    *out = w;
    return CPL_OK;
}

static void free_entry(const cpl_safetensors_entry *entry)
{
    cpl_free((void *)(uintptr_t)entry->name);
    cpl_free((void *)(uintptr_t)entry->shape);
}

void cpl_safetensors_writer_abort(cpl_safetensors_writer *w)
{
    if (!w) return;
    cpl_writer_abort(&w->file);
    for (int64_t i = 0; i < cpl_safetensors_writer_count(w); i++) free_entry(&entries_of(w)[i]);
    for (size_t i = 0; i < n_strings(w); i++) cpl_free(metadata_of(w)[i]);
    cpl_text_free(&w->entries);
    cpl_text_free(&w->metadata);
    cpl_free(w->path);
    cpl_free(w);
}

static cpl_status check_text(const cpl_safetensors_writer *w, const char *text)
{
    if (cpl_json_pull_is_utf8(text, strlen(text))) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: a name or metadata to be written is not UTF-8", w->path);
}

/* Sets the entry's number of elements and, in `end`, its bytes. */
static cpl_status measure(cpl_safetensors_entry *entry, const int64_t *shape, const char *path)
{
    int64_t elements = 1, bits;
    bool overflow    = false;
    for (int i = 0; i < entry->rank; i++) {
        if (shape[i] < 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s: dimension %d is %lld", path,
                            entry->name, i, (long long)shape[i]);
        overflow = overflow || __builtin_mul_overflow(elements, shape[i], &elements);
    }
    overflow = overflow ||
               __builtin_mul_overflow(elements, cpl_safetensors_dtype_bits(entry->dtype), &bits);
    if (overflow)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s is too large for any file", path,
                        entry->name);
    if (bits % 8)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s (%s) does not fill whole bytes", path,
                        entry->name, cpl_safetensors_dtype_name(entry->dtype));
    entry->n_elements = elements;
    entry->end        = (uint64_t)bits / 8;
    return CPL_OK;
}

cpl_status cpl_safetensors_writer_declare(cpl_safetensors_writer *w, const char *name,
                                          cpl_safetensors_dtype dtype, int rank,
                                          const int64_t *shape)
{
    cpl_safetensors_entry entry = {.name = name, .dtype = dtype, .rank = rank};
    CPL_ASSERT(!w->file.open && rank >= 0);
    CPL_TRY(check_text(w, name));
    if (strcmp(name, "__metadata__") == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: no tensor can be called __metadata__", w->path);
    CPL_TRY(measure(&entry, shape, w->path));
    uint64_t *dims = cpl_alloc((size_t)rank * sizeof *dims);
    for (int i = 0; dims && i < rank; i++) dims[i] = (uint64_t)shape[i];
    entry.shape = dims;
    entry.name  = cpl_text_copy(name);
    if (dims && entry.name) cpl_text_append(&w->entries, &entry, sizeof entry);
    if (dims && entry.name && !w->entries.failed) return CPL_OK;
    free_entry(&entry);
    return no_memory(w->path);
}

cpl_status cpl_safetensors_writer_metadata(cpl_safetensors_writer *w, const char *key,
                                           const char *value)
{
    CPL_ASSERT(!w->file.open);
    CPL_TRY(check_text(w, key));
    CPL_TRY(check_text(w, value));
    for (size_t i = 0; i < n_strings(w); i += 2)
        if (strcmp(metadata_of(w)[i], key) == 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: metadata %.200s is given twice", w->path, key);
    char *pair[2] = {cpl_text_copy(key), cpl_text_copy(value)};
    if (pair[0] && pair[1]) cpl_text_append(&w->metadata, (const void *)pair, sizeof pair);
    if (pair[0] && pair[1] && !w->metadata.failed) return CPL_OK;
    cpl_free(pair[0]);
    cpl_free(pair[1]);
    return no_memory(w->path);
}

/* Adds `text` as a JSON string, escaping what must be and nothing else. */
static void quote(cpl_text *out, const char *text)
{
    static const char named[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    cpl_text_char(out, '"');
    while (*text) {
        size_t plain = 0;
        while ((unsigned char)text[plain] >= 0x20 && text[plain] != '"' && text[plain] != '\\')
            plain++;
        cpl_text_append(out, text, plain);
        text += plain;
        if (!*text) break;
        const char *spot = strchr(named, *text);
        if (spot)
            cpl_text_printf(out, "\\%c", letters[spot - named]);
        else
            cpl_text_printf(out, "\\u%04x", (unsigned)(unsigned char)*text);
        text++;
    }
    cpl_text_char(out, '"');
}

static void describe(cpl_text *out, const cpl_safetensors_entry *entry)
{
    quote(out, entry->name);
    cpl_text_printf(out, ":{\"dtype\":\"%s\",\"shape\":[",
                    cpl_safetensors_dtype_name(entry->dtype));
    for (int i = 0; i < entry->rank; i++)
        cpl_text_printf(out, "%s%llu", i ? "," : "", (unsigned long long)entry->shape[i]);
    cpl_text_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)entry->begin,
                    (unsigned long long)entry->end);
}

static void describe_metadata(cpl_text *out, const cpl_safetensors_writer *w)
{
    cpl_text_printf(out, "\"__metadata__\":{");
    for (size_t i = 0; i < n_strings(w) && out->length <= CPL_SAFETENSORS_MAX_HEADER; i += 2) {
        if (i) cpl_text_char(out, ',');
        quote(out, metadata_of(w)[i]);
        cpl_text_char(out, ':');
        quote(out, metadata_of(w)[i + 1]);
    }
    cpl_text_char(out, '}');
}

/* Builds the padded header; stops growing it soon after the limit. */
static cpl_status build_header(cpl_text *out, const cpl_safetensors_writer *w)
{
    bool comma = n_strings(w) > 0;
    cpl_text_char(out, '{');
    if (comma) describe_metadata(out, w);
    for (int64_t i = 0;
         i < cpl_safetensors_writer_count(w) && out->length <= CPL_SAFETENSORS_MAX_HEADER; i++) {
        if (comma) cpl_text_char(out, ',');
        describe(out, &entries_of(w)[i]);
        comma = true;
    }
    cpl_text_char(out, '}');
    while (out->length % 8 && !out->failed) cpl_text_char(out, ' ');
    CPL_TRY(cpl_text_status(out));
    if (out->length > CPL_SAFETENSORS_MAX_HEADER)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: header too large: names and metadata take more than the %d bytes of "
                        "the format",
                        w->path, CPL_SAFETENSORS_MAX_HEADER);
    return CPL_OK;
}

static int by_name(const void *a, const void *b)
{
    const cpl_safetensors_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_layout(const void *a, const void *b)
{
    const cpl_safetensors_entry *x = a, *y = b;
    return x->dtype != y->dtype ? (x->dtype < y->dtype ? -1 : 1) : strcmp(x->name, y->name);
}

/* Sorts the entries and sets their offsets; a name that stands twice is an error. */
static cpl_status place(cpl_safetensors_writer *w)
{
    cpl_safetensors_entry *entries = entries_of(w);
    int64_t count                  = cpl_safetensors_writer_count(w);
    if (!count) return CPL_OK;
    qsort(entries, (size_t)count, sizeof *entries, by_name);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(entries[i - 1].name, entries[i].name) == 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s is to be written twice", w->path,
                            entries[i].name);
    qsort(entries, (size_t)count, sizeof *entries, by_layout);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bytes   = entries[i].end; /* as `measure` left it */
        entries[i].begin = w->data_bytes;
        if (__builtin_add_overflow(w->data_bytes, bytes, &w->data_bytes) ||
            w->data_bytes > INT64_MAX)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: the tensors are too large for any file", w->path);
        entries[i].end = w->data_bytes;
    }
    return CPL_OK;
}

cpl_status cpl_safetensors_writer_layout(cpl_safetensors_writer *w)
{
    cpl_status status = CPL_OK;
    cpl_text header   = {0};
    CPL_ASSERT(!w->file.open);
    w->data_bytes = 0;
    CPL_TRY_DONE(place(w));
    CPL_TRY_DONE(build_header(&header, w));
    CPL_TRY_DONE(cpl_writer_open(&w->file, w->path));
    uint64_t length = header.length;
    cpl_writer_put(&w->file, &length, sizeof length);
    cpl_writer_put(&w->file, header.bytes, header.length);
    CPL_TRY_DONE(cpl_writer_status(&w->file));
done:
    cpl_text_free(&header);
    return status;
}

const cpl_safetensors_entry *cpl_safetensors_writer_at(const cpl_safetensors_writer *w, int64_t i)
{
    CPL_ASSERT(w->file.open && i >= 0 && i < cpl_safetensors_writer_count(w));
    return &entries_of(w)[i];
}

const char *cpl_safetensors_writer_name(const cpl_safetensors_writer *w, int64_t i)
{
    return cpl_safetensors_writer_at(w, i)->name;
}

cpl_status cpl_safetensors_writer_put(cpl_safetensors_writer *w, const void *bytes, size_t length)
{
    CPL_ASSERT(w->file.open && length <= w->data_bytes - w->put_bytes);
    w->put_bytes += length;
    cpl_writer_put(&w->file, bytes, length);
    return cpl_writer_status(&w->file);
}

cpl_status cpl_safetensors_writer_commit(cpl_safetensors_writer *w, uint64_t *hash)
{
    CPL_ASSERT(w->file.open && w->put_bytes == w->data_bytes);
    cpl_status status = cpl_writer_commit(&w->file);
    if (status == CPL_OK && hash) *hash = cpl_writer_hash(&w->file);
    cpl_safetensors_writer_abort(w);
    return status;
}
