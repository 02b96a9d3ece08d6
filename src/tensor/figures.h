/* figures.h - how well a router and its experts agree, in numbers (docs/method.md 5).
 *
 * Room:   tensor; one operation of ops.h fills this.
 * Names:  R [n,d] router rows, W_j the D x d gate of expert j, M [n,n] the coupling matrix.
 *         kappa_ij = M_ij / (|R_i| |W_j|_F), free of the scale of the weights; 0 where a norm is 0.
 */
#ifndef CPL_TENSOR_FIGURES_H
#define CPL_TENSOR_FIGURES_H

typedef struct cpl_coupling_figures {
    double m_diagonal, m_off_diagonal;         /* means of M; off: 0 for n = 1 */
    double active_rows, active_columns;        /* share of the n (n-1) hinges that pull, M >= alpha
                                                  times the row's or the column's diagonal */
    double alpha_min;                          /* smallest alpha without loss: max over i != j of
                                                  max(M_ij/M_ii, M_ij/M_jj); infinite where a
                                                  diagonal is 0 and its row or column is not */
    double eps_mean, eps_min, eps_max;         /* of the noise bound */
    double eps_above_1;                        /* how many exceed 1 */
    double zero_rows;                          /* how many router rows are zero */
    double router_norm_mean, router_norm_sd;   /* of |R_i| over the n rows */
    double gate_norm_mean, gate_norm_sd;       /* of |W_i|_F over the n experts */
    double router_cos;                         /* mean |cos| between two different rows */
    double home_top1, home_topk;               /* share of proxies R~_i that the router itself sends
                                                  to expert i: as its first choice, among K */
    double home_clean_top1, home_clean_topk;   /* the same of the rows R_i themselves */
    double kappa_diagonal, kappa_off_diagonal; /* means of kappa */
    double kappa_rows_own, kappa_columns_own;  /* share whose largest kappa is on the diagonal */
} cpl_coupling_figures;

#endif /* CPL_TENSOR_FIGURES_H */
