/* transport.h - moving bytes between ranks: what each MPI module and tests/parallel/threads.c implement.
 *
 * Room:  parallel. Includes nothing of the library: an MPI module is compiled from this header and
 *        <mpi.h> alone. group.h is the interface for everyone else.
 * Names: a piece is what one rank sends to one other. Counts and places are in units of `unit`
 *        bytes, so that MPI's counts of 32 bits suffice for large messages.
 * Rules: a collective returns at once with a request, or NULL if it failed. All ranks call the
 *        collectives of a transport in the same order. The caller leaves `recv` and `send` alone
 *        until test says that the request is complete; it may reuse the arrays of counts and places
 *        at once. Requests are completed in any order. */
#ifndef CPL_PARALLEL_TRANSPORT_H
#define CPL_PARALLEL_TRANSPORT_H

#include <stdint.h>

/* [size] each: how many units of each rank, and where they begin in the buffer. Pieces of a rank
 * for itself are moved as well. Pieces to be sent may overlap. */
typedef struct cpl_message_parts {
    const int64_t *count, *at;
} cpl_message_parts;

typedef struct cpl_transport cpl_transport;

typedef struct cpl_transport_ops {
    /* Piece r of `send` goes to rank r; piece r of `recv` comes from rank r. */
    void *(*all_to_all)(void *ctx, void *recv, cpl_message_parts received, const void *send,
                        cpl_message_parts sent, int64_t unit);
    /* `count` units of every rank go to all of them. */
    void *(*all_gather)(void *ctx, void *recv, cpl_message_parts received, const void *send,
                        int64_t count, int64_t unit);
    /* `count` units of rank `root` replace those of the others. */
    void *(*broadcast)(void *ctx, void *data, int64_t count, int64_t unit, int root);
    /* 1: the request is complete; it is freed. 0: not yet. -1: it failed; it is freed. */
    int (*test)(void *ctx, void *request);
    /* Frees a request that will not complete, because a rank is lost. */
    void (*abandon)(void *ctx, void *request);
    /* A transport of the ranks with the same `color`, ordered by their ranks here. Collective and
     * blocking. 0 if it failed. */
    int (*split)(void *ctx, int color, cpl_transport *part);
    void (*close)(void *ctx); /* frees ctx */
    /* A sentence about the failure, owned by ctx. */
    const char *(*failure)(void *ctx);
} cpl_transport_ops;

struct cpl_transport {
    const cpl_transport_ops *ops;
    void *ctx;
    int rank, size;
};

/* ---- the module of an MPI library (mpi_module.c) ---- */

enum { CPL_MPI_MODULE_VERSION = 2 };

/* The symbol `cpl_mpi_module_entry` of the shared object. */
typedef struct cpl_mpi_module {
    int version;
    const char *library; /* "Open MPI" or "MPICH": what it was compiled with */
    /* Starts MPI; sets the transport of all ranks, and how many of them run on this machine.
     * Returns NULL, or why it failed. */
    const char *(*start)(cpl_transport *world, int *local);
    /* After all transports were closed: an orderly end. */
    void (*finish)(void);
} cpl_mpi_module;

#endif /* CPL_PARALLEL_TRANSPORT_H */
