/* attention.cu - causal attention, flash attention's way: no T x T matrix.
 *
 * Room:    tensor/cuda. Operations: ops.h.
 * Names:   B sequences, H query heads on G key heads (r = H/G each), h head width, scale = 1/sqrt(h).
 *          s scores, p their exponentials, dp = dout v^T, delta = dot(dout, out) of a query and head,
 *          ds = scale p (dp - delta).
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

/* s[r] = dots of rows from `row` on with columns from `col` on. All threads of the block call it. */
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

extern "C" void cpl_cuda_attention(cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q,
                                   cpl_tensor k, cpl_tensor v, cpl_tensor doc_start,
                                   cpl_attention_shape s)
{
    CPL_ASSERT(s.n_queries <= s.n_keys && s.n_keys <= s.key_stride);
    job j       = job_of(be, out, lse, q, k, v, s);
    j.doc_start = doc_start.storage ? cpl_i32(doc_start) : nullptr;
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
