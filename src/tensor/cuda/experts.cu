/* experts.cu - all experts of a layer as one grouped operation.
 *
 * Room:    tensor/cuda. Operations: ops.h.
 * Names:   T tokens, K experts a token, n experts, d model width, D expert width; rows are the T K
 *          sorted assignments. act = SiLU(gate) * up; h = routing weight times act.
 * Method:  as tensor/cpu/experts.c. One kernel computes gate, up and h. A second kernel computes
 *          the experts' outputs (outs), in blocks of columns if they are many. A third kernel sums
 *          them over K in order. Backward: one kernel computes da = dy W_down and from it h, dgate,
 *          dup and parts of dot(act, da). A block of a weight's gradient computes one tile and runs
 *          over its expert's rows in order. In the backward pass the outs are dgate W_gate +
 *          dup W_up, or dup W_up alone if the gates multiply hidden.
 * Grids:   depend on T K and n alone. Blocks beyond the last expert's last tile end at once. */
#include <cfloat>

#include "tensor/cuda/four.h"
#include "tensor/cuda/grouped.h"

enum { ROW_THREADS = 128 };

/* Least mean number of rows of an expert at which bf16 tiles have 128 rows instead of 64. With
 * fewer rows, much of a tile of 128 rows would be empty. */
enum { MANY = 256 };

/* Launches a kernel of tiles in the type of the backend's products. */
#define LAUNCH_TILES(be, is_large, kernel, grid, ...)                                              \
    do {                                                                                           \
        if (!in_bf16(be))                                                                          \
            LAUNCH_TILE(be, grouped_f32, kernel, grid, __VA_ARGS__);                               \
        else if (is_large)                                                                         \
            LAUNCH_TILE(be, grouped_bf16<4>, kernel, grid, __VA_ARGS__);                           \
        else                                                                                       \
            LAUNCH_TILE(be, grouped_bf16<2>, kernel, grid, __VA_ARGS__);                           \
    } while (0)
#define LAUNCH_TILE(be, TILE, kernel, grid, ...)                                                   \
    CPL_LAUNCH(be, kernel<TILE>, grid, dim3(THREADS), TILE::BYTES, __VA_ARGS__)

#define TILE_KERNEL(TILE) __global__ void __launch_bounds__(THREADS, TILE::BLOCKS)

/* Limit of the bytes of a block of the outs' columns. Up to 49,152 tokens of the paper's 3B model
 * all columns are one block, so that h, dgate and dup are read once. */
static const int64_t OUT_BYTES = CPL_PART((int64_t)5 << 29, 4 << 10);

/* Sizes of a call, and arguments shared by all its kernels. */
typedef struct sizes {
    int64_t T, K, n, d, D, r; /* r is the width of the gates' input */
    const int32_t *offset, *token, *row;
    int tile_rows, tile_columns; /* tiles of the kernels over sorted rows */
} sizes;

/* Arrays of a call in scratch. */
typedef struct room {
    float *weight; /* [T K] routing weight of each sorted row */
    float *dot;    /* [T K, parts]; backward only */
    void *h;       /* [T K, D] */
    void *dy;      /* [T,d] backward: dy in bf16, since every expert of a token reads it */
    float *out;    /* [T K, columns] */
    int64_t columns;
    size_t bytes;
} room;

/* ---- one number ---- */

static __device__ __forceinline__ float sigmoid_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* ---- kernels by tile ---- */

/* Computes h and, if wanted, gate and up of a tile. Fragments of gate and up alternate. Both
 * products share one input, or run one after the other. */
