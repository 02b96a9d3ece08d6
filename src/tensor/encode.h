/* encode.h - converts floats to the formats of checkpoints: the inverse of the operation `decode`.
 *
 * Room:    tensor.
 * Formats: F32, F16, BF16 (to nearest, ties to even), Q8_0.
 * Q8_0:    the bits equal those of ggml's quantize_row_q8_0_ref. The scale of 32 numbers, an f16,
 *          is their largest absolute value / 127. Each number is divided by the scale in f32 and
 *          rounded to the nearest integer, ties away from 0. If the inverse of the scale is
 *          infinite, which ggml leaves undefined, numbers and scale are 0. */
#ifndef CPL_TENSOR_ENCODE_H
#define CPL_TENSOR_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/formats.h"

/* Returns whether cpl_encode supports the format. */
bool cpl_encode_knows(cpl_format format);

/* Encodes `count` numbers, a multiple of the format's block (assert), into `out`. Returns false if
 * the format cannot hold a number: infinite, NaN or too large. F32 holds every float. */
bool cpl_encode(cpl_format format, void *out, const float *in, int64_t count);

#endif /* CPL_TENSOR_ENCODE_H */
