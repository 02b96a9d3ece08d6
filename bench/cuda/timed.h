/* timed.h - records the time of each operation of a backend.
 *
 * Room:     bench. Every operation runs between two waits for all work, so that its time includes a
 *           launch and a wait. Calls of one operation with equal shapes are one row.
 * Counted:  bytes: every tensor of an operation once, twice if it is added to; of a table of
 *           embeddings only the rows that are read. FLOP: products, each counted once. */
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
    bool in_f32;         /* products in F32, whatever the backend's type */
    bench_times times;   /* of a round, all calls together */
} timed_row;

typedef struct timed_rows {
    timed_row row[TIMED_MOST_ROWS];
    int count;
} timed_rows;

/* Prepares one backend of the program to have its operations recorded. */
void timed_backend(cpl_backend *be);

/* Begins a round, in which operations are recorded. */
void timed_begin(void);

/* Ends a round: operations run without records. */
void timed_end(void);

/* Returns the rows in the order of their first calls. */
const timed_rows *timed_operations(void);

#endif /* CPL_BENCH_CUDA_TIMED_H */
