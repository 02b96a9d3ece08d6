/* alive.c - see alive.h */
#include "dist/alive.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/text.h"
#include "dist/alive_link.h"

enum {
    FOREIGNERS  = 64, /* connections beyond those of the ranks that rank 0 holds at once */
    ACCEPTED    = 16, /* connections accepted before the others are looked at again */
    HANDSHAKE_S = 5,  /* a connection that has not joined by then is dropped */
    ATTEMPT_S   = 3,  /* for one address, less than HANDSHAKE_S */
    LEAVE_S     = 2,
    NAME        = 128,
};

struct cpl_alive {
    int rank, size;
    double timeout_s, period_s;
    cpl_alive_lost_fn *on_lost;
    void *ctx;
    cpl_alive_address where; /* of rank 0 */
    cpl_alive_address self;  /* host and process */
    int listener, wake;      /* wake: an eventfd; both -1 if there is none */
    cpl_alive_link *links;   /* (n_links); rank 0: those of the ranks and of foreigners, mixed */
    struct pollfd *polled;   /* (2 + n_links) */
    int n_links;
    pthread_t thread;
    bool runs; /* whether there is a thread */

    /* Of the thread alone. */
    double looked, beat_at; /* of cpl_seconds_now */
    bool full;              /* no file is left for one more connection; until the next beat */
    bool leaving;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    bool *joined; /* (size) */
    int n_joined;
    bool closing, reported, announced; /* `reported`: the loss is this rank's own report */
    char sentence[CPL_ALIVE_SENTENCE]; /* never changes once `lost` is set */
    atomic_int lost;
};

static void name_of(char name[NAME], int rank, const char *host, long process)
{
    snprintf(name, NAME, "rank %d (host %s, process %ld)", rank, host, process);
}

static void lock(cpl_alive *a)
{
    CPL_ASSERT(pthread_mutex_lock(&a->lock) == 0);
}

static void unlock(cpl_alive *a)
{
    CPL_ASSERT(pthread_mutex_unlock(&a->lock) == 0);
}

static void wake(cpl_alive *a)
{
    const uint64_t one = 1;
    ssize_t written    = write(a->wake, &one, sizeof one);
    CPL_ASSERT(written == (ssize_t)sizeof one || errno == EAGAIN);
}

/* ---- the loss ---- */

/* Keeps the first loss. `reported`: by this rank itself. */
static void lose(cpl_alive *a, int rank, const char *sentence, bool reported)
{
    lock(a);
    if (atomic_load(&a->lost) < 0) {
        snprintf(a->sentence, sizeof a->sentence, "%s", sentence);
        a->reported = reported;
        atomic_store_explicit(&a->lost, rank, memory_order_release);
        pthread_cond_broadcast(&a->changed);
    }
    unlock(a);
}

static void lose_link(cpl_alive *a, const cpl_alive_link *link, const char *reason)
{
    char name[NAME], sentence[CPL_ALIVE_SENTENCE];
    name_of(name, link->rank, link->host, link->process);
    snprintf(sentence, sizeof sentence, "%s was lost: %s", name, reason);
    lose(a, link->rank, sentence, false);
}

/* Sends the loss to the ranks, the lost one included, and only then calls the callback, which may
 * end the process. */
static void announce(cpl_alive *a)
{
    int rank = atomic_load(&a->lost);
    if (rank < 0 || a->announced) return;
    for (int i = 0; i < a->n_links; i++)
        if (a->links[i].fd >= 0 && a->links[i].stage == CPL_ALIVE_JOINED) {
            cpl_alive_link_push(&a->links[i], CPL_ALIVE_LOSS, rank, a->sentence);
            cpl_alive_link_flush(&a->links[i]);
        }
    lock(a);
    a->announced = true;
    bool quiet   = a->reported || a->closing || !a->on_lost;
    pthread_cond_broadcast(&a->changed);
    unlock(a);
    if (!quiet) a->on_lost(a->ctx, rank, a->sentence);
}

