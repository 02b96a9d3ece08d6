/* test_score_run.c - what a comparison makes of a run whose held-out documents it cannot score:
 * being out of memory is a failure, a file that is wrong or gone a warning, and nothing is passed
 * over. */
#include "app/score_run.h"

#include <sys/stat.h>

#include "base/arena.h"
#include "check.h"
#include "io/file.h"
#include "support/warnings.h"

/* A folder that has what a run has that is done: `last` and a configuration. */
static const char *run_with(const char *config)
{
    static char path[128];
    const char *folder = scratch_folder();
    char *join;
    snprintf(path, sizeof path, "%s", folder);
    join = cpl_path_join(folder, "step-000004");
    assert_int_equal(mkdir(join, 0777), 0);
    cpl_free(join);
    join = cpl_path_join(folder, "last");
    assert_int_equal(symlink("step-000004", join), 0);
    cpl_free(join);
    join = cpl_path_join(folder, "config.yaml");
    assert_ok(cpl_file_write_atomic(join, config, strlen(config)));
    cpl_free(join);
    n_warnings = 0;
    return path;
}

/* Whichever allocation fails, the status says so. But for those of the first listing: a folder that
 * cannot be listed is taken for one with checkpoints, which is right here. */
static void out_of_memory(void **state)
{
    (void)state;
    enum { MORE = 300, LISTING = 4 }; /* more than there are; of the folder and its names */
    const char *run = run_with("train:\n    steps: 9\n");
    int passed[MORE], last = 0;
    for (int nth = 1; nth < MORE; nth++) {
        cpl_alloc_fail_at(nth);
        cpl_status status = cpl_score_run(run, 3, -1, false, &a_log);
        cpl_alloc_fail_at(0);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
        passed[nth] = status == CPL_OK;
        if (status != CPL_OK) last = nth;
    }
    int passed_over = 0;
    for (int nth = 1; nth < last; nth++) passed_over += passed[nth];
    assert_true(last > 20 && last < MORE - 1);
    assert_int_equal(passed_over, LISTING);
    assert_int_equal(n_warnings, 0);
}

static void told(const char *config, const char *part)
{
    assert_ok(cpl_score_run(run_with(config), 3, -1, false, &a_log));
    assert_int_equal(n_warnings, 1);
    if (!strstr(warned, part) || !strstr(warned, ": held-out documents were not scored: "))
        fail_msg("the warning \"%s\" does not say \"%s\"", warned, part);
}

static void what_cannot_be_read(void **state)
{
    (void)state;
    told("train:\n    step: 4\n", "did you mean train.steps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(out_of_memory),
                                       cmocka_unit_test(what_cannot_be_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
