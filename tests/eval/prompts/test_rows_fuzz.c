/* test_rows_fuzz.c - damaged files of rows: always rows, bad rows with a sentence, or an error with
 * a sentence. Never a crash, a leak, a row that is both good and bad, or a line that is neither.
 *
 * Method: real files, and small files that hold every form of their format. Each round damages one
 * file, plain or sometimes compressed, and reads it to its end. */
#include "eval/prompts/rows_case.h"
#include "fuzz.h"
#include "io/file.h"

enum { ROUNDS = 4000, LONGEST = 1 << 13 };

typedef struct target {
    const char *what;
    cpl_rows_kind kind;
    const char *real; /* a path below tests/golden */
    const char *text; /* a small file, damaged in every second round */
    cpl_text whole, small;
    int64_t rows, bad, files, refused;
} target;

static target targets[] = {
    {.what = "JSON lines",
     .kind = FORMAT(JSONL),
     .real = "eval/data/agieval/v1/gaokao-biology.jsonl",
     .text = "{\"a\":\"\\u00e9\\ud83d\\ude00\",\"b\":[1,-2.5e3,null]}\n\n{\"c\":{\"d\":[[],{}]}}"
             "\r\n{}\n"},
    LIST(.what = "JSON array", .kind = FORMAT(JSON), .real = "eval/data/other-layouts/sciq.json",
         .text = "[{\"a\":\"]}\\\\\\\"\"}, {\"b\":[1,{\"c\":null}]},\n{}, 1, \"x\"]\n"),
    {.what = "JSON member",
     .kind = MEMBERS(JSON, "Data"),
     .real = "eval/data/triviaqa/qa/web-dev.json",
     .text = "{\"a\":[{}],\"Data\":[{\"a\":1},{\"b\":\"\\n\"}],\"b\":{\"Data\":[]}}"},
    LIST(.what = "JSON object", .kind = FORMAT(JSON), .real = "eval/data/other-layouts/MATH/1.json",
         .text = "{\"problem\":\"$x$\",\"level\":\"Level 5\",\"solution\":\"\\\\boxed{1}\"}"),
    {.what = "CSV",
     .kind = FORMAT(CSV),
     .real = "eval/data/ceval/dev/computer_architecture_dev.csv",
     .text = "a,b,c\r\n1,\"x,\"\"y\"\"\n\",\r\n\n,it\"s,\"\"\n"},
    {.what = "CSV, headless",
     .kind = HEADLESS(CSV),
     .real = "eval/data/mmlu/test/high_school_european_history_test.csv",
     .text = "q,\"a\nb\",\"\"\"\",D\n1,2,3,4\n"},
    LIST(.what = "TSV", .kind = FORMAT(TSV), .real = "eval/data/openbookqa/Main/train.tsv",
         .text = "a\tb\n1\t\"2\r\n\t\n3\t4\n"),
    LIST(.what = "lines", .kind = FORMAT(LINES), .real = "eval/data/social_iqa/dev-labels.lst",
         .text = "1\n\n\xC3\xA9 2\r\n3"),
};

enum { TARGETS = sizeof targets / sizeof *targets };

static void load(target *t)
{
    const char *real = golden_path(t->real);
    cpl_text_append(&t->small, t->text, strlen(t->text));
    cpl_text_append(&t->whole, t->text, strlen(t->text));
    assert_ok(cpl_file_read(&t->whole, real, 1 << 20));
    if (t->whole.length > LONGEST) t->whole.length = LONGEST; /* cutting is a damage too */
}

/* Returns the number of lines that must be rows, good or bad, or -1 if it is unknown. */
static int64_t lines_of(const target *t, const cpl_text *file)
{
    int64_t lines = 0;
    if (t->kind.format != CPL_ROWS_JSONL && t->kind.format != CPL_ROWS_LINES) return -1;
    bool mark = file->length >= 3 && memcmp(file->bytes, "\xEF\xBB\xBF", 3) == 0;
    for (size_t at = mark ? 3 : 0, next; at < file->length; at = next) {
        const char *end = memchr(file->bytes + at, '\n', file->length - at);
        next            = end ? (size_t)(end - file->bytes) + 1 : file->length;
        bool blank      = true;
        for (size_t i = at; i < next; i++)
            blank &= file->bytes[i] && strchr(" \t\r\n", file->bytes[i]);
        lines += !blank || t->kind.format == CPL_ROWS_LINES;
    }
    return lines;
}

static void check_row(target *t, const cpl_row *row)
{
    assert_true(!row->values != !row->bad && row->line > 0);
    t->rows += row->values != NULL;
    t->bad += row->bad != NULL;
    if (row->bad) {
        assert_true(strstr(row->bad, ": line ") != NULL);
        return;
    }
    assert_true(json_is_object(row->values));
    char *text = json_dumps(row->values, 0);
    assert_non_null(text);
    free(text);
    json_decref(row->values);
}

static void try(target *t, const char *path, const cpl_text *file, bool plain)
{
    cpl_rows *rows;
    cpl_row row    = {0};
    int64_t before = t->rows + t->bad, line = 0;
    cpl_status status = cpl_rows_open(&rows, path, &t->kind);
    while (status == CPL_OK && (status = cpl_rows_next(rows, &row)) == CPL_OK) {
        if (!row.values && !row.bad) break;
        assert_true(row.line >= line);
        line = row.line;
        check_row(t, &row);
    }
    t->files++;
    t->refused += status != CPL_OK;
    if (status != CPL_OK) {
        assert_int_equal(status, CPL_ERR_INPUT);
        assert_non_null(strstr(cpl_last_error(), path));
    } else if (plain && lines_of(t, file) >= 0) {
        assert_int_equal(t->rows + t->bad - before, lines_of(t, file));
    }
    cpl_rows_close(rows);
}

/* Writes the file, sometimes compressed and then damaged. */
static bool write_file(fuzz *f, const char *path, const cpl_text *file)
{
    cpl_text packed = {0};
    size_t choice   = fuzz_below(f, 16);
    if (choice == 0) append_gzip(&packed, file->bytes, file->length);
    if (choice == 1) append_zstd(&packed, file->bytes, file->length, 0);
    if (choice < 2 && fuzz_below(f, 2)) fuzz_once(f, &packed);
    fuzz_write(path, choice < 2 ? &packed : file);
    cpl_text_free(&packed);
    return choice >= 2;
}

TEST(damaged_rows)
{
    cpl_text file = {0};
    for (int i = 0; i < TARGETS; i++) load(&targets[i]);
    print_message("the damaged file is %s\n", in_folder(folder, "file"));
    for (fuzz f = fuzz_start(77, ROUNDS); fuzz_next(&f);) {
        target *t        = &targets[f.round % TARGETS];
        const char *path = in_folder(folder, "file");
        fuzz_damage(&f, &file, f.round / TARGETS % 2 ? &t->whole : &t->small);
        bool plain = write_file(&f, path, &file);
        try(t, path, &file, plain);
    }
    for (int i = 0; i < TARGETS; i++) {
        target *t = &targets[i];
        print_message("%-14s %lld rows, %lld bad; %lld files, %lld refused\n", t->what,
                      (long long)t->rows, (long long)t->bad, (long long)t->files,
                      (long long)t->refused);
        if (!fuzz_is_alone()) assert_true(t->rows && t->bad && t->refused < t->files);
        cpl_text_free(&t->whole);
        cpl_text_free(&t->small);
    }
    cpl_text_free(&file);
}
