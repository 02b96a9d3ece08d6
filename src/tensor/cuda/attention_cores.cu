/* attention_cores.cu - attention on tensor cores, for bf16 and h a multiple of 16 up to 128.
 *
 * Room:    tensor/cuda. Method: attention.h. */
#include "tensor/cuda/attention.h"

/* ---- panels of bf16 in shared memory, rows h + 8 numbers long for the banks ---- */

enum { TILE = 64, STRIP = 16, NARROW = 8 }; /* rows of a block, of a warp, columns of a product */

typedef struct alignas(16) eight {
    uint32_t pair[4];
} eight;

template <int H> static __device__ __forceinline__ uint16_t *panel_row(uint16_t *panel, int row)
{
    return panel + row * (H + 8);
}
/* Returns the address that a lane passes to ldmatrix for the four matrices of rows row ... row + 15
 * and numbers x ... x + 15 of a panel. The second matrix is below the first (BESIDE: beside it). */
template <int H, bool BESIDE = false>
static __device__ __forceinline__ uint16_t *matrices_at(uint16_t *panel, int row, int x)
{
    const int lane = lane_here(), half = lane / 8 % 2, last = lane / 16;
    return panel_row<H>(panel, row + lane % 8 + (BESIDE ? last : half) * 8) + x +
           (BESIDE ? half : last) * 8;
}

/* Waits for the copies of this thread. Copies of other threads are complete after a barrier. */
static __device__ __forceinline__ void copies_wait()
{
    CPL_COPY_COMMIT();
    CPL_COPY_WAIT(0);
}

/* Sets panel to `count` rows from `first` on, zero from row `end` on. The copies may be
 * asynchronous. */
template <int H>
static __device__ void fill_panel(uint16_t *panel, const attention_view &v, int64_t first,
                                  int64_t end, int count)
{
    for (int i = (int)threadIdx.x; i < count * (H / 8); i += THREADS) {
        const int r = i / (H / 8), x = i % (H / 8) * 8;
        uint16_t *to = panel_row<H>(panel, r) + x;
        if (first + r >= end) {
            *(eight *)to = eight{};
        } else if (v.x.is_bf16) {
            CPL_COPY_ASYNC_16(to, (const uint16_t *)v.x.at + row_at(v, first + r) + x, 16);
        } else {
            const float4 *from = (const float4 *)((const float *)v.x.at + row_at(v, first + r) + x);
            const float4 low = from[0], high = from[1];
            *(eight *)to = {{cpl_device_pair(low.x, low.y), cpl_device_pair(low.z, low.w),
                             cpl_device_pair(high.x, high.y), cpl_device_pair(high.z, high.w)}};
        }
    }
}

/* Adds rows row ... row + 15 of panel a times the rows of panel b to c [16, 8 N] of a warp. */
template <int H, int N>
static __device__ __forceinline__ void add_scores(float (*c)[4], uint16_t *a, int row, uint16_t *b)
{
    CPL_UNROLL
    for (int x = 0; x < H; x += 16) {
        uint32_t fa[4], fb[4];
        CPL_LDMATRIX(fa, matrices_at<H>(a, row, x));
        CPL_UNROLL
        for (int n = 0; n < N; n += 2) {
            CPL_LDMATRIX(fb, (matrices_at<H, true>(b, n * NARROW, x)));
            CPL_MMA_16816(c[n], fa, fb);
            CPL_MMA_16816(c[n + 1], fa, fb + 2);
        }
    }
}

/* Computes add_scores with the fragments of a in registers. */
template <int H, int N>
static __device__ __forceinline__ void add_scores_of(float (*c)[4], const uint32_t (*a)[4],
                                                     uint16_t *b)
{
    CPL_UNROLL
    for (int x = 0; x < H; x += 16) {
        CPL_UNROLL
        for (int n = 0; n < N; n += 2) {
            uint32_t fb[4];
            CPL_LDMATRIX(fb, (matrices_at<H, true>(b, n * NARROW, x)));
            CPL_MMA_16816(c[n], a[x / 16], fb);
            CPL_MMA_16816(c[n + 1], a[x / 16], fb + 2);
        }
    }
}

