/* matrix.h - a stored tensor with its scales, as a matrix of numbers.
 *
 * Room:    inspect/families, inside the families room.
 * Source:  docs/formats.md, "Quantised numbers". What tensors are there decides how one is read;
 *          the config only adds the sizes of blocks. */
#ifndef CPL_INSPECT_FAMILIES_MATRIX_H
#define CPL_INSPECT_FAMILIES_MATRIX_H

#include "base/arena.h"
#include "inspect/families/config.h"

/* The tensors of one matrix, or of one stack of matrices; NULL: not there. */
typedef struct cpl_matrix_parts {
    const cpl_stored *weight, *blocks, *packed, *scale;
    bool grid; /* `scale` has one for each block of the config, whatever its shape suggests */
} cpl_matrix_parts;

/* Its numbers: [rows,cols], or [n,rows,cols]. */
typedef struct cpl_matrix_shape {
    bool stacked;
    int64_t n, rows, cols; /* n 1 where not stacked */
} cpl_matrix_shape;

/* Sets both; `d` is the number of columns that is expected, 0 if none is. NULL, or a sentence that
 * says why it cannot be read. One of weight, blocks, packed must be there. */
const char *cpl_matrix_make(cpl_stored_matrix *out, cpl_matrix_shape *shape, cpl_pool *pool,
                            const cpl_matrix_parts *parts, const cpl_moe_config *config, int64_t d);

#endif /* CPL_INSPECT_FAMILIES_MATRIX_H */
