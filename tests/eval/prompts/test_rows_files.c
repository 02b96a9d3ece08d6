/* test_rows_files.c - files of rows without an end, without rows, or cut; failing allocations. */
#include "base/arena.h"
#include "eval/prompts/rows_case.h"
#include "io/paths.h"

/* Endless brackets are read without recursion. */
TEST(deep)
{
    enum { DEEP = 200000 };
    char *text = malloc(2 * DEEP + 30);
    for (int open_only = 0; open_only < 2; open_only++) {
        strcpy(text, "[{},{\"a\":");
        memset(text + 9, '[', DEEP);
        memset(text + 9 + DEEP, open_only ? '[' : ']', DEEP);
        strcpy(text + 9 + 2 * DEEP, "},{}]");
        cpl_row row;
        cpl_rows *rows = open_text(text, (cpl_rows_kind)FORMAT(JSON));
        expect_row(rows, 1, "{}");
        assert_fails(CPL_ERR_INPUT, open_only ? "the file ends inside" : "depth",
                     cpl_rows_next(rows, &row));
        cpl_rows_close(rows);
    }
    free(text);
}

TEST(files_that_are_none)
{
    const cpl_rows_kind kind = FORMAT(LINES);
    cpl_rows *rows;
    assert_fails(CPL_ERR_IO, "/no/file", cpl_rows_open(&rows, "/no/file", &kind));
    assert_null(rows);
    const char *path = in_folder(folder, "pointer");
    write_string(path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    assert_fails(CPL_ERR_INPUT, "is a Git LFS pointer", cpl_rows_open(&rows, path, &kind));
    assert_null(rows);
}

/* Every proper beginning of a compressed file is an error, after rows that are those of the whole
 * file. */
TEST(cut_streams)
{
    const char *text   = "{\"a\":1}\n{\"a\":2}\n";
    cpl_text files[2]  = {{0}, {0}};
    const char *name[] = {"cut.jsonl.gz", "cut.jsonl.zst"};
    append_gzip(&files[0], text, strlen(text));
    append_zstd(&files[1], text, strlen(text), 0);
    for (int i = 0; i < 2; i++) {
        for (size_t length = 1; length < files[i].length; length++) {
            const char *path = in_folder(folder, name[i]);
            cpl_rows *rows;
            cpl_row row = {0};
            write_bytes(path, files[i].bytes, length);
            cpl_status status = cpl_rows_open(&rows, path, &(cpl_rows_kind)FORMAT(JSONL));
            for (int k = 1; status == CPL_OK; k++) {
                status = cpl_rows_next(rows, &row);
                if (status != CPL_OK) break;
                assert_int_equal(json_integer_value(json_object_get(row.values, "a")), k);
                json_decref(row.values);
            }
            assert_int_equal(status, CPL_ERR_INPUT);
            assert_non_null(strstr(cpl_last_error(), path));
            cpl_rows_close(rows);
        }
        cpl_text_free(&files[i]);
    }
}

/* ---- memory that runs out ---- */

static int64_t json_calls, json_fail_at;

static void *json_take(size_t bytes)
{
    return ++json_calls == json_fail_at ? NULL : malloc(bytes);
}

/* Files of rows. With long_words no allocation of the JSON library fails: jansson 2.14 drops a byte
 * of a word of 16 bytes or more when its buffer cannot grow. */
static const struct {
    cpl_rows_kind kind;
    const char *text;
    bool long_words;
} cases[] = {
    {FORMAT(JSONL), "{\"a\":\"\\u00e9\",\"b\":[1,2.5,null,\"x\"]}\n{\"a\" 1}\n{\"c\":{}}\n", true},
    {FORMAT(JSONL), "{\"a\":\"\\u00e9\",\"b\":[1,2.5,null,\"x\"]}\n{\"c\":{\"d\":[[]]}}\n", false},
    {FORMAT(JSONL), "{\"a\":\"x\",\"a\":1}\n{\"a\":\"\\ud800\"}\n{}", false},
    {MEMBERS(JSON, "d"), "{\"c\":0,\"d\":[{\"a\":[true,\"y\"]},1,{\"b\":\"\",\"b\":1}],\"e\":{}}",
     false},
    {FORMAT(JSON),
     "{\"a\":\"one long string that is longer than what a text begins with, and on\"}", true},
    {FORMAT(CSV), "a,b\n1,\"2\"\n3\n,\n", false},
    {HEADLESS(TSV), "a\tb\n\xFF\t1\n", false},
    {FORMAT(LINES), "a\n\nb\n", false},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* Reads the file, and writes its rows and bad rows to `out`. */
static cpl_status read_all(cpl_text *out, const cpl_rows_kind *kind)
{
    cpl_status status = CPL_OK;
    cpl_rows *rows;
    cpl_row row;
    cpl_text_clear(out);
    CPL_TRY(cpl_rows_open(&rows, in_folder(folder, "text"), kind));
    for (;;) {
        CPL_TRY_DONE(cpl_rows_next(rows, &row));
        if (!row.values && !row.bad) break;
        int64_t fail_at = json_fail_at;
        json_fail_at    = 0;
        char *text      = row.bad ? strdup(row.bad) : json_dumps(row.values, JSON_COMPACT);
        json_fail_at    = fail_at;
        json_decref(row.values);
        size_t room = 4096 - out->length;
        assert_true(strlen(text) < room);
        memcpy(out->bytes + out->length, text, strlen(text) + 1);
        out->length += strlen(text);
        free(text);
    }
done:
    cpl_rows_close(rows);
    return status;
}

TEST(no_memory)
{
    cpl_text whole = {0}, got = {0};
    cpl_text_printf(&whole, "%4096s", "");
    cpl_text_printf(&got, "%4096s", "");
    for (int i = 0; i < N_CASES; i++) {
        const cpl_rows_kind *kind = &cases[i].kind;
        write_string(in_folder(folder, "text"), cases[i].text);
        assert_ok(read_all(&whole, kind));
        int64_t held = cpl_alloc_in_use(), calls = cpl_alloc_count();
        assert_ok(read_all(&got, kind));
        calls = cpl_alloc_count() - calls;
        for (int64_t nth = 1; nth <= calls; nth++) {
            cpl_alloc_fail_at(nth);
            cpl_status status = read_all(&got, kind);
            cpl_alloc_fail_at(0);
            assert_int_equal(cpl_alloc_in_use(), held);
            if (status != CPL_ERR_MEMORY)
                fail_msg("case %d, allocation %d: %d", i, (int)nth, (int)status);
        }
    }
    cpl_text_free(&whole);
    cpl_text_free(&got);
}

/* A failed allocation of the JSON library is an error, never a bad row. */
TEST(no_memory_for_json)
{
    cpl_text whole = {0}, got = {0};
    cpl_text_printf(&whole, "%4096s", "");
    cpl_text_printf(&got, "%4096s", "");
    json_set_alloc_funcs(json_take, free);
    for (int i = 0; i < N_CASES; i++) {
        if (cases[i].long_words) continue;
        const cpl_rows_kind *kind = &cases[i].kind;
        write_string(in_folder(folder, "text"), cases[i].text);
        json_calls = json_fail_at = 0;
        assert_ok(read_all(&whole, kind));
        int64_t calls = json_calls, refused = 0;
        for (int64_t nth = 1; nth <= calls; nth++) {
            json_calls        = 0;
            json_fail_at      = nth;
            cpl_status status = read_all(&got, kind);
            json_fail_at      = 0;
            if (status == CPL_OK && strcmp(got.bytes, whole.bytes) != 0)
                fail_msg("case %d, allocation %d of %d gives\n%s\ninstead of\n%s", i, (int)nth,
                         (int)calls, got.bytes, whole.bytes);
            if (status != CPL_OK && status != CPL_ERR_MEMORY)
                fail_msg("case %d, allocation %d: %s", i, (int)nth, cpl_last_error());
            refused += status == CPL_ERR_MEMORY;
        }
        assert_true(refused > 0);
    }
    json_set_alloc_funcs(malloc, free);
    cpl_text_free(&whole);
    cpl_text_free(&got);
}

TEST(no_memory_to_find)
{
    cpl_strings paths;
    write_string(in_folder(folder, "f1.csv"), "x");
    write_string(in_folder(folder, "f2.csv.gz"), "x");
    int64_t held = cpl_alloc_in_use(), calls = cpl_alloc_count();
    assert_ok(cpl_rows_find(&paths, folder, "t", "f*.csv"));
    assert_int_equal(paths.count, 2);
    cpl_paths_free(&paths);
    calls = cpl_alloc_count() - calls;
    assert_true(calls > 8);
    for (int64_t nth = 1; nth <= calls; nth++) {
        cpl_alloc_fail_at(nth);
        assert_int_equal(cpl_rows_find(&paths, folder, "t", "f*.csv"), CPL_ERR_MEMORY);
        cpl_alloc_fail_at(0);
        assert_int_equal(cpl_alloc_in_use(), held);
    }
}