/* ---- messages ---- */

static void end(cpl_alive *a, cpl_alive_link *link, const char *reason)
{
    if (link->stage == CPL_ALIVE_JOINED && !a->leaving) lose_link(a, link, reason);
    cpl_alive_link_close(link);
}

/* Each of these returns false if the connection must end. */

static bool on_hello(cpl_alive *a, cpl_alive_link *link, const cpl_alive_message *message)
{
    enum { HALF = CPL_ALIVE_TOKEN / 2 };
    char half[HALF + 1];
    if (link->stage != CPL_ALIVE_FOREIGN || a->rank != 0 || message->rank < 1 ||
        message->rank >= a->size ||
        sscanf(message->text, "%16s %18ld %64s", half, &link->process, link->host) != 3 ||
        strlen(half) != HALF || memcmp(half, a->where.token, HALF) != 0)
        return false;
    link->rank  = message->rank;
    link->stage = CPL_ALIVE_KNOWN;
    cpl_alive_link_push(link, CPL_ALIVE_WELCOME, 0, a->where.token + HALF);
    return true;
}

static bool on_join(cpl_alive *a, cpl_alive_link *link)
{
    if (link->stage != CPL_ALIVE_KNOWN || a->rank != 0 || a->joined[link->rank]) return false;
    link->stage = CPL_ALIVE_JOINED;
    if (a->announced) cpl_alive_link_push(link, CPL_ALIVE_LOSS, atomic_load(&a->lost), a->sentence);
    lock(a);
    a->joined[link->rank] = true;
    a->n_joined++;
    pthread_cond_broadcast(&a->changed);
    unlock(a);
    return true;
}

static bool on_message(cpl_alive *a, cpl_alive_link *link, const cpl_alive_message *message)
{
    if (message->kind == CPL_ALIVE_HELLO) return on_hello(a, link, message);
    if (message->kind == CPL_ALIVE_JOIN) return on_join(a, link);
    if (link->stage != CPL_ALIVE_JOINED) return false;
    if (message->kind == CPL_ALIVE_FAREWELL) {
        link->stage = CPL_ALIVE_LEFT;
        return false;
    }
    if (message->kind == CPL_ALIVE_LOSS && message->rank >= 0 && message->rank < a->size) {
        lose(a, message->rank, message->text, false);
        return true;
    }
    return message->kind == CPL_ALIVE_BEAT;
}

static void read_link(cpl_alive *a, cpl_alive_link *link)
{
    cpl_alive_message message;
    int found = 1;
    bool open = cpl_alive_link_fill(link);
    if (!open) end(a, link, "its connection closed");
    while (link->fd >= 0 && (found = cpl_alive_link_take(link, &message)) > 0)
        if (!on_message(a, link, &message)) end(a, link, "it sent an unexpected message");
    if (link->fd >= 0 && found < 0) end(a, link, "it sent bytes that are no message");
}

/* ---- connections ---- */

/* A place for one more connection; if need be that of the oldest one that has not shown the
 * token. */
static cpl_alive_link *place(cpl_alive *a)
{
    cpl_alive_link *oldest = NULL;
    for (int i = 0; i < a->n_links; i++) {
        cpl_alive_link *link = &a->links[i];
        if (link->fd < 0) return link;
        if (link->stage == CPL_ALIVE_FOREIGN && (!oldest || link->since < oldest->since))
            oldest = link;
    }
    if (oldest) cpl_alive_link_close(oldest);
    return oldest;
}

static void accept_some(cpl_alive *a)
{
    for (int n = 0; n < ACCEPTED; n++) {
        int fd = accept4(a->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            a->full = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
            return;
        }
        cpl_alive_link *link = place(a);
        if (!link) {
            close(fd);
            return;
        }
        cpl_alive_link_open(link, fd);
    }
}

static void stop_listening(cpl_alive *a)
{
    if (a->listener >= 0) close(a->listener);
    a->listener = -1;
    for (int i = 0; i < a->n_links; i++)
        if (a->links[i].stage < CPL_ALIVE_JOINED) cpl_alive_link_close(&a->links[i]);
}

