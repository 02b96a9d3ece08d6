/* rows.c - operations on rows and on flat arrays: RMSNorm, clamp, add, fill, copy, embedding.
 *
 * Room:   tensor/cpu. Operations: ops.h.
 * Names:  T tokens, d width, V rows of a table. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/share.h"
#include "tensor/cpu/simd.h"

enum {
    LEAST_ROWS    = 16, /* smallest block of rows of rms_norm_backward */
    LEAST_COLUMNS = 16, /* smallest block of columns of embed_backward, one cache line */
};

/* ---- RMSNorm ---- */

/* Returns `count` numbers of scratch of the calling thread, for a row in BF16, or NULL if not
 * needed. The first `used` numbers of the scratch are in use already. */
static float *own_room(const cpl_backend *be, int64_t used, int64_t count, bool needed)
{
    const int64_t at = used + omp_get_thread_num() * count;
    if (!needed) return NULL;
    CPL_ASSERT(be->scratch_bytes >= (size_t)(at + count) * sizeof(float));
    return (float *)be->scratch + at;
}

static float sum_of_squares(const float *x, int64_t d)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < d; i++) sum += x[i] * x[i];
    return sum;
}

void CPL_ISA_NAME(cpl_cpu_rms_norm)(cpl_backend *be, cpl_tensor y, cpl_tensor inv, cpl_tensor x,
                                    cpl_tensor weight, float eps)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    const bool rounds = x.dtype != CPL_F32 || y.dtype != CPL_F32;
    float *pinv       = cpl_f32(inv);
    const float *w    = cpl_f32(weight);
#pragma omp parallel for num_threads(cpl_threads(be, 2 * T * d)) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *room      = own_room(be, 0, d, rounds); /* shared: y's row replaces x's row */
        const float *row = cpl_row_read(x, t * d, d, room);
        float *out       = cpl_row_begin(y, t * d, room);
        float scale      = 1.0f / sqrtf(sum_of_squares(row, d) / (float)d + eps);
        pinv[t]          = scale;
#pragma omp simd
        for (int64_t i = 0; i < d; i++) out[i] = w[i] * (row[i] * scale);
        cpl_row_end(y, t * d, d, out);
    }
}

/* Computes a row. With g = weight * dy: dx += inv (g - x inv^2 mean(g x)), dweight += dy x inv. */
static void rms_norm_backward_row(float *dx, float *dweight, const float *dy, const float *x,
                                  const float *weight, float inv, int64_t d, bool adds)
{
    float along = 0;
#pragma omp simd reduction(+ : along)
    for (int64_t i = 0; i < d; i++) along += weight[i] * dy[i] * x[i];
    float back = along / (float)d * inv * inv;
#pragma omp simd
    for (int64_t i = 0; i < d; i++) {
        float g = dy[i];
        dweight[i] += g * (x[i] * inv);
        dx[i] = (adds ? dx[i] : 0) + inv * (weight[i] * g - x[i] * back);
    }
}

/* Adds the rows of `parts` [n_parts, d] to sum [d], in order. */
static void add_parts(float *sum, const float *parts, int64_t n_parts, int64_t d)
{
    for (int64_t b = 0; b < n_parts; b++) {
#pragma omp simd
        for (int64_t i = 0; i < d; i++) sum[i] += parts[b * d + i];
    }
}

/* Computes the gradients. Each block of rows sums its part of dweight in scratch [blocks, d]. Then
 * the parts are added in order. */
void CPL_ISA_NAME(cpl_cpu_rms_norm_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dweight,
                                             cpl_tensor dy, cpl_tensor x, cpl_tensor weight,
                                             cpl_tensor inv, float beta)
{
    const int64_t T = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    const cpl_blocks cut = cpl_cut(T, LEAST_ROWS);
    CPL_ASSERT(be->scratch_bytes >= (size_t)(cut.n * d) * sizeof(float));
    float *parts = be->scratch, *pdx = cpl_f32(dx);
    const float *pdy = cpl_f32(dy), *w = cpl_f32(weight), *pinv = cpl_f32(inv);
#pragma omp parallel for num_threads(cpl_threads(be, 4 * T * d)) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        float *part = parts + b * d;
        float *room = own_room(be, cut.n * d, d, x.dtype != CPL_F32);
        memset(part, 0, (size_t)d * sizeof(float));
        for (int64_t t = cpl_block_begin(cut, b); t < cpl_block_end(cut, b); t++)
            rms_norm_backward_row(pdx + t * d, part, pdy + t * d, cpl_row_read(x, t * d, d, room),
                                  w, pinv[t], d, beta != 0);
    }
    add_parts(cpl_f32(dweight), parts, cut.n, d);
}

