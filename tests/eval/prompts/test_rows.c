/* test_rows.c - rows of real benchmark files, against those that Python's json and csv read; then
 * every kind of file that must be read in a certain way, written here. */
#include "eval/prompts/rows.h"

#include <malloc.h>

#include "base/arena.h"
#include "eval/prompts/rows_case.h"
#include "io/file.h"
#include "io/paths.h"
#include "support/sha256.h"

/* Adds the file's rows to the hash, each as a line of sorted compact JSON. */
static int64_t add_rows(sha256 *sum, const char *path, const cpl_rows_kind *kind)
{
    cpl_rows *rows;
    cpl_row row;
    int64_t count = 0;
    json_free_t give;
    json_get_alloc_funcs(NULL, &give);
    assert_ok(cpl_rows_open(&rows, path, kind));
    for (;; count++) {
        assert_ok(cpl_rows_next(rows, &row));
        if (row.bad) fail_msg("%s", row.bad);
        if (!row.values) break;
        char *text = json_dumps(row.values, JSON_COMPACT | JSON_SORT_KEYS);
        sha256_add(sum, text, strlen(text));
        sha256_add(sum, "\n", 1);
        give(text);
        json_decref(row.values);
    }
    cpl_rows_close(rows);
    return count;
}

/* ---- real files ---- */

typedef struct sample {
    const char *task, *name;
    cpl_rows_kind kind;
    int64_t files, rows;
    const char *sum; /* the beginning of SHA-256 over all rows of all files */
} sample;

/* Rows and hashes by Python (tests/golden/eval/make_rows.py): json.loads of a line, json.load,
 * csv.reader and csv.DictReader with newline="", str.split("\t"). */
static const sample samples[] = {
    {"arc_challenge", "*.jsonl", FORMAT(JSONL), 3, 203, "4850d4fbb9503e0a"},
    {"copa", "*.jsonl", FORMAT(JSONL), 2, 132, "855a379868f84ff8"},
    {"winogrande", "winogrande_1.1/*.jsonl", FORMAT(JSONL), 2, 154, "944ecc949d89f185"},
    {"agieval", "v1/*.jsonl", FORMAT(JSONL), 21, 93, "4b70ce166dcd1c1e"},
    {"math", "*.jsonl", FORMAT(JSONL), 2, 74, "4872e851dd71ef5b"},
    {"mmlu", "dev/*_dev.csv", HEADLESS(CSV), 57, 285, "6caca63907eac2af"},
    {"mmlu", "test/*_test.csv", HEADLESS(CSV), 57, 285, "a730e9faa32cdc06"},
    {"ceval", "dev/*_dev.csv", FORMAT(CSV), 52, 260, "1b4675d1bbc000a0"},
    {"ceval", "val/*_val.csv", FORMAT(CSV), 52, 104, "26512c1a511fe1f2"},
    {"openbookqa", "Main/*.tsv", FORMAT(TSV), 3, 29, "fec072b62ecc7485"},
    {"sciq", "*.json", FORMAT(JSON), 3, 29, "d370604094d8615b"},
    {"social_iqa", "*.jsonl", FORMAT(JSONL), 1, 10, "0228e52871803cf5"},
    {"social_iqa", "*-labels.lst", FORMAT(LINES), 1, 10, "00efa58dfcf4fd3a"},
    {"bbh", "*.json", MEMBERS(JSON, "examples"), 27, 135, "caca87405f25f5ac"},
    {"triviaqa", "qa/*.json", MEMBERS(JSON, "Data"), 4, 18, "ad394973fd57079b"},
    {"olmes", "std_fewshot.json", MEMBERS(JSON, "winogrande"), 1, 10, "895648bb007fd047"},
    {"other-layouts", "MATH/*.json", FORMAT(JSON), 1, 1, "f34ab4e980f4e927"},
    {"other-layouts", "prompts.csv", FORMAT(CSV), 1, 1, "6ef86a9b82d54300"},
    {"other-layouts", "sciq.json", FORMAT(JSON), 1, 3, "a45efdc88a9edc29"},
};

