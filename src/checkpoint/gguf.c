/* gguf.c - reads the head and the table of a GGUF file, see gguf.h. */
#include "checkpoint/internal.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"
#include "io/file.h"

enum { ENTRY_BYTES = 25 }; /* smallest size of an entry of the table, with a name of one byte */

/* ---- the head ---- */

static cpl_status check_magic(const char *start, size_t bytes, const char *path)
{
    static const char *const old[] = {"lmgg", "tjgg", "fmgg", "algg"}; /* ggml, ggjt, ggmf, ggla */
    if (cpl_file_is_lfs_pointer(start, bytes))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a Git LFS pointer, not the file itself; fetch it with `git lfs "
                        "pull`",
                        path);
    if (bytes >= 4 && memcmp(start, "GGUF", 4) == 0) return CPL_OK;
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (bytes >= 4 && memcmp(start, old[i], 4) == 0)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: is a file of a format older than GGUF: convert the model "
                            "again",
                            path);
    bool safetensors = bytes > 8 && start[7] == 0 && start[8] == '{';
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is no GGUF file: it does not begin with \"GGUF\"%s", path,
                    safetensors ? "; it looks like a safetensors file"
                                : cpl_file_hint(start, bytes));
}

static cpl_status check_version(uint32_t version, const char *path)
{
    if (version == 2 || version == CPL_GGUF_VERSION) return CPL_OK;
    if (version && (version & 0xffff) == 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a big-endian GGUF file; only little-endian ones are read", path);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is a GGUF file of version %u; 2 and 3 are read%s", path,
                    version, version == 1 ? ": convert the model again" : "");
}

static cpl_status read_head(cpl_gguf_source *s, uint64_t *n_tensors, uint64_t *n_pairs)
{
    char start[32];
    uint32_t version;
    size_t bytes = s->size < sizeof start ? (size_t)s->size : sizeof start;
    CPL_TRY(cpl_gguf_source_take(s, start, bytes));
    CPL_TRY(check_magic(start, bytes, s->path));
    s->at = 4;
    CPL_TRY(cpl_gguf_source_take(s, &version, sizeof version));
    CPL_TRY(check_version(version, s->path));
    CPL_TRY(cpl_gguf_source_take(s, n_tensors, sizeof *n_tensors));
    return cpl_gguf_source_take(s, n_pairs, sizeof *n_pairs);
}

/* ---- the table ---- */

static cpl_status bad_entry(const cpl_gguf_source *s, const char *name, const char *why)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s: %s", s->path, name, why);
}

/* Sets rank, shape and number of elements. The file lists the innermost dimension first. */
static cpl_status read_shape(cpl_gguf_source *s, cpl_gguf_entry *e, const char *name)
{
    uint32_t rank;
    uint64_t dim, elements = 1;
    CPL_TRY(cpl_gguf_source_take(s, &rank, sizeof rank));
    if (rank > CPL_GGUF_MAX_RANK)
        return bad_entry(s, name, "it has more than 4 dimensions, which GGUF does not allow");
    e->rank = (int)rank;
    for (int i = 0; i < CPL_GGUF_MAX_RANK; i++) e->shape[i] = 1;
    for (int i = e->rank - 1; i >= 0; i--) {
        CPL_TRY(cpl_gguf_source_take(s, &dim, sizeof dim));
        if (dim > INT64_MAX || __builtin_mul_overflow(elements, dim, &elements) ||
            elements > INT64_MAX)
            return bad_entry(s, name, "overflow: it has too many elements");
        e->shape[i] = (int64_t)dim;
    }
    e->n_elements = (int64_t)elements;
    return CPL_OK;
}

/* Sets type and number of bytes. For an unknown type the number of bytes is set later, from the
 * offset of the next tensor. */
static cpl_status read_type(cpl_gguf *g, cpl_gguf_source *s, cpl_gguf_entry *e, size_t name_at)
{
    const char *name = g->names.bytes + name_at;
    CPL_TRY(cpl_gguf_source_take(s, &e->type, sizeof e->type));
    const cpl_gguf_type *type = cpl_gguf_type_of(e->type);
    e->format                 = type ? type->format : CPL_FORMAT_OTHER;
    e->type_name              = type ? type->name : NULL;
    if (!type) {
        cpl_text_printf(&g->names, "type %u", e->type);
        cpl_text_char(&g->names, '\0');
        return cpl_text_status(&g->names);
    }
    int64_t innermost = e->rank ? e->shape[e->rank - 1] : 1;
    if (innermost % type->block_numbers)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: tensor %.200s: its rows have %lld numbers, which is no multiple of "
                        "the %lld of a block of %s",
                        s->path, name, (long long)innermost, (long long)type->block_numbers,
                        type->name);
    if (__builtin_mul_overflow((uint64_t)(e->n_elements / type->block_numbers),
                               (uint64_t)type->block_bytes, &e->bytes))
        return bad_entry(s, name, "overflow: it has too many bytes");
    return CPL_OK;
}

