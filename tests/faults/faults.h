/* faults.h - parts that the files of the preloaded library share: see faults.c. All are hidden, so
 * that the program's names stay apart and calls in the signal handler need no lazy binding. */
#ifndef CPL_TESTS_FAULTS_FAULTS_H
#define CPL_TESTS_FAULTS_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum kind {
    READ,
    WRITE,
    OPEN,
    CREATE,
    CLOSE,
    SYNC,
    RENAME,
    MKDIR,
    UNLINK,
    LIST,
    CUT,
    LINK,
    STAT,
    LOCK,
    MEMORY,
    KINDS
} kind;

#pragma GCC visibility push(hidden)

extern const char *const fault_kind_names[KINDS];

/* ---- faults.c ---- */

/* The fault to make. */
extern struct fault_plan {
    unsigned selected; /* one bit for each kind */
    unsigned long long at;
    bool lasts;
    const char *path; /* part of the path of a call that counts; NULL: any path */
    enum { FAIL, SHORT, KILL, TEAR, SIGNAL, HANG } how;
    int number; /* number of the error or signal */
} fault_plan;

/* Counts a call. Returns whether the fault falls on it. */
bool fault_falls_here(kind k);

/* Reports a fault. The first report names the place. */
void fault_note(const char *what, const char *where);

/* Sends a signal to the process itself. */
void fault_signal(int number);

/* Returns a file of this many bytes as shared memory, made if it does not exist, or NULL. */
void *fault_map_file(const char *path, size_t bytes);

/* ---- faults_calls.c ---- */

/* Makes a call of the system that is not caught. */
long fault_call(long number, long a, long b, long c, long d, long e);

/* Catches calls from now on, except those on standard error. */
bool fault_catch_calls(void);

/* ---- faults_memory.c ---- */

/* Counts allocations from now on. */
void fault_catch_memory(void);

/* Writes the stacks of counted allocations to this file. */
bool fault_keep_stacks(const char *path);

#pragma GCC visibility pop

#endif /* CPL_TESTS_FAULTS_FAULTS_H */
