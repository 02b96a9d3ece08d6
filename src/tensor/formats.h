/* formats.h - the formats of numbers in published checkpoints, with the numbers and bytes of a
 * block.
 *
 * Room:    tensor. The operations `decode` and `scale` of host_ops.h convert them to floats.
 * Source:  docs/formats.md, "Quantised numbers"; the blocks of GGUF as in the Python package
 *          `gguf`. */
#ifndef CPL_TENSOR_FORMATS_H
#define CPL_TENSOR_FORMATS_H

#include <stddef.h>
#include <stdint.h>

/* FORMAT(name, numbers of a block, bytes of a block, description) */
#define CPL_FORMATS(FORMAT)                                                                        \
    FORMAT(F64, 1, 8, "f64, rounded to f32")                                                       \
    FORMAT(F32, 1, 4, "f32")                                                                       \
    FORMAT(F16, 1, 2, "f16")                                                                       \
    FORMAT(BF16, 1, 2, "bf16")                                                                     \
    FORMAT(F8_E4M3, 1, 1, "f8, 4 bits of exponent")                                                \
    FORMAT(F8_E5M2, 1, 1, "f8, 5 bits of exponent")                                                \
    FORMAT(F8_E8M0, 1, 1, "powers of two")                                                         \
    FORMAT(F4_PAIR, 2, 1, "f4 (E2M1), the first of two in the low bits")                           \
    FORMAT(INT4_WORD, 8, 4, "eight 4-bit integers in 32 bits, lowest first, stored plus 8")        \
    FORMAT(Q8_0, 32, 34, "GGUF Q8_0")                                                              \
    FORMAT(Q4_K, 256, 144, "GGUF Q4_K")                                                            \
    FORMAT(Q5_K, 256, 176, "GGUF Q5_K")                                                            \
    FORMAT(Q6_K, 256, 210, "GGUF Q6_K")                                                            \
    FORMAT(MXFP4, 32, 17, "GGUF MXFP4")

typedef enum cpl_format {
#define CPL_FORMAT_ENUM(name, numbers, bytes, what) CPL_FORMAT_##name,
    CPL_FORMATS(CPL_FORMAT_ENUM)
#undef CPL_FORMAT_ENUM
        CPL_FORMAT_OTHER, /* a format that cannot be read */
    CPL_N_FORMATS         = CPL_FORMAT_OTHER,
    CPL_FORMAT_LAST_PLAIN = CPL_FORMAT_F8_E8M0 /* later formats have blocks of several numbers */
} cpl_format;

const char *cpl_format_name(cpl_format format);      /* a name such as "BF16", or "other" */
int64_t cpl_format_block_numbers(cpl_format format); /* numbers of a block; 1 if plain or OTHER */
int64_t cpl_format_block_bytes(cpl_format format);   /* bytes of a block; 0 for OTHER */

/* A selection from a stored matrix: result (r,c) is number first + r row_step + c col_step, counted
 * from the beginning of the bytes. For a format with several numbers in a block, col_step must be
 * 1, and first, row_step and cols must be multiples of the block. With INT4_WORD and F4_PAIR the
 * columns may end inside a block. */
typedef struct cpl_decode_shape {
    int64_t rows, cols;
    int64_t first, row_step, col_step;
} cpl_decode_shape;

/* The factors of rows [first_row, first_row + rows) of a matrix: number (r,c) of the matrix has the
 * factor at (r / block_rows) * step + c / block_cols. */
typedef struct cpl_scale_shape {
    int64_t rows, cols;
    int64_t first_row, block_rows, block_cols, step;
} cpl_scale_shape;

#endif /* CPL_TENSOR_FORMATS_H */