/* ---- flat arrays ---- */

void CPL_ISA_NAME(cpl_cpu_clamp)(cpl_backend *be, cpl_tensor y, cpl_tensor x, float limit)
{
    const cpl_blocks cut = cpl_cut_pieces(cpl_tensor_count(x));
#pragma omp parallel for num_threads(cpl_threads(be, cut.count)) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        float room[CPL_PIECE];
        const int64_t at = cpl_block_begin(cut, b), count = cpl_block_end(cut, b) - at;
        const float *px = cpl_row_read(x, at, count, room);
        float *py       = cpl_row_begin(y, at, room);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            float value = px[i] > limit ? limit : px[i];
            py[i]       = value < -limit ? -limit : value;
        }
        cpl_row_end(y, at, count, py);
    }
}

void CPL_ISA_NAME(cpl_cpu_clamp_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dy,
                                          cpl_tensor x, float limit)
{
    const cpl_blocks cut = cpl_cut_pieces(cpl_tensor_count(x));
#pragma omp parallel for num_threads(cpl_threads(be, cut.count)) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        float room[CPL_PIECE];
        const int64_t at = cpl_block_begin(cut, b), count = cpl_block_end(cut, b) - at;
        const float *px = cpl_row_read(x, at, count, room), *pdy = cpl_f32(dy) + at;
        float *pdx = cpl_f32(dx) + at;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) pdx[i] = fabsf(px[i]) <= limit ? pdy[i] : 0.0f;
    }
}

/* Returns the sum of a column, in double. */
static double column_sum(const float *x, int64_t n, int64_t d)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i * d];
    return sum;
}

void CPL_ISA_NAME(cpl_cpu_centre)(cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    const int64_t n = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    float *py       = cpl_f32(y);
    const float *px = cpl_f32(x);
#pragma omp parallel for num_threads(cpl_threads(be, 2 * n * d)) schedule(static)
    for (int64_t k = 0; k < d; k++) {
        const double mean = column_sum(px + k, n, d) / (double)n;
        for (int64_t i = 0; i < n; i++) py[i * d + k] = (float)((double)px[i * d + k] - mean);
    }
}

static double row_dot(const float *x, const float *y, int64_t d)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < d; k++) sum += (double)x[k] * (double)y[k];
    return sum;
}

/* Returns scale / |x| for square = |x|^2, or 0 if x is 0. NaN gives NaN. */
static double over_length(double scale, double square)
{
    return square == 0 ? 0 : scale / sqrt(square);
}

void CPL_ISA_NAME(cpl_cpu_unit_rows)(cpl_backend *be, cpl_tensor y, cpl_tensor x, cpl_tensor mean,
                                     double scale)
{
    const int64_t n = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    const float *m = cpl_f32(mean), *from = cpl_f32(x);
    float *to = cpl_f32(y);
    CPL_ASSERT(cpl_tensor_count(mean) == d);
#pragma omp parallel for num_threads(cpl_threads(be, 3 * n * d)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float *px = from + i * d;
        const double by = over_length(scale, row_dot(px, px, d));
#pragma omp simd
        for (int64_t k = 0; k < d; k++) to[i * d + k] = (float)((double)m[k] + by * (double)px[k]);
    }
}

void CPL_ISA_NAME(cpl_cpu_unit_rows_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dy,
                                              cpl_tensor x, double scale)
{
    const int64_t n = cpl_tensor_rows(x), d = cpl_tensor_cols(x);
    const float *g = cpl_f32(dy), *from = cpl_f32(x);
    float *to = cpl_f32(dx);
#pragma omp parallel for num_threads(cpl_threads(be, 4 * n * d)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float *px = from + i * d, *pg = g + i * d;
        const double square = row_dot(px, px, d), by = over_length(scale, square);
        const double along = square == 0 ? 0 : row_dot(px, pg, d) / square;
#pragma omp simd
        for (int64_t k = 0; k < d; k++)
            to[i * d + k] = (float)(by * ((double)pg[k] - along * (double)px[k]));
    }
}

void CPL_ISA_NAME(cpl_cpu_add)(cpl_backend *be, cpl_tensor y, cpl_tensor x, float scale)
{
    const int64_t count = cpl_tensor_count(x);
    const float *px     = cpl_f32(x);
    if (y.dtype == CPL_F64) {
        for (int64_t i = 0; i < count; i++) cpl_f64(y)[i] += (double)scale * (double)px[i];
        return;
    }
    float *py = cpl_f32(y);
#pragma omp parallel for simd num_threads(cpl_threads(be, count)) schedule(static)
    for (int64_t i = 0; i < count; i++) py[i] += scale * px[i];
}

