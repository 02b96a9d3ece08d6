/* proxy_phases.c - the three phases of the coupling loss over the experts of this part.
 *
 * Room:  tensor/cpu; see proxy.h for the phases and proxy_space.h for the scratch. Threads take
 *        experts, each a fixed run of them, and sum into memory of their own, which is joined in
 *        the order of the threads: the same number of threads gives the same bits. */
#include <math.h>
#include <omp.h>

#include "tensor/cpu/proxy_space.h"

/* Column j of M from the squares of its norms. */
static float *store_column(const cpl_proxy_space *s, const cpl_proxy_thread *t, int64_t j)
{
    float *column = s->column + (j - s->job->j0) * s->m;
    for (int64_t i = 0; i < s->m; i++) column[i] = (float)sqrt(t->squares[i]);
    return column;
}

static void own_diagonal(const cpl_proxy_space *s, cpl_proxy_thread *t, int64_t j)
{
    cpl_proxy_prepare_own(s, t, j);
    cpl_proxy_forward(s, t, &t->own, j);
    s->job->diagonal[j] = (float)sqrt(t->squares[0]);
}

/* One expert of phase 1. Without gradients the whole column is computed here, and only here. */
static void diagonal_of(const cpl_proxy_space *s, cpl_proxy_thread *t, int64_t j)
{
    const cpl_proxy_job *job = s->job;
    const bool inside        = j >= job->i0 && j < job->i1;
    if (!s->backward) {
        cpl_proxy_forward(s, t, &s->part, j);
        const float *column = store_column(s, t, j);
        if (inside) job->diagonal[j] = column[j - job->i0];
    }
    if (s->backward || !inside) own_diagonal(s, t, j);
}

void CPL_ISA_NAME(cpl_cpu_proxy_diagonals)(cpl_backend *be, cpl_proxy_job *job)
{
    const cpl_proxy_space s = cpl_proxy_space_of(be, job);
    cpl_proxy_prepare(&s);
#pragma omp parallel num_threads(s.n_threads)
    {
        cpl_proxy_thread *t = &s.thread[omp_get_thread_num()];
#pragma omp for schedule(static)
        for (int64_t j = job->j0; j < job->j1; j++) diagonal_of(&s, t, j);
    }
}

/* Holds column j of M against both bounds: adds its hinges to the loss and the counts, and lists
 * the rows that pull, with G[i,j]. Returns how many. At an exact tie the hinge counts as active. */
static int64_t hinges(const cpl_proxy_space *s, cpl_proxy_thread *t, const float *column, int64_t j)
{
    const cpl_proxy_job *job   = s->job;
    const double columns_bound = job->alpha * (double)job->diagonal[j];
    const double unit          = job->weight / ((double)job->n * (double)job->n);
    double loss                = 0;
    int64_t count              = 0;
    int32_t reached            = 0;
    for (int64_t i = job->i0; i < job->i1; i++) {
        if (i == j) continue;
        const double m           = (double)column[i - job->i0];
        const double over_row    = m - job->alpha * (double)job->diagonal[i];
        const double over_column = m - columns_bound;
        const int in_row = over_row >= 0, in_column = over_column >= 0;
        loss += (over_row < 0 ? 0 : over_row) + (over_column < 0 ? 0 : over_column); /* keeps NaN */
        t->row_count[i] += in_row;
        reached += in_column;
        if (in_row + in_column == 0 || m == 0) continue;
        t->active[count] = (int32_t)(i - job->i0);
        t->pull[count++] = unit * (in_row + in_column);
    }
    job->violations[job->n + j] = reached;
    s->losses[j - job->j0]      = loss;
    return count;
}

static void add_rows(const cpl_proxy_space *s, cpl_proxy_thread *t, int64_t first, int64_t count)
{
    for (int64_t a = 0; a < count; a++) {
        float *to         = t->dproxy + (first + t->active[a]) * s->d_pad;
        const float *from = t->drows + a * s->d_pad;
#pragma omp simd
        for (int64_t k = 0; k < s->d_pad; k++) to[k] += from[k];
    }
}

/* One expert of phase 2: the one forward product, and while its result is in the cache the two
 * backward products over the rows that pull. */
