/* test_formats.c - stored numbers and their factors, at every instruction set of this processor.
 *
 * Method: all comparisons are of bits. Any NaN equals any other NaN. Plain formats are compared
 *         number by number with small_floats.h, which test_numbers compares with the definitions.
 *         GGUF's formats are compared with vectors of the Python package gguf
 *         (golden/formats/make_formats.py). Factors are compared with products in double, which are
 *         exact before they are rounded. Stored bytes begin at odd addresses and end with their
 *         allocation, so that the sanitizers see a read beyond the end and an access that needs
 *         alignment. */
#include <signal.h>

#include "tensor/golden.h"
#include "tensor/levels.h"
#include "tensor/numbers/small_floats.h"

static uint8_t *new_bytes(int64_t count)
{
    return (uint8_t *)take((size_t)count + 1) + 1;
}

static uint8_t *random_bytes(int64_t count)
{
    cpl_rng_key key = {.seed = 13, .step = taken()->n_random++, .stream = CPL_STREAM_TEST};
    uint8_t *bytes  = new_bytes(count);
    for (int64_t i = 0; i < count; i++) bytes[i] = (uint8_t)cpl_rng_u32(&key, (uint64_t)i);
    return bytes;
}

static bool same(float got, float want)
{
    return isnan(want) ? isnan(got) : cpl_f32_bits(got) == cpl_f32_bits(want);
}

static const float *decoded(cpl_format format, const void *bytes, cpl_decode_shape shape)
{
    cpl_tensor out = new_tensor(CPL_F32, shape.rows, shape.cols);
    memset(out.storage, 0xff, cpl_tensor_bytes(out)); /* every number is set */
    cpl_cpu_on_host()->decode(cpl_f32(out), format, bytes, shape);
    return cpl_f32(out);
}

/* Returns the first `count` numbers, decoded in order. */
static const float *decoded_all(cpl_format format, const void *bytes, int64_t count)
{
    return decoded(format, bytes, (cpl_decode_shape){1, count, 0, 0, 1});
}

/* ---- names and sizes ---- */

TEST(test_names_and_sizes)
{
    assert_string_equal(cpl_format_name(CPL_FORMAT_BF16), "BF16");
    assert_string_equal(cpl_format_name(CPL_FORMAT_MXFP4), "MXFP4");
    assert_string_equal(cpl_format_name(CPL_FORMAT_OTHER), "other");
    assert_int_equal(cpl_format_block_numbers(CPL_FORMAT_F64), 1);
    assert_int_equal(cpl_format_block_bytes(CPL_FORMAT_F64), 8);
    assert_int_equal(cpl_format_block_numbers(CPL_FORMAT_INT4_WORD), 8);
    assert_int_equal(cpl_format_block_bytes(CPL_FORMAT_INT4_WORD), 4);
    assert_int_equal(cpl_format_block_numbers(CPL_FORMAT_OTHER), 1);
    assert_int_equal(cpl_format_block_bytes(CPL_FORMAT_OTHER), 0);
}

/* ---- plain formats ---- */

/* Returns number `index` of `bytes`, decoded by small_floats.h. */
static float plain(cpl_format format, const uint8_t *bytes, int64_t index)
{
    const int64_t size = cpl_format_block_bytes(format);
    double wide        = 0;
    float single       = 0;
    uint16_t half      = 0;
    bytes += index * size;
    switch (format) {
    case CPL_FORMAT_F64:
        memcpy(&wide, bytes, sizeof wide);
        return (float)wide;
    case CPL_FORMAT_F32:
        memcpy(&single, bytes, sizeof single);
        return single;
    case CPL_FORMAT_F16:
        memcpy(&half, bytes, sizeof half);
        return f16_to_f32(half);
    case CPL_FORMAT_BF16:
        memcpy(&half, bytes, sizeof half);
        return cpl_bf16_to_f32(half);
    case CPL_FORMAT_F8_E4M3:
        return f8_e4m3_to_f32(*bytes);
    case CPL_FORMAT_F8_E5M2:
        return f8_e5m2_to_f32(*bytes);
    case CPL_FORMAT_F8_E8M0:
        return e8m0_to_f32(*bytes);
    default:
        fail_msg("%s is not plain", cpl_format_name(format));
        return 0;
    }
}

static void check_plain(cpl_format format, const uint8_t *bytes, cpl_decode_shape s)
{
    const float *got = decoded(format, bytes, s);
    for (int64_t i = 0; i < s.rows * s.cols; i++) {
        const int64_t r = i / s.cols, c = i % s.cols;
        const float want = plain(format, bytes, s.first + r * s.row_step + c * s.col_step);
        if (!same(got[i], want))
            fail_msg("%s [%d,%d] steps %d and %d: (%d,%d) is %.9g, wanted %.9g",
                     cpl_format_name(format), (int)s.rows, (int)s.cols, (int)s.row_step,
                     (int)s.col_step, (int)r, (int)c, (double)got[i], (double)want);
    }
}

