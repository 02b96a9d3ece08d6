/* transport.h - the interface that moves bytes between ranks. The MPI modules and
 * tests/parallel/threads.c implement it.
 *
 * Room:  parallel. Includes no other header of the library: an MPI module is compiled from this
 *        header and <mpi.h> only. Other code uses group.h.
 * Names: a piece is the bytes that one rank sends to another rank. Counts and offsets are in units
 *        of `unit` bytes, so that MPI's counts of 32 bits suffice for large messages.
 * Rules: a collective returns at once with a request, or NULL if it failed. All ranks call the
 *        collectives of a transport in the same order. The caller must not use `recv` and `send`
 *        until test reports that the request is complete. It may reuse the arrays of counts and
 *        offsets after the call. Requests complete in any order. */
#ifndef CPL_PARALLEL_TRANSPORT_H
#define CPL_PARALLEL_TRANSPORT_H

#include <stdint.h>

/* [size] each: the number of units of each rank's piece, and the piece's offset in the buffer. A
 * rank's piece for itself is moved as well. Pieces to be sent may overlap. */
typedef struct cpl_message_parts {
    const int64_t *count, *at;
} cpl_message_parts;

typedef struct cpl_transport cpl_transport;

typedef struct cpl_transport_ops {
    /* Sends piece r of `send` to rank r and receives piece r of `recv` from rank r. */
    void *(*all_to_all)(void *ctx, void *recv, cpl_message_parts received, const void *send,
                        cpl_message_parts sent, int64_t unit);
    /* Sends `count` units of every rank to all ranks. */
    void *(*all_gather)(void *ctx, void *recv, cpl_message_parts received, const void *send,
                        int64_t count, int64_t unit);
    /* Copies `count` units from rank `root` to all ranks. */
    void *(*broadcast)(void *ctx, void *data, int64_t count, int64_t unit, int root);
    /* Returns 1 if the request is complete and freed, 0 if it is not complete, -1 if it failed and
     * is freed. */
    int (*test)(void *ctx, void *request);
    /* Frees a request that will not complete, because a rank is lost. */
    void (*abandon)(void *ctx, void *request);
    /* Sets `part` to a transport of the ranks with the same `color`, ordered by their ranks here.
     * Collective and blocking. Returns 0 if it failed. */
    int (*split)(void *ctx, int color, cpl_transport *part);
    void (*close)(void *ctx); /* frees ctx */
    /* Returns the message of the failure, owned by ctx. */
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
    const char *library; /* the library it was compiled with: "Open MPI" or "MPICH" */
    /* Starts MPI. Sets the transport of all ranks and the number of ranks on this machine. Returns
     * NULL, or the message of the failure. */
    const char *(*start)(cpl_transport *world, int *local);
    /* Ends MPI, after all transports are closed. */
    void (*finish)(void);
} cpl_mpi_module;

#endif /* CPL_PARALLEL_TRANSPORT_H */
