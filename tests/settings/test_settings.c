/* test_settings.c - one setting of every kind: accepted values, refused values with their
 * sentences, and printed values that read back. */
#include "settings/settings.h"

#include <math.h>

#include "base/arena.h"
#include "base/rng.h"
#include "check.h"

typedef struct cpl_demo_settings {
    int64_t steps, maybe_int;
    double lr, maybe_float, free_float;
    int flag, word;
    char *text, *maybe_text;
    cpl_strings list;
    cpl_weight_list pairs;
} cpl_demo_settings;

static const cpl_setting demo_list[] = {
    CPL_SETTING_ROW(demo, steps, steps, INT, "10", 1, 1e15, "steps", "Steps.") CPL_SETTING_ROW(
        demo, maybe_int, maybe_int, INT, "unset", 0, 100, "",
        "A number.") CPL_SETTING_ROW(demo, lr, lr, FLOAT, "4e-4", 0, 100, "", "A rate.")
        CPL_SETTING_ROW(demo, maybe_float, maybe_float, FLOAT, "unset", 0, INFINITY, "",
                        "A number.") CPL_SETTING_ROW(demo, free_float, free_float, FLOAT, "0",
                                                     -INFINITY, INFINITY, "", "Any.")
            CPL_SETTING_ROW(demo, flag, flag, BOOL, "true", 0, 1, "", "A switch.") CPL_SETTING_ROW(
                demo, word, word, CHOICE, "mean", 0, 0, "mean|sum|over_k", "A word.")
                CPL_SETTING_ROW(demo, text, text, STRING, "text", 0, 0, "", "A text.")
                    CPL_SETTING_ROW(demo, maybe_text, maybe_text, STRING, "unset", 0, 0, "path",
                                    "A path.") CPL_SETTING_ROW(demo, list, list, STRINGS, "", 0, 0,
                                                               "paths", "Paths.")
                        CPL_SETTING_ROW(demo, pairs, pairs, WEIGHTS, "{}", 0, 1e6, "", "Weights.")};
static const cpl_section sections[] = {CPL_SECTION(demo, "settings of this test")};

static cpl_demo_settings demo;

static int set_up(void **state)
{
    (void)state;
    return cpl_settings_init(&demo, sections, 1) != CPL_OK;
}

static int tear_down(void **state)
{
    (void)state;
    cpl_settings_free(&demo, sections, 1);
    return 0;
}
TESTS_DO(before_each, set_up);
TESTS_DO(after_each, tear_down);

static cpl_status set(const char *assignment)
{
    return cpl_settings_set(&demo, sections, 1, assignment, NULL);
}

TEST(defaults)
{
    assert_int_equal(demo.steps, 10);
    assert_int_equal(demo.maybe_int, CPL_UNSET);
    assert_true(demo.lr == 4e-4);
    assert_true(isnan(demo.maybe_float));
    assert_true(demo.flag);
    assert_int_equal(demo.word, 0);
    assert_string_equal(demo.text, "text");
    assert_null(demo.maybe_text);
    assert_int_equal(demo.list.count, 0);
    assert_int_equal(demo.pairs.count, 0);
}

