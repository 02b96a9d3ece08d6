/* erc_sweep.cu - the phases of the coupling loss.
 *
 * Room:    tensor/cuda. Phases: tensor/erc.h. Plain loops: model/erc/reference.c. On the CPU:
 *          tensor/cpu/erc.
 * Names:   m = i1 - i0 proxies of this part, J = j1 - j0 experts. z = W_g R~, u = W_p R~, h =
 *          SiLU(z) u [m,D], o = W_o h [m,d] are an expert's activations, one row per proxy. *Own*:
 *          each expert with only its own proxy, for the diagonal, with m = 1.
 * Method:  experts are processed in chunks whose activations fit in scratch. The steps of a chunk:
 *          products, norms, hinges, and backward products of the pairs with an active hinge, which
 *          stand in order in each expert's list. One kernel computes all products, on the tiles of
 *          grouped.h. It sums over the depth in order, so that the diagonal has the bits of a
 *          column. rows, dproxy, column and squares stay in scratch from phase to phase. */
#include <cfloat>

#include "tensor/cuda/four.h"
#include "tensor/cuda/grouped.h"

enum {
    WARPS       = THREADS / CPL_WARP,
    SUM_SLOTS   = CPL_WARP + 1,
    CHUNK_BYTES = CPL_PART(
        64 << 20, 8 << 10), /* limit of a chunk's activations, unless one expert needs more */
};

static dim3 blocks_of(int64_t count, int64_t each)
{
    return dim3((unsigned)((count + each - 1) / each));
}

static __device__ __forceinline__ int64_t thread_of_grid()
{
    return (int64_t)blockIdx.x * THREADS + threadIdx.x;
}

static __device__ __forceinline__ int64_t warp_of_grid()
{
    return thread_of_grid() / CPL_WARP;
}

/* ---- scratch ---- */

typedef struct erc_scratch {
    /* arrays for the whole job */
    double *losses;   /* [J] */
    void *rows;       /* [n,d] the proxies, operands of products */
    float *dproxy;    /* [n,d] gradient of the proxies */
    float *column;    /* [J,m] M by columns */
    double *squares;  /* [J,m] M^2 */
    int32_t *reached; /* [J,m] bounds that an entry reaches: ROW, COLUMN */
    /* arrays for a chunk of at most `most` experts */
    int64_t most;
    float *scale;     /* [most,m] G[i,j] / M[i,j] */
    int32_t *active;  /* [most,m] 1 if there is a gradient */
    int32_t *list;    /* [most,m] the expert's proxies that have a gradient, in order */
    int32_t *any;     /* [most] length of the expert's list */
    float *z, *u, *h; /* [most,m,D], replaced by their gradients in the backward pass; h may be in
                         bf16 */
    float *o;         /* [most,m,d], then the gradient of o, then each expert's gradient of the
                         proxies */
    size_t bytes;
} erc_scratch;

enum { ROW = 1, COLUMN = 2 };

/* Takes the next `count` numbers of `size` bytes from the scratch. */
static void *piece(char *scratch, size_t *used, int64_t count, size_t size)
{
    char *at = scratch + *used;
    *used += ((size_t)count * size + 15) / 16 * 16;
    return at;
}

static erc_scratch scratch_of(void *memory, int64_t n, int64_t d, int64_t D)
{
    const int64_t each = n * (3 * D + d) * (int64_t)sizeof(float);
    const int64_t fit  = CHUNK_BYTES / (each ? each : 1);
    char *at           = (char *)memory;
    size_t used        = 0;
    erc_scratch s;
    s.most    = fit < 1 ? 1 : fit < n ? fit : n;
    s.losses  = (double *)piece(at, &used, n, sizeof(double));
    s.rows    = piece(at, &used, n * d, sizeof(float));
    s.dproxy  = (float *)piece(at, &used, n * d, sizeof(float));
    s.column  = (float *)piece(at, &used, n * n, sizeof(float));
    s.reached = (int32_t *)piece(at, &used, n * n, sizeof(int32_t));
    s.squares = (double *)piece(at, &used, n * n, sizeof(double));
    s.scale   = (float *)piece(at, &used, n * n, sizeof(float));
    s.active  = (int32_t *)piece(at, &used, n * n, sizeof(int32_t));
    s.list    = (int32_t *)piece(at, &used, n * n, sizeof(int32_t));
    s.any     = (int32_t *)piece(at, &used, n, sizeof(int32_t));
    s.z       = (float *)piece(at, &used, s.most * n * D, sizeof(float));
    s.u       = (float *)piece(at, &used, s.most * n * D, sizeof(float));
    s.h       = (float *)piece(at, &used, s.most * n * D, sizeof(float));
    s.o       = (float *)piece(at, &used, s.most * n * d, sizeof(float));
    s.bytes   = used;
    return s;
}

