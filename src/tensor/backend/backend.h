/* backend.h - choosing and making a backend, and what this machine can do.
 *
 * Room:  tensor/backend. */
#ifndef CPL_TENSOR_BACKEND_H
#define CPL_TENSOR_BACKEND_H

#include "base/log.h"
#include "tensor/host_ops.h"
#include "tensor/ops.h"

/* The instruction set the kernels run with: "v4" (AVX-512), "v3" (AVX2), "v2", or "any" if the
 * processor is not x86-64. COUPLET_ISA=v2|v3|v4 in the environment lowers it (tests, comparisons).
 */
const char *cpl_cpu_isa(void);

/* The operations on arrays of the host, of that instruction set. */
const cpl_host_ops *cpl_cpu_on_host(void);

/* The processor multiplies bf16 itself (AVX512-BF16 or AMX), and oneDNN makes use of it. */
bool cpl_cpu_has_bf16(void);

/* The processor's name as the system reports it. */
const char *cpl_cpu_name(void);

/* Processors this program may run on, or OMP_NUM_THREADS if that is set. */
int cpl_cpu_count(void);

/* How many fork() lie between the process that loaded the library and this one: 0 in the former. */
int cpl_backend_forks(void);

/* Whether it multiplies bf16 itself, as every GPU that is opened does; NULL: the CPU. */
bool cpl_backend_has_bf16(const cpl_backend *be);

/* Of cpl_backend_open: CPL_BF16 where the backend multiplies it itself, else CPL_F32. */
static const cpl_dtype cpl_dtype_fastest = (cpl_dtype)(CPL_F64 + 1);

/* The backend of what trains and infers, on the device that the setting compute.device names:
 *     auto            the first GPU, if there are one and the module couplet-cuda.so; else the CPU
 *     cpu             as cpl_backend_cpu
 *     cuda, cuda:N    a GPU, the first or number N
 * and of the type `compute`, CPL_F32, CPL_BF16 or cpl_dtype_fastest.
 * CPL_ERR_USAGE, with a sentence, for another word and for a device that is not there; CPL_ERR_DEVICE
 * for a module that cannot be loaded or belongs to another version. device.c. */
CPL_NODISCARD cpl_status cpl_backend_open(cpl_backend *be, const char *device, cpl_dtype compute,
                                          int n_threads);

/* Sets `device` to what compute.device, `asked`, is for one of `ranks` processes: auto is the CPU where
 * there are several. CPL_ERR_USAGE for a GPU, which one process computes on. */
CPL_NODISCARD cpl_status cpl_device_of_ranks(const char **device, const char *asked, int64_t ranks);

/* How many threads there are where `asked` are asked for; 0: cpl_cpu_count(). After a fork it is 1
 * whatever was asked for: the child has the pool of GNU's OpenMP in its memory without the threads,
 * and would wait for them for ever. */
int cpl_cpu_threads(int asked);

/* Makes the threads and the primitives of oneDNN that operations on n_threads use. Both libraries
 * end the process if they get no memory, so memory is requested first: CPL_ERR_MEMORY with a
 * sentence. Only the first call of a process takes time; cpl_backend_reserve does it too. */
CPL_NODISCARD cpl_status cpl_cpu_start(int n_threads);

/* A CPU backend. compute: CPL_F32 or CPL_BF16 (works on every processor; slow without
 * cpl_cpu_has_bf16), on cpl_cpu_threads(n_threads). Holds no memory until cpl_backend_reserve. */
void cpl_backend_cpu(cpl_backend *be, cpl_dtype compute, int n_threads);

/* Makes scratch large enough for `work`. CPL_ERR_MEMORY if there is none: `be` then has no scratch. */
CPL_NODISCARD cpl_status cpl_backend_reserve(cpl_backend *be, const cpl_work *work);

/* Tells the log be->note, in the first call of the process that has one. */
void cpl_backend_tell(const cpl_backend *be, const cpl_log *log);

/* CPL_ERR_MEMORY "not enough memory: ..." if `needs` bytes are more than can be taken now: of the backend's
 * device, or of the host (cpl_memory_check). `what` names their use. */
CPL_NODISCARD cpl_status cpl_backend_fits(cpl_backend *be, double needs, const char *what);

/* The first failure that is known, as sync returns it; waits for nothing. */
CPL_NODISCARD cpl_status cpl_backend_status(const cpl_backend *be);

/* Gives scratch back; nothing if `be` is all zero. */
void cpl_backend_free(cpl_backend *be);

/* The speed in FLOP/s of the backend's gemm in be->compute on large operands, measured for about
 * `seconds`: the machine's matrix peak, so the fastest of the repeats counts (other programs only
 * ever make one slower). Takes memory of the backend for the operands, and gives it back. */
CPL_NODISCARD cpl_status cpl_backend_peak(double *flops, cpl_backend *be, double seconds);

#endif /* CPL_TENSOR_BACKEND_H */
