/* grouped.h - tiles of products whose rows, or whose sums, are the tokens of an expert.
 *
 * Room:    tensor/cuda (device functions, for experts.cu).
 * Method:  A block of 4 warps makes a tile of 64 x 64 numbers, a warp 32 x 32 of it; k goes in
 *          steps of 32 through two buffers of shared memory. bf16 by the tensor cores with sums in
 *          F32, or F32 by plain multiplication; a thread has the same numbers of the tile in both.
 *          Operands of either type are converted when they enter shared memory, and are 0 past
 *          their ends. */
#ifndef CPL_TENSOR_CUDA_GROUPED_H
#define CPL_TENSOR_CUDA_GROUPED_H

#include "tensor/cuda/device.h"

enum { TILE = 64, STEP = 32, THREADS = 128, PITCH_BF16 = STEP + 8, PITCH_F32 = STEP + 1 };

/* Numbers of a panel's row, its type, and bytes of shared memory of a kernel. */
template <bool BF16> struct panel_of {
    typedef uint16_t number;
    static const int PITCH = PITCH_BF16, BYTES = 4 * TILE * PITCH_BF16 * 2;
};
template <> struct panel_of<false> {
    typedef float number;
    static const int PITCH = PITCH_F32, BYTES = 4 * TILE * PITCH_F32 * 4;
};

/* Stored rows: a matrix an expert, `each` numbers apart; or one row for each sorted row (each 0).
 * Row r is row token[r] * per_token, plus the expert if per_token is not 1, where there are
 * tokens. */
typedef struct grouped_rows {
    cpl_device_numbers x;
    int64_t stride, each;
    const int32_t *token;
    int64_t per_token;
} grouped_rows;

/* Which part of the rows a tile reads: number `first` ... of what runs along the tile's edge
 * (`count` of them, of at most TILE), and k_first ... of what is summed over. */
typedef struct grouped_edge {
    int64_t first, k_first;
    int count;
} grouped_edge;

static __device__ __forceinline__ int64_t grouped_at(grouped_rows o, int expert, int64_t row)
{
    const int64_t add = o.per_token == 1 ? 0 : expert;
    return expert * o.each + (o.token ? o.token[row] * o.per_token + add : row) * o.stride;
}

/* Whether eight numbers of a row, from a multiple of eight on, are aligned. */
static __device__ __forceinline__ bool grouped_is_even(grouped_rows o)
{
    return o.stride % 8 == 0 && (uintptr_t)o.x.at % 16 == 0;
}

/* Numbers at .. at + count - 1 of x, at most eight, and 0 behind them. */
static __device__ __forceinline__ void grouped_read(float *to, cpl_device_numbers x, int64_t at,
                                                    int count, bool even)
{
    if (even && count == 8 && !x.is_bf16) {
        const float4 *from = (const float4 *)((const float *)x.at + at);
        const float4 low = from[0], high = from[1];
        memcpy(to, &low, sizeof low);
        memcpy(to + 4, &high, sizeof high);
        return;
    }
    CPL_UNROLL
    for (int i = 0; i < 8; i++) to[i] = i < count ? cpl_device_get(x, at + i) : 0;
}

static __device__ __forceinline__ void grouped_read(uint16_t *to, cpl_device_numbers x, int64_t at,
                                                    int count, bool even)
{
    float wide[8];
    if (even && count == 8 && x.is_bf16) {
        const uint4 all = *(const uint4 *)((const uint16_t *)x.at + at);
        memcpy(to, &all, sizeof all);
        return;
    }
    grouped_read(wide, x, at, count, even);
    CPL_UNROLL
    for (int i = 0; i < 8; i++) to[i] = cpl_device_bf16(wide[i]);
}

/* Numbers of eight that lie in [at, end). */
static __device__ __forceinline__ int grouped_count(int64_t at, int64_t end)
{
    const int64_t left = end - at;
    return left >= 8 ? 8 : left > 0 ? (int)left : 0;
}

/* panel [TILE, STEP] from number `at` of k on. ALONG_K: a stored row runs along k, and so do the
 * threads of a warp; else they have a row each, so that they write next to each other. */
template <bool BF16, bool ALONG_K>
static __device__ __forceinline__ void grouped_load(typename panel_of<BF16>::number *panel,
                                                    grouped_rows o, int expert, grouped_edge edge,
                                                    int64_t at, int64_t k)
{
    const bool even = grouped_is_even(o);
    const int pitch = panel_of<BF16>::PITCH;
    CPL_UNROLL
    for (int turn = 0; turn < TILE * STEP / 8 / THREADS; turn++) {
        const int number = turn * THREADS + (int)threadIdx.x;
        const int i      = ALONG_K ? number / (STEP / 8) : number / STEP * 8;
        const int kk     = ALONG_K ? number % (STEP / 8) * 8 : number % STEP;
        const bool there = ALONG_K ? i < edge.count : at + kk < k;
        const int count  = ALONG_K ? grouped_count(at + kk, k) : grouped_count(i, edge.count);
        typename panel_of<BF16>::number eight[8] = {};
        if (there && count > 0) {
            const int64_t row    = ALONG_K ? edge.first + i : edge.k_first + at + kk;
            const int64_t column = ALONG_K ? at + kk : edge.first + i;
            grouped_read(eight, o.x, grouped_at(o, expert, row) + column, count, even);
        }
        CPL_UNROLL
        for (int e = 0; e < 8; e++)
            panel[ALONG_K ? i * pitch + kk + e : (i + e) * pitch + kk] = eight[e];
    }
}

