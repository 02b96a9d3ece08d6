/* test_score_documents.c - runs whose held-out documents cannot be scored. Each failure has its
 * sentence, and a lack of memory is never reported as another failure. */
#include "app/score_documents.h"

#include <sys/stat.h>

#include "base/arena.h"
#include "check.h"
#include "io/file.h"

/* Makes a folder with the files of a finished run: `last` and a configuration. */
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
    return path;
}

/* Every failed allocation gives CPL_ERR_MEMORY. With enough memory the run has no held-out text. */
TEST(out_of_memory)
{
    enum { MORE = 300 }; /* more than the allocations of a call */
    const char *run = run_with("train:\n    steps: 9\n");
    int nth         = 1;
    for (; nth < MORE; nth++) {
        cpl_alloc_fail_at(nth);
        const cpl_status status = cpl_score_documents(run, 3, -1, false, NULL);
        cpl_alloc_fail_at(0);
        if (status == CPL_ERR_INPUT) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
    }
    assert_true(nth > 20 && nth < MORE);
}

TEST(what_cannot_be_scored)
{
    const char *run = run_with("train:\n    step: 4\n");
    assert_fails(CPL_ERR_INPUT, "did you mean train.steps",
                 cpl_score_documents(run, 3, -1, false, NULL));
    run = run_with("data:\n    validation: [ids.npy]\n");
    assert_fails(CPL_ERR_INPUT, "data.validation is token shards",
                 cpl_score_documents(run, 3, -1, false, NULL));
    run = run_with("train:\n    steps: 4\n");
    assert_fails(CPL_ERR_INPUT, "data.validation is not set",
                 cpl_score_documents(run, 3, -1, false, NULL));
    char *path = cpl_path_join(run, "documents.json");
    assert_ok(cpl_file_write_atomic(path, "{}", 2));
    assert_fails(CPL_ERR_INPUT, "replace it with --overwrite",
                 cpl_score_documents(run, 3, -1, false, NULL));
    assert_fails(CPL_ERR_INPUT, "data.validation is not set",
                 cpl_score_documents(run, 3, -1, true, NULL));
    cpl_free(path);
    assert_fails(CPL_ERR_INPUT, "is no run",
                 cpl_score_documents(scratch_folder(), 3, -1, true, NULL));
}
