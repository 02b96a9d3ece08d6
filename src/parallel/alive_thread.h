/* alive_thread.h - the heartbeat's thread, and what it shares with the functions of alive.h.
 *
 * Room:   parallel. Only for alive.c and alive_thread.c. */
#ifndef CPL_PARALLEL_ALIVE_THREAD_H
#define CPL_PARALLEL_ALIVE_THREAD_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "parallel/alive.h"
#include "parallel/alive_link.h"

enum { CPL_ALIVE_NAME = 128 }; /* bytes of a rank's name */

enum {
    HANDSHAKE_S = 5, /* seconds after which a connection that has not joined is dropped */
    LEAVE_S     = 2, /* seconds in which the last messages are sent */
};

struct cpl_alive {
    int rank, size;
    double timeout_s, period_s;
    cpl_alive_lost_fn *on_lost;
    void *ctx;
    cpl_alive_address where; /* of rank 0 */
    cpl_alive_address self;  /* host and process */
    int listener, wake;      /* wake: an eventfd; both -1 if there is none */
    cpl_alive_link *links;   /* (n_links); rank 0: those of the ranks and of foreigners, mixed. The
                              * thread's; fd and stage change under the lock, since others read
                              * them, and the rest of a joined one, there */
    struct pollfd *polled;   /* (2 + n_links) */
    int n_links;
    pthread_t thread;
    bool runs; /* whether there is a thread */

    /* Of the thread alone. */
    double looked, beat_at; /* seconds, as cpl_seconds_now: last look at the links; next beat */
    bool full;              /* no file is left for one more connection; until the next beat */
    bool leaving;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    bool *joined; /* (size) */
    int64_t
        *count; /* (size): what cpl_alive_count has counted on the others, by their heartbeats */
    int64_t *waits; /* (size): the same of cpl_alive_wait_on */
    bool *still;    /* (size): neither has changed in the last heartbeat */
    int n_joined;
    bool closing, reported, announced; /* `reported`: the loss is this rank's own report */
    char sentence[CPL_ALIVE_SENTENCE]; /* never changes once `lost` is set */
    atomic_int lost;
    _Atomic int64_t own_count, own_waits;
};

/* "rank 3 (host node07, process 4711)". */
void cpl_alive_name(char name[CPL_ALIVE_NAME], int rank, const char *host, long process);

void cpl_alive_lock(cpl_alive *a);
void cpl_alive_unlock(cpl_alive *a);

/* Wakes the thread if it waits in poll. */
void cpl_alive_wake(cpl_alive *a);

/* Records that `rank` was lost; later losses are ignored. `reported`: this rank reports itself. */
void cpl_alive_lose(cpl_alive *a, int rank, const char *sentence, bool reported);

/* The thread, of a cpl_alive: receives, judges, announces and sends until it may leave. */
void *cpl_alive_watch(void *alive);

#endif /* CPL_PARALLEL_ALIVE_THREAD_H */
