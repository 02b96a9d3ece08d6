/* backend.h - chooses and makes a backend, and answers queries about this machine.
 *
 * Room:  tensor/backend. */
#ifndef CPL_TENSOR_BACKEND_H
#define CPL_TENSOR_BACKEND_H

#include "base/log.h"
#include "tensor/host_ops.h"
#include "tensor/ops.h"

/* Returns the instruction set that the kernels use: "v4" (AVX-512), "v3" (AVX2), "v2", or "any" if
 * the processor is not x86-64. COUPLET_ISA=v2|v3|v4 in the environment lowers it (tests,
 * comparisons). */
const char *cpl_cpu_isa(void);

/* Returns the operations on host arrays, compiled for the instruction set of cpl_cpu_isa(). */
const cpl_host_ops *cpl_cpu_on_host(void);

/* Returns whether the processor has bf16 products (AVX512-BF16 or AMX) and oneDNN uses them. */
bool cpl_cpu_has_bf16(void);

/* Returns the processor's name as the system reports it. */
const char *cpl_cpu_name(void);

/* Returns the number of processors this program may use, or OMP_NUM_THREADS if it is set. */
int cpl_cpu_count(void);

/* Returns the number of fork() calls between the process that loaded the library and this process.
 * It is 0 in the process that loaded the library. */
int cpl_backend_forks(void);

/* Returns whether the backend has bf16 products in hardware, as every GPU has. NULL is the CPU. */
bool cpl_backend_has_bf16(const cpl_backend *be);

/* A value for `compute` of cpl_backend_open: CPL_BF16 if the backend has bf16 products in hardware,
 * otherwise CPL_F32. */
static const cpl_dtype cpl_dtype_fastest = (cpl_dtype)(CPL_F64 + 1);

/* Opens the backend for training and inference on `device`, a value of compute.device:
 *     auto            the first GPU if the machine has a GPU and couplet-cuda.so is installed,
 *                     otherwise the CPU
 *     cpu             as cpl_backend_cpu
 *     cuda, cuda:N    a GPU, the first or number N
 * Operands of products have the type `compute`: CPL_F32, CPL_BF16 or cpl_dtype_fastest. Returns
 * CPL_ERR_USAGE for another word or a device that the machine lacks, and CPL_ERR_DEVICE for a
 * module that cannot be loaded or belongs to another version. */
CPL_NODISCARD cpl_status cpl_backend_open(cpl_backend *be, const char *device, cpl_dtype compute,
                                          int n_threads);

/* Sets *device to the device of each of `ranks` processes. `asked` is compute.device. auto becomes
 * cpu if there are several processes. Returns CPL_ERR_USAGE for a GPU with several processes. */
CPL_NODISCARD cpl_status cpl_device_of_ranks(const char **device, const char *asked, int64_t ranks);

/* Returns the number of threads to use if `asked` are requested. `asked` 0 means cpl_cpu_count().
 * After a fork the result is always 1: the child has GNU OpenMP's pool in its memory but not the
 * pool's threads, and would wait for them for ever. */
int cpl_cpu_threads(int asked);

/* Makes the threads and the primitives of oneDNN that operations on n_threads use. Both libraries
 * end the process if they get no memory, so memory is requested first. Returns CPL_ERR_MEMORY with
 * a sentence if it is not available. Only the first call of a process takes time.
 * cpl_backend_reserve calls it. */
CPL_NODISCARD cpl_status cpl_cpu_start(int n_threads);

/* Makes a CPU backend with cpl_cpu_threads(n_threads) threads. `compute` is CPL_F32 or CPL_BF16.
 * CPL_BF16 works on every processor but is slow without cpl_cpu_has_bf16. The backend takes memory
 * in cpl_backend_reserve. */
void cpl_backend_cpu(cpl_backend *be, cpl_dtype compute, int n_threads);

/* Makes scratch large enough for `work`. Returns CPL_ERR_MEMORY if the memory is not available.
 * `be` then has no scratch. */
CPL_NODISCARD cpl_status cpl_backend_reserve(cpl_backend *be, const cpl_work *work);

/* Writes be->note to the log. Only the first note of the process is written. */
void cpl_backend_tell(const cpl_backend *be, const cpl_log *log);

/* Returns CPL_ERR_MEMORY "not enough memory: ..." if `needs` bytes are more than the free memory of
 * the backend's device, or of the host (cpl_memory_check). `what` names the use of the bytes. */
CPL_NODISCARD cpl_status cpl_backend_fits(cpl_backend *be, double needs, const char *what);

/* Returns the first failure known so far, as sync does, but without waiting for pending work. */
CPL_NODISCARD cpl_status cpl_backend_status(const cpl_backend *be);

/* Frees the scratch and the backend's own memory. Does nothing if `be` is all zero. */
void cpl_backend_free(cpl_backend *be);

/* Sets *flops to the speed in FLOP/s of the backend's gemm in be->compute on large operands,
 * measured for about `seconds`. The fastest repeat counts, since other programs can only make a
 * repeat slower. The operands take memory of the backend during the call. */
CPL_NODISCARD cpl_status cpl_backend_peak(double *flops, cpl_backend *be, double seconds);

#endif /* CPL_TENSOR_BACKEND_H */
