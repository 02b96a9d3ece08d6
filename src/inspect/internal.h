/* internal.h - shared by report.c, measure.c, latent.c, sample.c, silhouette.c, rows.c, worker.c.
 *
 * Room:  inspect, inside these seven files alone. */
#ifndef CPL_INSPECT_INTERNAL_H
#define CPL_INSPECT_INTERNAL_H

#include "inspect/gate_reader.h"
#include "inspect/report.h"

/* ---- worker.c ---- */

/* Holds the memory of one thread. */
typedef struct cpl_inspect_worker {
    cpl_gate gate;
    float *rows;     /* [cpl_inspect_worker_rows, l] */
    float *wide;     /* [cpl_inspect_worker_rows, d]; NULL without silhouettes of latent experts */
    double *squares; /* [2,n] sums of squares, for rows and centred rows */
    double *sum;     /* [d] sum of unit rows; NULL without silhouettes */
    float *whole;    /* [D,l] a gate; NULL without o.lambda */
    float *products; /* [cpl_inspect_worker_rows, n]; NULL without silhouettes */
    void *scratch;   /* for one operation of cpl_host_ops at a time */
} cpl_inspect_worker;

/* Holds the bytes of every piece, the largest over the layers. The pieces router, packed, latent,
 * centred and sums belong to a layer in work, the others to a thread. */
typedef struct cpl_inspect_worker_needs {
    size_t gate, rows, wide, whole, squares, sum, products, scratch, router, packed, latent,
        centred, sums;
} cpl_inspect_worker_needs;

cpl_inspect_worker_needs cpl_inspect_worker_needs_of(const cpl_coupling_report *report);
CPL_NODISCARD cpl_status cpl_inspect_worker_init(cpl_inspect_worker *worker,
                                                 const cpl_inspect_worker_needs *needs);
void cpl_inspect_worker_free(cpl_inspect_worker *worker);

/* Returns memory that cpl_free frees, or NULL for 0 bytes. Without memory sets *failed. */
void *cpl_inspect_piece(bool *failed, size_t bytes);

/* Returns the number of rows of a gate that are multiplied at a time. */
int64_t cpl_inspect_worker_rows(const cpl_moe_layer *at);

/* Fails with CPL_ERR_INPUT and a sentence: a product of finite numbers is not finite. */
CPL_NODISCARD cpl_status cpl_inspect_too_large(const cpl_moe_layer *at, int64_t row,
                                               const char *with, int64_t number);

/* Returns whether the gates of the layer are read a second time, for the silhouettes. */
bool cpl_inspect_reads_twice(const cpl_coupling_report *report, const cpl_moe_layer *at);

/* Return the bytes that are read of a layer's router and gates, and the FLOPs of their products,
 * silhouettes included. */
double cpl_coupling_read_bytes(const cpl_coupling_report *report, const cpl_layer_report *layer);
double cpl_coupling_flops(const cpl_coupling_report *report, const cpl_layer_report *layer);

/* Returns the memory of n_threads threads while they work, in bytes. */
double cpl_coupling_work_bytes(const cpl_coupling_report *report, int n_threads);

/* Sets cost->seconds from a short product and, for local files, a short read. */
CPL_NODISCARD cpl_status cpl_inspect_cost_of(cpl_inspect_cost *cost,
                                             const cpl_coupling_report *report);

/* ---- latent.c: the rows that latent experts read ---- */

/* Holds the rows V_i = W_l R_i [n,l] of a layer, or V_i = g v / sqrt(mean(v^2) + eps) with
 * v = W_l R_i if a norm follows the projection (docs/formats.md). All zero means no latent
 * experts: they read the router rows themselves. */
typedef struct cpl_latent {
    float *W;         /* [l,d] W_l */
    float *g;         /* [l]; NULL without a norm */
    double eps;       /* added by the norm */
    float *V;         /* [n,l] */
    float *centred_V; /* [n,l] the same of the centred rows of R; NULL without a norm: centre V */
    void *centred;    /* centred_V, packed; NULL with centred_V */
} cpl_latent;

/* Reads the projection and sets V from R [n,d], and with `centred` centred_V. The layer must have
 * latent experts. On failure cpl_latent_close frees what there is. */
CPL_NODISCARD cpl_status cpl_latent_open(cpl_latent *latent, const cpl_moe_layer *at, cpl_matrix R,
                                         bool centred);
void cpl_latent_close(cpl_latent *latent);

/* Sets V [n,l] from rows X [n,d]. */
CPL_NODISCARD cpl_status cpl_latent_rows(cpl_matrix V, const cpl_latent *latent, cpl_matrix X);

/* Puts rows W [rows,l] of a gate in front of the projection: *W becomes W diag(g) W_l, whose memory
 * is wide [rows,d]. Without latent experts the call has no effect. */
CPL_NODISCARD cpl_status cpl_latent_as_router(cpl_matrix *W, float *wide, const cpl_latent *latent,
                                              int64_t d);

/* ---- sample.c: with o.sample a part of the rows of every gate ---- */

