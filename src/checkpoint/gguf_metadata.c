/* gguf_metadata.c - see gguf.h
 *
 * Keeps the values that a reader of weights may need: numbers, booleans, strings and short arrays
 * of numbers. Vocabularies are skipped string by string without being stored. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "checkpoint/internal.h"
#include "io/json.h"

enum {
    LONGEST_KEY    = 65535,   /* bytes, limit of the format */
    LONGEST_STRING = 1 << 20, /* bytes of the longest string kept */
    LONGEST_ARRAY  = 4096,    /* elements of the longest array kept */
    ALL_ARRAYS     = 1 << 20, /* elements of all arrays kept */
    DEEPEST        = 4,       /* levels of nested arrays */
    PAIR_BYTES     = 14       /* a key of one byte and a value of one byte */
};

typedef enum value_kind { UNSIGNED, SIGNED, REAL, TRUTH, OTHER } value_kind;

/* Bytes of a value in the file (for strings and arrays the minimum), and its kind. */
static const struct {
    uint64_t bytes;
    value_kind kind;
} values[CPL_GGUF_N_VALUES] = {
    [CPL_GGUF_U8] = {1, UNSIGNED},  [CPL_GGUF_I8] = {1, SIGNED},    [CPL_GGUF_U16] = {2, UNSIGNED},
    [CPL_GGUF_I16] = {2, SIGNED},   [CPL_GGUF_U32] = {4, UNSIGNED}, [CPL_GGUF_I32] = {4, SIGNED},
    [CPL_GGUF_F32] = {4, REAL},     [CPL_GGUF_BOOL] = {1, TRUTH},   [CPL_GGUF_STRING] = {8, OTHER},
    [CPL_GGUF_ARRAY] = {12, OTHER}, [CPL_GGUF_U64] = {8, UNSIGNED}, [CPL_GGUF_I64] = {8, SIGNED},
    [CPL_GGUF_F64] = {8, REAL},
};

typedef struct reader {
    cpl_gguf_source *source;
    json_t *kept;
    cpl_text keys; /* all keys, each with its NUL */
    size_t key_at; /* position of the current key */
    int64_t n_elements;
} reader;

static const char *key_of(const reader *r)
{
    return r->keys.bytes + r->key_at;
}

static cpl_status bad_value(const reader *r, const char *why)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: the metadata, %.200s: %s", r->source->path, key_of(r), why);
}

static cpl_status no_memory(const reader *r)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for its metadata", r->source->path);
}

static cpl_status read_type(reader *r, cpl_gguf_value *type)
{
    uint32_t code;
    CPL_TRY(cpl_gguf_source_take(r->source, &code, sizeof code));
    if (code >= CPL_GGUF_N_VALUES) return bad_value(r, "a value of no known type");
    *type = (cpl_gguf_value)code;
    return CPL_OK;
}

/* Returns a new value from its bytes, which are little-endian like the processor (checked in
 * safetensors.c). Returns NULL if memory is not available. */
static json_t *scalar(cpl_gguf_value type, uint64_t bits)
{
    const int unused = 64 - 8 * (int)values[type].bytes;
    float single;
    double number;
    switch (values[type].kind) {
    case UNSIGNED:
        return bits > INT64_MAX ? json_real((double)bits) : json_integer((json_int_t)bits);
    case SIGNED:
        return json_integer((json_int_t)(bits << unused) >> unused);
    case TRUTH:
        return json_boolean(bits != 0);
    default:
        memcpy(&single, &bits, sizeof single);
        memcpy(&number, &bits, sizeof number);
        return cpl_json_number(type == CPL_GGUF_F32 ? (double)single : number);
    }
}

static cpl_status read_number(reader *r, json_t **value, cpl_gguf_value type)
{
    uint64_t bits = 0;
    CPL_TRY(cpl_gguf_source_take(r->source, &bits, (size_t)values[type].bytes));
    *value = scalar(type, bits);
    return *value ? CPL_OK : no_memory(r);
}

/* Sets `value`, or leaves it NULL if the string is too long to keep or is not UTF-8. */
static cpl_status read_string(reader *r, json_t **value)
{
    cpl_text text     = {0};
    cpl_status status = CPL_OK;
    size_t length     = 0;
    uint64_t bytes, begins = r->source->at;
    CPL_TRY(cpl_gguf_source_take(r->source, &bytes, sizeof bytes));
    if (bytes > LONGEST_STRING) return cpl_gguf_source_skip(r->source, bytes);
    r->source->at = begins;
    CPL_TRY_DONE(cpl_gguf_source_string(r->source, &text, LONGEST_STRING, &length));
    if (!cpl_utf8_is(length ? text.bytes : "", length)) goto done;
    *value = json_stringn(length ? text.bytes : "", length);
    if (!*value) CPL_TRY_DONE(no_memory(r));
done:
    cpl_text_free(&text);
    return status;
}

