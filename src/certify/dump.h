/* dump.h - the dump of an implementation, read and checked: docs/formats.md, "Dumps".
 *
 * Room:  certify. Small tensors are held as doubles; those of the experts stay in the file and are
 *        read an expert at a time. */
#ifndef CPL_CERTIFY_DUMP_H
#define CPL_CERTIFY_DUMP_H

#include "checkpoint/safetensors.h"

/* The two matrices of an expert that play a part. */
typedef enum cpl_certify_half {
    CPL_CERTIFY_GATE,
    CPL_CERTIFY_UP,
    CPL_CERTIFY_HALVES
} cpl_certify_half;

typedef struct cpl_certify_dump {
    cpl_safetensors *file;
    int64_t n, d, D;
    double alpha, weight, layers, loss;
    double *R;                                                /* [n,d] */
    double *delta;                                            /* [n,d]; NULL: no noise */
    double *M;                                                /* [n,n]; NULL: not given */
    double *dR;                                               /* [n,d]; zero where not given */
    bool has_dR, short_M;                                     /* M is of 16 bits */
    const cpl_safetensors_entry *weights[CPL_CERTIFY_HALVES]; /* [n,D,d]; NULL: not given */
    const cpl_safetensors_entry *grads[CPL_CERTIFY_HALVES];   /* the same of dW_g, dW_p */
} cpl_certify_dump;

/* Opens the file, reads and checks everything in it; on failure nothing is held. */
CPL_NODISCARD cpl_status cpl_certify_dump_open(cpl_certify_dump *dump, const char *path);
void cpl_certify_dump_close(cpl_certify_dump *dump);

/* Sets `out` [D,d] to those of expert j. */
CPL_NODISCARD cpl_status cpl_certify_dump_expert(const cpl_certify_dump *dump,
                                                 const cpl_safetensors_entry *entry, double *out,
                                                 int64_t j);

#endif /* CPL_CERTIFY_DUMP_H */
