/* alive_case.h - what the tests of alive.h share: who has lost whom, waiting, open files. Limits of
 * time are for a loaded machine; where a loss must not come from silence, the timeout is far longer. */
#ifndef CPL_TESTS_ALIVE_CASE_H
#define CPL_TESTS_ALIVE_CASE_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"
#include "parallel/alive.h"
#include "parallel/internal.h"

#define LONG_S  60.0 /* a timeout that no test reaches */
#define SHORT_S 2.0
#define SLACK_S 15.0 /* a loaded machine; far below LONG_S */

/* What a process of a test does and sees, in memory that all of them share. */
typedef struct rank_state {
    pid_t process;
    atomic_int stage; /* 1: connected; 2: closed */
    atomic_int calls; /* of the callback */
    atomic_int lost, lost_by_poll;
    double lost_at;
    char sentence[CPL_ALIVE_SENTENCE];
    atomic_bool must_report, must_close;
} rank_state;

static inline void note_loss(void *ctx, int rank, const char *sentence)
{
    rank_state *me = ctx;
    me->lost_at    = cpl_seconds_now();
    snprintf(me->sentence, sizeof me->sentence, "%s", sentence);
    atomic_store(&me->lost, rank);
    atomic_fetch_add(&me->calls, 1);
}

static inline void nap(void)
{
    usleep(2000);
}

static inline bool wait_for(atomic_int *what, int value, double most_s)
{
    const double until = cpl_seconds_now() + most_s;
    while (atomic_load(what) != value && cpl_seconds_now() < until) nap();
    return atomic_load(what) == value;
}

static inline int open_files(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

#endif