/* Adds weights w [16, 8 N], rounded to bf16, times panel b [8 N, H] to c [16,H] of a warp. */
template <int H, int N>
static __device__ __forceinline__ void add_product(float (*c)[4], const float (*w)[4], uint16_t *b)
{
    CPL_UNROLL
    for (int n = 0; n < N; n += 2) {
        uint32_t fb[4];
        const uint32_t fa[4] = {
            cpl_device_pair(w[n][0], w[n][1]), cpl_device_pair(w[n][2], w[n][3]),
            cpl_device_pair(w[n + 1][0], w[n + 1][1]), cpl_device_pair(w[n + 1][2], w[n + 1][3])};
        CPL_UNROLL
        for (int x = 0; x < H; x += 16) {
            CPL_LDMATRIX_TRANS(fb, matrices_at<H>(b, n * NARROW, x));
            CPL_MMA_16816(c[x / NARROW], fa, fb);
            CPL_MMA_16816(c[x / NARROW + 1], fa, fb + 2);
        }
    }
}

/* Return row and column, in the strip of a warp, of number q of product n. */
static __device__ __forceinline__ int strip_row(int q)
{
    return lane_here() / 4 + q / 2 * 8;
}

static __device__ __forceinline__ int strip_col(int n, int q)
{
    return n * NARROW + lane_here() % 4 * 2 + q % 2;
}

/* Return the largest value, or the sum, over the four lanes that share a row. */
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

/* ---- forward ---- */

static const float LOG2_E = 1.44269504088896340736f, LN_2 = 0.693147180559945309417f;

/* The two rows of a lane: their visible keys, their largest score so far (times scale log2 e), and
 * their sum so far over the lane's own columns. */
typedef struct strip_rows {
    int from[2], to[2];
    float largest[2], sum[2];
} strip_rows;

static __device__ __forceinline__ strip_rows strip_rows_of(const attention_job &j,
                                                           const attention_tile &t, int64_t row)
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

/* Sets the scores of keys that are invisible to row i of the lane to -INFINITY. s begins at key
 * `key`. */
template <int N>
static __device__ __forceinline__ void hide(const strip_rows *w, float (*s)[4], int i, int key)
{
    const int from = w->from[i] - key, to = w->to[i] - key;
    if (from <= 0 && to >= N * NARROW - 1) return;
    CPL_UNROLL
    for (int n = 0; n < 2 * N; n++) {
        const int col = strip_col(n / 2, n % 2);
        if (col < from || col > to) s[n / 2][2 * i + n % 2] = -INFINITY;
    }
}

/* Replaces the scores s of the keys from `key` on by exponentials. Rescales `out` and the running
 * sums. */
template <int H, int N>
static __device__ __forceinline__ void soften_strip(strip_rows *w, float (*s)[4], float (*out)[4],
                                                    int key, float scale)
{
    CPL_UNROLL
    for (int i = 0; i < 2; i++) {
        float most = -INFINITY, sum = 0;
        hide<N>(w, s, i, key);
        CPL_UNROLL
        for (int n = 0; n < 2 * N; n++) most = fmaxf(most, s[n / 2][2 * i + n % 2]);
        most             = fmaxf(row_largest(most) * scale, w->largest[i]);
        const float base = most > -INFINITY ? most : 0.0f;
        const float part = cpl_device_power_of_2(w->largest[i] - base);
        CPL_UNROLL
        for (int n = 0; n < 2 * N; n++) {
            float *x = &s[n / 2][2 * i + n % 2];
            *x       = cpl_device_power_of_2(*x * scale - base);
            sum += *x;
        }
        w->sum[i]     = w->sum[i] * part + sum;
        w->largest[i] = most;
        CPL_UNROLL
        for (int n = 0; n < H / 4; n++) out[n / 2][2 * i + n % 2] *= part;
    }
}

