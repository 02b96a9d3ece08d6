/* internal.h - shared by the files behind alive.h.
 *
 * Room:   parallel, for alive*.c.
 * Format: a message consists of its kind (1 byte), 0 (1 byte), the length of its text (2 bytes), a
 *         rank (4 bytes), both little-endian, and the text without a NUL. */
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

/* ---- alive_address.c: the address of rank 0 as a text; connecting to it ---- */

enum {
    CPL_ALIVE_TOKEN = 32, /* hexadecimal digits: ranks send the first half, rank 0 the second */
    CPL_ALIVE_HOST  = 64, /* bytes of a host's name */
    CPL_ALIVE_IP    = 45, /* bytes of a numeric address */
    CPL_ALIVE_IPS   = 14, /* maximum number of addresses of a host; the others are ignored */
};

typedef struct cpl_alive_address {
    char token[CPL_ALIVE_TOKEN + 1];
    int port;
    long process;
    char host[CPL_ALIVE_HOST + 1];
    char ip[CPL_ALIVE_IPS + 2][CPL_ALIVE_IP + 1]; /* includes two loopback addresses */
    int count;
} cpl_alive_address;

/* Sets host and process to the caller's. A byte of the host's name that is not a letter, digit,
 * '.', '-' or '_' becomes '_'. */
void cpl_alive_address_self(cpl_alive_address *address);

/* Sets every field but the port: host and process of the caller, a random token, and the addresses
 * of all interfaces that are up, without loopback and IPv6 link-local addresses. Returns CPL_ERR_IO
 * if random bytes or the list of interfaces are not available. */
CPL_NODISCARD cpl_status cpl_alive_address_here(cpl_alive_address *address);

/* Writes `address` with a checksum to `text`, which has room for `bytes`, the NUL included
 * (assert). */
void cpl_alive_address_write(char *text, size_t bytes, const cpl_alive_address *address);

/* Sets `address` from a text that may have any content. If the caller runs on the host of the text,
 * loopback addresses come first. Returns CPL_ERR_INPUT if the checksum or the form is wrong. */
CPL_NODISCARD cpl_status cpl_alive_address_read(cpl_alive_address *address, const char *text);

/* Returns a non-blocking socket that listens on all interfaces, for IPv6 and IPv4, or for IPv4 if
 * the system has no IPv6. Returns -1, with errno, on failure. Sets the port. The caller owns it. */
int cpl_alive_address_listen(cpl_alive_address *address);

/* Waits until `fd` is ready for `events` of poll(2). Returns false at the time `until` (seconds, as
 * cpl_seconds_now). */
bool cpl_alive_address_ready(int fd, short events, double until);

/* Returns a connected, non-blocking socket to ip[which], or -1 with errno if it is not connected
 * before the time `until` (seconds, as cpl_seconds_now). The caller owns the socket. */
int cpl_alive_address_dial(const cpl_alive_address *address, int which, double until);

/* ---- alive_link.c: one connection between rank 0 and another rank, and the messages on it ---- */

enum { CPL_ALIVE_HEADER = 8, CPL_ALIVE_SENTENCE = 1024 };

typedef enum cpl_alive_kind {
    CPL_ALIVE_HELLO = 1, /* to rank 0: rank; half of the token, process, host */
    CPL_ALIVE_WELCOME,   /* the answer: the other half of the token */
    CPL_ALIVE_JOIN,      /* to rank 0: the rank uses this connection */
    CPL_ALIVE_BEAT,      /* heartbeat, with the counts of the sender */
    CPL_ALIVE_LOSS,      /* the lost rank, and the message about its loss */
    CPL_ALIVE_FAREWELL,  /* the sender closes its connection without an error */
} cpl_alive_kind;

typedef struct cpl_alive_message {
    cpl_alive_kind kind;
    int rank;
    char text[CPL_ALIVE_SENTENCE]; /* NUL-terminated */
} cpl_alive_message;

typedef enum cpl_alive_stage {
    CPL_ALIVE_FOREIGN, /* token not received */
    CPL_ALIVE_KNOWN,   /* token verified */
    CPL_ALIVE_JOINED,
    CPL_ALIVE_LEFT, /* farewell received */
} cpl_alive_stage;