template <class TILE>
TILE_KERNEL(TILE)
gate_up_kernel(cpl_device_numbers h, cpl_device_numbers gate, cpl_device_numbers up,
               const float *weight, grouped_rows in, grouped_rows x, grouped_rows w_gate,
               grouped_rows w_up, sizes s)
{
    CPL_SHARED(typename TILE::number, shared);
    int expert, rows;
    int64_t first;
    typename TILE::sums sum = {};
    if (!grouped_tile_at(blockIdx.y, TILE::ROWS, s.offset, (int)s.n, &expert, &first, &rows))
        return;
    const bool brings_up       = (int)threadIdx.x / CPL_WARP % 2;
    const grouped_edge of_rows = {first, 0, rows};
    const grouped_edge of_D =
        grouped_edge_of((int64_t)blockIdx.x * (TILE::COLUMNS / 2), s.D, TILE::COLUMNS / 2);
    const grouped_rows w       = brings_up ? w_up : w_gate;
    const grouped_edge of_gate = {of_D.first, 0, brings_up ? 0 : of_D.count};
    const grouped_edge of_up   = {of_D.first, 0, brings_up ? of_D.count : 0};
    if (in.x.at == x.x.at) {
        grouped_add<TILE, true, true, true>(sum, shared, x, of_rows, w, of_D, expert, s.d);
    } else {
        grouped_add<TILE, true, true, true>(sum, shared, in, of_rows, w, of_gate, expert, s.r);
        grouped_add<TILE, true, true, true>(sum, shared, x, of_rows, w, of_up, expert, s.d);
    }
    const float *tile = grouped_lay<TILE>(shared, sum);
    GROUPED_EACH_FOUR(rows, TILE::COLUMNS / 2, row, column)
    {
        const int64_t at = (first + row) * s.D + of_D.first, end = at + of_D.count;
        const int in_tile = column / 8 * 16 + column % 8;
        const cpl_four g  = grouped_four<TILE>(tile, row, in_tile);
        const cpl_four u  = grouped_four<TILE>(tile, row, in_tile + 8);
        cpl_four act;
        for (int k = 0; k < 4; k++)
            act.at[k] = weight[first + row] * u.at[k] * (g.at[k] * sigmoid_of(g.at[k]));
        if (gate.at) cpl_four_set(gate, at + column, end, g);
        if (up.at) cpl_four_set(up, at + column, end, u);
        cpl_four_set(h, at + column, end, act);
    }
}

/* Computes h, dgate and dup (stored in gate and up) of four numbers. Numbers from `end` on are
 * skipped. Returns their part of dot(act, da). */
static __device__ __forceinline__ float activate_backward(cpl_device_numbers h,
                                                          cpl_device_numbers gate,
                                                          cpl_device_numbers up, int64_t at,
                                                          int64_t end, float weight, cpl_four da)
{
    const cpl_four g = cpl_four_get(gate, at, end), u = cpl_four_get(up, at, end);
    cpl_four of_h, of_gate, of_up;
    float dot = 0;
    for (int k = 0; k < 4; k++) {
        const float sigmoid = sigmoid_of(g.at[k]), silu = g.at[k] * sigmoid;
        const float wa = weight * da.at[k];
        of_h.at[k]     = weight * silu * u.at[k];
        of_up.at[k]    = wa * silu;
        of_gate.at[k]  = wa * u.at[k] * sigmoid * (1.0f + g.at[k] * (1.0f - sigmoid));
        dot += silu * u.at[k] * da.at[k];
    }
    cpl_four_set(h, at, end, of_h);
    cpl_four_set(up, at, end, of_up);
    cpl_four_set(gate, at, end, of_gate);
    return dot;
}

/* Sets dot [rows, gridDim.x]: the part of each row's dot over the columns of each block. A warp
 * takes one row. */
template <class TILE>
TILE_KERNEL(TILE)
activate_backward_kernel(cpl_device_numbers h, cpl_device_numbers gate, cpl_device_numbers up,
                         float *dot, const float *weight, grouped_rows dy, grouped_rows w_down,
                         sizes s)
{
    CPL_SHARED(typename TILE::number, shared);
    const int warp = (int)threadIdx.x / CPL_WARP, lane = (int)threadIdx.x % CPL_WARP;
    int expert, rows;
    int64_t first;
    typename TILE::sums da = {};
    if (!grouped_tile_at(blockIdx.y, TILE::ROWS, s.offset, (int)s.n, &expert, &first, &rows))
        return;
    const grouped_edge of_rows = {first, 0, rows};
    const grouped_edge of_D =
        grouped_edge_of((int64_t)blockIdx.x * TILE::COLUMNS, s.D, TILE::COLUMNS);
    grouped_add<TILE, true, false>(da, shared, dy, of_rows, w_down, of_D, expert, s.d);
    const float *tile = grouped_lay<TILE>(shared, da);
    for (int row = warp; row < rows; row += THREADS / CPL_WARP) {
        const int64_t at = (first + row) * s.D + of_D.first;
        float sum        = 0;
        for (int column = 4 * lane; column < of_D.count; column += 4 * CPL_WARP)
            sum += activate_backward(h, gate, up, at + column, at + of_D.count, weight[first + row],
                                     grouped_four<TILE>(tile, row, column));
        sum = cpl_warp_sum(sum);
        if (lane == 0) dot[(first + row) * gridDim.x + blockIdx.x] = sum;
    }
}

