/* encode.h - floats as checkpoints store them: the other direction of the operation `decode`.
 *
 * Room:    tensor.
 * Formats: F32, F16, BF16 (to nearest, ties to even), Q8_0.
 * Q8_0:    as ggml's quantize_row_q8_0_ref, to the bit: of each 32 numbers the scale, an f16, is
 *          the largest size / 127; a number is the nearest integer to it over the scale in f32, ties
 *          away from 0. Where the inverse of the scale is infinite, which ggml leaves undefined, the
 *          numbers are 0, as the scale is. */
#ifndef CPL_TENSOR_ENCODE_H
#define CPL_TENSOR_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/formats.h"

/* Whether floats can be stored so. */
bool cpl_encode_knows(cpl_format format);

/* Sets `out` to `count` numbers, a multiple of the format's block (assert). False if the format
 * cannot hold one of them (infinite, NaN or too large for it); F32 holds every float. */
bool cpl_encode(cpl_format format, void *out, const float *in, int64_t count);

#endif /* CPL_TENSOR_ENCODE_H */
