/* test_words.c - strings as Python has them (docs/tasks.md, "Strings"), and spans. */
#include "eval/grade/words.h"

#include "eval/answers.h"
#include "eval/grade/grading.h"

TEST(spans_say_where_things_are)
{
    cpl_span s = cpl_span_of("one two\ntwo three");
    assert_int_equal(cpl_span_find(s, 0, "two"), 4);
    assert_int_equal(cpl_span_find(s, 5, "two"), 8);
    assert_true(cpl_span_find(s, 9, "two") == CPL_NOWHERE);
    assert_true(cpl_span_find(s, 900, "two") == CPL_NOWHERE);
    assert_int_equal(cpl_span_find_last(s, "two"), 8);
    assert_true(cpl_span_find_last(s, "twos") == CPL_NOWHERE);
    assert_int_equal(cpl_span_find_byte(s, 5, 't'), 8);
    assert_int_equal(cpl_span_find_last_byte(s, 't'), 12);
    assert_int_equal(cpl_span_line_end(s, 2), 7);
    assert_int_equal(cpl_span_line_end(s, 8), 17);
    assert_true(cpl_span_is_at(s, 12, "three") && !cpl_span_is_at(s, 12, "threefold"));
    assert_true(cpl_span_equal(cpl_span_part(s, 4, 7), cpl_span_part(s, 8, 11)));
    assert_false(cpl_span_equal(cpl_span_part(s, 4, 7), cpl_span_part(s, 4, 8)));
    cpl_span empty = {0};
    assert_true(cpl_span_equal(empty, cpl_span_part(s, 3, 3)));
    assert_true(cpl_span_find(empty, 0, "a") == CPL_NOWHERE);
    assert_true(cpl_span_find_byte(empty, 0, 'a') == CPL_NOWHERE);
    assert_true(cpl_span_find_last_byte(empty, 'a') == CPL_NOWHERE);
    assert_true(cpl_span_find_last(empty, "a") == CPL_NOWHERE);
}

static const char *strip(const char *text)
{
    return string_of(cpl_words_strip(cpl_span_of(text)));
}

TEST(white_space_is_unicodes)
{
    assert_string_equal(strip("  a b\n"), "a b");
    assert_string_equal(strip(" \t\n "), "");
    assert_string_equal(strip("\xC2\xA0\xE3\x80\x80 a\xE2\x80\xA8\x1C\xC2\x85"), "a");
    assert_string_equal(strip("\xE2\x80\x8B a"), "\xE2\x80\x8B a"); /* U+200B is no space */
    assert_string_equal(strip("\xA0 a \xE3\x80"), "\xA0 a \xE3\x80");
    assert_string_equal(string_of(cpl_words_lstrip(cpl_span_of(" \n a "))), "a ");
    const uint32_t spaces[] = {9,      13,     28,     32,     0x85,   0xA0,
                               0x1680, 0x2000, 0x200A, 0x2029, 0x202F, 0x205F};
    const uint32_t others[] = {8, 14, 27, 33, 0x84, 0x1FFF, 0x200B, 0x2027, 0x202A, 0x3001, 0xFEFF};
    for (size_t i = 0; i < sizeof spaces / 4; i++) assert_true(cpl_words_is_space(spaces[i]));
    for (size_t i = 0; i < sizeof others / 4; i++) assert_false(cpl_words_is_space(others[i]));
}

TEST(characters_are_counted)
{
    assert_int_equal(cpl_words_count(cpl_span_of("")), 0);
    assert_int_equal(cpl_words_count(cpl_span_of("abc")), 3);
    assert_int_equal(cpl_words_count(cpl_span_of("\xE4\xB8\xAD\xC3\xA9\xF0\x9F\x90\x8E")), 3);
    assert_int_equal(cpl_words_count(cpl_span_of("\xFF\xE4\xB8z\x80")), 4); /* FF, E4 B8, z, 80 */
}

TEST(characters_are_read_both_ways)
{
    cpl_span s              = cpl_span_of("a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x90\x8E\x80z");
    const size_t starts[]   = {0, 1, 3, 6, 10, 11, 12};
    const uint32_t points[] = {'a', 0xE9, 0x4E2D, 0x1F40E, 0xFFFD, 'z'};
    uint32_t point;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(cpl_words_next(&point, s, starts[i]), starts[i + 1] - starts[i]);
        assert_int_equal(point, points[i]);
        assert_int_equal(cpl_words_previous(&point, s, starts[i + 1]), starts[i + 1] - starts[i]);
        assert_int_equal(point, points[i]);
    }
}