/* Computes out [rows, columns] = a . b^T (B_ALONG) or a . b, plus the product of a2 and b2 if a2 is
 * given, for the columns from `begin` on. */
template <class TILE, bool B_ALONG>
static __device__ __forceinline__ void
rows_tile(typename TILE::number *shared, float *out, int64_t begin, int64_t columns,
          const grouped_rows &a, const grouped_rows &b, const grouped_rows &a2,
          const grouped_rows &b2, int64_t k, const sizes &s)
{
    int expert, rows;
    int64_t first;
    typename TILE::sums sum = {};
    if (!grouped_tile_at(blockIdx.y, TILE::ROWS, s.offset, (int)s.n, &expert, &first, &rows))
        return;
    const int64_t at           = (int64_t)blockIdx.x * TILE::COLUMNS;
    const grouped_edge of_rows = {first, 0, rows};
    const grouped_edge of_b    = grouped_edge_of(begin + at, begin + columns, TILE::COLUMNS);
    grouped_add<TILE, true, B_ALONG>(sum, shared, a, of_rows, b, of_b, expert, k);
    if (a2.x.at) grouped_add<TILE, true, B_ALONG>(sum, shared, a2, of_rows, b2, of_b, expert, k);
    const float *tile = grouped_lay<TILE>(shared, sum);
    GROUPED_EACH_FOUR(rows, TILE::COLUMNS, row, column)
    {
        const int64_t to = (first + row) * columns + at;
        cpl_four_set({out, false}, to + column, to + of_b.count,
                     grouped_four<TILE>(tile, row, column));
    }
}

template <class TILE>
TILE_KERNEL(TILE)
outs_kernel(float *out, int64_t begin, int64_t columns, grouped_rows h, grouped_rows w_down,
            sizes s)
{
    CPL_SHARED(typename TILE::number, shared);
    const grouped_rows none = {};
    rows_tile<TILE, true>(shared, out, begin, columns, h, w_down, none, none, s.D, s);
}

template <class TILE>
TILE_KERNEL(TILE)
inputs_kernel(float *out, int64_t begin, int64_t columns, grouped_rows dgate, grouped_rows w_gate,
              grouped_rows dup, grouped_rows w_up, sizes s)
{
    CPL_SHARED(typename TILE::number, shared);
    rows_tile<TILE, false>(shared, out, begin, columns, dgate, w_gate, dup, w_up, s.D, s);
}

/* Adds left^T . right over the rows of each expert to dw [n, M, N]. blockIdx.z selects the second
 * dw and left, of equal shapes. */
template <class TILE>
TILE_KERNEL(TILE)
weights_kernel(float *dw, float *dw2, grouped_rows left, grouped_rows left2, grouped_rows right,
               int64_t M, int64_t N, const int32_t *offset)
{
    CPL_SHARED(typename TILE::number, shared);
    if (blockIdx.z) dw = dw2, left = left2;
    const int expert    = (int)blockIdx.y;
    const int64_t begin = offset[expert], rows = offset[expert + 1] - begin;
    const int64_t across    = (N + TILE::COLUMNS - 1) / TILE::COLUMNS;
    typename TILE::sums sum = {};
    if (rows == 0) return;
    grouped_edge of_M = grouped_edge_of(blockIdx.x / across * TILE::ROWS, M, TILE::ROWS);
    grouped_edge of_N = grouped_edge_of(blockIdx.x % across * TILE::COLUMNS, N, TILE::COLUMNS);
    of_M.k_first = of_N.k_first = begin;
    grouped_add<TILE, false, false>(sum, shared, left, of_M, right, of_N, expert, rows);
    const float *tile = grouped_lay<TILE>(shared, sum);
    GROUPED_EACH_FOUR(of_M.count, TILE::COLUMNS, row, column)
    {
        const int64_t at  = (expert * M + of_M.first + row) * N + of_N.first;
        const int64_t end = at + of_N.count;
        const cpl_four to = cpl_four_get({dw, false}, at + column, end);
        cpl_four_set({dw, false}, at + column, end,
                     cpl_four_sum(to, grouped_four<TILE>(tile, row, column)));
    }
}

/* ---- kernels by row ---- */

