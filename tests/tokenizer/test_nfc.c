/* test_nfc.c - canonical composition: utf8proc as the oracle where its combining classes equal
 * those of the reference, and a plain form of the standard's algorithm where they differ. */
#include "check.h"

#include <utf8proc.h>

#include "base/rng.h"
#include "tokenizer/unicode.h"

enum { LONGEST = 40, TEXTS = 20000 };

/* Returns whether a mark has class 0 in the reference (the list of the data specification). */
static bool is_old_zero(uint32_t c)
{
    static const uint32_t list[] = {
        0x7FD,   0x7FD,   0x898,   0x89F,   0x8CA,   0x8D3,   0x9FE,   0x9FE,   0xC3C,   0xC3C,
        0xD3B,   0xD3C,   0xEBA,   0xEBA,   0x1715,  0x1715,  0x1ABF,  0x1ACE,  0x1DF6,  0x1DFA,
        0xA82C,  0xA82C,  0x10D24, 0x10D27, 0x10EAB, 0x10EAC, 0x10F46, 0x10F50, 0x10F82, 0x10F85,
        0x11070, 0x11070, 0x1133B, 0x1133B, 0x1145E, 0x1145E, 0x11839, 0x1183A, 0x1193D, 0x1193E,
        0x11943, 0x11943, 0x119E0, 0x119E0, 0x11A34, 0x11A34, 0x11A47, 0x11A47, 0x11A99, 0x11A99,
        0x11D42, 0x11D42, 0x11D44, 0x11D45, 0x11D97, 0x11D97, 0x16FF0, 0x16FF1, 0x1E130, 0x1E136,
        0x1E2AE, 0x1E2AE, 0x1E2EC, 0x1E2EF};
    for (size_t i = 0; i < sizeof list / sizeof *list; i += 2)
        if (c >= list[i] && c <= list[i + 1]) return true;
    return false;
}

/* Sets `out` to the library's NFC, without the shortcut for plain text. */
static void ours(cpl_text *out, cpl_nfc *nfc, const uint32_t *points, size_t n)
{
    cpl_text text = {0};
    char bytes[4];
    for (size_t i = 0; i < n; i++)
        cpl_text_append(&text, bytes, (size_t)cpl_utf8_encode(points[i], bytes));
    cpl_text_clear(out);
    assert_ok(cpl_nfc_append(nfc, out, text.bytes ? text.bytes : "", text.length));
    if (cpl_nfc_is_plain(text.bytes ? text.bytes : "", text.length)) {
        assert_int_equal(out->length, text.length);
        if (text.length) assert_memory_equal(out->bytes, text.bytes, text.length);
    }
    cpl_text_free(&text);
}

/* Checks that `got` is the NFC that utf8proc makes of a text. */
static void assert_composed(const cpl_text *got, const char *bytes, size_t length)
{
    utf8proc_uint8_t *want = NULL;
    utf8proc_ssize_t n     = utf8proc_map((const utf8proc_uint8_t *)bytes, (utf8proc_ssize_t)length,
                                          &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_int_equal(got->length, n);
    assert_memory_equal(got->bytes, want, n);
    free(want);
}

/* Returns letters with marks, Hangul, singletons, exclusions, marks of many classes. With `zeros`
 * it also returns marks whose class differs. */
static uint32_t some_point(const cpl_rng_key *key, uint64_t *draw, bool zeros)
{
    static const uint32_t range[][2] = {
        {'a', 26},       {0xC0, 0x1C0},   {0x300, 0x70}, {0x300, 0x70},   {0x591, 0x40},
        {0x64B, 0x16},   {0x1100, 20},    {0x1161, 21},  {0x11A8, 27},    {0xAC00, 0x2BA4},
        {0x915, 0x20},   {0x93C, 1},      {0x958, 8},    {0x9C7, 1},      {0x9BE, 1},
        {0x1E00, 0x100}, {0x1F00, 0x100}, {0x2126, 6},   {0xF900, 0x100}, {0x1D15E, 7},
        {0x3040, 0x60},  {0x1AB0, 15},    {0x110BA, 1},  {0xFB1D, 0x30},  {0x344, 1}};
    static const uint32_t odd[] = {0x7FD,  0x89A,   0x8D0,   0x9FE,   0x1715,  0x1AC5,
                                   0x1DF6, 0x10F48, 0x1E130, 0x1E2EC, 0x16FF0, 0x1193D};
    uint32_t r                  = cpl_rng_u32(key, (*draw)++);
    if (zeros && r % 4 == 0) return odd[r / 4 % (sizeof odd / sizeof *odd)];
    const uint32_t *from = range[r / 4 % (sizeof range / sizeof *range)];
    return from[0] + cpl_rng_u32(key, (*draw)++) % from[1];
}

TEST(every_code_point_alone)
{
    cpl_nfc nfc  = {0};
    cpl_text got = {0};
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        char bytes[5] = {0};
        ours(&got, &nfc, &c, 1);
        assert_composed(&got, bytes, (size_t)cpl_utf8_encode(c, bytes));
    }
    cpl_text_free(&got);
    cpl_nfc_free(&nfc);
}

TEST(sequences_agree_with_utf8proc)
{
    cpl_rng_key key = {.seed = 21, .stream = CPL_STREAM_TEST};
    uint64_t draw   = 0;
    cpl_nfc nfc     = {0};
    cpl_text got = {0}, text = {0};
    for (int t = 0; t < TEXTS; t++) {
        uint32_t points[LONGEST];
        char bytes[4];
        size_t n = 1 + cpl_rng_u32(&key, draw++) % (t % 2 ? LONGEST - 1 : 5);
        cpl_text_clear(&text);
        for (size_t i = 0; i < n; i++) {
            do points[i] = some_point(&key, &draw, false);
            while (is_old_zero(points[i]));
            cpl_text_append(&text, bytes, (size_t)cpl_utf8_encode(points[i], bytes));
        }
        ours(&got, &nfc, points, n);
        assert_composed(&got, text.bytes, text.length);
    }
    cpl_text_free(&got);
    cpl_text_free(&text);
    cpl_nfc_free(&nfc);
}

