/* rows.cu - operations on rows and on flat arrays: RMSNorm, clamp, add, fill, copy, embedding.
 *
 * Room:   tensor/cuda. Operations: ops.h.
 * Names:  T tokens, d width, V rows of a table. */
#include "tensor/cuda/four.h"

enum {
    MOST_PARTS    = 512,      /* blocks of rms_norm_backward */
    LEAST_ROWS    = 8,        /* smallest number of rows of a block of rms_norm_backward */
    MOST_SHARED   = 48 << 10, /* limit of shared memory of a block, in bytes */
    COLUMNS       = CPL_WARP, /* columns of a block that sums columns */
    COLUMN_GROUPS = 16,       /* groups of rows in a block that sums columns */
    CLASSES       = 512,      /* classes of ids; a block of embed_backward takes one */
    ID_THREADS    = 128,
    ID_TILE       = 4 * ID_THREADS, /* ids read in one step */
};

/* ---- RMSNorm ---- */

__global__ void rms_norm(cpl_device_numbers y, float *inv, cpl_device_numbers x,
                         cpl_device_numbers weight, int64_t T, int64_t d, float eps)
{
    CPL_SHARED(float, part);
    const int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, at = t * d;
    const int64_t first = 4 * (int64_t)threadIdx.x, step = 4 * (int64_t)blockDim.x;
    float sum = 0;
    for (int64_t i = first; t < T && i < d; i += step) {
        const cpl_four v = cpl_four_get(x, at + i, at + d);
        for (int k = 0; k < 4; k++) sum += v.at[k] * v.at[k];
    }
    sum = cpl_four_row_sum(sum, part + CPL_FOUR_PART * threadIdx.y);
    if (t >= T) return;
    const float scale = 1.0f / sqrtf(sum / (float)d + eps);
    if (threadIdx.x == 0) inv[t] = scale;
    for (int64_t i = first; i < d; i += step) {
        cpl_four v       = cpl_four_get(x, at + i, at + d);
        const cpl_four w = cpl_four_get(weight, i, d);
        for (int k = 0; k < 4; k++) v.at[k] = w.at[k] * (v.at[k] * scale);
        cpl_four_set(y, at + i, at + d, v);
    }
}

static dim3 row_grid(int64_t rows, dim3 block)
{
    return dim3((unsigned)((rows + block.y - 1) / block.y));
}

extern "C" void cpl_cuda_rms_norm(cpl_backend *be, cpl_tensor y, cpl_tensor inv, cpl_tensor x,
                                  cpl_tensor weight, float eps)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    const dim3 block = cpl_four_row_block(d);
    CPL_ASSERT(cpl_tensor_count(y) == T * d);
    CPL_LAUNCH(be, rms_norm, row_grid(T, block), block, CPL_FOUR_PART * block.y * sizeof(float),
               cpl_device_numbers_of(y), cpl_f32(inv), cpl_device_numbers_of(x),
               cpl_device_numbers_of(weight), T, d, eps);
}

typedef struct norm_gradient {
    cpl_device_numbers dx, dy, x, weight;
    const float *inv;
    int64_t T, d;
    bool adds;
} norm_gradient;

/* This row of threads computes one row. With g = weight * dy: dx = (or +=) inv (g - x inv^2 mean(g
 * x)) and sums += dy x inv. dx may be dy, since a thread reads a number before it writes it. */
static __device__ void rms_norm_backward_row(norm_gradient s, cpl_device_numbers sums, int64_t t,
                                             float *part)
{
    const int64_t at = t * s.d, end = at + s.d;
    const int64_t first = 4 * (int64_t)threadIdx.x, step = 4 * (int64_t)blockDim.x;
    float along = 0;
    for (int64_t i = first; t < s.T && i < s.d; i += step) {
        const cpl_four w = cpl_four_get(s.weight, i, s.d), g = cpl_four_get(s.dy, at + i, end);
        const cpl_four v = cpl_four_get(s.x, at + i, end);
        for (int k = 0; k < 4; k++) along += w.at[k] * g.at[k] * v.at[k];
    }
    along = cpl_four_row_sum(along, part);
    if (t >= s.T) return;
    const float inv = s.inv[t], back = along / (float)s.d * inv * inv;
    for (int64_t i = first; i < s.d; i += step) {
        const cpl_four w = cpl_four_get(s.weight, i, s.d), g = cpl_four_get(s.dy, at + i, end);
        const cpl_four v = cpl_four_get(s.x, at + i, end);
        cpl_four to = {}, sum = cpl_four_get(sums, i, s.d);
        if (s.adds) to = cpl_four_get(s.dx, at + i, end);
        for (int k = 0; k < 4; k++) {
            sum.at[k] += g.at[k] * (v.at[k] * inv);
            to.at[k] += inv * (w.at[k] * g.at[k] - v.at[k] * back);
        }
        cpl_four_set(sums, i, s.d, sum);
        cpl_four_set(s.dx, at + i, end, to);
    }
}

