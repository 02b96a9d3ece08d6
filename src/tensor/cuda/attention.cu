/* attention.cu - causal attention, flash attention's way: no T x T matrix.
 *
 * Room:    tensor/cuda. Operations: ops.h.
 * Names:   B sequences, H query heads on G key heads (r = H/G each), h head width, scale =
 *          1/sqrt(h). s scores, p their exponentials, dp = dout v^T, delta = dot(dout, out) of a
 *          query and head, ds = scale p (dp - delta).
 * Method:  forward: a block has some queries of one head and goes over the keys that any of them
 *          sees, with a running maximum and sum; out is rescaled when the maximum rises.
 *          backward: two passes, so that nothing is added to by two blocks: one over blocks of
 *          queries for dq = ds k, one over blocks of keys for dk = ds^T q and dv = p^T dout, which
 *          goes over the r heads of its group in order. The passes are one kernel: its rows are
 *          queries or keys, its columns the other.
 *          Kernels of tensor cores serve bf16 where h is a multiple of 16 up to 128; the plain ones
 *          serve all else, also segments, and in bf16 round the same operands as the CPU does:
 *          q, k, v, dout, p and ds. Sums, scores, the softmax and delta are F32. */
#include <climits>

#include "tensor/cuda/device.h"

enum { WARPS = 4, THREADS = WARPS * CPL_WARP };

typedef struct job {
    cpl_attention_shape s;
    float scale;
    bool rounds; /* operands of products to bf16 */
    cpl_device_numbers out, q, k, v, dout;
    float *lse, *delta; /* [B,H,n_queries] */
    float *dq, *dk, *dv;
    const int32_t *doc_start; /* [B, n_keys] or NULL */
    const cpl_segment *segment;
    const int32_t *key_row; /* of segments, or NULL */
    int64_t n_segments;
} job;

/* What a block works on: some queries (or keys) of one head of one sequence. */
typedef struct tile {
    int64_t b, head, first; /* first: number of its first row in the sequence */
    int64_t n_queries, n_keys;
    int64_t query0, key0;   /* rows of the tensors where the sequence begins */
    const int32_t *key_row; /* rows of its keys, or NULL */
} tile;

/* The rows of one head of one sequence in a tensor. */
typedef struct view {
    cpl_device_numbers x;
    const int32_t *row; /* or NULL: one after another from `first` on */
    int64_t first, stride, at;
} view;

static __device__ __forceinline__ int lane_here()
{
    return (int)threadIdx.x % CPL_WARP;
}

static __device__ __forceinline__ int warp_here()
{
    return (int)threadIdx.x / CPL_WARP;
}

/* ---- positions in memory ---- */

static __device__ __forceinline__ view query_view(const job &j, const tile &t, cpl_device_numbers x)
{
    return {x, nullptr, t.query0, j.s.n_heads * j.s.head_dim, t.head * j.s.head_dim};
}

static __device__ __forceinline__ view key_view(const job &j, const tile &t, cpl_device_numbers x)
{
    const int64_t shared = j.s.n_heads / j.s.n_kv_heads;
    return {x, t.key_row, t.key0, j.s.n_kv_heads * j.s.head_dim, t.head / shared * j.s.head_dim};
}

/* Number of the first element of row i. */
static __device__ __forceinline__ int64_t row_at(const view &v, int64_t i)
{
    return (v.row ? v.row[i] : v.first + i) * v.stride + v.at;
}

/* Number of query i in lse and delta. */
static __device__ __forceinline__ int64_t query_at(const job &j, const tile &t, int64_t i)
{
    return (t.b * j.s.n_heads + t.head) * t.n_queries + i;
}

static __device__ __forceinline__ float operand(const job &j, cpl_device_numbers x, int64_t i)
{
    const float value = cpl_device_get(x, i);
    return j.rounds && !x.is_bf16 ? cpl_device_float(cpl_device_bf16(value)) : value;
}

/* ---- what a query sees ---- */

static __device__ __forceinline__ int64_t position(const tile &t, int64_t query)
{
    return t.n_keys - t.n_queries + query;
}

/* The first key that query i sees; past the last query, one that is nowhere. */
static __device__ __forceinline__ int first_key(const job &j, const tile &t, int64_t i)
{
    if (i >= t.n_queries) return INT_MAX;
    return j.doc_start ? j.doc_start[t.b * t.n_keys + position(t, i)] : 0;
}

/* The first key that any of `count` queries from `first` on sees; whole warps call it. */
static __device__ __forceinline__ int64_t first_key_of(const job &j, const tile &t, int64_t first,
                                                       int count)
{
    if (!j.doc_start) return 0;
    int least = INT_MAX;
    for (int i = lane_here(); i < count; i += CPL_WARP) {
        const int start = first_key(j, t, first + i);
        least           = start < least ? start : least;
    }
    for (int m = CPL_WARP / 2; m; m >>= 1) {
        const int other = __shfl_xor_sync(0xffffffffu, least, m);
        least           = other < least ? other : least;
    }
    return least;
}

/* One more than the last key that any of `count` queries from `first` on sees. */
static __device__ __forceinline__ int64_t last_key_of(const tile &t, int64_t first, int count)
{
    const int64_t last = first + count < t.n_queries ? first + count : t.n_queries;
    return position(t, last - 1) + 1;
}

/* ---- the work of a block ---- */

/* Tile `number` of the segments' tiles of `rows` queries each: its segment and first query. False:
 * there are not so many. Whole warps call it. */
