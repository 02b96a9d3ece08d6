/* norm.h - the norm of an optimizer's gradients, in one process. */
#ifndef CPL_TESTS_TRAIN_NORM_H
#define CPL_TESTS_TRAIN_NORM_H

#include <math.h>

#include "check.h"
#include "train/optimizer.h"

static inline double gradient_norm(cpl_optimizer *o)
{
    cpl_backend *be    = o->share.be;
    cpl_tensor squares = cpl_tensor_none();
    assert_ok(cpl_tensor_reserve(&squares, be, CPL_F64, 1));
    be->ops->fill(be, squares, 0);
    cpl_share_add_squares(&o->share, &o->grads, squares);
    const double norm = sqrt(cpl_tensor_number(be, squares));
    cpl_tensor_free(&squares, be);
    return norm;
}

#endif /* CPL_TESTS_TRAIN_NORM_H */
