/* eigen.h - eigenvalues of a symmetric matrix.
 *
 * Room:    base/stats. In double; O(n^3), most of it in two passes over the rows.
 * Method:  Householder reflections to a tridiagonal matrix, then QL steps with implicit shifts
 *          (Golub, Van Loan, Matrix Computations, 8.3). Errors are a few roundings of the largest
 *          eigenvalue, so that smaller ones than that are not known. */
#ifndef CPL_BASE_STATS_EIGEN_H
#define CPL_BASE_STATS_EIGEN_H

#include <stdint.h>

/* Sets value [n], falling, to the eigenvalues of a [n,n], of which the lower half is read and all
 * is overwritten. scratch [n]. All NaN if a has numbers that are not finite. */
void cpl_eigenvalues(double *value, double *a, double *scratch, int64_t n);

/* The same of the tridiagonal matrix with diagonal d [n], which becomes the eigenvalues, and e [n]:
 * e[i] is the entry between i and i + 1, e[n-1] is not read; overwritten. */
void cpl_eigenvalues_tridiagonal(double *d, double *e, int64_t n);

#endif /* CPL_BASE_STATS_EIGEN_H */
