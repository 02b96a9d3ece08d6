/* certify.h - whether somebody's implementation of the coupling loss is right, and if not, which
 * fault it has: from a dump of what it was given and what it gave.
 *
 * Room:  certify. docs/certify.md tells how a dump is made, docs/formats.md the names in it.
 * How:   every implementation whose loss is a function of the norms M[i,j] = |A_ij|, where
 *        A_ij = R~_i W_g^j, has the gradients
 *
 *            dW_g^j = sum_i c_ij A_ij (outer) R~_i      dR~_i = sum_j c_ij A_ij W_g^j
 *
 *        and differs from the right one in the numbers c alone, and in what is done outside of M:
 *        which matrices, which rows, a factor, a gradient that is cut off. So each fault, and each
 *        pair of them, is a set of numbers c whose distance from the dump is computed; the smallest
 *        set of faults that explains loss, M and gradients is named. */
#ifndef CPL_CERTIFY_CERTIFY_H
#define CPL_CERTIFY_CERTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum cpl_fault {
#define CPL_FAULT(name, key, sentence, remedy) CPL_FAULT_##name,
#include "certify/faults.def"
#undef CPL_FAULT
    CPL_N_FAULTS
} cpl_fault;

typedef uint32_t cpl_fault_set; /* bit f: fault f */
#define CPL_FAULT_BIT(name) ((cpl_fault_set)1 << CPL_FAULT_##name)

typedef struct cpl_fault_words {
    const char *key, *sentence, *remedy;
} cpl_fault_words;
extern const cpl_fault_words cpl_faults[CPL_N_FAULTS];

typedef enum cpl_certify_verdict {
    CPL_CERTIFY_RIGHT,
    CPL_CERTIFY_FAULT,   /* `faults` explain the dump */
    CPL_CERTIFY_UNKNOWN, /* neither right nor explained; `faults` are the nearest */
} cpl_certify_verdict;

/* How it treats M[i,j] that is exactly its bound. */
typedef enum cpl_certify_ties {
    CPL_CERTIFY_TIES_NONE, /* there are none whose treatment shows */
    CPL_CERTIFY_TIES_PASS, /* the gradient passes: the reference's */
    CPL_CERTIFY_TIES_STRICT,
    CPL_CERTIFY_TIES_HALF,
    CPL_CERTIFY_TIES_OTHER,
} cpl_certify_ties;

/* One of the things an implementation gives. Distances are norm(got - expected) / norm(expected):
 * 0 where both are zero, infinite where only the expected one is. */
typedef struct cpl_certify_figure {
    const char *name;      /* as in the dump; NULL: nothing is known of it */
    bool given;            /* it is in the dump; a gradient that is not counts as zero */
    double expected, got;  /* loss: the values; others: norms */
    double distance;       /* from the right one */
    double fault_distance; /* from that of `faults` */
} cpl_certify_figure;

enum { CPL_CERTIFY_FIGURES = 5, CPL_CERTIFY_ALTERNATIVES = 8 };

typedef struct cpl_certificate {
    int64_t n, d, D;
    double alpha, weight, layers;
    bool has_delta, has_up, has_M;
    int64_t active; /* hinges that are, of the 2 n (n - 1) */

    cpl_certify_verdict verdict;
    cpl_fault_set faults;
    cpl_fault_set alternatives[CPL_CERTIFY_ALTERNATIVES]; /* sets as small that explain it too */
    int n_alternatives;
    double factor; /* where CPL_FAULT_FACTOR is among the faults */
    bool rounded;  /* only within what rounding to bf16 does */
    cpl_certify_ties ties;
    int64_t n_ties; /* hinges exactly at their bound whose treatment shows */
    cpl_certify_figure figures[CPL_CERTIFY_FIGURES]; /* loss, M, dR, dW_g, dW_p */

    cpl_fault_set untold;              /* faults that this dump would not show */
    const char *reasons[CPL_N_FAULTS]; /* why not; static words */
} cpl_certificate;

/* Reads the dump at `path` and judges it. CPL_ERR_INPUT where the file is no dump: a tensor
 * missing, unknown, of the wrong shape or type, or with a NaN; the sentence names file and tensor.
 * `n_threads` 0: one per processor. */
CPL_NODISCARD cpl_status cpl_certify(cpl_certificate *out, const char *path, int n_threads);

#endif /* CPL_CERTIFY_CERTIFY_H */