static __device__ bool segment_tile(const job &j, int64_t number, int rows, tile *t)
{
    const int lane = lane_here();
    for (int64_t begin = 0; begin < j.n_segments; begin += CPL_WARP) {
        const bool is = begin + lane < j.n_segments;
        int tiles     = is ? (j.segment[begin + lane].n_queries + rows - 1) / rows : 0;
        for (int d = 1; d < CPL_WARP; d <<= 1) {
            const int before = __shfl_up_sync(0xffffffffu, tiles, d);
            if (lane >= d) tiles += before;
        }
        const unsigned past = __ballot_sync(0xffffffffu, tiles > number);
        const int which     = past ? __ffs((int)past) - 1 : CPL_WARP;
        const int before    = __shfl_sync(0xffffffffu, tiles, which ? which - 1 : 0);
        if (which < CPL_WARP) {
            const cpl_segment s = j.segment[begin + which];
            t->first            = (number - (which ? before : 0)) * rows;
            t->n_queries        = s.n_queries;
            t->n_keys           = s.n_keys;
            t->query0           = s.first;
            t->key_row          = j.key_row + s.first_key;
            return true;
        }
        number -= before;
    }
    return false;
}

/* The tile of this block among tiles of `rows` queries; the longest ones come first. */
static __device__ bool query_tile(const job &j, int rows, tile *t)
{
    const int64_t number = blockIdx.x;
    *t                   = {};
    t->head              = number % j.s.n_heads;
    if (j.key_row) return segment_tile(j, number / j.s.n_heads, rows, t);
    const int64_t tiles = (j.s.n_queries + rows - 1) / rows, at = number / j.s.n_heads;
    t->b         = at % j.s.batch;
    t->first     = (tiles - 1 - at / j.s.batch) * rows;
    t->n_queries = j.s.n_queries;
    t->n_keys    = j.s.n_keys;
    t->query0    = t->b * j.s.n_queries;
    t->key0      = t->b * j.s.key_stride;
    return true;
}

/* The same with rows of keys of one key head; the head is the first of its group. */
static __device__ void key_tile(const job &j, int rows, tile *t)
{
    const int64_t number = blockIdx.x, at = number / j.s.n_kv_heads;
    *t           = {};
    t->head      = number % j.s.n_kv_heads * (j.s.n_heads / j.s.n_kv_heads);
    t->b         = at % j.s.batch;
    t->first     = at / j.s.batch * rows;
    t->n_queries = j.s.n_queries;
    t->n_keys    = j.s.n_keys;
    t->query0    = t->b * j.s.n_queries;
    t->key0      = t->b * j.s.key_stride;
}

/* ---- plain products: a warp has 4 rows, a lane one column, sums over h in pieces ---- */

enum { ROWS = 4, BLOCK_ROWS = WARPS * ROWS, COLS = CPL_WARP, PIECE = 64, COL_PITCH = PIECE + 1 };
enum { OUT_PARTS = 4, OUT = OUT_PARTS * CPL_WARP }; /* columns of the result that a block makes */
enum { ROW_PANEL = PIECE * BLOCK_ROWS, COL_PANEL = COLS * COL_PITCH };
enum { WEIGHTS = WARPS * COLS * ROWS, PLAIN_SHARED = ROW_PANEL + COL_PANEL + WEIGHTS };

/* panel[r row_pitch + x x_pitch] = numbers x0 + x of row first + r of the view, 0 where there are
 * none, for r < rows and x < PIECE. */
static __device__ void gather(const job &j, float *panel, int row_pitch, int x_pitch, const view &v,
                              int64_t first, int64_t end, int rows, int64_t x0)
{
    for (int i = (int)threadIdx.x; i < rows * PIECE; i += THREADS) {
        const int r = i / PIECE, x = i % PIECE;
        const bool is = first + r < end && x0 + x < j.s.head_dim;
        panel[r * row_pitch + x * x_pitch] =
            is ? operand(j, v.x, row_at(v, first + r) + x0 + x) : 0.0f;
    }
}

/* s[r] += dot(row r of the warp, column of the lane) over one piece. */
static __device__ __forceinline__ void add_dots(float *s, const float *rows, const float *cols)
{
    const float *row = rows + warp_here() * ROWS, *col = cols + lane_here() * COL_PITCH;
    for (int x = 0; x < PIECE; x++)
        for (int r = 0; r < ROWS; r++) s[r] += row[x * BLOCK_ROWS + r] * col[x];
}

/* s[r] = dots of rows from `row` on with columns from `col` on. The whole block calls it. */
static __device__ void dots(const job &j, float *s, float *shared, const view &a, int64_t row,
                            int64_t rows, const view &b, int64_t col, int64_t cols)
{
    for (int r = 0; r < ROWS; r++) s[r] = 0;
    for (int64_t x = 0; x < j.s.head_dim; x += PIECE) {
        __syncthreads(); /* the panels were read */
        gather(j, shared, 1, BLOCK_ROWS, a, row, rows, BLOCK_ROWS, x);
        gather(j, shared + ROW_PANEL, COL_PITCH, 1, b, col, cols, COLS, x);
        __syncthreads();
        add_dots(s, shared, shared + ROW_PANEL);
    }
}

/* sum[r][c] += sum over the columns of weight[r] times number x + c CPL_WARP of the column's row in
 * v; every lane brings the weights of its column. */
