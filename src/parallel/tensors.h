/* tensors.h - collectives over the tensors of a backend.
 *
 * Room:   parallel. Messages lie in host memory. A collective is one get and one put of the
 *         backend. */
#ifndef CPL_PARALLEL_TENSORS_H
#define CPL_PARALLEL_TENSORS_H

#include "parallel/group.h"
#include "tensor/ops.h"

/* Runs an all-reduce: x, F32, I32 or F64, becomes the sum over the ranks, with the same bits on all
 * ranks. A group of one rank leaves x unchanged. The group records failures. */
void cpl_group_sum_tensor(cpl_group *g, cpl_backend *be, cpl_tensor x);

/* Runs an all-to-all of rows: sends sent[r] rows of `from` [rows, width] to rank r and receives
 * received[r] rows of `to` from rank r, in the order of the ranks. `message` is memory for the
 * bytes of both tensors. */
void cpl_group_all_to_all_tensor(cpl_group *g, cpl_backend *be, cpl_tensor to,
                                 const int64_t *received, cpl_tensor from, const int64_t *sent,
                                 void *message);

#endif /* CPL_PARALLEL_TENSORS_H */
