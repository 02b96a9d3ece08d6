/* attention_plain.cu - attention without tensor cores, and for segments.
 *
 * Room:    tensor/cuda. Method: attention.h. In bf16 it rounds the same operands as the CPU does:
 *          q, k, v, dout, p and ds. */
#include "tensor/cuda/attention.h"

/* ---- products: a warp has 4 rows, a lane one column, sums over h in pieces ---- */

enum { ROWS = 4, BLOCK_ROWS = WARPS * ROWS, COLS = CPL_WARP, PIECE = 64, COL_PITCH = PIECE + 1 };
enum { OUT_PARTS = 4, OUT = OUT_PARTS * CPL_WARP }; /* columns of the result per block */
enum { ROW_PANEL = PIECE * BLOCK_ROWS, COL_PANEL = COLS * COL_PITCH };
enum { WEIGHTS = WARPS * COLS * ROWS, PLAIN_SHARED = ROW_PANEL + COL_PANEL + WEIGHTS };

static __device__ __forceinline__ float operand(const attention_job &j, cpl_device_numbers x,
                                                int64_t i)
{
    const float value = cpl_device_get(x, i);
    return j.rounds && !x.is_bf16 ? cpl_device_float(cpl_device_bf16(value)) : value;
}

/* Sets panel[r row_pitch + x x_pitch] to number x0 + x of row first + r of the view, for r < rows
 * and x < PIECE; 0 outside the view. */
static __device__ void gather_rows(const attention_job &j, float *panel, int row_pitch, int x_pitch,
                                   const attention_view &v, int64_t first, int64_t end, int rows,
                                   int64_t x0)
{
    for (int i = (int)threadIdx.x; i < rows * PIECE; i += THREADS) {
        const int r = i / PIECE, x = i % PIECE;
        const bool is = first + r < end && x0 + x < j.s.head_dim;
        panel[r * row_pitch + x * x_pitch] =
            is ? operand(j, v.x, row_at(v, first + r) + x0 + x) : 0.0f;
    }
}

/* Computes s[r] += dot(row r of the warp, column of the lane), over one piece. */
static __device__ __forceinline__ void add_dots(float *s, const float *rows, const float *cols)
{
    const float *row = rows + warp_here() * ROWS, *col = cols + lane_here() * COL_PITCH;
    for (int x = 0; x < PIECE; x++)
        for (int r = 0; r < ROWS; r++) s[r] += row[x * BLOCK_ROWS + r] * col[x];
}

/* Sets s[r] to dots of rows from `row` on with columns from `col` on. The whole block calls it. */
static __device__ void dots(const attention_job &j, float *s, float *shared,
                            const attention_view &a, int64_t row, int64_t rows,
                            const attention_view &b, int64_t col, int64_t cols)
{
    for (int r = 0; r < ROWS; r++) s[r] = 0;
    for (int64_t x = 0; x < j.s.head_dim; x += PIECE) {
        __syncthreads(); /* the panels have been read */
        gather_rows(j, shared, 1, BLOCK_ROWS, a, row, rows, BLOCK_ROWS, x);
        gather_rows(j, shared + ROW_PANEL, COL_PITCH, 1, b, col, cols, COLS, x);
        __syncthreads();
        add_dots(s, shared, shared + ROW_PANEL);
    }
}

/* Computes sum[r][c] += sum over the columns of weight[r] times number x + c CPL_WARP of the
 * column's row in v. Every lane passes the weights of its column. */
