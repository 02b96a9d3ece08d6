/* alive.h - detects that a rank of a run is lost, and which one. MPI-3.1 does not report a dead or
 * hanging peer, so each rank has a thread that sends and expects heartbeats over TCP, beside MPI.
 *
 * Room:  parallel.
 * Shape: a star: rank 0 has a connection to every other rank and announces a loss to all of them.
 *        Every rank detects the loss of rank 0 itself. Only the first loss is recorded.
 * Rule:  the thread blocks all signals.
 * Page:  docs/parallel.md, "When a rank dies". */
#ifndef CPL_PARALLEL_ALIVE_H
#define CPL_PARALLEL_ALIVE_H

#include "base/status.h"

enum {
    CPL_ALIVE_ADDRESS = 1024, /* bytes of an address, with its NUL */
    CPL_ALIVE_NAMES   = 600   /* bytes of a list of ranks, with its NUL */
};

typedef struct cpl_alive cpl_alive;

/* Called once, from the heartbeat's thread, when a rank is lost: its connection closed without a
 * farewell message, no message arrived for `timeout_s`, or it reported an error. `rank` is this
 * rank itself if the other ranks consider it lost. `sentence` lives as long as the object. Rank 0
 * sends the announcement first. May be NULL; must not call cpl_alive_close. */
typedef void cpl_alive_lost_fn(void *ctx, int rank, const char *sentence);

/* Rank 0: listens on all interfaces, IPv4 and IPv6, on a TCP port that the system chooses, and
 * starts the thread. Sets `address` to a text for the other ranks: host, process, port, token, and
 * the addresses of this host. The caller owns `out` and ends it with cpl_alive_close. A heartbeat
 * is sent every min(1 s, timeout_s / 5); all ranks pass the same timeout. With `size` 1 no socket
 * is opened and `address` is "". CPL_ERR_IO if a socket cannot be opened or too few open files are
 * allowed, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_alive_listen(cpl_alive **out, char address[CPL_ALIVE_ADDRESS],
                                          int size, double timeout_s, cpl_alive_lost_fn *on_lost,
                                          void *ctx);

/* Rank 1 and above: connects to rank 0, trying its addresses in turn (on the same host loopback
 * first) for at most `timeout_s`. CPL_ERR_INPUT if `address` is damaged, CPL_ERR_DEVICE if rank 0
 * cannot be reached, CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_alive_connect(cpl_alive **out, const char *address, int rank, int size,
                                           double timeout_s, cpl_alive_lost_fn *on_lost, void *ctx);

/* Rank 0: waits until all ranks have connected, at most `timeout_s`, then closes the listening
 * socket. CPL_ERR_DEVICE, naming the missing ranks or the lost one. */
CPL_NODISCARD cpl_status cpl_alive_wait(cpl_alive *alive);

/* The lost rank, or -1. Costs one atomic load, so that it can be called in tight loops. -1 for
 * NULL. */
int cpl_alive_lost(const cpl_alive *alive);

/* Counts one more collective that this rank begins. Heartbeats carry the number. One atomic
 * operation, callable from any thread. Does nothing for NULL. */
void cpl_alive_count(cpl_alive *alive);

/* Restarts the count of collectives. All ranks call it at the same point of the program and count
 * the same collectives afterwards. Does nothing for NULL. */
void cpl_alive_count_anew(cpl_alive *alive);

/* Counts one more poll of this rank that waits in a collective. Heartbeats carry the number. One
 * atomic operation, callable from any thread. Does nothing for NULL. */
void cpl_alive_wait_on(cpl_alive *alive);

/* Sets `names` to the ranks that have begun fewer collectives than this one, or have not reached
 * the last cpl_alive_count_anew, according to their last heartbeats. Rank 0 knows all ranks; other
 * ranks know rank 0 only. If there are none and this rank waits, sets `names` to the ranks that did
 * not wait between their last two heartbeats, since a rank may hang in the collective that all have
 * begun. "" if there are none of these, and for NULL. */
void cpl_alive_late(cpl_alive *alive, char names[CPL_ALIVE_NAMES]);

/* The message about the loss, "" before a loss. Owned by `alive`, valid until cpl_alive_close. ""
 * for NULL. */
const char *cpl_alive_sentence(const cpl_alive *alive);

/* Reports that this rank ends because of an error. Every other rank considers it lost, with the
 * message `sentence` after its name. No callback is called on this rank. Does nothing if a rank is
 * lost already. Returns when the report has been sent, or after 2 s. Does nothing for NULL. */
void cpl_alive_report(cpl_alive *alive, const char *sentence);

/* Sends the farewell message, so that no rank considers this one lost, waits at most 3 s until the
 * other ranks have read it, joins the thread and frees. After rank 0 has closed, losses of other
 * ranks are not detected. Does nothing for NULL. */
void cpl_alive_close(cpl_alive *alive);

#endif /* CPL_PARALLEL_ALIVE_H */
