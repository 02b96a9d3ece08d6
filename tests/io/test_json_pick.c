/* test_json_pick.c - picking fields against a full JSON library.
 *
 * Oracle: jansson, which builds a tree. It refuses some of what is accepted here (ill-formed UTF-8,
 * half surrogate pairs, numbers too large for it). The comparison leaves these inputs out. */
#include "io/json_pull.h"

#include <jansson.h>

#include "base/rng.h"
#include "check.h"

enum { TEXT, ID, SOURCE, N };

static cpl_json_field fields[N] = {{.path = "text"}, {.path = "id"}, {.path = "meta.source"}};

static const char *pick(const char *json)
{
    size_t where = 0;
    return cpl_json_pick(json, strlen(json), fields, N, &where);
}

static void expect(const char *json, const char *text, const char *id, const char *source)
{
    const char *want[N] = {text, id, source};
    const char *why     = pick(json);
    if (why) fail_msg("%s: %s", json, why);
    for (int i = 0; i < N; i++) {
        if (!want[i]) {
            assert_true(fields[i].kind == CPL_JSON_ABSENT || fields[i].kind == CPL_JSON_OTHER);
            continue;
        }
        assert_int_equal(fields[i].value.length, strlen(want[i]));
        assert_memory_equal(fields[i].value.bytes, want[i], strlen(want[i]));
    }
}

static void refused(const char *json)
{
    if (!pick(json)) fail_msg("accepted: %s", json);
}

TEST(picks)
{
    expect("{}", NULL, NULL, NULL);
    expect(" { \"text\" : \"a\" , \"id\":\t\"b\"} \r\n", "a", "b", NULL);
    expect("{\"x\":[1,[2,{\"text\":\"no\"}],null],\"id\":-1.50e+3,\"text\":\"\"}", "", "-1.50e+3",
           NULL);
    expect("{\"meta\":{\"a\":{},\"source\":\"s\"},\"text\":true}", NULL, NULL, "s");
    expect("{\"meta.source\":\"s\"}", NULL, NULL, "s");
    expect("{\"\\u0074ext\":\"escaped name\"}", "escaped name", NULL, NULL);
    expect("{\"source\":\"no\",\"metb\":{\"source\":\"no\"}}", NULL, NULL, NULL);
}

TEST(last_wins)
{
    expect("{\"text\":\"a\",\"text\":\"b\"}", "b", NULL, NULL);
    expect("{\"text\":\"a\",\"text\":null}", NULL, NULL, NULL);
    expect("{\"meta\":{\"source\":\"s\"},\"meta\":{}}", NULL, NULL, NULL);
    expect("{\"meta\":{\"source\":\"s\"},\"meta\":7}", NULL, NULL, NULL);
    expect("{\"text\":5,\"text\":\"b\"}", "b", NULL, NULL);
}

TEST(escapes)
{
    expect("{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t", NULL, NULL);
    expect("{\"text\":\"\\u00e9\\u20AC\\ud83d\\ude00\"}", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80",
           NULL, NULL);
    assert_null(pick("{\"text\":\"a\\u0000b\"}"));
    assert_int_equal(fields[TEXT].value.length, 3);
    assert_memory_equal(fields[TEXT].value.bytes, "a\0b", 3);
    expect("{\"text\":\"\\ud800x\\udc00\\ud800\\ud800\\udc00\"}",
           "\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD\xF0\x90\x80\x80", NULL, NULL);
    assert_int_equal(fields[TEXT].lone_surrogates, 3);
    expect("{\"text\":\"a\xFF\xE2\x82z\"}", "a\xEF\xBF\xBD\xEF\xBF\xBDz", NULL, NULL);
    assert_int_equal(fields[TEXT].repaired, 2);
}

