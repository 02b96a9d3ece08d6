/* test_split.c - cutting into words, against a literal form of the two regular expressions:
 * alternatives in order, greedy repetitions, with backtracking; classes read from
 * unicode-classes.tsv. Added tokens, against a search that tries every token at every place. */
#include "check.h"

#include "base/rng.h"
#include "base/text.h"
#include "tokenizer/internal.h"
#include "tokenizer/unicode.h"

enum { LONGEST = 60, TEXTS = 20000, NONE = -1 };

static uint8_t *class_of; /* 'L', 'N', 'S' or 'O' of every code point */

static int read_classes(void **state)
{
    (void)state;
    char line[200], name;
    unsigned first, last;
    FILE *file = fopen("src/tokenizer/unicode-classes.tsv", "r");
    class_of   = malloc(0x110000);
    if (!file || !class_of) return -1;
    memset(class_of, 'O', 0x110000);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%x %x %c", &first, &last, &name) == 3)
            memset(class_of + first, name, last - first + 1);
    fclose(file);
    return 0;
}

static int free_classes(void **state)
{
    (void)state;
    free(class_of);
    return 0;
}

/* One element of an alternative: a set, repeated least to most times. */
typedef struct atom {
    /* '=': the point c
     * 'i': c in upper or lower case
     * 'L' 'N' 'S' 'O': a class
     * 'n': a line end
     * 'x': not a line end, letter or number
     * '!': matches nothing, but only before white space or the end */
    char set;
    uint32_t c;
    int least, most;
} atom;

enum { MANY = 1000, ATOMS = 5 };
typedef struct alternative {
    atom atoms[ATOMS];
} alternative;

static const alternative gpt2[] = {
    {{{'=', '\'', 1, 1}, {'=', 's', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'=', 't', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'=', 'r', 1, 1}, {'=', 'e', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'=', 'v', 1, 1}, {'=', 'e', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'=', 'm', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'=', 'l', 1, 1}, {'=', 'l', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'=', 'd', 1, 1}}},
    {{{'=', ' ', 0, 1}, {'L', 0, 1, MANY}}},
    {{{'=', ' ', 0, 1}, {'N', 0, 1, MANY}}},
    {{{'=', ' ', 0, 1}, {'O', 0, 1, MANY}}},
    {{{'S', 0, 1, MANY}, {'!', 0, 1, 1}}},
    {{{'S', 0, 1, MANY}}},
};

static const alternative dolma2[] = {
    {{{'=', '\'', 1, 1}, {'i', 's', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'i', 't', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'i', 'r', 1, 1}, {'i', 'e', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'i', 'v', 1, 1}, {'i', 'e', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'i', 'm', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'i', 'l', 1, 1}, {'i', 'l', 1, 1}}},
    {{{'=', '\'', 1, 1}, {'i', 'd', 1, 1}}},
    {{{'x', 0, 0, 1}, {'L', 0, 1, MANY}}},
    {{{'N', 0, 1, 3}}},
    {{{'=', ' ', 0, 1}, {'O', 0, 1, MANY}, {'n', 0, 0, MANY}}},
    {{{'S', 0, 0, MANY}, {'n', 0, 1, MANY}}},
    {{{'S', 0, 1, MANY}, {'!', 0, 1, 1}}},
    {{{'S', 0, 1, MANY}}},
};

static bool is_in(const atom *a, uint32_t c)
{
    bool line_end = c == '\r' || c == '\n';
    switch (a->set) {
    case '=':
        return c == a->c;
    case 'i':
        return c == a->c || c == a->c - 32 || (a->c == 's' && c == 0x17F);
    case 'n':
        return line_end;
    case 'x':
        return !line_end && class_of[c] != 'L' && class_of[c] != 'N';
    default:
        return class_of[c] == a->set;
    }
}

/* Returns the end of the match of the atoms from `a` on at place i, or NONE without a match. */
static int match(const atom *a, int atoms, const uint32_t *s, int n, int i)
{
    if (atoms == 0 || a->set == 0) return i;
    if (a->set == '!')
        return i == n || class_of[s[i]] == 'S' ? match(a + 1, atoms - 1, s, n, i) : NONE;
    int most = 0;
    while (most < a->most && i + most < n && is_in(a, s[i + most])) most++;
    for (int k = most; k >= a->least; k--) {
        int end = match(a + 1, atoms - 1, s, n, i + k);
        if (end != NONE) return end;
    }
    return NONE;
}

static int first_match(const alternative *alternatives, size_t count, const uint32_t *s, int n,
                       int i)
{
    for (size_t a = 0; a < count; a++) {
        int end = match(alternatives[a].atoms, ATOMS, s, n, i);
        if (end != NONE) return end;
    }
    return NONE;
}

