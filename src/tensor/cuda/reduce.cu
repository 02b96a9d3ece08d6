/* reduce.cu - sums in double over fixed parts, joined in order; norms of rows and of responses.
 *
 * Room:  tensor/cuda. Operations: ops.h. */
#include "tensor/cuda/four.h"

enum {
    PART             = 16 * 4 * CPL_FOUR_THREADS, /* least numbers of a part */
    MOST_PARTS       = CPL_PART(4096, 64),
    RESPONSE_THREADS = 1024,
};

/* The terms of a sum: x, x y, x^2, or 1 for each x below 0. */
enum what { NUMBERS, PRODUCTS, SQUARES, NEGATIVE };

/* Returns the sum over four numbers from i on, without numbers from `end` on. */
template <what WHAT>
static __device__ __forceinline__ double sum_of(cpl_device_numbers x, cpl_device_numbers y,
                                                int64_t i, int64_t end)
{
    const cpl_four v = cpl_four_get(x, i, end), w = WHAT == PRODUCTS ? cpl_four_get(y, i, end) : v;
    double sum = 0;
    for (int k = 0; k < 4; k++)
        sum += WHAT == NUMBERS    ? (double)v.at[k]
               : WHAT == NEGATIVE ? (double)(v.at[k] < 0)
                                  : (double)v.at[k] * (double)w.at[k];
    return sum;
}

/* Computes parts [rows, n] = (or +=) the sums of n parts of each of the rows [rows, length]; block
 * (row, part). */
template <what WHAT>
__global__ void sum_parts(double *parts, cpl_device_numbers x, cpl_device_numbers y, int64_t length,
                          int64_t n, bool adds)
{
    CPL_SHARED(double, shared);
    const int64_t row = blockIdx.x / n, part = blockIdx.x % n, end = (row + 1) * length;
    const int64_t step = 4 * n * CPL_FOUR_THREADS;
    double sum         = 0;
    for (int64_t i = 4 * (part * CPL_FOUR_THREADS + threadIdx.x); i < length; i += step)
        sum += sum_of<WHAT>(x, y, row * length + i, end);
    sum = cpl_block_sum(sum, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = adds ? parts[blockIdx.x] + sum : sum;
}

static __device__ double sum_all(const double *parts, int64_t n, double *shared)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += parts[i];
    return cpl_block_sum(sum, shared);
}

__global__ void add_sum(double *out, const double *parts, int64_t n)
{
    CPL_SHARED(double, shared);
    const double sum = sum_all(parts, n, shared);
    if (threadIdx.x == 0) *out += sum;
}