/* Stores out / sum and lse after the last key. */
template <int H>
static __device__ void store_strip(const attention_job &j, const attention_tile &t,
                                   const strip_rows &w, float (*out)[4], int64_t row)
{
    const attention_view v = query_view(j, t, j.out);
    for (int i = 0; i < 2; i++) {
        const int64_t query = row + strip_row(2 * i);
        const float sum = row_sum(w.sum[i]), part = 1.0f / sum;
        if (query >= t.n_queries) continue;
        const int64_t at = row_at(v, query);
        CPL_UNROLL
        for (int n = 0; n < H / NARROW; n++) {
            const int64_t to = at + strip_col(n, 0);
            const float a = out[n][2 * i] * part, b = out[n][2 * i + 1] * part;
            if (v.x.is_bf16)
                *(uint32_t *)((uint16_t *)v.x.at + to) = cpl_device_pair(a, b);
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

/* Computes forward. K and V have one panel each. V is copied while scores are computed, the next K
 * while V is multiplied. The queries are copied through K's panel into registers. */
template <int H> __global__ void __launch_bounds__(THREADS, 2) attention_cores(attention_job j)
{
    CPL_SHARED(uint16_t, k_panel);
    uint16_t *v_panel = k_panel + forward_shared<H>::PANEL;
    attention_tile t;
    query_tile(j, TILE, &t);
    const attention_view k = key_view(j, t, j.k), v = key_view(j, t, j.v);
    const int64_t row   = t.first + warp_here() * STRIP;
    const int64_t begin = first_key_of(j, t, t.first, TILE), end = last_key_of(t, t.first, TILE);
    uint32_t q[H / 16][4];
    fill_panel<H>(v_panel, query_view(j, t, j.q), t.first, t.n_queries, TILE);
    fill_panel<H>(k_panel, k, begin, end, TILE);
    copies_wait();
    __syncthreads();
    CPL_UNROLL
    for (int x = 0; x < H; x += 16)
        CPL_LDMATRIX(q[x / 16], matrices_at<H>(v_panel, warp_here() * STRIP, x));
    strip_rows w             = strip_rows_of(j, t, row);
    float out[H / NARROW][4] = {};
    for (int64_t key = begin; key < end; key += TILE) {
        float s[TILE / NARROW][4] = {};
        copies_wait();
        __syncthreads(); /* K has arrived, and V's panel has been read */
        fill_panel<H>(v_panel, v, key, end, TILE);
        add_scores_of<H, TILE / NARROW>(s, q, k_panel);
        soften_strip<H, TILE / NARROW>(&w, s, out, (int)key, j.scale * LOG2_E);
        copies_wait();
        __syncthreads(); /* V has arrived, and K's panel has been read */
        if (key + TILE < end) fill_panel<H>(k_panel, k, key + TILE, end, TILE);
        add_product<H, TILE / NARROW>(out, s, v_panel);
    }
    store_strip<H>(j, t, w, out, row);
}

/* ---- backward ---- */

/* Data of a block's queries, in shared memory. */
typedef struct query_facts {
    float lse[TILE], delta[TILE]; /* lse times log2 e */
    int from[TILE];
} query_facts;

static __device__ void fill_facts(const attention_job &j, const attention_tile &t, query_facts *f,
                                  int64_t first, int count)
{
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        const bool is    = first + i < t.n_queries;
        const int64_t at = query_at(j, t, first + i);
        f->lse[i]        = is ? j.lse[at] * LOG2_E : 0.0f;
        f->delta[i]      = is ? j.delta[at] : 0.0f;
        f->from[i]       = first_key(j, t, first + i);
    }
}

/* Columns of one step of a block: as many as fit into 48 KiB together with the block's rows. */
template <int H> struct backward_shared {
    enum { STEP = H <= 112 ? 32 : 16, ROWS = TILE * (H + 8), COLS = STEP * (H + 8) };
    enum { BYTES = 2 * (ROWS + COLS) * (int)sizeof(uint16_t) + (int)sizeof(query_facts) };
};

/* Replaces scores s and dp of a warp by p and ds. The warp's rows begin at `row` of the tile and
 * its columns at `col` of the sequence. */
template <bool KEYS, int N>
static __device__ __forceinline__ void weigh_strip(const attention_job &j, const query_facts *f,
                                                   float (*s)[4], float (*dp)[4], int64_t first,
                                                   int row, int64_t col)
{
    const float scale = j.scale * LOG2_E;
    /* Keys of the tile or step begin at key0, queries `lead` later. */
    const int key0 = (int)(KEYS ? first : col), lead = (int)(KEYS ? col - first : first - col);
    CPL_UNROLL
    for (int n = 0; n < N; n++) {
        CPL_UNROLL
        for (int c = 0; c < 4; c++) {
            const int r = row + strip_row(c), x = strip_col(n, c);
            const int query = KEYS ? x : r, key = KEYS ? r : x;
            const bool sees = key <= query + lead && key0 + key >= f->from[query];
            const float p   = sees ? cpl_device_power_of_2(s[n][c] * scale - f->lse[query]) : 0.0f;
            dp[n][c]        = sees ? j.scale * p * (dp[n][c] - f->delta[query]) : 0.0f;
            s[n][c]         = p;
        }
    }
}

/* Runs one step: adds the contribution of the columns from `col` on. */
template <int H, bool KEYS>
static __device__ __forceinline__ void
cores_step(const attention_job &j, const attention_tile &t, const attention_pass &p,
           uint16_t *shared, int64_t col, float (*first)[4], float (*second)[4])
{
    typedef backward_shared<H> size;
    enum { N = size::STEP / NARROW };
    uint16_t *a = shared, *da = a + size::ROWS, *b = da + size::ROWS, *db = b + size::COLS;
    query_facts *f = (query_facts *)(db + size::COLS);
    float s[N][4] = {}, dp[N][4] = {};
    const int row = warp_here() * STRIP;
    __syncthreads(); /* the previous columns have been read */
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

/* Sets `to` [rows of the view] to sum. */
template <int H>
static __device__ void store_sum(float *to, const attention_view &v, int64_t row, int64_t rows,
                                 const float (*sum)[4])
{
    for (int i = 0; i < 2; i++) {
        if (row + strip_row(2 * i) >= rows) continue;
        float *at = to + row_at(v, row + strip_row(2 * i));
        CPL_UNROLL
        for (int n = 0; n < H / NARROW; n++)
            for (int c = 0; c < 2; c++) at[strip_col(n, c)] = sum[n][2 * i + c];
    }
}

template <int H, bool KEYS>
__global__ void __launch_bounds__(THREADS, 2) attention_backward_cores(attention_job j)
{
    CPL_SHARED(uint16_t, shared);
    typedef backward_shared<H> size;
    attention_tile t;
    if (KEYS)
        key_tile(j, TILE, &t);
    else
        query_tile(j, TILE, &t);
    float first[H / NARROW][4] = {}, second[KEYS ? H / NARROW : 1][4] = {};
    const int heads  = KEYS ? (int)(j.s.n_heads / j.s.n_kv_heads) : 1;
    attention_pass p = pass_of<KEYS>(j, t, TILE);
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

/* ---- launches ---- */

/* Returns whether tensor cores support the job: bf16, a suitable width, 16-byte alignment. */
static bool has_cores(const attention_job &j)
{
    uintptr_t bits = 0;
    for (const void *at : {j.out.at, j.q.at, j.k.at, j.v.at, j.dout.at}) bits |= (uintptr_t)at;
    return j.rounds && j.s.head_dim % 16 == 0 && j.s.head_dim <= 128 && bits % 16 == 0;
}

template <int H> static void launch_cores(cpl_backend *be, const attention_job &j)
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

bool cpl_attention_cores(cpl_backend *be, const attention_job *j)
{
    static void (*const launch[])(cpl_backend *, const attention_job &) = {
        launch_cores<16>, launch_cores<32>, launch_cores<48>,  launch_cores<64>,
        launch_cores<80>, launch_cores<96>, launch_cores<112>, launch_cores<128>};
    if (!has_cores(*j)) return false;
    launch[j->s.head_dim / 16 - 1](be, *j);
    return true;
}
