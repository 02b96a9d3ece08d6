/* test_rng.c - Philox against the published known answers, and the moments of its distributions. */
#include "base/rng.h"

#include <math.h>

#include "check.h"

/* The answers are Random123's kat_vectors for philox4x32-10, with counter 0 and key 0. */
TEST(known_answer)
{
    cpl_rng_key zero = {0};
    uint32_t out[4];
    cpl_rng_block(&zero, 0, out);
    assert_int_equal(out[0], 0x6627e8d5);
    assert_int_equal(out[1], 0xe169c58d);
    assert_int_equal(out[2], 0xbc57ac4c);
    assert_int_equal(out[3], 0x9b00dbd8);
}

TEST(keys_do_not_collide)
{
    cpl_rng_key base = {.seed = 7, .step = 3, .layer = 2, .stream = CPL_STREAM_TEST};
    cpl_rng_key seed = base, step = base, layer = base, stream = base;
    seed.seed     = 8;
    step.step     = (uint64_t)1 << 33 | 3;
    layer.layer   = 3;
    stream.stream = CPL_STREAM_NOISE;
    uint32_t x    = cpl_rng_u32(&base, 5);
    assert_int_not_equal(x, cpl_rng_u32(&seed, 5));
    assert_int_not_equal(x, cpl_rng_u32(&step, 5));
    assert_int_not_equal(x, cpl_rng_u32(&layer, 5));
    assert_int_not_equal(x, cpl_rng_u32(&stream, 5));
    assert_int_not_equal(x, cpl_rng_u32(&base, 6));
    assert_int_equal(x, cpl_rng_u32(&base, 5));
}

TEST(moments)
{
    enum { COUNT = 200000 };
    cpl_rng_key key = {.seed = 1, .stream = CPL_STREAM_TEST};
    double u = 0, n = 0, n2 = 0, n4 = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        double x = cpl_rng_normal(&key, i);
        u += cpl_rng_uniform(&key, i);
        n += x;
        n2 += x * x;
        n4 += x * x * x * x;
    }
    assert_near(u / COUNT, 0.5, 5 * sqrt(1.0 / 12 / COUNT)); /* five standard errors */
    assert_near(n / COUNT, 0.0, 5 * sqrt(1.0 / COUNT));
    assert_near(n2 / COUNT, 1.0, 5 * sqrt(2.0 / COUNT));
    assert_near(n4 / COUNT, 3.0, 5 * sqrt(96.0 / COUNT));
}