/* Sets `to` to `from`, rounded to bf16. */
__global__ void __launch_bounds__(CPL_FOUR_THREADS)
    narrow_kernel(cpl_device_numbers to, cpl_device_numbers from, int64_t count)
{
    const int64_t i = cpl_four_place();
    cpl_four_set(to, i, count, cpl_four_get(from, i, count));
}

/* Sets `to` [row[i]] to weight [i], for (token, choice) i. */
__global__ void __launch_bounds__(ROW_THREADS)
    sort_kernel(float *to, const float *weight, const int32_t *row, int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i < count) to[row[i]] = weight[i];
}

/* Computes y [T,d] at `columns` columns from `begin` on = (or +=) the sum over K of out [T K,
 * columns]. */
__global__ void __launch_bounds__(ROW_THREADS)
    combine_kernel(float *y, const float *out, const int32_t *row, int64_t K, int64_t d,
                   int64_t begin, int64_t columns, bool adds)
{
    const int64_t t = blockIdx.x;
    for (int64_t c = threadIdx.x; c < columns; c += ROW_THREADS) {
        float sum = adds ? y[t * d + begin + c] : 0;
        for (int64_t k = 0; k < K; k++) sum += out[row[t * K + k] * columns + c];
        y[t * d + begin + c] = sum;
    }
}

/* Sets dweight [i] to the sum of the parts of row[i], in order. */
__global__ void __launch_bounds__(ROW_THREADS)
    dweight_kernel(float *dweight, const float *dot, const int32_t *row, int64_t count,
                   int64_t parts)
{
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i >= count) return;
    const float *from = dot + row[i] * parts;
    float sum         = 0;
    for (int64_t p = 0; p < parts; p++) sum += from[p];
    dweight[i] = sum;
}

/* Computes the gradient of hidden. A block takes one (token, expert). A norm that is not a normal
 * number counts as 0. */
__global__ void __launch_bounds__(ROW_THREADS)
    hidden_backward_kernel(cpl_device_numbers hidden, const float *norm, const float *dnorm,
                           const float *dchosen, const int32_t *expert, const int32_t *row,
                           int64_t K, int64_t n, int64_t r)
{
    const int64_t at = blockIdx.x, t = at / n;
    const float factor = norm[at] < FLT_MIN ? 0.0f : dnorm[at] / norm[at];
    for (int64_t i = threadIdx.x; i < r; i += ROW_THREADS) {
        float value = cpl_device_get(hidden, at * r + i) * factor;
        for (int64_t k = t * K; k < (t + 1) * K; k++)
            if (expert[k] == at % n) value += dchosen[row[k] * r + i];
        cpl_device_set(hidden, at * r + i, value);
    }
}

/* ---- a call ---- */

static size_t padded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static bool in_bf16(const cpl_backend *be)
{
    return be->compute == CPL_BF16;
}

static int tile_columns(const cpl_backend *be)
{
    return in_bf16(be) ? grouped_bf16<4>::COLUMNS : grouped_f32::COLUMNS;
}

static int tile_rows(const cpl_backend *be, bool is_large)
{
    if (!in_bf16(be)) return grouped_f32::ROWS;
    return is_large ? grouped_bf16<4>::ROWS : grouped_bf16<2>::ROWS;
}

static int64_t dot_parts(const cpl_backend *be, int64_t D)
{
    return (int64_t)grouped_tiles(D, tile_columns(be));
}

/* Returns the number of the outs' columns that are computed together. */
static int64_t out_columns(const cpl_backend *be, int64_t rows, int64_t d)
{
    const int64_t fit  = OUT_BYTES / ((rows > 0 ? rows : 1) * (int64_t)sizeof(float));
    const int64_t each = tile_columns(be), most = fit < each ? each : fit / each * each;
    return d < most ? d : most;
}

/* Returns the bytes of the outs for at most `rows` rows. Fewer rows may have more columns. */
static size_t most_of_out(const cpl_backend *be, int64_t rows, int64_t d)
{
    const int64_t all = rows * d * 4, least = rows * tile_columns(be) * 4; /* bytes of F32 */
    const int64_t most = OUT_BYTES > least ? OUT_BYTES : least;
    return padded((size_t)(all < most ? all : most));
}

/* Takes the next `bytes` bytes of the memory. */
static void *piece(char *memory, size_t *used, size_t bytes)
{
    char *at = memory + *used;
    *used += padded(bytes);
    return at;
}

