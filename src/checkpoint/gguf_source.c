/* gguf_source.c - see gguf_internal.h. The file is read with pread, not mapped: one that becomes
 * shorter while it is read is then a sentence and not a signal. */
#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "checkpoint/gguf_internal.h"
#include "io/file.h"
#include "io/json_pull.h"

static uint64_t left(const cpl_gguf_source *s)
{
    return s->size - s->at;
}

cpl_status cpl_gguf_source_holds(const cpl_gguf_source *s, uint64_t count, uint64_t bytes)
{
    if (count <= left(s) / bytes) return CPL_OK;
    if (bytes == 1)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: invalid length: at byte %llu %s goes on for %llu bytes, the file for "
                        "%llu; it was cut short, or changed",
                        s->path, (unsigned long long)s->at, s->what, (unsigned long long)count,
                        (unsigned long long)left(s));
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: invalid count: at byte %llu %s announces %llu entries of at least %llu "
                    "bytes, the file goes on for %llu; it was cut short, or changed",
                    s->path, (unsigned long long)s->at, s->what, (unsigned long long)count,
                    (unsigned long long)bytes, (unsigned long long)left(s));
}

/* Sets `bytes` to what can be had at once of the next `wanted` bytes, at least one. */
static cpl_status peek(cpl_gguf_source *s, const unsigned char **bytes, size_t *got, size_t wanted)
{
    if (s->at < s->begins || s->at >= s->begins + s->held) {
        s->begins = s->at;
        s->held   = left(s) < CPL_GGUF_BUFFER ? (size_t)left(s) : CPL_GGUF_BUFFER;
        CPL_TRY(cpl_file_read_at(s->descriptor, s->buffer, s->held, s->at, s->path));
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

cpl_status cpl_gguf_source_u32(cpl_gguf_source *s, uint32_t *value)
{
    return cpl_gguf_source_take(s, value, sizeof *value);
}

cpl_status cpl_gguf_source_u64(cpl_gguf_source *s, uint64_t *value)
{
    return cpl_gguf_source_take(s, value, sizeof *value);
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
    CPL_TRY(cpl_gguf_source_u64(s, &bytes));
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
    if (!length || memchr(name, '\0', length) || !cpl_json_pull_is_utf8(name, length))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: %s, before byte %llu: a name is empty or is no text",
                        s->path, s->what, (unsigned long long)s->at);
    cpl_text_char(out, '\0');
    return cpl_text_status(out);
}

cpl_status cpl_gguf_unique(const cpl_gguf_source *s, const char **names, int64_t count)
{
    if (count) qsort((void *)names, (size_t)count, sizeof *names, cpl_order_strings);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: %s: %.200s stands twice", s->path, s->what,
                            names[i]);
    return CPL_OK;
}
