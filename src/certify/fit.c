/* fit.c - hinges at their bound: which share of their gradient the implementation let pass.
 *
 * The distance of the gradients from the dump's is a quadratic in the shares, so it is made small
 * one share after the other, each to its exact least within [0,1], until none moves. Both
 * gradients count, each over its own norm. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "certify/internal.h"
#include "certify/product.h"

#define HAS(faults, name) (((faults)&CPL_FAULT_BIT(name)) != 0)

enum { MOST_SWEEPS = 200 };
static const double STILL = 1e-7; /* of a share, in a sweep */

typedef struct fit {
    cpl_certify_work *w;
    cpl_fault_set faults;
    double by_w,
        by_r; /* one over the squares of the dump's gradients; 0: that one is not looked at */
    double *slope_w; /* [j,i] half the derivative of the distance by c */
    double *rest;    /* [n,d] dR of c less the dump's */
    double *steps;   /* [n_hinges,2,d] what each adds to dR in rows i and k */
} fit;

static bool has_noise(const fit *f)
{
    return f->w->dump.delta && !f->w->t->quiet && !HAS(f->faults, DELTA_LEFT_OUT);
}

/* What the hinge adds to c at [i,j] and at [k,k]. */
static void coefficients(const fit *f, const cpl_certify_hinge *h, double *a, double *b)
{
    *a = h->size * cpl_certify_slope(f->w, f->faults, h->i, h->j);
    *b = h->diagonal * cpl_certify_slope(f->w, f->faults, h->k, h->k);
}

static void add_step(const fit *f, double *step, int64_t i, int64_t j, double c)
{
    const int64_t n = f->w->dump.n, d = f->w->dump.d;
    const double *V     = f->w->t->V + (j * n + i) * d;
    const double *delta = has_noise(f) ? f->w->dump.delta + i * d : NULL;
    for (int64_t k = 0; k < d; k++) step[k] += c * V[k] * (delta ? delta[k] : 1);
}

static double *step_of(const fit *f, const cpl_certify_hinge *h)
{
    return f->steps + (h - f->w->hinges) * 2 * f->w->dump.d;
}

/* Sets what h adds to dR: in the row of i, with that of k where it is the same, and of k. */
static void set_step(const fit *f, const cpl_certify_hinge *h)
{
    const int64_t d = f->w->dump.d;
    double *step    = step_of(f, h), a, b;
    coefficients(f, h, &a, &b);
    memset(step, 0, (size_t)(2 * d) * sizeof *step);
    add_step(f, step, h->i, h->j, a);
    add_step(f, h->k == h->i ? step : step + d, h->k, h->k, b);
}

static double curve_of(const fit *f, const cpl_certify_hinge *h)
{
    const int64_t n = f->w->dump.n, d = f->w->dump.d;
    const double *gram = f->w->t->gram, *step = step_of(f, h);
    double a, b;
    coefficients(f, h, &a, &b);
    double curve =
        a * a * gram[(h->j * n + h->i) * n + h->i] + b * b * gram[(h->k * n + h->k) * n + h->k];
    if (h->k == h->j) curve += 2 * a * b * gram[(h->j * n + h->i) * n + h->k];
    return f->by_w * curve + f->by_r * cpl_certify_dot(step, step, 2 * d);
}

static double slope_of(const fit *f, const cpl_certify_hinge *h)
{
    const int64_t n = f->w->dump.n, d = f->w->dump.d;
    const double *step = step_of(f, h);
    double a, b;
    coefficients(f, h, &a, &b);
    double slope = f->by_w * (a * f->slope_w[h->j * n + h->i] + b * f->slope_w[h->k * n + h->k]);
    if (f->by_r == 0) return slope;
    slope += f->by_r * cpl_certify_dot(step, f->rest + h->i * d, d);
    if (h->k != h->i) slope += f->by_r * cpl_certify_dot(step + d, f->rest + h->k * d, d);
    return slope;
}

/* c at [i,j] grows: so do the derivatives of its column. */
static void grow(const fit *f, int64_t i, int64_t j, double by)
{
    const int64_t n    = f->w->dump.n;
    const double *gram = f->w->t->gram + (j * n + i) * n;
    f->w->c[j * n + i] += by;
    if (f->by_w > 0)
        for (int64_t k = 0; k < n; k++) f->slope_w[j * n + k] += by * gram[k];
}