/* Sets the plan of every layer, and refuses layers whose gates have no contiguous rows. Without
 * o.sample the call has no effect. */
CPL_NODISCARD cpl_status cpl_sample_open(cpl_coupling_report *report);

/* Returns whether only some rows of the gates of the layer are read. */
bool cpl_sample_applies(const cpl_layer_report *layer);

/* Return the bytes that are read of a sampled layer, and the bytes of its sums. */
double cpl_sample_bytes(const cpl_coupling_report *report, const cpl_layer_report *layer);
size_t cpl_sample_memory(const cpl_coupling_report *report, const cpl_layer_report *layer);

/* Returns the first row of the k-th block, 0 <= k < n_read, that is read from the gate of expert j,
 * and sets its number of rows. */
int64_t cpl_sample_block(const cpl_coupling_report *report, const cpl_layer_report *layer,
                         int64_t j, int64_t k, int64_t *rows);

/* Holds the sums of one layer, for the router rows and, unless M is noisy, for the centred rows.
 * All zero means no sums. */
typedef struct cpl_sample_sums {
    cpl_row_sums raw, centred; /* both share the norms; centred.squares is NULL if M is noisy */
} cpl_sample_sums;

CPL_NODISCARD cpl_status cpl_sample_sums_init(cpl_sample_sums *sums,
                                              const cpl_coupling_report *report,
                                              const cpl_layer_report *layer);
void cpl_sample_sums_free(cpl_sample_sums *sums);

/* Sets the estimates of layer->sample from the sums, and the layer's norms of gates to NaN.
 * centred_norm [n] has the norms of the centred rows, and is NULL with noise. */
void cpl_sample_report_estimate(cpl_layer_report *layer, const cpl_sample_sums *sums,
                                const double *centred_norm);
/* Sets the estimates of layer->sample to the layer's own figures, after all rows were read. */
void cpl_sample_report_copy(cpl_layer_report *layer);

/* ---- silhouette.c: gates are read again when the means of all experts are known ---- */

/* The experts of a layer are clusters of the rows of their W_g, or of W_g W_l, with the distance
 * 1 - cosine. The mean cosine of a unit row u to all rows of expert c is u . m_c, with m_c the mean
 * of the unit rows of c. So n products a row are enough. */

/* Divides every row of x [rows,d] by its length, in double. A zero row stays zero. A NaN or an
 * infinity makes NaN in its row. */
void cpl_silhouette_unit_rows(cpl_matrix x);

/* Adds to *sum the silhouettes (b - a) / max(a, b) of the rows of U [rows,d], which are some of the
 * D rows of expert `own`, of unit length. a is the mean distance to the D - 1 other rows of the
 * expert, b the least mean distance to the D rows of another expert. `means` [n,d] are the means of
 * all experts' unit rows, n >= 2. `products` is memory for rows * n numbers.
 *
 * A zero row has distance 1 to every row, so its silhouette is 0. The silhouette is also 0 if D =
 * 1, and if a and b are no more than the rounding of the products, 4 eps sqrt(d). A NaN in U or a
 * mean reaches *sum. CPL_ERR_MEMORY, or CPL_ERR_DEVICE if a product failed. */
CPL_NODISCARD cpl_status cpl_silhouette_add(double *sum, float *products, cpl_matrix means,
                                            int64_t own, int64_t D, cpl_matrix U);

/* Adds rows of a gate, in front of the projection, to worker->sum. The rows are changed. */
CPL_NODISCARD cpl_status cpl_silhouette_add_mean(cpl_inspect_worker *worker,
                                                 const cpl_latent *latent, int64_t d, cpl_matrix W);
/* Sets mean [d] from worker->sum over D rows. */
void cpl_silhouette_mean(float *mean, const cpl_inspect_worker *worker, const cpl_moe_layer *at);
/* Sets l->silhouettes[j] from its gate, which it reads, and the means [n,d] of all experts. */
CPL_NODISCARD cpl_status cpl_silhouette_expert(cpl_layer_report *l, cpl_inspect_worker *worker,
                                               const cpl_latent *latent, cpl_matrix means,
                                               int64_t j);
/* Sets l->silhouette, and all of l->silhouettes if they need no reading. */
void cpl_silhouette_finish(cpl_layer_report *l);

/* ---- rows.c: with o.rows ---- */

/* Chooses layer, experts and rows. */
void cpl_inspect_rows_choose(cpl_coupling_report *report);

/* Returns the bytes of memory that reading the rows takes, the file included. */
double cpl_inspect_rows_bytes(const cpl_coupling_report *report);

/* Adds the places of the files that cpl_inspect_rows_read reads. Without o.rows it adds no
 * place. */
CPL_NODISCARD cpl_status cpl_inspect_rows_pieces(cpl_source_pieces *pieces,
                                                 const cpl_coupling_report *report);

/* Sets rows.file, or leaves it NULL if the layer of these rows has a fault by now. */
CPL_NODISCARD cpl_status cpl_inspect_rows_read(cpl_coupling_report *report);

#endif /* CPL_INSPECT_INTERNAL_H */
