/* encode.c - see encode.h */
#include "tensor/encode.h"

#include <math.h>
#include <string.h>

#include "base/status.h"
#include "tensor/numbers.h"

enum { Q8_NUMBERS = 32 };

bool cpl_encode_knows(cpl_format format)
{
    return format == CPL_FORMAT_F32 || format == CPL_FORMAT_F16 || format == CPL_FORMAT_BF16 ||
           format == CPL_FORMAT_Q8_0;
}

static bool encode_halves(cpl_format format, unsigned char *out, const float *in, int64_t count)
{
    const bool brain        = format == CPL_FORMAT_BF16;
    const uint16_t infinite = brain ? 0x7f80u : 0x7c00u;
    bool finite             = true;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t half = brain ? cpl_bf16_from_f32(in[i]) : cpl_f16_from_f32(in[i]);
        finite              = finite && (half & infinite) != infinite;
        memcpy(out + 2 * i, &half, sizeof half);
    }
    return finite;
}

/* Encodes a block: the scale, then the 32 integers. */
static bool encode_q8_block(unsigned char *out, const float *in)
{
    float largest = 0;
    bool finite   = true;
    for (int i = 0; i < Q8_NUMBERS; i++) {
        finite  = finite && isfinite(in[i]);
        largest = fmaxf(largest, fabsf(in[i]));
    }
    const float scale   = largest / 127;
    const float inverse = scale > 0 && isfinite(1 / scale) ? 1 / scale : 0;
    const uint16_t half = cpl_f16_from_f32(scale);
    memcpy(out, &half, sizeof half);
    finite = finite && (half & 0x7c00u) != 0x7c00u;
    for (int i = 0; finite && i < Q8_NUMBERS; i++)
        out[2 + i] = (unsigned char)(int8_t)roundf(in[i] * inverse);
    return finite;
}

static bool encode_q8(unsigned char *out, const float *in, int64_t count)
{
    bool finite         = true;
    const int64_t bytes = cpl_format_block_bytes(CPL_FORMAT_Q8_0);
    for (int64_t b = 0; b < count / Q8_NUMBERS && finite; b++)
        finite = encode_q8_block(out + b * bytes, in + b * Q8_NUMBERS);
    return finite;
}

bool cpl_encode(cpl_format format, void *out, const float *in, int64_t count)
{
    CPL_ASSERT(cpl_encode_knows(format) && count % cpl_format_block_numbers(format) == 0);
    if (format == CPL_FORMAT_Q8_0) return encode_q8(out, in, count);
    if (format != CPL_FORMAT_F32) return encode_halves(format, out, in, count);
    memcpy(out, in, (size_t)count * sizeof *in);
    return true;
}
