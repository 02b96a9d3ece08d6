/* tsne.h - t-distributed stochastic neighbour embedding in two dimensions, exact (van der Maaten
 * and Hinton 2008).
 *
 * Room:    inspect. Plain C, and the products of pca.h.
 * Method:  the gradient over all pairs; affinities by bisection on the perplexity; begins with the
 *          first two principal components, as scikit-learn does; early exaggeration 12 for 250
 *          iterations, momentum 0.5 then 0.8, gains, learning rate max(N / 48, 50).
 * Same:    the same points, options and number of threads give the same bits; other numbers of
 *          threads differ in the last bits of a step. */
#ifndef CPL_INSPECT_TSNE_H
#define CPL_INSPECT_TSNE_H

#include "tensor/host_ops.h"

enum { CPL_TSNE_MOST_POINTS = 4096 };

typedef struct cpl_tsne_options {
    double perplexity;  /* 30; at most (N - 1) / 3 is used, said by `perplexity_used` */
    int64_t iterations; /* 1000; at least 250 */
    uint64_t seed;
    int n_threads; /* at least 1 */
    /* Called now and then; may be NULL. */
    void (*progress)(void *ctx, int64_t iteration, double kl);
    void *ctx;
} cpl_tsne_options;

typedef struct cpl_tsne_result {
    double kl; /* Kullback-Leibler divergence reached, in nats */
    double perplexity_used;
} cpl_tsne_result;

/* Bytes that cpl_tsne takes while it works. */
size_t cpl_tsne_bytes(int64_t n_points, int64_t d);

/* Sets y [N,2] from x [N,d]. N from 4 to CPL_TSNE_MOST_POINTS. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_tsne(float *y, cpl_tsne_result *result, cpl_matrix x,
                                  const cpl_tsne_options *options);

#endif /* CPL_INSPECT_TSNE_H */
