/* tables.c - see tables.h. Threads take experts; each is read, multiplied and
 * forgotten by one, and every sum has one order, so that no figure depends on their number. */
#include "certify/tables.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/arena.h"
#include "certify/product.h"

/* ---- memory ---- */

void cpl_certify_tables_free(cpl_certify_tables *t)
{
    double *const all[] = {t->X, t->M, t->x_norm, t->w_norm, t->error, t->V, t->got, t->gram};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cpl_free(all[i]);
    memset(t, 0, sizeof *t);
}

static cpl_status take(double **out, int64_t count)
{
    if (*out) return CPL_OK;
    *out = cpl_alloc((size_t)count * sizeof **out);
    if (!*out) return CPL_ERR_MEMORY;
    memset(*out, 0, (size_t)count * sizeof **out);
    return CPL_OK;
}

static cpl_status take_tables(cpl_certify_tables *t, const cpl_certify_dump *dump, bool full)
{
    const int64_t n = dump->n, d = dump->d;
    CPL_TRY(take(&t->X, n * d));
    CPL_TRY(take(&t->M, n * n));
    CPL_TRY(take(&t->x_norm, n));
    CPL_TRY(take(&t->w_norm, n));
    CPL_TRY(take(&t->error, n * n));
    if (!full) return CPL_OK;
    CPL_TRY(take(&t->V, n * n * d));
    CPL_TRY(take(&t->got, n * n));
    return take(&t->gram, n * n * n);
}

/* What a thread works with: all one block. */
typedef struct desk {
    double *W, *G;  /* [D,d] a matrix; its gradient in the dump, or by hypothesis */
    double *A, *Q;  /* [n,D] X W^T; X times the gradient */
    double *AA;     /* [n,n] */
    double *square; /* [n] of the rows of A, over the halves */
} desk;

static cpl_status take_desk(desk *k, const cpl_certify_dump *dump)
{
    const int64_t n = dump->n, Dd = dump->D * dump->d, nD = n * dump->D;
    memset(k, 0, sizeof *k);
    CPL_TRY(take(&k->W, 2 * Dd + 2 * nD + n * n + n));
    k->G      = k->W + Dd;
    k->A      = k->G + Dd;
    k->Q      = k->A + nD;
    k->AA     = k->Q + nD;
    k->square = k->AA + n * n;
    return CPL_OK;
}

/* ---- an expert ---- */

typedef struct job {
    cpl_certify_tables *t;
    const cpl_certify_dump *dump;
    const double *XX; /* [n,n] products of the proxies */
    bool full;
    double *got_squares; /* [n] */
} job;

/* One matrix of expert j that plays a part in M. */
static cpl_status add_half(const job *w, const desk *k, int half, int64_t j)
{
    const cpl_certify_dump *dump = w->dump;
    cpl_certify_tables *t        = w->t;
    const int64_t n = dump->n, d = dump->d, D = dump->D;
    CPL_TRY(cpl_certify_dump_expert(dump, dump->weights[half], k->W, j));
    t->w_norm[j] += cpl_certify_dot(k->W, k->W, D * d);
    cpl_certify_dots(k->A, t->X, k->W, n, D, d);
    for (int64_t i = 0; i < n; i++) k->square[i] += cpl_certify_dot(k->A + i * D, k->A + i * D, D);
    if (!w->full) return CPL_OK;
    cpl_certify_spread(t->V + j * n * d, k->A, k->W, n, D, d);
    cpl_certify_dots(k->AA, k->A, k->A, n, n, D);
    for (int64_t e = 0; e < n * n; e++) t->gram[j * n * n + e] += k->AA[e] * w->XX[e];
    if (!dump->grads[half]) return CPL_OK;
    CPL_TRY(cpl_certify_dump_expert(dump, dump->grads[half], k->G, j));
    cpl_certify_dots(k->Q, t->X, k->G, n, D, d);
    for (int64_t i = 0; i < n; i++)
        t->got[j * n + i] += cpl_certify_dot(k->A + i * D, k->Q + i * D, D);
    return CPL_OK;
}

/* Sets the squares of the dump's gradients of expert j, whether or not M is of its matrices. */
static cpl_status square_grads(const job *w, const desk *k, int64_t j)
{
    const int64_t count = w->dump->D * w->dump->d;
    for (int h = 0; h < CPL_CERTIFY_HALVES; h++) {
        if (!w->dump->grads[h]) continue;
        CPL_TRY(cpl_certify_dump_expert(w->dump, w->dump->grads[h], k->G, j));
        w->got_squares[j] += cpl_certify_dot(k->G, k->G, count);
    }
    return CPL_OK;
}

/* M and its error. The rounding of X and W touches each product: its part does not shrink where
 * they cancel. */
static void set_norms(const job *w, const desk *k, int64_t j)
{
    const int64_t n       = w->dump->n;
    cpl_certify_tables *t = w->t;
    t->w_norm[j]          = sqrt(t->w_norm[j]);
    for (int64_t i = 0; i < n; i++) {
        const double whole  = t->x_norm[i] * t->w_norm[j];
        t->M[j * n + i]     = sqrt(k->square[i]);
        t->error[j * n + i] = sqrt(k->square[i] + whole * whole / (double)w->dump->d);
    }
}

static cpl_status take_expert(const job *w, const desk *k, int64_t j)
{
    const int64_t n = w->dump->n;
    memset(k->square, 0, (size_t)n * sizeof *k->square);
    w->t->w_norm[j] = 0;
    for (int h = 0; h < CPL_CERTIFY_HALVES; h++)
        if (w->t->uses[h]) CPL_TRY(add_half(w, k, h, j));
    set_norms(w, k, j);
    return w->full ? square_grads(w, k, j) : CPL_OK;
}

