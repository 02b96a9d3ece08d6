/* decode.c - decodes stored numbers to floats and multiplies them by their factors.
 *
 * Room:    tensor/cpu. Operations: host_ops.h; formats: tensor/formats.h.
 * Bits:    the result is equal for every instruction set: numbers are assembled from bits or by
 *          exact sums. No expression contains a product and a sum, since some compilers would fuse
 *          and round them once.
 * Names:   `from` is the address of the numbers, of any alignment. A line is a run of numbers at
 *          equal distances. */
#include <string.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/lanes.h"
#include "tensor/numbers.h"

/* ---- one number, without branches, so that the compiler can vectorise loops ---- */

/* Selects `yes` or `no` by a mask, because the compiler turns `?:` around a sum into a branch. */
static inline uint32_t choose(bool which, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)which;
    return (yes & mask) | (no & ~mask);
}

/* Returns the float with sign bit `sign`, and exponent and mantissa `placed` at the bits of an
 * f32's. `bias` is the difference of the exponents' biases. A subnormal m is first read as 1.m with
 * the exponent one higher. Then the 1 is subtracted, which is exact. */
static inline float assemble(uint32_t sign, uint32_t placed, uint32_t bias)
{
    const uint32_t one = (bias + 1) << 23, normal = placed + (bias << 23);
    const float small = cpl_f32_from_bits(placed + one) - cpl_f32_from_bits(one);
    return cpl_f32_from_bits(sign | choose(placed >= 1u << 23, normal, cpl_f32_bits(small)));
}

/* Converts f16 to f32. An exponent of all ones (infinity, NaN) stays all ones. */
static inline float half(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000u) << 16, placed = (bits & 0x7fffu) << 13;
    const uint32_t whole = choose(placed >= 31u << 23, 0x7f800000u, 0);
    return cpl_f32_from_bits(cpl_f32_bits(assemble(sign, placed, 127 - 15)) | whole);
}

static inline float f4(uint32_t bits)
{
    return assemble((bits & 8u) << 28, (bits & 7u) << 22, 127 - 1);
}

static inline float at_f64(const uint8_t *from)
{
    double value;
    memcpy(&value, from, sizeof value);
    return (float)value;
}

static inline float at_f32(const uint8_t *from)
{
    float value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline float at_f16(const uint8_t *from)
{
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    return half(bits);
}

static inline float at_bf16(const uint8_t *from)
{
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    return cpl_bf16_to_f32(bits);
}

static inline float at_f8_e4m3(const uint8_t *from)
{
    const uint32_t sign = (*from & 0x80u) << 24, placed = (*from & 0x7fu) << 20;
    const uint32_t number = cpl_f32_bits(assemble(sign, placed, 127 - 7));
    return cpl_f32_from_bits(choose(placed == 0x7fu << 20, sign | 0x7fc00000u, number));
}

static inline float at_f8_e5m2(const uint8_t *from)
{
    return half((uint32_t)*from << 8);
}

static inline float at_f8_e8m0(const uint8_t *from)
{
    const uint32_t bits = *from, power = choose(bits == 0, 0x00400000u, bits << 23);
    return cpl_f32_from_bits(choose(bits == 255, 0x7fc00000u, power));
}

/* ---- lines of plain numbers ---- */

typedef void (*line_of)(float *restrict out, const uint8_t *restrict from, int64_t step,
                        int64_t count);

/* Sets out [count] to the numbers at `from`, `step` numbers apart. Steps 1 and 2 have separate
 * loops, which read whole vectors. */
#define LINE(name, bytes)                                                                          \
    static void line_##name(float *restrict out, const uint8_t *restrict from, int64_t step,       \
                            int64_t count)                                                         \
    {                                                                                              \
        if (step == 1) {                                                                           \
            _Pragma("omp simd") for (int64_t i = 0; i < count; i++) out[i] =                       \
                at_##name(from + i * (bytes));                                                     \
        } else if (step == 2) {                                                                    \
            _Pragma("omp simd") for (int64_t i = 0; i < count; i++) out[i] =                       \
                at_##name(from + i * 2 * (bytes));                                                 \
        } else {                                                                                   \
            for (int64_t i = 0; i < count; i++) out[i] = at_##name(from + i * step * (bytes));     \
        }                                                                                          \
    }
