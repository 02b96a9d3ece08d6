/* grouped.h - tiles of products whose rows or whose depth are the tokens of an expert.
 *
 * Room:    tensor/cuda (device functions, for experts.cu and erc_sweep.cu).
 * Method:  a block of 2 x 2 warps computes a tile. k advances in steps of 32 through a ring of
 *          stages in shared memory: while one stage is multiplied, the next stages are copied.
 *          Products are bf16 on tensor cores with sums in F32, or F32 by plain multiplication.
 *          Aligned numbers of the product's type are copied by cp.async; other numbers are
 *          converted in registers. Operands are 0 past their ends. Sums over k are in order, so
 *          that a result does not depend on its tile. */
#ifndef CPL_TENSOR_CUDA_GROUPED_H
#define CPL_TENSOR_CUDA_GROUPED_H

#include "tensor/cuda/four.h"

enum { STEP = 32, THREADS = 128, WARPS_ACROSS = 2 };

/* A tile of ROWS x COLUMNS: a warp has HIGH x WIDE fragments of 16 x 8. A thread holds four numbers
 * of each fragment. */
template <int HIGH_, int WIDE_> struct grouped_shape {
    static const int HIGH = HIGH_, WIDE = WIDE_, ROWS = 32 * HIGH, COLUMNS = 16 * WIDE;
    typedef float sums[HIGH][WIDE][4];
};

/* Type of numbers, number of stages, bytes of shared memory, and the place of a number in a panel
 * of EDGE rows or columns. With ALONG, stored rows and rows of the panel run along k, otherwise
 * along the edge. Groups of eight numbers are swizzled so that loads of 8 x 8 matrices have no bank
 * conflicts. */
template <int HIGH> struct grouped_bf16 : grouped_shape<HIGH, 8> {
    typedef uint16_t number;
    typedef grouped_shape<HIGH, 8> shape;
    static const int STAGES = 4, BLOCKS = 2;
    static const int A = shape::ROWS * STEP, B = shape::COLUMNS * STEP;
    static const int BYTES = STAGES * (A + B) * 2;

    template <bool ALONG, int EDGE> static __device__ __forceinline__ int place(int edge, int k)
    {
        if (ALONG) return edge * STEP + (k / 8 ^ edge / 2 % 4) * 8 + k % 8;
        return k * EDGE + (edge / 8 ^ k % 8) * 8 + edge % 8;
    }
};

struct grouped_f32 : grouped_shape<2, 4> {
    typedef float number;
    static const int STAGES = 2, BLOCKS = 3;
    static const int A = ROWS * (STEP + 1), B = COLUMNS * (STEP + 1);
    static const int BYTES = STAGES * (A + B) * 4;

    template <bool ALONG, int EDGE> static __device__ __forceinline__ int place(int edge, int k)
    {
        return ALONG ? edge * (STEP + 1) + k : k * (EDGE + 1) + edge;
    }
};

/* Stored rows: one matrix per expert, `each` numbers apart, or one row per sorted row (each 0). If
 * `token` is given, row r is stored row token[r] * per_token, plus the expert if per_token is not
 * 1. */
typedef struct grouped_rows {
    cpl_device_numbers x;
    int64_t stride, each;
    const int32_t *token;
    int64_t per_token;
} grouped_rows;

/* The part of an operand that a tile reads: `count` rows or columns from `first` on along the
 * tile's edge, and the depth from k_first on. */
typedef struct grouped_edge {
    int64_t first, k_first;
    int count;
} grouped_edge;

/* Returns the edge from `first` on, at most `most` of `length`. */
static __device__ __forceinline__ grouped_edge grouped_edge_of(int64_t first, int64_t length,
                                                               int most)
{
    const int64_t left = length - first;
    return {first, 0, (int)(left < most ? left : most)};
}

static __device__ __forceinline__ int64_t grouped_at(const grouped_rows &o, int expert, int64_t row)
{
    const int64_t add = o.per_token == 1 ? 0 : expert;
    return expert * o.each + (o.token ? o.token[row] * o.per_token + add : row) * o.stride;
}

/* Returns whether groups of eight numbers of a row are aligned. */
static __device__ __forceinline__ bool grouped_is_even(const grouped_rows &o)
{
    return o.stride % 8 == 0 && o.each % 8 == 0 && (uintptr_t)o.x.at % 16 == 0;
}

/* Returns the count of the eight numbers from `at` on that are below `end`. */
static __device__ __forceinline__ int grouped_count(int64_t at, int64_t end)
{
    const int64_t left = end - at;
    return left >= 8 ? 8 : left > 0 ? (int)left : 0;
}