/* Computes the gradients. A block takes `length` rows and sets its row of parts [blocks,d], its
 * part of dweight. With in_shared each row of threads sums in shared memory, otherwise in parts. */
__global__ void __launch_bounds__(CPL_FOUR_THREADS)
    rms_norm_backward(norm_gradient s, float *parts, int64_t length, bool in_shared)
{
    CPL_SHARED(float, shared);
    const int64_t begin = blockIdx.x * length, end = begin + length < s.T ? begin + length : s.T;
    const int64_t first = 4 * (int64_t)threadIdx.x, step = 4 * (int64_t)blockDim.x;
    float *all = shared + CPL_FOUR_PART * blockDim.y, *part = parts + blockIdx.x * s.d;
    const cpl_device_numbers sums = {in_shared ? all + threadIdx.y * s.d : part, false};
    for (int64_t i = first; i < s.d; i += step) cpl_four_set(sums, i, s.d, {{0, 0, 0, 0}});
    for (int64_t t = begin; t < end; t += blockDim.y)
        rms_norm_backward_row(s, sums, t + threadIdx.y < end ? t + threadIdx.y : s.T,
                              shared + CPL_FOUR_PART * threadIdx.y);
    __syncthreads();
    if (!in_shared) return;
    for (int64_t i = threadIdx.y * blockDim.x + threadIdx.x; i < s.d; i += CPL_FOUR_THREADS) {
        float sum = 0;
        for (unsigned k = 0; k < blockDim.y; k++) sum += all[k * s.d + i];
        part[i] = sum;
    }
}

/* Returns the sum over the groups of rows to all threads of the column. `part` is shared memory. */
static __device__ double group_sum(double sum, double *part)
{
    const int at = (int)threadIdx.x;
    __syncthreads(); /* an earlier sum may still be read */
    part[(int)threadIdx.y * COLUMNS + at] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < COLUMN_GROUPS; k++) sum += part[k * COLUMNS + at];
    return sum;
}

/* Returns the sum of column `column` of x [n,d] to all threads of the column. */
static __device__ double column_sum(const float *x, int64_t n, int64_t d, int64_t column,
                                    double *part)
{
    double sum = 0;
    for (int64_t i = threadIdx.y; column < d && i < n; i += COLUMN_GROUPS)
        sum += (double)x[i * d + column];
    return group_sum(sum, part);
}

static dim3 column_grid(int64_t d)
{
    return dim3((unsigned)((d + COLUMNS - 1) / COLUMNS));
}

/* Adds the rows of parts [n,d] to sum [d]. */
__global__ void add_parts(float *sum, const float *parts, int64_t n, int64_t d)
{
    CPL_SHARED(double, part);
    const int64_t i  = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const double all = column_sum(parts, n, d, i, part);
    if (threadIdx.y == 0 && i < d) sum[i] = (float)((double)sum[i] + all);
}

