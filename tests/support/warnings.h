/* warnings.h - a log that keeps the last warning and counts them. */
#ifndef CPL_TESTS_SUPPORT_WARNINGS_H
#define CPL_TESTS_SUPPORT_WARNINGS_H

#include "base/log.h"
#include "check.h"

static char warned[1024];
static int n_warnings;

static void listen(void *ctx, cpl_log_level level, const char *sentence)
{
    (void)ctx;
    assert_int_equal(level, CPL_LOG_WARN);
    snprintf(warned, sizeof warned, "%s", sentence);
    n_warnings++;
}

static const cpl_log a_log = {listen, NULL};

#endif /* CPL_TESTS_SUPPORT_WARNINGS_H */
