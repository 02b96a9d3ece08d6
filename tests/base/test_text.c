/* test_text.c - nearest names, growing texts, repair of UTF-8 by the rules of WHATWG. */
#include "base/text.h"

#include "check.h"

TEST(nearest_names)
{
    const char *names[] = {"train.lr", "train.steps", "erc.alpha", "erc.weight"};
    assert_string_equal(cpl_text_nearest("train.lrr", names, 4), "train.lr");
    assert_string_equal(cpl_text_nearest("erc.aplha", names, 4), "erc.alpha");
    assert_null(cpl_text_nearest("something.else.entirely", names, 4));
    const char *const sections[] = {"z", "erc", "log"};
    assert_null(cpl_text_nearest("a", sections, 3)); /* no letter of it would be kept */
    assert_null(cpl_text_nearest("at", sections, 3));
    assert_null(cpl_text_nearest("arb", sections, 3));
    assert_string_equal(cpl_text_nearest("ecr", sections, 3), "erc");
    assert_string_equal(cpl_text_nearest("logs", sections, 3), "log");
}

TEST(grows)
{
    cpl_text text = {0};
    for (int i = 0; i < 1000; i++) cpl_text_printf(&text, "%d,", i);
    cpl_text_char(&text, '\0');
    assert_ok(cpl_text_status(&text));
    assert_int_equal(text.length, 10 * 2 + 90 * 3 + 900 * 4 + 1);
    assert_memory_equal(text.bytes, "0,1,2,", 6);
    cpl_text_free(&text);
}

TEST(repairs)
{
    struct {
        const char *in, *out;
        int64_t count;
    } cases[] = {
        {"plain \xC3\xA9", "plain \xC3\xA9", 0},
        {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD", 2},                 /* overlong */
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 3}, /* surrogate */
        {"\xF0\x9F\x98", "\xEF\xBF\xBD", 1},                         /* cut short: one */
        {"a\xE2\x82z", "a\xEF\xBF\xBDz", 1},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cpl_text out = {0};
        assert_int_equal(cpl_utf8_repair(&out, cases[i].in, strlen(cases[i].in)), cases[i].count);
        assert_string_equal(out.bytes, cases[i].out);
        cpl_text_free(&out);
    }
}

TEST(code_points_round_trip)
{
    for (uint32_t c = 0; c <= 0x10FFFF; c += c < 0x900 ? 1 : 97) {
        char bytes[4];
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        int length = cpl_utf8_encode(c, bytes);
        assert_int_equal(cpl_utf8_length((unsigned char *)bytes, (size_t)length), length);
        assert_int_equal(cpl_utf8_decode((unsigned char *)bytes, length), c);
    }
}
