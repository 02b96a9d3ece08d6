/* safetensors_header.c - parses and checks the header of a safetensors file; dtypes.
 *
 * One pass over the text collects the entries. They are then sorted by offset, and a second pass
 * finds holes, overlaps and wrong sizes. Growing arrays are cpl_text, whose memory is aligned for
 * any type. Shapes are stored as indices into one array until it no longer moves. */
#include "checkpoint/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/json_pull.h"

static const struct {
    const char *name;
    int bits;
    cpl_format format;
} dtypes[] = {
#define DTYPE_ROW(name, bits, format) {#name, bits, CPL_FORMAT_##format},
    CPL_SAFETENSORS_DTYPES(DTYPE_ROW)
#undef DTYPE_ROW
};

typedef struct parser {
    cpl_json_pull pull;
    const char *path, *tensor; /* the entry being read, or NULL */
    cpl_text entries, dims, metadata;
    bool has_metadata;
} parser;

/* Sets *dtype from its name, which is case-sensitive. Returns false for an unknown name. */
static bool find_dtype(cpl_safetensors_dtype *dtype, const char *name)
{
    for (int i = 0; i < CPL_SAFETENSORS_N_DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype = (cpl_safetensors_dtype)i;
            return true;
        }
    return false;
}

static void parse_dtype(parser *p, cpl_safetensors_dtype *dtype)
{
    char *name;
    if (cpl_json_pull_string(&p->pull, &name) && !find_dtype(dtype, name))
        cpl_json_pull_fail(&p->pull, "an unknown dtype");
}

static void parse_shape(parser *p, int *rank)
{
    uint64_t dim;
    *rank = 0;
    if (!cpl_json_pull_array(&p->pull)) return;
    for (bool first = true;
         cpl_json_pull_item(&p->pull, &first) && cpl_json_pull_u64(&p->pull, &dim);) {
        cpl_text_append(&p->dims, &dim, sizeof dim);
        ++*rank; /* at most half the header's bytes */
    }
}

static void parse_offsets(parser *p, cpl_safetensors_entry *entry)
{
    uint64_t offset = 0;
    int n           = 0;
    if (!cpl_json_pull_array(&p->pull)) return;
    for (bool first = true;
         cpl_json_pull_item(&p->pull, &first) && cpl_json_pull_u64(&p->pull, &offset); n++)
        *(n ? &entry->end : &entry->begin) = offset;
    if (n != 2) cpl_json_pull_fail(&p->pull, "data_offsets must be two integers");
}

static void parse_entry(parser *p, const char *name)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    cpl_safetensors_entry entry = {.name = name};
    int seen                    = 0;
    char *key;
    p->tensor = name;
    if (!cpl_json_pull_object(&p->pull)) return;
    for (bool first = true; cpl_json_pull_member(&p->pull, &first, &key);) {
        int member = strcmp(key, "dtype") == 0          ? DTYPE
                     : strcmp(key, "shape") == 0        ? SHAPE
                     : strcmp(key, "data_offsets") == 0 ? OFFSETS
                                                        : 0;
        if (seen & member) cpl_json_pull_fail(&p->pull, "a member occurs twice");
        seen |= member;
        if (member == DTYPE) parse_dtype(p, &entry.dtype);
        if (member == SHAPE) parse_shape(p, &entry.rank);
        if (member == OFFSETS) parse_offsets(p, &entry);
        if (!member) cpl_json_pull_skip(&p->pull);
    }
    if (seen != ALL) cpl_json_pull_fail(&p->pull, "dtype, shape or data_offsets is missing");
    if (!p->pull.problem) p->tensor = NULL;
    cpl_text_append(&p->entries, &entry, sizeof entry);
}

static void parse_metadata(parser *p)
{
    char *pair[2];
    if (p->has_metadata) cpl_json_pull_fail(&p->pull, "__metadata__ occurs twice");
    p->has_metadata = true;
    if (cpl_json_pull_null(&p->pull) || !cpl_json_pull_object(&p->pull)) return;
    for (bool first = true; cpl_json_pull_member(&p->pull, &first, &pair[0]) &&
                            cpl_json_pull_string(&p->pull, &pair[1]);)
        cpl_text_append(&p->metadata, (const void *)pair, sizeof pair);
}

static void parse_all(parser *p)
{
    char *name;
    if (!cpl_json_pull_object(&p->pull)) return;
    for (bool first = true; cpl_json_pull_member(&p->pull, &first, &name);)
        if (strcmp(name, "__metadata__") == 0)
            parse_metadata(p);
        else
            parse_entry(p, name);
    cpl_json_pull_end(&p->pull);
}

/* Returns the status of the pass, with its message. p->tensor names the entry of a problem. */
static cpl_status parse_status(const parser *p)
{
    if (p->pull.problem)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: invalid JSON in the header, byte %lld%s%.200s: %s",
                        p->path, (long long)(p->pull.at - p->pull.begin),
                        p->tensor ? ", tensor " : "", p->tensor ? p->tensor : "", p->pull.problem);
    CPL_TRY(cpl_text_status(&p->entries));
    CPL_TRY(cpl_text_status(&p->dims));
    return cpl_text_status(&p->metadata);
}

/* Moves the memory of the three arrays from the parser to the table. */
static void move_arrays(cpl_safetensors *file, parser *p)
{
    file->entries    = (cpl_safetensors_entry *)(void *)p->entries.bytes;
    file->count      = (int64_t)(p->entries.length / sizeof *file->entries);
    file->dims       = (uint64_t *)(void *)p->dims.bytes;
    file->metadata   = (const char **)(void *)p->metadata.bytes;
    file->n_metadata = (int64_t)(p->metadata.length / (2 * sizeof *file->metadata));
}