static room room_of(const cpl_backend *be, char *memory, sizes s, bool backward)
{
    const size_t rows = (size_t)(s.T * s.K), of_number = cpl_dtype_bytes(be->compute);
    const size_t parts = backward ? (size_t)dot_parts(be, s.D) : 0;
    const size_t of_dy = backward && in_bf16(be) ? (size_t)(s.T * s.d) * of_number : 0;
    room m             = {};
    m.columns          = out_columns(be, s.T * s.K, s.d);
    m.weight           = (float *)piece(memory, &m.bytes, rows * sizeof(float));
    m.dot              = (float *)piece(memory, &m.bytes, rows * parts * sizeof(float));
    m.h                = piece(memory, &m.bytes, rows * (size_t)s.D * of_number);
    m.dy               = piece(memory, &m.bytes, of_dy);
    m.out              = (float *)piece(memory, &m.bytes, most_of_out(be, s.T * s.K, s.d));
    return m;
}

/* Returns an upper bound of the number of tiles of the sorted rows. */
static unsigned most_tiles(sizes s)
{
    return (unsigned)(s.T * s.K / s.tile_rows + s.n);
}

static bool has_many(sizes s)
{
    return s.T * s.K >= MANY * s.n;
}

static sizes sizes_of(const cpl_backend *be, cpl_tensor x, cpl_tensor hidden, cpl_tensor weight,
                      cpl_dispatch plan, cpl_expert_weights w)
{
    sizes s        = {x.shape[0],
                      weight.shape[1],
                      w.w_gate.shape[0],
                      x.shape[1],
                      w.w_gate.shape[1],
                      w.w_gate.shape[2],
                      cpl_i32(plan.offset),
                      cpl_i32(plan.token),
                      cpl_i32(plan.row),
                      0,
                      0};
    s.tile_rows    = tile_rows(be, has_many(s));
    s.tile_columns = tile_columns(be);
    CPL_ASSERT(hidden.storage ? cpl_tensor_count(hidden) == s.T * s.n * s.r : s.r == s.d);
    CPL_ASSERT(weight.shape[0] == s.T && w.w_up.shape[0] == s.n && w.w_down.shape[0] == s.n);
    CPL_ASSERT(w.w_up.shape[1] == s.D && w.w_up.shape[2] == s.d);
    CPL_ASSERT(w.w_down.shape[1] == s.d && w.w_down.shape[2] == s.D);
    CPL_ASSERT(most_tiles(s) <= 65535 && s.n <= 65535);
    return s;
}

static grouped_rows weights_of(cpl_tensor w)
{
    return {cpl_device_numbers_of(w), w.shape[2], w.shape[1] * w.shape[2], NULL, 1};
}

static grouped_rows sorted_rows(void *at, cpl_dtype dtype, int64_t width)
{
    return {{at, dtype == CPL_BF16}, width, 0, NULL, 1};
}

static grouped_rows token_rows(sizes s, cpl_tensor x)
{
    return {cpl_device_numbers_of(x), s.d, 0, s.token, 1};
}

/* Returns the operand that the gate matrices multiply: x, or hidden. */
static grouped_rows gate_rows(sizes s, cpl_tensor x, cpl_tensor hidden)
{
    if (!hidden.storage) return token_rows(s, x);
    return {cpl_device_numbers_of(hidden), s.r, 0, s.token, s.n};
}

static cpl_device_numbers optional(cpl_tensor x)
{
    if (!x.storage) return {NULL, false};
    return cpl_device_numbers_of(x);
}

/* Returns the grid with one block per tile of the sorted rows and of `width` columns. */
static dim3 tiles_of(sizes s, int64_t width)
{
    return dim3(grouped_tiles(width, s.tile_columns), most_tiles(s));
}

static unsigned row_blocks(int64_t count)
{
    return (unsigned)((count + ROW_THREADS - 1) / ROW_THREADS);
}

static void sort_weights(cpl_backend *be, room m, cpl_tensor weight, sizes s)
{
    CPL_LAUNCH(be, sort_kernel, dim3(row_blocks(s.T * s.K)), dim3(ROW_THREADS), 0, m.weight,
               cpl_f32(weight), s.row, s.T * s.K);
}

static void combine(cpl_backend *be, float *y, room m, sizes s, int64_t begin, int64_t columns,
                    bool adds)
{
    CPL_LAUNCH(be, combine_kernel, dim3((unsigned)s.T), dim3(ROW_THREADS), 0, y, m.out, s.row, s.K,
               s.d, begin, columns, adds);
}

