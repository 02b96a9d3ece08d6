/* alive_case.h - parts that the tests of alive.h share: lost ranks, waiting, open files. Limits of
 * time are for a loaded machine. The timeout is far longer if a loss must not come from silence. */
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
#define SLACK_S 15.0 /* for a loaded machine; far below LONG_S */

/* State of a process of a test, in memory that all processes share. */
typedef struct rank_state {
    pid_t process;
    atomic_int stage; /* 1: connected; 2: closed */
    atomic_int calls; /* calls of the callback */
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
