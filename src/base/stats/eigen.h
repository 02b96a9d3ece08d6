/* eigen.h - eigenvalues of a symmetric matrix.
 *
 * Room:    base/stats. Works in double. Cost is O(n^3), mostly in two passes over the rows.
 * Method:  Householder reflections to a tridiagonal matrix, then QL steps with implicit shifts
 *          (Golub, Van Loan, Matrix Computations, 8.3). Errors are a few roundings of the largest
 *          eigenvalue, so that smaller eigenvalues are not accurate. */
#ifndef CPL_BASE_STATS_EIGEN_H
#define CPL_BASE_STATS_EIGEN_H

#include <stdint.h>

/* Sets value [n] to the eigenvalues of a [n,n] in falling order. Reads the lower half of a and
 * overwrites a. scratch [n]. All results are NaN if a has numbers that are not finite. */
void cpl_eigenvalues(double *value, double *a, double *scratch, int64_t n);

/* Replaces the diagonal d [n] of a tridiagonal matrix by its eigenvalues. e[i] is the entry between
 * i and i + 1. e[n-1] is not read. e [n] is overwritten. */
void cpl_eigenvalues_tridiagonal(double *d, double *e, int64_t n);

#endif /* CPL_BASE_STATS_EIGEN_H */
