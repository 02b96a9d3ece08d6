/* check.h - what every test program needs on top of cmocka: files, reference data, tolerances. */
#ifndef CPL_TESTS_CHECK_H
#define CPL_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"

/* Fails with the library's own sentence. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != CPL_OK) fail_msg("%s: %s", #call, cpl_last_error());                         \
    } while (0)

/* The call must fail with `code` and a sentence that contains `part`. */
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

/* A path below tests/golden (part of the project). Static buffers, four in turn. */
static inline const char *golden_path(const char *relative)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "tests/golden/%s", relative);
    return path;
}

/* A path below the larger reference data that only some machines have: $COUPLET_SHARED, or
 * ../shared beside the project. NULL if it is not there: the test then calls skip(). */
static inline const char *shared_path(const char *relative)
{
    static char paths[4][512];
    static int turn;
    char *path       = paths[turn = (turn + 1) % 4];
    const char *root = getenv("COUPLET_SHARED");
    snprintf(path, sizeof paths[0], "%s/%s", root ? root : "../shared", relative);
    return access(path, R_OK) == 0 ? path : NULL;
}

/* A fresh empty folder for this test; the caller leaves it to the system's temporary folder. */
static inline const char *scratch_folder(void)
{
    static char paths[4][64];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "/tmp/couplet-test-XXXXXX");
    if (!mkdtemp(path)) fail_msg("mkdtemp: no temporary folder");
    return path;
}

#endif /* CPL_TESTS_CHECK_H */
