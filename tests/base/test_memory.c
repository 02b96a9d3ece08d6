/* test_memory.c - limits of the process itself, which are seen before they are met. Each case runs
 * in a process of its own, since a limit stays. */
#include <math.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/memory.h"
#include "check.h"

static const size_t MIB = (size_t)1 << 20;

/* Returns the bytes of address space that this process takes. */
static size_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file          = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1) _exit(3);
    fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void limit(int which, size_t most)
{
    struct rlimit l = {most, most};
    if (setrlimit(which, &l) != 0) _exit(4);
}

/* Runs a call in a process of its own. Returns 0 if it gives `want` and a sentence with `part`. */
static int in_a_process(void (*prepare)(void), size_t bytes, int n_threads, const char *part)
{
    int ended   = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prepare();
        cpl_status status = cpl_memory_try(bytes, n_threads);
        if (!part) _exit(status == CPL_OK ? 0 : 1);
        _exit(status == CPL_ERR_MEMORY && strstr(cpl_last_error(), part) ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    return ended;
}

static void nothing(void)
{
}

static void little_space(void)
{
    limit(RLIMIT_AS, address_space() + 8 * MIB);
    if (!(cpl_memory_available() <= (double)(8 * MIB))) _exit(5);
}

static void no_more_threads(void)
{
    if (geteuid() == 0 && setuid(65534) != 0) _exit(6);
    limit(RLIMIT_NPROC, 1);
}

TEST(test_what_can_be_had)
{
    assert_int_equal(in_a_process(nothing, MIB, 1, NULL), 0);
    assert_int_equal(in_a_process(nothing, 16 * MIB, 4, NULL), 0);
}

TEST(test_a_limit_of_address_space)
{
    assert_int_equal(in_a_process(little_space, MIB, 1, NULL), 0);
    assert_int_equal(in_a_process(little_space, 16 * MIB, 1, "not enough memory"), 0);
}

TEST(test_a_limit_of_threads)
{
    assert_int_equal(in_a_process(no_more_threads, MIB, 1, NULL), 0);
    assert_int_equal(in_a_process(no_more_threads, MIB, 3, "no more than 1 of 3 threads"), 0);
    assert_int_equal(in_a_process(no_more_threads, 0, 3, "no more than 1 of 3 threads"), 0);
}