static cpl_status skip_strings(reader *r, uint64_t count)
{
    uint64_t bytes;
    for (uint64_t i = 0; i < count; i++) {
        CPL_TRY(cpl_gguf_source_take(r->source, &bytes, sizeof bytes));
        CPL_TRY(cpl_gguf_source_skip(r->source, bytes));
    }
    return CPL_OK;
}

static cpl_status keep_numbers(reader *r, json_t **value, cpl_gguf_value type, uint64_t count)
{
    cpl_status status = CPL_OK;
    json_t *array     = json_array(), *element;
    if (!array) return no_memory(r);
    for (uint64_t i = 0; i < count; i++) {
        CPL_TRY_DONE(read_number(r, &element, type));
        if (json_array_append_new(array, element) != 0) CPL_TRY_DONE(no_memory(r));
    }
    r->n_elements += (int64_t)count;
    *value = array;
done:
    if (status != CPL_OK) json_decref(array);
    return status;
}

/* Sets `value` if it is not NULL and the array is kept. */
static cpl_status read_array(reader *r, json_t **value, int depth)
{
    cpl_gguf_value type = CPL_GGUF_U8;
    uint64_t count;
    CPL_TRY(read_type(r, &type));
    CPL_TRY(cpl_gguf_source_take(r->source, &count, sizeof count));
    CPL_TRY(cpl_gguf_source_holds(r->source, count, values[type].bytes));
    if (type == CPL_GGUF_STRING) return skip_strings(r, count);
    if (type == CPL_GGUF_ARRAY) {
        if (depth == DEEPEST) return bad_value(r, "arrays within arrays, too deep");
        for (uint64_t i = 0; i < count; i++) CPL_TRY(read_array(r, NULL, depth + 1));
        return CPL_OK;
    }
    if (value && count <= LONGEST_ARRAY && r->n_elements + (int64_t)count <= ALL_ARRAYS)
        return keep_numbers(r, value, type, count);
    return cpl_gguf_source_skip(r->source, count * values[type].bytes);
}

static cpl_status read_pair(reader *r)
{
    cpl_gguf_value type = CPL_GGUF_U8;
    json_t *value       = NULL;
    r->key_at           = r->keys.length;
    CPL_TRY(cpl_gguf_source_name(r->source, &r->keys, LONGEST_KEY));
    CPL_TRY(read_type(r, &type));
    if (type == CPL_GGUF_STRING)
        CPL_TRY(read_string(r, &value));
    else if (type == CPL_GGUF_ARRAY)
        CPL_TRY(read_array(r, &value, 1));
    else
        CPL_TRY(read_number(r, &value, type));
    if (strcmp(key_of(r), CPL_GGUF_KEY_ALIGNMENT) == 0 && type != CPL_GGUF_U32) {
        json_decref(value);
        return bad_value(r, "it must be a u32");
    }
    if (value && json_object_set_new(r->kept, key_of(r), value) != 0) return no_memory(r);
    return CPL_OK;
}

static cpl_status check_keys(const reader *r, int64_t count)
{
    const char **keys = cpl_alloc((size_t)count * sizeof *keys);
    const char *key   = r->keys.bytes;
    if (!keys) return no_memory(r);
    for (int64_t i = 0; i < count; i++, key += strlen(key) + 1) keys[i] = key;
    cpl_status status = cpl_gguf_unique(r->source, keys, count);
    cpl_free((void *)keys);
    return status;
}

static cpl_status find_alignment(const reader *r, uint64_t *alignment)
{
    const json_t *value = json_object_get(r->kept, CPL_GGUF_KEY_ALIGNMENT);
    *alignment          = value ? (uint64_t)json_integer_value(value) : CPL_GGUF_ALIGNMENT;
    if (*alignment && (*alignment & (*alignment - 1)) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: the metadata, " CPL_GGUF_KEY_ALIGNMENT ": %llu is not a power of two",
                    r->source->path, (unsigned long long)*alignment);
}

