/* timed.h - notes the time of each operation of a backend.
 *
 * Room:     bench. Every operation is run between two waits for all work, so that its time holds that
 *           of a launch and a wait. Calls of the same operation with the same shapes are one row.
 * Counted:  bytes: every tensor of an operation once, twice if it is added to, of tables of
 *           embeddings the rows that are named; FLOP: products, of which none counts twice. */
#ifndef CPL_BENCH_CUDA_TIMED_H
#define CPL_BENCH_CUDA_TIMED_H

#include "bench.h"

enum { TIMED_MOST_ROWS = 256 };

typedef struct timed_row {
    void (*run)(cpl_backend *be, const void *arguments);
    const char *name;
    char shapes[96];
    int calls;           /* of all rounds */
    double flops, bytes; /* of one call */
    bool in_f32;         /* products in F32 whatever the backend computes in */
    bench_times times;   /* of a round, all calls together */
} timed_row;

typedef struct timed_rows {
    timed_row row[TIMED_MOST_ROWS];
    int count;
} timed_rows;

/* From now on the operations of this backend can be noted. One in a program. */
void timed_backend(cpl_backend *be);

/* Begins a round: from now on operations are noted. */
void timed_begin(void);

/* From now on operations run as they are. */
void timed_end(void);

/* In the order of their first calls. */
const timed_rows *timed_operations(void);

#endif /* CPL_BENCH_CUDA_TIMED_H */