/* ---- all experts ---- */

static int threads_for(int n_threads, int64_t n)
{
    const int64_t most = n_threads > 0 ? n_threads : omp_get_max_threads();
    return (int)(most < n ? most : n);
}

static void take_proxies(cpl_certify_tables *t, const cpl_certify_dump *dump)
{
    const int64_t n = dump->n, d = dump->d;
    const bool noisy = dump->delta && !t->quiet;
    for (int64_t k = 0; k < n * d; k++) t->X[k] = dump->R[k] * (noisy ? dump->delta[k] : 1);
    for (int64_t i = 0; i < n; i++)
        t->x_norm[i] = sqrt(cpl_certify_dot(t->X + i * d, t->X + i * d, d));
}

/* The failure of the first expert in order that failed, with its sentence. */
static cpl_status sweep(const job *w, int n_threads)
{
    cpl_status failure  = CPL_OK;
    char sentence[1024] = "";
    int64_t failed      = w->dump->n;
#pragma omp parallel num_threads(threads_for(n_threads, w->dump->n))
    {
        desk k;
        const cpl_status room = take_desk(&k, w->dump);
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < w->dump->n; j++) {
            const cpl_status status = room != CPL_OK ? room : take_expert(w, &k, j);
#pragma omp critical(certify_failure)
            if (status != CPL_OK && j < failed) {
                failed  = j;
                failure = status;
                strncpy(sentence, cpl_last_error(), sizeof sentence - 1);
            }
        }
        cpl_free(k.W);
    }
    return failure == CPL_OK ? CPL_OK : CPL_FAIL(failure, "%s", sentence);
}

cpl_status cpl_certify_tables_take(cpl_certify_tables *t, const cpl_certify_dump *dump, bool full,
                                   int n_threads)
{
    const int64_t n   = dump->n;
    cpl_status status = CPL_OK;
    double *XX = NULL, *squares = NULL;
    if (full ? t->full : t->has_M) return CPL_OK;
    CPL_TRY(take_tables(t, dump, full));
    CPL_TRY_DONE(take(&XX, n * n));
    CPL_TRY_DONE(take(&squares, n));
    take_proxies(t, dump);
    cpl_certify_dots(XX, t->X, t->X, n, n, dump->d);
    const job w = {t, dump, XX, full, squares};
    CPL_TRY_DONE(sweep(&w, n_threads));
    t->got_square = 0;
    for (int64_t j = 0; j < n; j++) t->got_square += squares[j];
    t->has_M = true;
    t->full  = full;
done:
    cpl_free(XX);
    cpl_free(squares);
    return status;
}

/* ---- number by number ---- */

/* Adds expert j's share to away[half] and size[half]. */
static cpl_status confirm_half(const cpl_certify_tables *t, const cpl_certify_dump *dump,
                               const desk *k, const double *c, int half, int64_t j, double *away,
                               double *size)
{
    const int64_t n = dump->n, d = dump->d, D = dump->D;
    memset(k->G, 0, (size_t)(D * d) * sizeof *k->G);
    if (t->uses[half]) {
        CPL_TRY(cpl_certify_dump_expert(dump, dump->weights[half], k->W, j));
        cpl_certify_dots(k->A, t->X, k->W, n, D, d);
        for (int64_t i = 0; i < n; i++)
            for (int64_t e = 0; e < D; e++) k->A[i * D + e] *= c[j * n + i];
        cpl_certify_outer(k->G, k->A, t->X, n, D, d);
    }
    *size += cpl_certify_dot(k->G, k->G, D * d);
    if (dump->grads[half]) {
        CPL_TRY(cpl_certify_dump_expert(dump, dump->grads[half], k->W, j));
        for (int64_t e = 0; e < D * d; e++) k->G[e] -= k->W[e];
    }
    *away += cpl_certify_dot(k->G, k->G, D * d);
    return CPL_OK;
}

cpl_status cpl_certify_tables_confirm(const cpl_certify_tables *t, const cpl_certify_dump *dump,
                                      const double *c, double away[CPL_CERTIFY_HALVES],
                                      double size[CPL_CERTIFY_HALVES], int n_threads)
{
    cpl_status status = CPL_OK;
    double *shares    = NULL; /* [j,half,2] */
    CPL_TRY(take(&shares, dump->n * CPL_CERTIFY_HALVES * 2));
#pragma omp parallel num_threads(threads_for(n_threads, dump->n))
    {
        desk k;
        const cpl_status room = take_desk(&k, dump);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t j = 0; j < dump->n; j++)
            for (int h = 0; h < CPL_CERTIFY_HALVES; h++) {
                double *share   = shares + (j * CPL_CERTIFY_HALVES + h) * 2;
                cpl_status mine = room;
                if (mine == CPL_OK) mine = confirm_half(t, dump, &k, c, h, j, share, share + 1);
                if (mine != CPL_OK) {
#pragma omp critical(certify_failure)
                    status = mine;
                }
            }
        cpl_free(k.W);
    }
    for (int h = 0; h < CPL_CERTIFY_HALVES; h++) away[h] = size[h] = 0;
    for (int64_t j = 0; j < dump->n * CPL_CERTIFY_HALVES; j++) {
        away[j % CPL_CERTIFY_HALVES] += shares[2 * j];
        size[j % CPL_CERTIFY_HALVES] += shares[2 * j + 1];
    }
    cpl_free(shares);
    if (status == CPL_OK) return CPL_OK;
    return CPL_FAIL(status, "%s: an expert could not be read again",
                    cpl_safetensors_path(dump->file));
}
