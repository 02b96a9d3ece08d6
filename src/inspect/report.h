/* report.h - agreement of router and experts of a checkpoint: figures of every MoE layer,
 * from the weights alone (docs/method.md 5.2).
 *
 * Room:    inspect. The report is shown by the functions of show.h.
 * Names:   R [n,d] router rows as stored: no noise, no bias, no norm folded in; W_g^j [D,l];
 *          M[i,j] = |V_i . W_g^j|, V_i = R_i, or W_l R_i for latent experts; eps, alpha_min, kappa
 *          as in tensor/figures.h and null_model.h.
 * Memory:  for each thread one expert's gate as stored and a few of its rows; a packed router for
 *          each layer in work; M of every layer that is kept. */
#ifndef CPL_INSPECT_REPORT_H
#define CPL_INSPECT_REPORT_H

#include "inspect/families/families.h"
#include "inspect/null_model.h"
#include "inspect/sample.h"
#include "tensor/backend/backend.h"
#include "tensor/figures.h"

typedef struct cpl_inspect_progress cpl_inspect_progress;

typedef struct cpl_inspect_options {
    double alphas[CPL_NULL_MODEL_MAX_ALPHAS]; /* alphas of ERC, rising */
    int n_alphas;
    const int64_t *layers; /* (n_layers) numbers of the layers to measure; NULL: all */
    int64_t n_layers;
    double sample;            /* share of the rows of every gate to read; 0: all of them */
    bool silhouette;          /* measure the silhouettes too, for which gates are read twice */
    bool lambda;              /* measure the spectral norms of the gates too, and lambda */
    bool text;                /* the verdict does not name --text, since its report stands beside */
    bool noisy;               /* M is computed from R * delta as in training, not from R */
    uint64_t noise_seed;      /* seed of delta, at step 0 */
    int n_threads;            /* at least 1 */
    double memory_bytes;      /* limit; INFINITY: the machine's memory */
    const cpl_origin *origin; /* place of the checkpoint, which outlives the report; NULL: files */
    bool keep_going;          /* a layer that cannot be read is left out with its sentence */
    bool rows;                /* write rows of gates of the middle layer that is measured */
    uint64_t seed;            /* seed of the random pairings and of the sample */

    /* May be NULL. It is called after each expert, by one thread at a time. */
    void (*progress)(void *ctx, const cpl_inspect_progress *progress);
    void *ctx;
} cpl_inspect_options;

struct cpl_inspect_progress {
    const char *path;             /* path of the checkpoint */
    int64_t layer;                /* number of the layer */
    double bytes_read, bytes;     /* bytes read so far; bytes to read in all */
    double seconds, seconds_left; /* time since the beginning; time left, NaN while unknown */
};

/* Holds figures of the clean centred rows R_i - 1/n sum_j R_j in place of R_i. Adding one vector to
 * all rows of R, which softmax routing ignores, does not change these figures. */
typedef struct cpl_centred_report {
    bool has_M;    /* false with --noise and where M is missing: figures that need M are not set */
    bool has_rows; /* the figures that need the rows alone are set, of a sample too */
    double erc[CPL_NULL_MODEL_MAX_ALPHAS];
    cpl_coupling_figures figures; /* at alpha 1 */
    cpl_null_model_ratios ratios;
    cpl_null_model chance;
} cpl_centred_report;

/* Holds means from the rows that were read, with o.sample. A layer of which only some rows were
 * read has no further figure that needs M or the norms of the gates. */
typedef struct cpl_sample_report {
    cpl_row_plan plan;
    bool has_M, has_centred; /* without has_M the gate norm alone is an estimate; has_centred is
                                false with --noise too */
    int64_t rows;            /* rows read of each gate, at most */
    cpl_estimate stored[CPL_SAMPLE_FIGURES], centred[CPL_SAMPLE_FIGURES];
} cpl_sample_report;

