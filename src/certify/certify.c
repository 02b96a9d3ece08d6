/* certify.c - see certify.h */
#include "certify/certify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"
#include "certify/internal.h"
#include "certify/product.h"

#define CPL_FAULT(name, key, sentence, remedy) {key, sentence, remedy},
const cpl_fault_words cpl_faults[CPL_N_FAULTS] = {
#include "certify/faults.def"
};
#undef CPL_FAULT

_Static_assert(CPL_N_FAULTS <= 32, "a set of faults is 32 bits");

/* ---- figures ---- */

enum { LOSS, M, ROUTER, GATE, UP };

static double distance(double away, double size)
{
    return away == 0 ? 0 : size > 0 ? away / size : INFINITY;
}

static void set_figure(cpl_certify_figure *f, const char *name, bool given, double got)
{
    *f = (cpl_certify_figure){.name = name, .given = given, .got = got};
}

static double norm(const double *values, int64_t count)
{
    return sqrt(cpl_certify_dot(values, values, count));
}

static cpl_status grad_norm(double *out, const cpl_certify_dump *dump, int half)
{
    const int64_t each = dump->D * dump->d;
    double *values = cpl_alloc((size_t)each * sizeof *values), sum = 0;
    cpl_status status = values ? CPL_OK : CPL_ERR_MEMORY;
    for (int64_t j = 0; dump->grads[half] && status == CPL_OK && j < dump->n; j++) {
        status = cpl_certify_dump_expert(dump, dump->grads[half], values, j);
        if (status == CPL_OK) sum += cpl_certify_dot(values, values, each);
    }
    cpl_free(values);
    *out = sqrt(sum);
    return status;
}

static cpl_status begin_figures(const cpl_certify_work *w, cpl_certificate *out)
{
    const cpl_certify_dump *dump                    = &w->dump;
    static const char *const of[CPL_CERTIFY_HALVES] = {"dW_g", "dW_p"};
    set_figure(&out->figures[LOSS], "loss", true, dump->loss);
    if (dump->M) set_figure(&out->figures[M], "M", true, norm(dump->M, dump->n * dump->n));
    set_figure(&out->figures[ROUTER], "dR", dump->has_dR, norm(dump->dR, dump->n * dump->d));
    for (int h = 0; h < CPL_CERTIFY_HALVES; h++) {
        double got;
        CPL_TRY(grad_norm(&got, dump, h));
        if (dump->weights[h])
            set_figure(&out->figures[GATE + h], of[h], dump->grads[h] != NULL, got);
    }
    return CPL_OK;
}

/* Of M under `faults`: its norm and its distance from the dump's. */
static void measure_M(const cpl_certify_work *w, cpl_fault_set faults, double *size, double *away)
{
    const int64_t n = w->dump.n;
    double sum = 0, apart = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double m   = w->t->M[j * n + i];
            const double F   = faults & CPL_FAULT_BIT(SQUARED) ? m * m : m;
            const int64_t at = faults & CPL_FAULT_BIT(TRANSPOSED) ? j * n + i : i * n + j;
            sum += F * F;
            apart += pow(w->dump.M[at] - F, 2);
        }
    *size = sqrt(sum);
    *away = sqrt(apart);
}

/* The distances of everything from what `faults` give, each number computed by itself; with none
 * they are those of the right ones. */
