/* isa.h - one source, several instruction sets: every .c of this folder is compiled once for each
 * of CPL_ISA = v2, v3 (AVX2), v4 (AVX-512) on x86-64, and once as `any` elsewhere.
 *
 * Room:  tensor/cpu. Names that cross files of this folder are written CPL_ISA_NAME(cpl_cpu_x); all
 *        else is static. Which set runs is decided once, in tensor/backend.c. */
#ifndef CPL_TENSOR_CPU_ISA_H
#define CPL_TENSOR_CPU_ISA_H

#define CPL_ISA_JOIN_(name, isa) name##_##isa
#define CPL_ISA_JOIN(name, isa)  CPL_ISA_JOIN_(name, isa)
#define CPL_ISA_NAME(name)       CPL_ISA_JOIN(name, CPL_ISA)

#endif /* CPL_TENSOR_CPU_ISA_H */
