/* test_rows_damage.c - damaged files of rows: rows that are still read, and other errors. */
#include "eval/prompts/rows_case.h"

/* Results of the reader, one after the other: '+' and a row as JSON, '-' and the fault of a bad
 * row, '!' and the error that ends the file. "" is the end of a file that could be read. Sentences
 * are without the path. */
typedef struct damaged {
    cpl_rows_kind kind;
    const char *text;
    const char *gives[6];
} damaged;

static const char *after_path(const char *sentence)
{
    const char *path = in_folder(folder, "text"), *rest = sentence + strlen(path);
    if (strncmp(sentence, path, strlen(path)) != 0) fail_msg("no path in \"%s\"", sentence);
    return rest + strspn(rest, ": ");
}

/* Returns the result of the next call, in the form of `gives`. */
static const char *next_given(cpl_rows *rows)
{
    static char given[2000];
    cpl_row row;
    if (cpl_rows_next(rows, &row) != CPL_OK) {
        assert_true(!row.values && !row.bad);
        snprintf(given, sizeof given, "!%s", after_path(cpl_last_error()));
    } else if (row.bad) {
        assert_true(!row.values && row.line > 0);
        snprintf(given, sizeof given, "-%s", after_path(row.bad));
    } else if (row.values) {
        char *text = json_dumps(row.values, JSON_COMPACT);
        snprintf(given, sizeof given, "+%s", text);
        free(text);
        json_decref(row.values);
    } else {
        given[0] = '\0';
    }
    return given;
}

static void expect_all(const damaged *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        cpl_rows *rows    = open_text(cases[i].text, cases[i].kind);
        const char *given = "+";
        for (int k = 0; given[0] && given[0] != '!'; k++) {
            const char *wanted = cases[i].gives[k] ? cases[i].gives[k] : "";
            given              = next_given(rows);
            if (strcmp(given, wanted) != 0)
                fail_msg("of \"%s\", call %d:\n  %s\ninstead of\n  %s", cases[i].text, k, given,
                         wanted);
        }
        if (given[0] == '!')
            assert_fails(CPL_ERR_INPUT, "could not be read further than to line",
                         cpl_rows_next(rows, &(cpl_row){.line = 0}));
        cpl_rows_close(rows);
    }
}

#define EXPECT_ALL(cases) expect_all(cases, sizeof(cases) / sizeof *(cases))

/* A kind of file whose rows may have eight bytes. */
#define SHORT(name)                                                                                \
    {                                                                                              \
        .format = CPL_ROWS_##name, .headless = true, .member = "i", .max_bytes = 8                 \
    }

TEST(bad_json_lines)
{
    static const damaged cases[] = {
        {FORMAT(JSONL),
         "{\"a\":1}\n{\"a\" 1}\n[1]\n7\n{\"a\":2}",
         {"+{\"a\":1}", "-line 2, column 6: not valid JSON: ':' expected near '1'",
          "-line 3, column 1: an array where an object is expected",
          "-line 4, column 1: not valid JSON: '[' or '{' expected near '7'", "+{\"a\":2}"}},
        {FORMAT(JSONL),
         "{\"a\":1,\"a\":2}\n{\"a\":\"\xFF\"}\n{\"a\":\"\\ud800\"}\n{\"a\":\"\\u0000\"}\n{}",
         {"-line 1, column 10: not valid JSON: duplicate object key near '\"a\"'",
          "-line 2, column 6: not valid JSON: unable to decode byte 0xff near '\"'",
          "-line 3, column 13: not valid JSON: invalid Unicode '\\uD800' near '\"\\ud800\"'",
          "-line 4, column 13: not valid JSON: \\u0000 is not allowed without JSON_ALLOW_NUL near "
          "'\"\\u0000\"'",
          "+{}"}},
        {FORMAT(JSONL),
         "{\"a\":1e999}\n{\"a\":1} {}\n{\"a\":",
         {"-line 1, column 10: not valid JSON: real number overflow near '1e999'",
          "-line 2, column 9: not valid JSON: end of file expected near '{'",
          "-line 3, column 5: not valid JSON: unexpected token near end of file"}},
        {SHORT(JSONL),
         "{\"a\":10}\n{\"a\":100}\n          \n{}",
         {"+{\"a\":10}", "-line 2: this row is longer than the 8 bytes it may have",
          "-line 3: this row is longer than the 8 bytes it may have", "+{}"}},
    };
    EXPECT_ALL(cases);
}