/* ---- panels ---- */

/* Sets `to` [8] to `count` numbers of x from `at` on, then zeros. */
static __device__ __forceinline__ void grouped_convert(float *to, cpl_device_numbers x, int64_t at,
                                                       int count)
{
    CPL_UNROLL
    for (int i = 0; i < 8; i++) to[i] = i < count ? cpl_device_get(x, at + i) : 0.0f;
}

static __device__ __forceinline__ void grouped_convert(uint16_t *to, cpl_device_numbers x,
                                                       int64_t at, int count)
{
    float wide[8];
    grouped_convert(wide, x, at, count);
    *(uint4 *)to = make_uint4(cpl_device_pair(wide[0], wide[1]), cpl_device_pair(wide[2], wide[3]),
                              cpl_device_pair(wide[4], wide[5]), cpl_device_pair(wide[6], wide[7]));
}

/* The part of an operand that a thread copies: PER groups of eight numbers of each panel. Group i
 * is at (edge(i), k(i)). at[i] is the beginning of its stored row, or -1 past the end. With PAIRED,
 * groups along the edge alternate between two operands, copied by warps of even and odd number. */
template <class TILE, bool ALONG, int EDGE, bool PAIRED> struct grouped_walk {
    static const int PER = EDGE * STEP / 8 / THREADS;
    int64_t at[PER];
    bool copies; /* by cp.async */

    static __device__ __forceinline__ int edge(int i)
    {
        const int number = i * THREADS + (int)threadIdx.x;
        return ALONG ? number / (STEP / 8) : number % (EDGE / 8) * 8;
    }

    static __device__ __forceinline__ int k(int i)
    {
        const int number = i * THREADS + (int)threadIdx.x;
        return ALONG ? number % (STEP / 8) * 8 : number / (EDGE / 8);
    }

    /* Sets at[] for the step from k0 on. */
    __device__ __forceinline__ void find(const grouped_rows &o, int expert, const grouped_edge &of,
                                         int64_t k0, int64_t end)
    {
        CPL_UNROLL
        for (int i = 0; i < PER; i++) {
            const int e       = PAIRED ? edge(i) / 16 * 8 + edge(i) % 8 : edge(i);
            const bool there  = ALONG ? e < of.count : k0 + k(i) < end;
            const int64_t row = ALONG ? of.first + e : of.k_first + k0 + k(i);
            at[i]             = there ? grouped_at(o, expert, row) : -1;
        }
    }

    __device__ __forceinline__ void bring(typename TILE::number *panel, const grouped_rows &o,
                                          const grouped_edge &of, int64_t k0, int64_t end) const
    {
        CPL_UNROLL
        for (int i = 0; i < PER; i++) {
            typename TILE::number *to = panel + TILE::template place<ALONG, EDGE>(edge(i), k(i));
            const int64_t column      = ALONG ? k0 + k(i) : of.first + edge(i);
            const int count           = at[i] < 0 ? 0
                                        : ALONG   ? grouped_count(column, end)
                                                  : grouped_count(edge(i), of.count);
            if (copies)
                CPL_COPY_ASYNC_16(to, (const uint16_t *)o.x.at + (count ? at[i] + column : 0),
                                  2 * count);
            else
                grouped_convert(to, o.x, at[i] + column, count);
        }
    }
};

/* ---- tiles ---- */

/* Return row and column, in the tile, of number q of fragment (i, j) of this thread. */
template <class TILE> static __device__ __forceinline__ int grouped_row(int i, int q)
{
    const int warp = (int)threadIdx.x / CPL_WARP, lane = (int)threadIdx.x % CPL_WARP;
    return warp / WARPS_ACROSS * 16 * TILE::HIGH + 16 * i + lane / 4 + 8 * (q / 2);
}

template <class TILE> static __device__ __forceinline__ int grouped_column(int j, int q)
{
    const int warp = (int)threadIdx.x / CPL_WARP, lane = (int)threadIdx.x % CPL_WARP;
    return warp % WARPS_ACROSS * 8 * TILE::WIDE + 8 * j + lane % 4 * 2 + q % 2;
}

/* Loops over the pairs of numbers q and q + 1 of the thread's fragments. The loop is unrolled,
 * since the numbers are in registers. */
#define GROUPED_EACH(TILE, i, j, q)                                                                \
    CPL_UNROLL                                                                                     \
    for (int i = 0; i < TILE::HIGH; i++) CPL_UNROLL                                                \
    for (int j = 0; j < TILE::WIDE; j++) CPL_UNROLL                                                \
    for (int q = 0; q < 4; q += 2)

