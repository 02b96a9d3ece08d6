/* split.c - splits text into words and finds added tokens, see internal.h.
 *
 * The patterns are written as scanners. At each position the alternatives are tried in the order of
 * the regular expression. Each alternative is a run of one class. The scanners use the classes of
 * unicode.h, which no engine of regular expressions has exactly. */
#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/unicode.h"

typedef const unsigned char bytes;

enum { BEYOND_ASCII = 4 };

#define O CPL_CLASS_OTHER
#define L CPL_CLASS_LETTER
#define N CPL_CLASS_NUMBER
#define S CPL_CLASS_SPACE
/* clang-format off */
static const uint8_t ascii_class[128] = {
    O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};
/* clang-format on */
#undef O
#undef L
#undef N
#undef S

/* Returns the class of the code point at `at`. Sets *next to the next code point's position. */
static inline int class_at(bytes *s, size_t at, size_t *next)
{
    if (s[at] < 0x80) {
        *next = at + 1;
        return ascii_class[s[at]];
    }
    int length;
    uint32_t point = cpl_unicode_next(s + at, &length);
    *next          = at + (size_t)length;
    return cpl_unicode_traits(point) & CPL_CLASS_MASK;
}

/* Returns the number of ASCII letters at the beginning of the 8 bytes at `s`. The upper bit of each
 * byte of `letters` is set for a letter, without a loop, whose end is predicted badly. */
static inline size_t leading_letters(bytes *s)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101u, upper = ones * 0x80;
    uint64_t word;
    memcpy(&word, s, sizeof word);
    uint64_t lower  = (word & ~upper) | ones * 0x20;
    uint64_t from_a = lower + ones * (0x80 - 'a'), beyond_z = lower + ones * (0x7F - 'z');
    uint64_t letters = from_a & ~beyond_z & ~word & upper;
    return letters == upper ? 8 : (size_t)__builtin_ctzll(letters ^ upper) / 8;
#else
    size_t n = 0;
    while (n < 8 && s[n] < 0x80 && ascii_class[s[n]] == CPL_CLASS_LETTER) n++;
    return n;
#endif
}

/* Returns the end of the run of `class` from `at` on. */
static inline size_t run_end(bytes *s, size_t at, size_t length, int class)
{
    if (class == CPL_CLASS_LETTER)
        for (size_t n = 8; n == 8 && length - at >= 8; at += n) n = leading_letters(s + at);
    while (at < length) {
        size_t next;
        if (class_at(s, at, &next) != class) break;
        at = next;
    }
    return at;
}

static inline size_t step_back(bytes *s, size_t at)
{
    do at--;
    while ((s[at] & 0xC0) == 0x80);
    return at;
}

/* Returns the end of a word of white space from `at` on. The word is all white space at the end of
 * the text, else all but the last code point, which the next word may include, or a single code
 * point. */
static size_t space_word(bytes *s, size_t at, size_t length)
{
    size_t end = run_end(s, at, length, CPL_CLASS_SPACE);
    if (end == length) return end;
    size_t last = step_back(s, end);
    return last > at ? last : end;
}

static inline bool is_one_of(int c, const char *set)
{
    return c != 0 && strchr(set, c) != NULL;
}

/* Returns the bytes of the contraction that begins with the apostrophe at `at`, or 0. `fold`
 * accepts also capital letters and U+017F (long s), which alone folds to such a letter too. */
static size_t contraction(bytes *s, size_t at, size_t length, bool fold)
{
    size_t left = length - at;
    if (left < 2) return 0;
    int lower = fold ? 0x20 : 0;
    int c     = s[at + 1] < 0x80 ? s[at + 1] | lower : 0;
    if (is_one_of(c, "stmd")) return 2;
    if (fold && left >= 3 && s[at + 1] == 0xC5 && s[at + 2] == 0xBF) return 3;
    if (left < 3 || s[at + 2] >= 0x80) return 0;
    int d = s[at + 2] | lower;
    return (c == 'r' && d == 'e') || (c == 'v' && d == 'e') || (c == 'l' && d == 'l') ? 3 : 0;
}

static inline size_t gpt2_word(bytes *s, size_t at, size_t length)
{
    if (s[at] == '\'') {
        size_t n = contraction(s, at, length, false);
        if (n) return at + n;
    }
    size_t next;
    int class = class_at(s, at, &next);
    if (s[at] == ' ' && next < length) class = class_at(s, next, &next);
    if (class == CPL_CLASS_SPACE) return space_word(s, at, length);
    return run_end(s, next, length, class);
}

static inline bool is_line_end(int c)
{
    return c == '\r' || c == '\n';
}

/* Returns the end of a match of \s*[\r\n]+, else \s+(?!\S), else \s+. */
static size_t dolma2_space(bytes *s, size_t at, size_t length)
{
    size_t end = run_end(s, at, length, CPL_CLASS_SPACE);
    for (size_t last = end; last > at; last--)
        if (is_line_end(s[last - 1])) return last;
    return space_word(s, at, length);
}

static size_t up_to_three_numbers(bytes *s, size_t at, size_t length)
{
    for (int n = 0; n < 3 && at < length; n++) {
        size_t next;
        if (class_at(s, at, &next) != CPL_CLASS_NUMBER) break;
        at = next;
    }
    return at;
}