/* ---- the thread ---- */

/* Waits for connections and messages until the next beat, and reads them. */
static void receive(cpl_alive *a)
{
    double left  = a->beat_at - cpl_seconds_now();
    a->polled[0] = (struct pollfd){.fd = a->wake, .events = POLLIN};
    a->polled[1] = (struct pollfd){.fd = a->full ? -1 : a->listener, .events = POLLIN};
    for (int i = 0; i < a->n_links; i++)
        a->polled[2 + i] = (struct pollfd){
            .fd     = a->links[i].fd,
            .events = (short)(POLLIN | (a->links[i].n_out > 0 ? POLLOUT : 0)),
        };
    if (poll(a->polled, (nfds_t)a->n_links + 2, left > 0 ? (int)ceil(1e3 * left) : 0) <= 0) return;
    uint64_t wakes;
    if (a->polled[0].revents) CPL_ASSERT(read(a->wake, &wakes, sizeof wakes) > 0);
    for (int i = 0; i < a->n_links; i++)
        if (a->polled[2 + i].fd >= 0 && a->polled[2 + i].revents & ~POLLOUT)
            read_link(a, &a->links[i]);
    if (a->polled[1].revents) accept_some(a);
}

/* Loses the ranks that were silent for too long at the time `asked`, which is before the last poll:
 * what had arrived by then has been read. Their connections stay open: a stopped rank that
 * continues reads there that it is lost. */
static void judge(cpl_alive *a, double asked)
{
    char reason[64];
    snprintf(reason, sizeof reason, "nothing was heard of it for %g seconds", a->timeout_s);
    for (int i = 0; i < a->n_links; i++) {
        cpl_alive_link *link = &a->links[i];
        if (link->fd < 0) continue;
        if (link->stage < CPL_ALIVE_JOINED && asked - link->since > HANDSHAKE_S)
            cpl_alive_link_close(link);
        else if (link->stage == CPL_ALIVE_JOINED && asked - link->heard > a->timeout_s)
            lose_link(a, link, reason);
    }
}

/* If this process did not run for a while, that is no silence of the others, who may have been
 * suspended with it. */
static void excuse(cpl_alive *a, double asked)
{
    double gap = asked - a->looked;
    a->looked  = asked;
    for (int i = 0; gap > a->timeout_s / 2 && i < a->n_links; i++) {
        a->links[i].heard += gap;
        a->links[i].since += gap;
    }
}

static void beat(cpl_alive *a)
{
    double now = cpl_seconds_now();
    if (now < a->beat_at) return;
    a->beat_at = now + a->period_s;
    a->full    = false;
    for (int i = 0; i < a->n_links; i++)
        if (a->links[i].fd >= 0 && a->links[i].stage == CPL_ALIVE_JOINED && !a->links[i].n_out &&
            !a->leaving)
            cpl_alive_link_push(&a->links[i], CPL_ALIVE_BEAT, a->rank, "");
}

static void say_farewell(cpl_alive *a)
{
    a->leaving = true;
    stop_listening(a);
    for (int i = 0; i < a->n_links; i++)
        if (a->links[i].fd >= 0) cpl_alive_link_push(&a->links[i], CPL_ALIVE_FAREWELL, a->rank, "");
}

/* Sends what waits; returns whether a connection is open. Closing with bytes unread would throw
 * away what is on its way to the other end: the leaving one ends its half, and waits for the
 * other. */
static bool flush(cpl_alive *a)
{
    bool open = false;
    for (int i = 0; i < a->n_links; i++) {
        cpl_alive_link *link = &a->links[i];
        cpl_alive_link_flush(link);
        if (a->leaving && link->fd >= 0 && link->n_out == 0) (void)shutdown(link->fd, SHUT_WR);
        open = open || link->fd >= 0;
    }
    return open;
}