TEST(bad_json_items)
{
    static const damaged cases[] = {
        /* unusable rows in a sound array */
        {FORMAT(JSON),
         "[1, \"]\", [{}],\n null, {\"a\":1}]",
         {"-line 1, column 2: an item that is no object",
          "-line 1, column 5: an item that is no object",
          "-line 1, column 10: an item that is no object",
          "-line 2, column 2: an item that is no object", "+{\"a\":1}"}},
        {FORMAT(JSON),
         "[{\"a\":1,\"a\":2},\n\n {\"a\":\n\"\xFF\"}, {\"a\":\"\\ud800 \"}, {}]",
         {"-line 1, column 11: not valid JSON: duplicate object key near '\"a\"'",
          "-line 4, column 1: not valid JSON: unable to decode byte 0xff near '\"'",
          "-line 4, column 20: not valid JSON: invalid Unicode '\\uD800' near '\"\\ud800 \"'",
          "+{}"}},
        {SHORT(JSON),
         "{\"i\":[{\"a\":10},{\"a\":[100]},\n{}]}",
         {"+{\"a\":10}", "-line 1: this row is longer than the 8 bytes it may have", "+{}"}},
        /* arrays that are cut, or whose next row cannot be found */
        {FORMAT(JSON),
         "[{\"a\":1},",
         {"+{\"a\":1}", "!line 1, column 10: the file ends where a value is expected"}},
        {FORMAT(JSON),
         "[{\"a\":1}",
         {"+{\"a\":1}",
          "!line 1, column 9: the file ends where a comma or the end of the array is expected"}},
        {FORMAT(JSON),
         "[{},\n {\"a\": [\"",
         {"+{}", "!line 2, column 2: the file ends inside the value that begins here"}},
        {FORMAT(JSON),
         "[{}, {\"a\":\"x\"y\", \"b\":2}, {\"c\":\"\"}]",
         {"+{}", "!line 1, column 6: the file ends inside the value that begins here"}},
        {FORMAT(JSON),
         "[{}, {\"a\":1 \"b\":2}, {\"c\":3}]",
         {"+{}", "!line 1, column 15: not valid JSON: '}' expected near '\"b\"'"}},
        {FORMAT(JSON),
         "[{} {}]",
         {"+{}", "!line 1, column 5: a comma or the end of the array is expected here"}},
        {FORMAT(JSON), "[{},]", {"+{}", "!line 1, column 5: a value is expected here"}},
        {FORMAT(JSON), "[{}] []", {"+{}", "!line 1, column 6: something follows the JSON"}},
        {FORMAT(JSON), "", {"!line 1: the file is empty where JSON should be"}},
        {FORMAT(JSON), "\n 7", {"!line 2, column 2: an array or an object is expected here"}},
        {FORMAT(JSON),
         "<html>",
         {"!line 1, column 1: an array or an object is expected here; it looks like a web page, as "
          "a failed download leaves one"}},
    };
    EXPECT_ALL(cases);
}

TEST(bad_json_objects)
{
    static const damaged cases[] = {
        {MEMBERS(JSON, "d"),
         "{\"a\":1,\n\"D\":[]}",
         {"!line 2: the object that ends here has no \"d\""}},
        {MEMBERS(JSON, "d"), "{}", {"!line 1: the object that ends here has no \"d\""}},
        {MEMBERS(JSON, "d"),
         "{}\n{}",
         {"!line 1: the object that ends here has no \"d\"; a file that has an object on every "
          "line is called .jsonl"}},
        {MEMBERS(JSON, "d"), "{\"d\": null}", {"!line 1, column 7: an array is expected here"}},
        {MEMBERS(JSON, "d"),
         "{\"d\":[{}],\"d\":[]}",
         {"+{}", "!line 1, column 15: a second \"d\""}},
        {MEMBERS(JSON, "d"),
         "{\"d\":[{}],",
         {"+{}", "!line 1, column 11: the file ends where a name is expected"}},
        {MEMBERS(JSON, "d"),
         "{\"d\":[{}]",
         {"+{}",
          "!line 1, column 10: the file ends where a comma or the end of the object is expected"}},
        {MEMBERS(JSON, "d"), "{\"d\" [{}]}", {"!line 1, column 6: a colon is expected here"}},
        {MEMBERS(JSON, "d"), "{\"\\x\":[{}]}", {"!line 1, column 2: this name cannot be read"}},
        {MEMBERS(JSON, "d"), "{d:[{}]}", {"!line 1, column 2: a name is expected here"}},
        {MEMBERS(JSON, "d"),
         "{\"a\":\"",
         {"!line 1, column 6: the file ends inside the value that begins here"}},
        /* one object is one row, whatever its damage */
        {FORMAT(JSON), "{\"a\":[1}", {"-line 1, column 8: not valid JSON: ']' expected near '}'"}},
        {FORMAT(JSON),
         "{\"a\":1,\n",
         {"-line 2, column 0: not valid JSON: string or '}' expected near end of file"}},
        {FORMAT(JSON),
         "{\"a\":1}\n{}",
         {"+{\"a\":1}", "!line 2, column 1: something follows the JSON"}},
        {{.format = CPL_ROWS_JSON, .max_bytes = 8},
         "{\"a\":[\n100]}",
         {"-line 1: this row is longer than the 8 bytes it may have"}},
    };
    EXPECT_ALL(cases);
}

