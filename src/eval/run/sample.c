/* sample.c - see kinds.h: parts of an answered question */
#include "eval/run/kinds.h"

#include <sha256.h>
#include <stdlib.h>
#include <string.h>

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

cpl_status cpl_sample_finish(json_t **sample, json_t *made, bool failed)
{
    *sample = failed ? NULL : made;
    if (!failed) return CPL_OK;
    json_decref(made);
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for an answered question");
}

const char *cpl_sample_key(const char *answer)
{
    static const char stem[] = "exact_match_";
    const size_t length      = sizeof stem - 1;
    return strncmp(answer, stem, length) == 0 && answer[length] ? answer + length : answer;
}
