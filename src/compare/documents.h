/* documents.h - pairs of runs document by document: the difference of their bits per byte on
 * the same held-out documents.
 *
 * Room:    compare.
 * File:    RUN/documents.json, plain or compressed: {"step": N, "window": S, "documents":
 *          [{"source": "web", "id": "...", "bytes": B, "tokens": N, "nll": X}, ...]}.
 * Figure:  bits per byte of a set of documents = sum of nll / ln 2 / sum of bytes.
 * Method:  documents are matched by source and id. An interval is that of 2,000 resamples of the
 *          documents with replacement, from their 2.5 % to their 97.5 % quantile. Of several pairs
 *          the mean is taken; a resample draws the same documents for all of them. */
#ifndef CPL_COMPARE_DOCUMENTS_H
#define CPL_COMPARE_DOCUMENTS_H

#include "base/arena.h"
#include "compare/run_record.h"

enum { CPL_BOOTSTRAP_RESAMPLES = 2000 };

/* Of all documents, or of those of a source. */
typedef struct cpl_document_set {
    const char *source; /* NULL: all */
    int64_t n;
    double bytes;
    double base, other; /* bits per byte, means over the pairs */
    double difference;  /* other less base */
    double low, high;   /* its interval; NaN for fewer than two documents */
} cpl_document_set;

typedef struct cpl_document_difference {
    int64_t n_pairs; /* 0: nothing to compare */
    int64_t step;
    int64_t only_base, only_other; /* documents of one side alone, at most, in any pair */
    const char *reason;            /* why there is nothing though there are files; NULL: none */
    cpl_document_set *sets;        /* (n_sets) all documents, then each source */
    int64_t n_sets;
    cpl_pool pool;
} cpl_document_difference;

/* The runs of `n` pairs, side by side. Pairs without both files are passed over. CPL_ERR_MEMORY; a
 * file that cannot be used is no failure but a reason. */
CPL_NODISCARD cpl_status cpl_document_difference_of(cpl_document_difference *out,
                                                    const cpl_run_record *const *base,
                                                    const cpl_run_record *const *other, int64_t n);
void cpl_document_difference_free(cpl_document_difference *difference);

/* The interval of sum(delta) / sum(bytes) under resampling of the n > 1 documents. `layer` tells
 * sets of one comparison apart. */
CPL_NODISCARD cpl_status cpl_document_interval(double *low, double *high, const double *delta,
                                               const double *bytes, int64_t n, uint32_t layer);

#endif /* CPL_COMPARE_DOCUMENTS_H */