static __device__ void add_weighted(const job &j, float (*sum)[OUT_PARTS], const float *weight,
                                    float *shared, const view &v, int64_t col, int64_t cols)
{
    const int64_t x = (int64_t)blockIdx.y * OUT + lane_here();
    float *own      = shared + ROW_PANEL + COL_PANEL + warp_here() * COLS * ROWS;
    const int count = cols - col < COLS ? (int)(cols - col) : COLS;
    __syncwarp(); /* the weights before were read */
    for (int r = 0; r < ROWS; r++)
        own[lane_here() * ROWS + r] =
            j.rounds ? cpl_device_float(cpl_device_bf16(weight[r])) : weight[r];
    __syncwarp();
    for (int i = 0; i < count; i++) {
        const int64_t at = row_at(v, col + i);
        for (int c = 0; c < OUT_PARTS; c++) {
            if (x + c * CPL_WARP >= j.s.head_dim) break;
            const float value = operand(j, v.x, at + x + c * CPL_WARP);
            for (int r = 0; r < ROWS; r++) sum[r][c] += own[i * ROWS + r] * value;
        }
    }
}

/* ---- plain forward ---- */

static __device__ __forceinline__ float warp_largest(float v)
{
    for (int m = CPL_WARP / 2; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}

/* What is known of the rows of a warp. */
typedef struct plain_rows {
    float largest[ROWS], sum[ROWS], out[ROWS][OUT_PARTS];
} plain_rows;

/* The scores s of the lane's key become exponentials; the sums so far follow. */
static __device__ void soften(const job &j, const tile &t, plain_rows *w, float *s, int64_t row,
                              int64_t key)
{
    for (int r = 0; r < ROWS; r++) {
        const int64_t i  = row + r;
        const bool sees  = key >= first_key(j, t, i) && key <= position(t, i);
        const float here = sees ? s[r] * j.scale : -INFINITY;
        const float most = fmaxf(w->largest[r], warp_largest(here));
        const float base = most > -INFINITY ? most : 0.0f;
        s[r]             = sees ? expf(here - base) : 0.0f;
        const float part = expf(w->largest[r] - base);
        w->sum[r]        = w->sum[r] * part + cpl_warp_sum(s[r]);
        w->largest[r]    = most;
        for (int c = 0; c < OUT_PARTS; c++) w->out[r][c] *= part;
    }
}

__global__ void __launch_bounds__(THREADS, 3) attention_plain(job j)
{
    CPL_SHARED(float, shared);
    tile t;
    if (!query_tile(j, BLOCK_ROWS, &t)) return;
    const view q = query_view(j, t, j.q), k = key_view(j, t, j.k), v = key_view(j, t, j.v);
    const view out      = query_view(j, t, j.out);
    const int64_t row   = t.first + warp_here() * ROWS;
    const int64_t begin = first_key_of(j, t, t.first, BLOCK_ROWS);
    const int64_t end   = last_key_of(t, t.first, BLOCK_ROWS);
    plain_rows w        = {};
    for (int r = 0; r < ROWS; r++) w.largest[r] = -INFINITY;
    for (int64_t key = begin; key < end; key += COLS) {
        float s[ROWS];
        dots(j, s, shared, q, t.first, t.n_queries, k, key, end);
        soften(j, t, &w, s, row, key + lane_here());
        add_weighted(j, w.out, s, shared, v, key, end);
    }
    const int64_t x = (int64_t)blockIdx.y * OUT + lane_here();
    for (int r = 0; r < ROWS && row + r < t.n_queries; r++) {
        const int64_t at = row_at(out, row + r);
        for (int c = 0; c < OUT_PARTS; c++)
            if (x + c * CPL_WARP < j.s.head_dim)
                cpl_device_set(out.x, at + x + c * CPL_WARP, w.out[r][c] * (1.0f / w.sum[r]));
        if (j.lse && x == 0) j.lse[query_at(j, t, row + r)] = w.largest[r] + logf(w.sum[r]);
    }
}

/* ---- plain backward ---- */

/* delta = dot(dout, out) of a query and head, a warp each. */
__global__ void __launch_bounds__(THREADS) attention_delta(job j, int64_t count)
{
    const int64_t at = (int64_t)blockIdx.x * WARPS + warp_here(), h = j.s.head_dim;
    if (at >= count) return;
    float dot = 0;
    for (int64_t x = lane_here(); x < h; x += CPL_WARP)
        dot += cpl_device_get(j.dout, at * h + x) * cpl_device_get(j.out, at * h + x);
    dot                = cpl_warp_sum(dot);
    const int64_t head = at % j.s.n_heads, token = at / j.s.n_heads;
    const int64_t b = token / j.s.n_queries, i = token % j.s.n_queries;
    if (lane_here() == 0) j.delta[(b * j.s.n_heads + head) * j.s.n_queries + i] = dot;
}

/* p and ds of a query and a key from their scores s and dp. */
static __device__ __forceinline__ void weigh(const job &j, const tile &t, float *s, float *dp,
                                             int64_t query, int64_t key)
{
    const bool sees = key >= first_key(j, t, query) && key <= position(t, query);
    const float p   = sees ? expf(*s * j.scale - j.lse[query_at(j, t, query)]) : 0.0f;
    *dp             = sees ? j.scale * p * (*dp - j.delta[query_at(j, t, query)]) : 0.0f;
    *s              = p;
}

/* A block's rows and columns of the backward pass: keys and queries, or queries and keys. */
typedef struct pass {
    view a, da, b, db; /* q and dout, k and v; or k and v, q and dout */
    int64_t rows, begin, end;
} pass;

template <bool KEYS> static __device__ pass pass_of(const job &j, const tile &t, int rows)
{
    const view q = query_view(j, t, j.q), dout = query_view(j, t, j.dout);
    const view k = key_view(j, t, j.k), v = key_view(j, t, j.v);
    if (KEYS) return {k, v, q, dout, t.n_keys, t.first, t.n_queries};
    return {q,
            dout,
            k,
            v,
            t.n_queries,
            first_key_of(j, t, t.first, rows),
            last_key_of(t, t.first, rows)};
}

/* One step of the plain pass: what the columns from `col` on add. */
template <bool KEYS>
static __device__ void plain_step(const job &j, const tile &t, const pass &p, float *shared,
                                  int64_t col, float (*first)[OUT_PARTS],
                                  float (*second)[OUT_PARTS])
{
    float s[ROWS], dp[ROWS];
    const int64_t own = t.first + warp_here() * ROWS, other = col + lane_here();
    dots(j, s, shared, p.a, t.first, p.rows, p.b, col, p.end);
    dots(j, dp, shared, p.da, t.first, p.rows, p.db, col, p.end);
    for (int r = 0; r < ROWS; r++)
        weigh(j, t, &s[r], &dp[r], KEYS ? other : own + r, KEYS ? own + r : other);
    add_weighted(j, first, dp, shared, p.b, col, p.end);
    if (KEYS) add_weighted(j, second, s, shared, p.db, col, p.end);
}

/* to [rows from `row` on of the view] = sum. */
static __device__ void plain_store(const job &j, float *to, const view &v, int64_t row,
                                   int64_t rows, const float (*sum)[OUT_PARTS])
{
    const int64_t x = (int64_t)blockIdx.y * OUT + lane_here();
    for (int r = 0; r < ROWS && row + r < rows; r++)
        for (int c = 0; c < OUT_PARTS; c++)
            if (x + c * CPL_WARP < j.s.head_dim)
                to[row_at(v, row + r) + x + c * CPL_WARP] = sum[r][c];
}

template <bool KEYS> __global__ void __launch_bounds__(THREADS, 3) attention_backward_plain(job j)
{
    CPL_SHARED(float, shared);
    tile t;
    if (KEYS)
        key_tile(j, BLOCK_ROWS, &t);
    else
        query_tile(j, BLOCK_ROWS, &t);
    float first[ROWS][OUT_PARTS] = {}, second[ROWS][OUT_PARTS] = {};
    const int heads = KEYS ? (int)(j.s.n_heads / j.s.n_kv_heads) : 1;
    pass p          = pass_of<KEYS>(j, t, BLOCK_ROWS);
    for (int i = 0; i < heads; i++, t.head += KEYS) {
        if (KEYS) p = pass_of<KEYS>(j, t, BLOCK_ROWS);
        for (int64_t col = p.begin; col < p.end; col += COLS) {
            if (KEYS && first_key_of(j, t, col, COLS) >= t.first + BLOCK_ROWS) continue;
            plain_step<KEYS>(j, t, p, shared, col, first, second);
        }
    }
    const int64_t row = t.first + warp_here() * ROWS;
    plain_store(j, KEYS ? j.dk : j.dq, p.a, row, p.rows, first);
    if (KEYS) plain_store(j, j.dv, p.da, row, p.rows, second);
}

/* ---- tensor cores: panels of bf16 in shared memory, rows h + 8 numbers long for the banks ---- */

enum { TILE = 64, STRIP = 16, NARROW = 8 }; /* rows of a block, of a warp, columns of a product */

typedef struct alignas(16) eight {
    uint32_t pair[4];
} eight;

template <int H> static __device__ __forceinline__ uint16_t *panel_row(uint16_t *panel, int row)
{
    return panel + row * (H + 8);
}

#ifdef __CUDACC__

/* Numbers of a loop stay in registers only if it is unrolled. */
#    define UNROLL _Pragma("unroll")

static __device__ __forceinline__ unsigned shared_address(const void *at)
{
    return (unsigned)__cvta_generic_to_shared(at);
}

/* Two numbers as bf16, a in the low half. */
static __device__ __forceinline__ uint32_t pair_of(float a, float b)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    return pair;
}

