/* reduce.c - sums in double over fixed blocks, joined in order; norms.
 *
 * Room:  tensor/cpu. Operations: ops.h. */
#include <math.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/share.h"
#include "tensor/cpu/simd.h"

static double sum_part(const float *x, int64_t count)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += (double)x[i];
    return sum;
}

static double dot_part(const float *x, const float *y, int64_t count)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Returns the sum of x, or of x y if y is not NULL. */
static double reduce(const cpl_backend *be, const float *x, const float *y, int64_t count)
{
    double parts[CPL_MOST_BLOCKS], sum = 0;
    const cpl_blocks cut = cpl_cut(count, CPL_SHARE_LEAST);
#pragma omp parallel for num_threads(cpl_threads(be, count)) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        const int64_t begin = cpl_block_begin(cut, b), length = cpl_block_end(cut, b) - begin;
        parts[b] = y ? dot_part(x + begin, y + begin, length) : sum_part(x + begin, length);
    }
    for (int64_t b = 0; b < cut.n; b++) sum += parts[b];
    return sum;
}

void CPL_ISA_NAME(cpl_cpu_sum)(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    const int64_t count = cpl_tensor_count(x);
    if (count) *cpl_f64(out) += reduce(be, cpl_f32(x), NULL, count);
}

void CPL_ISA_NAME(cpl_cpu_count_negative)(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    const int64_t count = cpl_tensor_count(x);
    const float *from   = cpl_f32(x);
    int64_t below       = 0;
#pragma omp parallel for num_threads(cpl_threads(be, count)) schedule(static) reduction(+ : below)
    for (int64_t i = 0; i < count; i++) below += from[i] < 0;
    *cpl_f64(out) += (double)below;
}

void CPL_ISA_NAME(cpl_cpu_dot)(cpl_backend *be, cpl_tensor out, cpl_tensor x, cpl_tensor y)
{
    const int64_t count = cpl_tensor_count(x);
    CPL_ASSERT(cpl_tensor_count(y) == count);
    if (count) *cpl_f64(out) += reduce(be, cpl_f32(x), cpl_f32(y), count);
}

enum { SHORT_ROW = 1024 };

static double squares(const float *x, int64_t length)
{
    return length < SHORT_ROW ? lanes_squares_short(x, length) : lanes_squares(x, length);
}

static double squares_of(cpl_tensor x, int64_t at, int64_t length)
{
    float room[CPL_PIECE];
    double sum = 0;
    if (x.dtype == CPL_F32) return squares(cpl_f32(x) + at, length);
    for (int64_t i = 0; i < length; i += CPL_PIECE) {
        const int64_t count = length - i < CPL_PIECE ? length - i : CPL_PIECE;
        sum += squares(cpl_row_read(x, at + i, count, room), count);
    }
    return sum;
}

/* Computes the norms. Each thread takes whole rows, so that the order of a row's sum is fixed. */
void CPL_ISA_NAME(cpl_cpu_row_norms)(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    const int64_t n = x.shape[0], length = n ? cpl_tensor_count(x) / n : 0;
    float *norm = cpl_f32(out);
    CPL_ASSERT(cpl_tensor_count(out) == n);
#pragma omp parallel for num_threads(cpl_threads(be, n *length)) schedule(static)
    for (int64_t i = 0; i < n; i++) norm[i] = (float)sqrt(squares_of(x, i * length, length));
}

enum { MOMENT_COLUMNS = 64 }; /* columns of a block of column_moments */

/* Adds the moments of `count` columns of x from `first` on, token by token. */
static void add_moments(double *sum, double *squares, cpl_tensor x, int64_t first, int64_t count)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    float room[MOMENT_COLUMNS];
    for (int64_t t = 0; t < T; t++) {
        const float *row = cpl_row_read(x, t * d + first, count, room);
#pragma omp simd
        for (int64_t k = 0; k < count; k++) {
            sum[k] += (double)row[k];
            squares[k] += (double)row[k] * (double)row[k];
        }
    }
}

void CPL_ISA_NAME(cpl_cpu_column_moments)(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    const cpl_blocks cut = {d, (d + MOMENT_COLUMNS - 1) / MOMENT_COLUMNS, MOMENT_COLUMNS};
    double *sum          = cpl_f64(out);
    CPL_ASSERT(cpl_tensor_count(out) == 2 * d);
#pragma omp parallel for num_threads(cpl_threads(be, 2 * T * d)) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        const int64_t first = cpl_block_begin(cut, b);
        add_moments(sum + first, sum + d + first, x, first, cpl_block_end(cut, b) - first);
    }
}