static void sweep_expert(const cpl_proxy_space *s, cpl_proxy_thread *t, int64_t j)
{
    const cpl_proxy_job *job = s->job;
    float *column            = s->column + (j - job->j0) * s->m;
    if (s->backward) {
        cpl_proxy_forward(s, t, &s->part, j);
        store_column(s, t, j);
    }
    if (job->M)
        for (int64_t i = 0; i < s->m; i++) job->M[(job->i0 + i) * job->n + j] = column[i];
    int64_t count = hinges(s, t, column, j);
    if (!s->backward || count == 0) return;
    cpl_proxy_backward(s, t, &s->part, j, count);
    add_rows(s, t, job->i0, count);
}

static void join_counts(const cpl_proxy_space *s, cpl_proxy_job *job)
{
    for (int64_t i = 0; i < job->n; i++) {
        job->violations[i] = 0;
        for (int t = 0; t < s->n_threads; t++) job->violations[i] += s->thread[t].row_count[i];
    }
    double loss = 0;
    for (int64_t j = 0; j < job->j1 - job->j0; j++) loss += s->losses[j];
    job->loss = loss / ((double)job->n * (double)job->n);
}

/* Of every thread that was planned: OpenMP may start fewer. */
static void clear_sums(const cpl_proxy_space *s, cpl_proxy_thread *t)
{
    memset(t->row_count, 0, (size_t)s->job->n * sizeof(int32_t));
    if (t->dproxy) memset(t->dproxy, 0, (size_t)(s->job->n * s->d_pad) * sizeof(float));
}

void CPL_ISA_NAME(cpl_cpu_proxy_sweep)(cpl_backend *be, cpl_proxy_job *job)
{
    const cpl_proxy_space s = cpl_proxy_space_of(be, job);
    memset(job->violations, 0, 2 * (size_t)job->n * sizeof(int32_t));
#pragma omp parallel num_threads(s.n_threads)
    {
        cpl_proxy_thread *t = &s.thread[omp_get_thread_num()];
#pragma omp for schedule(static)
        for (int k = 0; k < s.n_threads; k++) clear_sums(&s, &s.thread[k]);
#pragma omp for schedule(static)
        for (int64_t j = job->j0; j < job->j1; j++) sweep_expert(&s, t, j);
    }
    join_counts(&s, job);
}

/* One expert of phase 3: G[j,j] = -alpha u (hinges held against M[j,j]), one proxy's backward. */
static void pull_diagonal(const cpl_proxy_space *s, cpl_proxy_thread *t, int64_t j)
{
    const cpl_proxy_job *job = s->job;
    const double unit        = job->weight / ((double)job->n * (double)job->n);
    const double reached     = (double)job->violations[j] + (double)job->violations[job->n + j];
    if (reached == 0 || job->alpha == 0 || job->diagonal[j] == 0) return;
    cpl_proxy_prepare_own(s, t, j);
    cpl_proxy_forward(s, t, &t->own, j);
    t->active[0] = 0;
    t->pull[0]   = -job->alpha * unit * reached;
    cpl_proxy_backward(s, t, &t->own, j, 1);
    add_rows(s, t, j, 1);
}

/* dR_i += dR~_i * delta_i: delta is held constant, R is not. */
static void add_router_row(const cpl_proxy_space *s, int64_t i)
{
    const cpl_proxy_job *job = s->job;
    float *dR                = job->dR + i * job->d;
    const float *delta       = job->delta ? job->delta + i * job->d : NULL;
    for (int64_t k = 0; k < job->d; k++) {
        float sum = 0;
        for (int t = 0; t < s->n_threads; t++) sum += s->thread[t].dproxy[i * s->d_pad + k];
        dR[k] += delta ? sum * delta[k] : sum;
    }
}

void CPL_ISA_NAME(cpl_cpu_proxy_finish)(cpl_backend *be, cpl_proxy_job *job)
{
    const cpl_proxy_space s = cpl_proxy_space_of(be, job);
    if (!s.backward) return;
#pragma omp parallel num_threads(s.n_threads)
    {
        cpl_proxy_thread *t = &s.thread[omp_get_thread_num()];
#pragma omp for schedule(static)
        for (int64_t j = job->j0; j < job->j1; j++) pull_diagonal(&s, t, j);
        if (job->dR) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < job->n; i++) add_router_row(&s, i);
        }
    }
}