static const sample larger_samples[] = {
    {"arc_challenge", "*.jsonl", FORMAT(JSONL), 4, 308, "6595fbed8ea7a286"},
    {"commonsense_qa", "*.jsonl", FORMAT(JSONL), 2, 310, "f48fbb71ffd419d2"},
    {"copa", "*.jsonl", FORMAT(JSONL), 2, 132, "855a379868f84ff8"},
    {"boolq", "*.jsonl", FORMAT(JSONL), 4, 314, "215decccb2c6b0f0"},
    {"hellaswag", "*.jsonl", FORMAT(JSONL), 3, 304, "1992b7b24243add6"},
    {"openbookqa", "Main/*.jsonl", FORMAT(JSONL), 3, 8, "68e0d62ab05639bf"},
    {"openbookqa", "Main/*.tsv", FORMAT(TSV), 3, 360, "916fcb47df5e0723"},
    {"sciq", "*.json", FORMAT(JSON), 1, 300, "2cbdc8b9f95c3aa2"},
    {"sciq", "*/*.json", FORMAT(JSON), 3, 9, "dd94f105d3707425"},
    {"social_iqa", "*.jsonl", FORMAT(JSONL), 2, 302, "a81116b1b7aae2f5"},
    {"social_iqa", "*-labels.lst", FORMAT(LINES), 2, 302, "a87d9f9f1393c3b1"},
    {"winogrande", "*.jsonl", FORMAT(JSONL), 1, 300, "b021e7d6e5d7b30d"},
    {"winogrande", "winogrande_1.1/*.jsonl", FORMAT(JSONL), 3, 8, "f885f636e823e700"},
    {"mmlu", "dev/*_dev.csv", HEADLESS(CSV), 57, 285, "6caca63907eac2af"},
    {"mmlu", "test/*_test.csv", HEADLESS(CSV), 57, 285, "a730e9faa32cdc06"},
    {"ceval", "dev/*_dev.csv", FORMAT(CSV), 52, 260, "33357a01786bea08"},
    {"ceval", "val/*_val.csv", FORMAT(CSV), 52, 260, "faee50fe552a573b"},
    {"mmlu_pro", "*.jsonl", FORMAT(JSONL), 2, 364, "acb7d94673b64903"},
    {"agieval", "v1/*.jsonl", FORMAT(JSONL), 21, 294, "e1fd00e584cb92f9"},
    {"agieval", "few_shot_prompts.csv", FORMAT(CSV), 1, 10, "8bca347457950538"},
    {"bbh", "*.json", MEMBERS(JSON, "examples"), 27, 297, "f5d4631d2bfea60b"},
    {"math", "MATH/test/*/*.json", FORMAT(JSON), 6, 6, "96a6db21a092b069"},
    {"math", "*.jsonl", FORMAT(JSONL), 2, 298, "6812e1636ddec44e"},
    {"gsm8k", "*.jsonl", FORMAT(JSONL), 3, 316, "1b227fae21f42784"},
    {"triviaqa", "qa/*.json", MEMBERS(JSON, "Data"), 6, 12, "a25ffd1f894735bd"},
    {"triviaqa", "triviaqa-unfiltered/unfiltered-web-train.json", MEMBERS(JSON, "Data"), 1, 3,
     "99c3ed86d1ac6ef7"},
    {"olmes", "std_fewshot.json", MEMBERS(JSON, "winogrande"), 1, 10, "895648bb007fd047"},
};

/* Checks each file of `wanted` below `data`. */
static void check_samples(const char *data, const sample *wanted, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const sample *s   = &wanted[i];
        cpl_strings paths = {0};
        int64_t count     = 0;
        char hex[65];
        sha256 sum;
        sha256_init(&sum);
        assert_ok(cpl_rows_find(&paths, data, s->task, s->name));
        assert_int_equal(paths.count, s->files);
        for (int64_t k = 0; k < paths.count; k++) count += add_rows(&sum, paths.at[k], &s->kind);
        cpl_paths_free(&paths);
        sha256_finish(&sum, hex);
        if (count != s->rows || memcmp(hex, s->sum, 16) != 0)
            fail_msg("%s/%s: %d rows, sum %.16s", s->task, s->name, (int)count, hex);
    }
}

TEST(real_files)
{
    check_samples(golden_path("eval/data"), samples, sizeof samples / sizeof *samples);
}

TEST_FURTHER(more_real_files)
{
    check_samples(shared_path("data/eval"), larger_samples,
                  sizeof larger_samples / sizeof *larger_samples);
}

