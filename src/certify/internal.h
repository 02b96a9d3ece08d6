/* internal.h - what the files of certify.h share: a set of faults as numbers c, and how far
 * these are from a dump.
 *
 * Room:   certify.
 * Names:  as in tables.h; F is what hinges compare, M or its square; u the coefficient of
 *         one hinge, weight / (n^2 layers) unless a fault changes it. */
#ifndef CPL_CERTIFY_INTERNAL_H
#define CPL_CERTIFY_INTERNAL_H

#include "certify/certify.h"
#include "certify/tables.h"

/* How exact an implementation is taken to be. */
typedef struct cpl_certify_grade {
    double unit;      /* relative error of the numbers of a product */
    double M_unit;    /* of M itself, once more */
    double values;    /* what passes of loss and M, relative */
    double gradients; /* and of gradients */
    double M_step;    /* relative error of the dump's M beside the one its hinges saw */
    bool rounded;
} cpl_certify_grade;

/* Everything in f32; products in bf16, as autocast makes them; everything in bf16. */
enum { CPL_CERTIFY_F32, CPL_CERTIFY_AUTOCAST, CPL_CERTIFY_BF16, CPL_CERTIFY_GRADES };
extern const cpl_certify_grade cpl_certify_grades[CPL_CERTIFY_GRADES];

/* A hinge that may go either way: its share of the gradient is fitted. */
typedef struct cpl_certify_hinge {
    int64_t i, j, k;       /* M[i,j] against the diagonal k, which is i or j */
    double size, diagonal; /* what it adds to dL/dF at [i,j], and at [k,k] */
    double share, curve;   /* in [0,1]; half the second derivative of the distance by it */
    bool exact;            /* F[i,j] is the bound, not only near it */
} cpl_certify_hinge;

typedef struct cpl_certify_work {
    cpl_certify_dump dump;
    int n_threads;
    cpl_certify_tables tables[2][3]; /* [quiet], [gate, both, up] */
    double *eps;                     /* [n] of R, and */
    int64_t *nearest;                /* [n] the row it comes from */

    const cpl_certify_grade *grade; /* at which the verdict was found */

    /* loss and M of the sets met last: many sets share them but for u */
    struct {
        cpl_fault_set inner; /* the faults that they depend on */
        const cpl_certify_grade *grade;
        double loss, loss_noise, M_off, M_away; /* those of the loss at u = 1 */
    } last;

    /* the hypothesis at hand */
    const cpl_certify_tables *t;
    double *c;  /* [j,i] */
    double *dX; /* [n,d] gradient by the proxies */
    double *dR; /* [n,d] by the router */
    cpl_certify_hinge *hinges;
    int64_t n_hinges, most_hinges;
    int64_t active;
    double u, loss, loss_noise;
} cpl_certify_work;

/* What a set of faults comes to. */
typedef struct cpl_certify_judged {
    cpl_fault_set faults;
    bool fits;           /* everything within what the grade lets pass */
    bool measured;       /* the gradients too, not only loss and M */
    double off;          /* the worst distance, over what would pass */
    double rho;          /* distance of both gradients over their norms */
    double shown;        /* largest relative distance of loss, M, dR, dW */
    double factor;       /* of FACTOR, or 1 */
    double scale;        /* number that fits the gradients best, 1 for an exact fit */
    double loss, M_away; /* by hypothesis; relative */
    cpl_certify_ties ties;
    int64_t n_ties;
} cpl_certify_judged;

/* ---- sets.c ---- */

/* Whether the faults can stand together. */
bool cpl_certify_possible(cpl_fault_set faults);

/* Why fault f, beside `faults`, cannot change a number of this dump whatever they are; NULL: it
 * can. Static words. */
const char *cpl_certify_idle(const cpl_certify_work *w, cpl_fault f, cpl_fault_set faults);

/* Which M. */
cpl_certify_tables *cpl_certify_kind(cpl_certify_work *w, cpl_fault_set faults);

/* ---- hypothesis.c ---- */

/* Sets u, loss, c, hinges and active of w from M of w->t. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_certify_assume(cpl_certify_work *w, cpl_fault_set faults,
                                            const cpl_certify_grade *grade);

/* u under these faults. */
double cpl_certify_u(const cpl_certify_work *w, cpl_fault_set faults);

/* Error of A_ij, a vector, at this grade; and of its norm M[i,j], along which lies a share. */
double cpl_certify_error(const cpl_certify_work *w, const cpl_certify_grade *grade, int64_t i,
                         int64_t j);
double cpl_certify_M_error(const cpl_certify_work *w, const cpl_certify_grade *grade, int64_t i,
                           int64_t j);

/* dF/dM over M: what turns dL/dF into c. */
double cpl_certify_slope(const cpl_certify_work *w, cpl_fault_set faults, int64_t i, int64_t j);

/* Sets dX and dR of w from c. */
void cpl_certify_router(cpl_certify_work *w, cpl_fault_set faults);

/* eps and nearest of w; gives them room. */
CPL_NODISCARD cpl_status cpl_certify_nearest(cpl_certify_work *w);

/* ---- fit.c ---- */

/* Moves the shares of the hinges to where the gradients of c come nearest to the dump's. */
CPL_NODISCARD cpl_status cpl_certify_fit(cpl_certify_work *w, cpl_fault_set faults);

/* How the ties of w are treated, from their shares. */
void cpl_certify_read_ties(const cpl_certify_work *w, cpl_certify_judged *out);

/* ---- judge.c ---- */

/* Holds a set of faults against the dump. Where loss or M already tell that it is not, gradients
 * are left out unless `all`. Leaves c, dR and loss of the hypothesis in w. */
CPL_NODISCARD cpl_status cpl_certify_judge(cpl_certify_work *w, cpl_certify_judged *out,
                                           cpl_fault_set faults, const cpl_certify_grade *grade,
                                           bool all);

/* ---- search.c ---- */

/* Verdict, faults, alternatives, ties, untold of `out`. */
CPL_NODISCARD cpl_status cpl_certify_search(cpl_certify_work *w, cpl_certificate *out);

#endif /* CPL_CERTIFY_INTERNAL_H */