static void *watch(void *alive)
{
    cpl_alive *a   = alive;
    double gone_by = 0;
    bool open      = true;
    while (!a->leaving || (open && a->looked < gone_by)) {
        double asked = cpl_seconds_now();
        excuse(a, asked);
        receive(a);
        lock(a);
        bool closing = a->closing, whole = a->n_joined == a->size - 1;
        unlock(a);
        if (whole && a->listener >= 0) stop_listening(a);
        if (!a->leaving) judge(a, asked);
        announce(a);
        beat(a);
        if (closing && !a->leaving) {
            say_farewell(a);
            gone_by = cpl_seconds_now() + LEAVE_S;
        }
        open = flush(a);
    }
    return NULL;
}

/* ---- beginning and end ---- */

static void release(cpl_alive *a)
{
    for (int i = 0; a->links && i < a->n_links; i++) cpl_alive_link_close(&a->links[i]);
    if (a->listener >= 0) close(a->listener);
    if (a->wake >= 0) close(a->wake);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    cpl_free(a->links);
    cpl_free(a->polled);
    cpl_free(a->joined);
    cpl_free(a);
}

static void init_locks(cpl_alive *a)
{
    pthread_condattr_t clock;
    CPL_ASSERT(pthread_mutex_init(&a->lock, NULL) == 0);
    CPL_ASSERT(pthread_condattr_init(&clock) == 0);
    CPL_ASSERT(pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) == 0);
    CPL_ASSERT(pthread_cond_init(&a->changed, &clock) == 0);
    pthread_condattr_destroy(&clock);
}

/* An object without connections or thread. */
static cpl_status make(cpl_alive **out, int rank, int size, int n_links, double timeout_s)
{
    CPL_ASSERT(size >= 1 && rank >= 0 && rank < size && timeout_s > 0);
    cpl_alive *a = cpl_alloc(sizeof *a);
    if (!a) return CPL_ERR_MEMORY;
    memset(a, 0, sizeof *a);
    a->rank      = rank;
    a->size      = size;
    a->timeout_s = timeout_s;
    a->period_s  = fmin(1.0, timeout_s / 5);
    a->listener = a->wake = -1;
    atomic_init(&a->lost, -1);
    init_locks(a);
    a->links  = cpl_alloc((size_t)n_links * sizeof *a->links);
    a->polled = cpl_alloc((size_t)(n_links + 2) * sizeof *a->polled);
    a->joined = cpl_alloc((size_t)size * sizeof *a->joined);
    if (!a->links || !a->polled || !a->joined) {
        release(a);
        return CPL_ERR_MEMORY;
    }
    memset(a->links, 0, (size_t)n_links * sizeof *a->links);
    memset(a->joined, 0, (size_t)size * sizeof *a->joined);
    for (; a->n_links < n_links; a->n_links++) a->links[a->n_links].fd = -1;
    *out = a;
    return CPL_OK;
}

static cpl_status start(cpl_alive *a, cpl_alive_lost_fn *on_lost, void *ctx)
{
    sigset_t all, before;
    a->on_lost = on_lost;
    a->ctx     = ctx;
    a->looked = a->beat_at = cpl_seconds_now();
    a->wake                = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->wake < 0) return CPL_FAIL(CPL_ERR_IO, "eventfd: %s", strerror(errno));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    a->runs = pthread_create(&a->thread, NULL, watch, a) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!a->runs) return CPL_FAIL(CPL_ERR_MEMORY, "no thread can be made for the heartbeat");
    return CPL_OK;
}

/* Rank 0 holds a file for every other rank. */
static cpl_status check_open_files(int size)
{
    struct rlimit most;
    const rlim_t need = (rlim_t)size + 2 * FOREIGNERS;
    if (getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur < need)
        return CPL_FAIL(CPL_ERR_IO,
                        "%d ranks need %llu open files in rank 0, and %llu are allowed; "
                        "raise the limit (ulimit -n)",
                        size, (unsigned long long)need, (unsigned long long)most.rlim_cur);
    return CPL_OK;
}