/* Loads r, the fragment of 16 numbers along the edge and 16 along k. With SECOND_K, the second
 * matrix follows along k, as in two fragments b, otherwise along the edge, as in a fragment a. */
template <class TILE, bool ALONG, int EDGE, bool SECOND_K>
static __device__ __forceinline__ void grouped_fragment(uint32_t *r, const uint16_t *panel,
                                                        int edge, int k)
{
    const int lane = (int)threadIdx.x % CPL_WARP, second = lane / 8 % 2 * 8, last = lane / 16 * 8;
    edge += SECOND_K ? last : second, k += SECOND_K ? second : last;
    if (ALONG)
        CPL_LDMATRIX(r, (panel + TILE::template place<true, EDGE>(edge + lane % 8, k)));
    else
        CPL_LDMATRIX_TRANS(r, (panel + TILE::template place<false, EDGE>(edge, k + lane % 8)));
}

template <class TILE, bool A_ALONG, bool B_ALONG>
static __device__ __forceinline__ void grouped_multiply(typename TILE::sums &sum, const uint16_t *a,
                                                        const uint16_t *b)
{
    const int warp = (int)threadIdx.x / CPL_WARP;
    const int row  = warp / WARPS_ACROSS * 16 * TILE::HIGH;
    const int col  = warp % WARPS_ACROSS * 8 * TILE::WIDE;
    CPL_UNROLL
    for (int k = 0; k < STEP; k += 16) {
        uint32_t fa[TILE::HIGH][4], fb[TILE::WIDE / 2][4];
        CPL_UNROLL
        for (int i = 0; i < TILE::HIGH; i++)
            grouped_fragment<TILE, A_ALONG, TILE::ROWS, false>(fa[i], a, row + 16 * i, k);
        CPL_UNROLL
        for (int j = 0; j < TILE::WIDE / 2; j++)
            grouped_fragment<TILE, B_ALONG, TILE::COLUMNS, true>(fb[j], b, col + 16 * j, k);
        CPL_UNROLL
        for (int i = 0; i < TILE::HIGH; i++) CPL_UNROLL
        for (int j = 0; j < TILE::WIDE; j++) CPL_MMA_16816(sum[i][j], fa[i], fb[j / 2] + j % 2 * 2);
    }
}

template <class TILE, bool A_ALONG, bool B_ALONG>
static __device__ __forceinline__ void grouped_multiply(typename TILE::sums &sum, const float *a,
                                                        const float *b)
{
    for (int k = 0; k < STEP; k++) {
        float fa[2 * TILE::HIGH], fb[2 * TILE::WIDE];
        CPL_UNROLL
        for (int r = 0; r < 2 * TILE::HIGH; r++) {
            const int row = grouped_row<TILE>(r / 2, r % 2 * 2);
            fa[r]         = a[TILE::template place<A_ALONG, TILE::ROWS>(row, k)];
        }
        CPL_UNROLL
        for (int c = 0; c < 2 * TILE::WIDE; c++) {
            const int column = grouped_column<TILE>(c / 2, c % 2);
            fb[c]            = b[TILE::template place<B_ALONG, TILE::COLUMNS>(column, k)];
        }
        GROUPED_EACH(TILE, i, j, q)
        for (int p = q; p < q + 2; p++) sum[i][j][p] += fa[2 * i + q / 2] * fb[2 * j + p % 2];
    }
}

/* Adds a . b^T over k numbers to sum. A_ALONG and B_ALONG are the layouts of a and b. Begins with a
 * barrier and ends without a barrier. */