extern "C" void cpl_cuda_rms_norm_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dweight,
                                           cpl_tensor dy, cpl_tensor x, cpl_tensor weight,
                                           cpl_tensor inv, float beta)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    const int64_t most   = (T + LEAST_ROWS - 1) / LEAST_ROWS;
    const int64_t cut    = most < MOST_PARTS ? most : (int64_t)MOST_PARTS;
    const int64_t length = cut ? (T + cut - 1) / cut : 0, n = cut ? (T + length - 1) / length : 0;
    const dim3 block     = cpl_four_row_block(d);
    const size_t sums    = CPL_FOUR_PART * block.y * sizeof(float);
    const size_t whole   = sums + (size_t)(block.y * d) * sizeof(float);
    const bool in_shared = whole <= MOST_SHARED;
    float *parts         = (float *)be->scratch;
    if (n == 0) return;
    CPL_ASSERT(be->scratch_bytes >= (size_t)(n * d) * sizeof(float));
    CPL_ASSERT(dx.dtype == CPL_F32 && dy.dtype == CPL_F32 && weight.dtype == CPL_F32);
    const norm_gradient s = {cpl_device_numbers_of(dx),
                             cpl_device_numbers_of(dy),
                             cpl_device_numbers_of(x),
                             cpl_device_numbers_of(weight),
                             cpl_f32(inv),
                             T,
                             d,
                             beta != 0};
    CPL_LAUNCH(be, rms_norm_backward, dim3((unsigned)n), block, in_shared ? whole : sums, s, parts,
               length, in_shared);
    CPL_LAUNCH(be, add_parts, column_grid(d), dim3(COLUMNS, COLUMN_GROUPS),
               COLUMNS * COLUMN_GROUPS * sizeof(double), cpl_f32(dweight), parts, n, d);
}

/* ---- flat arrays ---- */

__global__ void clamp(cpl_device_numbers y, cpl_device_numbers x, int64_t count, float limit)
{
    const int64_t i = cpl_four_place();
    cpl_four v      = cpl_four_get(x, i, count);
    for (int k = 0; k < 4; k++) {
        const float low = v.at[k] > limit ? limit : v.at[k]; /* keeps NaN */
        v.at[k]         = low < -limit ? -limit : low;
    }
    cpl_four_set(y, i, count, v);
}

extern "C" void cpl_cuda_clamp(cpl_backend *be, cpl_tensor y, cpl_tensor x, float limit)
{
    const int64_t count = cpl_tensor_count(x);
    CPL_LAUNCH(be, clamp, cpl_four_grid(count), CPL_FOUR_THREADS, 0, cpl_device_numbers_of(y),
               cpl_device_numbers_of(x), count, limit);
}

__global__ void clamp_backward(cpl_device_numbers dx, cpl_device_numbers dy, cpl_device_numbers x,
                               int64_t count, float limit)
{
    const int64_t i  = cpl_four_place();
    const cpl_four v = cpl_four_get(x, i, count);
    cpl_four g       = cpl_four_get(dy, i, count);
    for (int k = 0; k < 4; k++) g.at[k] = fabsf(v.at[k]) <= limit ? g.at[k] : 0.0f;
    cpl_four_set(dx, i, count, g);
}

extern "C" void cpl_cuda_clamp_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dy, cpl_tensor x,
                                        float limit)
{
    const int64_t count = cpl_tensor_count(x);
    CPL_ASSERT(dx.dtype == CPL_F32 && dy.dtype == CPL_F32);
    CPL_LAUNCH(be, clamp_backward, cpl_four_grid(count), CPL_FOUR_THREADS, 0,
               cpl_device_numbers_of(dx), cpl_device_numbers_of(dy), cpl_device_numbers_of(x),
               count, limit);
}

__global__ void centre(float *y, const float *x, int64_t n, int64_t d)
{
    CPL_SHARED(double, part);
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const double mean    = column_sum(x, n, d, column, part) / (double)n;
    for (int64_t i = threadIdx.y; column < d && i < n; i += COLUMN_GROUPS)
        y[i * d + column] = (float)((double)x[i * d + column] - mean);
}

extern "C" void cpl_cuda_centre(cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    const int64_t n = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    CPL_LAUNCH(be, centre, column_grid(n ? d : 0), dim3(COLUMNS, COLUMN_GROUPS),
               COLUMNS * COLUMN_GROUPS * sizeof(double), cpl_f32(y), cpl_f32(x), n, d);
}

__global__ void column_moments(double *out, cpl_device_numbers x, int64_t T, int64_t d)
{
    CPL_SHARED(double, part);
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    double sum = 0, squares = 0;
    for (int64_t t = threadIdx.y; column < d && t < T; t += COLUMN_GROUPS) {
        const double v = (double)cpl_device_get(x, t * d + column);
        sum += v;
        squares += v * v;
    }
    sum     = group_sum(sum, part);
    squares = group_sum(squares, part);
    if (threadIdx.y != 0 || column >= d) return;
    out[column] += sum;
    out[d + column] += squares;
}

