/* test_run.c - the folder of a run: who may write it, and the files that stay after closing. */
#include "train/run.h"

#include <sys/wait.h>

#include "support/files.h"

SCRATCH_FOLDER(home);

static const char *run_path(const char *name)
{
    return in_folder(home, name);
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

TEST(a_fresh_run_goes_unless_kept)
{
    cpl_run run;
    const char *folder = run_path("fresh");
    assert_ok(cpl_run_open(&run, folder, 1));
    assert_ok(cpl_run_write(&run, "start.json", json_pack("{s:i}", "step", 0)));
    assert_true(is_there(folder));
    cpl_run_close(&run);
    assert_false(is_there(folder));
    assert_ok(cpl_run_open(&run, folder, 1));
    assert_ok(cpl_run_write(&run, "start.json", json_pack("{s:i}", "step", 0)));
    cpl_run_keep(&run);
    cpl_run_close(&run);
    assert_true(is_there(run_path("fresh/start.json")));
}

TEST(a_run_is_begun_once)
{
    cpl_run run, other;
    const char *folder = run_path("once");
    assert_ok(cpl_run_open(&run, folder, 1));
    const pid_t child = fork(); /* the lock holds between processes */
    if (child == 0) _exit(cpl_run_open(&other, folder, 0) == CPL_ERR_INPUT ? 7 : 8);
    int left = 0;
    assert_int_equal(waitpid(child, &left, 0), child);
    assert_int_equal(WEXITSTATUS(left), 7);
    assert_ok(cpl_run_write(&run, "config.yaml", json_object()));
    cpl_run_keep(&run);
    cpl_run_close(&run);
    assert_int_equal(cpl_run_open(&other, run_path("once"), 1), CPL_ERR_INPUT);
    cpl_run_close(&other);
    assert_ok(cpl_run_open(&other, run_path("once"), 0)); /* the run may go on */
    cpl_run_close(&other);
    assert_true(is_there(run_path("once/config.yaml"))); /* the file stays after closing */
}

/* A run refuses a folder with other files. A run that does not exist cannot go on. */
TEST(other_folders_are_refused)
{
    cpl_run run;
    assert_int_equal(mkdir(run_path("other"), 0700), 0);
    assert_int_equal(mkdir(run_path("other/files"), 0700), 0);
    assert_fails(CPL_ERR_INPUT, "is not a run and not empty",
                 cpl_run_open(&run, run_path("other"), 1));
    assert_true(is_there(run_path("other/files")));
    assert_false(is_there(run_path("other/lock")));
    assert_int_equal(rmdir(run_path("other/files")), 0);
    assert_ok(cpl_run_open(&run, run_path("other"), 1)); /* an empty folder is allowed */
    cpl_run_close(&run);
    assert_fails(CPL_ERR_INPUT, "there is no such run", cpl_run_open(&run, run_path("none"), 0));
    assert_false(is_there(run_path("none")));
}

/* Metrics without a checkpoint belong to a run whose checkpoints are gone, unless the run saved
 * none yet. A refused folder stays as it is. */
TEST(a_run_without_checkpoint)
{
    cpl_run run;
    assert_ok(cpl_run_open(&run, run_path("early"), 1));
    write_string(run_path("early/config.yaml"), "");
    write_string(run_path("early/metrics.jsonl"), "{}\n");
    cpl_run_keep(&run);
    cpl_run_close(&run);
    assert_ok(cpl_run_open(&run, run_path("early"), 0));
    cpl_run_saved(&run);
    cpl_run_close(&run);
    assert_fails(CPL_ERR_INPUT, "nothing to resume", cpl_run_open(&run, run_path("early"), 0));
    assert_int_equal(unlink(run_path("early/lock")), 0);
    assert_fails(CPL_ERR_INPUT, "metrics.jsonl and no checkpoint",
                 cpl_run_open(&run, run_path("early"), 0));
    assert_false(is_there(run_path("early/lock")));
    assert_int_equal(unlink(run_path("early/metrics.jsonl")), 0);
    write_string(run_path("early/metrics.jsonl.gz"), "");
    assert_fails(CPL_ERR_INPUT, "metrics.jsonl.gz and no checkpoint",
                 cpl_run_open(&run, run_path("early"), 0));
    assert_int_equal(mkdir(run_path("early/step-000002"), 0700), 0);
    assert_fails(CPL_ERR_INPUT, "unpack them", cpl_run_open(&run, run_path("early"), 0));
    assert_int_equal(unlink(run_path("early/config.yaml")), 0);
    assert_fails(CPL_ERR_INPUT, "holds a run already (step-000002)",
                 cpl_run_open(&run, run_path("early"), 1));
    assert_null(strstr(cpl_last_error(), "--resume")); /* --resume would be refused too */
    write_string(run_path("early/config.yaml"), "");
    assert_fails(CPL_ERR_INPUT, "holds a run", cpl_run_check_place(run_path("early")));
    assert_null(strstr(cpl_last_error(), "--resume")); /* packed metrics would be refused too */
    assert_int_equal(unlink(run_path("early/metrics.jsonl.gz")), 0);
    assert_fails(CPL_ERR_INPUT, "--resume", cpl_run_check_place(run_path("early")));
    assert_ok(cpl_run_check_place(run_path("none")));
    assert_false(is_there(run_path("none")));
}

/* A folder in the link's place simulates a file system without links. */
TEST(links_are_tried)
{
    cpl_run run;
    assert_ok(cpl_run_open(&run, run_path("linked"), 1));
    cpl_run_keep(&run);
    cpl_run_close(&run);
    assert_false(is_there(run_path("linked/.tmp-link")));
    assert_int_equal(mkdir(run_path("linked/.tmp-link"), 0700), 0);
    assert_fails(CPL_ERR_IO, "no symbolic link", cpl_run_open(&run, run_path("linked"), 0));
}

TEST(lines_are_appended_and_counted)
{
    cpl_run run;
    assert_ok(cpl_run_open(&run, run_path("lines"), 1));
    assert_ok(cpl_run_open_metrics(&run, 0, -1, NULL));
    for (int step = 1; step <= 3; step++)
        assert_ok(cpl_run_log(&run, json_pack("{s:i}", "step", step)));
    assert_int_equal(run.lines, 3);
    assert_ok(cpl_run_sync(&run));
    cpl_run_keep(&run);
    cpl_run_close(&run);
    assert_ok(cpl_run_open(&run, run_path("lines"), 0));
    assert_ok(cpl_run_open_metrics(&run, 2, 2, NULL)); /* back to step 2 */
    assert_int_equal(run.lines, 2);
    assert_ok(cpl_run_log(&run, json_pack("{s:i}", "step", 9)));
    cpl_run_close(&run);
    cpl_text text = read_bytes(run_path("lines/metrics.jsonl"));
    for (char *c = text.bytes; *c; c++) /* removes all spaces */
        if (*c == ' ') memmove(c, c + 1, strlen(c));
    assert_string_equal(text.bytes, "{\"step\":1}\n{\"step\":2}\n{\"step\":9}\n");
    cpl_text_free(&text);
}
