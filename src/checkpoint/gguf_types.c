/* gguf_types.c - see gguf_internal.h. Codes and blocks as in the Python package `gguf` (0.19); codes
 * that are missing between them belonged to types that are no longer written. */
#include "checkpoint/gguf_internal.h"

/* TYPE(code, name, numbers of a block, bytes of a block, what it is decoded as) */
#define TYPES(TYPE)                                                                                \
    TYPE(0, F32, 1, 4, F32)                                                                        \
    TYPE(1, F16, 1, 2, F16)                                                                        \
    TYPE(2, Q4_0, 32, 18, OTHER)                                                                   \
    TYPE(3, Q4_1, 32, 20, OTHER)                                                                   \
    TYPE(6, Q5_0, 32, 22, OTHER)                                                                   \
    TYPE(7, Q5_1, 32, 24, OTHER)                                                                   \
    TYPE(8, Q8_0, 32, 34, Q8_0)                                                                    \
    TYPE(9, Q8_1, 32, 40, OTHER)                                                                   \
    TYPE(10, Q2_K, 256, 84, OTHER)                                                                 \
    TYPE(11, Q3_K, 256, 110, OTHER)                                                                \
    TYPE(12, Q4_K, 256, 144, Q4_K)                                                                 \
    TYPE(13, Q5_K, 256, 176, Q5_K)                                                                 \
    TYPE(14, Q6_K, 256, 210, Q6_K)                                                                 \
    TYPE(15, Q8_K, 256, 292, OTHER)                                                                \
    TYPE(16, IQ2_XXS, 256, 66, OTHER)                                                              \
    TYPE(17, IQ2_XS, 256, 74, OTHER)                                                               \
    TYPE(18, IQ3_XXS, 256, 98, OTHER)                                                              \
    TYPE(19, IQ1_S, 256, 50, OTHER)                                                                \
    TYPE(20, IQ4_NL, 32, 18, OTHER)                                                                \
    TYPE(21, IQ3_S, 256, 110, OTHER)                                                               \
    TYPE(22, IQ2_S, 256, 82, OTHER)                                                                \
    TYPE(23, IQ4_XS, 256, 136, OTHER)                                                              \
    TYPE(24, I8, 1, 1, OTHER)                                                                      \
    TYPE(25, I16, 1, 2, OTHER)                                                                     \
    TYPE(26, I32, 1, 4, OTHER)                                                                     \
    TYPE(27, I64, 1, 8, OTHER)                                                                     \
    TYPE(28, F64, 1, 8, F64)                                                                       \
    TYPE(29, IQ1_M, 256, 56, OTHER)                                                                \
    TYPE(30, BF16, 1, 2, BF16)                                                                     \
    TYPE(34, TQ1_0, 256, 54, OTHER)                                                                \
    TYPE(35, TQ2_0, 256, 66, OTHER)                                                                \
    TYPE(39, MXFP4, 32, 17, MXFP4)                                                                 \
    TYPE(40, NVFP4, 64, 36, OTHER)                                                                 \
    TYPE(41, Q1_0, 128, 18, OTHER)

static const cpl_gguf_type types[] = {
#define TYPE_ROW(code, name, numbers, bytes, format)                                               \
    [code] = {#name, numbers, bytes, CPL_FORMAT_##format},
    TYPES(TYPE_ROW)
#undef TYPE_ROW
};

const cpl_gguf_type *cpl_gguf_type_of(uint32_t code)
{
    bool known = code < sizeof types / sizeof *types && types[code].name;
    return known ? &types[code] : NULL;
}
