/* memory.h - the memory available to a process, and the error for a request beyond it.
 *
 * Room:  base. Linux: /proc/meminfo, the limits of the process's control groups (both versions,
 *        every level), and its own limits (RLIMIT_AS and RLIMIT_DATA: `ulimit -v` and `-d`). */
#ifndef CPL_BASE_MEMORY_H
#define CPL_BASE_MEMORY_H

#include <stddef.h>

#include "base/status.h"

/* Returns the bytes that can be allocated without swapping: the minimum of the system's available
 * memory, the free bytes of each control group, and the rest of the process's limits. Page cache
 * counts as free. Returns INFINITY if all of these numbers are unknown. */
double cpl_memory_available(void);

/* Returns the bytes available to all processes of the machine, without this process's limits. */
double cpl_memory_of_machine(void);

/* Returns the resident bytes of this process now, or 0 if unknown. */
double cpl_memory_resident(void);

/* Returns the peak of resident bytes since the process began, or 0 if unknown. */
double cpl_memory_peak(void);

/* Returns CPL_ERR_MEMORY "PATH: not enough memory: ..." if the table of tensors of a file or
 * checkpoint, `needs` bytes, exceeds `there`. */
CPL_NODISCARD cpl_status cpl_memory_hold_table(const char *path, double needs, double there);

/* Returns CPL_ERR_MEMORY "not enough memory: ..." if `needs` exceeds the available bytes. `what`
 * names the use of the memory: "training with these settings". */
CPL_NODISCARD cpl_status cpl_memory_check(double needs, const char *what);

/* Does what cpl_memory_check does, with `there` available bytes. */
CPL_NODISCARD cpl_status cpl_memory_compare(double needs, double there, const char *what);

/* Allocates `bytes` of address space (may be 0) and starts `n_threads` - 1 threads at the same
 * time, then releases both. Call it before libraries that end the process if memory or threads are
 * short. Returns CPL_ERR_MEMORY if memory or threads are not available. */
CPL_NODISCARD cpl_status cpl_memory_try(size_t bytes, int n_threads);

/* The functions below are parts of cpl_memory_available, on text, for the tests. */

/* Returns the bytes of "key: 123 kB" (/proc/meminfo) or "key 123" (memory.stat), else -1. */
double cpl_memory_field(const char *text, const char *key);

/* Sets `path` to the text after "0::" (version 2; controller NULL) or "N:...,controller,...:"
 * (version 1) in the text of /proc/self/cgroup, or to "" if no line matches. Cuts at 511 bytes. */
void cpl_memory_group(char path[512], const char *text, const char *controller);

#endif /* CPL_BASE_MEMORY_H */
