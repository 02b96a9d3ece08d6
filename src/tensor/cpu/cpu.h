/* cpu.h - the operations of this folder by name, and what its files share.
 *
 * Room:  tensor/cpu. One file an operation or a family of them, named as in ops.h; table.c joins
 *        them. The reference for what each does is ops.h. */
#ifndef CPL_TENSOR_CPU_CPU_H
#define CPL_TENSOR_CPU_CPU_H

#include "tensor/cpu/isa.h"
#include "tensor/ops.h"

/* cpl_cpu_<operation>_<isa>, with the operation's own signature. */
#define CPL_OP(name) __typeof__(*((const cpl_ops *)0)->name) CPL_ISA_NAME(cpl_cpu_##name);
#include "tensor/ops.def"
#undef CPL_OP

/* Bytes of be->scratch that the operations of one file need at most. */
#define CPL_CPU_SCRATCH(file)                                                                      \
    size_t CPL_ISA_NAME(cpl_cpu_##file##_scratch)(const cpl_backend *be, const cpl_work *work)
CPL_CPU_SCRATCH(gemm);
CPL_CPU_SCRATCH(rows);
CPL_CPU_SCRATCH(attention);
CPL_CPU_SCRATCH(route);
CPL_CPU_SCRATCH(orth);
CPL_CPU_SCRATCH(experts);
CPL_CPU_SCRATCH(xent);
CPL_CPU_SCRATCH(reduce);
CPL_CPU_SCRATCH(figures);
CPL_CPU_SCRATCH(sample);
CPL_CPU_SCRATCH(proxy);

/* All operations but the proxies and the responses (table.c), the proxies (erc.c), the responses
 * (response.c); backend.c joins them. */
extern const cpl_ops CPL_ISA_NAME(cpl_cpu_ops);
extern const cpl_proxy_ops CPL_ISA_NAME(cpl_cpu_proxy_ops);
extern const cpl_response_ops CPL_ISA_NAME(cpl_cpu_response_ops);

#endif /* CPL_TENSOR_CPU_CPU_H */
