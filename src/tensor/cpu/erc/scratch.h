/* scratch.h - the scratch of the coupling loss, and the functions that its files share.
 *
 * Room:    tensor/cpu/erc. erc.c prepares the proxies, expert.c is forward and backward of one
 *          expert and all proxies, sweep.c iterates over the experts. The same loss in plain loops,
 *          to be read first: model/erc/reference.c.
 * Names:   m = i1 - i0 rows of this part; d_pad, D_pad: d and D rounded up to VECTOR, m_pad
 *          likewise. "Panels" as in panel.h. */
#ifndef CPL_TENSOR_CPU_ERC_SCRATCH_H
#define CPL_TENSOR_CPU_ERC_SCRATCH_H

#include "base/arena.h"
#include "tensor/cpu/panel.h"
#include "tensor/host_ops.h"

/* Rows of an expert's matrix that are processed at a time, and columns in a backward pass: a packed
 * block of BLOCK x PANEL numbers stays in the first cache, BLOCK x STRIP numbers in the second. */
enum { PROXY_BLOCK = 96, PROXY_STRIP = 256 };

/* A set of proxies in the two layouts of the products. For a single proxy both layouts are the row
 * itself and pad is 1. */
typedef struct cpl_proxies {
    int64_t count, pad;         /* pad: count rounded up to VECTOR */
    float *deep;                /* panels [d, pad]: a proxy is a column */
    float *wide;                /* panels [count, d_pad]: a proxy is a row */
    cpl_panel_pair *deep_pairs; /* deep as pairs of bf16, panels [d/2, pad]; used if `pairs` */
} cpl_proxies;

/* The activations of one expert for some proxies: panels [D, pad] ([d, pad] for o), NULL if the
 * activation does not need them. z = R~ W_g, u = R~ W_p, h = SiLU(z) (u), o = h W_o. */
typedef struct cpl_erc_acts {
    float *z, *u, *h, *o;
    double *squares; /* [pad] M^2, the squared norm of the activation's last stage */
} cpl_erc_acts;

/* The memory of one thread. k is the number of active rows of the current column: rows with a
 * nonzero gradient G[i,j] = dL / dM[i,j]. Names correspond to the reference: dz is grad_z there,
 * and so on. */
typedef struct cpl_erc_thread {
    /* activations of the current expert */
    cpl_erc_acts acts;        /* for all proxies of the part */
    cpl_erc_acts single_acts; /* for one proxy */
    /* the active rows, in increasing order */
    int32_t *active; /* [m] indices among the proxies multiplied */
    int32_t *row;    /* [m] indices among the rows of R */
    double *grad_M;  /* [m] G[i,j] */
    float *scale;    /* [m] G[i,j] / M[i,j] */
    /* gradients of the activations, for the active rows only */
    float *dz, *du, *dout; /* [D,k], [D,k], [d,k] */
    float *dh;             /* [k,D_pad] */
    float *drows;          /* [k,d_pad] gradient of the active proxies */
    /* operands of products */
    float *wide, *h_wide; /* panels [k,d_pad], [k,D_pad]: the active proxies, and h of them */
    float *deep;          /* panels [d,k]: the active proxies */
    float *block;         /* [PROXY_BLOCK, max(d,D)] rows of a matrix as F32 operands */
    float *pack;          /* panels [PROXY_BLOCK, PROXY_STRIP] of a matrix */
    /* operands as pairs of bf16, if the workspace has `pairs`; see product.c */
    cpl_panel_pair *deep_pairs;  /* panels [d/2,k] */
    cpl_panel_pair *wide_pairs;  /* panels [k/2,d_pad] */
    cpl_panel_pair *x_pairs;     /* [D/2,k] */
    uint16_t *x_bf16;            /* [D,k] */
    cpl_panel_pair *block_pairs; /* [PROXY_BLOCK, max(d,D)/2] */
    cpl_panel_pair *pack_pairs;  /* [PROXY_BLOCK/2, PANEL] */
    /* sums over the experts of this thread, joined at the end */
    float *dproxy;      /* [n,d_pad] gradient of the proxies */
    int32_t *row_count; /* [n] active hinges of each row */
} cpl_erc_thread;

/* All scratch of a job. Every phase lays it out anew. */
typedef struct cpl_erc_workspace {
    const cpl_erc_host_job *job;
    int64_t m, d_pad, D_pad;
    int n_threads;
    bool rounded;  /* operands of products are rounded to bf16 */
    bool backward; /* a gradient is requested */
    bool pairs;    /* gate and up are multiplied as pairs of bf16; d and D are even */
    /* the proxies */
    float *rows;         /* [n,d_pad] all proxies */
    uint16_t *rows_bf16; /* [n,d_pad] all proxies as bf16; used if `pairs` */
    cpl_proxies part;    /* rows i0 ... i1-1 */
    /* by column */
    float *column;  /* [j1-j0, m] M by columns */
    double *losses; /* [j1-j0] */
    /* the diagonal */
    cpl_erc_acts *diag_acts;    /* [j1-j0] activations of expert j for its own proxy, for phase 3 */
    int32_t *diag_hinges_added; /* [j1-j0] active hinges against M[j,j] that phase 2 has added */
    bool diag_in_sweep;         /* phase 2 computes the diagonals itself */
    bool *deferred;             /* [j1-j0] column j is compared after all diagonals are known */
    cpl_erc_thread *thread;     /* [n_threads] */
    size_t bytes;
} cpl_erc_workspace;

