/* clock.h - seconds of a monotonic clock.
 *
 * Room:  base (header only). */
#ifndef CPL_BASE_CLOCK_H
#define CPL_BASE_CLOCK_H

#include <time.h>

static inline double cpl_seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif /* CPL_BASE_CLOCK_H */