static const char *after(void (*change)(cpl_text *, cpl_span), const char *text)
{
    cpl_text out = {0};
    change(&out, cpl_span_of(text));
    const char *string = string_of(cpl_span_text(&out));
    cpl_text_free(&out);
    return string;
}

TEST(cases_are_pythons)
{
    assert_string_equal(after(cpl_words_capitalize, "a woman in a NY shirt"),
                        "A woman in a ny shirt");
    assert_string_equal(after(cpl_words_capitalize, ""), "");
    assert_string_equal(after(cpl_words_capitalize, "éCOLE"), "École");
    assert_string_equal(after(cpl_words_uncapitalize, "The NY"), "the NY");
    assert_string_equal(after(cpl_words_uncapitalize, "Éa"), "éa");
    assert_string_equal(after(cpl_words_uncapitalize, ""), "");
    assert_string_equal(after(cpl_words_lower, "ÀÇÞ ŁŻ ΑΓΩ ЖЁ ẞ 中文 1Z"),
                        "àçþ łż αγω жё ß 中文 1z");
    assert_string_equal(after(cpl_words_lower, "ΟΔΟΣ ΟΔΟΣ."), "οδος οδος.");
    assert_string_equal(after(cpl_words_lower, "Σ ΣΑ ΑΣ’Α"), "σ σα ασ’α");
    assert_string_equal(after(cpl_words_lower, "İ"), "i\xCC\x87");
    assert_string_equal(after(cpl_words_lower, "A\xFF\xC3"), "a\xFF\xC3");
}

TEST(punctuation_is_ascii)
{
    assert_string_equal(
        after(cpl_words_unpunctuated, "0!\"#$%&'()*+,-./9:;<=>?@A[\\]^_`z{|}~ \x7F\n‘é’"),
        "09Az \x7F\n‘é’");
}

TEST(words_lie_between_white_space)
{
    const cpl_span text = cpl_span_of(" one\xC2\xA0two,\n\x1C-3 ");
    size_t at           = 0;
    assert_true(cpl_span_equal(cpl_words_word(text, &at), cpl_span_of("one")));
    assert_true(cpl_span_equal(cpl_words_word(text, &at), cpl_span_of("two,")));
    assert_true(cpl_span_equal(cpl_words_word(text, &at), cpl_span_of("-3")));
    assert_int_equal(cpl_words_word(text, &at).length, 0);
    assert_int_equal(cpl_words_word((cpl_span){0}, &(size_t){0}).length, 0);
}

TEST(replaced_once_from_the_left)
{
    cpl_text text = {0}, spare = {0};
    cpl_words_set(&text, cpl_span_of("aaaab"));
    cpl_words_replace(&text, "aa", "ab", &spare);
    assert_string_equal(text.bytes, "ababb");
    cpl_words_replace(&text, "ab", "", &spare);
    assert_string_equal(text.bytes, "b");
    cpl_words_replace(&text, "x", "y", &spare);
    assert_string_equal(text.bytes, "b");
    static const cpl_substitution steps[] = {
        {"b", "a(.)b", "[$1$1]"},     /* from the left; the result is longer than the text */
        {"z", "(?s).*", "not there"}, /* the text has no z */
        {"[", NULL, "{"},
        {"", "\\]", "\xC3\xA9$$"},
    };
    cpl_words_set(&text, cpl_span_of("axbxbayb\xFF]"));
    cpl_regex_substitute(&text, steps, sizeof steps / sizeof *steps, &spare);
    assert_string_equal(text.bytes, "{xx\xC3\xA9$xb{yy\xC3\xA9$\xFF\xC3\xA9$");
    cpl_text_clear(&text);
    cpl_regex_substitute(&text, steps, sizeof steps / sizeof *steps, &spare);
    assert_int_equal(text.length, 0);
    assert_false(text.failed || spare.failed);
    cpl_text_free(&text);
    cpl_text_free(&spare);
}
