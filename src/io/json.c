/* json.c - see json.h */
#include "io/json.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/json_pull.h"

/* Returns whether jansson failed for lack of memory. Often jansson does not report the lack of
 * memory: it reports valid text as invalid or gives no error. A lone surrogate is the only input
 * that jansson alone refuses. */
static bool ran_out(const json_error_t *error, const char *bytes, size_t length)
{
    if (!error->text[0]) return true;
    switch (json_error_code(error)) {
    case json_error_out_of_memory:
        return true;
    case json_error_invalid_syntax:
    case json_error_premature_end_of_input:
        return !strstr(error->text, "invalid Unicode") && cpl_json_is_object(bytes, length);
    default:
        return false;
    }
}

cpl_status cpl_json_parse_at(json_t **out, const char *bytes, size_t length, const char *where,
                             int64_t line, int64_t column)
{
    json_error_t error = {.line = 0};
    *out               = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &error);
    if (!*out && error.text[0] && json_error_code(&error) == json_error_numeric_overflow)
        *out = json_loadb(bytes, length, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    if (*out) return CPL_OK;
    if (ran_out(&error, bytes, length))
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for this JSON", where);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: line %lld, column %lld: not valid JSON: %s", where,
                    (long long)line + error.line - 1,
                    (long long)(error.line > 1 ? 1 : column) + error.column - 1, error.text);
}

cpl_status cpl_json_parse(json_t **out, const char *bytes, size_t length, const char *where)
{
    *out = NULL;
    if (!length) return CPL_FAIL(CPL_ERR_INPUT, "%s: is empty where JSON should be", where);
    if (cpl_file_is_lfs_pointer(bytes, length))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a Git LFS pointer, not the file itself; fetch it with `git lfs "
                        "pull`",
                        where);
    size_t begin = 0;
    while (begin < length && strchr(" \t\r\n", bytes[begin])) begin++;
    if (begin < length && bytes[begin] == '<')
        return CPL_FAIL(CPL_ERR_INPUT, "%s: looks like a web page, not JSON", where);
    return cpl_json_parse_at(out, bytes, length, where, 1, 1);
}

static cpl_status load(json_t **out, const cpl_origin *origin, const char *path, bool given)
{
    cpl_text text     = {0};
    cpl_status status = CPL_OK;
    *out              = NULL;
    CPL_TRY_DONE(given ? cpl_file_read_given(&text, path, CPL_JSON_MAX_BYTES)
                       : cpl_origin_read(origin, &text, path, CPL_JSON_MAX_BYTES));
    CPL_TRY_DONE(cpl_json_parse(out, text.bytes, text.length, path));
done:
    cpl_text_free(&text);
    return status;
}

cpl_status cpl_json_load(json_t **out, const char *path)
{
    return load(out, NULL, path, false);
}

cpl_status cpl_json_load_from(json_t **out, const cpl_origin *origin, const char *path)
{
    return load(out, origin, path, false);
}

cpl_status cpl_json_load_given(json_t **out, const char *path)
{
    return load(out, NULL, path, true);
}

static const char *kind(const json_t *value)
{
    static const char *const kinds[] = {[JSON_OBJECT]  = "an object",
                                        [JSON_ARRAY]   = "an array",
                                        [JSON_STRING]  = "a string",
                                        [JSON_INTEGER] = "a whole number",
                                        [JSON_REAL]    = "a number with a fraction",
                                        [JSON_TRUE]    = "true or false",
                                        [JSON_FALSE]   = "true or false",
                                        [JSON_NULL]    = "null"};
    return kinds[json_typeof(value)];
}

static cpl_status wrong_kind(const json_t *value, const char *key, const char *wanted,
                             const char *where)
{
    if (!value) return CPL_FAIL(CPL_ERR_INPUT, "%s: `%s` is missing", where, key);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: `%s` is %s, it must be %s", where, key, kind(value),
                    wanted);
}

static bool absent_or_null(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return !value || json_is_null(value);
}

/* Sets `*out` to a whole number. A number that was read as a real must lie within 2^53. Returns
 * whether the value is a whole number. */
static bool whole(const json_t *value, int64_t *out)
{
    const double exact = 9007199254740992.0; /* 2^53 */
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double real = json_real_value(value);
    if (!json_is_real(value) || !(real > -exact && real < exact)) return false;
    *out = (int64_t)real;
    return (double)*out == real;
}

cpl_status cpl_json_int(const json_t *object, const char *key, int64_t *value, int64_t lo,
                        int64_t hi, const char *where)
{
    const json_t *member = json_object_get(object, key);
    int64_t number;
    if (!whole(member, &number)) return wrong_kind(member, key, "a whole number", where);
    if (number < lo || number > hi)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: `%s` is %lld, it must lie between %lld and %lld", where,
                        key, (long long)number, (long long)lo, (long long)hi);
    *value = number;
    return CPL_OK;
}

cpl_status cpl_json_float(const json_t *object, const char *key, double *value, double lo,
                          double hi, const char *where)
{
    const json_t *member = json_object_get(object, key);
    if (!json_is_number(member)) return wrong_kind(member, key, "a number", where);
    double number = json_number_value(member);
    if (!(number >= lo && number <= hi))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: `%s` is %.9g, it must lie between %.9g and %.9g", where,
                        key, number, lo, hi);
    *value = number;
    return CPL_OK;
}

