/* figures.h - the figures of the agreement of a router and its experts (docs/method.md 5).
 *
 * Room:   tensor. One operation of ops.h fills the struct, whose fields are the rows of
 *         coupling_figures.def.
 * Rows:   the loss makes its proxies from the router rows R or, with erc.proxy, from other rows
 *         (docs/method.md 3.13, 3.15). eps, M and kappa use the rows of the loss. lambda always uses R, without noise. The
 *         centred figures always use the centred rows, without noise: adding one vector to all rows
 *         of R changes neither softmax routing nor these figures.
 * Names:  R [n,d] router rows, R~ proxies, W_j the D x d gate of expert j, M [n,n] the coupling
 *         matrix. kappa_ij = M_ij / (|R_i| |W_j|_F), independent of the scale of the weights and 0
 *         where a norm is 0.
 *
 *             m_diagonal, m_off_diagonal      means of M; off: 0 for n = 1
 *             active_rows, active_columns     share of the n (n-1) hinges with a gradient, M >=
 *                                             alpha times the diagonal of the row or of the column
 *             alpha_min                       smallest alpha without loss: max over i != j of
 *                                             max(M_ij/M_ii, M_ij/M_jj); infinite where a diagonal
 *                                             is 0 and its row or column is not
 *             eps_mean, eps_min, eps_max      statistics of the noise bound; eps_above_1: number of
 *                                             rows with eps_i > 1
 *             zero_rows                       number of router rows that are zero
 *             noise_bound_share               eps_i over the exact bound (docs/method.md 5.1), mean
 *                                             over the rows whose exact bound is positive and
 *                                             finite
 *             router_norm_*, gate_norm_*      |R_i| over the n rows, |W_i|_F over the n experts
 *             router_cos                      mean |cos| between two different rows
 *             router_condition                largest over smallest of the min(n,d) singular values
 *                                             of R; infinite if rounding hides the smallest
 *             router_effective_rank           exp of the entropy of the singular values over their
 *                                             sum (Roy, Vetterli 2007); 0 if R is 0
 *             proxy_route_top1, _topk         share of proxies R~_i that the router sends to expert
 *                                             i: first, among K
 *             row_route_top1, _topk           share of rows R_i that the router sends to expert i
 *             kappa_diagonal, _off_diagonal   means of kappa
 *             kappa_row_top1, _column_top1    share whose largest kappa is on the diagonal
 *             router_lambda                   mean of |R_i W_i| / (|R_i| |W_i|_2), 1 where the row
 *                                             is the top right singular vector of its gate; 0 where
 *                                             a norm is 0 (Manifold Power Iteration, arXiv
 *                                             2606.12397)
 *             router_lambda_random            mean of |W_i|_F / (sqrt(d) |W_i|_2), the root mean
 *                                             square of lambda over all directions of the row */
#ifndef CPL_TENSOR_FIGURES_H
#define CPL_TENSOR_FIGURES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cpl_coupling_figures {
#define CPL_FIGURE(name, ...) double name;
#include "tensor/coupling_figures.def"
#undef CPL_FIGURE
} cpl_coupling_figures;

/* A row of coupling_figures.def. */
typedef struct cpl_figure_row {
    const char *name, *old_name; /* equal if the figure was not renamed */
    bool count, needs_M, needs_spectral;
    bool centred; /* also computed for the centred rows, as centred_name */
    const char *centred_name;
    size_t offset; /* bytes from the start of cpl_coupling_figures */
} cpl_figure_row;

#define CPL_FIGURE(...) +1
enum {
    CPL_FIGURES_SCHEMA = 2, /* schema number in files that contain the figures */
    CPL_N_FIGURES      = 0
#include "tensor/coupling_figures.def"
};
#undef CPL_FIGURE

extern const cpl_figure_row cpl_figure_rows[CPL_N_FIGURES];

/* Replaces the figures of `figures` that need M or the gates' largest singular values by those of
 * `read`. With latent experts `figures` are those of the router rows, and `read` those of the rows
 * that the experts read. */
void cpl_figures_take_read(cpl_coupling_figures *figures, const cpl_coupling_figures *read);

/* Returns the key of the figure `name` in files before schema 2, or NULL if it was not renamed. */
const char *cpl_figure_old_name(const char *name);

#endif /* CPL_TENSOR_FIGURES_H */