LINE(f64, 8)
LINE(f32, 4)
LINE(f16, 2)
LINE(bf16, 2)
LINE(f8_e4m3, 1)
LINE(f8_e5m2, 1)
LINE(f8_e8m0, 1)

static const line_of lines[CPL_N_FORMATS] = {
    [CPL_FORMAT_F64] = line_f64,         [CPL_FORMAT_F32] = line_f32,
    [CPL_FORMAT_F16] = line_f16,         [CPL_FORMAT_BF16] = line_bf16,
    [CPL_FORMAT_F8_E4M3] = line_f8_e4m3, [CPL_FORMAT_F8_E5M2] = line_f8_e5m2,
    [CPL_FORMAT_F8_E8M0] = line_f8_e8m0,
};

/* A tile, 16 kB, stays in the innermost cache. The tile is long because each piece of a column that
 * is read lies in a different page. */
enum {
    TILE_ROWS = 128,
    TILE_COLS = 32,
    AHEAD     = 16, /* columns between the column that is read and the prefetched column */
};

/* Sets out (r,c) to tile (c,r), r < rows, c < cols: whole vectors of VECTOR columns by four rows,
 * and the remaining numbers one by one. */
static void transpose(float *out, int64_t stride, const float *tile, int64_t rows, int64_t cols)
{
    const int64_t whole_rows = rows / 4 * 4, whole_cols = cols / VECTOR * VECTOR;
    for (int64_t r = 0; r < whole_rows; r += 4) {
        for (int64_t c = 0; c < whole_cols; c += VECTOR) {
            lanes row[4];
            lanes_columns(row, tile + c * TILE_ROWS + r, TILE_ROWS);
            for (int k = 0; k < 4; k++) lanes_store(out + (r + k) * stride + c, row[k]);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = r < whole_rows ? whole_cols : 0; c < cols; c++)
            out[r * stride + c] = tile[c * TILE_ROWS + r];
    }
}

/* Prefetches the cache lines of `bytes` bytes. The hardware does not predict steps as long as the
 * steps of a column. */
static inline void prefetch_lines(const uint8_t *from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

/* Sets tile [cols,TILE_ROWS] to the first `rows` numbers of `cols` columns, with `beyond` more
 * columns after them. */
static void read_tile(float *tile, line_of line, const uint8_t *from, int64_t bytes, int64_t rows,
                      int64_t cols, int64_t beyond, cpl_decode_shape s)
{
    const int64_t stride = s.col_step * bytes, length = ((rows - 1) * s.row_step + 1) * bytes;
    for (int64_t c = 0; c < cols; c++) {
        if (s.row_step <= 2 && c + AHEAD < cols + beyond)
            prefetch_lines(from + (c + AHEAD) * stride, length);
        line(tile + c * TILE_ROWS, from + c * stride, s.row_step, rows);
    }
}

/* Decodes matrices whose neighbours in a column lie closer together than neighbours in a row. Tiles
 * that stay in the innermost cache are read column by column and written row by row. */
static void decode_tiles(float *out, line_of line, const uint8_t *from, int64_t bytes,
                         cpl_decode_shape s)
{
    float tile[TILE_COLS * TILE_ROWS];
    for (int64_t r = 0; r < s.rows; r += TILE_ROWS) {
        const int64_t rows = s.rows - r < TILE_ROWS ? s.rows - r : TILE_ROWS;
        for (int64_t c = 0; c < s.cols; c += TILE_COLS) {
            const int64_t cols    = s.cols - c < TILE_COLS ? s.cols - c : TILE_COLS;
            const uint8_t *corner = from + (r * s.row_step + c * s.col_step) * bytes;
            read_tile(tile, line, corner, bytes, rows, cols, s.cols - c - cols, s);
            transpose(out + r * s.cols + c, s.cols, tile, rows, cols);
        }
    }
}

static void decode_plain(float *out, cpl_format format, const uint8_t *bytes, cpl_decode_shape s)
{
    const int64_t size  = cpl_format_block_bytes(format);
    const uint8_t *from = bytes + s.first * size;
    if (s.col_step > s.row_step && s.rows > 1) {
        decode_tiles(out, lines[format], from, size, s);
        return;
    }
    for (int64_t r = 0; r < s.rows; r++)
        lines[format](out + r * s.cols, from + r * s.row_step * size, s.col_step, s.cols);
}

/* ---- rows of blocks: `count` numbers from the beginning of a block ---- */

static void row_f4_pair(float *restrict out, const uint8_t *restrict from, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count / 2; i++) {
        out[2 * i]     = f4(from[i]);
        out[2 * i + 1] = f4((uint32_t)from[i] >> 4);
    }
    if (count % 2) out[count - 1] = f4(from[count / 2]);
}

