/* alive.h - finds that a rank of a run was lost, and which. MPI-3.1 does not report a dead or
 * hanging peer, so each rank has one thread that sends and expects heartbeats over TCP, beside MPI.
 *
 * Room:  parallel.
 * Shape: a star: rank 0 has a connection to every other rank and announces a loss to all of them.
 *        Every rank sees the loss of rank 0 itself. The first loss is the only one that is kept.
 * Rule:  no signal is handled here; the thread blocks all of them.
 * Page:  docs/parallel.md, "When a rank dies". */
#ifndef CPL_PARALLEL_ALIVE_H
#define CPL_PARALLEL_ALIVE_H

#include "base/status.h"

enum {
    CPL_ALIVE_ADDRESS = 1024, /* bytes of an address, with its NUL */
    CPL_ALIVE_NAMES   = 600   /* bytes of a list of ranks, with its NUL */
};

typedef struct cpl_alive cpl_alive;

/* Called once, from the heartbeat's thread, when a rank was lost: its connection closed without a
 * farewell, nothing was heard of it for `timeout_s`, or it reported an error. `rank` is this rank
 * itself if the others have given it up. `sentence` lives as long as the object. On rank 0 the
 * announcement has been sent before. May be NULL; must not call cpl_alive_close. */
typedef void cpl_alive_lost_fn(void *ctx, int rank, const char *sentence);

/* Rank 0: listens on all interfaces, IPv4 and IPv6, on a TCP port that the system chooses, and
 * begins to watch. Sets `address` to a text that the caller sends to the other ranks: host,
 * process, port, token, and the addresses of this host. `out` is owned by the caller, who ends it
 * with cpl_alive_close. A heartbeat is sent every min(1 s, timeout_s / 5); all ranks pass the same
 * timeout. With `size` 1 no socket is opened, nothing is ever lost, and `address` is "". CPL_ERR_IO
 * if there is no socket or too few open files are allowed, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_alive_listen(cpl_alive **out, char address[CPL_ALIVE_ADDRESS],
                                          int size, double timeout_s, cpl_alive_lost_fn *on_lost,
                                          void *ctx);

/* Rank 1 and above: connects to rank 0, trying its addresses in turn (on the same host loopback
 * first) for at most `timeout_s`. CPL_ERR_INPUT if `address` is damaged, CPL_ERR_DEVICE if rank 0
 * cannot be reached, CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_alive_connect(cpl_alive **out, const char *address, int rank, int size,
                                           double timeout_s, cpl_alive_lost_fn *on_lost, void *ctx);

/* Rank 0: waits until all ranks have connected, at most `timeout_s`; then nothing listens any more.
 * CPL_ERR_DEVICE with the missing ranks, or with the sentence of a loss. */
CPL_NODISCARD cpl_status cpl_alive_wait(cpl_alive *alive);

/* The rank that was lost, -1: none. One atomic load, so that it may be called in tight loops.
 * NULL: -1. */
int cpl_alive_lost(const cpl_alive *alive);

/* This rank begins one collective more; heartbeats carry the number. One atomic operation, for any
 * thread. NULL: nothing. */
void cpl_alive_count(cpl_alive *alive);

/* All ranks come to the same point, after which they count the same collectives. NULL: nothing. */
void cpl_alive_count_anew(cpl_alive *alive);

/* This rank waits in a collective, and looks again whether it is complete; heartbeats carry how
 * often. One atomic operation, for any thread. NULL: nothing. */
void cpl_alive_wait_on(cpl_alive *alive);

/* Sets `names` to the ranks that have begun fewer collectives than this one, or have not come to the
 * last such point, as their last heartbeats say: rank 0 knows of all, the others of rank 0 alone. If
 * there are none, and this rank waits: to those that did not wait between their last two
 * heartbeats, since a rank may hang in the collective that all have begun. "" if there are none
 * either. NULL: "". */
void cpl_alive_late(cpl_alive *alive, char names[CPL_ALIVE_NAMES]);

/* The sentence of the loss, "" while there is none. Owned by `alive`, valid until cpl_alive_close.
 * NULL: "". */
const char *cpl_alive_sentence(const cpl_alive *alive);

/* This rank ends because of an error: on every other rank it counts as lost, with `sentence` after
 * its name. On this rank no callback is called. Nothing happens if a rank was lost before. Returns
 * when the report was sent, or after 2 s. NULL: nothing. */
void cpl_alive_report(cpl_alive *alive, const char *sentence);

/* Says farewell, so that no rank counts this one as lost; waits at most 3 s until the others have
 * read it, joins the thread and frees. Once rank 0 has left, nobody watches the others. NULL:
 * nothing. */
void cpl_alive_close(cpl_alive *alive);

#endif /* CPL_PARALLEL_ALIVE_H */
