/* nfc.c - canonical composition (see unicode.h).
 *
 * Text is divided into segments that NFC treats independently. A code point without CPL_NFC_CARE
 * begins a new segment. Only segments with other code points are decomposed, ordered and composed.
 * utf8proc has the data of single code points and of pairs. The algorithm is implemented here
 * because the reference implementation has older combining classes than utf8proc. */
#include <string.h>

#include <utf8proc.h>

#include "base/arena.h"
#include "tokenizer/unicode.h"

/* Marks of class 0 in the reference's data that have another class in current Unicode. */
static const uint32_t class_zero[][2] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
};

enum { DECOMPOSED_MAX = 18, SHORT_RUN = 24 };

static uint8_t combining_class(uint32_t point)
{
    for (size_t i = 0; i < sizeof class_zero / sizeof *class_zero; i++)
        if (point >= class_zero[i][0] && point <= class_zero[i][1]) return 0;
    return (uint8_t)utf8proc_get_property((utf8proc_int32_t)point)->combining_class;
}

void cpl_nfc_free(cpl_nfc *nfc)
{
    cpl_free(nfc->points);
    cpl_free(nfc->classes);
    memset(nfc, 0, sizeof *nfc);
}

static cpl_status make_room(cpl_nfc *nfc, size_t more)
{
    if (nfc->capacity - nfc->count >= more) return CPL_OK;
    size_t capacity  = nfc->capacity * 2 + 64 + more;
    uint32_t *points = cpl_realloc(nfc->points, capacity * sizeof *points);
    if (!points) return CPL_ERR_MEMORY;
    nfc->points      = points;
    uint8_t *classes = cpl_realloc(nfc->classes, capacity);
    if (!classes) return CPL_ERR_MEMORY;
    nfc->classes  = classes;
    nfc->capacity = capacity;
    return CPL_OK;
}

static cpl_status decompose(cpl_nfc *nfc, const unsigned char *s, size_t length)
{
    nfc->count = 0;
    for (size_t at = 0; at < length;) {
        int bytes, boundary = 0;
        uint32_t point = cpl_unicode_next(s + at, &bytes);
        utf8proc_int32_t parts[DECOMPOSED_MAX];
        utf8proc_ssize_t n =
            utf8proc_decompose_char((utf8proc_int32_t)point, parts, DECOMPOSED_MAX,
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (n < 1 || n > DECOMPOSED_MAX) {
            parts[0] = (utf8proc_int32_t)point;
            n        = 1;
        }
        CPL_TRY(make_room(nfc, (size_t)n));
        for (utf8proc_ssize_t i = 0; i < n; i++) {
            nfc->points[nfc->count]    = (uint32_t)parts[i];
            nfc->classes[nfc->count++] = combining_class((uint32_t)parts[i]);
        }
        at += (size_t)bytes;
    }
    return CPL_OK;
}

/* Sorts by class, stably. In real text runs have few marks. */
static void order_short(uint32_t *points, uint8_t *classes, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint32_t point = points[i];
        uint8_t class  = classes[i];
        size_t k       = i;
        for (; k > 0 && classes[k - 1] > class; k--) {
            points[k]  = points[k - 1];
            classes[k] = classes[k - 1];
        }
        points[k]  = point;
        classes[k] = class;
    }
}

/* Sorts by class, stably, in linear time, so that a text of a million marks does not take quadratic
 * time. Uses the memory beyond the segment as scratch. */
static cpl_status order_long(cpl_nfc *nfc, size_t first, size_t n)
{
    size_t start[257] = {0};
    CPL_TRY(make_room(nfc, n));
    uint32_t *points = nfc->points + first, *sorted = nfc->points + nfc->count;
    uint8_t *classes = nfc->classes + first, *keys = nfc->classes + nfc->count;
    for (size_t i = 0; i < n; i++) start[classes[i] + 1]++;
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++) {
        size_t to  = start[classes[i]]++;
        sorted[to] = points[i];
        keys[to]   = classes[i];
    }
    memcpy(points, sorted, n * sizeof *points);
    memcpy(classes, keys, n);
    return CPL_OK;
}

