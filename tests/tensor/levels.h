/* levels.h - runs a test program once for every instruction set this processor has.
 *
 * Each process decides once which kernels run. Each level below the best is therefore a process of
 * its own: the same program with COUPLET_ISA set. oneDNN is held to the same level, so that bf16
 * products there are done by rounding. */
#ifndef CPL_TESTS_TENSOR_LEVELS_H
#define CPL_TESTS_TENSOR_LEVELS_H

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "tensor/backend/backend.h"

/* Runs the tests at this level alone and returns the number of failed tests. */
static inline int run_again_as(const char *isa)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("COUPLET_ISA", isa, 1);
        execl("/proc/self/exe", "test", (char *)NULL);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Calls `run` at every level. `run` runs the program's tests and returns the number of failures. */
static inline int run_at_every_level(int (*run)(void))
{
    static const char *const levels[] = {"v2", "v3", "v4"};
    int failed                        = run();
    if (getenv("COUPLET_ISA")) return failed;
    for (size_t i = 0; i < 3 && strcmp(levels[i], cpl_cpu_isa()) != 0; i++) {
        if (strcmp(cpl_cpu_isa(), "any") == 0) break;
        failed += run_again_as(levels[i]);
    }
    return failed;
}

TESTS_DO(around, run_at_every_level);

#endif /* CPL_TESTS_TENSOR_LEVELS_H */
