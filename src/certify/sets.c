/* sets.c - which faults can stand together, and which can show; see internal.h */
#include <math.h>

#include "certify/internal.h"

#define BIT(name) CPL_FAULT_BIT(name)

/* Of each of these at most one. */
static const cpl_fault_set either[] = {
    BIT(MERGED) | BIT(UP_FOR_GATE),
    BIT(ROW_MISSING) | BIT(COLUMN_MISSING),
    BIT(PAIRS_MEAN) | BIT(ROWS_MEAN) | BIT(NO_MEAN),
    BIT(WEIGHT_LEFT_OUT) | BIT(WEIGHT_TWICE),
    BIT(LAYERS_SUM) | BIT(LAYERS_TWICE),
    BIT(NOISE_LEFT_OUT) | BIT(DELTA_LEFT_OUT),
    BIT(NOISE_LEFT_OUT) | BIT(EPS_GRADIENT),
    BIT(ROUTER_DETACHED) | BIT(DELTA_LEFT_OUT),
    BIT(ROUTER_DETACHED) | BIT(EPS_GRADIENT),
    BIT(UP_FOR_GATE) | BIT(EXPERTS_DETACHED),
};

static const cpl_fault_set scales = BIT(LOSS_SIGN) | BIT(PAIRS_MEAN) | BIT(ROWS_MEAN) |
                                    BIT(NO_MEAN) | BIT(WEIGHT_LEFT_OUT) | BIT(WEIGHT_TWICE) |
                                    BIT(LAYERS_SUM) | BIT(LAYERS_TWICE);

static bool is_several(cpl_fault_set faults)
{
    return (faults & (faults - 1)) != 0;
}

bool cpl_certify_possible(cpl_fault_set faults)
{
    for (size_t k = 0; k < sizeof either / sizeof *either; k++)
        if (is_several(faults & either[k])) return false;
    return !(faults & BIT(FACTOR)) || !(faults & scales);
}

static bool is_noisy(const cpl_certify_dump *dump)
{
    if (!dump->delta) return false;
    for (int64_t k = 0; k < dump->n * dump->d; k++)
        if (dump->delta[k] != 1) return true;
    return false;
}

static const char *idle_by_noise(const cpl_certify_work *w, cpl_fault f, cpl_fault_set faults)
{
    if (!is_noisy(&w->dump)) return "the dump has no noise (delta)";
    if (f == CPL_FAULT_NOISE_LEFT_OUT) return NULL;
    return faults & (BIT(NOISE_LEFT_OUT) | BIT(ROUTER_DETACHED)) ? "another fault hides it" : NULL;
}

static const char *idle_by_alpha(const cpl_certify_work *w, cpl_fault f, cpl_fault_set faults)
{
    const double alpha = faults & BIT(ALPHA_IGNORED) ? 1 : w->dump.alpha;
    const bool turned  = (faults & BIT(HINGE_SIGN)) != 0;
    if (f == CPL_FAULT_ALPHA_IGNORED) return w->dump.alpha == 1 ? "alpha is 1" : NULL;
    if (f == CPL_FAULT_DIAGONAL_DETACHED) return alpha == 0 ? "alpha is 0" : NULL;
    if (turned ? alpha <= 1 : alpha >= 1)
        return turned ? "alpha is at most 1: hinges on the diagonal are 0"
                      : "alpha is 1 or more: hinges on the diagonal are 0";
    return NULL;
}

const char *cpl_certify_idle(const cpl_certify_work *w, cpl_fault f, cpl_fault_set faults)
{
    switch (f) {
    case CPL_FAULT_MERGED:
    case CPL_FAULT_UP_FOR_GATE:
        return w->dump.weights[CPL_CERTIFY_UP] ? NULL : "the dump has no W_p";
    case CPL_FAULT_NOISE_LEFT_OUT:
    case CPL_FAULT_DELTA_LEFT_OUT:
    case CPL_FAULT_EPS_GRADIENT:
        return idle_by_noise(w, f, faults);
    case CPL_FAULT_ALPHA_IGNORED:
    case CPL_FAULT_DIAGONAL_DETACHED:
    case CPL_FAULT_DIAGONAL_KEPT:
        return idle_by_alpha(w, f, faults);
    case CPL_FAULT_WEIGHT_LEFT_OUT:
    case CPL_FAULT_WEIGHT_TWICE:
        return w->dump.weight == 1 ? "weight is 1" : NULL;
    case CPL_FAULT_LAYERS_SUM:
    case CPL_FAULT_LAYERS_TWICE:
        return w->dump.layers == 1 ? "layers is 1 or absent" : NULL;
    case CPL_FAULT_PAIRS_MEAN:
    case CPL_FAULT_ROWS_MEAN:
    case CPL_FAULT_NO_MEAN:
        return w->dump.n == 1 ? "n is 1" : NULL;
    case CPL_FAULT_TRANSPOSED:
        return w->dump.M ? NULL : "the dump has no M";
    default:
        return NULL;
    }
}

cpl_certify_tables *cpl_certify_kind(cpl_certify_work *w, cpl_fault_set faults)
{
    const int quiet           = (faults & BIT(NOISE_LEFT_OUT)) != 0;
    const int which           = faults & BIT(MERGED) ? 1 : faults & BIT(UP_FOR_GATE) ? 2 : 0;
    cpl_certify_tables *t     = &w->tables[quiet][which];
    t->quiet                  = quiet;
    t->uses[CPL_CERTIFY_GATE] = which != 2;
    t->uses[CPL_CERTIFY_UP]   = which != 0;
    return t;
}
