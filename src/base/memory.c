/* memory.c - see memory.h */
#include "base/memory.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/arena.h"
#include "base/text.h"

enum { FILE_BYTES = 1 << 15, PATH_BYTES = 1024 };

/* Reads the first bytes of a file of the system. Sets "" if the file cannot be read. */
static void read_text(char text[FILE_BYTES], const char *path)
{
    size_t length = 0;
    FILE *file    = fopen(path, "re");
    if (file) {
        length = fread(text, 1, FILE_BYTES - 1, file);
        fclose(file);
    }
    text[length] = '\0';
}

double cpl_memory_field(const char *text, const char *key)
{
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, length) != 0) continue;
        const char *value = line + length;
        if (*value != ':' && *value != ' ') continue;
        char *end;
        double number = strtod(value + 1, &end);
        if (end == value + 1) return -1;
        return strncmp(end, " kB", 3) == 0 ? number * 1024 : number;
    }
    return -1;
}

/* Returns whether `word` is an item of a comma-separated list that ends at a colon. */
static bool holds(const char *list, const char *word)
{
    for (;; list++) {
        const size_t length = strcspn(list, ",:");
        if (length == strlen(word) && memcmp(list, word, length) == 0) return true;
        list += length;
        if (*list != ',') return false;
    }
}

void cpl_memory_group(char path[512], const char *text, const char *controller)
{
    path[0] = '\0';
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        if (*line == '\n' && *++line == '\0') return;
        const char *list = strchr(line, ':');
        const char *tail = list ? strchr(list + 1, ':') : NULL;
        if (!tail) return;
        if (controller ? holds(list + 1, controller) : tail == list + 1) {
            snprintf(path, 512, "%.*s", (int)strcspn(tail + 1, "\n"), tail + 1);
            return;
        }
    }
}

/* Returns the number in a limit file, or INFINITY if the file is absent, holds "max", or holds the
 * largest multiple of a page, which means no limit in version 1. */
static double limit_of(const char *folder, const char *name)
{
    char path[PATH_BYTES], text[FILE_BYTES], *end;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    read_text(text, path);
    double number = strtod(text, &end);
    return end == text || number > 0x1p62 ? INFINITY : number;
}

/* Returns the free bytes of a control group: limit minus use. Page cache counts as free. */
static double left_in(const char *folder, const char *limit, const char *used, const char *cached)
{
    char path[PATH_BYTES], text[FILE_BYTES];
    double most = limit_of(folder, limit), now = limit_of(folder, used);
    if (isinf(most) || isinf(now)) return most;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    read_text(text, path);
    double idle = cpl_memory_field(text, cached);
    return fmax(most - now + fmax(idle, 0), 0);
}

/* Returns the smallest number of free bytes of the group and its ancestors. */
static double left_in_groups(const char *root, char path[512], const char *limit, const char *used,
                             const char *cached)
{
    char folder[PATH_BYTES];
    double least = INFINITY;
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", root, path);
        least       = fmin(least, left_in(folder, limit, used, cached));
        char *slash = strrchr(path, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

static double of_this_process(const char *key)
{
    char text[FILE_BYTES];
    read_text(text, "/proc/self/status");
    return fmax(cpl_memory_field(text, key), 0);
}

double cpl_memory_resident(void)
{
    return of_this_process("VmRSS");
}

double cpl_memory_peak(void)
{
    return of_this_process("VmHWM");
}

/* Returns the bytes left of a limit of this process, of which `used` are in use. */
static double left_in_limit(double used, const struct rlimit *limit)
{
    return limit->rlim_cur == RLIM_INFINITY ? INFINITY : fmax((double)limit->rlim_cur - used, 0);
}

static double left_in_limits(void)
{
    struct rlimit limit;
    double least = INFINITY;
    if (getrlimit(RLIMIT_AS, &limit) == 0) least = left_in_limit(of_this_process("VmSize"), &limit);
    if (getrlimit(RLIMIT_DATA, &limit) == 0)
        least = fmin(least, left_in_limit(of_this_process("VmData"), &limit));
    return least;
}

double cpl_memory_of_machine(void)
{
    char text[FILE_BYTES], path[512];
    read_text(text, "/proc/meminfo");
    double system = cpl_memory_field(text, "MemAvailable");
    double least  = system < 0 ? INFINITY : system;
    read_text(text, "/proc/self/cgroup");
    cpl_memory_group(path, text, NULL);
    least = fmin(least, left_in_groups("/sys/fs/cgroup", path, "memory.max", "memory.current",
                                       "inactive_file"));
    cpl_memory_group(path, text, "memory");
    return fmin(least, left_in_groups("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                                      "memory.usage_in_bytes", "total_inactive_file"));
}

double cpl_memory_available(void)
{
    return fmin(cpl_memory_of_machine(), left_in_limits());
}

cpl_status cpl_memory_compare(double needs, double there, const char *what)
{
    char wanted[32], had[32];
    if (!(needs > there)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "not enough memory: %s needs %s, and %s are free", what,
                    cpl_text_bytes(wanted, needs), cpl_text_bytes(had, there));
}

cpl_status cpl_memory_hold_table(const char *path, double needs, double there)
{
    char wanted[32], had[32];
    if (!(needs > there)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY,
                    "%s: not enough memory: its table of tensors needs %s, and %s is what it may "
                    "take",
                    path, cpl_text_bytes(wanted, needs),
                    cpl_text_bytes(had, there > 0 ? there : 0));
}

cpl_status cpl_memory_check(double needs, const char *what)
{
    return cpl_memory_compare(needs, cpl_memory_available(), what);
}

/* ---- trial allocation ---- */

static void *wait_and_end(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Returns how many of `wanted` threads can run at the same time. All threads have ended then. */
static int try_threads(pthread_t *threads, int wanted)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    int made             = 0;
    pthread_mutex_lock(&gate);
    while (made < wanted && pthread_create(&threads[made], NULL, wait_and_end, &gate) == 0) made++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < made; i++) pthread_join(threads[i], NULL);
    return made;
}

static cpl_status try_both(size_t bytes, pthread_t *threads, int n_threads)
{
    char words[32];
    void *space = bytes == 0 ? NULL
                             : mmap(NULL, bytes, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return CPL_FAIL(CPL_ERR_MEMORY,
                        "not enough memory: the kernels of oneDNN need %s of address space, "
                        "and there is less (`ulimit -v` shows the limit in KiB)",
                        cpl_text_bytes(words, (double)bytes));
    int made = 1 + try_threads(threads, n_threads - 1);
    if (space) munmap(space, bytes);
    if (made == n_threads) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY,
                    "the system gives this process no more than %d of %d threads: use fewer, or "
                    "raise its limits (`ulimit -u`, and `ulimit -v` for their stacks)",
                    made, n_threads);
}

cpl_status cpl_memory_try(size_t bytes, int n_threads)
{
    pthread_t *threads = cpl_alloc((size_t)n_threads * sizeof *threads);
    if (!threads) return CPL_ERR_MEMORY;
    cpl_status status = try_both(bytes, threads, n_threads);
    cpl_free(threads);
    return status;
}