/* ---- forward ---- */

static void make_h(cpl_backend *be, room m, cpl_tensor gate, cpl_tensor up, cpl_tensor x,
                   cpl_tensor hidden, cpl_expert_weights w, sizes s)
{
    const cpl_device_numbers h = {m.h, in_bf16(be)};
    LAUNCH_TILES(be, has_many(s), gate_up_kernel, tiles_of(s, 2 * s.D), h, optional(gate),
                 optional(up), (const float *)m.weight, gate_rows(s, x, hidden), token_rows(s, x),
                 weights_of(w.w_gate), weights_of(w.w_up), s);
}

static void add_outs(cpl_backend *be, float *y, room m, cpl_expert_weights w, sizes s)
{
    const grouped_rows h = sorted_rows(m.h, be->compute, s.D);
    for (int64_t begin = 0; begin < s.d; begin += m.columns) {
        const int64_t columns = s.d - begin < m.columns ? s.d - begin : m.columns;
        LAUNCH_TILES(be, has_many(s), outs_kernel, tiles_of(s, columns), m.out, begin, columns, h,
                     weights_of(w.w_down), s);
        combine(be, y, m, s, begin, columns, false);
    }
}

extern "C" void cpl_cuda_experts(cpl_backend *be, cpl_tensor y, cpl_tensor gate, cpl_tensor up,
                                 cpl_tensor x, cpl_tensor hidden, cpl_tensor weight,
                                 cpl_dispatch plan, cpl_expert_weights w)
{
    const sizes s = sizes_of(be, x, hidden, weight, plan, w);
    if (s.T == 0) return;
    const room m = room_of(be, (char *)be->scratch, s, false);
    CPL_ASSERT(m.bytes <= be->scratch_bytes);
    sort_weights(be, m, weight, s);
    make_h(be, m, gate, up, x, hidden, w, s);
    add_outs(be, cpl_f32(y), m, w, s);
}

/* ---- backward ---- */

/* Returns dy by sorted row, as an operand of products. */
static grouped_rows gradient_rows(cpl_backend *be, room m, cpl_tensor dy, sizes s)
{
    const cpl_device_numbers to = {m.dy, true};
    if (!in_bf16(be)) return token_rows(s, dy);
    CPL_LAUNCH(be, narrow_kernel, cpl_four_grid(s.T * s.d), dim3(CPL_FOUR_THREADS), 0, to,
               cpl_device_numbers_of(dy), s.T * s.d);
    return {to, s.d, 0, s.token, 1};
}

/* Computes h, dweight, and dgate and dup, which replace gate and up. */
static void through_activation(cpl_backend *be, room m, cpl_tensor dweight, grouped_rows dy,
                               cpl_tensor gate, cpl_tensor up, cpl_expert_weights w, sizes s)
{
    const cpl_device_numbers h = {m.h, in_bf16(be)};
    LAUNCH_TILES(be, has_many(s), activate_backward_kernel, tiles_of(s, s.D), h,
                 cpl_device_numbers_of(gate), cpl_device_numbers_of(up), m.dot,
                 (const float *)m.weight, dy, weights_of(w.w_down), s);
    CPL_LAUNCH(be, dweight_kernel, dim3(row_blocks(s.T * s.K)), dim3(ROW_THREADS), 0,
               cpl_f32(dweight), (const float *)m.dot, s.row, s.T * s.K, dot_parts(be, s.D));
}

/* Adds the gradients dw and dw2. dw2 may be none. */
static void add_weights(cpl_backend *be, cpl_tensor dw, cpl_tensor dw2, grouped_rows left,
                        grouped_rows left2, grouped_rows right, sizes s)
{
    const int64_t M = dw.shape[1], N = dw.shape[2];
    const bool is_large = M > grouped_bf16<2>::ROWS;
    const unsigned tiles =
        grouped_tiles(M, tile_rows(be, is_large)) * grouped_tiles(N, s.tile_columns);
    LAUNCH_TILES(be, is_large, weights_kernel, dim3(tiles, (unsigned)s.n, dw2.storage ? 2 : 1),
                 cpl_f32(dw), (float *)dw2.storage, left, left2, right, M, N, s.offset);
}