void CPL_ISA_NAME(cpl_cpu_add_product)(cpl_backend *be, cpl_tensor y, cpl_tensor a, cpl_tensor b)
{
    const int64_t count = cpl_tensor_count(y);
    const float *pa = cpl_f32(a), *pb = cpl_f32(b);
    float *py = cpl_f32(y);
#pragma omp parallel for simd num_threads(cpl_threads(be, count)) schedule(static)
    for (int64_t i = 0; i < count; i++) py[i] += pa[i] * pb[i];
}

void CPL_ISA_NAME(cpl_cpu_fill)(cpl_backend *be, cpl_tensor y, float value)
{
    const int64_t count = cpl_tensor_count(y);
    const int n_threads = cpl_threads(be, count);
    if (y.dtype == CPL_F32) {
        float *py = cpl_f32(y);
#pragma omp parallel for simd num_threads(n_threads) schedule(static)
        for (int64_t i = 0; i < count; i++) py[i] = value;
    } else if (y.dtype == CPL_I32) {
        for (int64_t i = 0; i < count; i++) cpl_i32(y)[i] = (int32_t)value;
    } else {
        for (int64_t i = 0; i < count; i++) cpl_f64(y)[i] = (double)value;
    }
}

/* ---- conversion between types ---- */

/* Copies `count` numbers from element `from_at` of x to element `to_at` of y. */
static void copy_part(cpl_tensor y, int64_t to_at, cpl_tensor x, int64_t from_at, int64_t count)
{
    char *to         = (char *)y.storage + (size_t)to_at * cpl_dtype_bytes(y.dtype);
    const char *from = (const char *)x.storage + (size_t)from_at * cpl_dtype_bytes(x.dtype);
    if (count == 0) return;
    if (y.dtype == x.dtype) {
        memcpy(to, from, (size_t)count * cpl_dtype_bytes(x.dtype));
    } else if (y.dtype == CPL_BF16) {
        cpl_round_row((uint16_t *)(void *)to, (const float *)(const void *)from, count);
    } else {
        cpl_widen_row((float *)(void *)to, (const uint16_t *)(const void *)from, count);
    }
}

static bool is_float(cpl_tensor x)
{
    return x.dtype == CPL_F32 || x.dtype == CPL_BF16;
}

void CPL_ISA_NAME(cpl_cpu_copy)(cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    CPL_ASSERT(is_float(y) && is_float(x));
    const cpl_blocks cut = cpl_cut(cpl_tensor_count(x), CPL_SHARE_LEAST);
#pragma omp parallel for num_threads(cpl_threads(be, cut.count)) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        int64_t begin = cpl_block_begin(cut, b);
        copy_part(y, begin, x, begin, cpl_block_end(cut, b) - begin);
    }
}

/* ---- embedding ---- */

void CPL_ISA_NAME(cpl_cpu_embed)(cpl_backend *be, cpl_tensor y, cpl_tensor table, cpl_tensor ids)
{
    CPL_ASSERT(is_float(y) && is_float(table));
    const int64_t T = cpl_tensor_count(ids), d = cpl_tensor_cols(table);
    const int32_t *id = cpl_i32(ids);
#pragma omp parallel for num_threads(cpl_threads(be, 2 * T * d)) schedule(static)
    for (int64_t t = 0; t < T; t++) copy_part(y, t * d, table, id[t] * d, d);
}

/* Adds the gradient of the table. The columns are cut into blocks. Each block adds all tokens in
 * order, so that equal ids never conflict. */
void CPL_ISA_NAME(cpl_cpu_embed_backward)(cpl_backend *be, cpl_tensor dtable, cpl_tensor dy,
                                          cpl_tensor ids)
{
    const int64_t T = cpl_tensor_count(ids), d = cpl_tensor_cols(dtable);
    const cpl_blocks cut = cpl_cut(d, LEAST_COLUMNS);
    const int n_threads  = cpl_threads(be, 3 * T * d);
    const int32_t *id    = cpl_i32(ids);
    float *to            = cpl_f32(dtable);
    const float *from    = cpl_f32(dy);
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t b = 0; b < cut.n; b++) {
        const int64_t begin = cpl_block_begin(cut, b), end = cpl_block_end(cut, b);
        for (int64_t t = 0; t < T; t++) {
            float *row = to + id[t] * d;
#pragma omp simd
            for (int64_t i = begin; i < end; i++) row[i] += from[t * d + i];
        }
    }
}

size_t CPL_ISA_NAME(cpl_cpu_rows_scratch)(const cpl_backend *be, const cpl_work *work)
{
    const int64_t rows = CPL_MOST_BLOCKS + (be->compute == CPL_F32 ? 0 : be->n_threads);
    return (size_t)(rows * work->d_model) * sizeof(float);
}