/* Checks the first of the rows that begins on `line`: its member `name`, or its `inside`. */
static void expect_member(const char *path, cpl_rows_kind kind, int64_t line, const char *inside,
                          const char *name, const char *value)
{
    cpl_rows *rows;
    cpl_row row = {0};
    assert_ok(cpl_rows_open(&rows, path, &kind));
    do {
        json_decref(row.values);
        assert_ok(cpl_rows_next(rows, &row));
        if (!row.values) fail_msg("%s has no row on line %d", path, (int)line);
    } while (row.line != line);
    const json_t *object = inside ? json_object_get(row.values, inside) : row.values;
    assert_string_equal(json_string_value(json_object_get(object, name)), value);
    json_decref(row.values);
    cpl_rows_close(rows);
}

TEST(values_and_lines)
{
    expect_member(golden_path("eval/data/triviaqa/qa/web-dev.json"),
                  (cpl_rows_kind)MEMBERS(JSON, "Data"), 19, "Answer", "Value", "Pacific Ocean");
    expect_member(golden_path("eval/data/openbookqa/Main/test.tsv"), (cpl_rows_kind)FORMAT(TSV), 2,
                  NULL, "Answer Key", "D");
    expect_member(golden_path("eval/data/ceval/dev/computer_network_dev.csv"),
                  (cpl_rows_kind)FORMAT(CSV), 4, NULL, "B", "74");
}

TEST_FURTHER(more_values_and_lines)
{
    expect_member(shared_path("data/eval/triviaqa/qa/web-dev.json"),
                  (cpl_rows_kind)MEMBERS(JSON, "Data"), 38, "Answer", "Value", "Sunset Boulevard");
    expect_member(shared_path("data/eval/openbookqa/Main/test.tsv"), (cpl_rows_kind)FORMAT(TSV), 2,
                  NULL, "Answer Key", "B");
    expect_member(shared_path("data/eval/ceval/dev/computer_network_dev.csv"),
                  (cpl_rows_kind)FORMAT(CSV), 2, NULL, "B", "\xE7\xBD\x91\xE6\xA1\xA5");
}

/* ---- each format ---- */

/* A file, and its rows: line and JSON. */
static const struct {
    cpl_rows_kind kind;
    const char *text;
    const char *rows[3];
} files[] = {
    /* json lines */
    LIST(FORMAT(JSONL),
         "\xEF\xBB\xBF{\"a\":1}\r\n\n \t\r\n{\"a\":[null,true],\"b\":\"\\u00e9"
         "\\ud83d\\ude00\"}\n{\"a\":18446744073709551616}",
         {"1 {\"a\":1}", "4 {\"a\":[null,true],\"b\":\"\xC3\xA9\xF0\x9F\x98\x80\"}",
          "5 {\"a\":1.8446744073709552e19}"}),
    {FORMAT(JSONL), "", {0}},
    {FORMAT(JSONL), "\n\n", {0}},
    /* json arrays */
    LIST(FORMAT(JSON), "\xEF\xBB\xBF[{\"a\": \"]}\\\"\"}, {\"b\":\n {}}\n, {}] \n",
         {"1 {\"a\":\"]}\\\"\"}", "1 {\"b\":{}}", "3 {}"}),
    {FORMAT(JSON), " [ ]", {0}},
    {MEMBERS(JSON, "x"), "{\"x\":[]}", {0}},
    /* json members */
    LIST(MEMBERS(JSON, "rows"),
         "{\"before\": [1, {\"rows\": [2]}, \"]\"], \"x\": -1.5e3,\n"
         "\"ro\\u0077s\" : [\n{\"a\":1},{\"a\":2}], \"after\":null,\"z\":{}}",
         {"3 {\"a\":1}", "3 {\"a\":2}"}),
    LIST(MEMBERS(JSON, "rows"), "[{\"a\":1}]", {"1 {\"a\":1}"}), /* the file may be an array */
    LIST(FORMAT(JSON), "\n{\"rows\": [1,\n {\"a\": 2}]}\n", {"2 {\"rows\":[1,{\"a\":2}]}"}),
    /* csv */
    LIST(FORMAT(CSV),
         "\xEF\xBB\xBFid,\"a,b\",\r\n1,\"x \"\"y\"\", z\r\nw\n\",\r\n\r\n"
         ",it\"s\", 4\"\n\n\"\",\"\"\"\",\"\n\"",
         {"2 {\"id\":\"1\",\"a,b\":\"x \\\"y\\\", z\\r\\nw\\n\",\"\":\"\"}",
          "6 {\"id\":\"\",\"a,b\":\"it\\\"s\\\"\",\"\":\" 4\\\"\"}",
          "8 {\"id\":\"\",\"a,b\":\"\\\"\",\"\":\"\\n\"}"}),
    LIST(HEADLESS(CSV), "\"q\n\",2\n3,",
         {"1 {\"0\":\"q\\n\",\"1\":\"2\"}", "3 {\"0\":\"3\",\"1\":\"\"}"}),
    {FORMAT(CSV), "a,b\n", {0}},
    {HEADLESS(CSV), "", {0}},
    /* tsv and lines */
    LIST(FORMAT(TSV), "a\tb c\r\n\"x\ty, \"z\"\r\n\t\n",
         {"2 {\"a\":\"\\\"x\",\"b c\":\"y, \\\"z\\\"\"}", "3 {\"a\":\"\",\"b c\":\"\"}"}),
    LIST(FORMAT(LINES), "3\r\n\n \"\xC3\xA9",
         {"1 {\"line\":\"3\"}", "2 {\"line\":\"\"}", "3 {\"line\":\" \\\"\xC3\xA9\"}"}),
};

