/* scratch.h - the scratch of the coupling loss and what its files share.
 *
 * Room:    tensor/cpu/erc. erc.c prepares proxies, expert.c multiplies them with one expert,
 *          sweep.c goes over the experts.
 * Names:   m = i1 - i0 rows of this part; d_pad, D_pad: d and D rounded up to VECTOR, m_pad
 *          likewise. "Panels" as in panel.h. */
#ifndef CPL_TENSOR_CPU_ERC_SCRATCH_H
#define CPL_TENSOR_CPU_ERC_SCRATCH_H

#include "base/arena.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/panel.h"

/* Rows of an expert's matrix that are worked on at a time, and columns in a backward pass: a packed
 * block of BLOCK x PANEL numbers stays in the first cache, one of BLOCK x STRIP in the second. */
enum { PROXY_BLOCK = 96, PROXY_STRIP = 256 };

/* Some of the proxies, as the two kinds of products want them. Of a single proxy both are the row
 * itself, and pad is 1. */
typedef struct cpl_proxies {
    int64_t count, pad;         /* pad: count rounded up to VECTOR */
    float *deep;                /* panels [d, pad]: a proxy is a column */
    float *wide;                /* panels [count, d_pad]: a proxy is a row */
    cpl_panel_pair *deep_pairs; /* deep as pairs of bf16, panels [d/2, pad]; where `pairs` */
} cpl_proxies;

/* What one expert makes of some proxies: panels [D, pad] ([d, pad] for o), NULL where the
 * activation does not need them; z = R~ W_g, u = R~ W_p, h = what becomes of them, o = h W_o. */
typedef struct cpl_proxy_acts {
    float *z, *u, *h, *o;
    double *squares; /* [pad] M^2: of the norm of the activation's last stage */
} cpl_proxy_acts;

/* One thread's own; k are the active rows of one column. */
typedef struct cpl_erc_thread {
    cpl_proxy_acts acts;   /* of the proxies of a part */
    cpl_proxy_acts one;    /* of a single proxy */
    double *dM;            /* [m] G[i,j] of one column, of the active rows */
    float *scale;          /* [m] G[i,j] / M[i,j] */
    int32_t *active;       /* [m] which proxies of the part these are, rising */
    int32_t *row;          /* [m] which rows of R */
    float *dz, *du, *dout; /* [D,k], [D,k], [d,k] */
    float *dh;             /* [k,D_pad] */
    float *wide, *h_wide;  /* panels [k,d_pad], [k,D_pad]: the active proxies; their h */
    float *deep;           /* panels [d,k]: the active proxies */
    float *drows;          /* [k,d_pad] gradient of the active proxies */
    float *block;          /* [PROXY_BLOCK, max(d,D)] an expert's rows as F32 operands */
    float *pack;           /* panels [PROXY_BLOCK, PROXY_STRIP] */
    float *dproxy;         /* [n,d_pad] sum over this thread's experts */
    int32_t *row_count;    /* [n] */
    /* where `pairs`, see pairs.c */
    cpl_panel_pair *deep_pairs;  /* panels [d/2,k] */
    cpl_panel_pair *wide_pairs;  /* panels [k/2,d_pad] */
    cpl_panel_pair *x_pairs;     /* [D/2,k] */
    uint16_t *x_low;             /* [D,k] */
    cpl_panel_pair *block_pairs; /* [PROXY_BLOCK, max(d,D)/2] */
    cpl_panel_pair *pack_pairs;  /* [PROXY_BLOCK/2, PANEL] */
} cpl_erc_thread;