/* Returns the scratch bytes. Jobs of smaller experts may have chunks of up to CHUNK_BYTES. */
extern "C" CPL_CUDA_SCRATCH(erc_sweep)
{
    const int64_t n = work->n_experts, d = work->d_model, D = work->d_expert;
    const int64_t all  = n * n * (3 * D + d) * (int64_t)sizeof(float);
    const size_t least = all < CHUNK_BYTES ? 0 : CHUNK_BYTES;
    (void)be;
    return scratch_of(NULL, n, d, D).bytes + least;
}

/* ---- a job ---- */

/* The job as used by the phases, on the host only. */
typedef struct erc_view {
    const cpl_erc_job *job;
    erc_scratch s;
    int64_t n, d, D, m, J;
    bool rounds;   /* operands of products are bf16 */
    bool backward; /* a gradient is requested */
    bool own;      /* each expert with only its own proxy */
} erc_view;

static erc_view view_of(const cpl_backend *be, const cpl_erc_job *job, bool own)
{
    const cpl_tensor any = job->activation == CPL_ERC_UP ? job->up : job->gate;
    erc_view v;
    CPL_ASSERT(any.storage && any.shape[0] == job->j1 - job->j0);
    CPL_ASSERT(any.shape[2] == job->R.shape[1]);
    v.job      = job;
    v.n        = job->R.shape[0];
    v.d        = job->R.shape[1];
    v.D        = any.shape[1];
    v.m        = own ? 1 : job->i1 - job->i0;
    v.J        = job->j1 - job->j0;
    v.rounds   = job->compute == CPL_BF16;
    v.backward = job->dR.storage || job->dgate.storage || job->dup.storage || job->ddown.storage;
    v.own      = own;
    v.s        = scratch_of(be->scratch, v.n, v.d, v.D);
    CPL_ASSERT(be->scratch_bytes >= v.s.bytes);
    return v;
}

/* Experts first ... first + count - 1 of the part. */
typedef struct erc_chunk {
    int64_t first, count;
} erc_chunk;

static erc_chunk chunk_of(const erc_view *v, int64_t first)
{
    const int64_t left = v->J - first;
    return {first, left < v->s.most ? left : v->s.most};
}

/* ---- products ---- */

/* Computes c [rows, cols] = or += a [rows, depth] . b [cols, depth]^T for each expert. With `any`,
 * operands and results that have a list are indexed by the list: the rows (if a lies along depth)
 * or the depth are then the expert's any[expert] pairs, at most `most`. */
typedef struct erc_product {
    grouped_rows c, a, b;
    bool adds;
    int64_t rows, cols, depth;
    int64_t most       = 0; /* set by multiply, as is `any` */
    const int32_t *any = NULL;
} erc_product;

/* A block computes one tile of expert blockIdx.z. */
template <class TILE, bool A_ALONG, bool B_ALONG>
__global__ void __launch_bounds__(THREADS, TILE::BLOCKS) erc_product_kernel(erc_product p)
{
    CPL_SHARED(typename TILE::number, shared);
    const int expert    = (int)blockIdx.z;
    const int64_t first = (int64_t)blockIdx.y * TILE::ROWS, begin = p.any ? expert * p.most : 0;
    const int64_t rows      = A_ALONG && p.any ? p.any[expert] : p.rows;
    const int64_t depth     = A_ALONG ? p.depth : p.any[expert];
    typename TILE::sums sum = {};
    if (first >= rows || depth == 0) return; /* the whole block */
    grouped_edge of_a = grouped_edge_of(first, rows, TILE::ROWS);
    grouped_edge of_b = grouped_edge_of((int64_t)blockIdx.x * TILE::COLUMNS, p.cols, TILE::COLUMNS);
    (A_ALONG ? of_a.first : of_a.k_first) += begin;
    of_b.k_first = of_a.k_first;
    grouped_add<TILE, A_ALONG, B_ALONG>(sum, shared, p.a, of_a, p.b, of_b, expert, depth);
    const float *tile = grouped_lay<TILE>(shared, sum);
    GROUPED_EACH_FOUR(of_a.count, TILE::COLUMNS, row, column)
    {
        const int64_t at  = grouped_at(p.c, expert, of_a.first + row) + of_b.first + column;
        const int64_t end = at - column + of_b.count;
        cpl_four v        = grouped_four<TILE>(tile, row, column);
        if (p.adds) v = cpl_four_sum(v, cpl_four_get(p.c.x, at, end));
        cpl_four_set(p.c.x, at, end, v);
    }
}

