/* test_metrics_file.c - metrics.jsonl of a run that goes on is cut by step and loses no line. */
#include <jansson.h>
#include <sys/stat.h>

#include "support/files.h"
#include "support/warnings.h"
#include "train/metrics.h"

enum { MOST = 4096 };

/* ---- a file, opened ---- */

static const char *metrics_path(void)
{
    return in_folder(scratch_folder(), "metrics.jsonl");
}

static void assert_holds(const char *path, const char *want)
{
    cpl_text got = read_bytes(path);
    assert_string_equal(got.bytes ? got.bytes : "", want);
    cpl_text_free(&got);
}

/* Opens a file of `text` at the checkpoint of `step` with `expected` lines, appends a line, and
 * compares the whole file. Returns the number of warnings. */
static int cut(const char *text, int64_t step, int64_t expected, const char *want)
{
    const char *path = metrics_path();
    char all[MOST];
    int64_t lines = -1, n = 0;
    FILE *file = NULL;
    n_warnings = 0;
    if (text) write_string(path, text);
    assert_ok(cpl_metrics_file_open(&file, &lines, path, step, expected, &a_log));
    for (const char *at = want; *at; at++) n += *at == '\n';
    assert_int_equal(lines, n);
    fputs("next\n", file);
    fclose(file);
    snprintf(all, sizeof all, "%snext\n", want);
    assert_holds(path, all);
    return n_warnings;
}

#define L(step) "{\"step\":" #step ",\"loss\":1}\n"

/* ---- lines that stay ---- */

TEST(test_whole_files)
{
    assert_int_equal(cut(NULL, 0, 0, ""), 0);
    assert_int_equal(cut("", 0, -1, ""), 0);
    assert_int_equal(cut(L(1) L(2), 2, 2, L(1) L(2)), 0);
    assert_int_equal(cut(L(10) L(20) L(30), 25, 2, L(10) L(20)), 0);
    assert_int_equal(cut(L(1) L(2), 0, 0, ""), 0);
}

TEST(test_a_line_without_its_end)
{
    assert_int_equal(cut(L(1) L(2) "{\"step\":3,\"lo", 2, 2, L(1) L(2)), 0);
    assert_int_equal(cut(L(1) L(2) "{\"step\":3,\"lo", 2, -1, L(1) L(2)), 0);
    assert_int_equal(cut(L(1) "{\"step\":2}", 2, 2, L(1) "{\"step\":2}\n"), 0);
}

TEST(test_damaged_lines_stay)
{
    assert_int_equal(cut("X" L(1) L(2) L(3), 2, 2, "X" L(1) L(2)), 1);
    assert_non_null(strstr(warned, "has 1 damaged line, first at line 1;"));
    assert_int_equal(
        cut(L(1) "\n[]\n{\"step\":\"3\"}\n" L(4) L(5), 4, 5, L(1) "\n[]\n{\"step\":\"3\"}\n" L(4)),
        1);
    assert_non_null(strstr(warned, "has 3 damaged lines, first at line 2;"));
    /* The file has the line of the checkpoint's own step, and a line of a later step. */
    assert_int_equal(cut(L(1) "{\"step\":2,X}\n" L(3), 2, 2, L(1) "{\"step\":2,X}\n"), 1);
    assert_int_equal(cut(L(1) L(2) "{\"step\":3,X}\n" L(4), 2, 2, L(1) L(2)), 0);
    /* An old checkpoint does not name the number of lines. */
    assert_int_equal(cut(L(1) "X\n" L(3), 2, -1, L(1) "X\n"), 1);
}

TEST(test_lines_are_cut_by_step_not_by_place)
{
    assert_int_equal(cut(L(1) L(9) L(2) L(3), 3, 3, L(1) L(2) L(3)), 0);
}

TEST(test_missing_lines)
{
    assert_int_equal(cut(L(1) L(2), 5, 5, L(1) L(2)), 1);
    assert_non_null(strstr(warned, "2 of the 5 lines up to step 5 are there"));
    assert_int_equal(cut(NULL, 5, 5, ""), 1);
    assert_int_equal(cut(L(1) "{\"st", 5, 5, L(1) "{\"st\n"), 2);
}

/* ---- files that are refused ---- */

static void *out_of(size_t bytes)
{
    (void)bytes;
    return NULL;
}

TEST(test_memory_is_no_damage)
{
    const char *path = metrics_path(), *text = L(1) L(2) L(3);
    FILE *file    = NULL;
    int64_t lines = 0;
    write_string(path, text);
    json_set_alloc_funcs(out_of, free);
    cpl_status status = cpl_metrics_file_open(&file, &lines, path, 2, 2, NULL);
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(status, CPL_ERR_MEMORY);
    assert_null(file);
    assert_holds(path, text);
}

static void assert_refused(const char *path, const char *part)
{
    FILE *file    = NULL;
    int64_t lines = 0;
    assert_fails(CPL_ERR_INPUT, part, cpl_metrics_file_open(&file, &lines, path, 2, 2, NULL));
    assert_null(file);
}

TEST(test_links_pipes_and_endless_files)
{
    const char *folder = scratch_folder(), *path = in_folder(folder, "metrics.jsonl");
    const char *victim = in_folder(folder, "victim");
    write_string(victim, "");
    assert_int_equal(symlink("victim", path), 0);
    assert_refused(path, "symbolic link");
    assert_holds(victim, "");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_refused(path, "symbolic link");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(path, "not a regular file");
    assert_int_equal(unlink(path), 0);
    write_string(path, L(1));
    assert_int_equal(truncate(path, (off_t)1 << 40), 0); /* a hole takes no disk */
    assert_refused(path, "more than the metrics of a run");
}