/* Decodes rows, every other number, columns, and every other number of a column. */
static void check_patterns(cpl_format format, const uint8_t *bytes, int64_t count, int64_t side)
{
    check_plain(format, bytes, (cpl_decode_shape){1, count, 0, 0, 1});
    check_plain(format, bytes, (cpl_decode_shape){2, count / 2, 0, 1, 2});
    check_plain(format, bytes, (cpl_decode_shape){side, side, 0, 1, side});
    check_plain(format, bytes, (cpl_decode_shape){side / 2, side, 0, 2, side});
    check_plain(format, bytes, (cpl_decode_shape){side / 2, side, 1, 2, side});
}

TEST(test_every_pattern)
{
    uint8_t *pairs = new_bytes(2 * 65536), *singles = new_bytes(256);
    for (int i = 0; i < 65536; i++) pairs[2 * i] = (uint8_t)i, pairs[2 * i + 1] = (uint8_t)(i >> 8);
    for (int i = 0; i < 256; i++) singles[i] = (uint8_t)i;
    check_patterns(CPL_FORMAT_F16, pairs, 65536, 256);
    check_patterns(CPL_FORMAT_BF16, pairs, 65536, 256);
    check_patterns(CPL_FORMAT_F8_E4M3, singles, 256, 16);
    check_patterns(CPL_FORMAT_F8_E5M2, singles, 256, 16);
    check_patterns(CPL_FORMAT_F8_E8M0, singles, 256, 16);
}

TEST(test_doubles_are_rounded)
{
    static const struct {
        double wide;
        float single;
    } pairs[] = {
        {1 + 0x1p-24, 1.0f},
        {1 + 0x3p-24, 1 + 0x1p-22f},
        {1 + 0x1.8p-24, 1 + 0x1p-23f},
        {-1.5, -1.5f},
        {1e300, INFINITY},
        {-1e39, -INFINITY},
        {0x1.ffffffp127, INFINITY},
        {0x1p-149, 0x1p-149f},
        {0x1p-150, 0.0f},
        {0x1.8p-150, 0x1p-149f},
        {-0.0, -0.0f},
        {NAN, NAN},
    };
    enum { N = sizeof pairs / sizeof *pairs };
    uint8_t *bytes = new_bytes(N * 8);
    for (int i = 0; i < N; i++) memcpy(bytes + 8 * i, &pairs[i].wide, 8);
    const float *got = decoded_all(CPL_FORMAT_F64, bytes, N);
    for (int i = 0; i < N; i++)
        if (!same(got[i], pairs[i].single))
            fail_msg("%.17g is %.9g", pairs[i].wide, (double)got[i]);
}

static const cpl_decode_shape shapes[] = {
    {1, 1, 0, 1, 1},     {1, 130, 3, 0, 1},    {5, 67, 2, 70, 1},    {4, 33, 1, 70, 2},
    {3, 9, 0, 50, 5},    {130, 67, 0, 1, 131}, {65, 130, 5, 2, 131}, {64, 64, 0, 1, 64},
    {66, 37, 1, 3, 200}, {1, 40, 2, 0, 7},     {40, 1, 2, 1, 9},     {70, 5, 0, 7, 7},
    {3, 17, 0, 1, 4},    {0, 5, 0, 5, 1},      {5, 0, 0, 1, 5},      {63, 81, 4, 2, 126},
};

TEST(test_shapes)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const cpl_decode_shape s = shapes[i];
        int64_t count            = s.first + 1;
        if (s.rows && s.cols) count += (s.rows - 1) * s.row_step + (s.cols - 1) * s.col_step;
        for (int f = CPL_FORMAT_F64; f <= CPL_FORMAT_F8_E8M0; f++)
            check_plain(f, random_bytes(count * cpl_format_block_bytes(f)), s);
    }
}

/* ---- four bits ---- */

TEST(test_f4_pairs)
{
    const cpl_decode_shape s = {3, 5, 2, 8, 1}; /* rows end inside a pair */
    uint8_t *all = new_bytes(256), *some = random_bytes(1 + 8 + 3);
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    const float *got = decoded_all(CPL_FORMAT_F4_PAIR, all, 512);
    for (int i = 0; i < 512; i++)
        assert_true(same(got[i], f4_to_f32((uint8_t)(i % 2 ? i / 2 >> 4 : i / 2))));
    got = decoded(CPL_FORMAT_F4_PAIR, some, s);
    for (int i = 0; i < 15; i++) {
        const int at       = 2 + i / 5 * 8 + i % 5;
        const uint8_t byte = some[at / 2];
        assert_true(same(got[i], f4_to_f32((uint8_t)(at % 2 ? byte >> 4 : byte))));
    }
}