/* Holds the figures of a layer. */
typedef struct cpl_layer_report {
    const cpl_moe_layer *at; /* its n, d, D, K, part, number, notes */
    char *fault;             /* reason why the figures are missing, or NULL; owned */
    bool skipped;            /* the file is sound, but a layer of this kind cannot be measured */
    bool has_M;              /* false after a fault, if router and experts read different
                                vectors, or if only some rows were read */

    float *M;            /* [n,n]; NULL without has_M */
    float *eps;          /* [n] */
    double *router_norm; /* [n] |R_i| */
    double *input_norm;  /* [n] |V_i|, norms of the rows that the gates read: R_i, or W_l R_i */
    double *gate_norm;   /* [n] |W_g^j|_F; NaN where the gates are sampled */
    float *cosine;     /* [n (n-1) / 2] cosines of router rows i > j, row by row; 0 of a zero row */
    int32_t *assigned; /* [n] the expert that the best assignment on kappa gives to row i */
    double *silhouettes; /* [n] means over the rows of W_g^j as members of the cluster j, distance
                            1 - cosine; NaN if n = 1, 0 if D = 1; NULL without o.silhouette */
    cpl_sample_report *sample; /* NULL without o.sample; owned */
    double silhouette;         /* mean over all rows; NaN without o.silhouette */
    double erc[CPL_NULL_MODEL_MAX_ALPHAS];
    cpl_coupling_figures figures; /* at alpha 1; active_rows and active_columns too */
    cpl_null_model_ratios ratios;
    cpl_null_model chance;
    cpl_centred_report centred;
} cpl_layer_report;

enum { CPL_MOST_ROWS = 4096, CPL_ROWS_HEAD = 256 };

/* Holds rows of some experts' gates, as a file of numpy: docs/formats.md, "Rows of gates". */
typedef struct cpl_inspect_rows {
    int64_t index;  /* index of the layer in the report */
    int64_t stride; /* experts i with i mod stride = 0 are taken, at most 8 */
    int64_t every;  /* distance between the rows taken of a gate; 1: all rows */
    int64_t count;  /* rows of all experts; 0: not requested */
    char *file;     /* (bytes) owned; NULL: not read */
    size_t bytes;
} cpl_inspect_rows;

typedef struct cpl_coupling_report {
    char *path; /* as the user gave it; owned */
    char *name; /* the name in charts, the last component of the path; owned */
    cpl_stored_files *files;
    cpl_moe_map map;
    cpl_inspect_options options;  /* as they were used */
    cpl_layer_report *layers;     /* (n_layers) chosen layers, in the order of the map */
    int64_t n_layers, n_measured; /* n_measured have figures */
    cpl_inspect_rows rows;
    double table_bytes; /* bytes of names, shapes and layers, held while the report is open */
    double bytes_read, flops, seconds;
} cpl_coupling_report;

/* Holds the cost of an inspection, known before anything is read. */
typedef struct cpl_inspect_cost {
    double bytes;        /* bytes of routers and gates of the chosen layers; gates twice for the
                             silhouettes, most of it then out of the system's cache */
    double whole_bytes;  /* bytes to read without o.sample */
    double flops;        /* 2 n^2 D l a layer, more with silhouettes; without the spectral norms */
    double memory_bytes; /* upper bound, beyond the process's memory; without o.rows */
    double rows_bytes;   /* memory of o.rows; 0 without o.rows */
    double seconds;      /* at the speed of this machine, measured by a short product and a short
                            read of the files themselves; spectral norms included. From
                            another origin: without the reading */
    double files_bytes;  /* bytes of all files of the checkpoint */
    double shared_bytes; /* part of `bytes`: matrices that share tensors with gates and are read
                            with them; from another origin only */
    cpl_origin_plan reading; /* the requests to the origin */
    int n_threads;           /* fewer than requested if memory_bytes allows no more */
} cpl_inspect_cost;

/* Opens the checkpoint, finds its layers and estimates the cost. Fails with CPL_ERR_INPUT if there
 * are no MoE layers, if a requested layer does not exist, if a layer has a fault, without
 * keep_going, or if rows of gates to be sampled are not contiguous. Fails with CPL_ERR_MEMORY if
 * the memory of one thread is not available. On failure `report` is empty. */
CPL_NODISCARD cpl_status cpl_inspect_open(cpl_coupling_report *report, cpl_inspect_cost *cost,
                                          const char *path, const cpl_inspect_options *options,
                                          const cpl_log *log);

/* Fills the figures. Without keep_going the run ends at the first layer that cannot be read. */
CPL_NODISCARD cpl_status cpl_inspect_run(cpl_coupling_report *report);
void cpl_inspect_close(cpl_coupling_report *report); /* `report` may be all zero */

#endif /* CPL_INSPECT_REPORT_H */
