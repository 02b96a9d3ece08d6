/* attention.h - code shared by the kernels of attention: the rows of a block and their visible
 * keys.
 *
 * Room:    tensor/cuda (device functions, for attention*.cu).
 * Names:   B sequences, H query heads on G key heads (r = H/G each), h head width, scale =
 *          1/sqrt(h). s scores, p their exponentials, dp = dout v^T, delta = dot(dout, out) of a
 *          query and head, ds = scale p (dp - delta).
 * Method:  forward: a block has some queries of one head and iterates over their visible keys, with
 *          a running maximum and sum. out is rescaled when the maximum rises. backward: two passes,
 *          so that each sum belongs to one block. The first runs over blocks of queries for dq = ds
 *          k. The second runs over blocks of keys for dk = ds^T q and dv = p^T dout, and over the r
 *          heads of its group in order. Both passes are one kernel, whose rows are queries and
 *          columns keys, or the reverse. Sums, scores, the softmax and delta are F32. */
#ifndef CPL_TENSOR_CUDA_ATTENTION_H
#define CPL_TENSOR_CUDA_ATTENTION_H

#include <climits>

#include "tensor/cuda/device.h"

enum { WARPS = 4, THREADS = WARPS * CPL_WARP };

typedef struct attention_job {
    cpl_attention_shape s;
    float scale;
    bool rounds; /* operands of products are rounded to bf16 */
    cpl_device_numbers out, q, k, v, dout;
    float *lse, *delta; /* [B,H,n_queries] */
    float *dq, *dk, *dv;
    const int32_t *doc_start; /* [B, n_keys] or NULL */
    const cpl_segment *segment;
    const int32_t *key_row; /* rows of the segments' keys, or NULL */
    int64_t n_segments;
} attention_job;

/* The work of a block: some queries (or keys) of one head of one sequence. */
typedef struct attention_tile {
    int64_t b, head, first; /* first: position of the tile's first row in the sequence */
    int64_t n_queries, n_keys;
    int64_t query0, key0;   /* rows of the tensors where the sequence begins */
    const int32_t *key_row; /* rows of the keys, or NULL */
} attention_tile;

/* The rows of one head of one sequence in a tensor. */
typedef struct attention_view {
    cpl_device_numbers x;
    const int32_t *row; /* indices of the rows; NULL means consecutive rows from `first` on */
    int64_t first, stride, at;
} attention_view;

static __device__ __forceinline__ int lane_here()
{
    return (int)threadIdx.x % CPL_WARP;
}

static __device__ __forceinline__ int warp_here()
{
    return (int)threadIdx.x / CPL_WARP;
}

/* ---- positions in memory ---- */

static __device__ __forceinline__ attention_view query_view(const attention_job &j,
                                                            const attention_tile &t,
                                                            cpl_device_numbers x)
{
    return {x, nullptr, t.query0, j.s.n_heads * j.s.head_dim, t.head * j.s.head_dim};
}

static __device__ __forceinline__ attention_view key_view(const attention_job &j,
                                                          const attention_tile &t,
                                                          cpl_device_numbers x)
{
    const int64_t shared = j.s.n_heads / j.s.n_kv_heads;
    return {x, t.key_row, t.key0, j.s.n_kv_heads * j.s.head_dim, t.head / shared * j.s.head_dim};
}

/* Returns the index of the first element of row i. */
static __device__ __forceinline__ int64_t row_at(const attention_view &v, int64_t i)
{
    return (v.row ? v.row[i] : v.first + i) * v.stride + v.at;
}

/* Returns the index of query i in lse and delta. */
static __device__ __forceinline__ int64_t query_at(const attention_job &j, const attention_tile &t,
                                                   int64_t i)
{
    return (t.b * j.s.n_heads + t.head) * t.n_queries + i;
}

/* ---- visible keys of a query ---- */

static __device__ __forceinline__ int64_t position(const attention_tile &t, int64_t query)
{
    return t.n_keys - t.n_queries + query;
}

/* Returns the first visible key of query i, or INT_MAX if i is past the last query. */
static __device__ __forceinline__ int first_key(const attention_job &j, const attention_tile &t,
                                                int64_t i)
{
    if (i >= t.n_queries) return INT_MAX;
    return j.doc_start ? j.doc_start[t.b * t.n_keys + position(t, i)] : 0;
}

/* Returns the first visible key of `count` queries from `first` on. Whole warps call it. */
static __device__ __forceinline__ int64_t first_key_of(const attention_job &j,
                                                       const attention_tile &t, int64_t first,
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

/* Returns one more than the last visible key of `count` queries from `first` on. */
static __device__ __forceinline__ int64_t last_key_of(const attention_tile &t, int64_t first,
                                                      int count)
{
    const int64_t last = first + count < t.n_queries ? first + count : t.n_queries;
    return position(t, last - 1) + 1;
}

/* ---- the work of a block ---- */

/* Sets *t to tile `number` of the segments, which are cut into tiles of `rows` queries. Returns
 * false if the segments have fewer tiles. Whole warps call it. */
static inline __device__ bool segment_tile(const attention_job &j, int64_t number, int rows,
                                           attention_tile *t)
{
    const int lane = lane_here();
    for (int64_t begin = 0; begin < j.n_segments; begin += CPL_WARP) {
        const bool is   = begin + lane < j.n_segments;
        const int tiles = is ? (j.segment[begin + lane].n_queries + rows - 1) / rows : 0;
        const int which = cpl_warp_find(tiles, &number);
        if (which < CPL_WARP) {
            const cpl_segment s = j.segment[begin + which];
            t->first            = number * rows;
            t->n_queries        = s.n_queries;
            t->n_keys           = s.n_keys;
            t->query0           = s.first;
            t->key_row          = j.key_row + s.first_key;
            return true;
        }
    }
    return false;
}

/* Sets *t to this block's tile among tiles of `rows` queries, ordered by falling number of keys. */
static inline __device__ bool query_tile(const attention_job &j, int rows, attention_tile *t)
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

/* Sets *t to this block's tile among tiles of `rows` keys of a key head. t->head is the first query
 * head of the group. */
static inline __device__ void key_tile(const attention_job &j, int rows, attention_tile *t)
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

/* The rows and columns of a block of the backward pass: queries and keys, or keys and queries. */
typedef struct attention_pass {
    attention_view a, da, b, db; /* rows: q and dout, columns: k and v; or the reverse */
    int64_t rows, begin, end;
} attention_pass;

template <bool KEYS>
static __device__ attention_pass pass_of(const attention_job &j, const attention_tile &t, int rows)
{
    const attention_view q = query_view(j, t, j.q), dout = query_view(j, t, j.dout);
    const attention_view k = key_view(j, t, j.k), v = key_view(j, t, j.v);
    if (KEYS) return {k, v, q, dout, t.n_keys, t.first, t.n_queries};
    return {q,
            dout,
            k,
            v,
            t.n_queries,
            first_key_of(j, t, t.first, rows),
            last_key_of(t, t.first, rows)};
}

/* ---- launches: forward, or backward if j->delta is set ---- */

static inline unsigned tiles_of(int64_t n, int rows)
{
    return (unsigned)((n + rows - 1) / rows);
}

void cpl_attention_plain(cpl_backend *be, const attention_job *j);

/* Returns false, without a launch, if tensor cores do not support the job. */
bool cpl_attention_cores(cpl_backend *be, const attention_job *j);

#endif /* CPL_TENSOR_CUDA_ATTENTION_H */
