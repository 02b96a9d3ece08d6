/* sweep.c - the phases of the coupling loss over the experts of this part.
 *
 * Room:  tensor/cpu/erc; phases: erc.h; scratch: scratch.h. Each thread takes a fixed run of
 *        experts and sums into separate memory, which is added up in the order of the threads. So
 *        equal numbers of threads give equal bits.
 * Plain: model/erc/reference.c. `hinges` is the double loop of cpl_erc_reference_forward over the
 *        pairs, equations 1 to 3, for one column j. `add_diagonal_early` and `diagonal_backward`
 *        are its line grad_M[i,i] -= ... `sweep_expert` is one j of cpl_erc_reference_backward. */
#include <math.h>
#include <omp.h>

#include "tensor/cpu/erc/scratch.h"

/* ---- the diagonal ---- */

static const float UNKNOWN = -1.0f; /* no norm is negative */

/* Returns M[i,i] or UNKNOWN. Several threads may compute one diagonal at the same time. All of them
 * store equal bits. */
static float known_diagonal(const cpl_erc_host_job *job, int64_t i)
{
    float value;
    __atomic_load(&job->diagonal[i], &value, __ATOMIC_RELAXED);
    return value;
}

static void set_diagonal(const cpl_erc_host_job *job, int64_t i, float value)
{
    __atomic_store(&job->diagonal[i], &value, __ATOMIC_RELAXED);
}

/* Sets diagonal j, from proxy j and expert j only. */
static void compute_diagonal(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j)
{
    const cpl_proxies own = cpl_erc_single(s, j);
    cpl_erc_forward(s, &t->single_acts, t, &own, j);
    set_diagonal(s->job, j, (float)sqrt(t->single_acts.squares[0]));
}

static bool in_part(const cpl_erc_host_job *job, int64_t row)
{
    return row >= job->i0 && row < job->i1;
}

/* Computes column j of M. Before a backward pass it keeps the activations of expert j for proxy j,
 * if row j belongs to this part: phase 3 needs them for the gradient of M[j,j]. */
static float *compute_column(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j)
{
    const cpl_erc_host_job *job = s->job;
    float *column               = s->column + (j - job->j0) * s->m;
    cpl_erc_forward(s, &t->acts, t, &s->part, j);
    for (int64_t i = 0; i < s->m; i++) column[i] = (float)sqrt(t->acts.squares[i]);
    if (s->backward && in_part(job, j))
        cpl_erc_copy_column(s, &s->diag_acts[j - job->j0], &t->acts, s->part.pad, j - job->i0);
    return column;
}

/* Runs phase 1 for one expert. Without gradients this computes the whole column, and later phases
 * compute no column. */
static void diagonal_phase(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j)
{
    const float *column = s->backward ? NULL : compute_column(s, t, j);
    if (column && in_part(s->job, j))
        set_diagonal(s->job, j, column[j - s->job->i0]);
    else
        compute_diagonal(s, t, j);
}

void CPL_ISA_NAME(cpl_cpu_host_erc_diagonals)(cpl_erc_host_job *job)
{
    const cpl_erc_workspace s = cpl_erc_workspace_of(job);
    cpl_erc_prepare(&s);
#pragma omp parallel num_threads(s.n_threads)
    {
        cpl_erc_thread *t = &s.thread[omp_get_thread_num()];
#pragma omp for schedule(static)
        for (int64_t j = job->j0; j < job->j1; j++) diagonal_phase(&s, t, j);
    }
}

/* ---- one column ---- */

static double unit(const cpl_erc_host_job *job)
{
    return job->weight / ((double)job->n * (double)job->n);
}

/* Compares column j of M with both bounds, alpha M[i,i] and alpha M[j,j]: adds its hinges to the
 * loss and the counts, and lists the active rows with G[i,j]. Returns the number of active rows. At
 * an exact tie a hinge is active. A row whose entry is NaN has no active hinge and is listed
 * nevertheless: G / M, and so every gradient, is NaN. */
static int64_t hinges(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j)
{
    const cpl_erc_host_job *job = s->job;
    const float *column         = s->column + (j - job->j0) * s->m;
    const double bound          = job->alpha * (double)known_diagonal(job, j);
    double loss                 = 0;
    int64_t count               = 0;
    for (int64_t i = job->i0; i < job->i1; i++) {
        if (i == j) continue;
        const double m           = (double)column[i - job->i0];
        const double over_row    = m - job->alpha * (double)known_diagonal(job, i);
        const double over_column = m - bound;
        const int reached        = (over_row >= 0) + (over_column >= 0);
        loss += (over_row < 0 ? 0 : over_row) + (over_column < 0 ? 0 : over_column); /* keeps NaN */
        t->row_count[i] += over_row >= 0;
        job->violations[job->n + j] += over_column >= 0;
        if ((reached == 0 && !isnan(m)) || m == 0) continue;
        t->row[count]      = (int32_t)i;
        t->active[count]   = (int32_t)(i - job->i0);
        t->grad_M[count++] = unit(job) * reached;
    }
    s->losses[j - job->j0] = loss;
    return count;
}

