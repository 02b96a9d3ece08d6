/* silhouette.h - whether the rows of an expert's gate keep together: the experts of a layer as
 * clusters of the rows of their W_g, with the distance 1 - cosine.
 *
 * Room:    inspect.
 * Method:  of rows u of unit length only the mean m_c of each expert c is needed: u . m_c is the
 *          mean cosine of u to all rows of c. So n products a row are enough. */
#ifndef CPL_INSPECT_SILHOUETTE_H
#define CPL_INSPECT_SILHOUETTE_H

#include "tensor/host_ops.h"

/* Divides every row of x [rows,d] by its length, in double; a zero row stays zero. A NaN or an
 * infinity makes NaN in its row. */
void cpl_silhouette_unit_rows(cpl_matrix x);

/* *sum *adds* the silhouettes (b - a) / max(a, b) of the rows of U [rows,d]. They are some of the D
 * rows of expert `own`, of unit length. a: mean distance to the D - 1 other rows of the same
 * expert; b: the least mean distance to the D rows of another. `means` [n,d]: the means of all
 * experts' unit rows, n >= 2; `products`: memory for rows * n numbers.
 *
 * A zero row has distance 1 to everything, hence 0. The silhouette is also 0 if D = 1, and if a and
 * b are no more than the rounding of the products, 4 eps sqrt(d). A NaN in U or a mean reaches
 * *sum. CPL_ERR_MEMORY, CPL_ERR_DEVICE: a product failed. */
CPL_NODISCARD cpl_status cpl_silhouette_add(double *sum, float *products, cpl_matrix means,
                                            int64_t own, int64_t D, cpl_matrix U);

#endif /* CPL_INSPECT_SILHOUETTE_H */