TEST(every_format)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        cpl_rows *rows = open_text(files[i].text, files[i].kind);
        for (int k = 0; k < 3 && files[i].rows[k]; k++)
            expect_row(rows, atoi(files[i].rows[k]), strchr(files[i].rows[k], ' ') + 1);
        expect_end(rows);
    }
}

/* ---- compression, size ---- */

TEST(compressed)
{
    const char *text = "question,A\n\"what, \"\"now\"\"?\",yes\n";
    cpl_text gzip = {0}, zstd = {0}, pieces = {0};
    append_gzip(&gzip, text, strlen(text));
    append_zstd(&zstd, text, strlen(text), 0);
    for (size_t i = 0; i < strlen(text); i++) append_gzip(&pieces, text + i, 1);
    write_bytes(in_folder(folder, "c.csv.gz"), gzip.bytes, gzip.length);
    write_bytes(in_folder(folder, "c.csv.zst"), zstd.bytes, zstd.length);
    write_bytes(in_folder(folder, "pieces.gz"), pieces.bytes, pieces.length);
    const char *names[] = {"c.csv.gz", "c.csv.zst", "pieces.gz"};
    for (int i = 0; i < 3; i++) {
        cpl_rows *rows = open_rows(names[i], (cpl_rows_kind)FORMAT(CSV));
        expect_row(rows, 2, "{\"question\":\"what, \\\"now\\\"?\",\"A\":\"yes\"}");
        expect_end(rows);
    }
    cpl_text_free(&gzip);
    cpl_text_free(&zstd);
    cpl_text_free(&pieces);
}

/* Bytes that the JSON library holds. */
static int64_t json_held, json_most;

static void *json_take(size_t bytes)
{
    void *memory = malloc(bytes);
    json_held += (int64_t)malloc_usable_size(memory);
    if (json_held > json_most) json_most = json_held;
    return memory;
}

static void json_give(void *memory)
{
    json_held -= (int64_t)malloc_usable_size(memory);
    free(memory);
}

/* The file has two thousand rows of four kilobytes, after a member of a megabyte that is passed
 * over: only a few rows are held at once. */
