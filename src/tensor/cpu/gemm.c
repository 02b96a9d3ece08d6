/* gemm.c */
#include "tensor/cpu/isa.h"
typedef int CPL_ISA_NAME(cpl_empty);
