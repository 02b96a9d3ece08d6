/* text.c - see text.h */
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"

void cpl_text_free(cpl_text *text)
{
    cpl_free(text->bytes);
    memset(text, 0, sizeof *text);
}

void cpl_text_clear(cpl_text *text)
{
    text->length = 0;
    if (text->bytes) text->bytes[0] = '\0';
}

static bool make_room(cpl_text *text, size_t more)
{
    if (text->failed) return false;
    if (more > SIZE_MAX / 4 - text->length) {
        text->failed = true;
        return false;
    }
    size_t need = text->length + more + 1;
    if (need <= text->capacity) return true;
    size_t capacity = text->capacity ? text->capacity : 64;
    while (capacity < need) capacity *= 2;
    char *bytes = cpl_realloc(text->bytes, capacity);
    if (!bytes) {
        text->failed = true;
        return false;
    }
    text->bytes    = bytes;
    text->capacity = capacity;
    return true;
}

void cpl_text_append(cpl_text *text, const void *bytes, size_t length)
{
    if (!make_room(text, length)) return;
    if (length) memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
}

void cpl_text_char(cpl_text *text, char c)
{
    cpl_text_append(text, &c, 1);
}

void cpl_text_printf(cpl_text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CPL_ASSERT(length >= 0);
    if (make_room(text, (size_t)length)) {
        vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

cpl_status cpl_text_status(const cpl_text *text)
{
    return text->failed
               ? CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a text of %zu bytes", text->length)
               : CPL_OK;
}

char *cpl_text_copy(const char *string)
{
    size_t bytes = strlen(string) + 1;
    char *copy   = cpl_alloc(bytes);
    if (copy) memcpy(copy, string, bytes);
    return copy;
}

int cpl_order_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Returns the optimal string alignment distance of the first 63 characters of both words. */
static int edits(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    int d[LONGEST + 1][LONGEST + 1];
    int la = (int)strnlen(a, LONGEST), lb = (int)strnlen(b, LONGEST);
    for (int i = 0; i <= la; i++) d[i][0] = i;
    for (int j = 0; j <= lb; j++) d[0][j] = j;
    for (int i = 1; i <= la; i++)
        for (int j = 1; j <= lb; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[la][lb];
}

/* Returns one more than the largest distance that counts as near. */
int cpl_text_near_limit(const char *word)
{
    const int length = (int)strnlen(word, 63);
    return length > 8 ? length / 3 + 1 : length > 3 ? 3 : length > 1 ? 2 : 0;
}

bool cpl_text_is_nearer(int *limit, const char *word, const char *candidate)
{
    const int distance = edits(word, candidate);
    if (distance >= *limit) return false;
    *limit = distance;
    return true;
}

const char *cpl_text_nearest(const char *word, const char *const *candidates, size_t count)
{
    const char *best = NULL;
    int limit        = cpl_text_near_limit(word);
    for (size_t i = 0; i < count; i++)
        if (cpl_text_is_nearer(&limit, word, candidates[i])) best = candidates[i];
    return best;
}

static cpl_status no_such_name(const char *kind, const char *word, const char *const *names,
                               size_t count)
{
    const char *near = cpl_text_nearest(word, names, count);
    if (near)
        return CPL_FAIL(CPL_ERR_INPUT, "there is no %s %.100s; did you mean %s?", kind, word, near);
    char all[512] = "";
    for (size_t i = 0, used = 0; i < count && used < sizeof all; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
    return CPL_FAIL(CPL_ERR_INPUT, "there is no %s %.100s; there are %s", kind, word, all);
}

cpl_status cpl_lookup(size_t *index, const char *kind, const char *word, const char *const *names,
                      size_t count)
{
    for (*index = 0; *index < count; ++*index)
        if (strcmp(names[*index], word) == 0) return CPL_OK;
    return no_such_name(kind, word, names, count);
}

cpl_status cpl_lookup_in(size_t *index, const char *kind, const char *word, const void *rows,
                         size_t count, size_t size)
{
    enum { MOST = 64 };
    const char *names[MOST];
    CPL_ASSERT(count <= MOST);
    for (size_t i = 0; i < count; i++)
        memcpy(&names[i], (const char *)rows + i * size, sizeof names[i]);
    return cpl_lookup(index, kind, word, names, count);
}

const char *cpl_text_bytes(char out[32], double bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t u                         = 0;
    for (; bytes >= 1024.0 && u + 1 < sizeof units / sizeof *units; u++) bytes /= 1024.0;
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return out;
}

/* Returns the number of valid bytes at the beginning of the UTF-8 sequence at `s`. Sets `*wanted`
 * to its full length (0: `s[0]` cannot begin a sequence). Ranges of the second byte: Unicode, table
 * 3-7. */
static int good_prefix(const unsigned char *s, size_t left, int *wanted)
{
    unsigned char lo = 0x80, hi = 0xBF, c = s[0];
    *wanted = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (c == 0xE0) lo = 0xA0;
    if (c == 0xED) hi = 0x9F;
    if (c == 0xF0) lo = 0x90;
    if (c == 0xF4) hi = 0x8F;
    int good = 1;
    for (; good < *wanted && (size_t)good < left; good++) {
        if (s[good] < lo || s[good] > hi) break;
        lo = 0x80;
        hi = 0xBF;
    }
    return good;
}

int cpl_utf8_length(const unsigned char *s, size_t left)
{
    int wanted = 0;
    if (!left) return 0;
    return good_prefix(s, left, &wanted) == wanted ? wanted : 0;
}

bool cpl_utf8_is(const char *bytes, size_t length)
{
    const unsigned char *s = (const unsigned char *)bytes;
    for (size_t i = 0; i < length;) {
        int step = s[i] < 0x80 ? 1 : cpl_utf8_length(s + i, length - i);
        if (!step) return false;
        i += (size_t)step;
    }
    return true;
}

int cpl_utf8_bad_length(const unsigned char *s, size_t left)
{
    int wanted = 0;
    return good_prefix(s, left, &wanted);
}

uint32_t cpl_utf8_decode(const unsigned char *s, int length)
{
    static const unsigned char mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t c                         = s[0] & mask[length];
    for (int i = 1; i < length; i++) c = c << 6 | (s[i] & 0x3Fu);
    return c;
}

int cpl_utf8_encode(uint32_t c, char out[4])
{
    int length                         = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[length] | c);
    return length;
}

int64_t cpl_utf8_repair(cpl_text *out, const char *bytes, size_t length)
{
    int64_t repaired = 0;
    size_t good = 0, i = 0; /* [good, i) is well-formed and not yet written */
    const unsigned char *s = (const unsigned char *)bytes;
    while (i < length) {
        int step = s[i] < 0x80 ? 1 : cpl_utf8_length(s + i, length - i);
        if (step) {
            i += (size_t)step;
            continue;
        }
        cpl_text_append(out, bytes + good, i - good);
        cpl_text_append(out, "\xEF\xBF\xBD", 3);
        i += (size_t)cpl_utf8_bad_length(s + i, length - i);
        good = i;
        repaired++;
    }
    cpl_text_append(out, bytes + good, length - good);
    return repaired;
}

/* ---- spans ---- */

cpl_span cpl_span_of(const char *string)
{
    return (cpl_span){string, strlen(string)};
}

cpl_span cpl_span_text(const cpl_text *text)
{
    return (cpl_span){text->bytes, text->length};
}

cpl_span cpl_span_part(cpl_span text, size_t from, size_t end)
{
    CPL_ASSERT(from <= end && end <= text.length);
    return end > from ? (cpl_span){text.bytes + from, end - from} : (cpl_span){0};
}

bool cpl_span_equal(cpl_span a, cpl_span b)
{
    return a.length == b.length && (!a.length || memcmp(a.bytes, b.bytes, a.length) == 0);
}

bool cpl_span_is_at(cpl_span text, size_t at, const char *what)
{
    size_t length = strlen(what);
    return at <= text.length && text.length - at >= length &&
           (!length || memcmp(text.bytes + at, what, length) == 0);
}

size_t cpl_span_find(cpl_span text, size_t from, const char *what)
{
    size_t length = strlen(what);
    CPL_ASSERT(length);
    if (from >= text.length) return CPL_NOWHERE;
    const char *at = memmem(text.bytes + from, text.length - from, what, length);
    return at ? (size_t)(at - text.bytes) : CPL_NOWHERE;
}

size_t cpl_span_find_last(cpl_span text, const char *what)
{
    CPL_ASSERT(*what);
    for (size_t at = text.length; at-- > 0;)
        if (text.bytes[at] == *what && cpl_span_is_at(text, at, what)) return at;
    return CPL_NOWHERE;
}

size_t cpl_span_find_byte(cpl_span text, size_t from, char c)
{
    if (from >= text.length) return CPL_NOWHERE;
    const char *at = memchr(text.bytes + from, c, text.length - from);
    return at ? (size_t)(at - text.bytes) : CPL_NOWHERE;
}

size_t cpl_span_find_last_byte(cpl_span text, char c)
{
    const char *at = text.length ? memrchr(text.bytes, c, text.length) : NULL;
    return at ? (size_t)(at - text.bytes) : CPL_NOWHERE;
}

size_t cpl_span_line_end(cpl_span text, size_t at)
{
    size_t end = cpl_span_find_byte(text, at, '\n');
    return end == CPL_NOWHERE ? text.length : end;
}
