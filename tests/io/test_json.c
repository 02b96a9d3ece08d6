/* test_json.c - sentences with line and column, typed members, atomic writing. The strict pull
 * reader is checked text by text, and against jansson on damaged texts. */
#include "io/json.h"

#include <stdbool.h>

#include "base/arena.h"
#include "base/rng.h"
#include "check.h"
#include "io/file.h"
#include "io/json_pull.h"

static json_t *parse(const char *text)
{
    json_t *json;
    assert_ok(cpl_json_parse(&json, text, strlen(text), "t.json"));
    return json;
}

TEST(says_where)
{
    json_t *json;
    struct {
        const char *text, *says;
    } cases[] = {
        {"{\"a\": 1,\n \"b\" 2}", "t.json: line 2, column 6: not valid JSON"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"a\": \"\xff\"}", "byte 0xff"},
        {"", "is empty"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"},
        {"{\"a\": 1} x", "end of file expected"},
        {"{\"a\": 1e999}", "overflow"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(CPL_ERR_INPUT, cases[i].says,
                     cpl_json_parse(&json, cases[i].text, strlen(cases[i].text), "t.json"));
    assert_fails(CPL_ERR_INPUT, "t.json: line 7, column 15: not valid JSON",
                 cpl_json_parse_at(&json, "{\"a\" 1}", 7, "t.json", 7, 10));
    assert_fails(CPL_ERR_INPUT, "t.json: line 8, column 6: not valid JSON",
                 cpl_json_parse_at(&json, "{\n \"a\" 1}", 9, "t.json", 7, 10));
    assert_fails(CPL_ERR_IO, "/no/such.json", cpl_json_load(&json, "/no/such.json"));
    char deep[5001];
    memset(deep, '[', 5000);
    assert_fails(CPL_ERR_INPUT, "depth", cpl_json_parse(&json, deep, 5000, "t.json"));
}

TEST(members)
{
    json_t *json = parse("{\"i\": 7, \"r\": 1.5, \"whole\": 4.0, \"t\": true, \"s\": \"x\","
                         "\"o\": {}, \"a\": [], \"null\": null}");
    int64_t i    = 0;
    double f     = 0;
    bool b       = false;
    const char *s;
    json_t *inner;
    assert_ok(cpl_json_int(json, "i", &i, 0, 7, "t"));
    assert_int_equal(i, 7);
    assert_ok(cpl_json_int(json, "whole", &i, 0, 7, "t"));
    assert_int_equal(i, 4);
    assert_fails(CPL_ERR_INPUT, "t: `i` is 7, it must lie between 0 and 6",
                 cpl_json_int(json, "i", &i, 0, 6, "t"));
    assert_fails(CPL_ERR_INPUT, "`r` is a number with a fraction, it must be a whole number",
                 cpl_json_int(json, "r", &i, 0, 7, "t"));
    assert_fails(CPL_ERR_INPUT, "`no` is missing", cpl_json_int(json, "no", &i, 0, 7, "t"));
    assert_fails(CPL_ERR_INPUT, "`null` is null", cpl_json_bool(json, "null", &b, "t"));
    assert_fails(CPL_ERR_INPUT, "`t` is true or false", cpl_json_float(json, "t", &f, 0, 1, "t"));
    assert_fails(CPL_ERR_INPUT, "`s` is a string", cpl_json_object(json, "s", &inner, "t"));
    assert_fails(CPL_ERR_INPUT, "`o` is an object", cpl_json_array(json, "o", &inner, "t"));
    assert_fails(CPL_ERR_INPUT, "`a` is an array", cpl_json_string(json, "a", &s, "t"));
    assert_int_equal(i, 4); /* a failure leaves it unchanged */
    assert_ok(cpl_json_float(json, "r", &f, 0, 2, "t"));
    assert_true(f == 1.5);
    assert_ok(cpl_json_float(json, "i", &f, 0, 9, "t"));
    assert_true(f == 7);
    assert_fails(CPL_ERR_INPUT, "between 2 and 3", cpl_json_float(json, "r", &f, 2, 3, "t"));
    assert_ok(cpl_json_bool(json, "t", &b, "t"));
    assert_true(b);
    assert_ok(cpl_json_string(json, "s", &s, "t"));
    assert_string_equal(s, "x");
    assert_ok(cpl_json_object(json, "o", &inner, "t"));
    assert_ok(cpl_json_array(json, "a", &inner, "t"));
    json_decref(json);
}

TEST(absent_members)
{
    json_t *json = parse("{\"i\": 7, \"null\": null, \"s\": \"x\"}");
    int64_t i;
    double f;
    bool b;
    const char *s;
    assert_ok(cpl_json_int_or(json, "no", &i, 0, 1, -5, "t"));
    assert_int_equal(i, -5);
    assert_ok(cpl_json_int_or(json, "null", &i, 0, 1, 9, "t"));
    assert_int_equal(i, 9);
    assert_ok(cpl_json_int_or(json, "i", &i, 0, 8, 9, "t"));
    assert_int_equal(i, 7);
    assert_fails(CPL_ERR_INPUT, "`i` is 7", cpl_json_int_or(json, "i", &i, 0, 6, 9, "t"));
    assert_ok(cpl_json_float_or(json, "no", &f, 0, 1, 0.25, "t"));
    assert_true(f == 0.25);
    assert_ok(cpl_json_bool_or(json, "null", &b, true, "t"));
    assert_true(b);
    assert_ok(cpl_json_string_or(json, "no", &s, NULL, "t"));
    assert_null(s);
    assert_fails(CPL_ERR_INPUT, "`s` is a string", cpl_json_bool_or(json, "s", &b, true, "t"));
    json_decref(json);
}

TEST(a_huge_whole_number_does_not_stop_the_reading)
{
    json_t *json = parse("{\"model_max_length\": 1000000000000000019884624838656, \"n\": 3}");
    int64_t n;
    double length;
    assert_ok(cpl_json_int(json, "n", &n, 0, 10, "t"));
    assert_int_equal(n, 3);
    assert_ok(cpl_json_float(json, "model_max_length", &length, 0, 1e40, "t"));
    assert_true(length == 1e30);
    assert_fails(CPL_ERR_INPUT, "whole number",
                 cpl_json_int(json, "model_max_length", &n, 0, INT64_MAX, "t"));
    json_decref(json);
}

TEST(writes_atomically)
{
    char *path    = cpl_path_join(scratch_folder(), "a.json");
    json_t *json  = parse("{\"b\": [1, 0.1, \"\xC3\xA9\"], \"a\": null}"), *again;
    cpl_text text = {0};
    assert_ok(cpl_json_write_atomic(path, json, JSON_COMPACT | JSON_SORT_KEYS));
    assert_ok(cpl_file_read(&text, path, 1000));
    assert_string_equal(text.bytes, "{\"a\":null,\"b\":[1,0.10000000000000001,\"\xC3\xA9\"]}\n");
    assert_ok(cpl_json_load(&again, path));
    assert_true(json_equal(json, again));
    assert_fails(CPL_ERR_IO, "cannot be written", cpl_json_write_atomic("/no/such/x", json, 0));
    json_decref(json), json_decref(again);
    cpl_text_free(&text);
    cpl_free(path);
}

/* Returns whether the pull reader finds `text` to be exactly one value. */
static bool pull_accepts(const char *text, size_t length)
{
    char *copy = malloc(length); /* exact size: the sanitizer sees a read beyond it */
    assert_true(copy || !length);
    if (length) memcpy(copy, text, length);
    bool good       = cpl_utf8_is(copy, length);
    cpl_json_pull c = cpl_json_pull_start(copy, length);
    good            = good && cpl_json_pull_skip(&c) && cpl_json_pull_end(&c);
    assert_true(good || c.problem || !cpl_utf8_is(text, length));
    free(copy);
    return good;
}

/* The linker puts these functions in malloc's place in the whole library (tests/CMakeLists.txt). */
static bool no_memory;
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return no_memory ? NULL : __real_malloc(bytes);
}

/* This test is the last: the process has one reserve. */
TEST(what_malloc_refuses_comes_from_the_reserve)
{
    json_malloc_t malloc_was;
    json_free_t free_was;
    json_get_alloc_funcs(&malloc_was, &free_was);
    cpl_json_watch_memory();
    no_memory    = true;
    json_t *json = parse("{\"a\": [1, 2, {\"b\": \"some words\"}], \"c\": 1.5}");
    char *text   = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
    no_memory    = false;
    assert_non_null(text);
    assert_string_equal(text, "{\"a\":[1,2,{\"b\":\"some words\"}],\"c\":1.5}");
    cpl_json_text_free(text);
    json_decref(json);
    assert_ok(cpl_json_check("t.json"));

    no_memory      = true;
    json_t *spent  = json_array();
    int64_t served = 0;
    while (served < CPL_JSON_RESERVE && json_array_append_new(spent, json_integer(1)) == 0)
        served++;
    json_decref(spent);
    no_memory = false;
    assert_in_range(served, 1000, CPL_JSON_RESERVE / 16);
    assert_fails(CPL_ERR_MEMORY, "t.json: out of memory", cpl_json_check("t.json"));
    json_set_alloc_funcs(malloc_was, free_was);
}

TEST(pull_knows_json)
{
    const char *good[] =
        LIST("{}", " [] \n", "\t{\"a\":[1,-2.5e+3,true,false,null,\"x\"]}\r", "0", "-0", "1e5",
             "[[[]],{\"a\":{}},[]]", "\"\\u00e9\\n\\\\\\/\"", "\"\\ud83d\\ude00\"", "[0.5,1E-2]");
    const char *bad[] = LIST(
        "", " ", "{", "[", "[1,]", "{\"a\":1,}", "{,}", "[,1]", "01", "-", "1.", ".5", "+1", "1e",
        "NaN", "nul", "truex", "\"", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\ud800\\u0041\"",
        "\"\\udc00\"", "\"\\u0000\"", "\"\n\"", "\"\x1f\"", "\v1", "{1:2}", "{\"a\"}", "{\"a\":}",
        "[1 2]", "{} {}", "]", "[}", "\xEF\xBB\xBF{}", "'a'", "// x\n1", "\"\xFF\"", "\"a\\");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!pull_accepts(good[i], strlen(good[i]))) fail_msg("refuses %s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (pull_accepts(bad[i], strlen(bad[i]))) fail_msg("accepts %s", bad[i]);
    assert_false(pull_accepts("{}\0", 3));
}

TEST(pull_bounds_the_depth)
{
    char text[2 * (CPL_JSON_PULL_DEPTH + 1) + 1];
    for (int depth = CPL_JSON_PULL_DEPTH; depth <= CPL_JSON_PULL_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        assert_int_equal(pull_accepts(text, 2 * (size_t)depth), depth == CPL_JSON_PULL_DEPTH);
    }
}

TEST(pull_decodes_strings)
{
    char text[] = "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00E9\\u20ac\\uD83D\\uDE00z\"";
    char *out;
    cpl_json_pull c = cpl_json_pull_start(text, strlen(text));
    assert_true(cpl_json_pull_string(&c, &out) && cpl_json_pull_end(&c));
    assert_string_equal(out, "a\"\\/\b\f\n\r\tA\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z");
}

TEST(pull_integers_are_plain)
{
    const char *bad[] = {"-1",    "-0", "2.0", "2e0", "2E0", "18446744073709551616",
                         "\"0\"", "01", "00",  "",    "x",   "99999999999999999999999999"};
    uint64_t out;
    char text[40];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        strcpy(text, bad[i]);
        cpl_json_pull c = cpl_json_pull_start(text, strlen(text));
        assert_false(cpl_json_pull_u64(&c, &out));
        assert_non_null(c.problem);
    }
    strcpy(text, " 18446744073709551615");
    cpl_json_pull c = cpl_json_pull_start(text, strlen(text));
    assert_true(cpl_json_pull_u64(&c, &out) && out == UINT64_MAX);
    strcpy(text, "0,");
    c = cpl_json_pull_start(text, 2);
    assert_true(cpl_json_pull_u64(&c, &out) && out == 0);
}

/* On damaged texts the two readers must agree on what JSON is. Exceptions are texts that only ours
 * refuses and texts that only jansson refuses (numbers out of range, which the mutations here
 * cannot make). */
TEST(pull_agrees_with_jansson)
{
    const char *seed  = "{\"a\":[1,-2.5e3,{\"b\":null}],\"c\":\"x\\u00e9\\n\",\"d\":[true,false]}";
    const char pool[] = "{}[]:,\"\\ 0159.eE+-ntfux\n";
    cpl_rng_key key   = {.seed = 11, .stream = CPL_STREAM_TEST};
    size_t length     = strlen(seed);
    int agreed[2]     = {0, 0};
    for (uint64_t round = 0; round < 20000; round++) {
        char text[128];
        memcpy(text, seed, length + 1);
        for (uint64_t k = 0; k < 1 + round % 3; k++) {
            uint32_t r       = cpl_rng_u32(&key, 4 * round + k);
            text[r % length] = pool[(r >> 16) % (sizeof pool - 1)];
        }
        json_t *json = json_loadb(text, length, JSON_DECODE_ANY, NULL);
        bool got     = pull_accepts(text, length);
        if (got != (json != NULL)) fail_msg("jansson %s: %s", json ? "accepts" : "refuses", text);
        agreed[got]++;
        json_decref(json);
    }
    assert_true(agreed[0] > 1000 && agreed[1] > 1000);
}