static cpl_status read_entry(cpl_gguf *g, cpl_gguf_source *s, cpl_text *entries)
{
    cpl_gguf_entry e = {0};
    size_t name_at   = g->names.length;
    CPL_TRY(cpl_gguf_source_name(s, &g->names, CPL_GGUF_MAX_NAME));
    CPL_TRY(read_shape(s, &e, g->names.bytes + name_at));
    CPL_TRY(read_type(g, s, &e, name_at));
    CPL_TRY(cpl_gguf_source_take(s, &e.offset, sizeof e.offset));
    cpl_text_append(entries, &e, sizeof e);
    return cpl_text_status(entries);
}

/* Sets the name of each entry. Called when the memory of the names no longer moves. */
static void place_names(cpl_gguf *g)
{
    const char *name = g->names.bytes;
    for (int64_t i = 0; i < g->count; i++) {
        cpl_gguf_entry *e = &g->entries[i];
        e->name           = name;
        name += strlen(name) + 1;
        if (e->type_name) continue;
        e->type_name = name;
        name += strlen(name) + 1;
    }
}

static cpl_status check_names(const cpl_gguf *g, const cpl_gguf_source *s)
{
    const char **names = cpl_alloc((size_t)g->count * sizeof *names);
    if (!names) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to open it", g->path);
    for (int64_t i = 0; i < g->count; i++) names[i] = g->entries[i].name;
    cpl_status status = cpl_gguf_unique(s, names, g->count);
    cpl_free((void *)names);
    return status;
}

/* Memory of an entry with its name. The array of entries grows by doubling, with a copy. */
static const double ENTRY_MEMORY = 2 * sizeof(cpl_gguf_entry) + 2 * sizeof(void *) + 32;

static cpl_status read_table(cpl_gguf *g, cpl_gguf_source *s, uint64_t count, double room)
{
    cpl_status status = CPL_OK;
    cpl_text entries  = {0};
    s->what           = "the table of tensors";
    CPL_TRY(cpl_gguf_source_holds(s, count, ENTRY_BYTES));
    CPL_TRY(cpl_memory_hold_table(g->path, (double)count * ENTRY_MEMORY, room));
    for (uint64_t i = 0; i < count && status == CPL_OK; i++) status = read_entry(g, s, &entries);
    g->entries = (cpl_gguf_entry *)(void *)entries.bytes;
    CPL_TRY(status);
    g->count = (int64_t)count;
    place_names(g);
    return check_names(g, s);
}

/* ---- the data ---- */

static uint64_t rounded_up(uint64_t bytes, uint64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static cpl_status bad_offset(const cpl_gguf *g, const cpl_gguf_entry *e, uint64_t expected)
{
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: invalid offset: tensor %.200s begins at byte %llu of the data, it must "
                    "begin at %llu, where the one before it ends",
                    g->path, e->name, (unsigned long long)e->offset, (unsigned long long)expected);
}

/* Checks and sets positions in the `room` bytes of data. Each tensor must begin where the previous
 * tensor ends, rounded up, and end within the file. A tensor of unknown type ends where the next
 * begins. */
static cpl_status lay_out(cpl_gguf *g, uint64_t room)
{
    uint64_t expected = 0;
    for (int64_t i = 0; i < g->count; i++) {
        cpl_gguf_entry *e = &g->entries[i];
        if (e->offset != expected) return bad_offset(g, e, expected);
        if (!cpl_gguf_type_of(e->type)) {
            uint64_t next = i + 1 < g->count ? e[1].offset : room;
            e->bytes      = next > e->offset ? next - e->offset : 0;
        }
        if (e->offset > room || e->bytes > room - e->offset)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: tensor %.200s ends %llu bytes after the end of the file; it was "
                            "cut short: fetch or copy it again",
                            g->path, e->name, (unsigned long long)(e->bytes - (room - e->offset)));
        expected = rounded_up(e->offset + e->bytes, g->alignment);
        e->offset += g->data_at;
    }
    return CPL_OK;
}

static cpl_status read_all(cpl_gguf *g, double room)
{
    const uint64_t file_bytes = g->source->length;
    cpl_status status         = CPL_OK;
    uint64_t n_tensors, n_pairs;
    cpl_gguf_source s = {
        .path = g->path, .what = "the head", .file = g->source, .size = file_bytes};
    s.buffer = cpl_alloc(CPL_GGUF_BUFFER);
    if (!s.buffer) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to open it", g->path);
    CPL_TRY_DONE(read_head(&s, &n_tensors, &n_pairs));
    CPL_TRY_DONE(cpl_gguf_metadata_read(&g->metadata, &g->alignment, &s, n_pairs));
    CPL_TRY_DONE(read_table(g, &s, n_tensors, room));
    g->data_at = rounded_up(s.at, g->alignment);
    CPL_TRY_DONE(lay_out(g, g->data_at < file_bytes ? file_bytes - g->data_at : 0));
done:
    cpl_free(s.buffer);
    return status;
}