TEST(refusals)
{
    static const char *const bad[] =
        LIST("", " ", "[]", "7", "\"text\"", "{", "}", "{]", "{\"text\"}", "{\"text\":}",
             "{\"text\":1,}", "{\"text\":\"a}", "{\"text\":\"a\\", "{\"text\":\"\\x\"}",
             "{\"text\":\"\\u12\"}", "{\"text\":\"\\u12g4\"}", "{\"a\":01}", "{\"a\":1.}",
             "{\"a\":.5}", "{\"a\":1e}", "{\"a\":-}", "{\"a\":+1}", "{\"a\":NaN}", "{\"a\":tru}",
             "{\"a\":[1,]}", "{\"a\":[1 2]}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "{a:1}", "{} {}",
             "{}x", "{\"a\":\"\n\"}", "{\"a\":\xFF}", "{'a':1}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refused(bad[i]);
}

TEST(depth)
{
    cpl_text json = {0};
    for (int deep = CPL_JSON_DEPTH - 1; deep <= CPL_JSON_DEPTH; deep++) {
        cpl_text_clear(&json);
        cpl_text_printf(&json, "{\"a\":");
        for (int i = 0; i < deep; i++) cpl_text_char(&json, '[');
        for (int i = 0; i < deep; i++) cpl_text_char(&json, ']');
        cpl_text_printf(&json, ",\"text\":\"t\"}");
        if (deep < CPL_JSON_DEPTH)
            expect(json.bytes, "t", NULL, NULL);
        else
            refused(json.bytes);
    }
    cpl_text_clear(&json);
    cpl_text_printf(&json, "{\"a\":");
    for (int i = 0; i < 1000000; i++) cpl_text_printf(&json, i % 2 ? "[" : "{\"k\":");
    refused(json.bytes);
    cpl_text_free(&json);
}

/* A line with all parts that can be damaged. The fuzz test below changes bytes of it. */
static const char seed_line[] =
    "{\"id\": 12, \"text\": \"a\\n\\u00e9 \\\"b\\\" \\ud83d\\ude00\", \"meta\": {\"source\": "
    "\"web\", \"l\": [1, -2.5e3, true, false, null, {\"text\": \"x\"}]}, \"added\": \"2020\"}";

static void same_as_jansson(const char *json, size_t length)
{
    size_t where    = 0;
    const char *why = cpl_json_pick(json, length, fields, N, &where);
    json_error_t error;
    json_t *tree = json_loadb(json, length, JSON_ALLOW_NUL, &error);
    assert_true(where <= length);
    if (why && tree && json_is_object(tree)) fail_msg("refused (%s): %.*s", why, (int)length, json);
    bool plain = true; /* within what jansson accepts */
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)json[i] >= 0x80 || json[i] == 'u' || json[i] == 'e') plain = false;
    if (!why && !tree && plain) fail_msg("accepted: %.*s (%s)", (int)length, json, error.text);
    if (!why && tree) {
        json_t *text = json_object_get(tree, "text");
        assert_int_equal(fields[TEXT].kind == CPL_JSON_STRING, json_is_string(text));
        if (json_is_string(text)) {
            assert_int_equal(fields[TEXT].value.length, json_string_length(text));
            assert_memory_equal(fields[TEXT].value.bytes, json_string_value(text),
                                json_string_length(text));
        }
    }
    json_decref(tree);
}

TEST(mutations)
{
    static const char likely[] = "{}[]\",:\\0-.tfn u";
    cpl_rng_key key            = {.seed = 1, .stream = CPL_STREAM_TEST};
    char json[sizeof seed_line];
    uint64_t draw = 0;
    for (int round = 0; round < 60000; round++) {
        size_t length = sizeof seed_line - 1;
        memcpy(json, seed_line, length);
        int changes = 1 + (int)(cpl_rng_u32(&key, draw++) % 3);
        for (int i = 0; i < changes; i++) {
            uint32_t r       = cpl_rng_u32(&key, draw++);
            json[r % length] = r >> 31 ? (char)(r >> 16) : likely[(r >> 16) % (sizeof likely - 1)];
        }
        if (round % 4 == 0) length = cpl_rng_u32(&key, draw++) % length;
        same_as_jansson(json, length);
    }
}

static int release(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) cpl_text_free(&fields[i].value);
    return 0;
}

TEST(knows_objects)
{
    const char *good[] = {"{}", " {\"a\":[1,{}]}\n", "{\"\xFF\":\"\\ud800\"}", "{\"a\":1,\"a\":2}"};
    const char *bad[] = {"", "[]", "{} {}", "{\"a\"}", "{\"a\":01}", "{\"a\":[}", "{\"a\":\"\n\"}"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(cpl_json_is_object(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(cpl_json_is_object(bad[i], strlen(bad[i])));
}

TESTS_DO(after_all, release);