/* 2^x; what is below the normal numbers is 0. */
static __device__ __forceinline__ float power_of_2(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

/* Fragment a [16,16] of a product: numbers x ... x + 15 of rows row ... row + 15 of a panel. */
template <int H>
static __device__ __forceinline__ void fragment_a(uint32_t *a, uint16_t *panel, int row, int x)
{
    const int lane = lane_here();
    uint16_t *at   = panel_row<H>(panel, row + lane % 16) + x + lane / 16 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(at))
                 : "memory");
}

/* Two fragments b [16,8]: b[x][n] = number x of row n, of rows row ... row + 15. */
template <int H>
static __device__ __forceinline__ void fragments_b(uint32_t *b, uint16_t *panel, int row, int x)
{
    const int lane = lane_here();
    uint16_t *at   = panel_row<H>(panel, row + lane % 8 + lane / 16 * 8) + x + lane / 8 % 2 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(shared_address(at))
                 : "memory");
}

/* The same of the panel as it lies: b[n][x] = number x of row n, of numbers x ... x + 15. */
template <int H>
static __device__ __forceinline__ void fragments_t(uint32_t *b, uint16_t *panel, int row, int x)
{
    const int lane = lane_here();
    uint16_t *at   = panel_row<H>(panel, row + lane % 16) + x + lane / 16 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(shared_address(at))
                 : "memory");
}

#else /* the same for threads on the host */

#    define UNROLL

static float power_of_2(float x)
{
    return exp2f(x);
}

static uint32_t pair_of(float a, float b)
{
    return cpl_device_bf16(a) | (uint32_t)cpl_device_bf16(b) << 16;
}

template <int H> static void fragment_a(uint32_t *a, uint16_t *panel, int row, int x)
{
    const int r = row + lane_here() / 4, c = x + lane_here() % 4 * 2;
    for (int i = 0; i < 4; i++)
        a[i] = *(uint32_t *)(panel_row<H>(panel, r + i % 2 * 8) + c + i / 2 * 8);
}