template <class TILE, bool A_ALONG, bool B_ALONG>
static void launch(cpl_backend *be, const erc_product &p, int64_t experts)
{
    const dim3 grid(grouped_tiles(p.cols, TILE::COLUMNS), grouped_tiles(p.rows, TILE::ROWS),
                    (unsigned)experts);
    CPL_LAUNCH(be, (erc_product_kernel<TILE, A_ALONG, B_ALONG>), grid, dim3(THREADS), TILE::BYTES,
               p);
}

template <bool A_ALONG, bool B_ALONG>
static void multiply(cpl_backend *be, const erc_view *v, erc_product p, int64_t experts)
{
    p.most = v->m;
    p.any  = p.a.token ? v->s.any : NULL;
    if (!v->rounds)
        launch<grouped_f32, A_ALONG, B_ALONG>(be, p, experts);
    else if (p.rows > grouped_bf16<2>::ROWS)
        launch<grouped_bf16<4>, A_ALONG, B_ALONG>(be, p, experts);
    else
        launch<grouped_bf16<2>, A_ALONG, B_ALONG>(be, p, experts);
}

/* Returns activations [chunk, m, cols] in F32. If `listed`, only pairs with a gradient. */
static grouped_rows acts_of(const erc_view *v, float *x, int64_t cols, bool listed)
{
    return {{x, false}, cols, v->m * cols, listed ? v->s.list : NULL, 1};
}

/* Returns gradients of activations as operands. They replace the activations. In bf16 they fill the
 * first half of each row. */
static grouped_rows gradients_of(const erc_view *v, float *x, int64_t cols)
{
    const int64_t stride = v->rounds ? 2 * cols : cols;
    return {{x, v->rounds}, stride, v->m * stride, v->s.list, 1};
}

/* Returns h [chunk, m, D] as an operand. */
static grouped_rows hidden_of(const erc_view *v, bool listed)
{
    return {{v->s.h, v->rounds}, v->D, v->m * v->D, listed ? v->s.list : NULL, 1};
}

/* Returns the proxies [m,d] of the part, shared by all experts, or each expert's own proxy. */
static grouped_rows proxies_of(const erc_view *v, erc_chunk chunk, bool listed)
{
    const int64_t first = v->own ? v->job->j0 + chunk.first : v->job->i0;
    char *at            = (char *)v->s.rows + first * v->d * (v->rounds ? 2 : 4);
    return {{at, v->rounds}, v->d, v->own ? v->d : 0, listed ? v->s.list : NULL, 1};
}

/* Returns weights [J, rows, cols]. */
static grouped_rows weights_of(erc_chunk chunk, cpl_tensor w)
{
    const cpl_tensor part = cpl_tensor_range(w, chunk.first, chunk.count);
    return {cpl_device_numbers_of(part), w.shape[2], w.shape[1] * w.shape[2], NULL, 1};
}

/* ---- forward ---- */

/* Computes h = SiLU(z), times u if u is not NULL. */
__global__ void erc_hidden_kernel(cpl_device_numbers h, const float *z, const float *u,
                                  int64_t count)
{
    const int64_t at = thread_of_grid();
    if (at >= count) return;
    const float g = 1.0f / (1.0f + expf(-z[at]));
    cpl_device_set(h, at, u ? z[at] * g * u[at] : z[at] * g);
}

/* A warp takes one row of x [count, length] and sets its entries of squares [count] and norms
 * [count]. If `more` [count, length] is not NULL, the norm is that of both rows together. Sums are
 * in double, so that no scale of the weights overflows or underflows. */
__global__ void erc_norms_kernel(float *norms, double *squares, const float *x, const float *more,
                                 int64_t count, int64_t length)
{
    const int64_t row = warp_of_grid();
    double sum        = 0;
    if (row >= count) return;
    for (int64_t k = threadIdx.x % CPL_WARP; k < length; k += CPL_WARP) {
        const double value = (double)x[row * length + k];
        const double other = more ? (double)more[row * length + k] : 0;
        sum += value * value + other * other;
    }
    sum = cpl_warp_sum(sum);
    if (threadIdx.x % CPL_WARP != 0) return;
    squares[row] = sum;
    norms[row]   = (float)sqrt(sum);
}

/* Sets `to` [chunk, m, rows of w] to `from` times each expert's matrix of `w`. */
static void project(cpl_backend *be, const erc_view *v, erc_chunk chunk, float *to,
                    grouped_rows from, cpl_tensor w)
{
    const grouped_rows c = acts_of(v, to, w.shape[1], from.token != NULL);
    const erc_product p  = {c, from, weights_of(chunk, w), false, v->m, w.shape[1], w.shape[2]};
    multiply<true, true>(be, v, p, chunk.count);
}