/* Adds the expert's own proxy to the list, with the gradient of M[j,j] on the assumption that row j
 * has as many active hinges as column j, since row j is not complete yet. If the assumption is
 * right, phase 3 need not read the expert and its gradient again. Otherwise phase 3 adds the
 * difference. */
static int64_t add_diagonal_early(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j,
                                  int64_t count)
{
    const cpl_erc_host_job *job = s->job;
    const int32_t reached       = 2 * job->violations[job->n + j];
    int64_t at                  = count;
    if (!s->diag_in_sweep || !in_part(job, j) || reached == 0) return count;
    if (job->alpha == 0 || known_diagonal(job, j) == 0) return count;
    for (; at > 0 && t->row[at - 1] > j; at--) {
        t->row[at]    = t->row[at - 1];
        t->active[at] = t->active[at - 1];
        t->grad_M[at] = t->grad_M[at - 1];
    }
    t->row[at]              = (int32_t)j;
    t->active[at]           = (int32_t)(j - job->i0);
    t->grad_M[at]           = -job->alpha * unit(job) * reached;
    s->diag_hinges_added[j] = reached;
    return count + 1;
}

/* Adds dR~ of the active rows to this thread's sum. */
static void add_rows(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t count)
{
    for (int64_t a = 0; a < count; a++) {
        float *to         = t->dproxy + t->row[a] * s->d_pad;
        const float *from = t->drows + a * s->d_pad;
#pragma omp simd
        for (int64_t k = 0; k < s->d_pad; k++) to[k] += from[k];
    }
}

/* Returns whether an entry of column j reaches alpha M[j,j]. Needs only the diagonal M[j,j]. */
static bool reaches_own_bound(const cpl_erc_workspace *s, const float *column, int64_t j)
{
    const double bound = s->job->alpha * (double)known_diagonal(s->job, j);
    for (int64_t i = 0; i < s->m; i++)
        if (i + s->job->i0 != j && (double)column[i] >= bound) return true;
    return false;
}

/* Computes the diagonals that are still unknown. Each thread begins after its own column, so that
 * threads that complete diagonals at the same time share the work. */
static void complete_diagonals(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j)
{
    for (int64_t k = 1; k < s->job->n; k++) {
        int64_t i = (j + k) % s->job->n;
        if (in_part(s->job, i) && known_diagonal(s->job, i) < 0) compute_diagonal(s, t, i);
    }
}

/* Runs phase 2 for one expert: the forward product and, while its result is in the cache, the two
 * backward products over the active rows. If diagonals are unknown, a column that reaches its own
 * bound computes them. Any other column is deferred, since few of its rows will be active. */
static void sweep_expert(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j)
{
    const cpl_erc_host_job *job = s->job;
    if (s->backward) {
        const float *column = compute_column(s, t, j);
        if (s->diag_in_sweep) {
            if (in_part(job, j))
                set_diagonal(job, j, column[j - job->i0]);
            else
                compute_diagonal(s, t, j);
            s->deferred[j] = !reaches_own_bound(s, column, j);
            if (s->deferred[j]) return;
            complete_diagonals(s, t, j);
        }
    }
    int64_t count = hinges(s, t, j);
    if (!s->backward || count == 0) return;
    count = add_diagonal_early(s, t, j, count);
    cpl_erc_backward(s, &t->acts, t, &s->part, j, count);
    add_rows(s, t, count);
}

/* Processes a deferred column. Only its active rows are computed again. */
static void sweep_deferred(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j)
{
    const int64_t count = hinges(s, t, j);
    if (count == 0) return;
    const cpl_proxies chosen = cpl_erc_chosen(s, t, count);
    cpl_erc_forward(s, &t->acts, t, &chosen, j);
    cpl_erc_backward(s, &t->acts, t, &chosen, j, count);
    add_rows(s, t, count);
}

/* ---- all columns ---- */

/* Joins counts and losses of the threads, and writes M row by row. */
static void join(const cpl_erc_workspace *s, cpl_erc_host_job *job)
{
    double loss = 0;
    for (int64_t i = 0; i < job->n; i++)
        for (int t = 0; t < s->n_threads; t++) job->violations[i] += s->thread[t].row_count[i];
    for (int64_t j = job->j0; j < job->j1; j++) {
        const float *column = s->column + (j - job->j0) * s->m;
        for (int64_t i = 0; job->M && i < s->m; i++) job->M[(job->i0 + i) * job->n + j] = column[i];
        loss += s->losses[j - job->j0];
    }
    job->loss = loss / ((double)job->n * (double)job->n);
}