extern "C" void cpl_cuda_column_moments(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    CPL_ASSERT(cpl_tensor_count(out) == 2 * d);
    CPL_LAUNCH(be, column_moments, column_grid(T ? d : 0), dim3(COLUMNS, COLUMN_GROUPS),
               COLUMNS * COLUMN_GROUPS * sizeof(double), cpl_f64(out), cpl_device_numbers_of(x), T,
               d);
}

/* ---- rows of one length ---- */

/* Returns x . y of this row of threads' row of x and y [n,d], or 0 without a row. */
static __device__ double row_dot(cpl_device_numbers x, cpl_device_numbers y, int64_t row, int64_t n,
                                 int64_t d, double *part)
{
    const int64_t at = row * d, end = at + d;
    double sum = 0;
    for (int64_t i = 4 * (int64_t)threadIdx.x; row < n && i < d; i += 4 * blockDim.x) {
        const cpl_four v = cpl_four_get(x, at + i, end), w = cpl_four_get(y, at + i, end);
        for (int k = 0; k < 4; k++) sum += (double)v.at[k] * (double)w.at[k];
    }
    return cpl_four_row_sum(sum, part + CPL_FOUR_PART * threadIdx.y);
}

/* Sets y = mean + scale / |x| (g - along x) for each row, where g is x and along 0, or with `back`
 * g is the gradient of the result and along x . g / |x|^2. */
__global__ void unit_rows(cpl_device_numbers y, cpl_device_numbers g, cpl_device_numbers x,
                          cpl_device_numbers mean, int64_t n, int64_t d, double scale, bool back)
{
    CPL_SHARED(double, part);
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, at = row * d;
    const double square = row_dot(x, x, row, n, d, part);
    const double across = back ? row_dot(x, g, row, n, d, part) : 0;
    const double by     = square == 0 ? 0 : scale / sqrt(square);
    const double along  = square == 0 ? 0 : across / square;
    if (row >= n) return;
    for (int64_t i = 4 * (int64_t)threadIdx.x; i < d; i += 4 * blockDim.x) {
        const cpl_four w = cpl_four_get(x, at + i, at + d);
        cpl_four v = cpl_four_get(g, at + i, at + d), m = {};
        if (!back) m = cpl_four_get(mean, i, d);
        for (int k = 0; k < 4; k++)
            v.at[k] = (float)((double)m.at[k] + by * ((double)v.at[k] - along * (double)w.at[k]));
        cpl_four_set(y, at + i, at + d, v);
    }
}

static void launch_unit_rows(cpl_backend *be, cpl_tensor y, cpl_tensor g, cpl_tensor x,
                             cpl_tensor mean, double scale, bool back)
{
    const int64_t n = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    const dim3 block = cpl_four_row_block(d);
    CPL_ASSERT(cpl_tensor_count(y) == n * d && cpl_tensor_count(g) == n * d);
    CPL_LAUNCH(be, unit_rows, row_grid(n, block), block, CPL_FOUR_PART * block.y * sizeof(double),
               cpl_device_numbers_of(y), cpl_device_numbers_of(g), cpl_device_numbers_of(x),
               cpl_device_numbers_of(mean), n, d, scale, back);
}

extern "C" void cpl_cuda_unit_rows(cpl_backend *be, cpl_tensor y, cpl_tensor x, cpl_tensor mean,
                                   double scale)
{
    CPL_ASSERT(cpl_tensor_count(mean) == cpl_tensor_cols(x));
    launch_unit_rows(be, y, x, x, mean, scale, false);
}

extern "C" void cpl_cuda_unit_rows_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dy,
                                            cpl_tensor x, double scale)
{
    launch_unit_rows(be, dx, dy, x, x, scale, true);
}

__global__ void add(cpl_device_numbers y, cpl_device_numbers x, int64_t count, float scale)
{
    const int64_t i  = cpl_four_place();
    const cpl_four v = cpl_four_get(x, i, count);
    cpl_four to      = cpl_four_get(y, i, count);
    for (int k = 0; k < 4; k++) to.at[k] += scale * v.at[k];
    cpl_four_set(y, i, count, to);
}

__global__ void add_product(float *y, const float *a, const float *b, int64_t count)
{
    const int64_t i = cpl_four_place();
    for (int64_t k = i; k < i + 4 && k < count; k++) y[k] += a[k] * b[k];
}