typedef struct cpl_erc_workspace {
    const cpl_proxy_job *job;
    int64_t m, d_pad, D_pad;
    bool rounded;       /* operands of products are rounded to bf16 */
    bool backward;      /* some gradient is wanted */
    bool pairs;         /* gate and up are multiplied as pairs of bf16; d and D are even */
    uint16_t *rows_low; /* [n,d_pad] all proxies as bf16; where `pairs` */
    int n_threads;
    float *rows;      /* [n,d_pad] all proxies */
    cpl_proxies part; /* rows i0 ... i1-1 */
    float *column;    /* [j1-j0, m] M by columns */
    double *losses;   /* [j1-j0] */
    int32_t
        *diag_hinges_added; /* [j1-j0] hinges against M[j,j] whose pull phase 2 has added already */
    cpl_proxy_acts *own;    /* [j1-j0] what expert j makes of its own proxy, kept for phase 3 */
    bool diag_on_the_way;   /* diagonals become known on the way */
    bool *deferred;         /* [j1-j0] column j's hinges wait until all of them are */
    cpl_erc_thread *thread; /* [n_threads] */
    size_t bytes;
} cpl_erc_workspace;

/* Lays the scratch out; with job->scratch NULL only counts its bytes. */
#define cpl_erc_workspace_of CPL_ISA_NAME(cpl_cpu_erc_workspace_of)
cpl_erc_workspace cpl_erc_workspace_of(const cpl_backend *be, const cpl_proxy_job *job);

/* Fills `rows` and `part`. */
#define cpl_proxy_prepare CPL_ISA_NAME(cpl_cpu_proxy_prepare)
void cpl_proxy_prepare(const cpl_erc_workspace *s);

/* Proxy i by itself. */
#define cpl_proxy_single CPL_ISA_NAME(cpl_cpu_proxy_single)
cpl_proxies cpl_proxy_single(const cpl_erc_workspace *s, int64_t i);

/* The first `count` of t->active, in t's memory; t->active becomes 0 ... count-1. */
#define cpl_proxy_chosen CPL_ISA_NAME(cpl_cpu_proxy_chosen)
cpl_proxies cpl_proxy_chosen(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t count);

/* The activations of expert j for `p` and the squares of their norms. */
#define cpl_proxy_forward CPL_ISA_NAME(cpl_cpu_proxy_forward)
void cpl_proxy_forward(const cpl_erc_workspace *s, const cpl_proxy_acts *acts, cpl_erc_thread *t,
                       const cpl_proxies *p, int64_t j);

/* one = column i of acts (panels of `pad` columns). */
#define cpl_proxy_keep CPL_ISA_NAME(cpl_cpu_proxy_keep)
void cpl_proxy_keep(const cpl_erc_workspace *s, const cpl_proxy_acts *one,
                    const cpl_proxy_acts *acts, int64_t pad, int64_t i);

/* After forward with the same acts, p and j: adds the gradient of sum over a < count of
 * t->pull[a] |activation of proxy t->active[a] of p| to expert j's gradients, and sets t->drows. */
#define cpl_proxy_backward CPL_ISA_NAME(cpl_cpu_proxy_backward)
void cpl_proxy_backward(const cpl_erc_workspace *s, const cpl_proxy_acts *acts, cpl_erc_thread *t,
                        const cpl_proxies *p, int64_t j, int64_t count);

/* The phases, see tensor/proxy.h. */
void CPL_ISA_NAME(cpl_cpu_proxy_diagonals)(cpl_backend *be, cpl_proxy_job *job);
void CPL_ISA_NAME(cpl_cpu_proxy_sweep)(cpl_backend *be, cpl_proxy_job *job);
void CPL_ISA_NAME(cpl_cpu_proxy_add_diagonal)(cpl_backend *be, cpl_proxy_job *job);
void CPL_ISA_NAME(cpl_cpu_proxy_run_local)(cpl_backend *be, cpl_proxy_job *job);

/* What an activation needs. */
static inline bool cpl_proxy_has_gate(cpl_erc_activation a)
{
    return a != CPL_ERC_UP;
}
static inline bool cpl_proxy_has_up(cpl_erc_activation a)
{
    return a == CPL_ERC_UP || a >= CPL_ERC_SWIGLU;
}
static inline bool cpl_proxy_has_hidden(cpl_erc_activation a)
{
    return a >= CPL_ERC_SILU;
}

#endif /* CPL_TENSOR_CPU_ERC_SCRATCH_H */