/* Sets the shape of each entry. Called when the array of dimensions no longer moves. */
static void place_shapes(cpl_safetensors *file)
{
    uint64_t *shape = file->dims;
    for (int64_t i = 0; i < file->count; i++) {
        file->entries[i].shape = shape;
        if (file->entries[i].rank) shape += file->entries[i].rank;
    }
}

static int by_offset(const void *a, const void *b)
{
    const cpl_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    const cpl_safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Sorts all three tables. A name or key that occurs twice gives CPL_ERR_INPUT. */
static cpl_status sort_tables(cpl_safetensors *file)
{
    size_t count = (size_t)file->count;
    if (file->n_metadata)
        qsort(file->metadata, (size_t)file->n_metadata, 2 * sizeof *file->metadata,
              cpl_order_strings);
    for (int64_t i = 1; i < file->n_metadata; i++)
        if (strcmp(file->metadata[2 * i - 2], file->metadata[2 * i]) == 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: invalid JSON in the header: metadata %.200s twice",
                            file->path, file->metadata[2 * i]);
    file->by_name = cpl_alloc(count * sizeof(void *));
    if (!file->by_name) return CPL_ERR_MEMORY;
    if (!count) return CPL_OK;
    qsort(file->entries, count, sizeof *file->entries, by_offset);
    for (size_t i = 0; i < count; i++) file->by_name[i] = &file->entries[i];
    qsort((void *)file->by_name, count, sizeof(void *), by_name);
    for (size_t i = 1; i < count; i++)
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: invalid JSON in the header: tensor %.200s occurs twice",
                            file->path, file->by_name[i]->name);
    return CPL_OK;
}

/* Sets n_elements. The entry must fill its range exactly. The product runs in order from 1, so that
 * a 0 hides a later overflow, but not an earlier overflow. */
static cpl_status check_size(cpl_safetensors_entry *e, const char *path)
{
    uint64_t elements = 1, bits;
    for (int i = 0; i < e->rank; i++)
        if (__builtin_mul_overflow(elements, e->shape[i], &elements))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: overflow: tensor %.200s has too many elements",
                            path, e->name);
    if (__builtin_mul_overflow(elements, (uint64_t)cpl_safetensors_dtype_bits(e->dtype), &bits))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: overflow: tensor %.200s has too many bits", path,
                        e->name);
    if (bits % 8)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: misaligned: tensor %.200s (%s) does not end at a whole byte", path,
                        e->name, cpl_safetensors_dtype_name(e->dtype));
    if (bits / 8 != e->end - e->begin)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: invalid tensor info: tensor %.200s needs %llu bytes, its offsets span "
                        "%llu",
                        path, e->name, (unsigned long long)(bits / 8),
                        (unsigned long long)(e->end - e->begin));
    e->n_elements = (int64_t)elements; /* below 2^62: at least 4 bits each */
    return CPL_OK;
}

static cpl_status check_layout(cpl_safetensors *file, uint64_t data_bytes)
{
    uint64_t expected = 0;
    for (int64_t i = 0; i < file->count; i++) {
        cpl_safetensors_entry *e = &file->entries[i];
        if (e->begin != expected || e->end < e->begin)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: invalid offset: tensor %.200s spans [%llu,%llu), it must begin at "
                            "%llu, where the one before it ends",
                            file->path, e->name, (unsigned long long)e->begin,
                            (unsigned long long)e->end, (unsigned long long)expected);
        expected = e->end;
        CPL_TRY(check_size(e, file->path));
    }
    if (expected != data_bytes)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: incomplete metadata: the header describes %llu bytes of data, the "
                        "file has %llu (%s)",
                        file->path, (unsigned long long)expected, (unsigned long long)data_bytes,
                        data_bytes < expected ? "it was cut short; fetch or copy it again"
                                              : "something was added after them");
    return CPL_OK;
}

cpl_status cpl_safetensors_parse_header(cpl_safetensors *file, size_t length, uint64_t data_bytes)
{
    parser p = {.path = file->path};
    if (!cpl_utf8_is(file->text, length))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: invalid header: it is not UTF-8", file->path);
    p.pull = cpl_json_pull_start(file->text, length);
    parse_all(&p);
    move_arrays(file, &p);
    CPL_TRY(parse_status(&p));
    place_shapes(file);
    CPL_TRY(sort_tables(file));
    return check_layout(file, data_bytes);
}

/* ---- types and shapes ---- */

const char *cpl_safetensors_dtype_name(cpl_safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

int cpl_safetensors_dtype_bits(cpl_safetensors_dtype dtype)
{
    return dtypes[dtype].bits;
}

cpl_format cpl_safetensors_dtype_format(cpl_safetensors_dtype dtype)
{
    return dtypes[dtype].format;
}

bool cpl_safetensors_has_shape(const cpl_safetensors_entry *entry, int rank, const int64_t *shape)
{
    if (entry->rank != rank) return false;
    for (int i = 0; i < rank; i++)
        if (shape[i] < 0 || entry->shape[i] != (uint64_t)shape[i]) return false;
    return true;
}

const char *cpl_safetensors_shape_text(char out[128], const cpl_safetensors_entry *entry)
{
    enum { ROOM = 128, LONGEST = 21 + 5 }; /* a comma and a number, then "...]" with its NUL */
    int used = snprintf(out, ROOM, "[");
    for (int i = 0; i < entry->rank; i++) {
        if (used > ROOM - LONGEST) {
            used += snprintf(out + used, (size_t)(ROOM - used), "...");
            break;
        }
        used += snprintf(out + used, (size_t)(ROOM - used), "%s%llu", i ? "," : "",
                         (unsigned long long)entry->shape[i]);
    }
    snprintf(out + used, (size_t)(ROOM - used), "]");
    return out;
}