cpl_status cpl_json_bool(const json_t *object, const char *key, bool *value, const char *where)
{
    const json_t *member = json_object_get(object, key);
    if (!json_is_boolean(member)) return wrong_kind(member, key, "true or false", where);
    *value = json_is_true(member);
    return CPL_OK;
}

cpl_status cpl_json_string(const json_t *object, const char *key, const char **value,
                           const char *where)
{
    const json_t *member = json_object_get(object, key);
    if (!json_is_string(member)) return wrong_kind(member, key, "a string", where);
    *value = json_string_value(member);
    return CPL_OK;
}

cpl_status cpl_json_object(const json_t *object, const char *key, json_t **value, const char *where)
{
    json_t *member = json_object_get(object, key);
    if (!json_is_object(member)) return wrong_kind(member, key, "an object", where);
    *value = member;
    return CPL_OK;
}

cpl_status cpl_json_array(const json_t *object, const char *key, json_t **value, const char *where)
{
    json_t *member = json_object_get(object, key);
    if (!json_is_array(member)) return wrong_kind(member, key, "an array", where);
    *value = member;
    return CPL_OK;
}

cpl_status cpl_json_int_or(const json_t *object, const char *key, int64_t *value, int64_t lo,
                           int64_t hi, int64_t absent, const char *where)
{
    *value = absent;
    if (absent_or_null(object, key)) return CPL_OK;
    return cpl_json_int(object, key, value, lo, hi, where);
}

cpl_status cpl_json_float_or(const json_t *object, const char *key, double *value, double lo,
                             double hi, double absent, const char *where)
{
    *value = absent;
    if (absent_or_null(object, key)) return CPL_OK;
    return cpl_json_float(object, key, value, lo, hi, where);
}

cpl_status cpl_json_bool_or(const json_t *object, const char *key, bool *value, bool absent,
                            const char *where)
{
    *value = absent;
    if (absent_or_null(object, key)) return CPL_OK;
    return cpl_json_bool(object, key, value, where);
}

cpl_status cpl_json_string_or(const json_t *object, const char *key, const char **value,
                              const char *absent, const char *where)
{
    *value = absent;
    if (absent_or_null(object, key)) return CPL_OK;
    return cpl_json_string(object, key, value, where);
}

static int write_bytes(const char *bytes, size_t length, void *writer)
{
    cpl_writer_put(writer, bytes, length);
    return 0; /* the writer remembers a failure */
}

json_t *cpl_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *cpl_json_count(double value)
{
    if (value == floor(value) && fabs(value) < 0x1p53) return json_integer((json_int_t)value);
    return cpl_json_number(value);
}

json_t *cpl_json_hash(uint64_t hash)
{
    return json_sprintf("%016llx", (unsigned long long)hash);
}

json_t *cpl_json_words(const char *bytes)
{
    json_t *value  = json_string(bytes);
    cpl_text whole = {0};
    if (value) return value;
    (void)cpl_utf8_repair(&whole, bytes, strlen(bytes));
    if (!whole.failed) value = json_string(whole.bytes ? whole.bytes : "");
    cpl_text_free(&whole);
    return value;
}

/* Memory for jansson if malloc fails. jansson 2.14 does not survive a failed allocation while it
 * parses: it aborts, or writes into memory that it has freed. Blocks are never reused. */
static struct {
    _Alignas(max_align_t) unsigned char bytes[CPL_JSON_RESERVE];
    atomic_size_t used;
} reserve;

static atomic_bool memory_failed;

static void *from_reserve(size_t bytes)
{
    size_t used, whole = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t);
    if (bytes <= sizeof reserve.bytes) {
        whole *= sizeof(max_align_t);
        used = atomic_load(&reserve.used);
        while (whole <= sizeof reserve.bytes - used)
            if (atomic_compare_exchange_weak(&reserve.used, &used, used + whole))
                return reserve.bytes + used;
    }
    atomic_store(&memory_failed, true);
    return NULL;
}

static void *watched_malloc(size_t bytes)
{
    void *block = malloc(bytes);
    return block ? block : from_reserve(bytes);
}

static void watched_free(void *block)
{
    uintptr_t at = (uintptr_t)block, first = (uintptr_t)reserve.bytes;
    if (at < first || at >= first + sizeof reserve.bytes) free(block);
}

void cpl_json_watch_memory(void)
{
    json_set_alloc_funcs(watched_malloc, watched_free);
}

void cpl_json_text_free(char *text)
{
    json_free_t give;
    json_get_alloc_funcs(NULL, &give);
    give(text);
}

cpl_status cpl_json_check(const char *where)
{
    if (!atomic_load(&memory_failed)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to write this JSON", where);
}

cpl_status cpl_json_write_atomic(const char *path, const json_t *json, size_t flags)
{
    cpl_writer writer;
    CPL_TRY(cpl_json_check(path));
    CPL_TRY(cpl_writer_open(&writer, path));
    if (json_dump_callback(json, write_bytes, &writer, flags) != 0) {
        cpl_writer_abort(&writer);
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to write this JSON", path);
    }
    cpl_writer_put(&writer, "\n", 1);
    return cpl_writer_commit(&writer);
}
