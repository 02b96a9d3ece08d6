/* test_encode.c - floats as stored numbers: f16 against distances in double, Q8_0 against its
 * equation in double and against the bytes of the Python package gguf (golden/gguf/small.gguf).
 *
 * Method: a block whose largest integer is 127 or -127, as ggml makes them, keeps its bytes when it
 * is decoded and encoded again. */
#include "tensor/encode.h"

#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "checkpoint/gguf.h"
#include "io/file.h"
#include "tensor/numbers/small_floats.h"

enum { BLOCK = 32, BLOCK_BYTES = 34 };

/* ---- f16 ---- */

/* Returns `below` or its upper neighbour, whichever is nearer to `value`; the even pattern if both
 * are as near. The pattern of infinity counts as 2^16. */
static uint16_t nearest(float value, uint16_t below)
{
    const uint16_t above = (uint16_t)(below + 1);
    const double high    = (above & 0x7fff) == 0x7c00 ? 65536.0 : fabs(f16_to_f32(above));
    const double size = fabs(value), low = fabs(f16_to_f32(below));
    if (size - low != high - size) return size - low < high - size ? below : above;
    return below & 1 ? above : below;
}

TEST(every_half_and_what_is_between)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        const uint16_t half = (uint16_t)bits;
        const float value   = f16_to_f32(half);
        const bool finite   = (half & 0x7c00) != 0x7c00;
        if (isnan(value))
            assert_true(isnan(f16_to_f32(cpl_f16_from_f32(value))));
        else
            assert_int_equal(cpl_f16_from_f32(value), half);
        if (!finite) continue;
        const bool last    = (half & 0x7fff) == 0x7bff;
        const double above = last ? 65536.0 : fabs(f16_to_f32((uint16_t)(half + 1)));
        const float middle = (float)copysign((fabs(value) + above) / 2, half & 0x8000 ? -1 : 1);
        assert_int_equal(cpl_f16_from_f32(middle), nearest(middle, half));
        assert_int_equal(cpl_f16_from_f32(nextafterf(middle, 0)), half);
        assert_int_equal(cpl_f16_from_f32(nextafterf(middle, middle * 2)), half + 1);
    }
    assert_int_equal(cpl_f16_from_f32(3e38f), 0x7c00);
    assert_int_equal(cpl_f16_from_f32(-0x1p-26f), 0x8000);
}

/* ---- Q8_0 ---- */

static void check_block(const float *in, const unsigned char *out)
{
    uint16_t half;
    double largest = 0;
    memcpy(&half, out, sizeof half);
    for (int i = 0; i < BLOCK; i++) largest = fmax(largest, fabs(in[i]));
    assert_near(f16_to_f32(half), largest / 127, largest / 127 * 0x1p-11 * 1.01 + 0x1p-25);
    for (int i = 0; i < BLOCK && largest > 0; i++) {
        const double exact = in[i] / (largest / 127);
        assert_near((int8_t)out[2 + i], exact, 0.5 + 127 * 0x1p-22);
    }
}

TEST(blocks_by_their_equation)
{
    const cpl_rng_key key = {.seed = 7};
    float in[3 * BLOCK];
    unsigned char out[3 * BLOCK_BYTES];
    for (uint32_t turn = 0; turn < 300; turn++) {
        for (uint32_t i = 0; i < 3 * BLOCK; i++)
            in[i] = ldexpf(cpl_rng_uniform(&key, turn * 1000 + i) - 0.5f, (int)(turn % 40) - 20);
        if (turn % 7 == 0) memset(in + BLOCK, 0, BLOCK * sizeof *in);
        assert_true(cpl_encode(CPL_FORMAT_Q8_0, out, in, 3 * BLOCK));
        for (int b = 0; b < 3; b++) check_block(in + b * BLOCK, out + b * BLOCK_BYTES);
    }
}

/* 0.5 and -1.5 lie between two integers where the largest is 127. */
TEST(ties_go_away_from_zero)
{
    float in[BLOCK] = {127, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, 126.5f};
    unsigned char out[BLOCK_BYTES];
    const int8_t wanted[] = {127, 1, -1, 2, -2, 3, 127, 0};
    assert_true(cpl_encode(CPL_FORMAT_Q8_0, out, in, BLOCK));
    assert_memory_equal(out + 2, wanted, sizeof wanted);
}

TEST(the_package_s_bytes)
{
    cpl_gguf *g;
    int64_t checked = 0;
    assert_ok(cpl_gguf_open(&g, NULL, golden_path("gguf/small.gguf"), (double)INFINITY));
    for (int64_t i = 0; i < g->count; i++) {
        const cpl_gguf_entry *e = &g->entries[i];
        if (e->format != CPL_FORMAT_Q8_0) continue;
        unsigned char *bytes = malloc(e->bytes), *again = malloc(e->bytes);
        float *numbers = malloc((size_t)e->n_elements * sizeof *numbers);
        assert_true(bytes && again && numbers);
        assert_ok(cpl_source_read_at(g->source, bytes, e->bytes, e->offset));
        for (int64_t n = 0; n < e->n_elements; n++) {
            const unsigned char *block = bytes + n / BLOCK * BLOCK_BYTES;
            uint16_t half;
            memcpy(&half, block, sizeof half);
            numbers[n] = f16_to_f32(half) * (float)(int8_t)block[2 + n % BLOCK];
        }
        assert_true(cpl_encode(CPL_FORMAT_Q8_0, again, numbers, e->n_elements));
        assert_memory_equal(bytes, again, e->bytes);
        checked += e->n_elements;
        free(bytes);
        free(again);
        free(numbers);
    }
    assert_int_equal(checked, 2 * 3 * 64);
    cpl_gguf_close(g);
}

/* ---- what a format cannot hold ---- */

static bool holds(cpl_format format, float value)
{
    float in[BLOCK] = {1, value};
    unsigned char out[BLOCK * sizeof(float)];
    return cpl_encode(format, out, in, BLOCK);
}

TEST(what_a_format_cannot_hold)
{
    static const struct {
        float value;
        bool f32, f16, bf16, q8;
    } cases[] = {
        {INFINITY, true, false, false, false}, {NAN, true, false, false, false},
        {65519, true, true, true, true},       {65520, true, false, true, true},
        {-65519, true, true, true, true},      {8.4e6f, true, false, true, false},
        {8.3e6f, true, false, true, true},     {3.4e38f, true, false, false, false},
        {3.3e38f, true, false, true, false},   {1e-45f, true, true, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(holds(CPL_FORMAT_F32, cases[i].value), cases[i].f32);
        assert_int_equal(holds(CPL_FORMAT_F16, cases[i].value), cases[i].f16);
        assert_int_equal(holds(CPL_FORMAT_BF16, cases[i].value), cases[i].bf16);
        assert_int_equal(holds(CPL_FORMAT_Q8_0, cases[i].value), cases[i].q8);
    }
    assert_true(cpl_encode_knows(CPL_FORMAT_Q8_0) && !cpl_encode_knows(CPL_FORMAT_Q4_K));
}

/* The inverse of the scale overflows. The result is zeros, not integers of an infinite product. */
TEST(tiny_numbers_become_zero)
{
    float in[BLOCK] = {1e-37f, -1e-40f, 1e-45f};
    unsigned char out[BLOCK_BYTES];
    const unsigned char zeros[BLOCK_BYTES] = {0};
    in[0]                                  = 1e-38f;
    assert_true(cpl_encode(CPL_FORMAT_Q8_0, out, in, BLOCK));
    assert_memory_equal(out, zeros, sizeof out);
}