/* Computes the activations of a chunk. If `listed`, computes only pairs with a gradient and leaves
 * the other pairs undefined. */
static void activate(cpl_backend *be, const erc_view *v, erc_chunk chunk, bool listed)
{
    const cpl_erc_activation a = v->job->activation;
    const erc_scratch *s       = &v->s;
    const int64_t count        = chunk.count * v->m * v->D;
    const bool output          = a == CPL_ERC_OUTPUT;
    const grouped_rows proxies = proxies_of(v, chunk, listed);
    const cpl_device_numbers h = {s->h, output && v->rounds};
    if (cpl_erc_has_gate(a)) project(be, v, chunk, s->z, proxies, v->job->gate);
    if (cpl_erc_has_up(a)) project(be, v, chunk, s->u, proxies, v->job->up);
    if (cpl_erc_has_hidden(a))
        CPL_LAUNCH(be, erc_hidden_kernel, blocks_of(count, THREADS), dim3(THREADS), 0, h, s->z,
                   cpl_erc_has_up(a) ? s->u : NULL, count);
    if (output) project(be, v, chunk, s->o, hidden_of(v, listed), v->job->down);
}

/* Computes the activations of a chunk, their squared norms, and norms [chunk, m]. */
static void forward(cpl_backend *be, const erc_view *v, erc_chunk chunk, float *norms)
{
    const cpl_erc_activation a = v->job->activation;
    const erc_scratch *s       = &v->s;
    const int64_t pairs        = chunk.count * v->m;
    const bool output          = a == CPL_ERC_OUTPUT;
    const float *last          = output                  ? s->o
                                 : cpl_erc_has_hidden(a) ? s->h
                                 : a == CPL_ERC_UP       ? s->u
                                                         : s->z;
    activate(be, v, chunk, false);
    CPL_LAUNCH(be, erc_norms_kernel, blocks_of(pairs, WARPS), dim3(THREADS), 0, norms,
               s->squares + chunk.first * v->m, last, a == CPL_ERC_GATE_UP ? s->u : NULL, pairs,
               output ? v->d : v->D);
}

/* ---- backward ---- */

/* Stores `value` as number k of `row`, `length` long, in the form of an operand. All lanes of the
 * warp call it after they have read the numbers that they overwrite. */
static __device__ __forceinline__ void replace(cpl_device_numbers row, int64_t k, int64_t length,
                                               float value)
{
    __syncwarp();
    if (k < length) cpl_device_set(row, k, value);
}

/* A warp multiplies one active row of x [pairs, length] by scale [pairs] and stores it in the form
 * of gradients_of. */
__global__ void erc_scale_kernel(float *x, const float *scale, const int32_t *active, int64_t pairs,
                                 int64_t length, bool rounds)
{
    const int64_t pair = warp_of_grid(), lane = threadIdx.x % CPL_WARP;
    if (pair >= pairs || !active[pair]) return;
    float *row = x + pair * length;
    for (int64_t k = lane; k - lane < length; k += CPL_WARP)
        replace({row, rounds}, k, length, k < length ? row[k] * scale[pair] : 0);
}

/* Replaces the active rows of z and u [pairs, D] by their gradients. z or u may be NULL. dh is the
 * gradient of h. If dh is NULL, the gradient is scale [pairs] times h. */
__global__ void erc_hidden_backward_kernel(float *z, float *u, const float *dh, const float *scale,
                                           const int32_t *active, int64_t pairs, int64_t D,
                                           bool rounds)
{
    const int64_t pair = warp_of_grid(), lane = threadIdx.x % CPL_WARP;
    if (pair >= pairs || !active[pair]) return;
    z += pair * D, u = u ? u + pair * D : NULL;
    for (int64_t k = lane; k - lane < D; k += CPL_WARP) {
        const float old_z = k < D ? z[k] : 0, old_u = k < D && u ? u[k] : 1.0f;
        const float g    = 1.0f / (1.0f + expf(-old_z));
        const float grad = dh && k < D ? dh[pair * D + k] : scale[pair] * old_z * g * old_u;
        replace({z, rounds}, k, D, grad * old_u * g * (1.0f + old_z * (1.0f - g)));
        if (u) replace({u, rounds}, k, D, grad * old_z * g);
    }
}

static void scale(cpl_backend *be, const erc_view *v, erc_chunk chunk, float *x, int64_t length)
{
    const int64_t pairs = chunk.count * v->m;
    CPL_LAUNCH(be, erc_scale_kernel, blocks_of(pairs, WARPS), dim3(THREADS), 0, x, v->s.scale,
               v->s.active, pairs, length, v->rounds);
}