/* Decodes eight 4-bit integers a word, lowest first. Words are little-endian, so each byte holds a
 * pair. */
static void row_int4_word(float *restrict out, const uint8_t *restrict from, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count / 2; i++) {
        out[2 * i]     = (float)((from[i] & 15) - 8);
        out[2 * i + 1] = (float)((from[i] >> 4) - 8);
    }
    if (count % 2) out[count - 1] = (float)((from[count / 2] & 15) - 8);
}

/* Decodes number = d q, with f16 d and 32 signed bytes q. */
static void row_q8_0(float *restrict out, const uint8_t *restrict from, int64_t count)
{
    for (int64_t b = 0; b < count; b += 32, from += 34, out += 32) {
        const float d = at_f16(from);
#pragma omp simd
        for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)from[2 + i];
    }
}

/* Factors and minima of the eight groups of 32 numbers of a Q4_K or Q5_K block: whole numbers of
 * six bits in the 12 bytes after the two f16 that multiply them. Bytes 0-3 hold the factors and 4-7
 * the minima of the first four groups. Their highest two bits belong to the last four groups. */
typedef struct groups {
    float factor[8], minimum[8];
} groups;

static groups groups_at(const uint8_t *from)
{
    const float d = at_f16(from), d_minimum = at_f16(from + 2);
    const uint8_t *low = from + 4, *high = from + 8, *last = from + 12;
    groups g;
    for (int i = 0; i < 4; i++) {
        g.factor[i]      = d * (float)(low[i] & 63);
        g.minimum[i]     = d_minimum * (float)(high[i] & 63);
        g.factor[i + 4]  = d * (float)((last[i] & 15) | (low[i] >> 6) << 4);
        g.minimum[i + 4] = d_minimum * (float)((last[i] >> 4) | (high[i] >> 6) << 4);
    }
    return g;
}

/* Decodes number = factor q - minimum. 32 bytes hold q of two groups, the first in the low
 * halves. */
static void row_q4_k(float *restrict out, const uint8_t *restrict from, int64_t count)
{
    for (int64_t b = 0; b < count; b += 256, from += 144) {
        const groups g = groups_at(from);
        for (int i = 0; i < 8; i++, out += 32) {
            const uint8_t *quarter = from + 16 + i / 2 * 32;
#pragma omp simd
            for (int k = 0; k < 32; k++) {
                float product = g.factor[i] * (float)(quarter[k] >> i % 2 * 4 & 15);
                out[k]        = product - g.minimum[i];
            }
        }
    }
}

/* Decodes like row_q4_k, with a fifth bit of q: bit i of the 32 preceding bytes for group i. */
static void row_q5_k(float *restrict out, const uint8_t *restrict from, int64_t count)
{
    for (int64_t b = 0; b < count; b += 256, from += 176) {
        const groups g = groups_at(from);
        for (int i = 0; i < 8; i++, out += 32) {
            const uint8_t *fifth = from + 16, *quarter = from + 48 + i / 2 * 32;
#pragma omp simd
            for (int k = 0; k < 32; k++) {
                int q         = (quarter[k] >> i % 2 * 4 & 15) | (fifth[k] >> i & 1) << 4;
                float product = g.factor[i] * (float)q;
                out[k]        = product - g.minimum[i];
            }
        }
    }
}

/* Decodes number = d scale (q - 32), with a signed scale for every 16 numbers. Each half of a block
 * has four groups of 32. Group i has the low four bits of q in 32 of 64 bytes (i odd: the last 32;
 * i > 1: the high halves), and the highest two bits of q in bits 2i and 2i + 1 of 32 bytes. */
