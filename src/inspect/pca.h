/* pca.h - the first two principal components of points.
 *
 * Room:    inspect, on products of ops.h.
 * Method:  subspace iteration with CPL_PRINCIPAL_SPACE vectors at once, from random ones, until the
 *          variance of the first two grows no more; the sign is such that the largest number of a
 *          direction is positive. If variances are nearly equal, any basis of their space may
 *          come out. The same points, seed and number of threads give the same bits.
 * Names:   N points in d dimensions; k vectors of the space. */
#ifndef CPL_INSPECT_PCA_H
#define CPL_INSPECT_PCA_H

#include "base/arena.h"
#include "tensor/ops.h"

enum { CPL_PRINCIPAL_SPACE = 16 };

typedef struct cpl_pca_space {
    cpl_tensor basis;  /* [k,d], rows orthonormal, or zero if the points have fewer dimensions */
    cpl_tensor image;  /* [k,d] basis times x^T x */
    cpl_tensor scores; /* [N,k] x times basis^T */
} cpl_pca_space;

/* The pieces of arena that cpl_pca works in. */
cpl_pca_space cpl_pca_take(cpl_arena *arena, int64_t n_points, int64_t d);

/* Sets out [2,N] to the coordinates of the points x [N,d], whose mean is zero, along the two
 * directions in which they vary most; zero if there is no such direction. */
void cpl_pca(cpl_backend *be, cpl_tensor out, cpl_tensor x, const cpl_pca_space *space,
             uint64_t seed);

#endif /* CPL_INSPECT_PCA_H */