TEST(bad_columns)
{
    static const damaged cases[] = {
        {FORMAT(CSV),
         "a,b\n1\n\n1,2,3,4\n\"1\n\",\"2\"\n",
         {"-line 2: 1 fields where there should be 2", "-line 4: 4 fields where there should be 2",
          "+{\"a\":\"1\\n\",\"b\":\"2\"}"}},
        {HEADLESS(CSV),
         "1,2\n3\n",
         {"+{\"0\":\"1\",\"1\":\"2\"}", "-line 2: 1 fields where there should be 2"}},
        {FORMAT(CSV),
         "a,b\n1,\"2\n3,4\n5,6\n",
         {"-line 2, column 3: the quote that opens here is not closed before the file ends"}},
        {FORMAT(CSV),
         "a,b\n1,\"2\n3,\"4\"\n5,6\n",
         {"-line 3, column 4: text after the quote that closes the field",
          "+{\"a\":\"5\",\"b\":\"6\"}"}},
        {FORMAT(CSV),
         "a,b\n\xC3\xA9\"x,\"\"2\n\"1\" ,2\n1,2\n",
         {"-line 2, column 7: text after the quote that closes the field",
          "-line 3, column 4: text after the quote that closes the field",
          "+{\"a\":\"1\",\"b\":\"2\"}"}},
        {FORMAT(CSV),
         "a\n\xFF\n\"1\rx\"\n1\rx\n2",
         {"-line 2: a text that is not UTF-8", "+{\"a\":\"1\\rx\"}",
          "-line 4, column 2: a carriage return inside the line", "+{\"a\":\"2\"}"}},
        {FORMAT(TSV),
         "a\tb\n\"\t\"\t\n\xC0\t1\n",
         {"-line 2: 3 fields where there should be 2", "-line 3: a text that is not UTF-8"}},
        {SHORT(CSV),
         "1,\"345\"\n1,\"3\n4,6\n9\"\n1,2\n\"1\n2\n3\n4\n5\n",
         {"+{\"0\":\"1\",\"1\":\"345\"}",
          "-line 2: this row is longer than the 8 bytes it may have", "+{\"0\":\"1\",\"1\":\"2\"}",
          "-line 6, column 1: the quote that opens here is not closed before the file ends"}},
        {SHORT(TSV),
         "1\t3456789\n1\t2",
         {"-line 1: this row is longer than the 8 bytes it may have",
          "+{\"0\":\"1\",\"1\":\"2\"}"}},
        {FORMAT(CSV), "", {"!line 1: the file is empty; a line that names columns is missing"}},
        {FORMAT(TSV), "a\tb\ta\n1\t2\t3", {"!line 1: two columns are called \"a\""}},
        {FORMAT(CSV),
         "\xFF,b\n1,2",
         {"!line 1: a text that is not UTF-8, in the line that names the columns"}},
        {FORMAT(LINES),
         "a\n\xE2\x82\nb",
         {"+{\"line\":\"a\"}", "-line 2: a text that is not UTF-8", "+{\"line\":\"b\"}"}},
        {SHORT(LINES),
         "12345678\n123456789\n",
         {"+{\"line\":\"12345678\"}", "-line 2: this row is longer than the 8 bytes it may have"}},
    };
    EXPECT_ALL(cases);
}

TEST(a_nul)
{
    static const struct {
        cpl_rows_kind kind;
        const char *bad;
    } cases[] = {
        {HEADLESS(CSV), "line 1: a NUL character in a text"},
        {HEADLESS(TSV), "line 1: a NUL character in a text"},
        {FORMAT(LINES), "line 1: a NUL character in a text"},
        {FORMAT(JSONL), "line 1, column 1: not valid JSON"},
    };
    for (int i = 0; i < 4; i++) {
        cpl_row row;
        write_bytes(in_folder(folder, "nul"), "\0\n{}\n", 5);
        cpl_rows *rows = open_rows("nul", cases[i].kind);
        assert_ok(cpl_rows_next(rows, &row));
        assert_true(row.bad && strstr(row.bad, cases[i].bad));
        assert_ok(cpl_rows_next(rows, &row));
        assert_true(row.values && !row.bad);
        json_decref(row.values);
        expect_end(rows);
    }
}

TEST(too_many_columns)
{
    char commas[CPL_ROWS_MAX_COLUMNS + 1];
    memset(commas, ',', CPL_ROWS_MAX_COLUMNS);
    commas[CPL_ROWS_MAX_COLUMNS] = '\0';
    const damaged cases[]        = {
               {FORMAT(CSV), commas, {"!line 1: 4097 columns; there may be 4096"}},
               {HEADLESS(CSV), commas, {"-line 1: 4097 columns; there may be 4096"}},
    };
    EXPECT_ALL(cases);
    commas[CPL_ROWS_MAX_COLUMNS - 1] = '\0';
    cpl_rows *rows                   = open_text(commas, (cpl_rows_kind)HEADLESS(CSV));
    cpl_row row;
    assert_ok(cpl_rows_next(rows, &row));
    assert_int_equal(json_object_size(row.values), CPL_ROWS_MAX_COLUMNS);
    json_decref(row.values);
    expect_end(rows);
}
