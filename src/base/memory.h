/* memory.h - the memory available to a process, and the error for a request beyond it.
 *
 * Room:  base. Linux: /proc/meminfo, the limits of the process's control groups (both versions,
 *        every level), and its own limits (RLIMIT_AS and RLIMIT_DATA: `ulimit -v` and `-d`). */
#ifndef CPL_BASE_MEMORY_H
#define CPL_BASE_MEMORY_H

#include <stddef.h>

#include "base/status.h"

/* Bytes that can be allocated without swapping: the minimum of the system's available memory, the
 * free bytes of each control group, with page cache counted as free, and the rest of the process's
 * limits. INFINITY if none is known. */
double cpl_memory_available(void);

/* Bytes available to all processes of this machine together, without the limits of this process. */
double cpl_memory_of_machine(void);

/* Resident bytes of this process now; 0 if unknown. */
double cpl_memory_resident(void);

/* Peak resident bytes since the process began; 0 if unknown. */
double cpl_memory_peak(void);

/* CPL_ERR_MEMORY "PATH: not enough memory: ..." if the table of tensors of a file or checkpoint,
 * `needs` bytes, exceeds `there`. */
CPL_NODISCARD cpl_status cpl_memory_hold_table(const char *path, double needs, double there);

/* CPL_ERR_MEMORY "not enough memory: ..." if `needs` exceeds the available bytes; `what` names
 * their use: "training with these settings". */
CPL_NODISCARD cpl_status cpl_memory_check(double needs, const char *what);

/* As cpl_memory_check, with `there` available bytes. */
CPL_NODISCARD cpl_status cpl_memory_compare(double needs, double there, const char *what);

/* Allocates `bytes` of address space (0: none) and starts `n_threads` - 1 threads at the same time,
 * then releases both. Called before libraries that end the process if they lack memory or threads.
 * CPL_ERR_MEMORY if they are not available. */
CPL_NODISCARD cpl_status cpl_memory_try(size_t bytes, int n_threads);

/* Parts of cpl_memory_available, on text, for the tests. */

/* The value in bytes of "key: 123 kB" (/proc/meminfo) or "key 123" (memory.stat); -1: missing. */
double cpl_memory_field(const char *text, const char *key);

/* The path after "0::" (version 2; controller NULL) or "N:...,controller,...:" (version 1) in the
 * text of /proc/self/cgroup; "" if it has none. Cut to 511 bytes. */
void cpl_memory_group(char path[512], const char *text, const char *controller);

#endif /* CPL_BASE_MEMORY_H */
