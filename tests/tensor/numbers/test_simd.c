/* The vector-ready functions of tensor/cpu/simd.h, in the instruction set of this test. */
#include "tensor/cpu/simd.h"

#include <math.h>

#include "check.h"

static const double RELATIVE = 2e-7; /* the bound that simd.h promises for exp */

/* Checks every 37th float whose exponential is a normal number. */
TEST(test_exp_is_accurate)
{
    const uint32_t largest = cpl_f32_bits(88.7f);
    double worst           = 0;
    for (uint32_t bits = cpl_f32_bits(1e-10f); bits < largest; bits += 37) {
        const float x = cpl_f32_from_bits(bits);
        double above = exp((double)x), below = exp(-(double)x);
        worst = fmax(worst, fabs((double)cpl_exp(x) - above) / above);
        if (x < 87.3f) worst = fmax(worst, fabs((double)cpl_exp(-x) - below) / below);
    }
    assert_near(worst, 0, RELATIVE);
}

/* Below the normal numbers the step is 2^-149. Two roundings may lose one step. */
TEST(test_exp_of_tiny_results)
{
    for (float x = -87.3f; x > -110; x -= 0.01f)
        assert_near(cpl_exp(x), exp((double)x), 0x1p-149 + RELATIVE * exp((double)x));
    assert_true(cpl_exp(-1000) == 0 && cpl_exp(-INFINITY) == 0 && cpl_exp(-3e38f) == 0);
}

TEST(test_exp_beyond_its_range)
{
    assert_true(cpl_exp(0) == 1 && cpl_exp(-0.0f) == 1);
    assert_true(isinf(cpl_exp(88.8f)) && isinf(cpl_exp(3e38f)) && isinf(cpl_exp(INFINITY)));
    assert_true(isnan(cpl_exp(NAN)));
}

TEST(test_largest)
{
    float x[67];
    for (int n = 0; n <= 67; n++) {
        for (int at = 0; at < n; at++) { /* the largest number at every place */
            for (int i = 0; i < n; i++) x[i] = i == at ? -1.0f : -2.0f - (float)i;
            assert_true(cpl_largest(x, n) == -1.0f);
        }
    }
    for (int i = 0; i < 67; i++) x[i] = NAN;
    assert_true(cpl_largest(x, 67) == -INFINITY && cpl_largest(x, 0) == -INFINITY);
    x[40] = 3;
    assert_true(cpl_largest(x, 67) == 3);
}