TEST(whole_numbers)
{
    struct {
        const char *text;
        int64_t value;
    } good[] = {{"7", 7},
                {"+7", 7},
                {"1e6", 1000000},
                {"1.5e3", 1500},
                {"2.0", 2},
                {"007", 7},
                {"1000000000000000", 1000000000000000}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(cpl_setting_parse(&demo_list[0], &demo.steps, good[i].text));
        assert_int_equal(demo.steps, good[i].value);
    }
    const char *bad[] = {
        "",    "1.5", "1e-1", "1_000", "0x10",   "1e", "e3",   "1e400",
        ".",   "1 ",  " 1",   "1,000", "0",      "-3", "1e16", "99999999999999999999",
        "nan", "inf", "true", "\"7\"", "7 steps"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(CPL_ERR_INPUT, "a whole number of steps from 1 to 1e15",
                     cpl_setting_parse(&demo_list[0], &demo.steps, bad[i]));
    assert_int_equal(demo.steps, 1000000000000000); /* the last good one stands */
}

TEST(numbers)
{
    assert_ok(set("demo.lr=4e-4"));
    assert_true(demo.lr == 4e-4);
    assert_ok(set("demo.lr=.5"));
    assert_true(demo.lr == 0.5);
    assert_fails(CPL_ERR_USAGE, "demo.lr is 200, but must be a number from 0 to 100",
                 set("demo.lr=200"));
    assert_fails(CPL_ERR_USAGE, "of at least 0", set("demo.maybe_float=-1e-300"));
    const char *bad[] = {"demo.lr=nan",   "demo.lr=inf",   "demo.lr=0x1p3", "demo.lr=1e999",
                         "demo.lr=unset", "demo.lr=1.2.3", "demo.lr="};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(CPL_ERR_USAGE, "must be a number", set(bad[i]));
}

TEST(unset_where_allowed)
{
    const char *words[] = {"unset", "null", "~"};
    for (int i = 0; i < 3; i++) {
        char line[64];
        assert_ok(set("demo.maybe_int=5"));
        assert_ok(set("demo.maybe_text=a"));
        snprintf(line, sizeof line, "demo.maybe_int=%s", words[i]);
        assert_ok(set(line));
        snprintf(line, sizeof line, "demo.maybe_text=%s", words[i]);
        assert_ok(set(line));
        assert_int_equal(demo.maybe_int, CPL_UNSET);
        assert_null(demo.maybe_text);
        snprintf(line, sizeof line, "demo.text=%s", words[i]);
        assert_fails(CPL_ERR_USAGE, "demo.text", set(line));
    }
    assert_ok(set("demo.maybe_text=\"unset\""));
    assert_string_equal(demo.maybe_text, "unset");
}

TEST(words)
{
    assert_ok(set("demo.word=over_k"));
    assert_int_equal(demo.word, 2);
    assert_fails(CPL_ERR_USAGE, "demo.word is me, but must be mean, sum or over_k",
                 set("demo.word=me"));
    assert_fails(CPL_ERR_USAGE, "demo.word is empty", set("demo.word="));
    assert_ok(set("demo.flag=false"));
    assert_false(demo.flag);
    assert_fails(CPL_ERR_USAGE, "true or false", set("demo.flag=1"));
}

TEST(texts)
{
    assert_ok(set("demo.text=\"a \\\"b\\\" \\u00e9\\x41\""));
    assert_string_equal(demo.text, "a \"b\" \xC3\xA9\x41");
    assert_ok(set("demo.text='it''s'"));
    assert_string_equal(demo.text, "it's");
    assert_ok(set("demo.text=<|endoftext|>"));
    assert_string_equal(demo.text, "<|endoftext|>");
    assert_fails(CPL_ERR_USAGE, "not closed", set("demo.text=\"open"));
    assert_fails(CPL_ERR_USAGE, "follows a closing quote", set("demo.text=\"a\"b"));
    assert_fails(CPL_ERR_USAGE, "backslash", set("demo.text=\"\\q\""));
    assert_fails(CPL_ERR_USAGE, "backslash", set("demo.text=\"\\x00\""));
    assert_fails(CPL_ERR_USAGE, "UTF-8", set("demo.text=\xFF"));
}

TEST(lists)
{
    const char *same[] = {"demo.list=a b, c", "demo.list=[a b,c]", "demo.list=[\"a b\", 'c',]",
                          "demo.list= [ a b , c ] "};
    for (int i = 0; i < 4; i++) {
        assert_ok(set("demo.list="));
        assert_int_equal(demo.list.count, 0);
        assert_ok(set(same[i]));
        assert_int_equal(demo.list.count, 2);
        assert_string_equal(demo.list.at[0], "a b");
        assert_string_equal(demo.list.at[1], "c");
    }
    assert_ok(set("demo.list=[ab]*.txt"));
    assert_string_equal(demo.list.at[0], "[ab]*.txt");
    assert_fails(CPL_ERR_USAGE, "empty", set("demo.list=a,,b"));
    assert_fails(CPL_ERR_USAGE, "empty", set("demo.list=[,]"));
    assert_fails(CPL_ERR_USAGE, "bracket", set("demo.list=[a] b]"));
    assert_string_equal(demo.list.at[0], "[ab]*.txt");
}

TEST(pairs)
{
    assert_ok(set("demo.pairs={wiki: 2, \"a: b\": 0.5,}"));
    assert_int_equal(demo.pairs.count, 2);
    assert_string_equal(demo.pairs.name[1], "a: b");
    assert_true(demo.pairs.weight[0] == 2 && demo.pairs.weight[1] == 0.5);
    assert_fails(CPL_ERR_USAGE, "twice", set("demo.pairs={a: 1, a: 2}"));
    assert_fails(CPL_ERR_USAGE, "no number", set("demo.pairs={a}"));
    assert_fails(CPL_ERR_USAGE, "each number from 0 to 1e6", set("demo.pairs={a: -1}"));
    assert_fails(CPL_ERR_USAGE, "empty", set("demo.pairs={a: }"));
    assert_fails(CPL_ERR_USAGE, "each number", set("demo.pairs={\"\": \"\"}"));
    assert_int_equal(demo.pairs.count, 2);
}

TEST(unknown_names)
{
    assert_fails(CPL_ERR_USAGE, "there is no setting demo.stesp; did you mean demo.steps?",
                 set("demo.stesp=1"));
    assert_fails(CPL_ERR_USAGE, "there is no setting lr; did you mean demo.lr?", set("lr=1"));
    assert_fails(CPL_ERR_USAGE, "did you mean demo.word?", set("erc.word=sum"));
    assert_fails(CPL_ERR_USAGE, "there is no setting entirely.different",
                 set("entirely.different=1"));
    assert_null(strstr(cpl_last_error(), "did you mean"));
    assert_fails(CPL_ERR_USAGE, "SECTION.NAME=VALUE", set("demo.lr"));
    assert_fails(CPL_ERR_USAGE, "SECTION.NAME=VALUE", set("=3"));
}

TEST(given_is_marked)
{
    bool given[sizeof demo_list / sizeof *demo_list] = {false};
    assert_ok(cpl_settings_set(&demo, sections, 1, "demo.lr=1", given));
    assert_int_equal(cpl_settings_set(&demo, sections, 1, "demo.steps=0", given), CPL_ERR_USAGE);
    for (size_t i = 0; i < sizeof given; i++)
        assert_int_equal(given[i],
                         &demo_list[i] == cpl_settings_find(&demo, sections, 1, "demo.lr", NULL));
}

/* Returns any finite double: its 64 bits are random. */
static double random_double(const cpl_rng_key *key, uint64_t index)
{
    uint64_t bits = (uint64_t)cpl_rng_u32(key, 2 * index) << 32 | cpl_rng_u32(key, 2 * index + 1);
    double x;
    memcpy(&x, &bits, sizeof x);
    return isfinite(x) ? x : 0.1;
}

TEST(printed_numbers_read_back)
{
    cpl_rng_key key = {.seed = 1, .stream = CPL_STREAM_TEST};
    cpl_text text   = {0};
    for (uint64_t i = 0; i < 20000; i++) {
        double x = random_double(&key, i), y = 0;
        cpl_text_clear(&text);
        cpl_setting_print(&text, &demo_list[4], &x);
        assert_ok(cpl_setting_parse(&demo_list[4], &y, text.bytes));
        assert_true(x == y);
    }
    double one_tenth = 0.1, small = 4e-4, tiny = 1e-8, large = 1e300;
    cpl_text_clear(&text);
    cpl_setting_print(&text, &demo_list[4], &one_tenth);
    cpl_text_char(&text, ' ');
    cpl_setting_print(&text, &demo_list[4], &small);
    cpl_text_char(&text, ' ');
    cpl_setting_print(&text, &demo_list[4], &tiny);
    cpl_text_char(&text, ' ');
    cpl_setting_print(&text, &demo_list[4], &large);
    assert_string_equal(text.bytes, "0.1 0.0004 1.0e-08 1.0e+300");
    cpl_text_free(&text);
}

TEST(printed_texts_read_back)
{
    cpl_rng_key key = {.seed = 2, .stream = CPL_STREAM_TEST};
    cpl_text text = {0}, word = {0};
    char *back = NULL;
    for (uint64_t i = 0; i < 4000; i++) {
        cpl_text_clear(&word);
        cpl_text_append(&word, "", 0);
        for (uint64_t k = 0; k < cpl_rng_u32(&key, 100 * i) % 12; k++) {
            char bytes[4];
            uint32_t c = cpl_rng_u32(&key, 100 * i + k + 1), range = c % 4;
            c = c / 4 % (range == 0 ? 0x80 : range == 1 ? 0x100 : range == 2 ? 0x3000 : 0x110000);
            if (c == 0 || (c >= 0xD800 && c < 0xE000)) c = '"';
            cpl_text_append(&word, bytes, (size_t)cpl_utf8_encode(c, bytes));
        }
        cpl_text_clear(&text);
        cpl_setting_print(&text, &demo_list[7], &word.bytes);
        assert_ok(cpl_setting_parse(&demo_list[7], &back, text.bytes));
        assert_string_equal(word.bytes, back);
    }
    cpl_free(back);
    cpl_text_free(&text);
    cpl_text_free(&word);
}

/* Every allocation fails in turn: the old values stay, and no memory leaks. */
TEST(no_memory)
{
    const char *tries[] = {"demo.text=\"abc\"", "demo.list=[a, b, c, d, e]",
                           "demo.pairs={a: 1, b: 2, c: 3}", "demo.lr=1000"};
    assert_ok(set("demo.list=old"));
    for (int t = 0; t < 4; t++) {
        cpl_status status = CPL_ERR_MEMORY;
        for (int n = 1; status == CPL_ERR_MEMORY; n++) {
            cpl_alloc_fail_at(n);
            status = set(tries[t]);
            cpl_alloc_fail_at(0);
            if (t < 2 && status == CPL_ERR_MEMORY) assert_string_equal(demo.list.at[0], "old");
        }
        assert_int_equal(status, t == 3 ? CPL_ERR_USAGE : CPL_OK);
    }
    cpl_demo_settings fresh;
    cpl_status status = CPL_ERR_MEMORY;
    for (int n = 1; status == CPL_ERR_MEMORY; n++) {
        cpl_alloc_fail_at(n);
        status = cpl_settings_init(&fresh, sections, 1);
        cpl_alloc_fail_at(0);
    }
    assert_ok(status);
    cpl_settings_free(&fresh, sections, 1);
}