static __device__ void add_weighted(const attention_job &j, float (*sum)[OUT_PARTS],
                                    const float *weight, float *shared, const attention_view &v,
                                    int64_t col, int64_t cols)
{
    const int64_t x = (int64_t)blockIdx.y * OUT + lane_here();
    float *own      = shared + ROW_PANEL + COL_PANEL + warp_here() * COLS * ROWS;
    const int count = cols - col < COLS ? (int)(cols - col) : COLS;
    __syncwarp(); /* the previous weights have been read */
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

/* ---- forward ---- */

static __device__ __forceinline__ float warp_largest(float v)
{
    for (int m = CPL_WARP / 2; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}

/* Running results of the rows of a warp. */
typedef struct plain_rows {
    float largest[ROWS], sum[ROWS], out[ROWS][OUT_PARTS];
} plain_rows;

/* Replaces the scores s of the lane's key by exponentials. Rescales the running sums. */
static __device__ void soften(const attention_job &j, const attention_tile &t, plain_rows *w,
                              float *s, int64_t row, int64_t key)
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

__global__ void __launch_bounds__(THREADS, 3) attention_plain(attention_job j)
{
    CPL_SHARED(float, shared);
    attention_tile t;
    if (!query_tile(j, BLOCK_ROWS, &t)) return;
    const attention_view q = query_view(j, t, j.q), k = key_view(j, t, j.k),
                         v   = key_view(j, t, j.v);
    const attention_view out = query_view(j, t, j.out);
    const int64_t row        = t.first + warp_here() * ROWS;
    const int64_t begin      = first_key_of(j, t, t.first, BLOCK_ROWS);
    const int64_t end        = last_key_of(t, t.first, BLOCK_ROWS);
    plain_rows w             = {};
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

/* ---- backward ---- */

/* Computes p and ds of a query and a key from their scores s and dp. */
static __device__ __forceinline__ void weigh(const attention_job &j, const attention_tile &t,
                                             float *s, float *dp, int64_t query, int64_t key)
{
    const bool sees = key >= first_key(j, t, query) && key <= position(t, query);
    const float p   = sees ? expf(*s * j.scale - j.lse[query_at(j, t, query)]) : 0.0f;
    *dp             = sees ? j.scale * p * (*dp - j.delta[query_at(j, t, query)]) : 0.0f;
    *s              = p;
}
template <bool KEYS>
static __device__ void plain_step(const attention_job &j, const attention_tile &t,
                                  const attention_pass &p, float *shared, int64_t col,
                                  float (*first)[OUT_PARTS], float (*second)[OUT_PARTS])
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

/* Sets `to` [rows from `row` on of the view] to sum. */
static __device__ void plain_store(const attention_job &j, float *to, const attention_view &v,
                                   int64_t row, int64_t rows, const float (*sum)[OUT_PARTS])
{
    const int64_t x = (int64_t)blockIdx.y * OUT + lane_here();
    for (int r = 0; r < ROWS && row + r < rows; r++)
        for (int c = 0; c < OUT_PARTS; c++)
            if (x + c * CPL_WARP < j.s.head_dim)
                to[row_at(v, row + r) + x + c * CPL_WARP] = sum[r][c];
}

template <bool KEYS>
__global__ void __launch_bounds__(THREADS, 3) attention_backward_plain(attention_job j)
{
    CPL_SHARED(float, shared);
    attention_tile t;
    if (KEYS)
        key_tile(j, BLOCK_ROWS, &t);
    else
        query_tile(j, BLOCK_ROWS, &t);
    float first[ROWS][OUT_PARTS] = {}, second[ROWS][OUT_PARTS] = {};
    const int heads  = KEYS ? (int)(j.s.n_heads / j.s.n_kv_heads) : 1;
    attention_pass p = pass_of<KEYS>(j, t, BLOCK_ROWS);
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
/* ---- launches ---- */

/* Returns the grid: `tiles` tiles of every head, and parts of h. */
static dim3 grid_of(const attention_job *j, int64_t tiles, int64_t heads)
{
    return dim3((unsigned)(tiles * heads), tiles_of(j->s.head_dim, OUT));
}

void cpl_attention_plain(cpl_backend *be, const attention_job *j)
{
    /* An upper bound, since every segment has at most one tile that is not full. */
    const int64_t tiles   = j->segment ? j->s.n_queries / BLOCK_ROWS + j->n_segments
                                       : j->s.batch * tiles_of(j->s.n_queries, BLOCK_ROWS);
    const dim3 of_queries = grid_of(j, tiles, j->s.n_heads);
    const size_t bytes    = PLAIN_SHARED * sizeof(float);
    if (!j->delta) {
        CPL_LAUNCH(be, attention_plain, of_queries, dim3(THREADS), bytes, *j);
        return;
    }
    CPL_LAUNCH(be, attention_backward_plain<false>, of_queries, dim3(THREADS), bytes, *j);
    CPL_LAUNCH(be, attention_backward_plain<true>, grid_of(j, tiles, j->s.n_kv_heads),
               dim3(THREADS), bytes, *j);
}
