/* pca.h - the first two principal components of points.
 *
 * Room:    inspect, on products of product.h and host_ops.h.
 * Method:  subspace iteration with CPL_PRINCIPAL_SPACE vectors at once, from random ones, until the
 *          variance of the first two grows no more; the sign is such that the largest number of a
 *          direction is positive. If variances are nearly equal, any basis of their space may
 *          come out. The same points, seed and number of threads give the same bits.
 * Names:   N points in d dimensions; k vectors of the space. */
#ifndef CPL_INSPECT_PCA_H
#define CPL_INSPECT_PCA_H

#include "base/arena.h"
#include "tensor/host_ops.h"

enum { CPL_PRINCIPAL_SPACE = 16 };

typedef struct cpl_pca_space {
    cpl_matrix basis;  /* [k,d], rows orthonormal, or zero if the points have fewer dimensions */
    cpl_matrix image;  /* [k,d] basis times x^T x */
    cpl_matrix scores; /* [N,k] x times basis^T */
} cpl_pca_space;

/* The pieces of arena that cpl_pca works in. */
cpl_pca_space cpl_pca_take(cpl_arena *arena, int64_t n_points, int64_t d);

/* Sets out [2,N] to the coordinates of the points x [N,d], whose mean is zero, along the two
 * directions in which they vary most; zero if there is no such direction. CPL_ERR_MEMORY,
 * CPL_ERR_DEVICE: a product failed. */
CPL_NODISCARD cpl_status cpl_pca(cpl_matrix out, cpl_matrix x, const cpl_pca_space *space,
                                 uint64_t seed, int n_threads);

#endif /* CPL_INSPECT_PCA_H */
