/* panel.h - products of a row-major matrix with a thin matrix that lies in panels.
 *
 * Room:    tensor/cpu. Used by the coupling loss: the thin matrix is the router's n rows, which
 *          stay in the second-level cache while the experts' matrices are read once, unpacked.
 * Panels:  a thin matrix [depth, width] as blocks of PANEL columns (the last block may be narrower,
 *          a multiple of VECTOR). The block of column l begins l * depth numbers after the first
 *          block. Its rows are contiguous. Columns between `width` and its multiple of VECTOR hold
 *          zeros.
 * Order:   every sum runs over depth from 0 upward, one fused multiply-add at a time, for every
 *          shape of the call. So equal operands give equal bits. An exact tie of M stays a tie,
 *          whatever the shape of the call. */
#ifndef CPL_TENSOR_CPU_PANEL_H
#define CPL_TENSOR_CPU_PANEL_H

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/lanes.h"

enum { PANEL = VECTOR * PANEL_VECTORS };

/* Returns the columns of the panel that begins at column l of `width` (a multiple of VECTOR). */
static inline int64_t cpl_panel_width(int64_t width, int64_t l)
{
    return width - l < PANEL ? width - l : PANEL;
}

/* Sets panels [d, pad] to `count` rows [d], `stride` apart, as columns. Columns from count to pad
 * are 0. `which` holds the indices of the rows. If it is NULL, they are the first `count` rows. */
static inline void cpl_panel_columns(float *panels, const float *rows, const int32_t *which,
                                     int64_t count, int64_t pad, int64_t d, int64_t stride)
{
    for (int64_t l = 0; l < pad; l += PANEL) {
        const int64_t width = cpl_panel_width(pad, l);
        for (int64_t i = l; i < l + width; i++) {
            const float *row = i < count ? rows + (which ? which[i] : i) * stride : NULL;
            float *to        = panels + l * d + (i - l);
            for (int64_t k = 0; k < d; k++) to[k * width] = row ? row[k] : 0;
        }
    }
}

/* Computes c[r, 0..width) = or += sum over k < depth of x[r x_row + k x_depth] panel[k panel_step +
 * ...] for r < rows. c's rows are c_step apart. width is a multiple of VECTOR, at most PANEL. With
 * `add` false the old c is not read. Depth 0 sets zeros. */
#define cpl_panel_product CPL_ISA_NAME(cpl_cpu_panel_product)
void cpl_panel_product(float *c, int64_t c_step, int64_t rows, int64_t width, int64_t depth,
                       const float *x, int64_t x_row, int64_t x_depth, const float *panel,
                       int64_t panel_step, bool add);

/* Computes out[r] = sum over k < depth of x[r x_row + k] column[k] for r < rows, with the bits of
 * cpl_panel_product of a thin matrix of one column. Its speed is limited by memory only. */
#define cpl_panel_dots CPL_ISA_NAME(cpl_cpu_panel_dots)
void cpl_panel_dots(float *out, int64_t rows, int64_t depth, const float *x, int64_t x_row,
                    const float *column);

/* ---- products of bf16 ---- */

/* Two numbers that are adjacent in depth. */
typedef struct cpl_panel_pair {
    uint16_t first, second;
} cpl_panel_pair;

/* Returns whether these kernels are for pairs of bf16 and the processor multiplies them. */
#define cpl_panel_has_pairs CPL_ISA_NAME(cpl_cpu_panel_has_pairs)
bool cpl_panel_has_pairs(void);

/* Computes the products above for pairs of bf16 instead of floats: depth and steps count pairs.
 * Sums are F32. */
#define cpl_panel_pairs_product CPL_ISA_NAME(cpl_cpu_panel_pairs_product)
void cpl_panel_pairs_product(float *c, int64_t c_step, int64_t rows, int64_t width, int64_t depth,
                             const cpl_panel_pair *x, int64_t x_row, int64_t x_depth,
                             const cpl_panel_pair *panel, int64_t panel_step, bool add);
#define cpl_panel_pairs_dots CPL_ISA_NAME(cpl_cpu_panel_pairs_dots)
void cpl_panel_pairs_dots(float *out, int64_t rows, int64_t depth, const cpl_panel_pair *x,
                          int64_t x_row, const cpl_panel_pair *column);

#endif /* CPL_TENSOR_CPU_PANEL_H */
