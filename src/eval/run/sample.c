/* sample.c - see sample.h */
#include "eval/run/sample.h"

#include <sha256.h>
#include <stdlib.h>
#include <string.h>

bool cpl_sample_put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

bool cpl_sample_push(json_t *array, json_t *value)
{
    return json_array_append_new(array, value) == 0;
}

bool cpl_sample_put_int(json_t *object, const char *key, int64_t value)
{
    return cpl_sample_put(object, key, json_integer((json_int_t)value));
}

json_t *cpl_sample_words(cpl_span span)
{
    cpl_text text = {0};
    json_t *json  = NULL;
    for (size_t at = 0; at < span.length;) {
        const char *bytes = span.bytes + at;
        const char *nul   = memchr(bytes, '\0', span.length - at);
        const size_t n    = nul ? (size_t)(nul - bytes) : span.length - at;
        cpl_utf8_repair(&text, bytes, n);
        if (nul) cpl_text_append(&text, "\xEF\xBF\xBD", 3);
        at += n + (nul ? 1 : 0);
    }
    if (!text.failed) json = json_stringn(text.length ? text.bytes : "", text.length);
    cpl_text_free(&text);
    return json;
}

json_t *cpl_sample_digest(const char *first, const char *second)
{
    SHA256_CTX context;
    char hex[SHA256_DIGEST_STRING_LENGTH];
    SHA256Init(&context);
    SHA256Update(&context, (const uint8_t *)first, strlen(first) + (second ? 1 : 0));
    if (second) SHA256Update(&context, (const uint8_t *)second, strlen(second));
    return json_string(SHA256End(&context, hex));
}

json_t *cpl_sample_id(const cpl_question *q)
{
    enum { MOST_DIGITS = 18 };
    const size_t length = strlen(q->id);
    const bool number   = length > 0 && length <= MOST_DIGITS &&
                        strspn(q->id, "0123456789") == length && (*q->id != '0' || length == 1);
    return number ? json_integer(strtoll(q->id, NULL, 10)) : cpl_sample_words(cpl_span_of(q->id));
}

cpl_status cpl_sample_finish(json_t **sample, json_t *made, bool whole)
{
    *sample = whole ? made : NULL;
    if (whole) return CPL_OK;
    json_decref(made);
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for an answered question");
}

const char *cpl_sample_key(const char *answer)
{
    static const char stem[] = "exact_match_";
    const size_t length      = sizeof stem - 1;
    return strncmp(answer, stem, length) == 0 && answer[length] ? answer + length : answer;
}
