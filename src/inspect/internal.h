/* internal.h - what report.c, measure.c, silhouette.c, tsne_plot.c and worker.c share.
 *
 * Room:  inspect, inside those five only. */
#ifndef CPL_INSPECT_INTERNAL_H
#define CPL_INSPECT_INTERNAL_H

#include "inspect/families/gate_reader.h"
#include "inspect/report.h"

/* ---- worker.c ---- */

/* One thread's own. */
typedef struct cpl_inspect_worker {
    cpl_backend be; /* of one thread */
    cpl_gate gate;
    float *rows;     /* [cpl_inspect_worker_rows, d] */
    double *squares; /* [2,n] of the rows, of the centred rows */
    double *sum;     /* [d] of unit rows; NULL if there are no silhouettes */
    float *whole;    /* [D,d] a gate; NULL without o.lambda */
    float *products; /* [cpl_inspect_worker_rows, n]; NULL if there are no silhouettes */
    void *scratch;
} cpl_inspect_worker;

/* Bytes of every piece, the largest over the layers; router and packed are a layer's in work. */
typedef struct cpl_inspect_worker_needs {
    size_t gate, rows, whole, squares, sum, products, scratch, figures, router, packed, centred;
} cpl_inspect_worker_needs;

cpl_inspect_worker_needs cpl_inspect_worker_needs_of(const cpl_coupling_report *report);
CPL_NODISCARD cpl_status cpl_inspect_worker_init(cpl_inspect_worker *worker,
                                                 const cpl_inspect_worker_needs *needs);
void cpl_inspect_worker_free(cpl_inspect_worker *worker);

/* Rows of a gate that are multiplied at a time. */
int64_t cpl_inspect_worker_rows(const cpl_backend *be, const cpl_moe_layer *at);

/* Whether the gates of the layer are read a second time, for the silhouettes. */
bool cpl_inspect_reads_twice(const cpl_coupling_report *report, const cpl_moe_layer *at);

/* Of a layer: what its gates take to read, and the FLOPs of their products, silhouettes
 * included. */
double cpl_coupling_read_bytes(const cpl_coupling_report *report, const cpl_moe_layer *at);
double cpl_coupling_flops(const cpl_coupling_report *report, const cpl_moe_layer *at);

/* What n_threads threads take while they work, in bytes. */
double cpl_coupling_work_bytes(const cpl_coupling_report *report, int n_threads);

/* Sets cost->seconds from a short product and a short read. */
CPL_NODISCARD cpl_status cpl_inspect_cost_of(cpl_inspect_cost *cost,
                                             const cpl_coupling_report *report);

/* ---- silhouette.c: gates are read again when the means of all experts are known ---- */

/* Adds rows of a gate to worker->sum; they become unit rows. */
void cpl_silhouette_add_mean(cpl_inspect_worker *worker, cpl_tensor W);
/* Sets mean [d] from worker->sum over D rows. */
void cpl_silhouette_mean(float *mean, const cpl_inspect_worker *worker, const cpl_moe_layer *at);
/* Sets l->silhouettes[j] from its gate, which it reads, and the means [n,d] of all experts. */
CPL_NODISCARD cpl_status cpl_silhouette_expert(cpl_layer_report *l, cpl_inspect_worker *worker,
                                               cpl_tensor means, int64_t j);
/* Sets l->silhouette, and all of l->silhouettes if they need no reading. */
void cpl_silhouette_finish(cpl_layer_report *l);

/* ---- tsne_plot.c ---- */

/* Chooses layer, experts and rows; no points if no layer fits. A requested layer that has no
 * figures is an error. */
CPL_NODISCARD cpl_status cpl_tsne_plot_choose(cpl_coupling_report *report);
double cpl_tsne_plot_bytes(const cpl_coupling_report *report);
/* An estimate from the time that a thread takes for a pair of points. */
double cpl_tsne_plot_seconds(const cpl_coupling_report *report, int n_threads);

/* Reads the rows and embeds them. A failure is the picture's `fault`, unless memory was short. */
CPL_NODISCARD cpl_status cpl_tsne_plot_make(cpl_coupling_report *report, double began);

#endif /* CPL_INSPECT_INTERNAL_H */