extern "C" void cpl_cuda_add_product(cpl_backend *be, cpl_tensor y, cpl_tensor a, cpl_tensor b)
{
    const int64_t count = cpl_tensor_count(y);
    CPL_ASSERT(cpl_tensor_count(a) == count && cpl_tensor_count(b) == count);
    CPL_LAUNCH(be, add_product, cpl_four_grid(count), CPL_FOUR_THREADS, 0, cpl_f32(y), cpl_f32(a),
               cpl_f32(b), count);
}

__global__ void add_f64(double *y, const float *x, int64_t count, double scale)
{
    const int64_t i = cpl_four_place();
    for (int64_t k = i; k < i + 4 && k < count; k++) y[k] += scale * (double)x[k];
}

extern "C" void cpl_cuda_add(cpl_backend *be, cpl_tensor y, cpl_tensor x, float scale)
{
    const int64_t count = cpl_tensor_count(x);
    const dim3 grid     = cpl_four_grid(count);
    CPL_ASSERT(cpl_tensor_count(y) == count && y.dtype != CPL_BF16 && x.dtype == CPL_F32);
    if (y.dtype == CPL_F64)
        CPL_LAUNCH(be, add_f64, grid, CPL_FOUR_THREADS, 0, cpl_f64(y), cpl_f32(x), count,
                   (double)scale);
    else
        CPL_LAUNCH(be, add, grid, CPL_FOUR_THREADS, 0, cpl_device_numbers_of(y),
                   cpl_device_numbers_of(x), count, scale);
}

/* Sets y [count], numbers of 4 bytes, to value. */
__global__ void fill(cpl_device_numbers y, int64_t count, float value)
{
    cpl_four_set(y, cpl_four_place(), count, {{value, value, value, value}});
}

__global__ void fill_f64(double *y, int64_t count, double value)
{
    const int64_t i = cpl_four_place();
    for (int64_t k = i; k < i + 4 && k < count; k++) y[k] = value;
}

__global__ void fill_i32(int32_t *y, int64_t count, int32_t value)
{
    const int64_t i = cpl_four_place();
    for (int64_t k = i; k < i + 4 && k < count; k++) y[k] = value;
}

extern "C" void cpl_cuda_fill(cpl_backend *be, cpl_tensor y, float value)
{
    const int64_t count = cpl_tensor_count(y);
    const dim3 grid     = cpl_four_grid(count);
    CPL_ASSERT(y.dtype != CPL_BF16);
    if (y.dtype == CPL_F32)
        CPL_LAUNCH(be, fill, grid, CPL_FOUR_THREADS, 0, cpl_device_numbers_of(y), count, value);
    else if (y.dtype == CPL_I32)
        CPL_LAUNCH(be, fill_i32, grid, CPL_FOUR_THREADS, 0, cpl_i32(y), count, (int32_t)value);
    else
        CPL_LAUNCH(be, fill_f64, grid, CPL_FOUR_THREADS, 0, cpl_f64(y), count, (double)value);
}

/* ---- conversion between types ---- */

__global__ void copy_numbers(cpl_device_numbers y, cpl_device_numbers x, int64_t count)
{
    const int64_t i = cpl_four_place();
    cpl_four_set(y, i, count, cpl_four_get(x, i, count));
}

/* Copies `count` pairs of bytes between tensors of equal type, eight pairs per thread. */
__global__ void copy_bits(uint16_t *y, const uint16_t *x, int64_t count)
{
    const int64_t i = 2 * cpl_four_place();
    if (i + 8 <= count && ((uintptr_t)y | (uintptr_t)x) % 16 == 0)
        *(uint4 *)(y + i) = *(const uint4 *)(x + i);
    else
        for (int64_t k = i; k < i + 8 && k < count; k++) y[k] = x[k];
}

extern "C" void cpl_cuda_copy(cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    const int64_t count = cpl_tensor_count(x), pairs = (int64_t)cpl_tensor_bytes(x) / 2;
    const cpl_device_numbers to = cpl_device_numbers_of(y), from = cpl_device_numbers_of(x);
    if (y.dtype == x.dtype)
        CPL_LAUNCH(be, copy_bits, cpl_four_grid((pairs + 1) / 2), CPL_FOUR_THREADS, 0,
                   (uint16_t *)to.at, (const uint16_t *)from.at, pairs);
    else
        CPL_LAUNCH(be, copy_numbers, cpl_four_grid(count), CPL_FOUR_THREADS, 0, to, from, count);
}

