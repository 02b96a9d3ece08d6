/* judge.c - how far a set of faults is from the dump, and how far it may be; see
 * internal.h.
 *
 * What rounding does to a sum of vectors does not shrink where they cancel. So beside a share of
 * the gradient's norm four times the rounding of its terms passes, taken as independent. */
#include <math.h>

#include "certify/internal.h"
#include "certify/product.h"

#define HAS(faults, name) (((faults)&CPL_FAULT_BIT(name)) != 0)

const cpl_certify_grade cpl_certify_grades[CPL_CERTIFY_GRADES] = {
    [CPL_CERTIFY_F32]      = {2e-6, 2e-6, 1e-4, 1e-4, 4e-7, false},
    [CPL_CERTIFY_AUTOCAST] = {2.5e-3, 1e-4, 5e-3, 1e-2, 4e-7, true},
    [CPL_CERTIFY_BF16]     = {2.5e-3, 1.5e-3, 1e-2, 1e-2, 0x1p-8, true},
};

static const double DEVIATIONS = 4;

/* ---- M and the loss ---- */

/* [j,i] of the tables beside [i,j] of the dump: the other way round where it is transposed. */
static double given_M(const cpl_certify_work *w, cpl_fault_set faults, int64_t i, int64_t j)
{
    const int64_t n = w->dump.n;
    return HAS(faults, TRANSPOSED) ? w->dump.M[j * n + i] : w->dump.M[i * n + j];
}

/* Distance of M over what may pass. */
static double judge_M(const cpl_certify_work *w, cpl_certify_judged *out,
                      const cpl_certify_grade *grade)
{
    const int64_t n = w->dump.n;
    double away = 0, size = 0, noise = 0;
    out->M_away = 0;
    if (!w->dump.M) return 0;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < n; i++) {
            const double M = w->t->M[j * n + i], error = cpl_certify_M_error(w, grade, i, j);
            const double F = HAS(out->faults, SQUARED) ? M * M : M;
            away += pow(given_M(w, out->faults, i, j) - F, 2);
            size += F * F;
            noise += pow(HAS(out->faults, SQUARED) ? 2 * M * error : error, 2);
        }
    out->M_away = away == 0 ? 0 : sqrt(away / size);
    if (away == 0) return 0;
    return sqrt(away) / (grade->values * sqrt(size) + DEVIATIONS * sqrt(noise));
}

/* Of F: the size that hinges have at most. */
static double largest(const cpl_certify_work *w, cpl_fault_set faults)
{
    double most = 0;
    for (int64_t e = 0; e < w->dump.n * w->dump.n; e++) most = fmax(most, w->t->M[e]);
    return HAS(faults, SQUARED) ? most * most : most;
}

/* Where no hinge shows there may be a few numbers in the dump that are small beside one. */
static const double NOTHING = 1e-3;

static double judge_loss(const cpl_certify_work *w, cpl_certify_judged *out,
                         const cpl_certify_grade *grade)
{
    const double away = fabs(w->dump.loss - w->loss);
    out->loss         = w->loss;
    if (away == 0) return 0;
    const double passes =
        grade->values * (fabs(w->loss) + NOTHING * fabs(w->u) * largest(w, out->faults)) +
        DEVIATIONS * w->loss_noise;
    return away / passes;
}

/* ---- gradients ---- */

/* Squares of one gradient. */
typedef struct measured {
    double away, size, got, product; /* of what is expected, what the dump has, and of both */
    double passes;                   /* the distance that may */
} measured;

static void measure_experts(const cpl_certify_work *w, measured *m, cpl_fault_set faults)
{
    const int64_t n = w->dump.n;
    *m              = (measured){.got = w->t->got_square};
    if (!HAS(faults, EXPERTS_DETACHED))
        for (int64_t e = 0; e < n * n; e++) {
            m->size += w->c[e] * cpl_certify_dot(w->t->gram + e * n, w->c + e / n * n, n);
            m->product += w->c[e] * w->t->got[e];
        }
    m->away = fmax(0, m->size - 2 * m->product + m->got);
}

