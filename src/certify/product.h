/* product.h - products of small matrices in double, for one thread.
 *
 * Room:  certify; the numeric contract (tensor/ops.h) has floats alone, and a judge must be more
 *        exact than what it judges. */
#ifndef CPL_CERTIFY_PRODUCT_H
#define CPL_CERTIFY_PRODUCT_H

#include <stdint.h>

/* The sum over k < count of a[k] b[k]. */
double cpl_certify_dot(const double *a, const double *b, int64_t count);

/* A [n,m] is set to X [n,d] times the transpose of W [m,d]. */
void cpl_certify_dots(double *A, const double *X, const double *W, int64_t n, int64_t m, int64_t d);

/* V [n,d] adds A [n,m] times W [m,d]. */
void cpl_certify_spread(double *V, const double *A, const double *W, int64_t n, int64_t m,
                        int64_t d);

/* G [m,d] is set to the transpose of A [n,m] times X [n,d]. */
void cpl_certify_outer(double *G, const double *A, const double *X, int64_t n, int64_t m,
                       int64_t d);

#endif /* CPL_CERTIFY_PRODUCT_H */