/* Returns a code point: mostly one that the patterns distinguish, else one of any class. */
static uint32_t draw_code_point(const cpl_rng_key *key, uint64_t *draw)
{
    static const uint32_t often[] = {' ',  ' ',  '\n', '\r', '\t',   '\'',    's',     't',   'r',
                                     'e',  'v',  'm',  'l',  'd',    'S',     'E',     'L',   'a',
                                     '1',  '2',  '.',  '!',  0xA0,   0x3000,  0x17F,   0xE9,  0x301,
                                     0xB2, 0x85, 0x0,  0x7F, 0x4E2D, 0x1F600, 0x1D7D8, 0x2028};
    uint32_t r                    = cpl_rng_u32(key, (*draw)++);
    if (r % 8) return often[r / 8 % (sizeof often / sizeof *often)];
    uint32_t point = cpl_rng_u32(key, (*draw)++) % (r & 64 ? 0x110000 : 0x3000);
    return point >= 0xD800 && point < 0xE000 ? 'x' : point;
}

static void check_kind(cpl_split_kind kind, const alternative *alternatives, size_t count)
{
    cpl_rng_key key = {.seed = 11, .layer = (uint32_t)kind, .stream = CPL_STREAM_TEST};
    uint64_t draw   = 0;
    for (int t = 0; t < TEXTS; t++) {
        uint32_t points[LONGEST];
        char text[4 * LONGEST];
        size_t starts[LONGEST + 1], length = 0, ends[LONGEST], at = 0, got = 0;
        int n = (int)(cpl_rng_u32(&key, draw++) % LONGEST);
        for (int i = 0; i < n; i++) {
            bool again = i && cpl_rng_u32(&key, draw++) % 3 == 0;
            points[i]  = again ? points[i - 1] : draw_code_point(&key, &draw);
            starts[i]  = length;
            length += (size_t)cpl_utf8_encode(points[i], text + length);
        }
        starts[n]   = length;
        char *exact = malloc(length + 1); /* exact, so that reading beyond its end is seen */
        assert_non_null(exact);
        char *copy = memcpy(exact + 1, text, length);
        while (at < length) got += cpl_split(kind, copy, length, &at, ends + got, 1 + got % 5);
        size_t words = 0;
        for (int i = 0; i < n; words++) {
            i = first_match(alternatives, count, points, n, i);
            assert_int_not_equal(i, NONE);
            assert_true(words < got);
            assert_int_equal(ends[words], starts[i]);
        }
        assert_int_equal(words, got);
        free(exact);
    }
}

TEST(gpt2_words_are_those_of_the_pattern)
{
    check_kind(CPL_SPLIT_GPT2, gpt2, sizeof gpt2 / sizeof *gpt2);
}

TEST(dolma2_words_are_those_of_the_pattern)
{
    check_kind(CPL_SPLIT_DOLMA2, dolma2, sizeof dolma2 / sizeof *dolma2);
}

TEST(table_has_the_classes_of_the_list)
{
    for (uint32_t c = 0; c < 0x110000; c++)
        assert_int_equal("OLNS"[cpl_unicode_traits(c) & CPL_CLASS_MASK], class_of[c]);
}

TEST(only_the_two_patterns_are_known)
{
    cpl_split_kind kind;
    assert_true(cpl_split_known("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                                "|\\s+(?!\\S)|\\s+",
                                &kind));
    assert_int_equal(kind, CPL_SPLIT_GPT2);
    assert_false(cpl_split_known("\\w+|\\W+", &kind));
    assert_false(cpl_split_known("", &kind));
}

/* Returns the longest token at `at`, or the lowest id of equal tokens. */
static const cpl_added *longest_token(const cpl_added_set *set, const char *text, size_t length,
                                      size_t at)
{
    const cpl_added *best = NULL;
    for (uint32_t i = 0; i < set->count; i++) {
        const cpl_added *a = set->at + i;
        if (a->length > length - at || memcmp(set->bytes + a->start, text + at, a->length))
            continue;
        if (!best || a->length > best->length) best = a;
    }
    return best;
}

TEST(added_tokens_are_found_leftmost_and_longest)
{
    cpl_rng_key key = {.seed = 12, .stream = CPL_STREAM_TEST};
    uint64_t draw   = 0;
    for (int t = 0; t < 3000; t++) {
        char contents[64], text[40];
        cpl_added added[12];
        cpl_added_set set = {.at = added, .count = cpl_rng_u32(&key, draw++) % 13};
        uint32_t letters  = 1 + cpl_rng_u32(&key, draw++) % 12;
        for (int i = 0; i < 64; i++)
            contents[i] = (char)('a' + cpl_rng_u32(&key, draw++) % letters);
        for (uint32_t i = 0; i < set.count; i++) {
            uint32_t length = 1 + cpl_rng_u32(&key, draw++) % 5;
            added[i] = (cpl_added){cpl_rng_u32(&key, draw++) % (64 - length), length, (int)i, 0};
        }
        size_t length = cpl_rng_u32(&key, draw++) % sizeof text;
        for (size_t i = 0; i < length; i++)
            text[i] = (char)('a' + cpl_rng_u32(&key, draw++) % (letters + 3));
        cpl_added_index(&set, contents);
        for (size_t at = 0, from = 0; at < length; at++) {
            const cpl_added *hit, *want = at >= from ? longest_token(&set, text, length, at) : NULL;
            if (!want) continue;
            assert_int_equal(cpl_added_find(&set, text, length, from, &hit), at);
            assert_int_equal(hit->length, want->length);
            from = at + hit->length;
        }
    }
}

TESTS_DO(before_all, read_classes);
TESTS_DO(after_all, free_classes);
