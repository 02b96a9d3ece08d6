/* cpu.h - names of the operations of this folder for each instruction set.
 *
 * Room:  tensor/cpu. Each file holds one operation or a family, named as in ops.h, which specifies
 *        the operations. backend/cpu_table.c joins all operations into a table.
 * Sets:  every .c of this folder is compiled once for each of CPL_ISA = v2, v3 (AVX2), v4 (AVX-512)
 *        on x86-64, and once as `any` elsewhere. Names that cross files are written
 *        CPL_ISA_NAME(cpl_cpu_x); all other functions are static. tensor/backend/backend.c
 *        chooses the set that runs. */
#ifndef CPL_TENSOR_CPU_CPU_H
#define CPL_TENSOR_CPU_CPU_H

#include "base/arena.h"
#include "tensor/host_ops.h"
#include "tensor/ops.h"

#define CPL_ISA_JOIN_(name, isa) name##_##isa
#define CPL_ISA_JOIN(name, isa)  CPL_ISA_JOIN_(name, isa)
#define CPL_ISA_NAME(name)       CPL_ISA_JOIN(name, CPL_ISA)

/* Declares cpl_cpu_<operation>_<isa>, with the operation's own signature. */
#define CPL_OP(name) __typeof__(*((const cpl_ops *)0)->name) CPL_ISA_NAME(cpl_cpu_##name);
#define CPL_ERC_OP(name)                                                                           \
    __typeof__(*((const cpl_erc_ops *)0)->name) CPL_ISA_NAME(cpl_cpu_erc_##name);
#define CPL_HOST_OP(name)                                                                          \
    __typeof__(*((const cpl_host_ops *)0)->name) CPL_ISA_NAME(cpl_cpu_host_##name);
#define CPL_RESPONSE_OP(name)                                                                      \
    __typeof__(*((const cpl_response_ops *)0)->name) CPL_ISA_NAME(cpl_cpu_response_##name);
#include "tensor/ops.def"

/* Declares the bytes of be->scratch that the operations of one file need at most. */
#define CPL_CPU_SCRATCH(file)                                                                      \
    size_t CPL_ISA_NAME(cpl_cpu_##file##_scratch)(const cpl_backend *be, const cpl_work *work)
CPL_CPU_SCRATCH(gemm);
CPL_CPU_SCRATCH(rows);
CPL_CPU_SCRATCH(attention);
CPL_CPU_SCRATCH(route);
CPL_CPU_SCRATCH(orth);
CPL_CPU_SCRATCH(experts);
CPL_CPU_SCRATCH(xent);
CPL_CPU_SCRATCH(spectral);
CPL_CPU_SCRATCH(figures);
CPL_CPU_SCRATCH(sample);
CPL_CPU_SCRATCH(erc);

extern const cpl_ops CPL_ISA_NAME(cpl_cpu_ops); /* backend/cpu_table.c */
extern const cpl_host_ops CPL_ISA_NAME(cpl_cpu_host_ops);

#endif /* CPL_TENSOR_CPU_CPU_H */