static void measure_router(cpl_certify_work *w, measured *m, cpl_fault_set faults)
{
    const int64_t count = w->dump.n * w->dump.d;
    cpl_certify_router(w, faults);
    *m         = (measured){.got = cpl_certify_dot(w->dump.dR, w->dump.dR, count)};
    m->size    = cpl_certify_dot(w->dR, w->dR, count);
    m->product = cpl_certify_dot(w->dR, w->dump.dR, count);
    for (int64_t k = 0; k < count; k++) m->away += pow(w->dR[k] - w->dump.dR[k], 2);
}

/* What the rounding of terms lets pass, of both. */
static void measure_noise(const cpl_certify_work *w, measured *experts, measured *router,
                          const cpl_certify_grade *grade)
{
    const int64_t n    = w->dump.n;
    const double least = (double)(w->dump.D < w->dump.d ? w->dump.D : w->dump.d);
    double by_w = 0, by_r = 0, x = 0, g = 0;
    for (int64_t j = 0; j < n; j++) {
        const double w_norm = w->t->w_norm[j];
        for (int64_t i = 0; i < n; i++) {
            const double error = w->c[j * n + i] * cpl_certify_error(w, grade, i, j);
            by_w += pow(error * w->t->x_norm[i], 2);
            by_r += pow(error * w_norm, 2) / least;
        }
        x += pow(w->t->x_norm[j], 2) / (double)n;
        g += pow(w_norm, 2) / (double)n / least;
    }
    const double nothing = grade->gradients * NOTHING * fabs(w->u);
    experts->passes =
        grade->gradients * sqrt(experts->size) + DEVIATIONS * sqrt(2 * by_w) + nothing * sqrt(x);
    router->passes =
        grade->gradients * sqrt(router->size) + DEVIATIONS * sqrt(2 * by_r) + nothing * sqrt(g);
}

static double over(double away, double passes)
{
    return away == 0 ? 0 : away / passes;
}

static double relative(const measured *m)
{
    const double norm = fmax(m->size, m->got);
    return norm > 0 ? m->away / norm : 0;
}

/* The number that c must be multiplied with to come nearest. */
static double fitted_scale(const measured *a, const measured *b)
{
    double product = 0, size = 0;
    if (a->got > 0) product += a->product / a->got, size += a->size / a->got;
    if (b->got > 0) product += b->product / b->got, size += b->size / b->got;
    return size > 0 ? product / size : 0;
}

static void multiply(cpl_certify_work *w, double factor)
{
    for (int64_t e = 0; e < w->dump.n * w->dump.n; e++) w->c[e] *= factor;
    for (int64_t m = 0; m < w->n_hinges; m++) {
        w->hinges[m].size *= factor;
        w->hinges[m].diagonal *= factor;
    }
    w->u *= factor;
    w->loss *= factor;
    w->loss_noise *= fabs(factor);
}

static void multiply_by_fitted(cpl_certify_work *w, cpl_certify_judged *out)
{
    measured experts, router;
    measure_experts(w, &experts, out->faults);
    measure_router(w, &router, out->faults);
    const double factor = fitted_scale(&experts, &router);
    multiply(w, factor);
    out->factor *= factor;
}

/* FACTOR's number. Hinges at their bound add nothing to the loss, so where there are some it is the
 * loss that the fit of their shares begins with. */
static cpl_status take_factor(cpl_certify_work *w, cpl_certify_judged *out)
{
    const double by_loss = w->dump.loss / w->loss;
    if (w->n_hinges > 0 && w->loss != 0 && by_loss != 0) {
        multiply(w, by_loss);
        out->factor = by_loss;
        CPL_TRY(cpl_certify_fit(w, out->faults));
    }
    multiply_by_fitted(w, out);
    return CPL_OK;
}

static cpl_status judge_gradients(cpl_certify_work *w, cpl_certify_judged *out,
                                  const cpl_certify_grade *grade)
{
    measured experts, router;
    const cpl_fault_set faults = out->faults;
    if (HAS(faults, FACTOR)) CPL_TRY(take_factor(w, out));
    CPL_TRY(cpl_certify_fit(w, faults));
    measure_experts(w, &experts, faults);
    measure_router(w, &router, faults);
    measure_noise(w, &experts, &router, grade);
    const double a = over(sqrt(experts.away), experts.passes);
    const double b = over(sqrt(router.away), router.passes);
    out->off       = fmax(out->off, fmax(a, b));
    out->rho       = sqrt((relative(&experts) + relative(&router)) / 2);
    out->scale     = fitted_scale(&experts, &router);
    out->shown     = sqrt(fmax(relative(&experts), relative(&router)));
    out->measured  = true;
    cpl_certify_read_ties(w, out);
    return CPL_OK;
}