static void move(const fit *f, cpl_certify_hinge *h, double by)
{
    const int64_t d    = f->w->dump.d;
    const double *step = step_of(f, h);
    double a, b;
    coefficients(f, h, &a, &b);
    h->share += by;
    grow(f, h->i, h->j, by * a);
    grow(f, h->k, h->k, by * b);
    if (f->by_r == 0) return;
    for (int64_t k = 0; k < d; k++) f->rest[h->i * d + k] += by * step[k];
    if (h->k != h->i)
        for (int64_t k = 0; k < d; k++) f->rest[h->k * d + k] += by * step[d + k];
}

/* The most that a share moved. */
static double sweep(const fit *f)
{
    double most = 0;
    for (int64_t m = 0; m < f->w->n_hinges; m++) {
        cpl_certify_hinge *h = &f->w->hinges[m];
        if (!(h->curve > 0)) continue;
        const double wanted = h->share - slope_of(f, h) / h->curve;
        const double share  = wanted < 0 ? 0 : wanted > 1 ? 1 : wanted;
        const double by     = share - h->share;
        if (fabs(by) < STILL / 4) continue;
        move(f, h, by);
        most = fabs(by) > most ? fabs(by) : most;
    }
    return most;
}

static void begin(fit *f)
{
    cpl_certify_work *w = f->w;
    const int64_t n = w->dump.n, d = w->dump.d;
    const double r = cpl_certify_dot(w->dump.dR, w->dump.dR, n * d);
    const bool eps = HAS(f->faults, EPS_GRADIENT); /* its dR mixes rows: left out */
    if (!HAS(f->faults, EXPERTS_DETACHED) && w->t->got_square > 0) f->by_w = 1 / w->t->got_square;
    if (!HAS(f->faults, ROUTER_DETACHED) && !eps && r > 0) f->by_r = 1 / r;
    for (int64_t e = 0; e < n * n; e++) {
        const double *gram = w->t->gram + e * n, *c = w->c + e / n * n;
        f->slope_w[e] = cpl_certify_dot(gram, c, n) - w->t->got[e];
    }
    cpl_certify_router(w, f->faults);
    for (int64_t k = 0; k < n * d; k++) f->rest[k] = w->dR[k] - w->dump.dR[k];
    for (int64_t m = 0; m < w->n_hinges; m++) {
        set_step(f, &w->hinges[m]);
        w->hinges[m].curve = curve_of(f, &w->hinges[m]);
    }
}

cpl_status cpl_certify_fit(cpl_certify_work *w, cpl_fault_set faults)
{
    const int64_t n = w->dump.n, d = w->dump.d;
    if (w->n_hinges == 0) return CPL_OK;
    fit f         = {.w = w, .faults = faults};
    double *block = cpl_alloc((size_t)(n * n + n * d + 2 * d * w->n_hinges) * sizeof *block);
    if (!block) return CPL_ERR_MEMORY;
    f.slope_w = block;
    f.rest    = block + n * n;
    f.steps   = f.rest + n * d;
    begin(&f);
    for (int s = 0; s < MOST_SWEEPS; s++)
        if (sweep(&f) < STILL) break;
    cpl_free(block);
    return CPL_OK;
}

/* ---- ties ---- */

void cpl_certify_read_ties(const cpl_certify_work *w, cpl_certify_judged *out)
{
    static const double near = 0.02;
    int64_t at_0 = 0, at_half = 0, at_1 = 0;
    out->n_ties = 0;
    for (int64_t m = 0; m < w->n_hinges; m++) {
        const cpl_certify_hinge *h = &w->hinges[m];
        if (!h->exact || !(h->curve > 0)) continue;
        out->n_ties++;
        at_0 += h->share < near;
        at_half += fabs(h->share - 0.5) < near;
        at_1 += h->share > 1 - near;
    }
    out->ties = out->n_ties == 0         ? CPL_CERTIFY_TIES_NONE
                : at_1 == out->n_ties    ? CPL_CERTIFY_TIES_PASS
                : at_0 == out->n_ties    ? CPL_CERTIFY_TIES_STRICT
                : at_half == out->n_ties ? CPL_CERTIFY_TIES_HALF
                                         : CPL_CERTIFY_TIES_OTHER;
}
