/* hypothesis.c - loss and gradients under a set of faults; see internal.h. Source of
 * the right ones: docs/method.md 3. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "certify/internal.h"
#include "certify/product.h"

#define HAS(faults, name) (((faults)&CPL_FAULT_BIT(name)) != 0)

static const double TIE   = 1e-9;   /* relative; sums of doubles in another order differ by less */
static const double SHORT = 0x1p-8; /* one step of bf16, relative */

/* ---- what is compared ---- */

double cpl_certify_slope(const cpl_certify_work *w, cpl_fault_set faults, int64_t i, int64_t j)
{
    const double M = w->t->M[j * w->dump.n + i];
    if (M == 0) return 0;
    return HAS(faults, SQUARED) ? 2 : 1 / M;
}

static double compared(const cpl_certify_work *w, cpl_fault_set faults, int64_t i, int64_t j)
{
    const double M = w->t->M[j * w->dump.n + i];
    return HAS(faults, SQUARED) ? M * M : M;
}

double cpl_certify_error(const cpl_certify_work *w, const cpl_certify_grade *grade, int64_t i,
                         int64_t j)
{
    return grade->unit * w->t->error[j * w->dump.n + i];
}

double cpl_certify_M_error(const cpl_certify_work *w, const cpl_certify_grade *grade, int64_t i,
                           int64_t j)
{
    const double error = cpl_certify_error(w, grade, i, j);
    const double own   = grade->M_unit * w->t->M[j * w->dump.n + i];
    return sqrt(error * error / (double)w->dump.D + own * own);
}

static double compared_error(const cpl_certify_work *w, cpl_fault_set faults,
                             const cpl_certify_grade *grade, int64_t i, int64_t j)
{
    const double error = cpl_certify_M_error(w, grade, i, j);
    return HAS(faults, SQUARED) ? 2 * w->t->M[j * w->dump.n + i] * error : error;
}

/* ---- hinges ---- */

typedef struct terms {
    cpl_certify_work *w;
    cpl_fault_set faults;
    const cpl_certify_grade *grade;
    double alpha, sign; /* of the hinge: sign (F[i,j] - alpha F[k,k]) */
} terms;

/* By how much of itself a number of the dump's M may have been rounded. */
static double step_of(const terms *t)
{
    return t->w->dump.short_M ? SHORT : t->grade->M_step;
}

/* As the implementation saw it, where it tells. What lies further from the M at hand than rounding
 * comes from another one, and says nothing of the hinges of this. */
static double seen(const terms *t, int64_t i, int64_t j)
{
    const cpl_certify_work *w = t->w;
    const double F            = compared(w, t->faults, i, j);
    if (!w->dump.M) return F;
    const double told =
        HAS(t->faults, TRANSPOSED) ? w->dump.M[j * w->dump.n + i] : w->dump.M[i * w->dump.n + j];
    const double rounding = 8 * compared_error(w, t->faults, t->grade, i, j) + 4 * step_of(t) * F;
    return fabs(told - F) <= rounding ? told : F;
}

double cpl_certify_u(const cpl_certify_work *w, cpl_fault_set faults)
{
    const double n = (double)w->dump.n;
    double u       = w->dump.weight / (n * n * w->dump.layers);
    if (HAS(faults, LOSS_SIGN)) u = -u;
    if (HAS(faults, PAIRS_MEAN)) u *= n / (n - 1);
    if (HAS(faults, ROWS_MEAN)) u *= n;
    if (HAS(faults, NO_MEAN)) u *= n * n;
    if (HAS(faults, WEIGHT_LEFT_OUT)) u /= w->dump.weight;
    if (HAS(faults, WEIGHT_TWICE)) u *= w->dump.weight;
    if (HAS(faults, LAYERS_SUM)) u *= w->dump.layers;
    if (HAS(faults, LAYERS_TWICE)) u /= w->dump.layers;
    return u;
}

