/* spin.c - see spin.h */
#include "cli/terminal/spin.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

/* Turns of libgomp's waiting loop, some tens of nanoseconds each; its own default is 300,000.
 * bench/neighbours.py compares counts: docs/benchmarks/README.md. */
static const char spin_count[] = "10000";

void cpl_spin_bound(char **argv)
{
    char program[PATH_MAX];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    /* By its own path, which ps and pkill show, and not as /proc/self/exe. */
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", spin_count, 1) != 0) return;
    program[length] = '\0';
    (void)execv(program, argv); /* returns where it fails: then the default policy holds */
}