/* Returns element 8j + t of a row: nibble t of word j, less 8. */
static float int4(const uint8_t *words, int64_t index)
{
    uint32_t word;
    memcpy(&word, words + index / 8 * 4, sizeof word);
    return (float)(int)(word >> index % 8 * 4 & 15) - 8;
}

TEST(test_int4_words)
{
    const cpl_decode_shape s = {4, 13, 8, 24, 1}; /* rows end inside a word */
    uint8_t *all = new_bytes(256), *some = random_bytes((1 + 3 * 3 + 2) * 4);
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)(i * 37);
    const float *got = decoded_all(CPL_FORMAT_INT4_WORD, all, 512);
    for (int i = 0; i < 512; i++) assert_true(same(got[i], int4(all, i)));
    got = decoded(CPL_FORMAT_INT4_WORD, some, s);
    for (int i = 0; i < 52; i++) assert_true(same(got[i], int4(some, 8 + i / 13 * 24 + i % 13)));
}

/* ---- GGUF ---- */

static uint8_t *golden_bytes(const cpl_safetensors *file, const cpl_safetensors_entry *entry)
{
    uint8_t *bytes = new_bytes(entry->n_elements);
    assert_ok(cpl_safetensors_read_raw(file, entry, bytes, 0, (size_t)entry->n_elements));
    return bytes;
}

/* Compares got [rows, size] with the blocks first, first + step, ... of the numbers wanted. */
static void check_blocks(cpl_format format, const float *got, const float *want, int64_t rows,
                         int64_t first, int64_t step)
{
    const int64_t size = cpl_format_block_numbers(format);
    for (int64_t i = 0; i < rows * size; i++) {
        const int64_t block = first + i / size * step;
        if (!same(got[i], want[block * size + i % size]))
            fail_msg("%s: number %d of block %d is %.9g, wanted %.9g", cpl_format_name(format),
                     (int)(i % size), (int)block, (double)got[i],
                     (double)want[block * size + i % size]);
    }
}

static void check_gguf(cpl_format format)
{
    char name[64];
    snprintf(name, sizeof name, "formats/%s.safetensors", cpl_format_name(format));
    cpl_safetensors *file              = golden_open(name);
    const cpl_safetensors_entry *entry = golden_entry(file, "blocks");
    const cpl_tensor numbers           = golden_tensor(file, "numbers");
    const int64_t n = (int64_t)entry->shape[0], size = numbers.shape[1];
    const float *want    = cpl_f32(numbers);
    const uint8_t *bytes = golden_bytes(file, entry);
    assert_int_equal(entry->shape[1], cpl_format_block_bytes(format));
    assert_int_equal(size, cpl_format_block_numbers(format));
    check_blocks(format, decoded_all(format, bytes, n * size), want, n, 0, 1);
    check_blocks(format, decoded(format, bytes, (cpl_decode_shape){n, size, 0, size, 1}), want, n,
                 0, 1);
    check_blocks(format, decoded(format, bytes, (cpl_decode_shape){n / 2, size, size, 2 * size, 1}),
                 want, n / 2, 1, 2);
    cpl_safetensors_close(file);
}

TEST(test_gguf)
{
    for (int f = CPL_FORMAT_Q8_0; f <= CPL_FORMAT_MXFP4; f++) check_gguf(f);
}

/* ---- factors ---- */

/* Scales the rows [first_row, first_row + rows) of `numbers` [any, cols]. */
static void check_scale(const float *numbers, const float *factors, cpl_scale_shape s)
{
    cpl_tensor x = new_tensor(CPL_F32, s.rows, s.cols);
    memcpy(x.storage, numbers + s.first_row * s.cols, cpl_tensor_bytes(x));
    cpl_cpu_on_host()->scale(cpl_f32(x), factors, s);
    for (int64_t i = 0; i < s.rows * s.cols; i++) {
        const int64_t r = s.first_row + i / s.cols, c = i % s.cols;
        const double factor = (double)factors[r / s.block_rows * s.step + c / s.block_cols];
        const float want    = (float)((double)numbers[r * s.cols + c] * factor);
        if (!same(cpl_f32(x)[i], want))
            fail_msg("(%d,%d) is %.9g, wanted %.9g", (int)r, (int)c, (double)cpl_f32(x)[i],
                     (double)want);
    }
}