cpl_status cpl_gguf_open(cpl_gguf **out, const cpl_origin *origin, const char *path, double room)
{
    cpl_status status = CPL_OK;
    *out              = NULL;
    cpl_gguf *g       = cpl_alloc(sizeof *g);
    if (!g) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to open it", path);
    memset(g, 0, sizeof *g);
    CPL_TRY_DONE(cpl_origin_open(origin, &g->source, path));
    g->path = g->source->path;
    CPL_TRY_DONE(read_all(g, room));
    *out = g;
done:
    if (status != CPL_OK) cpl_gguf_close(g);
    return status;
}

void cpl_gguf_close(cpl_gguf *g)
{
    if (!g) return;
    cpl_source_close(g->source);
    json_decref(g->metadata);
    cpl_text_free(&g->names);
    cpl_free(g->entries);
    cpl_free(g);
}

/* ---- types ---- */

/* Codes and blocks follow the Python package `gguf` (0.19). The missing codes belonged to types
 * that are no longer written. */
/* TYPE(code, name, numbers of a block, bytes of a block, format it is decoded as) */
#define TYPES(TYPE)                                                                                \
    TYPE(0, F32, 1, 4, F32)                                                                        \
    TYPE(1, F16, 1, 2, F16)                                                                        \
    TYPE(2, Q4_0, 32, 18, OTHER)                                                                   \
    TYPE(3, Q4_1, 32, 20, OTHER)                                                                   \
    TYPE(6, Q5_0, 32, 22, OTHER)                                                                   \
    TYPE(7, Q5_1, 32, 24, OTHER)                                                                   \
    TYPE(8, Q8_0, 32, 34, Q8_0)                                                                    \
    TYPE(9, Q8_1, 32, 40, OTHER)                                                                   \
    TYPE(10, Q2_K, 256, 84, OTHER)                                                                 \
    TYPE(11, Q3_K, 256, 110, OTHER)                                                                \
    TYPE(12, Q4_K, 256, 144, Q4_K)                                                                 \
    TYPE(13, Q5_K, 256, 176, Q5_K)                                                                 \
    TYPE(14, Q6_K, 256, 210, Q6_K)                                                                 \
    TYPE(15, Q8_K, 256, 292, OTHER)                                                                \
    TYPE(16, IQ2_XXS, 256, 66, OTHER)                                                              \
    TYPE(17, IQ2_XS, 256, 74, OTHER)                                                               \
    TYPE(18, IQ3_XXS, 256, 98, OTHER)                                                              \
    TYPE(19, IQ1_S, 256, 50, OTHER)                                                                \
    TYPE(20, IQ4_NL, 32, 18, OTHER)                                                                \
    TYPE(21, IQ3_S, 256, 110, OTHER)                                                               \
    TYPE(22, IQ2_S, 256, 82, OTHER)                                                                \
    TYPE(23, IQ4_XS, 256, 136, OTHER)                                                              \
    TYPE(24, I8, 1, 1, OTHER)                                                                      \
    TYPE(25, I16, 1, 2, OTHER)                                                                     \
    TYPE(26, I32, 1, 4, OTHER)                                                                     \
    TYPE(27, I64, 1, 8, OTHER)                                                                     \
    TYPE(28, F64, 1, 8, F64)                                                                       \
    TYPE(29, IQ1_M, 256, 56, OTHER)                                                                \
    TYPE(30, BF16, 1, 2, BF16)                                                                     \
    TYPE(34, TQ1_0, 256, 54, OTHER)                                                                \
    TYPE(35, TQ2_0, 256, 66, OTHER)                                                                \
    TYPE(39, MXFP4, 32, 17, MXFP4)                                                                 \
    TYPE(40, NVFP4, 64, 36, OTHER)                                                                 \
    TYPE(41, Q1_0, 128, 18, OTHER)

static const cpl_gguf_type types[] = {
#define TYPE_ROW(code, name, numbers, bytes, format)                                               \
    [code] = {#name, numbers, bytes, CPL_FORMAT_##format},
    TYPES(TYPE_ROW)
#undef TYPE_ROW
};

const cpl_gguf_type *cpl_gguf_type_of(uint32_t code)
{
    bool known = code < sizeof types / sizeof *types && types[code].name;
    return known ? &types[code] : NULL;
}

uint32_t cpl_gguf_code_of(cpl_format format)
{
    uint32_t code = 0;
    while (code < sizeof types / sizeof *types &&
           !(types[code].name && types[code].format == format))
        code++;
    CPL_ASSERT(format != CPL_FORMAT_OTHER && code < sizeof types / sizeof *types);
    return code;
}