/* Adds dout^T . in to dw for out = in . w^T, with dout [chunk, m, rows of w]. Does nothing if dw is
 * none. */
static void add_weights(cpl_backend *be, const erc_view *v, erc_chunk chunk, cpl_tensor dw,
                        float *dout, grouped_rows in)
{
    if (!dw.storage) return;
    const grouped_rows c = weights_of(chunk, dw), a = gradients_of(v, dout, dw.shape[1]);
    const erc_product p = {c, a, in, true, dw.shape[1], dw.shape[2], v->m};
    multiply<false, false>(be, v, p, chunk.count);
}

/* Computes din [chunk, m, columns of w] = or += dout w. */
static void project_back(cpl_backend *be, const erc_view *v, erc_chunk chunk, float *din, bool adds,
                         float *dout, cpl_tensor w)
{
    const grouped_rows c = acts_of(v, din, w.shape[2], true);
    const grouped_rows a = gradients_of(v, dout, w.shape[1]);
    const erc_product p  = {c, a, weights_of(chunk, w), adds, v->m, w.shape[2], w.shape[1]};
    multiply<true, false>(be, v, p, chunk.count);
}

/* Adds drows of the active experts to dproxy [m,d], in order. A thread takes one number. */
__global__ void erc_add_rows_kernel(float *dproxy, const float *drows, const int32_t *active,
                                    int64_t experts, int64_t m, int64_t d)
{
    const int64_t at = thread_of_grid(), i = at / d;
    float sum = 0;
    if (i >= m) return;
    for (int64_t j = 0; j < experts; j++)
        if (active[j * m + i]) sum += drows[j * m * d + at];
    dproxy[at] += sum;
}

/* Adds to the gradients of the matrices and sets the gradients of the proxies, from the gradients
 * of z and u stored in z and u. */
static void backward_from_projections(cpl_backend *be, const erc_view *v, erc_chunk chunk)
{
    const cpl_erc_activation a = v->job->activation;
    const erc_scratch *s       = &v->s;
    const bool gate = cpl_erc_has_gate(a), up = cpl_erc_has_up(a);
    if (gate) add_weights(be, v, chunk, v->job->dgate, s->z, proxies_of(v, chunk, true));
    if (up) add_weights(be, v, chunk, v->job->dup, s->u, proxies_of(v, chunk, true));
    if (!v->job->dR.storage) return;
    if (gate) project_back(be, v, chunk, s->o, false, s->z, v->job->gate);
    if (up) project_back(be, v, chunk, s->o, gate, s->u, v->job->up);
    const int64_t first   = v->own ? v->job->j0 + chunk.first : v->job->i0;
    const int64_t experts = v->own ? 1 : chunk.count, rows = v->own ? chunk.count : v->m;
    CPL_LAUNCH(be, erc_add_rows_kernel, blocks_of(rows * v->d, THREADS), dim3(THREADS), 0,
               s->dproxy + first * v->d, s->o, s->active, experts, rows, v->d);
}

/* Runs the backward pass of a chunk. Needs its activations, and scale, active, list and any. */
static void backward(cpl_backend *be, const erc_view *v, erc_chunk chunk)
{
    const cpl_erc_activation a = v->job->activation;
    const erc_scratch *s       = &v->s;
    const int64_t pairs        = chunk.count * v->m;
    const bool output          = a == CPL_ERC_OUTPUT;
    if (output) {
        scale(be, v, chunk, s->o, v->d);
        add_weights(be, v, chunk, v->job->ddown, s->o, hidden_of(v, true));
        project_back(be, v, chunk, s->h, false, s->o, v->job->down);
    }
    if (cpl_erc_has_hidden(a)) {
        CPL_LAUNCH(be, erc_hidden_backward_kernel, blocks_of(pairs, WARPS), dim3(THREADS), 0, s->z,
                   cpl_erc_has_up(a) ? s->u : NULL, output ? s->h : NULL, s->scale, s->active,
                   pairs, v->D, v->rounds);
    } else {
        if (cpl_erc_has_gate(a)) scale(be, v, chunk, s->z, v->D);
        if (cpl_erc_has_up(a)) scale(be, v, chunk, s->u, v->D);
    }
    backward_from_projections(be, v, chunk);
}

/* ---- hinges ---- */

/* Returns the factor G / M of an activation's gradient, since d|a| / da = a / |a|. */
static __device__ __forceinline__ float scale_of(double grad_M, double squares)
{
    const double g = grad_M / sqrt(squares);
    return (float)(g > FLT_MAX ? FLT_MAX : g < -FLT_MAX ? -FLT_MAX : g);
}