cpl_status cpl_gguf_metadata_read(json_t **metadata, uint64_t *alignment, cpl_gguf_source *source,
                                  uint64_t count)
{
    cpl_status status = CPL_OK;
    reader r          = {.source = source, .kept = json_object()};
    source->what      = "the metadata";
    if (!r.kept) CPL_TRY_DONE(no_memory(&r));
    CPL_TRY_DONE(cpl_gguf_source_holds(source, count, PAIR_BYTES));
    for (uint64_t i = 0; i < count; i++) CPL_TRY_DONE(read_pair(&r));
    CPL_TRY_DONE(check_keys(&r, (int64_t)count));
    CPL_TRY_DONE(find_alignment(&r, alignment));
    *metadata = json_incref(r.kept);
done:
    cpl_text_free(&r.keys);
    json_decref(r.kept);
    return status;
}

/* ---- reading a file in order ---- */

static uint64_t left(const cpl_gguf_source *s)
{
    return s->size - s->at;
}

cpl_status cpl_gguf_source_holds(const cpl_gguf_source *s, uint64_t count, uint64_t bytes)
{
    if (count <= left(s) / bytes) return CPL_OK;
    if (bytes == 1)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: invalid length: at byte %llu %s continues for %llu bytes, the file "
                        "for %llu; it was cut short, or changed",
                        s->path, (unsigned long long)s->at, s->what, (unsigned long long)count,
                        (unsigned long long)left(s));
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: invalid count: at byte %llu %s announces %llu entries of at least %llu "
                    "bytes, the file continues for %llu; it was cut short, or changed",
                    s->path, (unsigned long long)s->at, s->what, (unsigned long long)count,
                    (unsigned long long)bytes, (unsigned long long)left(s));
}

/* Sets `bytes` to the next buffered bytes, `*got` of them, at least one and at most `wanted`. */
static cpl_status peek(cpl_gguf_source *s, const unsigned char **bytes, size_t *got, size_t wanted)
{
    if (s->at < s->begins || s->at >= s->begins + s->held) {
        s->begins = s->at;
        s->held   = left(s) < CPL_GGUF_BUFFER ? (size_t)left(s) : CPL_GGUF_BUFFER;
        CPL_TRY(cpl_source_read_at(s->file, s->buffer, s->held, s->at));
    }
    size_t ready = (size_t)(s->begins + s->held - s->at);
    *bytes       = s->buffer + (s->at - s->begins);
    *got         = ready < wanted ? ready : wanted;
    return CPL_OK;
}

cpl_status cpl_gguf_source_take(cpl_gguf_source *s, void *out, size_t bytes)
{
    const unsigned char *ready;
    CPL_TRY(cpl_gguf_source_holds(s, bytes, 1));
    for (size_t done = 0, got = 0; done < bytes; done += got) {
        CPL_TRY(peek(s, &ready, &got, bytes - done));
        memcpy((char *)out + done, ready, got);
        s->at += got;
    }
    return CPL_OK;
}

cpl_status cpl_gguf_source_skip(cpl_gguf_source *s, uint64_t bytes)
{
    CPL_TRY(cpl_gguf_source_holds(s, bytes, 1));
    s->at += bytes;
    return CPL_OK;
}

cpl_status cpl_gguf_source_string(cpl_gguf_source *s, cpl_text *out, uint64_t longest,
                                  size_t *length)
{
    const unsigned char *ready;
    uint64_t bytes;
    CPL_TRY(cpl_gguf_source_take(s, &bytes, sizeof bytes));
    CPL_TRY(cpl_gguf_source_holds(s, bytes, 1));
    if (bytes > longest)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: %s, byte %llu: a name has %llu bytes, it may have %llu at most",
                        s->path, s->what, (unsigned long long)s->at, (unsigned long long)bytes,
                        (unsigned long long)longest);
    *length = (size_t)bytes;
    for (size_t done = 0, got = 0; done < *length; done += got) {
        CPL_TRY(peek(s, &ready, &got, *length - done));
        cpl_text_append(out, ready, got);
        s->at += got;
    }
    return cpl_text_status(out);
}

cpl_status cpl_gguf_source_name(cpl_gguf_source *s, cpl_text *out, uint64_t longest)
{
    size_t length, begins = out->length;
    CPL_TRY(cpl_gguf_source_string(s, out, longest, &length));
    const char *name = length ? out->bytes + begins : "";
    if (!length || memchr(name, '\0', length) || !cpl_utf8_is(name, length))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: %s, before byte %llu: a name is empty or not UTF-8",
                        s->path, s->what, (unsigned long long)s->at);
    cpl_text_char(out, '\0');
    return cpl_text_status(out);
}

cpl_status cpl_gguf_unique(const cpl_gguf_source *s, const char **names, int64_t count)
{
    if (count) qsort((void *)names, (size_t)count, sizeof *names, cpl_order_strings);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: %s: %.200s occurs twice", s->path, s->what,
                            names[i]);
    return CPL_OK;
}