static cpl_status fill_figures(cpl_certify_work *w, cpl_certificate *out, cpl_fault_set faults)
{
    const int64_t count              = w->dump.n * w->dump.d;
    double size[CPL_CERTIFY_FIGURES] = {0}, away[CPL_CERTIFY_FIGURES] = {0};
    cpl_certify_judged judged;
    CPL_TRY(cpl_certify_judge(w, &judged, faults, w->grade, true));
    size[LOSS] = fabs(w->loss);
    away[LOSS] = fabs(w->dump.loss - w->loss);
    if (w->dump.M) measure_M(w, faults, &size[M], &away[M]);
    size[ROUTER] = norm(w->dR, count);
    for (int64_t k = 0; k < count; k++) away[ROUTER] += pow(w->dR[k] - w->dump.dR[k], 2);
    away[ROUTER] = sqrt(away[ROUTER]);
    if (faults & CPL_FAULT_BIT(EXPERTS_DETACHED))
        memset(w->c, 0, (size_t)(w->dump.n * w->dump.n) * sizeof *w->c);
    CPL_TRY(
        cpl_certify_tables_confirm(w->t, &w->dump, w->c, &away[GATE], &size[GATE], w->n_threads));
    for (int k = GATE; k <= UP; k++) size[k] = sqrt(size[k]), away[k] = sqrt(away[k]);
    for (int k = 0; k < CPL_CERTIFY_FIGURES; k++) {
        cpl_certify_figure *f = &out->figures[k];
        f->fault_distance     = distance(away[k], size[k]);
        if (faults) continue;
        f->expected = k == LOSS ? w->loss : size[k];
        f->distance = f->fault_distance;
    }
    if (!faults) out->active = w->active;
    return CPL_OK;
}

/* ---- all of it ---- */

static cpl_status take(double **out, int64_t count)
{
    *out = cpl_alloc((size_t)count * sizeof **out);
    return *out ? CPL_OK : CPL_ERR_MEMORY;
}

/* Better a sentence than a program that is killed when it touches what it was promised: the tables
 * of one kind of M, and tables of n^2 numbers. */
static cpl_status check_memory(const cpl_certify_dump *dump)
{
    enum { SQUARES = 8 };
    char what[96];
    const double n = (double)dump->n, wide = (double)(dump->d + dump->n + SQUARES);
    snprintf(what, sizeof what, "judging %lld experts of width %lld", (long long)dump->n,
             (long long)dump->d);
    return cpl_memory_check(n * n * wide * sizeof(double), what);
}

static cpl_status open_work(cpl_certify_work *w, const char *path, int n_threads)
{
    memset(w, 0, sizeof *w);
    w->n_threads = n_threads;
    CPL_TRY(cpl_certify_dump_open(&w->dump, path));
    CPL_TRY(check_memory(&w->dump));
    CPL_TRY(take(&w->c, w->dump.n * w->dump.n));
    CPL_TRY(take(&w->dX, w->dump.n * w->dump.d));
    CPL_TRY(take(&w->dR, w->dump.n * w->dump.d));
    return cpl_certify_nearest(w);
}

static void close_work(cpl_certify_work *w)
{
    cpl_certify_dump_close(&w->dump);
    for (int k = 0; k < 6; k++) cpl_certify_tables_free(&w->tables[k / 3][k % 3]);
    cpl_free(w->eps);
    cpl_free(w->nearest);
    cpl_free(w->c);
    cpl_free(w->dX);
    cpl_free(w->dR);
    cpl_free(w->hinges);
}

static void describe(const cpl_certify_work *w, cpl_certificate *out)
{
    const cpl_certify_dump *dump = &w->dump;
    *out           = (cpl_certificate){.n = dump->n, .d = dump->d, .D = dump->D, .factor = 1};
    out->alpha     = dump->alpha;
    out->weight    = dump->weight;
    out->layers    = dump->layers;
    out->has_delta = dump->delta != NULL;
    out->has_up    = dump->weights[CPL_CERTIFY_UP] != NULL;
    out->has_M     = dump->M != NULL;
}

cpl_status cpl_certify(cpl_certificate *out, const char *path, int n_threads)
{
    cpl_certify_work w;
    cpl_status status;
    CPL_TRY_DONE(open_work(&w, path, n_threads));
    describe(&w, out);
    CPL_TRY_DONE(begin_figures(&w, out));
    CPL_TRY_DONE(cpl_certify_search(&w, out));
    CPL_TRY_DONE(fill_figures(&w, out, 0));
    if (out->faults) CPL_TRY_DONE(fill_figures(&w, out, out->faults));
done:
    close_work(&w);
    return status;
}