template <int H> static void fragments_b(uint32_t *b, uint16_t *panel, int row, int x)
{
    const int r = row + lane_here() / 4, c = x + lane_here() % 4 * 2;
    for (int i = 0; i < 4; i++)
        b[i] = *(uint32_t *)(panel_row<H>(panel, r + i / 2 * 8) + c + i % 2 * 8);
}

template <int H> static void fragments_t(uint32_t *b, uint16_t *panel, int row, int x)
{
    const int r = row + lane_here() % 4 * 2, c = x + lane_here() / 4;
    for (int i = 0; i < 4; i++) {
        const uint16_t *at = panel_row<H>(panel, r + i % 2 * 8) + c + i / 2 * 8;
        b[i]               = at[0] | (uint32_t)at[H + 8] << 16;
    }
}

#endif

/* Waits for the thread's own copies; those of others are there after a barrier. */
static __device__ __forceinline__ void copies_wait()
{
    CPL_COPY_COMMIT();
    CPL_COPY_WAIT(0);
}

/* panel = `count` rows from `first` on, zero from row `end` on; copies may still be under way. */
template <int H>
static __device__ void fill_panel(uint16_t *panel, const view &v, int64_t first, int64_t end,
                                  int count)
{
    for (int i = (int)threadIdx.x; i < count * (H / 8); i += THREADS) {
        const int r = i / (H / 8), x = i % (H / 8) * 8;
        uint16_t *to = panel_row<H>(panel, r) + x;
        if (first + r >= end) {
            *(eight *)to = eight{};
        } else if (v.x.is_bf16) {
            CPL_COPY_ASYNC_16(to, (const uint16_t *)v.x.at + row_at(v, first + r) + x, 16);
        } else {
            float from[8];
            memcpy(from, (const float *)v.x.at + row_at(v, first + r) + x, sizeof from);
            eight pairs;
            for (int c = 0; c < 4; c++) pairs.pair[c] = pair_of(from[2 * c], from[2 * c + 1]);
            *(eight *)to = pairs;
        }
    }
}

/* c [16, 8 N] of a warp += rows row ... row + 15 of panel a times the rows of panel b. */
template <int H, int N>
static __device__ __forceinline__ void add_scores(float (*c)[4], uint16_t *a, int row, uint16_t *b)
{
    UNROLL
    for (int x = 0; x < H; x += 16) {
        uint32_t fa[4], fb[4];
        fragment_a<H>(fa, a, row, x);
        UNROLL
        for (int n = 0; n < N; n += 2) {
            fragments_b<H>(fb, b, n * NARROW, x);
            CPL_MMA_16816(c[n], fa, fb);
            CPL_MMA_16816(c[n + 1], fa, fb + 2);
        }
    }
}

/* The same with the fragments of a in registers. */
template <int H, int N>
static __device__ __forceinline__ void add_scores_of(float (*c)[4], const uint32_t (*a)[4],
                                                     uint16_t *b)
{
    UNROLL
    for (int x = 0; x < H; x += 16) {
        UNROLL
        for (int n = 0; n < N; n += 2) {
            uint32_t fb[4];
            fragments_b<H>(fb, b, n * NARROW, x);
            CPL_MMA_16816(c[n], a[x / 16], fb);
            CPL_MMA_16816(c[n + 1], a[x / 16], fb + 2);
        }
    }
}

/* c [16,H] of a warp += weights w [16, 8 N], rounded to bf16, times panel b [8 N, H]. */
template <int H, int N>
static __device__ __forceinline__ void add_product(float (*c)[4], const float (*w)[4], uint16_t *b)
{
    UNROLL
    for (int n = 0; n < N; n += 2) {
        uint32_t fb[4];
        const uint32_t fa[4] = {pair_of(w[n][0], w[n][1]), pair_of(w[n][2], w[n][3]),
                                pair_of(w[n + 1][0], w[n + 1][1]),
                                pair_of(w[n + 1][2], w[n + 1][3])};
        UNROLL
        for (int x = 0; x < H; x += 16) {
            fragments_t<H>(fb, b, n * NARROW, x);
            CPL_MMA_16816(c[x / NARROW], fa, fb);
            CPL_MMA_16816(c[x / NARROW + 1], fa, fb + 2);
        }
    }
}

/* Row and column, in the strip of a warp, of number q of product n. */
static __device__ __forceinline__ int strip_row(int q)
{
    return lane_here() / 4 + q / 2 * 8;
}

static __device__ __forceinline__ int strip_col(int n, int q)
{
    return n * NARROW + lane_here() % 4 * 2 + q % 2;
}