static int class_of(uint32_t c)
{
    return is_old_zero(c) ? 0 : utf8proc_get_property((int32_t)c)->combining_class;
}

static uint32_t joined(uint32_t a, uint32_t b)
{
    int32_t pair[2] = {(int32_t)a, (int32_t)b};
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1
               ? (uint32_t)pair[0]
               : 0;
}

/* Composes by definitions D109 and D117, word for word: swaps neighbours until all are in order.
 * Then it takes each code point, looks for the last starter, and joins them unless a code point
 * between them blocks. */
static size_t plainly(uint32_t *out, const uint32_t *points, size_t n)
{
    int32_t parts[18];
    size_t count = 0;
    int boundary = 0;
    for (size_t i = 0; i < n; i++) {
        ssize_t k = utf8proc_decompose_char((int32_t)points[i], parts, 18,
                                            UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        for (ssize_t j = 0; j < k; j++) out[count++] = (uint32_t)parts[j];
    }
    for (size_t pass = 0; pass < count; pass++)
        for (size_t i = 1; i < count; i++)
            if (class_of(out[i]) && class_of(out[i - 1]) > class_of(out[i])) {
                uint32_t kept = out[i];
                out[i]        = out[i - 1];
                out[i - 1]    = kept;
            }
    for (size_t i = 1; i < count; i++) {
        size_t l = i;
        do l--;
        while (l > 0 && class_of(out[l]) != 0);
        bool blocked = class_of(out[l]) != 0;
        for (size_t b = l + 1; b < i; b++)
            blocked = blocked || class_of(out[b]) >= class_of(out[i]);
        uint32_t both = blocked ? 0 : joined(out[l], out[i]);
        if (!both) continue;
        out[l] = both;
        memmove(out + i, out + i + 1, (count - i - 1) * sizeof *out);
        count--;
        i--;
    }
    return count;
}

/* Returns whether a text is the one that utf8proc, with its newer classes, makes of the points. */
static bool is_standard(const uint32_t *points, size_t n, const cpl_text *text)
{
    char bytes[4 * LONGEST];
    size_t length = 0;
    for (size_t i = 0; i < n; i++) length += (size_t)cpl_utf8_encode(points[i], bytes + length);
    utf8proc_uint8_t *standard = NULL;
    ssize_t standard_length    = utf8proc_map((utf8proc_uint8_t *)bytes, (ssize_t)length, &standard,
                                              UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    bool same                  = standard_length == (ssize_t)text->length &&
                memcmp(standard, text->bytes, text->length) == 0;
    free(standard);
    return same;
}

TEST(older_classes_neither_move_nor_let_pass)
{
    cpl_rng_key key = {.seed = 22, .stream = CPL_STREAM_TEST};
    uint64_t draw   = 0;
    cpl_nfc nfc     = {0};
    cpl_text got    = {0};
    int differs     = 0;
    for (int t = 0; t < TEXTS; t++) {
        uint32_t points[LONGEST], want[4 * LONGEST];
        char bytes[16 * LONGEST];
        size_t n = 1 + cpl_rng_u32(&key, draw++) % (t % 4 ? 6 : LONGEST - 1), length = 0;
        for (size_t i = 0; i < n; i++) points[i] = some_point(&key, &draw, true);
        size_t count = plainly(want, points, n);
        for (size_t i = 0; i < count; i++)
            length += (size_t)cpl_utf8_encode(want[i], bytes + length);
        ours(&got, &nfc, points, n);
        assert_int_equal(got.length, length);
        assert_memory_equal(got.bytes, bytes, length);
        differs += !is_standard(points, n, &got);
    }
    assert_true(differs > 0); /* the list of marks was used */
    /* a, class 0 here but 220 in Unicode, acute: the acute is not let past and not joined */
    ours(&got, &nfc, (uint32_t[]){'a', 0x1ABF, 0x301}, 3);
    assert_string_equal(got.bytes, "a\xE1\xAA\xBF\xCC\x81");
    ours(&got, &nfc, (uint32_t[]){'a', 0x323, 0x301}, 3);
    assert_string_equal(got.bytes, "\xE1\xBA\xA1\xCC\x81");
    cpl_text_free(&got);
    cpl_nfc_free(&nfc);
}

/* A run of marks may be too long for the short sort, and out of order: both sorts agree. */
TEST(long_runs_of_marks)
{
    enum { MARKS = 200000 };
    cpl_nfc nfc      = {0};
    cpl_text got     = {0};
    uint32_t *points = malloc((MARKS + 1) * sizeof *points);
    assert_non_null(points);
    points[0] = 'q';
    for (int i = 1; i <= MARKS; i++) points[i] = i % 2 ? 0x301 : 0x323; /* classes 230 and 220 */
    ours(&got, &nfc, points, MARKS + 1);
    assert_int_equal(got.length, 1 + 2 * MARKS);
    for (int i = 0; i < MARKS; i++)
        assert_memory_equal(got.bytes + 1 + 2 * i, i < MARKS / 2 ? "\xCC\xA3" : "\xCC\x81", 2);
    free(points);
    cpl_text_free(&got);
    cpl_nfc_free(&nfc);
}
