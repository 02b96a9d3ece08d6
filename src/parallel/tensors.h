/* tensors.h - collectives over the tensors of a backend.
 *
 * Room:   parallel. Messages lie in the host's memory: a collective is one get and one put of the
 *         backend. */
#ifndef CPL_PARALLEL_TENSORS_H
#define CPL_PARALLEL_TENSORS_H

#include "parallel/group.h"
#include "tensor/ops.h"

/* All-reduce: x, F32, I32 or F64, becomes the sum over the ranks, with the same bits on all. A group
 * of one rank leaves it. Failures are kept by the group. */
void cpl_group_sum_tensor(cpl_group *g, cpl_backend *be, cpl_tensor x);

#endif /* CPL_PARALLEL_TENSORS_H */