static void row_q6_k(float *restrict out, const uint8_t *restrict from, int64_t count)
{
    for (int64_t b = 0; b < count; b += 256, from += 210) {
        const float d = at_f16(from + 208);
        for (int i = 0; i < 8; i++, out += 32) {
            const int in_half   = i % 4;
            const uint8_t *low  = from + i / 4 * 64 + in_half % 2 * 32,
                          *high = from + 128 + i / 4 * 32;
            const float first   = d * (float)(int8_t)from[192 + 2 * i];
            const float last    = d * (float)(int8_t)from[193 + 2 * i];
#pragma omp simd
            for (int k = 0; k < 32; k++) {
                int q  = (low[k] >> in_half / 2 * 4 & 15) | (high[k] >> 2 * in_half & 3) << 4;
                out[k] = (k < 16 ? first : last) * (float)(q - 32);
            }
        }
    }
}

/* Decodes number = 2^(e - 128) times the double of an f4. As in the reference, e = 255 is a power
 * of two, unlike in F8_E8M0, and zero is always +0. */
static void row_mxfp4(float *restrict out, const uint8_t *restrict from, int64_t count)
{
    for (int64_t b = 0; b < count; b += 32, from += 17, out += 32) {
        const uint32_t e = from[0], power = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        const float d = cpl_f32_from_bits(power);
#pragma omp simd
        for (int i = 0; i < 16; i++) {
            float low = 2 * f4(from[1 + i]), high = 2 * f4((uint32_t)from[1 + i] >> 4);
            out[i]      = d * (low + 0.0f);
            out[16 + i] = d * (high + 0.0f);
        }
    }
}

typedef void (*row_of)(float *restrict out, const uint8_t *restrict from, int64_t count);

static const row_of rows_of_blocks[CPL_N_FORMATS] = {
    [CPL_FORMAT_F4_PAIR] = row_f4_pair, [CPL_FORMAT_INT4_WORD] = row_int4_word,
    [CPL_FORMAT_Q8_0] = row_q8_0,       [CPL_FORMAT_Q4_K] = row_q4_k,
    [CPL_FORMAT_Q5_K] = row_q5_k,       [CPL_FORMAT_Q6_K] = row_q6_k,
    [CPL_FORMAT_MXFP4] = row_mxfp4,
};

static void decode_blocks(float *out, cpl_format format, const uint8_t *bytes, cpl_decode_shape s)
{
    const int64_t numbers     = cpl_format_block_numbers(format);
    const int64_t size        = cpl_format_block_bytes(format);
    const bool may_end_inside = format == CPL_FORMAT_F4_PAIR || format == CPL_FORMAT_INT4_WORD;
    CPL_ASSERT(s.col_step == 1 && s.first % numbers == 0 && s.row_step % numbers == 0);
    CPL_ASSERT(may_end_inside || s.cols % numbers == 0);
    for (int64_t r = 0; r < s.rows; r++)
        rows_of_blocks[format](out + r * s.cols,
                               bytes + (s.first + r * s.row_step) / numbers * size, s.cols);
}

void CPL_ISA_NAME(cpl_cpu_host_decode)(float *out, cpl_format format, const void *bytes,
                                       cpl_decode_shape shape)
{
    CPL_ASSERT((unsigned)format < CPL_N_FORMATS);
    CPL_ASSERT(shape.rows >= 0 && shape.cols >= 0);
    CPL_ASSERT(shape.first >= 0 && shape.row_step >= 0 && shape.col_step >= 0);
    if (lines[format])
        decode_plain(out, format, bytes, shape);
    else
        decode_blocks(out, format, bytes, shape);
}

/* ---- factors ---- */

void CPL_ISA_NAME(cpl_cpu_host_scale)(float *x, const float *factors, cpl_scale_shape shape)
{
    const cpl_scale_shape s = shape;
    CPL_ASSERT(s.first_row >= 0 && s.block_rows > 0 && s.block_cols > 0 && s.step >= 0);
    for (int64_t r = 0; r < s.rows; r++) {
        const float *of_row = factors + (s.first_row + r) / s.block_rows * s.step;
        for (int64_t c = 0; c < s.cols; c += s.block_cols) {
            const int64_t count = s.cols - c < s.block_cols ? s.cols - c : s.block_cols;
            const float factor  = of_row[c / s.block_cols];
            float *part         = x + r * s.cols + c;
#pragma omp simd
            for (int64_t i = 0; i < count; i++) part[i] *= factor;
        }
    }
}