/* The largest, or the sum, over the four lanes that share a row. */
static __device__ __forceinline__ float row_largest(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

static __device__ __forceinline__ float row_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* ---- forward on tensor cores ---- */

static const float LOG2_E = 1.44269504088896340736f, LN_2 = 0.693147180559945309417f;

/* The two rows of a lane: which keys they see, and their largest score (times scale log2 e) and sum
 * so far; the sum is of the lane's own columns. */
typedef struct strip_rows {
    int from[2], to[2];
    float largest[2], sum[2];
} strip_rows;

static __device__ __forceinline__ strip_rows strip_rows_of(const job &j, const tile &t, int64_t row)
{
    strip_rows w = {};
    for (int i = 0; i < 2; i++) {
        const int64_t query = row + strip_row(2 * i);
        w.from[i]           = first_key(j, t, query);
        w.to[i]             = (int)position(t, query);
        w.largest[i]        = -INFINITY;
    }
    return w;
}

/* Scores of keys that row i of the lane does not see become -INFINITY; s begins at key `key`. */
template <int N>
static __device__ __forceinline__ void hide(const strip_rows *w, float (*s)[4], int i, int key)
{
    const int from = w->from[i] - key, to = w->to[i] - key;
    if (from <= 0 && to >= N * NARROW - 1) return;
    UNROLL
    for (int n = 0; n < 2 * N; n++) {
        const int col = strip_col(n / 2, n % 2);
        if (col < from || col > to) s[n / 2][2 * i + n % 2] = -INFINITY;
    }
}

/* Scores s of the keys from `key` on become exponentials; `out` and the sums so far follow. */
template <int H, int N>
static __device__ __forceinline__ void soften_strip(strip_rows *w, float (*s)[4], float (*out)[4],
                                                    int key, float scale)
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        float most = -INFINITY, sum = 0;
        hide<N>(w, s, i, key);
        UNROLL
        for (int n = 0; n < 2 * N; n++) most = fmaxf(most, s[n / 2][2 * i + n % 2]);
        most             = fmaxf(row_largest(most) * scale, w->largest[i]);
        const float base = most > -INFINITY ? most : 0.0f;
        const float part = power_of_2(w->largest[i] - base);
        UNROLL
        for (int n = 0; n < 2 * N; n++) {
            float *x = &s[n / 2][2 * i + n % 2];
            *x       = power_of_2(*x * scale - base);
            sum += *x;
        }
        w->sum[i]     = w->sum[i] * part + sum;
        w->largest[i] = most;
        UNROLL
        for (int n = 0; n < H / 4; n++) out[n / 2][2 * i + n % 2] *= part;
    }
}

/* What is left when all keys were seen: out / sum, and lse. */
template <int H>
static __device__ void store_strip(const job &j, const tile &t, const strip_rows &w,
                                   float (*out)[4], int64_t row)
{
    const view v = query_view(j, t, j.out);
    for (int i = 0; i < 2; i++) {
        const int64_t query = row + strip_row(2 * i);
        const float sum = row_sum(w.sum[i]), part = 1.0f / sum;
        if (query >= t.n_queries) continue;
        const int64_t at = row_at(v, query);
        UNROLL
        for (int n = 0; n < H / NARROW; n++) {
            const int64_t to = at + strip_col(n, 0);
            const float a = out[n][2 * i] * part, b = out[n][2 * i + 1] * part;
            if (v.x.is_bf16)
                *(uint32_t *)((uint16_t *)v.x.at + to) = pair_of(a, b);
            else
                ((float *)v.x.at)[to] = a, ((float *)v.x.at)[to + 1] = b;
        }
        if (j.lse && lane_here() % 4 == 0)
            j.lse[query_at(j, t, query)] = w.largest[i] * LN_2 + logf(sum);
    }
}

template <int H> struct forward_shared {
    enum { PANEL = TILE * (H + 8), BYTES = 2 * PANEL * (int)sizeof(uint16_t) };
};

/* K and V have a panel each: V comes while scores are made, the next K while V is multiplied. The
 * queries pass through K's panel into registers. */
template <int H> __global__ void __launch_bounds__(THREADS, 2) attention_cores(job j)
{
    CPL_SHARED(uint16_t, k_panel);
    uint16_t *v_panel = k_panel + forward_shared<H>::PANEL;
    tile t;
    query_tile(j, TILE, &t);
    const view k = key_view(j, t, j.k), v = key_view(j, t, j.v);
    const int64_t row   = t.first + warp_here() * STRIP;
    const int64_t begin = first_key_of(j, t, t.first, TILE), end = last_key_of(t, t.first, TILE);
    uint32_t q[H / 16][4];
    fill_panel<H>(v_panel, query_view(j, t, j.q), t.first, t.n_queries, TILE);
    fill_panel<H>(k_panel, k, begin, end, TILE);
    copies_wait();
    __syncthreads();
    UNROLL
    for (int x = 0; x < H; x += 16) fragment_a<H>(q[x / 16], v_panel, warp_here() * STRIP, x);
    strip_rows w             = strip_rows_of(j, t, row);
    float out[H / NARROW][4] = {};
    for (int64_t key = begin; key < end; key += TILE) {
        float s[TILE / NARROW][4] = {};
        copies_wait();
        __syncthreads(); /* K is there, and V's panel was read */
        fill_panel<H>(v_panel, v, key, end, TILE);
        add_scores_of<H, TILE / NARROW>(s, q, k_panel);
        soften_strip<H, TILE / NARROW>(&w, s, out, (int)key, j.scale * LOG2_E);
        copies_wait();
        __syncthreads(); /* V is there, and K's panel was read */
        if (key + TILE < end) fill_panel<H>(k_panel, k, key + TILE, end, TILE);
        add_product<H, TILE / NARROW>(out, s, v_panel);
    }
    store_strip<H>(j, t, w, out, row);
}

/* ---- backward on tensor cores ---- */

/* What a block knows of its queries, in shared memory. */
typedef struct query_facts {
    float lse[TILE], delta[TILE]; /* lse times log2 e */
    int from[TILE];
} query_facts;

static __device__ void fill_facts(const job &j, const tile &t, query_facts *f, int64_t first,
                                  int count)
{
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        const bool is    = first + i < t.n_queries;
        const int64_t at = query_at(j, t, first + i);
        f->lse[i]        = is ? j.lse[at] * LOG2_E : 0.0f;
        f->delta[i]      = is ? j.delta[at] : 0.0f;
        f->from[i]       = first_key(j, t, first + i);
    }
}

/* Columns that a block takes at once: as many as fit into 48 KiB beside its rows. */
template <int H> struct backward_shared {
    enum { STEP = H <= 112 ? 32 : 16, ROWS = TILE * (H + 8), COLS = STEP * (H + 8) };
    enum { BYTES = 2 * (ROWS + COLS) * (int)sizeof(uint16_t) + (int)sizeof(query_facts) };
};

