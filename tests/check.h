/* check.h - additions to cmocka for all test programs: files, reference data, tolerances. */
#ifndef CPL_TESTS_CHECK_H
#define CPL_TESTS_CHECK_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"

/* Fails with the library's own sentence. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != CPL_OK) fail_msg("%s: %s", #call, cpl_last_error());                         \
    } while (0)

/* Asserts that the call fails with `code` and a sentence that contains `part`. */
#define assert_fails(code, part, call)                                                             \
    do {                                                                                           \
        assert_int_equal((call), (code));                                                          \
        if (!strstr(cpl_last_error(), (part)))                                                     \
            fail_msg("the sentence \"%s\" does not say \"%s\"", cpl_last_error(), (part));         \
    } while (0)

#define assert_near(got, want, tolerance)                                                          \
    do {                                                                                           \
        double got_ = (got), want_ = (want), tol_ = (tolerance);                                   \
        if (!(got_ - want_ <= tol_ && want_ - got_ <= tol_))                                       \
            fail_msg("%s is %.9g, wanted %.9g within %.3g", #got, got_, want_, tol_);              \
    } while (0)

/* {...} is a row or a list that clang-format fills line by line. It would break a bare {...} behind
 * every value. */
#define LIST(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Returns a path below tests/golden (part of the project) in one of four static buffers. */
static inline const char *golden_path(const char *relative)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "tests/golden/%s", relative);
    return path;
}

/* Returns a path below the larger reference data, which only the further tests read:
 * $COUPLET_SHARED, or ../shared beside the project. */
static inline const char *shared_path(const char *relative)
{
    static char paths[4][512];
    static int turn;
    char *path       = paths[turn = (turn + 1) % 4];
    const char *root = getenv("COUPLET_SHARED");
    snprintf(path, sizeof paths[0], "%s/%s", root ? root : "../shared", relative);
    return path;
}

/* True if the program's argument chooses the further tests, on the larger reference data. */
static bool further;

/* Returns a path below golden, of the checkout or, in further tests, of the larger data. */
static inline const char *reference_path(const char *relative)
{
    char name[256];
    snprintf(name, sizeof name, "golden/%s", relative);
    return further ? shared_path(name) : golden_path(relative);
}

/* The folder of a test program's temporary files. Its child processes use the folder too, but only
 * the first process removes it. */
static struct scratch_home {
    char root[32];
    pid_t owner;
} scratch_home;

static inline int remove_scratch_file(const char *path, const struct stat *about, int type,
                                      struct FTW *place)
{
    (void)about, (void)type, (void)place;
    (void)remove(path);
    return 0;
}

static inline void remove_scratch(void)
{
    if (getpid() == scratch_home.owner)
        nftw(scratch_home.root, remove_scratch_file, 16, FTW_DEPTH | FTW_PHYS);
}

/* Makes an empty folder and returns its path. Both last until the program ends. */
static inline const char *scratch_folder(void)
{
    static struct scratch_path {
        struct scratch_path *before;
        char path[64];
    } * last;
    static int made;
    struct scratch_path *next = malloc(sizeof *next);
    if (!next) abort();
    next->before = last;
    last         = next;
    if (!scratch_home.owner) {
        snprintf(scratch_home.root, sizeof scratch_home.root, "/tmp/couplet-test-XXXXXX");
        if (!mkdtemp(scratch_home.root)) fail_msg("mkdtemp: no temporary folder");
        scratch_home.owner = getpid();
        atexit(remove_scratch);
    }
    snprintf(last->path, sizeof last->path, "%.32s/%d-%d", scratch_home.root, (int)getpid(),
             made++);
    if (mkdir(last->path, 0700) != 0) fail_msg("mkdir: no temporary folder");
    return last->path;
}

/* ---- the tests of a program ----
 *
 * TEST(name) { ... } is a test. The program runs its tests in the order in which they are written.
 * TEST_FURTHER is one of the further tests, TEST_ANY a test of both kinds. */

enum { RUNS_PLAINLY = 1, RUNS_FURTHER = 2, MOST_TESTS = 64 };

static struct {
    struct CMUnitTest each[MOST_TESTS];
    int runs[MOST_TESTS];
    size_t count;
    CMFixtureFunction before_all, after_all, before_each, after_each;
    int (*around)(int (*run)(void));            /* runs `run`, perhaps several times */
    int (*with_argument)(const char *argument); /* in place of the tests */
} program_tests;

#define TEST_THAT(runs_when, test)                                                                 \
    static void test(void **state);                                                                \
    __attribute__((constructor)) static void add_##test(void)                                      \
    {                                                                                              \
        add_test(runs_when, (struct CMUnitTest){.name = #test, .test_func = test});                \
    }                                                                                              \
    static void test(__attribute__((unused)) void **state)

#define TEST(name)         TEST_THAT(RUNS_PLAINLY, name)
#define TEST_FURTHER(name) TEST_THAT(RUNS_FURTHER, name)
#define TEST_ANY(name)     TEST_THAT(RUNS_PLAINLY | RUNS_FURTHER, name)

/* TESTS_DO(after_each, function) sets a function of program_tests. */
#define TESTS_DO(what, function)                                                                   \
    __attribute__((constructor)) static void set_##what(void)                                      \
    {                                                                                              \
        program_tests.what = function;                                                             \
    }                                                                                              \
    struct CMUnitTest

/* SCRATCH_FOLDER(folder) is one scratch folder for all tests of the program. */
#define SCRATCH_FOLDER(name)                                                                       \
    static const char *name;                                                                       \
    __attribute__((constructor)) static void make_##name(void)                                     \
    {                                                                                              \
        name = scratch_folder();                                                                   \
    }                                                                                              \
    struct CMUnitTest

static inline void add_test(int runs_when, struct CMUnitTest test)
{
    if (program_tests.count == MOST_TESTS) abort();
    program_tests.runs[program_tests.count]   = runs_when;
    program_tests.each[program_tests.count++] = test;
}

/* Returns the number of tests that failed. */
static inline int run_program_tests(void)
{
    struct CMUnitTest tests[MOST_TESTS];
    size_t n = 0;
    for (size_t i = 0; i < program_tests.count; i++) {
        if (!(program_tests.runs[i] & (further ? RUNS_FURTHER : RUNS_PLAINLY))) continue;
        tests[n]                 = program_tests.each[i];
        tests[n].setup_func      = program_tests.before_each;
        tests[n++].teardown_func = program_tests.after_each;
    }
    return n == 0 || _cmocka_run_group_tests("tests", tests, n, program_tests.before_all,
                                             program_tests.after_all);
}

#ifdef CPL_TEST_PROGRAM /* set by tests/CMakeLists.txt */
int main(int n_arguments, char **arguments)
{
    if (n_arguments > 1 && program_tests.with_argument)
        return program_tests.with_argument(arguments[1]);
    further = n_arguments > 1 && strcmp(arguments[1], "further") == 0;
    if (further && access(shared_path(""), R_OK) != 0) return 77;
    return program_tests.around ? program_tests.around(run_program_tests) : run_program_tests();
}
#endif

#endif /* CPL_TESTS_CHECK_H */