/* How far from its bound a hinge can be and still have been seen on the other side. */
static double band(const terms *t, int64_t i, int64_t j, int64_t k)
{
    const cpl_certify_work *w = t->w;
    if (w->dump.M) return step_of(t) * (fabs(seen(t, i, j)) + t->alpha * fabs(seen(t, k, k)));
    return 4 * (compared_error(w, t->faults, t->grade, i, j) +
                t->alpha * compared_error(w, t->faults, t->grade, k, k));
}

static cpl_status remember(cpl_certify_work *w, const cpl_certify_hinge *h)
{
    if (w->n_hinges == w->most_hinges) {
        const int64_t most      = w->most_hinges ? 2 * w->most_hinges : 64;
        cpl_certify_hinge *more = cpl_realloc(w->hinges, (size_t)most * sizeof *more);
        if (!more) return CPL_ERR_MEMORY;
        w->hinges      = more;
        w->most_hinges = most;
    }
    w->hinges[w->n_hinges++] = *h;
    return CPL_OK;
}

/* F[i,j] against the diagonal k: adds to the loss and, as dL/dF, to c. */
static cpl_status add_hinge(const terms *t, int64_t i, int64_t j, int64_t k)
{
    cpl_certify_work *w = t->w;
    const int64_t n     = w->dump.n;
    const double F = compared(w, t->faults, i, j), bound = t->alpha * compared(w, t->faults, k, k);
    const double over   = t->sign * (F - bound);
    const double view   = t->sign * (seen(t, i, j) - t->alpha * seen(t, k, k));
    cpl_certify_hinge h = {.i = i, .j = j, .k = k, .size = t->sign * w->u};
    h.diagonal          = HAS(t->faults, DIAGONAL_DETACHED) ? 0 : -t->alpha * h.size;
    h.exact             = fabs(over) <= TIE * (F + bound);
    h.share             = h.exact || view >= 0 ? 1 : 0;
    if (over > 0) w->loss += w->u * over;
    w->c[j * n + i] += h.share * h.size;
    w->c[k * n + k] += h.share * h.diagonal;
    w->active += h.share > 0;
    if (!h.exact && fabs(view) > band(t, i, j, k)) return CPL_OK;
    w->loss_noise += pow(w->u * compared_error(w, t->faults, t->grade, i, j), 2) +
                     pow(w->u * t->alpha * compared_error(w, t->faults, t->grade, k, k), 2);
    return remember(w, &h);
}

static void add_diagonal(const terms *t, int64_t i)
{
    cpl_certify_work *w = t->w;
    const double over   = t->sign * (1 - t->alpha) * compared(w, t->faults, i, i);
    const double times  = HAS(t->faults, ROW_MISSING) || HAS(t->faults, COLUMN_MISSING) ? 1 : 2;
    const double bound  = HAS(t->faults, DIAGONAL_DETACHED) ? 0 : t->alpha;
    if (!HAS(t->faults, DIAGONAL_KEPT) || over <= 0) return;
    w->loss += times * w->u * over;
    w->c[i * w->dump.n + i] += times * t->sign * w->u * (1 - bound);
}

/* c from dL/dF; the noise of the loss. */
static void finish(const terms *t)
{
    cpl_certify_work *w = t->w;
    const int64_t n     = w->dump.n;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < n; i++) {
            double *c = &w->c[j * n + i];
            w->loss_noise += pow(*c * compared_error(w, t->faults, t->grade, i, j), 2);
            *c *= cpl_certify_slope(w, t->faults, i, j);
        }
    w->loss_noise = sqrt(w->loss_noise);
}