/* The inputs of the gradients of entries of M. */
typedef struct erc_gradient {
    const int32_t *violations; /* [2,n] or NULL */
    int64_t n;
    double alpha, unit;
} erc_gradient;

/* The inputs of the hinges of column j. column and reached [m] belong to column j. */
typedef struct erc_column {
    const float *column, *diagonal;
    int32_t *reached;
    int64_t m, i0, j;
    double alpha;
} erc_column;

/* Compares entry i with both bounds. Sets reached[i] and returns the entry's part of the loss. At
 * an exact tie a hinge is active. */
static __device__ double hinge(const erc_column *c, int64_t i)
{
    const int64_t row = c->i0 + i;
    const double m = (double)c->column[i], over_row = m - c->alpha * (double)c->diagonal[row],
                 over_column = m - c->alpha * (double)c->diagonal[c->j];
    c->reached[i]            = 0;
    if (row == c->j) return 0;
    c->reached[i] = (over_row >= 0 ? ROW : 0) | (over_column >= 0 ? COLUMN : 0);
    return (over_row < 0 ? 0 : over_row) + (over_column < 0 ? 0 : over_column); /* keeps NaN */
}

/* Computes the hinges of a chunk. A block takes one column. */
__global__ void erc_hinges_kernel(double *losses, erc_column c)
{
    CPL_SHARED(double, slots);
    double loss = 0;
    c.column += blockIdx.x * c.m, c.reached += blockIdx.x * c.m, c.j += blockIdx.x;
    for (int64_t i = threadIdx.x; i < c.m; i += THREADS) loss += hinge(&c, i);
    loss = cpl_block_sum(loss, slots);
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
}

/* Sets *scale of M[j,j]: G[j,j] = -alpha u (active hinges against M[j,j]), counted by `violations`
 * [2,n]. Returns whether the entry is active. A NaN entry has no active hinge but counts as active,
 * here and below, so that every gradient becomes NaN. */
static __device__ bool own_active(float *scale, const erc_gradient *g, int64_t j, float entry,
                                  double squares)
{
    const double reached = (double)g->violations[j] + (double)g->violations[g->n + j];
    const bool wanted    = reached != 0 && g->alpha != 0 && entry != 0;
    *scale               = scale_of(-g->alpha * g->unit * reached, squares);
    return wanted || entry != entry;
}

/* Sets *scale of an entry off the diagonal. Returns whether the entry is active. */
static __device__ bool other_active(float *scale, const erc_gradient *g, int32_t reached,
                                    float entry, double squares)
{
    const int hinges = (reached & ROW ? 1 : 0) + (reached & COLUMN ? 1 : 0);
    *scale           = scale_of(g->unit * hinges, squares);
    return (hinges != 0 || entry != entry) && entry != 0;
}

/* Lists the active entries. A warp takes one column [m] of the chunk, whose `count` columns begin
 * with expert j. s begins with the chunk. The diagonal is active only with `violations`. */
__global__ void erc_active_kernel(erc_scratch s, erc_gradient g, int64_t m, int64_t i0, int64_t j,
                                  int64_t count)
{
    const int64_t of = warp_of_grid(), lane = threadIdx.x % CPL_WARP;
    int before = 0;
    if (of >= count) return;
    for (int64_t i = lane; i - lane < m; i += CPL_WARP) {
        const int64_t at = of * m + i;
        float scale      = 0;
        bool active      = false;
        if (i < m && i0 + i != j + of)
            active = other_active(&scale, &g, s.reached[at], s.column[at], s.squares[at]);
        else if (i < m && g.violations)
            active = own_active(&scale, &g, j + of, s.column[at], s.squares[at]);
        const unsigned all = __ballot_sync(0xffffffffu, active);
        if (active) s.list[of * m + before + __popc(all & ((1u << lane) - 1))] = (int32_t)i;
        if (i < m) s.active[at] = active, s.scale[at] = scale;
        before += __popc(all);
    }
    if (lane == 0) s.any[of] = before;
}

/* Does the work of erc_active_kernel for the diagonal only. */
__global__ void erc_own_active_kernel(erc_scratch s, erc_gradient g, const float *diagonal,
                                      int64_t j, int64_t count)
{
    const int64_t at = thread_of_grid();
    if (at >= count) return;
    s.active[at] = own_active(&s.scale[at], &g, j + at, diagonal[j + at], s.squares[at]);
    s.any[at]    = s.active[at];
    s.list[at]   = 0;
}

