/* proxy_space.h - the scratch of the coupling loss and what its files share.
 *
 * Room:    tensor/cpu. proxy.c prepares proxies, proxy_column.c multiplies them with one expert,
 *          proxy_phases.c goes over the experts.
 * Names:   m = i1 - i0 rows of this part; d_pad, D_pad: d and D rounded up to VECTOR, m_pad
 *          likewise. "Panels" as in panel.h. */
#ifndef CPL_TENSOR_CPU_PROXY_SPACE_H
#define CPL_TENSOR_CPU_PROXY_SPACE_H

#include "base/arena.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/panel.h"

/* Rows of an expert's matrix that are worked on at a time: a packed block of BLOCK x PANEL numbers
 * stays in the first cache. */
enum { PROXY_BLOCK = 96 };

/* Some of the proxies, as the two kinds of products want them. */
typedef struct cpl_proxies {
    int64_t count, pad; /* pad: count rounded up to VECTOR */
    float *deep;        /* panels [d, pad]: a proxy is a column */
    float *wide;        /* panels [count, d_pad]: a proxy is a row */
} cpl_proxies;

/* One thread's own. Activations are panels [D, m_pad] ([d, m_pad] for o), NULL where the
 * activation does not need them; z = R~ W_g, u = R~ W_p, h = what becomes of them, o = h W_o. */
typedef struct cpl_proxy_thread {
    float *z, *u, *h, *o;
    double *squares;       /* [m_pad] of the norms of one column */
    double *pull;          /* [m] G[i,j] of one column, compacted */
    float *scale;          /* [m] G[i,j] / M[i,j] */
    int32_t *active;       /* [m] which rows these are, rising */
    float *dz, *du, *dout; /* [D,k], [D,k], [d,k] of the k active rows */
    float *dh;             /* [k,D_pad] */
    float *wide, *h_wide;  /* panels [k,d_pad], [k,D_pad]: the active proxies; their h */
    float *drows;          /* [k,d_pad] gradient of the active proxies */
    float *block;          /* [PROXY_BLOCK, max(d,D)] an expert's rows as F32 operands */
    float *pack;           /* panel [PROXY_BLOCK, PANEL] */
    float *dproxy;         /* [n,d_pad] sum over this thread's experts */
    int32_t *row_count;    /* [n] */
    cpl_proxies own;       /* one proxy, for the diagonal */
} cpl_proxy_thread;

typedef struct cpl_proxy_space {
    const cpl_proxy_job *job;
    int64_t m, d_pad, D_pad;
    bool rounded;  /* operands of products are rounded to bf16 */
    bool backward; /* some gradient is wanted */
    int n_threads;
    float *rows;              /* [n,d_pad] all proxies */
    cpl_proxies part;         /* rows i0 ... i1-1 */
    float *column;            /* [j1-j0, m] M by columns */
    double *losses;           /* [j1-j0] */
    cpl_proxy_thread *thread; /* [n_threads] */
    size_t bytes;
} cpl_proxy_space;

/* Lays the scratch out; with job->scratch NULL only counts its bytes. */
#define cpl_proxy_space_of CPL_ISA_NAME(cpl_cpu_proxy_space_of)
cpl_proxy_space cpl_proxy_space_of(const cpl_backend *be, const cpl_proxy_job *job);

/* Fills `rows` and `part`, or `own` with proxy i. */
#define cpl_proxy_prepare CPL_ISA_NAME(cpl_cpu_proxy_prepare)
void cpl_proxy_prepare(const cpl_proxy_space *s);
#define cpl_proxy_prepare_own CPL_ISA_NAME(cpl_cpu_proxy_prepare_own)
void cpl_proxy_prepare_own(const cpl_proxy_space *s, cpl_proxy_thread *t, int64_t i);

/* The activations of expert j for `p`, and t->squares [p->count] of their norms. */
#define cpl_proxy_forward CPL_ISA_NAME(cpl_cpu_proxy_forward)
void cpl_proxy_forward(const cpl_proxy_space *s, cpl_proxy_thread *t, const cpl_proxies *p,
                       int64_t j);

/* After forward with the same p and j: adds the gradient of sum over a < count of
 * t->pull[a] |activation of proxy t->active[a]| to expert j's gradients, and sets t->drows. */
#define cpl_proxy_backward CPL_ISA_NAME(cpl_cpu_proxy_backward)
void cpl_proxy_backward(const cpl_proxy_space *s, cpl_proxy_thread *t, const cpl_proxies *p,
                        int64_t j, int64_t count);

/* The phases, see tensor/proxy.h. */
void CPL_ISA_NAME(cpl_cpu_proxy_diagonals)(cpl_backend *be, cpl_proxy_job *job);
void CPL_ISA_NAME(cpl_cpu_proxy_sweep)(cpl_backend *be, cpl_proxy_job *job);
void CPL_ISA_NAME(cpl_cpu_proxy_finish)(cpl_backend *be, cpl_proxy_job *job);

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

#endif /* CPL_TENSOR_CPU_PROXY_SPACE_H */
