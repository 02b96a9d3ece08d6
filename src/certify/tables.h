/* tables.h - everything about a dump that hypotheses share, so that each of them costs few
 * operations: the norms M, and for the numbers c of certify.h the products that tell how far their
 * gradients lie from the dump's.
 *
 * Room:   certify.
 * Names:  X_i the proxies of the variant: R~ or, without noise, R; A_ij = X_i W^j [D] of its
 *         matrices. Tables by expert j first, then row i.
 * Use:    with dW_g^j = sum_i c_ij A_ij (outer) X_i,
 *             |dW_g^j - got^j|^2 = c_j^T gram_j c_j - 2 c_j . got_j + |got^j|^2.
 * Exact:  to about 1e-8 of the norms, from the cancellation in that. */
#ifndef CPL_CERTIFY_TABLES_H
#define CPL_CERTIFY_TABLES_H

#include "certify/dump.h"

/* A kind of M that an implementation may have computed. */
typedef struct cpl_certify_tables {
    bool quiet;                    /* without noise */
    bool uses[CPL_CERTIFY_HALVES]; /* whose norms M is of */
    bool has_M, full;              /* what has been computed: M; the rest */
    double *X;                     /* [n,d] */
    double *M;                     /* [j,i]: M[i,j] is M[j * n + i], as all tables */
    double *x_norm, *w_norm;       /* [n] |X_i|, |W^j|_F */
    double *error;                 /* [j,i]: of A_ij, for numbers with a relative error of 1 */
    double *V;                     /* [j,i,d]: A_ij W^j */
    double *got;                   /* [j,i]: A_ij^T got^j X_i */
    double *gram;                  /* [j,i,k]: (A_ij . A_kj) (X_i . X_k) */
    double got_square;             /* the sum of squares of dW_g and dW_p of the dump */
} cpl_certify_tables;

void cpl_certify_tables_free(cpl_certify_tables *tables);

/* Computes M, and with `full` the rest, unless it is there. CPL_ERR_MEMORY; CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_certify_tables_take(cpl_certify_tables *tables,
                                                 const cpl_certify_dump *dump, bool full,
                                                 int n_threads);

/* The squared distance of the gradients of all experts, and the square of those of `c` [j,i]
 * themselves, computed number by number. */
CPL_NODISCARD cpl_status cpl_certify_tables_confirm(const cpl_certify_tables *tables,
                                                    const cpl_certify_dump *dump, const double *c,
                                                    double away[CPL_CERTIFY_HALVES],
                                                    double size[CPL_CERTIFY_HALVES], int n_threads);

#endif /* CPL_CERTIFY_TABLES_H */