/* Scores s and dp of a warp become p and ds. Its rows begin at `row` of the tile and its columns at
 * `col` of the sequence. */
template <bool KEYS, int N>
static __device__ __forceinline__ void weigh_strip(const job &j, const query_facts *f,
                                                   float (*s)[4], float (*dp)[4], int64_t first,
                                                   int row, int64_t col)
{
    const float scale = j.scale * LOG2_E;
    /* Keys of the tile or step begin at key0, queries `lead` behind them. */
    const int key0 = (int)(KEYS ? first : col), lead = (int)(KEYS ? col - first : first - col);
    UNROLL
    for (int n = 0; n < N; n++) {
        UNROLL
        for (int c = 0; c < 4; c++) {
            const int r = row + strip_row(c), x = strip_col(n, c);
            const int query = KEYS ? x : r, key = KEYS ? r : x;
            const bool sees = key <= query + lead && key0 + key >= f->from[query];
            const float p   = sees ? power_of_2(s[n][c] * scale - f->lse[query]) : 0.0f;
            dp[n][c]        = sees ? j.scale * p * (dp[n][c] - f->delta[query]) : 0.0f;
            s[n][c]         = p;
        }
    }
}

/* One step: what the columns from `col` on add. */
template <int H, bool KEYS>
static __device__ __forceinline__ void cores_step(const job &j, const tile &t, const pass &p,
                                                  uint16_t *shared, int64_t col, float (*first)[4],
                                                  float (*second)[4])
{
    typedef backward_shared<H> size;
    enum { N = size::STEP / NARROW };
    uint16_t *a = shared, *da = a + size::ROWS, *b = da + size::ROWS, *db = b + size::COLS;
    query_facts *f = (query_facts *)(db + size::COLS);
    float s[N][4] = {}, dp[N][4] = {};
    const int row = warp_here() * STRIP;
    __syncthreads(); /* the columns before were read */
    fill_panel<H>(b, p.b, col, p.end, size::STEP);
    fill_panel<H>(db, p.db, col, p.end, size::STEP);
    if (KEYS) fill_facts(j, t, f, col, size::STEP);
    copies_wait();
    __syncthreads();
    add_scores<H, N>(s, a, row, b);
    add_scores<H, N>(dp, da, row, db);
    weigh_strip<KEYS, N>(j, f, s, dp, t.first, row, col);
    add_product<H, N>(first, dp, b);
    if (KEYS) add_product<H, N>(second, s, db);
}

/* to [rows of the view] = sum. */
template <int H>
static __device__ void store_sum(float *to, const view &v, int64_t row, int64_t rows,
                                 const float (*sum)[4])
{
    for (int i = 0; i < 2; i++) {
        if (row + strip_row(2 * i) >= rows) continue;
        float *at = to + row_at(v, row + strip_row(2 * i));
        UNROLL
        for (int n = 0; n < H / NARROW; n++)
            for (int c = 0; c < 2; c++) at[strip_col(n, c)] = sum[n][2 * i + c];
    }
}

template <int H, bool KEYS>
__global__ void __launch_bounds__(THREADS, 2) attention_backward_cores(job j)
{
    CPL_SHARED(uint16_t, shared);
    typedef backward_shared<H> size;
    tile t;
    if (KEYS)
        key_tile(j, TILE, &t);
    else
        query_tile(j, TILE, &t);
    float first[H / NARROW][4] = {}, second[KEYS ? H / NARROW : 1][4] = {};
    const int heads = KEYS ? (int)(j.s.n_heads / j.s.n_kv_heads) : 1;
    pass p          = pass_of<KEYS>(j, t, TILE);
    fill_panel<H>(shared, p.a, t.first, p.rows, TILE);
    fill_panel<H>(shared + size::ROWS, p.da, t.first, p.rows, TILE);
    if (!KEYS)
        fill_facts(j, t, (query_facts *)(shared + 2 * (size::ROWS + size::COLS)), t.first, TILE);
    for (int i = 0; i < heads; i++, t.head += KEYS) {
        if (KEYS) p = pass_of<KEYS>(j, t, TILE);
        for (int64_t col = p.begin; col < p.end; col += size::STEP) {
            if (KEYS && first_key_of(j, t, col, size::STEP) >= t.first + TILE) continue;
            cores_step<H, KEYS>(j, t, p, shared, col, first, second);
        }
    }
    const int64_t row = t.first + warp_here() * STRIP;
    store_sum<H>(KEYS ? j.dk : j.dq, p.a, row, p.rows, first);
    if (KEYS) store_sum<H>(j.dv, p.da, row, p.rows, second);
}

/* ---- the operations ---- */

static job job_of(const cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q, cpl_tensor k,
                  cpl_tensor v, cpl_attention_shape s)
{
    CPL_ASSERT(s.n_kv_heads > 0 && s.n_heads % s.n_kv_heads == 0 && s.head_dim > 0);
    job j    = {};
    j.s      = s;
    j.scale  = 1.0f / sqrtf((float)s.head_dim);
    j.rounds = be->compute == CPL_BF16;
    j.out    = cpl_device_numbers_of(out);
    j.q      = cpl_device_numbers_of(q);
    j.k      = cpl_device_numbers_of(k);
    j.v      = cpl_device_numbers_of(v);
    j.lse    = lse.storage ? cpl_f32(lse) : nullptr;
    return j;
}

static unsigned tiles_of(int64_t n, int rows)
{
    return (unsigned)((n + rows - 1) / rows);
}

