/* internal.h - what the files of alive.h share.
 *
 * Room:   parallel, for alive*.c.
 * Shape:  a message is its kind (1 byte), 0 (1 byte), length of its text (2 bytes), rank (4 bytes),
 *         both little-endian, and the text without a NUL. */
#ifndef CPL_PARALLEL_INTERNAL_H
#define CPL_PARALLEL_INTERNAL_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "parallel/alive.h"

/* ---- alive_address.c: where rank 0 listens for heartbeats, as a text; connecting to it ---- */

enum {
    CPL_ALIVE_TOKEN = 32, /* hexadecimal digits: ranks show the first half, rank 0 the second */
    CPL_ALIVE_HOST  = 64, /* bytes of a host's name */
    CPL_ALIVE_IP    = 45, /* bytes of a numeric address */
    CPL_ALIVE_IPS   = 14, /* addresses of a host; more are left out */
};

typedef struct cpl_alive_address {
    char token[CPL_ALIVE_TOKEN + 1];
    int port;
    long process;
    char host[CPL_ALIVE_HOST + 1];
    char ip[CPL_ALIVE_IPS + 2][CPL_ALIVE_IP + 1]; /* two more for loopback */
    int count;
} cpl_alive_address;

/* Sets host and process to those of the caller. A byte of the host's name that is not a letter,
 * digit, '.', '-' or '_' becomes '_'. */
void cpl_alive_address_self(cpl_alive_address *address);

/* Sets all but the port: host and process as above, a random token, and the addresses of all
 * interfaces that are up, without loopback and IPv6 link-local ones. CPL_ERR_IO if the system gives
 * no random bytes or no list of interfaces. */
CPL_NODISCARD cpl_status cpl_alive_address_here(cpl_alive_address *address);

/* Writes `address` with a checksum to `text`, which has room for `bytes`, the NUL included
 * (assert). */
void cpl_alive_address_write(char *text, size_t bytes, const cpl_alive_address *address);

/* Sets `address` from a text that may have any content. If the caller runs on the host of the text,
 * loopback addresses come first. CPL_ERR_INPUT if the checksum or the form is wrong. */
CPL_NODISCARD cpl_status cpl_alive_address_read(cpl_alive_address *address, const char *text);

/* A non-blocking socket that listens on all interfaces, for IPv6 and IPv4, or for IPv4 where the
 * system has no IPv6; -1 with errno if there is none. Sets the port. Owned by the caller. */
int cpl_alive_address_listen(cpl_alive_address *address);

/* Waits until `fd` is ready for `events` of poll(2). False if it was not before the time `until`
 * (seconds, as cpl_seconds_now). */
bool cpl_alive_address_ready(int fd, short events, double until);

/* A connected, non-blocking socket to ip[which]; -1 with errno if it is not connected before the
 * time `until` (seconds, as cpl_seconds_now). Owned by the caller. */
int cpl_alive_address_dial(const cpl_alive_address *address, int which, double until);

/* ---- alive_link.c: one connection between rank 0 and another rank, and the messages on it ---- */

enum { CPL_ALIVE_HEADER = 8, CPL_ALIVE_SENTENCE = 1024 };

typedef enum cpl_alive_kind {
    CPL_ALIVE_HELLO = 1, /* to rank 0: rank; half of the token, process, host */
    CPL_ALIVE_WELCOME,   /* the answer: the other half of the token */
    CPL_ALIVE_JOIN,      /* to rank 0: this connection is the one that stays */
    CPL_ALIVE_BEAT,      /* the sender lives */
    CPL_ALIVE_LOSS,      /* rank; the sentence of its loss */
    CPL_ALIVE_FAREWELL,  /* the sender leaves in good order */
} cpl_alive_kind;

typedef struct cpl_alive_message {
    cpl_alive_kind kind;
    int rank;
    char text[CPL_ALIVE_SENTENCE]; /* NUL-terminated */
} cpl_alive_message;

typedef enum cpl_alive_stage {
    CPL_ALIVE_FOREIGN, /* has not shown the token */
    CPL_ALIVE_KNOWN,   /* has, and is welcome */
    CPL_ALIVE_JOINED,
    CPL_ALIVE_LEFT, /* said farewell */
} cpl_alive_stage;

typedef struct cpl_alive_link {
    int fd; /* -1: none */
    cpl_alive_stage stage;
    int rank; /* rank, process and host of the other end: set from stage KNOWN on */
    long process;
    char host[CPL_ALIVE_HOST + 1];
    double since, heard; /* seconds, as cpl_seconds_now: when it was made; when bytes came last */
    size_t n_in, n_out;
    char in[CPL_ALIVE_HEADER + CPL_ALIVE_SENTENCE], out[2 * CPL_ALIVE_SENTENCE];
} cpl_alive_link;

/* Sets the link to a fresh one on `fd`, which it owns until cpl_alive_link_close. */
void cpl_alive_link_open(cpl_alive_link *link, int fd);
void cpl_alive_link_close(cpl_alive_link *link); /* does nothing to a closed one */

/* Adds a message to what is to be sent. `text` is cut at CPL_ALIVE_SENTENCE - 1 bytes. No room is a
 * programming error (assert): at most one message of each kind waits, one of them with a
 * sentence. */
void cpl_alive_link_push(cpl_alive_link *link, cpl_alive_kind kind, int rank, const char *text);

/* Sends what the system takes now. An error is left to cpl_alive_link_fill. */
void cpl_alive_link_flush(cpl_alive_link *link);

/* Receives what has come, at most a buffer; never waits. False if the connection has ended. */
CPL_NODISCARD bool cpl_alive_link_fill(cpl_alive_link *link);

/* Takes the next whole message out of what was received: 1, or 0 if there is none yet, or -1 if the
 * bytes are not a message. */
CPL_NODISCARD int cpl_alive_link_take(cpl_alive_link *link, cpl_alive_message *message);

/* ---- alive_thread.c: the thread, and what it shares with alive.c ---- */

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
                              * thread owns them; fd and stage change under the lock, since others
                              * read them, and the rest of a joined one, there */
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

#endif /* CPL_PARALLEL_INTERNAL_H */