cpl_status cpl_certify_assume(cpl_certify_work *w, cpl_fault_set faults,
                              const cpl_certify_grade *grade)
{
    const int64_t n = w->dump.n;
    const terms t   = {w, faults, grade, HAS(faults, ALPHA_IGNORED) ? 1 : w->dump.alpha,
                     HAS(faults, HINGE_SIGN) ? -1 : 1};
    w->u            = cpl_certify_u(w, faults);
    w->loss = w->loss_noise = 0;
    w->n_hinges = w->active = 0;
    memset(w->c, 0, (size_t)(n * n) * sizeof *w->c);
    for (int64_t i = 0; i < n; i++) {
        add_diagonal(&t, i);
        for (int64_t j = 0; j < n; j++) {
            if (i == j) continue;
            if (!HAS(faults, ROW_MISSING)) CPL_TRY(add_hinge(&t, i, j, i));
            if (!HAS(faults, COLUMN_MISSING)) CPL_TRY(add_hinge(&t, i, j, j));
        }
    }
    finish(&t);
    return CPL_OK;
}

/* ---- the router's gradient ---- */

/* delta_i = 1 + eps_i z with z free of eps, so that
 *     dL/deps_i = dX_i . (R_i (delta_i - 1)) / eps_i,
 * and eps_i = |R_i - R_m| / (2 |R_i|) pulls at R_i and at its nearest row m. */
static void add_eps(cpl_certify_work *w, int64_t i)
{
    const int64_t d = w->dump.d, m = w->nearest[i];
    const double *R = w->dump.R + i * d, *near = w->dump.R + m * d, *dX = w->dX + i * d;
    const double *delta = w->dump.delta + i * d;
    const double eps = w->eps[i], square = cpl_certify_dot(R, R, d);
    double by_eps = 0;
    if (!(eps > 0)) return;
    for (int64_t k = 0; k < d; k++) by_eps += dX[k] * R[k] * (delta[k] - 1) / eps;
    const double apart = 4 * eps * square; /* 2 |R_i| |R_i - R_m| */
    for (int64_t k = 0; k < d; k++) {
        w->dR[i * d + k] += by_eps * ((R[k] - near[k]) / apart - eps * R[k] / square);
        w->dR[m * d + k] -= by_eps * (R[k] - near[k]) / apart;
    }
}

void cpl_certify_router(cpl_certify_work *w, cpl_fault_set faults)
{
    const int64_t n = w->dump.n, d = w->dump.d;
    const bool noisy = w->dump.delta && !w->t->quiet && !HAS(faults, DELTA_LEFT_OUT);
    memset(w->dX, 0, (size_t)(n * d) * sizeof *w->dX);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < n; i++) {
            const double c = w->c[j * n + i], *V = w->t->V + (j * n + i) * d;
            double *dX = w->dX + i * d;
            if (c == 0) continue;
            for (int64_t k = 0; k < d; k++) dX[k] += c * V[k];
        }
    for (int64_t k = 0; k < n * d; k++)
        w->dR[k] = HAS(faults, ROUTER_DETACHED) ? 0 : w->dX[k] * (noisy ? w->dump.delta[k] : 1);
    if (HAS(faults, EPS_GRADIENT))
        for (int64_t i = 0; i < n; i++) add_eps(w, i);
}

/* ---- eps ---- */

cpl_status cpl_certify_nearest(cpl_certify_work *w)
{
    const int64_t n = w->dump.n, d = w->dump.d;
    w->eps     = cpl_alloc((size_t)n * sizeof *w->eps);
    w->nearest = cpl_alloc((size_t)n * sizeof *w->nearest);
    if (!w->eps || !w->nearest) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        const double *R = w->dump.R + i * d;
        double least    = INFINITY;
        w->nearest[i]   = i;
        for (int64_t m = 0; m < n; m++) {
            double square = 0;
            for (int64_t k = 0; k < d; k++)
                square += (R[k] - w->dump.R[m * d + k]) * (R[k] - w->dump.R[m * d + k]);
            if (m == i || !(square < least)) continue;
            least         = square;
            w->nearest[i] = m;
        }
        const double norm = sqrt(cpl_certify_dot(R, R, d));
        w->eps[i]         = n > 1 && norm > 0 ? sqrt(least) / (2 * norm) : 0;
    }
    return CPL_OK;
}