/* Zeroes the sums of every planned thread, since OpenMP may start fewer threads. */
static void clear_sums(const cpl_erc_workspace *s, cpl_erc_thread *t)
{
    memset(t->row_count, 0, (size_t)s->job->n * sizeof(int32_t));
    if (t->dproxy) memset(t->dproxy, 0, (size_t)(s->job->n * s->d_pad) * sizeof(float));
}

static void sweep(const cpl_erc_workspace *s, cpl_erc_host_job *job)
{
    memset(job->violations, 0, 2 * (size_t)job->n * sizeof(int32_t));
    memset(s->diag_hinges_added, 0, (size_t)(job->j1 - job->j0) * sizeof *s->diag_hinges_added);
#pragma omp parallel num_threads(s->n_threads)
    {
        cpl_erc_thread *t = &s->thread[omp_get_thread_num()];
#pragma omp for schedule(static)
        for (int k = 0; k < s->n_threads; k++) clear_sums(s, &s->thread[k]);
#pragma omp for schedule(static)
        for (int64_t j = job->j0; j < job->j1; j++) sweep_expert(s, t, j);
#pragma omp for schedule(static)
        for (int64_t j = job->j0; j < job->j1; j++)
            if (s->diag_in_sweep && s->deferred[j]) sweep_deferred(s, t, j);
    }
    join(s, job);
}

void CPL_ISA_NAME(cpl_cpu_host_erc_sweep)(cpl_erc_host_job *job)
{
    const cpl_erc_workspace s = cpl_erc_workspace_of(job);
    sweep(&s, job);
}

/* ---- the gradient of the diagonal and of the router ---- */

/* Runs phase 3 for one expert: backward of proxy j with G[j,j] = -alpha u (active hinges against
 * M[j,j]), minus the part that phase 2 has added. */
static void diagonal_backward(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t j)
{
    const cpl_erc_host_job *job = s->job;
    const double reached        = (double)job->violations[j] + (double)job->violations[job->n + j] -
                           (double)s->diag_hinges_added[j - job->j0];
    const bool wanted = reached != 0 && job->alpha != 0 && job->diagonal[j] != 0;
    if (!wanted && !isnan(job->diagonal[j])) return;
    const cpl_proxies own    = cpl_erc_single(s, j);
    const cpl_erc_acts *acts = &s->diag_acts[j - job->j0];
    if (!in_part(job, j)) cpl_erc_forward(s, acts, t, &own, j);
    t->row[0]    = (int32_t)j;
    t->active[0] = 0;
    t->grad_M[0] = -job->alpha * unit(job) * reached;
    cpl_erc_backward(s, acts, t, &own, j, 1);
    add_rows(s, t, 1);
}

/* Computes dR_i += dR~_i * delta_i: delta is held constant, R is not. */
static void add_router_row(const cpl_erc_workspace *s, int64_t i)
{
    const cpl_erc_host_job *job = s->job;
    float *dR                   = job->dR + i * job->d;
    const float *delta          = job->delta ? job->delta + i * job->d : NULL;
    for (int64_t k = 0; k < job->d; k++) {
        float sum = 0;
        for (int t = 0; t < s->n_threads; t++) sum += s->thread[t].dproxy[i * s->d_pad + k];
        dR[k] += delta ? sum * delta[k] : sum;
    }
}

void CPL_ISA_NAME(cpl_cpu_host_erc_add_diagonal)(cpl_erc_host_job *job)
{
    const cpl_erc_workspace s = cpl_erc_workspace_of(job);
    if (!s.backward) return;
#pragma omp parallel num_threads(s.n_threads)
    {
        cpl_erc_thread *t = &s.thread[omp_get_thread_num()];
#pragma omp for schedule(static)
        for (int64_t j = job->j0; j < job->j1; j++) diagonal_backward(&s, t, j);
        if (job->dR) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < job->n; i++) add_router_row(&s, i);
        }
    }
}

void CPL_ISA_NAME(cpl_cpu_host_erc_run_local)(cpl_erc_host_job *job)
{
    cpl_erc_workspace s = cpl_erc_workspace_of(job);
    s.diag_in_sweep     = s.backward;
    CPL_ASSERT(job->j0 == 0 && job->j1 == job->n);
    if (s.diag_in_sweep) {
        for (int64_t i = 0; i < job->n; i++) job->diagonal[i] = UNKNOWN;
        cpl_erc_prepare(&s);
    } else {
        CPL_ISA_NAME(cpl_cpu_host_erc_diagonals)(job);
    }
    sweep(&s, job);
    CPL_ISA_NAME(cpl_cpu_host_erc_add_diagonal)(job);
}