static cpl_status listen_and_start(cpl_alive *a, cpl_alive_lost_fn *on_lost, void *ctx)
{
    CPL_TRY(check_open_files(a->size));
    CPL_TRY(cpl_alive_address_here(&a->where));
    a->self     = a->where;
    a->listener = cpl_alive_address_listen(&a->where);
    if (a->listener < 0)
        return CPL_FAIL(CPL_ERR_IO, "rank 0 cannot listen for heartbeats: %s", strerror(errno));
    return start(a, on_lost, ctx);
}

cpl_status cpl_alive_listen(cpl_alive **out, char address[CPL_ALIVE_ADDRESS], int size,
                            double timeout_s, cpl_alive_lost_fn *on_lost, void *ctx)
{
    cpl_alive *a = NULL;
    CPL_TRY(make(&a, 0, size, size - 1 + FOREIGNERS, timeout_s));
    cpl_status status = size > 1 ? listen_and_start(a, on_lost, ctx) : CPL_OK;
    if (status != CPL_OK) {
        release(a);
        return status;
    }
    address[0] = '\0';
    if (size > 1) cpl_alive_address_write(address, CPL_ALIVE_ADDRESS, &a->where);
    *out = a;
    return CPL_OK;
}

/* Waits for rank 0's welcome; false if the connection ends, or at the time `until`. */
static bool welcomed(const cpl_alive *a, cpl_alive_link *link, double until)
{
    cpl_alive_message message;
    int found = 0;
    errno     = ECONNRESET;
    while (found == 0) {
        if (!cpl_alive_address_ready(link->fd, POLLIN, until)) {
            errno = ETIMEDOUT;
            return false;
        }
        if (!cpl_alive_link_fill(link)) return false;
        found = cpl_alive_link_take(link, &message);
    }
    return found > 0 && message.kind == CPL_ALIVE_WELCOME &&
           strcmp(message.text, a->where.token + CPL_ALIVE_TOKEN / 2) == 0;
}

/* Rank 0 drops a connection that joins later than HANDSHAKE_S: none is joined after `until`. */
static bool join(cpl_alive *a, int which, double until)
{
    cpl_alive_link *link = &a->links[0];
    char text[NAME];
    int fd = cpl_alive_address_dial(&a->where, which, until);
    if (fd < 0) return false;
    cpl_alive_link_open(link, fd);
    snprintf(text, sizeof text, "%.16s %ld %s", a->where.token, a->self.process, a->self.host);
    cpl_alive_link_push(link, CPL_ALIVE_HELLO, a->rank, text);
    cpl_alive_link_flush(link);
    if (!welcomed(a, link, until) || cpl_seconds_now() > until) {
        cpl_alive_link_close(link);
        return false;
    }
    link->stage   = CPL_ALIVE_JOINED;
    link->rank    = 0;
    link->process = a->where.process;
    memcpy(link->host, a->where.host, sizeof link->host);
    cpl_alive_link_push(link, CPL_ALIVE_JOIN, a->rank, "");
    cpl_alive_link_flush(link);
    return true;
}

static cpl_status reach(cpl_alive *a)
{
    const double until = cpl_seconds_now() + a->timeout_s;
    char ips[CPL_ALIVE_ADDRESS];
    size_t length = 0;
    int error     = EADDRNOTAVAIL;
    for (int i = 0; i < a->where.count; i++) {
        double now = cpl_seconds_now();
        if (now > until) break;
        if (join(a, i, fmin(until, now + ATTEMPT_S))) return CPL_OK;
        error = errno;
        if (i + 1 < a->where.count) continue;
        (void)poll(NULL, 0, 100); /* all again, but not at once */
        i = -1;
    }
    ips[0] = '\0';
    for (int i = 0; i < a->where.count; i++)
        length += (size_t)snprintf(ips + length, sizeof ips - length, " %s", a->where.ip[i]);
    return CPL_FAIL(CPL_ERR_DEVICE,
                    "rank %d (host %s) did not reach rank 0 (host %s, TCP port %d, addresses%s) "
                    "within %g seconds: %s; a firewall must allow TCP between the hosts",
                    a->rank, a->self.host, a->where.host, a->where.port, ips, a->timeout_s,
                    strerror(error));
}

