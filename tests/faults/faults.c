/* faults.c - a shared library that is preloaded into a program and lets its n-th call fail.
 *
 * Calls of the system are caught with a seccomp filter (faults_calls.c), so that the C library's
 * own calls (stdio, nftw) are caught too. The filter raises SIGSYS for every call of its table,
 * except from the one instruction with which the library makes calls itself. Allocations are caught
 * by taking the place of malloc and its kin (faults_memory.c). Nothing is caught before main.
 *
 *     FAULT_CALLS   kinds of calls that count, with commas: names of the table, or `memory`
 *     FAULT_AT      the fault is in the n-th of them, from 1; 0 or absent: no fault
 *     FAULT_HOW     the kind of fault:
 *                       EIO, ENOSPC, EINTR, EMFILE, ENOMEM   the call is not made and fails so
 *                       SHORT     a read or write of half the bytes
 *                       KILL      SIGKILL in place of the call
 *                       TEAR      half the bytes are written, then SIGKILL
 *                       TERM      SIGTERM to the process, then the call
 *                       STOP      SIGSTOP to the process, then the call
 *                       HANG      the thread stays in the call; others go on
 *     FAULT_PATH    calls count only on files whose path contains this text
 *     FAULT_LASTS   if set, all counted calls from the n-th on fail
 *     FAULT_CLOCK   factor by which time passes faster, for measurements before a run
 *     FAULT_REPORT  a file to which a `record` is written, up to date at any moment
 *     FAULT_STACKS  a file to which a number for the stack of calls of every counted allocation is
 *                   written, 8 bytes each: equal stacks of one run have equal numbers
 *
 * Faults spare standard error, files of the system (`outside` in faults_calls.c), and allocations
 * of the C library and of libraries that end the process by themselves when memory is out. A file
 * is never synced: no test here cuts the power, and the disks of test machines are slow. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"

enum { UNAVAILABLE = 77, PLACE_BYTES = 240 };

const char *const fault_kind_names[KINDS] = {"read", "write",  "open",  "create", "close",
                                             "sync", "rename", "mkdir", "unlink", "list",
                                             "cut",  "link",   "stat",  "lock",   "memory"};

/* ---- the report, which the driver reads; its layout is also in tests/faults/shim.py ---- */

typedef struct record {
    atomic_ullong seen;          /* calls that counted */
    atomic_ullong fired;         /* calls with a fault */
    atomic_ullong counts[KINDS]; /* calls of every kind, whether they count or not */
    char place[PLACE_BYTES];     /* kind and file, or object and offset, of the first fault */
} record;

static record unseen, *report = &unseen;

void *fault_map_file(const char *path, size_t bytes)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) return NULL;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return shared == MAP_FAILED ? NULL : shared;
}

/* ---- whether the fault falls here ---- */

struct fault_plan fault_plan;

bool fault_falls_here(kind k)
{
    atomic_fetch_add(&report->counts[k], 1);
    if (!(fault_plan.selected >> k & 1u)) return false;
    unsigned long long n = atomic_fetch_add(&report->seen, 1) + 1;
    if (!fault_plan.at || (fault_plan.lasts ? n < fault_plan.at : n != fault_plan.at)) return false;
    return true;
}

void fault_note(const char *what, const char *where)
{
    if (atomic_fetch_add(&report->fired, 1)) return;
    size_t used = 0;
    for (const char *from = what; *from && used < PLACE_BYTES - 2;) report->place[used++] = *from++;
    report->place[used++] = ' ';
    for (const char *from = where; *from && used < PLACE_BYTES - 1;)
        report->place[used++] = *from++;
    report->place[used] = '\0';
}

void fault_signal(int number)
{
    fault_call(SYS_kill, getpid(), number, 0, 0, 0);
}

/* ---- time ---- */

static long clock_speed = 1;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const long giga = 1000000000;
    int failed      = (int)fault_call(SYS_clock_gettime, clock, (long)now, 0, 0, 0);
    if (failed || clock_speed == 1 || clock != CLOCK_MONOTONIC) return failed;
    now->tv_sec *= clock_speed;
    now->tv_nsec *= clock_speed;
    now->tv_sec += now->tv_nsec / giga;
    now->tv_nsec %= giga;
    return 0;
}

/* ---- the beginning ---- */

static bool read_how(const char *word)
{
    static const struct {
        const char *word;
        int how, number;
    } known[] = {{"EIO", FAIL, EIO},        {"ENOSPC", FAIL, ENOSPC}, {"EINTR", FAIL, EINTR},
                 {"EMFILE", FAIL, EMFILE},  {"ENOMEM", FAIL, ENOMEM}, {"SHORT", SHORT, 0},
                 {"KILL", KILL, 0},         {"TEAR", TEAR, 0},        {"TERM", SIGNAL, SIGTERM},
                 {"STOP", SIGNAL, SIGSTOP}, {"HANG", HANG, 0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(word, known[i].word) != 0) continue;
        fault_plan.how    = known[i].how;
        fault_plan.number = known[i].number;
        return true;
    }
    return false;
}

static bool read_kinds(const char *list)
{
    while (*list) {
        size_t length = strcspn(list, ",");
        int k         = 0;
        while (k < KINDS && (strlen(fault_kind_names[k]) != length ||
                             strncmp(fault_kind_names[k], list, length) != 0))
            k++;
        if (k == KINDS) return false;
        fault_plan.selected |= 1u << k;
        list += length + (list[length] == ',');
    }
    return true;
}

static bool prepare(void)
{
    const char *calls = getenv("FAULT_CALLS"), *at = getenv("FAULT_AT"),
               *word = getenv("FAULT_HOW");
    const char *path = getenv("FAULT_REPORT"), *speed = getenv("FAULT_CLOCK");
    const char *stacks_path = getenv("FAULT_STACKS");
    if (calls && !read_kinds(calls)) return false;
    if (word && !read_how(word)) return false;
    if (path && !(report = fault_map_file(path, sizeof *report))) return false;
    if (stacks_path && !fault_keep_stacks(stacks_path)) return false;
    if (speed) clock_speed = strtol(speed, NULL, 10);
    if (at) fault_plan.at = strtoull(at, NULL, 10);
    fault_plan.lasts = getenv("FAULT_LASTS") != NULL;
    fault_plan.path  = getenv("FAULT_PATH");
    if ((fault_plan.selected & ~(1u << MEMORY)) && !fault_catch_calls()) return false;
    if (fault_plan.selected >> MEMORY & 1u) fault_catch_memory();
    return true;
}

typedef int main_function(int, char **, char **);
static main_function *program_main;

static int main_with_faults(int count, char **words, char **environment)
{
    static const char sentence[] =
        "faults: cannot catch calls here, or a FAULT_ variable is wrong\n";
    if (!prepare()) {
        (void)!write(STDERR_FILENO, sentence, sizeof sentence - 1);
        _exit(UNAVAILABLE);
    }
    return program_main(count, words, environment);
}

int __libc_start_main(main_function *main, int count, char **words, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end);

int __libc_start_main(main_function *main, int count, char **words, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    __typeof__(&__libc_start_main) real;
    *(void **)(void *)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    program_main            = main;
    return real(main_with_faults, count, words, init, fini, rtld_fini, stack_end);
}