template <class TILE, bool A_ALONG, bool B_ALONG, bool PAIRED = false>
static __device__ __forceinline__ void
grouped_add(typename TILE::sums &sum, typename TILE::number *shared, const grouped_rows &a,
            const grouped_edge &of_a, const grouped_rows &b, const grouped_edge &of_b, int expert,
            int64_t k)
{
    const bool is_bf16 = sizeof(typename TILE::number) == sizeof(uint16_t);
    const int stage    = TILE::A + TILE::B;
    grouped_walk<TILE, A_ALONG, TILE::ROWS, false> from_a;
    grouped_walk<TILE, B_ALONG, TILE::COLUMNS, PAIRED> from_b;
    from_a.copies = is_bf16 && a.x.is_bf16 && grouped_is_even(a);
    from_b.copies = is_bf16 && b.x.is_bf16 && grouped_is_even(b);
    from_a.find(a, expert, of_a, 0, k);
    from_b.find(b, expert, of_b, 0, k);
    __syncthreads(); /* stages of a previous call have been read */
    int free = 0, full = 0;
    for (int64_t at = -(TILE::STAGES - 1) * STEP; at < k; at += STEP) {
        const int64_t next = at + (TILE::STAGES - 1) * STEP;
        if (at >= 0) {
            CPL_COPY_WAIT(TILE::STAGES - 2);
            __syncthreads(); /* this stage has arrived, and the previous stage has been read */
        }
        if (next < k) {
            from_a.bring(shared + free * stage, a, of_a, next, k);
            from_b.bring(shared + free * stage + TILE::A, b, of_b, next, k);
            if (!A_ALONG) from_a.find(a, expert, of_a, next + STEP, k);
            if (!B_ALONG) from_b.find(b, expert, of_b, next + STEP, k);
        }
        CPL_COPY_COMMIT();
        free = free + 1 == TILE::STAGES ? 0 : free + 1;
        if (at < 0) continue;
        const typename TILE::number *panels = shared + full * stage;
        grouped_multiply<TILE, A_ALONG, B_ALONG>(sum, panels, panels + TILE::A);
        full = full + 1 == TILE::STAGES ? 0 : full + 1;
    }
}

/* ---- numbers of a result ---- */

/* Returns the position of number (row, column) in a tile stored by grouped_lay. Four numbers from a
 * multiple of four on are contiguous. */
template <class TILE> static __device__ __forceinline__ int grouped_cell(int row, int column)
{
    return row * TILE::COLUMNS + (column ^ row % 8 * 8);
}

/* Stores the tile in shared memory, over the stages, so that later steps can run along rows, in a
 * short loop that is not unrolled. */
template <class TILE>
static __device__ __forceinline__ float *grouped_lay(typename TILE::number *shared,
                                                     const typename TILE::sums &sum)
{
    static_assert(TILE::ROWS * TILE::COLUMNS * 4 <= TILE::BYTES, "the stages have room for a tile");
    float *tile = (float *)shared;
    __syncthreads(); /* the last stage has been read */
    GROUPED_EACH(TILE, i, j, q)
    *(float2 *)(tile + grouped_cell<TILE>(grouped_row<TILE>(i, q), grouped_column<TILE>(j, 0))) =
        make_float2(sum[i][j][q], sum[i][j][q + 1]);
    __syncthreads();
    return tile;
}

/* Loops over groups of four numbers of `rows` rows of `width` columns, divided over the threads of
 * the block. */
#define GROUPED_EACH_FOUR(rows, width, row, column)                                                \
    for (int i_ = (int)threadIdx.x, row, column;                                                   \
         row = i_ / ((width) / 4), column = i_ % ((width) / 4) * 4, row < (rows); i_ += THREADS)

/* Returns four numbers of a tile stored by grouped_lay. */
template <class TILE>
static __device__ __forceinline__ cpl_four grouped_four(const float *tile, int row, int column)
{
    const float4 v = *(const float4 *)(tile + grouped_cell<TILE>(row, column));
    return {{v.x, v.y, v.z, v.w}};
}

/* ---- the tile of a block ---- */

/* Finds tile `number` of the sorted rows, cut into tiles of at most `most` rows per expert. Returns
 * false if there are fewer tiles. Whole warps call it. */
static __device__ __forceinline__ bool grouped_tile_at(int64_t number, int most,
                                                       const int32_t *offset, int n, int *expert,
                                                       int64_t *first, int *rows)
{
    const int lane = (int)threadIdx.x % CPL_WARP;
    for (int begin = 0; begin < n; begin += CPL_WARP) {
        const bool is   = begin + lane < n;
        const int at    = is ? offset[begin + lane] : 0;
        const int count = is ? offset[begin + lane + 1] - at : 0;
        const int which = cpl_warp_find((count + most - 1) / most, &number);
        if (which == CPL_WARP) continue;
        const int done = (int)number * most;
        const int left = __shfl_sync(0xffffffffu, count, which) - done;
        *expert        = begin + which;
        *first         = __shfl_sync(0xffffffffu, at, which) + done;
        *rows          = left < most ? left : most;
        return true;
    }
    return false;
}

static inline unsigned grouped_tiles(int64_t length, int each)
{
    return (unsigned)((length + each - 1) / each);
}

#endif /* CPL_TENSOR_CUDA_GROUPED_H */
