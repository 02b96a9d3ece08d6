/* test_numbers.c - every bit pattern of every small format against its definition.
 *
 * Method: the oracle takes sign, exponent and mantissa apart and puts the value together with
 * ldexp in double. Comparison is of bits, so that -0 and 0 differ. Any NaN equals any NaN. */
#include "tensor/numbers/small_floats.h"

#include <math.h>
#include <stdbool.h>

#include "base/rng.h"
#include "check.h"

/* Returns the value of a format with `e` exponent and `m` mantissa bits. `ieee`: the largest
 * exponent is infinity and NaN. Otherwise only the largest magnitude is NaN. */
static double oracle(unsigned bits, int e, int m, bool ieee)
{
    int bias = (1 << (e - 1)) - 1, exponent = (int)(bits >> m) & ((1 << e) - 1);
    int mantissa = (int)bits & ((1 << m) - 1), top = (1 << e) - 1;
    double sign = bits >> (e + m) & 1 ? -1.0 : 1.0;
    if (ieee && exponent == top) return mantissa ? NAN : sign * INFINITY;
    if (!ieee && exponent == top && mantissa == (1 << m) - 1) return NAN;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - m);
    return sign * ldexp(mantissa + (1 << m), exponent - bias - m);
}

static void assert_same(float got, double want, unsigned bits)
{
    bool same = isnan(want) ? isnan(got) : cpl_f32_bits(got) == cpl_f32_bits((float)want);
    if (!same) fail_msg("pattern %#x gives %.9g, wanted %.9g", bits, (double)got, want);
}

TEST(sixteen_bits)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        assert_same(f16_to_f32((uint16_t)bits), oracle(bits, 5, 10, true), bits);
        assert_same(cpl_bf16_to_f32((uint16_t)bits), oracle(bits, 8, 7, true), bits);
    }
}

TEST(eight_bits_and_four)
{
    for (unsigned bits = 0; bits < 256; bits++) {
        assert_same(f8_e4m3_to_f32((uint8_t)bits), oracle(bits, 4, 3, false), bits);
        assert_same(f8_e5m2_to_f32((uint8_t)bits), oracle(bits, 5, 2, true), bits);
        assert_same(e8m0_to_f32((uint8_t)bits), bits == 255 ? NAN : ldexp(1, (int)bits - 127),
                    bits);
        double magnitude =
            bits & 6 ? ldexp((bits & 1) + 2, (int)(bits >> 1 & 3) - 2) : (bits & 1) * 0.5;
        assert_same(f4_to_f32((uint8_t)bits), bits & 8 ? -magnitude : magnitude, bits);
    }
    assert_true(f8_e4m3_to_f32(0x7e) == 448.0f);
    assert_true(isinf(f8_e5m2_to_f32(0x7c)));
}

/* Returns the nearest bf16 by distances in double, or the even bf16 of two equally near. */
static uint16_t nearest(float value)
{
    uint16_t below = (uint16_t)(cpl_f32_bits(value) >> 16), above = (uint16_t)(below + 1);
    double exact = (double)value, low = oracle(below, 8, 7, true), high = oracle(above, 8, 7, true);
    if (isinf(low)) return below;
    if (isinf(high)) high = copysign(ldexp(1, 128), high); /* as if the range went on */
    double to_low = fabs(exact - low), to_high = fabs(high - exact);
    if (to_low != to_high) return to_low < to_high ? below : above;
    return below & 1 ? above : below;
}

TEST(rounds_to_nearest_even)
{
    cpl_rng_key key               = {.seed = 7, .stream = CPL_STREAM_TEST};
    static const uint32_t tails[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t head = 0; head < 65536; head++) {
        for (size_t t = 0; t < 8; t++) {
            uint32_t tail = t < 6 ? tails[t] : cpl_rng_u32(&key, 8 * head + t) & 0xffff;
            float value   = cpl_f32_from_bits(head << 16 | tail);
            uint16_t got  = cpl_bf16_from_f32(value);
            if (isnan(value)) {
                assert_true(isnan(cpl_bf16_to_f32(got)));
                assert_int_equal(got >> 15, head >> 15);
            } else if (got != nearest(value)) {
                fail_msg("%.9g becomes %#x, wanted %#x", (double)value, got, nearest(value));
            }
        }
    }
}
