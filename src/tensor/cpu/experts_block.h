/* experts_block.h - a block of tokens of a grouped operation, and the division of experts over
 * threads.
 *
 * Room:   tensor/cpu (header only; for experts.c).
 * Names:  T tokens, K experts a token, n experts, d model width, D expert width, r width of the
 *         gates' input if it is not x. A block is a range of tokens; its assignments, sorted by
 *         expert, have the slots 0 ... rows-1.
 * Why:    every expert's results for a block lie in their slots, [rows, d], until they are summed
 *         token by token in a fixed order. Blocks keep that array small for any T. */
#ifndef CPL_TENSOR_CPU_EXPERTS_BLOCK_H
#define CPL_TENSOR_CPU_EXPERTS_BLOCK_H

#include <omp.h>

#include "tensor/cpu/operand.h"

enum {
    CPL_SLOT_NUMBERS = 64 << 20, /* limit of `out` (256 MiB), exceeded only if one token needs
                                    more */
    CPL_CHUNK_ROWS   = 512,      /* largest number of rows of one product of one thread */
};

typedef struct cpl_expert_sizes {
    int64_t T, K, n, d, D, r; /* r is 0 if gates are multiplied with x */
} cpl_expert_sizes;

typedef struct cpl_expert_block {
    int64_t first_token, n_tokens, rows;
    int32_t *first_row;  /* [n] first sorted row of the block's part of an expert */
    int32_t *first_slot; /* [n+1] the slot of the first row */
    int32_t *order;      /* [n] experts, most rows first */
    int32_t *slot_of;    /* [n_tokens,K] */
    float *weight;       /* [rows] routing weight of a slot */
    float *dot;          /* [rows] gradient of the routing weight */
    float *out;          /* [rows,d] */
} cpl_expert_block;

/* Returns the maximum tokens in a block, and the tokens in each block if T is divided evenly. */
static inline int64_t cpl_block_most_tokens(int64_t T, int64_t K, int64_t d)
{
    int64_t most = CPL_SLOT_NUMBERS / (K * d);
    most         = most < 1 ? 1 : most;
    return T < most ? T : most;
}

static inline int64_t cpl_block_tokens(cpl_expert_sizes s)
{
    if (s.T == 0) return 1;
    int64_t most = cpl_block_most_tokens(s.T, s.K, s.d), blocks = (s.T + most - 1) / most;
    return (s.T + blocks - 1) / blocks;
}

/* Takes the arrays of a block of at most `tokens` tokens from the arena. */
static inline cpl_expert_block cpl_block_take(cpl_arena *arena, cpl_expert_sizes s, int64_t tokens)
{
    const size_t rows  = (size_t)(tokens * s.K) * sizeof(float);
    cpl_expert_block b = {0};
    b.first_row        = (int32_t *)cpl_arena_take(arena, (size_t)s.n * sizeof(int32_t));
    b.first_slot       = (int32_t *)cpl_arena_take(arena, (size_t)(s.n + 1) * sizeof(int32_t));
    b.order            = (int32_t *)cpl_arena_take(arena, (size_t)s.n * sizeof(int32_t));
    b.slot_of          = (int32_t *)cpl_arena_take(arena, rows);
    b.weight           = (float *)cpl_arena_take(arena, rows);
    b.dot              = (float *)cpl_arena_take(arena, rows);
    b.out              = (float *)cpl_arena_take(arena, rows * (size_t)s.d);
    return b;
}

static inline int64_t cpl_block_rows(const cpl_expert_block *b, int64_t expert)
{
    return b->first_slot[expert + 1] - b->first_slot[expert];
}

/* Returns the first row in [begin, end) whose token is `token` or later. An expert's tokens
 * rise. */
static inline int32_t cpl_first_row_of(const int32_t *token_of, int32_t begin, int32_t end,
                                       int64_t token)
{
    while (begin < end) {
        int32_t middle = begin + (end - begin) / 2;
        if (token_of[middle] < token)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* Returns the expert whose rows contain sorted row `row`. */
static inline int64_t cpl_expert_of_row(const int32_t *offset, int64_t n, int32_t row)
{
    int64_t low = 0, high = n - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (offset[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static inline void cpl_block_sort(cpl_expert_block *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i, rows = cpl_block_rows(b, i);
        for (; at > 0 && cpl_block_rows(b, b->order[at - 1]) < rows; at--)
            b->order[at] = b->order[at - 1];
        b->order[at] = (int32_t)i;
    }
}

/* Moves the block to the tokens first ... first + count - 1. */
static inline void cpl_block_set(cpl_expert_block *b, const cpl_backend *be, cpl_expert_sizes s,
                                 cpl_dispatch plan, const float *weight, int64_t first,
                                 int64_t count)
{
    const int32_t *offset = cpl_i32(plan.offset), *token = cpl_i32(plan.token);
    const int32_t *row = cpl_i32(plan.row);
    b->first_token     = first;
    b->n_tokens        = count;
    b->rows            = 0;
    for (int64_t e = 0; e < s.n; e++) {
        int32_t begin    = cpl_first_row_of(token, offset[e], offset[e + 1], first);
        int32_t end      = cpl_first_row_of(token, begin, offset[e + 1], first + count);
        b->first_row[e]  = begin;
        b->first_slot[e] = (int32_t)b->rows;
        b->rows += end - begin;
    }
    b->first_slot[s.n] = (int32_t)b->rows;
    CPL_ASSERT(b->rows == count * s.K);
    cpl_block_sort(b, s.n);
#pragma omp parallel for num_threads(cpl_threads(be, 16 * count * s.K)) schedule(static)
    for (int64_t i = 0; i < count * s.K; i++) {
        int32_t r       = row[first * s.K + i];
        int64_t e       = cpl_expert_of_row(offset, s.n, r);
        int32_t slot    = r - b->first_row[e] + b->first_slot[e];
        b->slot_of[i]   = slot;
        b->weight[slot] = weight[first * s.K + i];
    }
}

/* The threads that work on one expert, all of them or one, with their panels. */
typedef struct cpl_team {
    int threads;
    char *panels; /* `bytes` bytes, enough for the panels of `rows` rows */
    size_t bytes;
    int64_t rows;
} cpl_team;

/* Calls work(job, team, expert) for every expert that has rows in the block. Experts with more than
 * half a thread's even share run one after the other with all threads. The other experts run side
 * by side, the largest first. `panels` has n_threads pieces of `bytes`, each for `rows` rows. */
static inline void cpl_block_run(const cpl_backend *be, const cpl_expert_block *b, int64_t n,
                                 char *panels, size_t bytes, int64_t rows, void *job,
                                 void (*work)(void *job, cpl_team team, int64_t expert))
{
    const int threads  = be->n_threads;
    const cpl_team all = {threads, panels, bytes * (size_t)threads, rows * threads};
    int64_t alone = 0, used = 0;
    while (alone < n && cpl_block_rows(b, b->order[alone]) * threads * 2 > b->rows && threads > 1)
        work(job, all, b->order[alone++]);
    for (used = alone; used < n && cpl_block_rows(b, b->order[used]) > 0;) used++;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = alone; i < used; i++) {
        cpl_team one = {1, panels + (size_t)omp_get_thread_num() * bytes, bytes, rows};
        work(job, one, b->order[i]);
    }
}

#endif /* CPL_TENSOR_CPU_EXPERTS_BLOCK_H */