/* Scales fp8 [19,37] in blocks of 8 x 16, of which the last are partial in both directions. The
 * factors are F32 and, as checkpoints also have them, BF16. Then there is one factor a row, and one
 * for all. */
TEST(test_fp8_factors)
{
    static const cpl_scale_shape pieces[] = {
        {19, 37, 0, 8, 16, 3}, {10, 37, 5, 8, 16, 3}, {1, 37, 18, 8, 16, 3},  {0, 37, 19, 8, 16, 3},
        {19, 37, 0, 1, 37, 1}, {7, 37, 12, 1, 37, 1}, {19, 37, 0, 19, 37, 0}, {4, 37, 3, 2, 1, 37},
    };
    const float *numbers = decoded_all(CPL_FORMAT_F8_E4M3, random_bytes(19 * 37), 19 * 37);
    cpl_tensor factors   = normal_2d(10, 37, 0.01f);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        check_scale(numbers, cpl_f32(factors), pieces[i]);
    cpl_tensor low = new_tensor(CPL_BF16, 3, 3);
    randomise(low, 0.01f);
    check_scale(numbers, decoded_all(CPL_FORMAT_BF16, low.storage, 9), pieces[1]);
}

/* Scales [6,20] in groups of 8: a row has three words, the last of them half full. */
TEST(test_int4_factors)
{
    uint8_t *words = random_bytes(6 * 3 * 4);
    const float *numbers =
        decoded(CPL_FORMAT_INT4_WORD, words, (cpl_decode_shape){6, 20, 0, 24, 1});
    cpl_tensor factors = new_tensor(CPL_BF16, 6, 3);
    randomise(factors, 0.1f);
    check_scale(numbers, decoded_all(CPL_FORMAT_BF16, factors.storage, 18),
                (cpl_scale_shape){6, 20, 0, 1, 8, 3});
    check_scale(numbers, decoded_all(CPL_FORMAT_BF16, factors.storage, 18),
                (cpl_scale_shape){2, 20, 3, 1, 8, 3});
}

/* Compares [5,96] in groups of 32 with 2^(e - 127) made by ldexp. The powers cover the whole range,
 * so that products are also subnormal and infinite. */
TEST(test_mxfp4_factors)
{
    enum { ROWS = 5, COLS = 96, GROUPS = COLS / 32 };
    static const uint8_t powers[ROWS * GROUPS] = {0,   1,   2,   3,   100, 126, 127, 128,
                                                  150, 200, 252, 253, 254, 120, 119};
    uint8_t *pairs                             = random_bytes(ROWS * COLS / 2);
    cpl_tensor x                               = new_tensor(CPL_F32, ROWS, COLS);
    cpl_cpu_on_host()->decode(cpl_f32(x), CPL_FORMAT_F4_PAIR, pairs,
                              (cpl_decode_shape){ROWS, COLS, 0, COLS, 1});
    cpl_cpu_on_host()->scale(cpl_f32(x), decoded_all(CPL_FORMAT_F8_E8M0, powers, ROWS * GROUPS),
                             (cpl_scale_shape){ROWS, COLS, 0, 1, 32, GROUPS});
    for (int i = 0; i < ROWS * COLS; i++) {
        const uint8_t byte = pairs[i / 2];
        const float number = f4_to_f32((uint8_t)(i % 2 ? byte >> 4 : byte));
        assert_true(same(cpl_f32(x)[i], (float)ldexp((double)number, powers[i / 32] - 127)));
    }
}

/* ---- mistakes ---- */

static bool stops(cpl_format format, cpl_decode_shape shape)
{
    uint8_t *bytes = random_bytes(4096);
    cpl_tensor out = new_tensor(CPL_F32, 8, 512);
    int status     = 0;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        cpl_cpu_on_host()->decode(cpl_f32(out), format, bytes, shape);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

TEST(test_mistakes_are_stopped)
{
    assert_false(stops(CPL_FORMAT_Q8_0, (cpl_decode_shape){2, 64, 32, 64, 1}));
    assert_true(stops(CPL_FORMAT_OTHER, (cpl_decode_shape){1, 1, 0, 1, 1}));
    assert_true(stops(CPL_FORMAT_Q8_0, (cpl_decode_shape){2, 33, 0, 64, 1}));
    assert_true(stops(CPL_FORMAT_Q4_K, (cpl_decode_shape){1, 256, 32, 256, 1}));
    assert_true(stops(CPL_FORMAT_Q4_K, (cpl_decode_shape){2, 256, 0, 128, 1}));
    assert_true(stops(CPL_FORMAT_INT4_WORD, (cpl_decode_shape){2, 8, 0, 8, 2}));
    assert_true(stops(CPL_FORMAT_BF16, (cpl_decode_shape){2, 8, -1, 8, 1}));
}