/* Adds to dx. Sets dhidden if the gates' input is hidden. */
static void add_inputs(cpl_backend *be, room m, float *dx, cpl_tensor dhidden, grouped_rows dgate,
                       grouped_rows dup, cpl_expert_weights w, sizes s)
{
    const grouped_rows none = {}, of_gate = weights_of(w.w_gate), of_up = weights_of(w.w_up);
    const bool own = dhidden.storage != NULL;
    if (own)
        LAUNCH_TILES(be, has_many(s), inputs_kernel, tiles_of(s, s.r), cpl_f32(dhidden), (int64_t)0,
                     s.r, dgate, of_gate, none, none, s);
    for (int64_t begin = 0; begin < s.d; begin += m.columns) {
        const int64_t columns = s.d - begin < m.columns ? s.d - begin : m.columns;
        LAUNCH_TILES(be, has_many(s), inputs_kernel, tiles_of(s, columns), m.out, begin, columns,
                     own ? dup : dgate, own ? of_up : of_gate, own ? none : dup, own ? none : of_up,
                     s);
        combine(be, dx, m, s, begin, columns, true);
    }
}

extern "C" void cpl_cuda_experts_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dhidden,
                                          cpl_tensor dweight, cpl_expert_weights dw, cpl_tensor dy,
                                          cpl_tensor gate, cpl_tensor up, cpl_tensor x,
                                          cpl_tensor hidden, cpl_tensor weight, cpl_dispatch plan,
                                          cpl_expert_weights w)
{
    const sizes s = sizes_of(be, x, hidden, weight, plan, w);
    CPL_ASSERT(gate.storage && up.storage && !hidden.storage == !dhidden.storage);
    if (s.T == 0) return;
    const room m = room_of(be, (char *)be->scratch, s, true);
    CPL_ASSERT(m.bytes <= be->scratch_bytes);
    sort_weights(be, m, weight, s);
    const grouped_rows of_dy = gradient_rows(be, m, dy, s);
    through_activation(be, m, dweight, of_dy, gate, up, w, s);
    const grouped_rows h     = sorted_rows(m.h, be->compute, s.D);
    const grouped_rows dgate = sorted_rows(gate.storage, gate.dtype, s.D);
    const grouped_rows dup   = sorted_rows(up.storage, up.dtype, s.D);
    const cpl_tensor none    = cpl_tensor_none();
    add_weights(be, dw.w_down, none, of_dy, of_dy, h, s);
    if (hidden.storage) add_weights(be, dw.w_gate, none, dgate, dgate, gate_rows(s, x, hidden), s);
    add_weights(be, dw.w_up, hidden.storage ? none : dw.w_gate, dup, dgate, token_rows(s, x), s);
    add_inputs(be, m, cpl_f32(dx), dhidden, dgate, dup, w, s);
}

extern "C" void cpl_cuda_hidden_backward(cpl_backend *be, cpl_tensor hidden, cpl_tensor norm,
                                         cpl_tensor dnorm, cpl_tensor dchosen, cpl_tensor expert,
                                         cpl_dispatch plan)
{
    const int64_t T = expert.shape[0], K = expert.shape[1], n = cpl_tensor_cols(norm);
    const int64_t r = cpl_tensor_cols(hidden);
    CPL_ASSERT(cpl_tensor_count(hidden) == T * n * r && cpl_tensor_count(dnorm) == T * n);
    CPL_ASSERT(cpl_tensor_count(dchosen) == T * K * r);
    CPL_LAUNCH(be, hidden_backward_kernel, dim3((unsigned)(T * n)), dim3(ROW_THREADS), 0,
               cpl_device_numbers_of(hidden), cpl_f32(norm), cpl_f32(dnorm), cpl_f32(dchosen),
               cpl_i32(expert), cpl_i32(plan.row), K, n, r);
}

/* Returns the bytes for the routed experts or the shared expert, whose rows are all tokens. */
extern "C" size_t cpl_cuda_experts_scratch(const cpl_backend *be, const cpl_work *work)
{
    const int64_t T = work->n_tokens, d = work->d_model;
    sizes routed = {T, work->top_k, work->n_experts, d, work->d_expert, 0, NULL, NULL, NULL, 0, 0};
    sizes shared = {T, 1, 1, d, work->d_shared, 0, NULL, NULL, NULL, 0, 0};
    const size_t one = room_of(be, NULL, routed, work->training).bytes;
    const size_t two = room_of(be, NULL, shared, work->training).bytes;
    return one > two ? one : two;
}
