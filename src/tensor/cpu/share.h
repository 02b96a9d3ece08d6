/* share.h - division of the work of an operation among threads.
 *
 * Room:  tensor/cpu (header only). Work is cut into blocks that depend on the shape alone and the
 *        blocks are joined in order, so that no result depends on the number of threads. */
#ifndef CPL_TENSOR_CPU_SHARE_H
#define CPL_TENSOR_CPU_SHARE_H

#include "base/arena.h"
#include "tensor/ops.h"

enum {
    CPL_SHARE_LEAST = 16384, /* numbers read or written from which several threads pay off */
    CPL_MOST_BLOCKS = 64,
};

/* Returns the threads to use if `work` numbers are read or written: one or all. With teams of
 * changing size the OpenMP runtime would end and start threads. */
static inline int cpl_threads(const cpl_backend *be, int64_t work)
{
    return work < CPL_SHARE_LEAST ? 1 : be->n_threads;
}

/* Rounds the bytes of a piece of scratch up, so that the next piece begins on a cache line. */
static inline size_t cpl_padded(size_t bytes)
{
    return (bytes + CPL_ALIGNMENT - 1) / CPL_ALIGNMENT * CPL_ALIGNMENT;
}

/* A cut of 0 ... count-1 into `n` blocks of `length`. The last blocks may be shorter or empty. */
typedef struct cpl_blocks {
    int64_t count, n, length;
} cpl_blocks;

/* Cuts `count` into at most CPL_MOST_BLOCKS blocks of at least `least` numbers, or into one block
 * if count is 0. */
static inline cpl_blocks cpl_cut(int64_t count, int64_t least)
{
    int64_t n      = count / least;
    n              = n < 1 ? 1 : n > CPL_MOST_BLOCKS ? CPL_MOST_BLOCKS : n;
    cpl_blocks cut = {count, n, (count + n - 1) / n};
    return cut;
}

/* Numbers of a piece: few enough for an array on the stack (4 KiB of floats). */
enum { CPL_PIECE = 1024 };

static inline cpl_blocks cpl_cut_pieces(int64_t count)
{
    return (cpl_blocks){count, (count + CPL_PIECE - 1) / CPL_PIECE, CPL_PIECE};
}

static inline int64_t cpl_block_begin(cpl_blocks cut, int64_t block)
{
    int64_t begin = block * cut.length;
    return begin < cut.count ? begin : cut.count;
}

static inline int64_t cpl_block_end(cpl_blocks cut, int64_t block)
{
    return cpl_block_begin(cut, block + 1);
}

#endif /* CPL_TENSOR_CPU_SHARE_H */