TEST(memory_is_that_of_a_row)
{
    enum { ROWS = 2000, LONG = 4000 };
    static const struct {
        cpl_rows_kind kind;
        const char *begin, *before, *after, *end;
    } cases[] = {
        {MEMBERS(JSON, "d"), "\", \"d\": [{}\n", ",{\"a\":\"", "\"}\n", "]}"},
        {FORMAT(JSONL), "\"}\n", "{\"a\":\"", "\"}\n", ""},
        {FORMAT(CSV), "\"\n", "b,\"", "\"\n", ""},
    };
    static const char *const starts[] = {"{\"skip\": \"", "{\"a\":\"", "a,\""};
    cpl_text text                     = {0};
    json_set_alloc_funcs(json_take, json_give);
    for (int i = 0; i < 3; i++) {
        cpl_text_clear(&text);
        cpl_text_printf(&text, "%s", starts[i]);
        for (int k = 0; k < (i == 0 ? 1 << 20 : LONG); k++) cpl_text_char(&text, 'x');
        cpl_text_printf(&text, "%s", cases[i].begin);
        for (int k = 0; k < ROWS; k++)
            cpl_text_printf(&text, "%s%0*d%s", cases[i].before, LONG, k, cases[i].after);
        cpl_text_printf(&text, "%s", cases[i].end);
        write_bytes(in_folder(folder, "long"), text.bytes, text.length);
        int64_t held = cpl_alloc_in_use();
        (void)cpl_alloc_peak();
        json_held = json_most = 0;
        sha256 sum;
        sha256_init(&sum);
        int64_t count = add_rows(&sum, in_folder(folder, "long"), &cases[i].kind);
        assert_int_equal(count, ROWS + (i < 2));
        assert_int_equal(cpl_alloc_in_use(), held);
        assert_int_equal(json_held, 0);
        assert_in_range(cpl_alloc_peak() - held, 1, 1 << 20);
        assert_in_range(json_most, 1, 16 * LONG);
    }
    json_set_alloc_funcs(malloc, free);
    cpl_text_free(&text);
}

/* ---- finding files ---- */

static void expect_files(const char *task, const char *name, const char *wanted)
{
    cpl_strings paths;
    cpl_text got = {0};
    assert_ok(cpl_rows_find(&paths, in_folder(folder, "[d]*?\\"), task, name));
    for (int64_t i = 0; i < paths.count; i++) {
        const char *below = paths.at[i] + strlen(in_folder(folder, "[d]*?\\"));
        cpl_text_printf(&got, "%s%s", i ? " " : "", below);
    }
    assert_string_equal(got.bytes, wanted);
    cpl_text_free(&got);
    cpl_paths_free(&paths);
}

TEST(finds_files)
{
    static const char *const names[] = {
        "t/a.csv",     "t/b.csv.gz",   "t/b.csv.zst", "t/c.csv",        "t/c.csv.gz",
        "t/c.csv.txt", "t/d/x/1.j",    "t/d/y/2.j",   "t/d/y/10.j.zst", "t/d/y/.hidden.j",
        "a.csv",       "only.csv.zst", "t/s*r.csv",   "t/star.csv",     "z/1.csv"};
    cpl_strings paths;
    char path[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/[d]*?\\/%s", folder, names[i]);
        char *parent = cpl_path_folder(path);
        assert_ok(cpl_folder_make(parent));
        cpl_free(parent);
        write_string(path, "x");
    }
    snprintf(path, sizeof path, "%s/[d]*?\\/t/folder.csv", folder);
    assert_ok(cpl_folder_make(path));
    expect_files("t", "a.csv", "/t/a.csv");
    expect_files("t", "b.csv", "/t/b.csv.gz");
    expect_files("t", "c.csv", "/t/c.csv");
    expect_files("t", "d/y/10.j", "/t/d/y/10.j.zst");
    expect_files("t", "only.csv", "/only.csv.zst");
    expect_files("u", "a.csv", "/a.csv");
    expect_files("t", "d/*/*.j", "/t/d/x/1.j /t/d/y/10.j.zst /t/d/y/2.j");
    expect_files("t", "*.csv", "/t/a.csv /t/b.csv.gz /t/c.csv /t/s*r.csv /t/star.csv");
    expect_files("u", "z/*.csv", "/z/1.csv");
    const char *below = in_folder(folder, "[d]*?\\");
    assert_fails(CPL_ERR_INPUT, "holds neither t/no.csv nor no.csv",
                 cpl_rows_find(&paths, below, "t", "no.csv"));
    assert_true(!paths.at && !paths.count);
    assert_fails(CPL_ERR_INPUT, "holds neither", cpl_rows_find(&paths, below, "t", "[abc].csv"));
    assert_fails(CPL_ERR_INPUT, "holds neither", cpl_rows_find(&paths, below, "t", "folder.csv"));
    assert_fails(CPL_ERR_INPUT, "/no/folder", cpl_rows_find(&paths, "/no/folder", "t", "*.csv"));
}