__global__ void root_sum(float *out, const double *parts, int64_t n)
{
    CPL_SHARED(double, shared);
    const double sum = sum_all(parts + blockIdx.x * n, n, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = (float)sqrt(sum);
}

enum { SHARED_BYTES = (CPL_WARP + 1) * sizeof(double) };

/* Returns the number of parts of each of `rows` rows of `length` numbers: MOST_PARTS in all at
 * most, or 1 per row. */
static int64_t parts_of(int64_t length, int64_t rows)
{
    const int64_t most = MOST_PARTS / (rows < MOST_PARTS ? rows : (int64_t)MOST_PARTS);
    const int64_t n    = (length + PART - 1) / PART;
    return n < most ? n : most;
}

static double *parts_in(const cpl_backend *be)
{
    CPL_ASSERT(be->scratch_bytes >= MOST_PARTS * sizeof(double));
    return (double *)be->scratch;
}

template <what WHAT> static void reduce(cpl_backend *be, cpl_tensor out, cpl_tensor x, cpl_tensor y)
{
    const int64_t count = cpl_tensor_count(x), n = parts_of(count, 1);
    CPL_ASSERT(x.dtype == CPL_F32 && y.dtype == CPL_F32 && cpl_tensor_count(y) == count);
    if (count == 0) return;
    double *parts = n == 1 ? cpl_f64(out) : parts_in(be);
    CPL_LAUNCH(be, sum_parts<WHAT>, (unsigned)n, CPL_FOUR_THREADS, SHARED_BYTES, parts,
               cpl_device_numbers_of(x), cpl_device_numbers_of(y), count, n, n == 1);
    if (n > 1) CPL_LAUNCH(be, add_sum, 1, CPL_FOUR_THREADS, SHARED_BYTES, cpl_f64(out), parts, n);
}

extern "C" void cpl_cuda_sum(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    reduce<NUMBERS>(be, out, x, x);
}

extern "C" void cpl_cuda_count_negative(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    reduce<NEGATIVE>(be, out, x, x);
}

extern "C" void cpl_cuda_dot(cpl_backend *be, cpl_tensor out, cpl_tensor x, cpl_tensor y)
{
    reduce<PRODUCTS>(be, out, x, y);
}

/* Computes norms of short rows. A row of threads computes one row. */
__global__ void norms(float *out, cpl_device_numbers x, int64_t n, int64_t length)
{
    CPL_SHARED(double, shared);
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, end = (row + 1) * length;
    double sum = 0;
    for (int64_t i = 4 * (int64_t)threadIdx.x; row < n && i < length; i += 4 * blockDim.x)
        sum += sum_of<SQUARES>(x, x, row * length + i, end);
    sum = cpl_four_row_sum(sum, shared + CPL_FOUR_PART * threadIdx.y);
    if (row < n && threadIdx.x == 0) out[row] = (float)sqrt(sum);
}

extern "C" void cpl_cuda_row_norms(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    const int64_t n = x.shape[0], length = n ? cpl_tensor_count(x) / n : 0;
    const cpl_device_numbers from = cpl_device_numbers_of(x);
    CPL_ASSERT(cpl_tensor_count(out) == n);
    if (n == 0) return;
    const int64_t parts = parts_of(length, n);
    if (parts <= 1) {
        const dim3 block = cpl_four_row_block(length);
        CPL_LAUNCH(be, norms, (unsigned)((n + block.y - 1) / block.y), block,
                   CPL_FOUR_PART * block.y * sizeof(double), cpl_f32(out), from, n, length);
        return;
    }
    double *sums = parts_in(be);
    CPL_LAUNCH(be, sum_parts<SQUARES>, (unsigned)(n * parts), CPL_FOUR_THREADS, SHARED_BYTES, sums,
               from, from, length, parts, false);
    CPL_LAUNCH(be, root_sum, (unsigned)n, CPL_WARP, SHARED_BYTES, cpl_f32(out), sums, parts);
}

/* Computes out[i] = |x[i] rows[i]| with x[i] [D,d]. A block computes one i. Its warps take turns at
 * the rows of x[i]. */
__global__ void __launch_bounds__(RESPONSE_THREADS)
    response_norms(float *out, cpl_device_numbers rows, cpl_device_numbers x, int64_t D, int64_t d)
{
    CPL_SHARED(double, shared);
    const int lane = (int)threadIdx.x % CPL_WARP, warp = (int)threadIdx.x / CPL_WARP;
    const int64_t i = blockIdx.x;
    double squares  = 0;
    for (int64_t k = i * D + warp; k < (i + 1) * D; k += RESPONSE_THREADS / CPL_WARP) {
        double sum = 0;
        for (int64_t c = 4 * lane; c < d; c += 4 * CPL_WARP) {
            const cpl_four v = cpl_four_get(x, k * d + c, (k + 1) * d);
            const cpl_four w = cpl_four_get(rows, i * d + c, (i + 1) * d);
            for (int j = 0; j < 4; j++) sum += (double)v.at[j] * (double)w.at[j];
        }
        sum = cpl_warp_sum(sum);
        squares += lane == 0 ? sum * sum : 0;
    }
    squares = cpl_block_sum(squares, shared);
    if (threadIdx.x == 0) out[i] = (float)sqrt(squares);
}

extern "C" void cpl_cuda_own_responses(cpl_backend *be, cpl_tensor out, cpl_tensor rows,
                                       cpl_tensor x)
{
    const int64_t n = x.shape[0], D = x.shape[1], d = x.shape[2];
    CPL_ASSERT(cpl_tensor_count(out) == n && cpl_tensor_count(rows) == n * d);
    CPL_LAUNCH(be, response_norms, (unsigned)n, RESPONSE_THREADS, SHARED_BYTES, cpl_f32(out),
               cpl_device_numbers_of(rows), cpl_device_numbers_of(x), D, d);
}

extern "C" size_t cpl_cuda_reduce_scratch(const cpl_backend *, const cpl_work *)
{
    return MOST_PARTS * sizeof(double);
}
