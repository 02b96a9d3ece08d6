/* memory.h - how much memory a process may still take, and the error for a request beyond that.
 *
 * Room:  base. Linux: /proc/meminfo, the limits of the control groups (both versions) this process
 *        is in, at every level, and its own (RLIMIT_AS and RLIMIT_DATA: `ulimit -v` and `-d`). */
#ifndef CPL_BASE_MEMORY_H
#define CPL_BASE_MEMORY_H

#include <stddef.h>

#include "base/status.h"

/* Bytes that can be taken without swapping: the least of what the system has available, what each
 * control group leaves, counting its page cache as free, and what the limits of the process leave.
 * INFINITY if none of them is known. */
double cpl_memory_available(void);

/* The same for all processes of this machine together: without the limits of this process. */
double cpl_memory_of_machine(void);

/* Resident bytes of this process now; 0 if unknown. */
double cpl_memory_resident(void);

/* Peak resident bytes since the process began; 0 if unknown. */
double cpl_memory_peak(void);

/* CPL_ERR_MEMORY "PATH: not enough memory: ..." if the table of tensors of a file or checkpoint needs more
 * than the bytes there are. */
CPL_NODISCARD cpl_status cpl_memory_hold_table(const char *path, double needs, double there);

/* CPL_ERR_MEMORY "not enough memory: ..." if `needs` exceeds the available bytes; `what` names
 * their use: "training with these settings". */
CPL_NODISCARD cpl_status cpl_memory_check(double needs, const char *what);

/* The same with the bytes there are given. */
CPL_NODISCARD cpl_status cpl_memory_compare(double needs, double there, const char *what);

/* Takes `bytes` of address space (0: none) and `n_threads` - 1 more threads at the same time and
 * releases all of it: libraries that end the process if they get neither are used only after this.
 * CPL_ERR_MEMORY with a sentence if it is not available. */
CPL_NODISCARD cpl_status cpl_memory_try(size_t bytes, int n_threads);

/* Parts of cpl_memory_available, on text, for the tests. */

/* The value in bytes of "key: 123 kB" (/proc/meminfo) or "key 123" (memory.stat); -1: not there. */
double cpl_memory_field(const char *text, const char *key);

/* The path after "0::" (version 2; controller NULL) or "N:...,controller,...:" (version 1) in the
 * text of /proc/self/cgroup; "" if there is none. Cut to 511 bytes. */
void cpl_memory_group(char path[512], const char *text, const char *controller);

#endif /* CPL_BASE_MEMORY_H */
