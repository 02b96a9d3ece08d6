/* alive.h - detects the loss of a rank of a run and names the rank. MPI-3.1 does not report a dead
 * or hanging peer, so each rank has a thread that sends and expects heartbeats over TCP, beside
 * MPI.
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
 * rank itself if the other ranks consider it lost. `sentence` is valid until cpl_alive_close. Rank
 * 0 sends the announcement first. The callback may be NULL. It must not call cpl_alive_close. */
typedef void cpl_alive_lost_fn(void *ctx, int rank, const char *sentence);

/* Starts the heartbeats of rank 0: listens on all interfaces, IPv4 and IPv6, on a TCP port that the
 * system chooses, and starts the thread. Sets `address` to a text for the other ranks: host,
 * process, port, token, and the addresses of this host. The caller owns `out` and ends it with
 * cpl_alive_close. A heartbeat is sent every min(1 s, timeout_s / 5). All ranks pass the same
 * timeout. With `size` 1 no socket is opened and `address` is "". Returns CPL_ERR_IO if a socket
 * cannot be opened or too few open files are allowed, or CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_alive_listen(cpl_alive **out, char address[CPL_ALIVE_ADDRESS],
                                          int size, double timeout_s, cpl_alive_lost_fn *on_lost,
                                          void *ctx);

/* Starts the heartbeats of rank 1 and above: connects to rank 0, trying its addresses in turn (on
 * the same host loopback first) for at most `timeout_s`. Returns CPL_ERR_INPUT if `address` is
 * damaged, CPL_ERR_DEVICE if rank 0 cannot be reached, CPL_ERR_IO or CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_alive_connect(cpl_alive **out, const char *address, int rank, int size,
                                           double timeout_s, cpl_alive_lost_fn *on_lost, void *ctx);

/* Waits on rank 0 until all ranks have connected, at most `timeout_s`, then closes the listening
 * socket. Returns CPL_ERR_DEVICE, naming the missing ranks or the lost rank. */
CPL_NODISCARD cpl_status cpl_alive_wait(cpl_alive *alive);

/* Returns the lost rank, or -1. It needs one atomic load, so that it can be called in tight loops.
 * Returns -1 for NULL. */
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

/* Sets `names` to the ranks that have begun fewer collectives than this rank, or have not reached
 * the last cpl_alive_count_anew, according to their last heartbeats. Rank 0 knows all ranks, other
 * ranks know rank 0 only. Without such a rank, and if this rank waits, sets `names` to the ranks
 * that did not wait between their last two heartbeats, since a rank may hang in the collective that
 * all have begun. Otherwise, and for NULL, sets `names` to "". */
void cpl_alive_late(cpl_alive *alive, char names[CPL_ALIVE_NAMES]);

/* Returns the message about the loss, or "" before a loss and for NULL. The message is owned by
 * `alive` and valid until cpl_alive_close. */
const char *cpl_alive_sentence(const cpl_alive *alive);

/* Reports that this rank ends because of an error. Every other rank considers it lost, with the
 * message `sentence` after its name. No callback is called on this rank. Does nothing if a rank is
 * lost already. Returns when the report has been sent, or after 2 s. Does nothing for NULL. */
void cpl_alive_report(cpl_alive *alive, const char *sentence);

/* Sends the farewell message, so that no rank considers this rank lost, waits at most 3 s until the
 * other ranks have read it, joins the thread and frees. After rank 0 has closed, losses of other
 * ranks are not detected. Does nothing for NULL. */
void cpl_alive_close(cpl_alive *alive);

#endif /* CPL_PARALLEL_ALIVE_H */