static cpl_status order(cpl_nfc *nfc)
{
    for (size_t at = 0; at < nfc->count;) {
        if (nfc->classes[at] == 0) {
            at++;
            continue;
        }
        size_t end = at;
        while (end < nfc->count && nfc->classes[end] != 0) end++;
        if (end - at <= SHORT_RUN)
            order_short(nfc->points + at, nfc->classes + at, end - at);
        else
            CPL_TRY(order_long(nfc, at, end - at));
        at = end;
    }
    return CPL_OK;
}

/* Returns the primary composite of a pair, or 0. */
static uint32_t composite(uint32_t first, uint32_t second)
{
    utf8proc_int32_t pair[2] = {(utf8proc_int32_t)first, (utf8proc_int32_t)second};
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1
               ? (uint32_t)pair[0]
               : 0;
}

/* Composes the segment. A mark joins the last starter unless a mark of an equal or higher class, or
 * a starter, is between (Unicode, section 3.11, D115 to D117). */
static void compose(cpl_nfc *nfc)
{
    size_t kept = 0, starter = SIZE_MAX;
    uint8_t between = 0; /* class of the last code point kept after the starter */
    for (size_t i = 0; i < nfc->count; i++) {
        uint32_t point = nfc->points[i];
        uint8_t class  = nfc->classes[i];
        bool adjacent  = starter != SIZE_MAX && kept == starter + 1;
        if (starter != SIZE_MAX && (adjacent || (class > between && between != 0))) {
            uint32_t joined = composite(nfc->points[starter], point);
            if (joined) {
                nfc->points[starter] = joined;
                continue;
            }
        }
        if (class == 0) starter = kept;
        between            = class;
        nfc->points[kept]  = point;
        nfc->classes[kept] = class;
        kept++;
    }
    nfc->count = kept;
}

static cpl_status append_segment(cpl_nfc *nfc, cpl_text *out, const unsigned char *s, size_t length)
{
    CPL_TRY(decompose(nfc, s, length));
    CPL_TRY(order(nfc));
    compose(nfc);
    for (size_t i = 0; i < nfc->count; i++) {
        char bytes[4];
        cpl_text_append(out, bytes, (size_t)cpl_utf8_encode(nfc->points[i], bytes));
    }
    return CPL_OK;
}

/* Returns the first position from `at` on of a code point with CPL_NFC_CARE, or `length`. Sets
 * *before to the start of the previous code point, if it is at `at` or later. */
static size_t find_care(const unsigned char *s, size_t at, size_t length, size_t *before)
{
    size_t last = SIZE_MAX;
    while (at < length) {
        size_t ascii = cpl_unicode_ascii((const char *)s + at, length - at);
        if (ascii) {
            at += ascii;
            last = at - 1;
            continue;
        }
        int bytes;
        if (cpl_unicode_traits(cpl_unicode_next(s + at, &bytes)) & CPL_NFC_CARE) break;
        last = at;
        at += (size_t)bytes;
    }
    *before = last == SIZE_MAX ? at : last;
    return at;
}

bool cpl_nfc_is_plain(const char *text, size_t length)
{
    size_t before;
    return find_care((const unsigned char *)text, 0, length, &before) == length;
}

cpl_status cpl_nfc_append(cpl_nfc *nfc, cpl_text *out, const char *text, size_t length)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t at = 0; at < length;) {
        size_t start, end = find_care(s, at, length, &start);
        if (end == length) start = end;
        cpl_text_append(out, text + at, start - at);
        for (int bytes; end < length; end += (size_t)bytes)
            if (!(cpl_unicode_traits(cpl_unicode_next(s + end, &bytes)) & CPL_NFC_CARE)) break;
        CPL_TRY(append_segment(nfc, out, s + start, end - start));
        at = end;
    }
    return cpl_text_status(out);
}