/* ---- embedding ---- */

__global__ void embed(cpl_device_numbers y, cpl_device_numbers table, const int32_t *ids, int64_t T,
                      int64_t d)
{
    const int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (t >= T) return;
    const int64_t from = ids[t] * d, to = t * d;
    for (int64_t i = 4 * (int64_t)threadIdx.x; i < d; i += 4 * (int64_t)blockDim.x)
        cpl_four_set(y, to + i, to + d, cpl_four_get(table, from + i, from + d));
}

extern "C" void cpl_cuda_embed(cpl_backend *be, cpl_tensor y, cpl_tensor table, cpl_tensor ids)
{
    const int64_t T = cpl_tensor_count(ids), d = cpl_tensor_cols(table);
    const dim3 block = cpl_four_row_block(d);
    CPL_LAUNCH(be, embed, row_grid(T, block), block, 0, cpl_device_numbers_of(y),
               cpl_device_numbers_of(table), cpl_i32(ids), T, d);
}

/* Adds row `from` of dy to row `to` of dtable, in the thread's four columns. */
static __device__ __forceinline__ void add_row(cpl_device_numbers dtable, int64_t to,
                                               cpl_device_numbers dy, int64_t from, int64_t d,
                                               int64_t column)
{
    cpl_four sum     = cpl_four_get(dtable, to * d + column, to * d + d);
    const cpl_four v = cpl_four_get(dy, from * d + column, from * d + d);
    for (int k = 0; k < 4; k++) sum.at[k] += v.at[k];
    cpl_four_set(dtable, to * d + column, to * d + d, sum);
}

/* Adds the gradient of the table. A block takes some columns of the rows whose ids are blockIdx.x
 * modulo the number of classes, so that one thread adds equal ids, in the order of the tokens. For
 * each tile of ids the warps mark the block's ids, one bit each, in alternating buffers. */
__global__ void embed_backward(cpl_device_numbers dtable, cpl_device_numbers dy, const int32_t *ids,
                               int64_t T, int64_t d)
{
    CPL_SHARED(uint32_t, mine);
    const int thread     = (int)threadIdx.x;
    const int64_t column = 4 * ((int64_t)blockIdx.y * ID_THREADS + thread);
    for (int64_t tile = 0; tile < T; tile += ID_TILE) {
        uint32_t *room = mine + tile / ID_TILE % 2 * (ID_TILE / CPL_WARP);
        for (int k = 0; k < ID_TILE; k += ID_THREADS) {
            const int64_t t   = tile + k + thread;
            const bool is     = t < T && (unsigned)ids[t] % gridDim.x == blockIdx.x;
            const unsigned at = __ballot_sync(0xffffffffu, is);
            if (thread % CPL_WARP == 0) room[(k + thread) / CPL_WARP] = at;
        }
        __syncthreads();
        for (int w = 0; w < ID_TILE / CPL_WARP; w++)
            for (unsigned left = room[w]; left && column < d; left &= left - 1) {
                const int64_t t = tile + w * CPL_WARP + __ffs((int)left) - 1;
                add_row(dtable, ids[t], dy, t, d, column);
            }
    }
}

extern "C" void cpl_cuda_embed_backward(cpl_backend *be, cpl_tensor dtable, cpl_tensor dy,
                                        cpl_tensor ids)
{
    const int64_t T = cpl_tensor_count(ids), V = cpl_tensor_rows(dtable);
    const int64_t d = cpl_tensor_cols(dtable);
    /* pieces of the columns, of which a thread takes four */
    const unsigned pieces  = (unsigned)((d + ID_TILE - 1) / ID_TILE);
    const unsigned classes = V < CLASSES ? (unsigned)V : (unsigned)CLASSES;
    CPL_ASSERT(dtable.dtype == CPL_F32 && dy.dtype == CPL_F32);
    if (T == 0) return;
    CPL_LAUNCH(be, embed_backward, dim3(classes, pieces), ID_THREADS,
               2 * ID_TILE / CPL_WARP * sizeof(uint32_t), cpl_device_numbers_of(dtable),
               cpl_device_numbers_of(dy), cpl_i32(ids), T, d);
}

extern "C" size_t cpl_cuda_rows_scratch(const cpl_backend *, const cpl_work *work)
{
    return (size_t)(MOST_PARTS * work->d_model) * sizeof(float);
}
