/* search.c - the smallest set of faults that explains a dump; see internal.h.
 *
 * First all sets are held against the dump as if it had been computed in f32. Where none explains
 * it, again with what products in bf16 would do to it, and then with everything in bf16; that lets
 * small faults pass too, so there a larger set takes the place of a smaller one that fits, where it
 * fits so much better that rounding cannot be the reason: see beats(). */
#include <math.h>
#include <string.h>

#include "certify/internal.h"

#define BIT(name) CPL_FAULT_BIT(name)

enum { MOST_SETS = 1 + CPL_N_FAULTS * CPL_N_FAULTS };

typedef struct search {
    cpl_certify_work *w;
    const cpl_certify_grade *grade;
    cpl_certify_judged fits[MOST_SETS]; /* in the order of their sizes */
    int n_fits;
} search;

/* ---- sets ---- */

/* Whether every fault of the set can show beside the others. */
static bool is_worth_trying(const cpl_certify_work *w, cpl_fault_set faults)
{
    if (!cpl_certify_possible(faults)) return false;
    for (int f = 0; f < CPL_N_FAULTS; f++) {
        const cpl_fault_set bit = (cpl_fault_set)1 << f;
        if ((faults & bit) && cpl_certify_idle(w, (cpl_fault)f, faults & ~bit)) return false;
    }
    return true;
}

static cpl_status try_set(search *s, cpl_fault_set faults)
{
    cpl_certify_judged judged;
    if (!is_worth_trying(s->w, faults)) return CPL_OK;
    CPL_TRY(cpl_certify_judge(s->w, &judged, faults, s->grade, false));
    const bool nothing = (faults & BIT(FACTOR)) && judged.factor == 0;
    if (judged.fits && !nothing) s->fits[s->n_fits++] = judged;
    return CPL_OK;
}

static cpl_status try_size(search *s, int size)
{
    if (size == 0) return try_set(s, 0);
    for (int f = 0; f < CPL_FAULT_FACTOR; f++) {
        const cpl_fault_set one = (cpl_fault_set)1 << f;
        if (size == 1) CPL_TRY(try_set(s, one));
        for (int g = f + 1; size == 2 && g < CPL_FAULT_FACTOR; g++)
            CPL_TRY(try_set(s, one | (cpl_fault_set)1 << g));
    }
    return CPL_OK;
}

/* A number that nothing explains, alone or beside one fault. */
static cpl_status try_factor(search *s)
{
    CPL_TRY(try_set(s, BIT(FACTOR)));
    if (s->n_fits) return CPL_OK;
    for (int f = 0; f < CPL_FAULT_FACTOR; f++)
        CPL_TRY(try_set(s, BIT(FACTOR) | (cpl_fault_set)1 << f));
    return CPL_OK;
}

static int size_of(cpl_fault_set faults)
{
    int size = 0;
    for (; faults; faults &= faults - 1) size++;
    return size;
}

/* ---- which of those that fit ---- */

/* A difference that rounding to bf16 does not make, and by how much the better must be better. */
static const double TOLD = 8e-3, BETTER = 3;

/* Whether `b` explains what `a` leaves over. A wrong number before everything is told by the number
 * that fits best, in which rounding averages out. */
static bool beats(const cpl_certify_judged *b, const cpl_certify_judged *a)
{
    const double gap = sqrt(fmax(0, a->rho * a->rho - b->rho * b->rho));
    if (gap >= TOLD && a->rho >= BETTER * b->rho) return true;
    if (!(a->scale > 0) || !(b->scale > 0) || !(b->rho < a->rho)) return false;
    const double left = fabs(log(b->scale)), was = fabs(log(a->scale));
    return was >= TOLD && left < was / BETTER && gap >= TOLD;
}

/* The best of those of the smallest size; then larger ones that beat it. */
static const cpl_certify_judged *choose(const search *s, bool larger_too)
{
    const cpl_certify_judged *best = NULL;
    for (int k = 0; k < s->n_fits; k++) {
        const cpl_certify_judged *one = &s->fits[k];
        const int more                = best ? size_of(one->faults) - size_of(best->faults) : 0;
        if (!best || (more == 0 && one->off < best->off) ||
            (more > 0 && larger_too && beats(one, best)))
            best = one;
    }
    return best;
}

