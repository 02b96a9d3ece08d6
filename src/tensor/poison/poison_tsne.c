/* poison_tsne.c - the wrapped operations of t-SNE. */
#include "tensor/poison/poison.h"

double cpl_poison_tsne_largest(cpl_backend *be, cpl_tensor x)
{
    cpl_poison_holds(x, CPL_F32, cpl_tensor_count(x));
    cpl_backend inner    = cpl_poison_begin(be);
    const double largest = inner.ops->tsne_largest(&inner, x);
    cpl_poison_end(be, &inner);
    return largest;
}

void cpl_poison_tsne_centre(cpl_backend *be, cpl_tensor out, cpl_tensor x, float scale)
{
    CPL_ASSERT(x.rank == 2 && scale > 0);
    cpl_poison_fits(x, CPL_F32, x.shape[0], x.shape[1]);
    cpl_poison_fits(out, CPL_F32, x.shape[0], x.shape[1]);
    cpl_poison_apart(CPL_POISON_LIST(out), CPL_POISON_LIST(x));
    cpl_backend inner = cpl_poison_begin(be);
    cpl_poison_set(out);
    inner.ops->tsne_centre(&inner, out, x, scale);
    cpl_poison_end(be, &inner);
}

void cpl_poison_tsne_distances(cpl_backend *be, cpl_tensor D, cpl_tensor x, float scale)
{
    CPL_ASSERT(x.rank == 2 && scale > 0);
    cpl_poison_fits(x, CPL_F32, x.shape[0], x.shape[1]);
    cpl_poison_fits(D, CPL_F32, x.shape[0], x.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(D), CPL_POISON_LIST(x));
    cpl_backend inner = cpl_poison_begin(be);
    cpl_poison_set(D);
    inner.ops->tsne_distances(&inner, D, x, scale);
    cpl_poison_end(be, &inner);
}

void cpl_poison_tsne_affinities(cpl_backend *be, cpl_tensor P, double perplexity)
{
    CPL_ASSERT(P.shape[0] >= 2 && perplexity >= 1 && perplexity <= (double)(P.shape[0] - 1));
    cpl_poison_fits(P, CPL_F32, P.shape[0], P.shape[0]);
    cpl_backend inner = cpl_poison_begin(be);
    inner.ops->tsne_affinities(&inner, P, perplexity);
    cpl_poison_end(be, &inner);
}

void cpl_poison_tsne_forces(cpl_backend *be, cpl_tensor forces, cpl_tensor P, cpl_tensor y,
                            bool divergence)
{
    const int64_t n = P.shape[0];
    cpl_poison_fits(P, CPL_F32, n, n);
    cpl_poison_fits(y, CPL_F32, 2, n);
    cpl_poison_fits(forces, CPL_F32, 6, n);
    cpl_poison_apart(CPL_POISON_LIST(forces), CPL_POISON_LIST(P, y));
    cpl_backend inner = cpl_poison_begin(be);
    cpl_poison_set(forces);
    inner.ops->tsne_forces(&inner, forces, P, y, divergence);
    cpl_poison_end(be, &inner);
}