/* Counts violations [2,n]. A warp counts one entry: of a row, then of a column. */
__global__ void erc_violations_kernel(int32_t *violations, const int32_t *reached, int64_t n,
                                      int64_t i0, int64_t m, int64_t j0, int64_t J)
{
    const int64_t at = warp_of_grid(), i = at - i0, j = at - n - j0;
    const int lane = (int)threadIdx.x % CPL_WARP;
    int count      = 0;
    if (at >= 2 * n) return;
    if (at < n && i >= 0 && i < m)
        for (int64_t k = lane; k < J; k += CPL_WARP) count += (reached[k * m + i] & ROW) != 0;
    if (at >= n && j >= 0 && j < J)
        for (int64_t k = lane; k < m; k += CPL_WARP) count += (reached[j * m + k] & COLUMN) != 0;
    count = cpl_warp_sum(count);
    if (lane == 0) violations[at] = count;
}

/* Sets M[i0 + i, j0 + j] from column [J,m]. */
__global__ void erc_entries_kernel(float *M, const float *column, int64_t n, int64_t i0, int64_t m,
                                   int64_t j0, int64_t J)
{
    const int64_t at = thread_of_grid();
    if (at < m * J) M[(i0 + at / J) * n + j0 + at % J] = column[at % J * m + at / J];
}

/* Adds the columns' losses to the loss. Launched as one block. */
__global__ void erc_loss_kernel(double *loss, const double *losses, int64_t J, double entries)
{
    CPL_SHARED(double, slots);
    double sum = 0;
    for (int64_t j = threadIdx.x; j < J; j += THREADS) sum += losses[j];
    sum = cpl_block_sum(sum, slots);
    if (threadIdx.x == 0) *loss += sum / entries;
}

/* ---- the phases ---- */

/* Sets rows to R delta and dproxy to 0. */
__global__ void erc_rows_kernel(erc_scratch s, const float *R, const float *delta, int64_t count,
                                bool rounds)
{
    const int64_t at = thread_of_grid();
    if (at >= count) return;
    cpl_device_set({s.rows, rounds}, at, delta ? R[at] * delta[at] : R[at]);
    s.dproxy[at] = 0;
}

static const float *delta_of(const cpl_erc_job *job)
{
    return job->delta.storage ? cpl_f32(job->delta) : NULL;
}

static void set_rows(cpl_backend *be, const erc_view *v)
{
    CPL_LAUNCH(be, erc_rows_kernel, blocks_of(v->n * v->d, THREADS), dim3(THREADS), 0, v->s,
               cpl_f32(v->job->R), delta_of(v->job), v->n * v->d, v->rounds);
}

extern "C" void cpl_cuda_erc_diagonals(cpl_backend *be, cpl_erc_job job)
{
    const erc_view own = view_of(be, &job, true), all = view_of(be, &job, false);
    set_rows(be, &own);
    for (int64_t j = 0; j < own.J; j += own.s.most) {
        const erc_chunk chunk = chunk_of(&own, j);
        forward(be, &own, chunk, cpl_f32(job.diagonal) + job.j0 + j);
        if (!all.backward) forward(be, &all, chunk, all.s.column + j * all.m);
    }
}

/* Computes the hinges of the chunk's columns against diagonal [n]. */
static void set_hinges(cpl_backend *be, const erc_view *v, erc_chunk chunk)
{
    const cpl_erc_job *job = v->job;
    const int64_t at       = chunk.first * v->m;
    const erc_column first = {v->s.column + at, cpl_f32(job->diagonal), v->s.reached + at, v->m,
                              job->i0,          job->j0 + chunk.first,  job->alpha};
    CPL_LAUNCH(be, erc_hinges_kernel, dim3((unsigned)chunk.count), dim3(THREADS),
               SUM_SLOTS * sizeof(double), v->s.losses + chunk.first, first);
}

static erc_gradient gradient_of(const erc_view *v, const int32_t *violations)
{
    return {violations, v->n, v->job->alpha, v->job->weight / ((double)v->n * (double)v->n)};
}

/* Returns the scratch with column, squares and reached beginning at the chunk. */
static erc_scratch scratch_from(const erc_view *v, erc_chunk chunk)
{
    const int64_t at = chunk.first * v->m;
    erc_scratch s    = v->s;
    s.column += at, s.squares += at, s.reached += at;
    return s;
}

/* Sets scale, active, list and any, after forward and hinges of the chunk. Includes the diagonal if
 * violations is not NULL. */
static void set_active(cpl_backend *be, const erc_view *v, erc_chunk chunk,
                       const int32_t *violations)
{
    CPL_LAUNCH(be, erc_active_kernel, blocks_of(chunk.count, WARPS), dim3(THREADS), 0,
               scratch_from(v, chunk), gradient_of(v, violations), v->m, v->job->i0,
               v->job->j0 + chunk.first, chunk.count);
}