cpl_status cpl_alive_connect(cpl_alive **out, const char *address, int rank, int size,
                             double timeout_s, cpl_alive_lost_fn *on_lost, void *ctx)
{
    cpl_alive *a = NULL;
    CPL_ASSERT(rank > 0);
    CPL_TRY(make(&a, rank, size, 1, timeout_s));
    cpl_alive_address_self(&a->self);
    cpl_status status = cpl_alive_address_read(&a->where, address);
    if (status == CPL_OK) status = reach(a);
    if (status == CPL_OK) status = start(a, on_lost, ctx);
    if (status != CPL_OK) {
        release(a);
        return status;
    }
    *out = a;
    return CPL_OK;
}

/* Waits, with the lock held, for a change until `until`; false when that time has come. */
static bool wait_for_change(cpl_alive *a, double until)
{
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)(1e9 * (until - floor(until)))};
    return pthread_cond_timedwait(&a->changed, &a->lock, &at) != ETIMEDOUT;
}

static cpl_status fail_missing(const cpl_alive *a)
{
    enum { NAMED = 8 };
    cpl_text ranks = {0};
    int missing    = 0;
    for (int r = 1; r < a->size; r++)
        if (!a->joined[r] && ++missing <= NAMED)
            cpl_text_printf(&ranks, "%s%d", missing > 1 ? ", " : "", r);
    if (missing > NAMED) cpl_text_printf(&ranks, " and %d more", missing - NAMED);
    cpl_status status = CPL_FAIL(
        CPL_ERR_DEVICE,
        "%s %s of %d did not connect to rank 0 (host %s, TCP port %d) within %g seconds; a "
        "firewall must allow TCP between the hosts",
        missing > 1 ? "ranks" : "rank", ranks.bytes ? ranks.bytes : "", a->size, a->where.host,
        a->where.port, a->timeout_s);
    cpl_text_free(&ranks);
    return status;
}

cpl_status cpl_alive_wait(cpl_alive *a)
{
    const double until = cpl_seconds_now() + a->timeout_s;
    cpl_status status  = CPL_OK;
    CPL_ASSERT(a->rank == 0);
    lock(a);
    while (a->n_joined < a->size - 1 && atomic_load(&a->lost) < 0)
        if (!wait_for_change(a, until)) break;
    if (atomic_load(&a->lost) >= 0)
        status = CPL_FAIL(CPL_ERR_DEVICE, "%s", a->sentence);
    else if (a->n_joined < a->size - 1)
        status = fail_missing(a);
    unlock(a);
    return status;
}

int cpl_alive_lost(const cpl_alive *a)
{
    return a ? atomic_load_explicit(&a->lost, memory_order_acquire) : -1;
}

const char *cpl_alive_sentence(const cpl_alive *a)
{
    return cpl_alive_lost(a) < 0 ? "" : a->sentence;
}

void cpl_alive_report(cpl_alive *a, const char *sentence)
{
    char name[NAME], whole[CPL_ALIVE_SENTENCE];
    if (!a || !a->runs) return;
    const double until = cpl_seconds_now() + LEAVE_S;
    name_of(name, a->rank, a->self.host, a->self.process);
    snprintf(whole, sizeof whole, "%s: %s", name, sentence);
    lose(a, a->rank, whole, true);
    wake(a);
    lock(a);
    while (!a->announced && wait_for_change(a, until)) continue;
    unlock(a);
}

void cpl_alive_close(cpl_alive *a)
{
    if (!a) return;
    if (a->runs) {
        lock(a);
        a->closing = true;
        unlock(a);
        wake(a);
        CPL_ASSERT(pthread_join(a->thread, NULL) == 0);
    }
    release(a);
}
