/* test_metrics_file.c - metrics.jsonl of a run that goes on: cut by step, and no line lost. */
#include <jansson.h>
#include <sys/stat.h>

#include "check.h"
#include "train/metrics.h"

enum { MOST = 4096 };

/* ---- a file, opened ---- */

typedef struct heard {
    int warnings;
    char last[512];
} heard;

static void hear(void *ctx, cpl_log_level level, const char *sentence)
{
    heard *h = ctx;
    h->warnings += level == CPL_LOG_WARN;
    snprintf(h->last, sizeof h->last, "%s", sentence);
}

static char *metrics_path(void)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/metrics.jsonl", scratch_folder());
    return path;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void assert_holds(const char *path, const char *want)
{
    char got[MOST];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    got[fread(got, 1, sizeof got - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(got, want);
}

/* Opens a file of `text` at the checkpoint of `step` with `expected` lines, appends a line, and
 * compares all of it. Returns how often it was warned. */
static int cut(const char *text, int64_t step, int64_t expected, const char *want, heard *h)
{
    const char *path = metrics_path();
    char all[MOST];
    int64_t lines = -1, n = 0;
    FILE *file  = NULL;
    cpl_log log = {hear, h};
    memset(h, 0, sizeof *h);
    if (text) write_text(path, text);
    assert_ok(cpl_metrics_file_open(&file, &lines, path, step, expected, &log));
    for (const char *at = want; *at; at++) n += *at == '\n';
    assert_int_equal(lines, n);
    fputs("next\n", file);
    fclose(file);
    snprintf(all, sizeof all, "%snext\n", want);
    assert_holds(path, all);
    return h->warnings;
}

#define L(step) "{\"step\":" #step ",\"loss\":1}\n"

/* ---- what stays ---- */

TEST(test_whole_files)
{
    heard h;
    assert_int_equal(cut(NULL, 0, 0, "", &h), 0);
    assert_int_equal(cut("", 0, -1, "", &h), 0);
    assert_int_equal(cut(L(1) L(2), 2, 2, L(1) L(2), &h), 0);
    assert_int_equal(cut(L(10) L(20) L(30), 25, 2, L(10) L(20), &h), 0);
    assert_int_equal(cut(L(1) L(2), 0, 0, "", &h), 0);
}

TEST(test_a_line_without_its_end)
{
    heard h;
    assert_int_equal(cut(L(1) L(2) "{\"step\":3,\"lo", 2, 2, L(1) L(2), &h), 0);
    assert_int_equal(cut(L(1) L(2) "{\"step\":3,\"lo", 2, -1, L(1) L(2), &h), 0);
    assert_int_equal(cut(L(1) "{\"step\":2}", 2, 2, L(1) "{\"step\":2}\n", &h), 0);
}

TEST(test_damaged_lines_stay)
{
    heard h;
    assert_int_equal(cut("X" L(1) L(2) L(3), 2, 2, "X" L(1) L(2), &h), 1);
    assert_non_null(strstr(h.last, "line 1 is damaged (1 line in all)"));
    assert_int_equal(cut(L(1) "\n[]\n{\"step\":\"3\"}\n" L(4) L(5), 4, 5,
                         L(1) "\n[]\n{\"step\":\"3\"}\n" L(4), &h),
                     1);
    assert_non_null(strstr(h.last, "line 2 is damaged (3 lines in all)"));
    /* the line of the checkpoint's own step, and one of a later step */
    assert_int_equal(cut(L(1) "{\"step\":2,X}\n" L(3), 2, 2, L(1) "{\"step\":2,X}\n", &h), 1);
    assert_int_equal(cut(L(1) L(2) "{\"step\":3,X}\n" L(4), 2, 2, L(1) L(2), &h), 0);
    /* an old checkpoint does not say how many there were */
    assert_int_equal(cut(L(1) "X\n" L(3), 2, -1, L(1) "X\n", &h), 1);
}

TEST(test_lines_are_cut_by_step_not_by_place)
{
    heard h;
    assert_int_equal(cut(L(1) L(9) L(2) L(3), 3, 3, L(1) L(2) L(3), &h), 0);
}

TEST(test_missing_lines)
{
    heard h;
    assert_int_equal(cut(L(1) L(2), 5, 5, L(1) L(2), &h), 1);
    assert_non_null(strstr(h.last, "2 of the 5 lines up to step 5 are there"));
    assert_int_equal(cut(NULL, 5, 5, "", &h), 1);
    assert_int_equal(cut(L(1) "{\"st", 5, 5, L(1) "{\"st\n", &h), 2);
}

/* ---- what is refused ---- */

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
    write_text(path, text);
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
    const char *folder = scratch_folder();
    char path[256], victim[256];
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    snprintf(victim, sizeof victim, "%s/victim", folder);
    write_text(victim, "");
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
    write_text(path, L(1));
    assert_int_equal(truncate(path, (off_t)1 << 40), 0); /* a hole: no disk is taken */
    assert_refused(path, "more than the metrics of a run");
}