/* Row and column in the tile of number q of fragment (i, j) of this thread. */
static __device__ __forceinline__ int grouped_row(int i, int q)
{
    const int warp = (int)threadIdx.x / CPL_WARP, lane = (int)threadIdx.x % CPL_WARP;
    return warp / 2 * 32 + 16 * i + lane / 4 + 8 * (q / 2);
}

static __device__ __forceinline__ int grouped_column(int j, int q)
{
    const int warp = (int)threadIdx.x / CPL_WARP, lane = (int)threadIdx.x % CPL_WARP;
    return warp % 2 * 32 + 8 * j + lane % 4 * 2 + q % 2;
}

typedef float grouped_tile[2][4][4]; /* a thread's part */

/* For each of its numbers, in registers: hence unrolled. */
#define GROUPED_EACH(i, j, q)                                                                      \
    CPL_UNROLL                                                                                     \
    for (int i = 0; i < 2; i++) CPL_UNROLL                                                         \
    for (int j = 0; j < 4; j++) CPL_UNROLL                                                         \
    for (int q = 0; q < 4; q++)

typedef uint32_t __attribute__((may_alias)) grouped_pair; /* two numbers of bf16 */

static __device__ __forceinline__ void grouped_multiply(grouped_tile sum, const uint16_t *a,
                                                        const uint16_t *b)
{
    const int lane       = (int)threadIdx.x % CPL_WARP;
    const uint16_t *of_a = a + grouped_row(0, 0) * PITCH_BF16 + lane % 4 * 2;
    const uint16_t *of_b =
        b + (grouped_column(0, 0) - lane % 4 * 2 + lane / 4) * PITCH_BF16 + lane % 4 * 2;
    CPL_UNROLL
    for (int s = 0; s < STEP; s += 16) {
        uint32_t fa[2][4], fb[4][2];
        CPL_UNROLL
        for (int r = 0; r < 8; r++)
            fa[r / 4][r % 4] =
                *(const grouped_pair *)(of_a + (r / 4 * 16 + r % 2 * 8) * PITCH_BF16 + s +
                                        r % 4 / 2 * 8);
        CPL_UNROLL
        for (int r = 0; r < 8; r++)
            fb[r / 2][r % 2] =
                *(const grouped_pair *)(of_b + r / 2 * 8 * PITCH_BF16 + s + r % 2 * 8);
        CPL_UNROLL
        for (int r = 0; r < 8; r++) CPL_MMA_16816(sum[r / 4][r % 4], fa[r / 4], fb[r % 4]);
    }
}

static __device__ __forceinline__ void grouped_multiply(grouped_tile sum, const float *a,
                                                        const float *b)
{
    const float *of_a = a + grouped_row(0, 0) * PITCH_F32;
    const float *of_b = b + grouped_column(0, 0) * PITCH_F32;
    for (int s = 0; s < STEP; s++) {
        float fa[4], fb[8];
        CPL_UNROLL
        for (int r = 0; r < 4; r++) fa[r] = of_a[8 * r * PITCH_F32 + s];
        CPL_UNROLL
        for (int c = 0; c < 8; c++) fb[c] = of_b[(8 * (c / 2) + c % 2) * PITCH_F32 + s];
        GROUPED_EACH(i, j, q)
        sum[i][j][q] += fa[2 * i + q / 2] * fb[2 * j + q % 2];
    }
}

/* sum *adds* a . b^T over k numbers, a and b read as A_ALONG and B_ALONG say. Ends without a
 * barrier: a next call goes on with *turn. */
template <bool BF16, bool A_ALONG, bool B_ALONG>
static __device__ __forceinline__ void
grouped_add(grouped_tile sum, typename panel_of<BF16>::number *shared, int *turn, grouped_rows a,
            grouped_edge of_a, grouped_rows b, grouped_edge of_b, int expert, int64_t k)
{
    const int panel = TILE * panel_of<BF16>::PITCH;
    for (int64_t at = 0; at < k; at += STEP, *turn ^= 1) {
        typename panel_of<BF16>::number *pa = shared + *turn * 2 * panel, *pb = pa + panel;
        grouped_load<BF16, A_ALONG>(pa, a, expert, of_a, at, k);
        grouped_load<BF16, B_ALONG>(pb, b, expert, of_b, at, k);
        __syncthreads(); /* one a step: the other buffer is read until the next one */
        grouped_multiply(sum, pa, pb);
    }
}

/* The tile `number` of the sorted rows. False: there are fewer. */
static __device__ __forceinline__ bool grouped_tile_at(int64_t number, const int32_t *offset, int n,
                                                       int *expert, int64_t *first, int *rows)
{
    for (int e = 0; e < n; e++) {
        const int64_t begin = offset[e], here = offset[e + 1] - begin;
        const int64_t tiles = (here + TILE - 1) / TILE;
        if (number < tiles) {
            const int64_t left = here - number * TILE;
            *expert            = e;
            *first             = begin + number * TILE;
            *rows              = (int)(left < (int64_t)TILE ? left : (int64_t)TILE);
            return true;
        }
        number -= tiles;
    }
    return false;
}

/* No fewer than there are tiles of `rows` rows of n experts. */
static inline unsigned grouped_most_tiles(int64_t rows, int64_t n)
{
    return (unsigned)(rows / TILE + n);
}

static inline unsigned grouped_tiles(int64_t length)
{
    return (unsigned)((length + TILE - 1) / TILE);
}

#endif /* CPL_TENSOR_CUDA_GROUPED_H */