static cpl_status try_sets(search *s, const cpl_certify_grade *grade)
{
    s->grade = grade;
    for (int size = 0; size <= 2 && (grade->rounded || !s->n_fits); size++)
        CPL_TRY(try_size(s, size));
    return CPL_OK;
}

/* Grade by grade until something fits. A number that nothing explains could be rounding, so that
 * comes after all that is known. */
static cpl_status try_grades(search *s)
{
    const cpl_certify_grade *grades = cpl_certify_grades;
    CPL_TRY(try_sets(s, &grades[CPL_CERTIFY_F32]));
    if (!s->n_fits) CPL_TRY(try_factor(s));
    for (int g = CPL_CERTIFY_AUTOCAST; g < CPL_CERTIFY_GRADES && !s->n_fits; g++)
        CPL_TRY(try_sets(s, &grades[g]));
    for (int g = CPL_CERTIFY_AUTOCAST; g < CPL_CERTIFY_GRADES && !s->n_fits; g++) {
        s->grade = &grades[g];
        CPL_TRY(try_factor(s));
    }
    return CPL_OK;
}

/* ---- the verdict ---- */

/* As small and as near; near to the tolerance is not. */
static bool is_as_good(const cpl_certify_judged *one, const cpl_certify_judged *best, bool rounded)
{
    if (one->faults == best->faults || size_of(one->faults) != size_of(best->faults)) return false;
    return rounded ? !beats(best, one) : one->off <= fmax(0.1, 10 * best->off);
}

static void set_verdict(const search *s, const cpl_certify_judged *best, cpl_certificate *out)
{
    out->rounded = s->grade->rounded;
    out->faults  = best->faults;
    out->verdict = best->faults ? CPL_CERTIFY_FAULT : CPL_CERTIFY_RIGHT;
    out->factor  = best->factor;
    out->ties    = best->ties;
    out->n_ties  = best->n_ties;
    for (int k = 0; k < s->n_fits && out->n_alternatives < CPL_CERTIFY_ALTERNATIVES; k++)
        if (is_as_good(&s->fits[k], best, out->rounded))
            out->alternatives[out->n_alternatives++] = s->fits[k].faults;
}

/* None explains it: the single fault that comes nearest. */
static cpl_status find_nearest(search *s, cpl_certificate *out)
{
    double least = INFINITY;
    out->verdict = CPL_CERTIFY_UNKNOWN;
    out->rounded = true;
    for (int f = -1; f < CPL_FAULT_FACTOR; f++) {
        const cpl_fault_set faults = f < 0 ? 0 : (cpl_fault_set)1 << f;
        cpl_certify_judged judged;
        if (!is_worth_trying(s->w, faults)) continue;
        CPL_TRY(cpl_certify_judge(s->w, &judged, faults, s->grade, true));
        if (!(judged.shown < least)) continue;
        least       = judged.shown;
        out->faults = faults;
    }
    return CPL_OK;
}

/* ---- what cannot be told ---- */

static cpl_status find_untold(const search *s, const cpl_certify_judged *best, cpl_certificate *out)
{
    for (int f = 0; f < CPL_FAULT_FACTOR; f++) {
        const cpl_fault_set bit = (cpl_fault_set)1 << f;
        cpl_certify_judged judged;
        if (best->faults & bit) continue;
        out->reasons[f] = cpl_certify_idle(s->w, (cpl_fault)f, best->faults);
        if (!out->reasons[f] && cpl_certify_possible(best->faults | bit)) {
            CPL_TRY(cpl_certify_judge(s->w, &judged, best->faults | bit, s->grade, false));
            if (judged.fits && !(out->rounded && beats(best, &judged)))
                out->reasons[f] = s->w->active == 0
                                      ? "no hinge is active: there is no gradient to look at"
                                      : "it gives the same numbers here, but for rounding";
        }
        if (out->reasons[f]) out->untold |= bit;
    }
    return CPL_OK;
}

cpl_status cpl_certify_search(cpl_certify_work *w, cpl_certificate *out)
{
    search s = {.w = w};
    CPL_TRY(try_grades(&s));
    w->grade                       = s.grade;
    const cpl_certify_judged *best = choose(&s, s.grade->rounded);
    if (!best) return find_nearest(&s, out);
    set_verdict(&s, best, out);
    return find_untold(&s, best, out);
}
