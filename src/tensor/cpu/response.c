/* response.c - see cpl_response_ops of tensor/host_ops.h.
 *
 * Room:  tensor/cpu. The product is the product of the coupling loss's forward pass (expert.c). X
 *        is packed in panels. The rows of W are read in place, block by block. The products of one
 *        block and one panel are squared and added up while they are in the first cache, and are
 *        not kept. */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/panel.h"

enum {
    MOST_ROWS   = 96,      /* rows of a block; a multiple of the panels' tiles of six rows */
    LEAST_ROWS  = 24,      /* smallest block of rows; each block reads X from a shared cache */
    BLOCK_ITEMS = 1 << 17, /* numbers of W in a block: half a megabyte, read once a panel */
};

/* Returns the columns of the panels of X. A single row is a plain vector, see cpl_panel_dots. */
static int64_t padded(int64_t n)
{
    return n == 1 ? 1 : vector_round_up(n);
}

size_t CPL_ISA_NAME(cpl_cpu_response_packed_bytes)(int64_t n, int64_t d)
{
    return (size_t)((padded(n) + 1) * d) * sizeof(float); /* + 1: the mean of the rows */
}

int64_t CPL_ISA_NAME(cpl_cpu_response_rows)(int64_t d)
{
    const int64_t rows = BLOCK_ITEMS / (d > 0 ? d : 1) / 6 * 6;
    return rows > MOST_ROWS ? MOST_ROWS : rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

/* Returns the bytes for the products of one block with one panel and with the mean of X. */
size_t CPL_ISA_NAME(cpl_cpu_response_scratch_bytes)(void)
{
    return (size_t)MOST_ROWS * (PANEL + 1) * sizeof(float);
}

static void set_mean(float *mean, const float *x, int64_t n, int64_t d)
{
    for (int64_t k = 0; k < d; k++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += (double)x[i * d + k];
        mean[k] = n ? (float)(sum / (double)n) : 0;
    }
}

void CPL_ISA_NAME(cpl_cpu_response_pack)(void *packed, cpl_matrix X)
{
    const int64_t n = X.rows, d = X.cols;
    cpl_panel_columns(packed, X.at, NULL, n, padded(n), d, d);
    set_mean((float *)packed + padded(n) * d, X.at, n, d);
}

/* Adds the squares of c [rows, width], n <= width, to squares [n], row after row.
 *
 * All sums are in double, where the square of an F32 number is exact: no scale of the weights
 * overflows or underflows, and the bits depend only on the order of the rows. F32 sums would
 * overflow if products reach 1e19 and would save no time, since a product takes d multiplications
 * and is squared once. */
static void add_squares(double *squares, const float *c, int64_t rows, int64_t width, int64_t n)
{
    double sum[PANEL];
    for (int64_t i = 0; i < width; i++) sum[i] = i < n ? squares[i] : 0;
    for (int64_t r = 0; r < rows; r++, c += width) {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) sum[i] += (double)c[i] * (double)c[i];
    }
    for (int64_t i = 0; i < n; i++) squares[i] = sum[i];
}

/* Adds to centred [n] the squares of c minus mean [rows], which is subtracted from c's rows. */
static void add_centred(double *centred, const float *c, const float *mean, int64_t rows,
                        int64_t width, int64_t n)
{
    double sum[PANEL];
    for (int64_t i = 0; i < width; i++) sum[i] = i < n ? centred[i] : 0;
    for (int64_t r = 0; r < rows; r++, c += width) {
        const double own = (double)mean[r];
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            const double off = (double)c[i] - own;
            sum[i] += off * off;
        }
    }
    for (int64_t i = 0; i < n; i++) centred[i] = sum[i];
}

/* Adds one block of rows of W to squares and centred. */
static void add_block(double *squares, double *centred, const float *packed, int64_t n,
                      const float *w, int64_t rows, int64_t d, float *c)
{
    const int64_t pad = padded(n);
    float *mean       = c + MOST_ROWS * PANEL;
    if (pad == 1) { /* a single row is its own mean */
        cpl_panel_dots(c, rows, d, w, d, packed);
        add_squares(squares, c, rows, 1, 1);
        return;
    }
    if (centred) cpl_panel_dots(mean, rows, d, w, d, packed + pad * d);
    for (int64_t l = 0; l < pad; l += PANEL) {
        const int64_t width = cpl_panel_width(pad, l), own = n - l < width ? n - l : width;
        cpl_panel_product(c, width, rows, width, d, w, d, 1, packed + l * d, width, false);
        add_squares(squares + l, c, rows, width, own);
        if (centred) add_centred(centred + l, c, mean, rows, width, own);
    }
}

/* The norm is computed after the products have loaded the block into the cache: their arithmetic
 * hides the memory latency. It is computed row by row, so that its bits do not depend on the
 * blocks. It is in double, as the squares are (lanes_squares). With AVX2 it takes about 0.09 ns a
 * number of W, while the products take about 1.6 ns with n = 64 and 6.4 ns with n = 256. */
void CPL_ISA_NAME(cpl_cpu_response_add)(double *squares, double *centred, double *norm,
                                        const void *packed, int64_t n, cpl_matrix W, void *scratch)
{
    const int64_t d = W.cols, block = CPL_ISA_NAME(cpl_cpu_response_rows)(d);
    for (int64_t r0 = 0; r0 < W.rows; r0 += block) {
        const float *w      = W.at + r0 * d;
        const int64_t count = W.rows - r0 < block ? W.rows - r0 : block;
        add_block(squares, centred, packed, n, w, count, d, scratch);
        for (int64_t r = 0; r < count; r++) *norm += lanes_squares(w + r * d, d);
    }
}