static void join(cpl_backend *be, const erc_view *v)
{
    const cpl_erc_job *job = v->job;
    CPL_LAUNCH(be, erc_violations_kernel, blocks_of(2 * v->n, WARPS), dim3(THREADS), 0,
               cpl_i32(job->violations), v->s.reached, v->n, job->i0, v->m, job->j0, v->J);
    if (job->M.storage)
        CPL_LAUNCH(be, erc_entries_kernel, blocks_of(v->m * v->J, THREADS), dim3(THREADS), 0,
                   cpl_f32(job->M), v->s.column, v->n, job->i0, v->m, job->j0, v->J);
    CPL_LAUNCH(be, erc_loss_kernel, dim3(1), dim3(THREADS), SUM_SLOTS * sizeof(double),
               cpl_f64(job->loss), v->s.losses, v->J, (double)v->n * (double)v->n);
}

extern "C" void cpl_cuda_erc_sweep(cpl_backend *be, cpl_erc_job job)
{
    const erc_view v = view_of(be, &job, false);
    for (int64_t j = 0; j < v.J; j += v.s.most) {
        const erc_chunk chunk = chunk_of(&v, j);
        if (v.backward) forward(be, &v, chunk, v.s.column + j * v.m);
        set_hinges(be, &v, chunk);
        if (!v.backward) continue;
        set_active(be, &v, chunk, NULL);
        backward(be, &v, chunk);
    }
    join(be, &v);
}

/* Adds dproxy delta to dR: delta is held constant, R is not. */
__global__ void erc_router_kernel(float *dR, const float *dproxy, const float *delta, int64_t count)
{
    const int64_t at = thread_of_grid();
    if (at < count) dR[at] += delta ? dproxy[at] * delta[at] : dproxy[at];
}

static void add_router(cpl_backend *be, const erc_view *v)
{
    if (v->job->dR.storage)
        CPL_LAUNCH(be, erc_router_kernel, blocks_of(v->n * v->d, THREADS), dim3(THREADS), 0,
                   cpl_f32(v->job->dR), v->s.dproxy, delta_of(v->job), v->n * v->d);
}

extern "C" void cpl_cuda_erc_add_diagonal(cpl_backend *be, cpl_erc_job job)
{
    const erc_view v = view_of(be, &job, true);
    if (!v.backward) return;
    for (int64_t j = 0; j < v.J; j += v.s.most) {
        const erc_chunk chunk = chunk_of(&v, j);
        forward(be, &v, chunk, v.s.column); /* the norms are equal to the earlier norms */
        CPL_LAUNCH(be, erc_own_active_kernel, blocks_of(chunk.count, THREADS), dim3(THREADS), 0,
                   scratch_from(&v, chunk), gradient_of(&v, cpl_i32(job.violations)),
                   cpl_f32(job.diagonal), job.j0 + j, chunk.count);
        backward(be, &v, chunk);
    }
    add_router(be, &v);
}

/* Sets diagonal [n] to the diagonal of column, which holds all of M. */
__global__ void erc_diagonal_kernel(float *diagonal, const float *column, int64_t n)
{
    const int64_t j = thread_of_grid();
    if (j < n) diagonal[j] = column[j * n + j];
}

/* Runs all phases. The diagonal is read from M and needs no separate pass. If all experts are one
 * chunk, their activations are computed once. Otherwise activations of pairs with a gradient are
 * computed again. */
extern "C" void cpl_cuda_erc_run_local(cpl_backend *be, cpl_erc_job job)
{
    const erc_view v = view_of(be, &job, false);
    CPL_ASSERT(job.j0 == 0 && job.j1 == v.n);
    if (v.m < v.n) { /* a part of the rows */
        cpl_cuda_erc_diagonals(be, job);
        cpl_cuda_erc_sweep(be, job);
        cpl_cuda_erc_add_diagonal(be, job);
        return;
    }
    set_rows(be, &v);
    for (int64_t j = 0; j < v.J; j += v.s.most)
        forward(be, &v, chunk_of(&v, j), v.s.column + j * v.m);
    CPL_LAUNCH(be, erc_diagonal_kernel, blocks_of(v.n, THREADS), dim3(THREADS), 0,
               cpl_f32(job.diagonal), v.s.column, v.n);
    for (int64_t j = 0; j < v.J; j += v.s.most) set_hinges(be, &v, chunk_of(&v, j));
    join(be, &v);
    for (int64_t j = 0; v.backward && j < v.J; j += v.s.most) {
        set_active(be, &v, chunk_of(&v, j), cpl_i32(job.violations));
        if (v.s.most < v.J) activate(be, &v, chunk_of(&v, j), true);
        backward(be, &v, chunk_of(&v, j));
    }
    add_router(be, &v);
}