static inline size_t dolma2_word(bytes *s, size_t at, size_t length)
{
    if (s[at] == '\'') {
        size_t n = contraction(s, at, length, true);
        if (n) return at + n;
    }
    size_t next, after;
    int class = class_at(s, at, &next);
    if (class == CPL_CLASS_LETTER) return run_end(s, next, length, CPL_CLASS_LETTER);
    if (class == CPL_CLASS_NUMBER) return up_to_three_numbers(s, at, length);
    int following = next < length ? class_at(s, next, &after) : CPL_CLASS_SPACE;
    if (following == CPL_CLASS_LETTER && !is_line_end(s[at]))
        return run_end(s, after, length, CPL_CLASS_LETTER);
    if (class == CPL_CLASS_OTHER || (s[at] == ' ' && following == CPL_CLASS_OTHER)) {
        size_t end = run_end(s, next, length, CPL_CLASS_OTHER);
        while (end < length && is_line_end(s[end])) end++;
        return end;
    }
    return dolma2_space(s, at, length);
}

size_t cpl_split(cpl_split_kind kind, const char *text, size_t length, size_t *at, size_t *ends,
                 size_t max)
{
    bytes *s     = (bytes *)text;
    size_t place = *at, n = 0;
    if (kind == CPL_SPLIT_GPT2)
        for (; n < max && place < length; n++) ends[n] = place = gpt2_word(s, place, length);
    else
        for (; n < max && place < length; n++) ends[n] = place = dolma2_word(s, place, length);
    *at = place;
    return n;
}

bool cpl_split_known(const char *pattern, cpl_split_kind *kind)
{
    static const char *const patterns[] = {
        [CPL_SPLIT_GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                           "|\\s+(?!\\S)|\\s+",
        [CPL_SPLIT_DOLMA2] =
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        if (strcmp(pattern, patterns[i]) != 0) continue;
        *kind = (cpl_split_kind)i;
        return true;
    }
    return false;
}

/* ---- added tokens: leftmost and longest ---- */

/* Orders by falling length, then by rising id. */
static int by_length(const void *a, const void *b)
{
    const cpl_added *x = a, *y = b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int first_byte(const cpl_added_set *set, uint32_t i)
{
    return (unsigned char)set->bytes[set->at[i].start];
}

/* Moves tokens with first byte `b` to the positions from `next` on. Returns the position after
 * them. */
static uint32_t group_first_byte(cpl_added_set *set, uint32_t next, int b)
{
    uint32_t begin = next;
    for (uint32_t i = next; i < set->count; i++) {
        if (first_byte(set, i) != b) continue;
        cpl_added kept  = set->at[i];
        set->at[i]      = set->at[next];
        set->at[next++] = kept;
    }
    if (next > begin) qsort(set->at + begin, next - begin, sizeof *set->at, by_length);
    return next;
}

static void mark_second(cpl_added_set *set, const cpl_added *added, uint8_t bit)
{
    if (added->length > 1)
        set->second[(unsigned char)set->bytes[added->start + 1]] |= bit;
    else
        for (int c = 0; c < 256; c++) set->second[c] |= bit;
}

void cpl_added_index(cpl_added_set *set, const char *contents)
{
    set->bytes = contents;
    memset(set->first, 0, sizeof set->first);
    memset(set->second, 0, sizeof set->second);
    uint32_t next = 0;
    int groups    = 0;
    set->only     = set->count ? first_byte(set, 0) : -1;
    for (int b = 0; b < 256; b++) {
        set->begin[b] = next;
        next          = group_first_byte(set, next, b);
        if (next == set->begin[b]) continue;
        if (b != set->only) set->only = -1;
        uint8_t bit = set->first[b] = (uint8_t)(1u << (groups++ % 8));
        for (uint32_t i = set->begin[b]; i < next; i++) mark_second(set, set->at + i, bit);
    }
    set->begin[256] = next;
}

static const cpl_added *longest_at(const cpl_added_set *set, const char *text, size_t left)
{
    int b = (unsigned char)text[0];
    for (uint32_t i = set->begin[b]; i < set->begin[b + 1]; i++) {
        const cpl_added *added = set->at + i;
        if (added->length <= left && memcmp(set->bytes + added->start, text, added->length) == 0)
            return added;
    }
    return NULL;
}

/* Returns nonzero if a token may begin at `s`, where at least two bytes are left. */
static inline int may_begin(const cpl_added_set *set, const unsigned char *s)
{
    return set->first[s[0]] & set->second[s[1]];
}

/* Returns the first position from `at` on at which a token may begin, or `length`. */
static size_t next_candidate(const cpl_added_set *set, const unsigned char *s, size_t length,
                             size_t at)
{
    if (set->only >= 0) {
        const unsigned char *found = memchr(s + at, set->only, length - at);
        return found ? (size_t)(found - s) : length;
    }
    for (; length - at > 8; at += 8) {
        int some = 0;
        for (size_t i = 0; i < 8; i++) some |= may_begin(set, s + at + i);
        if (some) break;
    }
    while (length - at > 1 && !may_begin(set, s + at)) at++;
    return length - at > 1 || set->first[s[at]] ? at : length;
}

size_t cpl_added_find(const cpl_added_set *set, const char *text, size_t length, size_t from,
                      const cpl_added **hit)
{
    const unsigned char *s = (const unsigned char *)text;
    *hit                   = NULL;
    if (set->count == 0) return length;
    for (size_t at = from; at < length; at++) {
        at = next_candidate(set, s, length, at);
        if (at == length) break;
        *hit = longest_at(set, text + at, length - at);
        if (*hit) return at;
    }
    return length;
}