typedef struct cpl_alive_link {
    int fd; /* -1 if closed */
    cpl_alive_stage stage;
    int rank; /* rank, process and host of the other end: set from stage KNOWN on */
    long process;
    char host[CPL_ALIVE_HOST + 1];
    double since, heard; /* seconds, as cpl_seconds_now: time of opening; time of the last bytes */
    size_t n_in, n_out;
    char in[CPL_ALIVE_HEADER + CPL_ALIVE_SENTENCE], out[2 * CPL_ALIVE_SENTENCE];
} cpl_alive_link;

/* Sets *link to a new link on `fd`, which it owns until cpl_alive_link_close. */
void cpl_alive_link_open(cpl_alive_link *link, int fd);
void cpl_alive_link_close(cpl_alive_link *link); /* does nothing if closed */

/* Queues a message. `text` is cut at CPL_ALIVE_SENTENCE - 1 bytes. The queue has room (assert) for
 * one message of each kind, one of them with a sentence. */
void cpl_alive_link_push(cpl_alive_link *link, cpl_alive_kind kind, int rank, const char *text);

/* Sends as many queued bytes as the system accepts. cpl_alive_link_fill reports errors. */
void cpl_alive_link_flush(cpl_alive_link *link);

/* Receives available bytes, at most one buffer, without waiting. Returns false if the connection
 * has ended. */
CPL_NODISCARD bool cpl_alive_link_fill(cpl_alive_link *link);

/* Takes the next whole message from the received bytes. Returns 1 if a message is taken, 0 if it is
 * not complete, -1 if the bytes are not a message. */
CPL_NODISCARD int cpl_alive_link_take(cpl_alive_link *link, cpl_alive_message *message);

/* ---- alive_thread.c: the thread, and its state shared with alive.c ---- */

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
    cpl_alive_address where; /* address of rank 0 */
    cpl_alive_address self;  /* host and process of this rank */
    int listener, wake;      /* sockets; wake is an eventfd; -1 if not open */
    /* (n_links); on rank 0 links of ranks and of other programs, mixed. The thread owns them. It
     * changes fd and stage under the lock, since other threads read all fields of joined links
     * under the lock. */
    cpl_alive_link *links;
    struct pollfd *polled; /* (2 + n_links) */
    int n_links;
    pthread_t thread;
    bool runs; /* the thread has been started */

    /* Used by the thread only. */
    double looked, beat_at; /* seconds, as cpl_seconds_now: last check of the links; next beat */
    bool full;              /* no file descriptor is left for a connection, until the next beat */
    bool leaving;

    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t changed;
    bool *joined; /* (size) */
    int64_t
        *count; /* (size): counts of cpl_alive_count on the other ranks, from their heartbeats */
    int64_t *waits; /* (size): counts of cpl_alive_wait_on on the other ranks */
    bool *still;    /* (size): neither count changed in the last heartbeat */
    int n_joined;
    bool closing, reported, announced; /* reported: the loss is this rank's own report */
    char sentence[CPL_ALIVE_SENTENCE]; /* never changes once `lost` is set */
    atomic_int lost;
    _Atomic int64_t own_count, own_waits;
};

/* Writes "rank 3 (host node07, process 4711)" to `name`. */
void cpl_alive_name(char name[CPL_ALIVE_NAME], int rank, const char *host, long process);

void cpl_alive_lock(cpl_alive *a);
void cpl_alive_unlock(cpl_alive *a);

/* Wakes the thread if it waits in poll. */
void cpl_alive_wake(cpl_alive *a);

/* Records that `rank` was lost. Later losses are ignored. `reported` is this rank's own report. */
void cpl_alive_lose(cpl_alive *a, int rank, const char *sentence, bool reported);

/* Runs the thread. `alive` is a cpl_alive. It receives messages, detects and announces a loss, and
 * sends, until it may end. */
void *cpl_alive_watch(void *alive);

#endif /* CPL_PARALLEL_INTERNAL_H */