/* ---- all of it ---- */

/* Faults that change neither M nor the loss but for u. */
static const cpl_fault_set outer =
    CPL_FAULT_BIT(LOSS_SIGN) | CPL_FAULT_BIT(PAIRS_MEAN) | CPL_FAULT_BIT(ROWS_MEAN) |
    CPL_FAULT_BIT(NO_MEAN) | CPL_FAULT_BIT(WEIGHT_LEFT_OUT) | CPL_FAULT_BIT(WEIGHT_TWICE) |
    CPL_FAULT_BIT(LAYERS_SUM) | CPL_FAULT_BIT(LAYERS_TWICE) | CPL_FAULT_BIT(ROUTER_DETACHED) |
    CPL_FAULT_BIT(EXPERTS_DETACHED) | CPL_FAULT_BIT(DELTA_LEFT_OUT) | CPL_FAULT_BIT(EPS_GRADIENT) |
    CPL_FAULT_BIT(FACTOR);

static void remember(cpl_certify_work *w, const cpl_certify_judged *judged,
                     const cpl_certify_grade *grade)
{
    w->last.inner      = judged->faults & ~outer;
    w->last.grade      = grade;
    w->last.loss       = w->loss / w->u;
    w->last.loss_noise = w->loss_noise / fabs(w->u);
    w->last.M_off      = judged->off;
    w->last.M_away     = judged->M_away;
}

/* Whether loss and M of the set before, which has the same, already tell that this one is not. */
static bool is_out(cpl_certify_work *w, cpl_certify_judged *out, const cpl_certify_grade *grade)
{
    if (w->last.grade != grade || w->last.inner != (out->faults & ~outer)) return false;
    w->u          = cpl_certify_u(w, out->faults);
    w->loss       = w->last.loss * w->u;
    w->loss_noise = w->last.loss_noise * fabs(w->u);
    out->M_away   = w->last.M_away;
    out->off      = w->last.M_off;
    if (!HAS(out->faults, FACTOR)) out->off = fmax(out->off, judge_loss(w, out, grade));
    return out->off > 1;
}

static cpl_status judge_all(cpl_certify_work *w, cpl_certify_judged *out,
                            const cpl_certify_grade *grade, bool all)
{
    const bool by_factor = HAS(out->faults, FACTOR);
    if (!all && is_out(w, out, grade)) return CPL_OK;
    CPL_TRY(
        cpl_certify_tables_take(cpl_certify_kind(w, out->faults), &w->dump, false, w->n_threads));
    CPL_TRY(cpl_certify_assume(w, out->faults, grade));
    out->off = judge_M(w, out, grade);
    remember(w, out, grade);
    if (!by_factor) out->off = fmax(out->off, judge_loss(w, out, grade));
    if (out->off > 1 && !all) return CPL_OK;
    CPL_TRY(
        cpl_certify_tables_take(cpl_certify_kind(w, out->faults), &w->dump, true, w->n_threads));
    CPL_TRY(judge_gradients(w, out, grade));
    if (by_factor) out->off = fmax(out->off, judge_loss(w, out, grade));
    return CPL_OK;
}

cpl_status cpl_certify_judge(cpl_certify_work *w, cpl_certify_judged *out, cpl_fault_set faults,
                             const cpl_certify_grade *grade, bool all)
{
    *out = (cpl_certify_judged){.faults = faults, .factor = 1, .scale = 1};
    w->t = cpl_certify_kind(w, faults);
    CPL_TRY(judge_all(w, out, grade, all));
    const double norm = fmax(fabs(w->loss), fabs(w->dump.loss));
    const double loss = norm > 0 ? fabs(w->dump.loss - w->loss) / norm : 0;
    out->shown        = fmax(out->shown, fmax(loss, out->M_away));
    out->fits         = out->measured && out->off <= 1;
    return CPL_OK;
}