/* Lays out the scratch. With job->scratch NULL it only counts the bytes. */
#define cpl_erc_workspace_of CPL_ISA_NAME(cpl_cpu_erc_workspace_of)
cpl_erc_workspace cpl_erc_workspace_of(const cpl_erc_host_job *job);

/* Fills `rows` and `part`. */
#define cpl_erc_prepare CPL_ISA_NAME(cpl_cpu_erc_prepare)
void cpl_erc_prepare(const cpl_erc_workspace *s);

/* Returns proxy i as a set of one proxy. */
#define cpl_erc_single CPL_ISA_NAME(cpl_cpu_erc_single)
cpl_proxies cpl_erc_single(const cpl_erc_workspace *s, int64_t i);

/* Copies the first `count` proxies of t->active to t's memory. t->active becomes 0 ... count-1. */
#define cpl_erc_chosen CPL_ISA_NAME(cpl_cpu_erc_chosen)
cpl_proxies cpl_erc_chosen(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t count);

/* Computes the activations of expert j for the proxies `p`, and the squares of their norms. */
#define cpl_erc_forward CPL_ISA_NAME(cpl_cpu_erc_forward)
void cpl_erc_forward(const cpl_erc_workspace *s, const cpl_erc_acts *acts, cpl_erc_thread *t,
                     const cpl_proxies *p, int64_t j);

/* Copies column i of acts (panels of `pad` columns) to `one`. */
#define cpl_erc_copy_column CPL_ISA_NAME(cpl_cpu_erc_copy_column)
void cpl_erc_copy_column(const cpl_erc_workspace *s, const cpl_erc_acts *one,
                         const cpl_erc_acts *acts, int64_t pad, int64_t i);

/* Runs backward after forward with the same acts, p and j: adds the gradient of sum over a < count
 * of t->grad_M[a] |activation of proxy t->active[a] of p| to expert j's gradients, and sets
 * t->drows. */
#define cpl_erc_backward CPL_ISA_NAME(cpl_cpu_erc_backward)
void cpl_erc_backward(const cpl_erc_workspace *s, const cpl_erc_acts *acts, cpl_erc_thread *t,
                      const cpl_proxies *p, int64_t j, int64_t count);

/* ---- products of an expert's matrix with proxies (product.c), in F32, or in bf16 if the processor
 * has an instruction for it ---- */

/* One matrix of one expert, and its gradient. */
typedef struct cpl_erc_matrix {
    const char *at;
    float *grad; /* NULL if not requested */
    int64_t rows, cols, stride, grad_stride;
    bool direct; /* operands are F32 numbers as stored */
    bool bf16, rounded;
} cpl_erc_matrix;

#define cpl_erc_matrix_of CPL_ISA_NAME(cpl_cpu_erc_matrix_of)
cpl_erc_matrix cpl_erc_matrix_of(const cpl_erc_workspace *s, cpl_erc_weights w, cpl_erc_grads dw,
                                 int64_t j, int64_t rows, int64_t cols);

/* Rounds x [count] to bf16, in place. */
#define cpl_erc_round CPL_ISA_NAME(cpl_cpu_erc_round)
void cpl_erc_round(float *x, int64_t count);

/* Sets out, panels [rows, pad], to a [rows, cols] . in, panels [cols, pad]. With pad 1 they are
 * plain vectors. If in is NULL, in_pairs, panels [cols / 2, pad] of pairs, replaces it, and rows
 * and cols must be even. */
#define cpl_erc_multiply CPL_ISA_NAME(cpl_cpu_erc_multiply)
void cpl_erc_multiply(float *out, const cpl_erc_matrix *a, const float *in,
                      const cpl_panel_pair *in_pairs, int64_t pad, const cpl_erc_thread *t);

/* Runs backward of a product a . in with its gradient x [rows, count] (in as panels `wide` [count,
 * cols_pad]):
 *     a's gradient += x in,    drows [count, cols_pad] = or += x^T a
 * If wide is NULL, t->wide_pairs replaces it and x must be rounded. */
#define cpl_erc_product_backward CPL_ISA_NAME(cpl_cpu_erc_product_backward)
void cpl_erc_product_backward(const cpl_erc_matrix *a, const float *x, const float *wide,
                              float *drows, int64_t count, bool add, const cpl_erc_thread *t);

/* Sets t->wide_pairs to the proxies with indices t->row [count]. */
#define cpl_erc_pairs_rows CPL_ISA_NAME(cpl_cpu_erc_pairs_rows)
void cpl_erc_pairs_rows(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t count);

#endif /* CPL_TENSOR_CPU_ERC_SCRATCH_H */