/* Blocks of the plain kernels: `tiles` of every head, and parts of h. */
static dim3 plain_grid(const job &j, int64_t tiles, int64_t heads)
{
    return dim3((unsigned)(tiles * heads), tiles_of(j.s.head_dim, OUT));
}

/* Tensor cores can do it: bf16, a width they divide, and tensors that begin at 16 bytes. */
static bool has_cores(const job &j)
{
    uintptr_t bits = 0;
    for (const void *at : {j.out.at, j.q.at, j.k.at, j.v.at, j.dout.at}) bits |= (uintptr_t)at;
    return j.rounds && j.s.head_dim % 16 == 0 && j.s.head_dim <= 128 && bits % 16 == 0;
}

template <int H> static void launch_cores(cpl_backend *be, const job &j)
{
    const int64_t tiles = j.s.batch * tiles_of(j.s.n_queries, TILE);
    const dim3 of_queries((unsigned)(tiles * j.s.n_heads)),
        of_keys((unsigned)(tiles * j.s.n_kv_heads));
    if (!j.delta) {
        CPL_LAUNCH(be, attention_cores<H>, of_queries, dim3(THREADS), forward_shared<H>::BYTES, j);
        return;
    }
    CPL_LAUNCH(be, (attention_backward_cores<H, false>), of_queries, dim3(THREADS),
               backward_shared<H>::BYTES, j);
    CPL_LAUNCH(be, (attention_backward_cores<H, true>), of_keys, dim3(THREADS),
               backward_shared<H>::BYTES, j);
}

/* Forward, or with delta backward; false: tensor cores cannot do it. */
static bool launched_cores(cpl_backend *be, const job &j)
{
    static void (*const launch[])(cpl_backend *, const job &) = {
        launch_cores<16>, launch_cores<32>, launch_cores<48>,  launch_cores<64>,
        launch_cores<80>, launch_cores<96>, launch_cores<112>, launch_cores<128>};
    if (!has_cores(j)) return false;
    launch[j.s.head_dim / 16 - 1](be, j);
    return true;
}

extern "C" void cpl_cuda_attention(cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q,
                                   cpl_tensor k, cpl_tensor v, cpl_tensor doc_start,
                                   cpl_attention_shape s)
{
    CPL_ASSERT(s.n_queries <= s.n_keys && s.n_keys <= s.key_stride);
    job j       = job_of(be, out, lse, q, k, v, s);
    j.doc_start = doc_start.storage ? cpl_i32(doc_start) : nullptr;
    if (launched_cores(be, j)) return;
    CPL_LAUNCH(be, attention_plain,
               plain_grid(j, s.batch * tiles_of(s.n_queries, BLOCK_ROWS), s.n_heads), dim3(THREADS),
               PLAIN_SHARED * sizeof(float), j);
}

extern "C" void cpl_cuda_attention_segments(cpl_backend *be, cpl_tensor out, cpl_tensor q,
                                            cpl_tensor k, cpl_tensor v, cpl_segments segments)
{
    const cpl_attention_shape s = {
        1, 0, 0, 0, segments.n_heads, segments.n_kv_heads, segments.head_dim};
    job j        = job_of(be, out, cpl_tensor_none(), q, k, v, s);
    j.rounds     = false;
    j.segment    = (const cpl_segment *)(void *)cpl_i32(segments.at);
    j.key_row    = cpl_i32(segments.key_row);
    j.n_segments = segments.at.shape[0];
    if (j.n_segments == 0) return;
    /* Every segment has at most one tile that is not full. */
    CPL_LAUNCH(be, attention_plain,
               plain_grid(j, q.shape[0] / BLOCK_ROWS + j.n_segments, s.n_heads), dim3(THREADS),
               PLAIN_SHARED * sizeof(float), j);
}

extern "C" void cpl_cuda_attention_backward(cpl_backend *be, cpl_tensor dq, cpl_tensor dk,
                                            cpl_tensor dv, cpl_tensor dout, cpl_tensor out,
                                            cpl_tensor lse, cpl_tensor q, cpl_tensor k,
                                            cpl_tensor v, cpl_tensor doc_start,
                                            cpl_attention_shape s)
{
    CPL_ASSERT(s.n_queries == s.n_keys && s.n_keys == s.key_stride);
    const int64_t count = s.batch * s.n_queries * s.n_heads;
    CPL_ASSERT((size_t)count * sizeof(float) <= be->scratch_bytes);
    job j       = job_of(be, out, lse, q, k, v, s);
    j.doc_start = doc_start.storage ? cpl_i32(doc_start) : nullptr;
    j.dout      = cpl_device_numbers_of(dout);
    j.dq        = cpl_f32(dq);
    j.dk        = cpl_f32(dk);
    j.dv        = cpl_f32(dv);
    j.delta     = (float *)be->scratch;
    CPL_LAUNCH(be, attention_delta, dim3(tiles_of(count, WARPS)), dim3(THREADS), 0, j, count);
    if (launched_cores(be, j)) return;
    const int64_t tiles = s.batch * tiles_of(s.n_queries, BLOCK_ROWS);
    CPL_LAUNCH(be, attention_backward_plain<false>, plain_grid(j, tiles, s.n_heads), dim3(THREADS),
               PLAIN_SHARED * sizeof(float), j);
    CPL_LAUNCH(be, attention_backward_plain<true>, plain_grid(j, tiles, s.n_kv_heads),
               dim3(THREADS), PLAIN_SHARED * sizeof(float), j);
}

/* The backward pass keeps delta. */
extern "C" size_t cpl_cuda_attention_scratch(const cpl_backend *be, const cpl_work *work)
{
    (void)be;
    return (size_t)(work->n_tokens * work->n_heads) * sizeof(float);
}
