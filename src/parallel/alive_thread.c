/* alive_thread.c - see internal.h */
#include "parallel/internal.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    ACCEPTED = 16, /* connections accepted before messages are read again */
};

void cpl_alive_name(char name[CPL_ALIVE_NAME], int rank, const char *host, long process)
{
    snprintf(name, CPL_ALIVE_NAME, "rank %d (host %s, process %ld)", rank, host, process);
}

void cpl_alive_lock(cpl_alive *a)
{
    CPL_ASSERT(pthread_mutex_lock(&a->lock) == 0);
}

void cpl_alive_unlock(cpl_alive *a)
{
    CPL_ASSERT(pthread_mutex_unlock(&a->lock) == 0);
}

void cpl_alive_wake(cpl_alive *a)
{
    const uint64_t one = 1;
    ssize_t written    = write(a->wake, &one, sizeof one);
    CPL_ASSERT(written == (ssize_t)sizeof one || errno == EAGAIN);
}

/* ---- the loss ---- */

void cpl_alive_lose(cpl_alive *a, int rank, const char *sentence, bool reported)
{
    cpl_alive_lock(a);
    if (atomic_load(&a->lost) < 0) {
        snprintf(a->sentence, sizeof a->sentence, "%s", sentence);
        a->reported = reported;
        atomic_store_explicit(&a->lost, rank, memory_order_release);
        pthread_cond_broadcast(&a->changed);
    }
    cpl_alive_unlock(a);
}

static void lose_link(cpl_alive *a, const cpl_alive_link *link, const char *reason)
{
    char name[CPL_ALIVE_NAME], sentence[CPL_ALIVE_SENTENCE];
    cpl_alive_name(name, link->rank, link->host, link->process);
    snprintf(sentence, sizeof sentence, "%s was lost: %s", name, reason);
    cpl_alive_lose(a, link->rank, sentence, false);
}

/* Sends the loss to all ranks, the lost one included, and then calls the callback, which may end
 * the process. */
static void announce(cpl_alive *a)
{
    int rank = atomic_load(&a->lost);
    if (rank < 0 || a->announced) return;
    for (int i = 0; i < a->n_links; i++)
        if (a->links[i].fd >= 0 && a->links[i].stage == CPL_ALIVE_JOINED) {
            cpl_alive_link_push(&a->links[i], CPL_ALIVE_LOSS, rank, a->sentence);
            cpl_alive_link_flush(&a->links[i]);
        }
    cpl_alive_lock(a);
    a->announced = true;
    bool quiet   = a->reported || a->closing || !a->on_lost;
    pthread_cond_broadcast(&a->changed);
    cpl_alive_unlock(a);
    if (!quiet) a->on_lost(a->ctx, rank, a->sentence);
}

/* ---- messages ---- */

static void set_stage(cpl_alive *a, cpl_alive_link *link, cpl_alive_stage stage)
{
    cpl_alive_lock(a);
    link->stage = stage;
    cpl_alive_unlock(a);
}

static void close_link(cpl_alive *a, cpl_alive_link *link)
{
    cpl_alive_lock(a);
    cpl_alive_link_close(link);
    cpl_alive_unlock(a);
}

static void end(cpl_alive *a, cpl_alive_link *link, const char *reason)
{
    if (link->stage == CPL_ALIVE_JOINED && !a->leaving) lose_link(a, link, reason);
    close_link(a, link);
}

/* Each handler returns false if the connection must end. */

static bool on_hello(cpl_alive *a, cpl_alive_link *link, const cpl_alive_message *message)
{
    enum { HALF = CPL_ALIVE_TOKEN / 2 };
    char half[HALF + 1];
    if (link->stage != CPL_ALIVE_FOREIGN || a->rank != 0 || message->rank < 1 ||
        message->rank >= a->size ||
        sscanf(message->text, "%16s %18ld %64s", half, &link->process, link->host) != 3 ||
        strlen(half) != HALF || memcmp(half, a->where.token, HALF) != 0)
        return false;
    link->rank = message->rank;
    set_stage(a, link, CPL_ALIVE_KNOWN);
    cpl_alive_link_push(link, CPL_ALIVE_WELCOME, 0, a->where.token + HALF);
    return true;
}

static bool on_join(cpl_alive *a, cpl_alive_link *link)
{
    if (link->stage != CPL_ALIVE_KNOWN || a->rank != 0 || a->joined[link->rank]) return false;
    set_stage(a, link, CPL_ALIVE_JOINED);
    if (a->announced) cpl_alive_link_push(link, CPL_ALIVE_LOSS, atomic_load(&a->lost), a->sentence);
    cpl_alive_lock(a);
    a->joined[link->rank] = true;
    a->n_joined++;
    pthread_cond_broadcast(&a->changed);
    cpl_alive_unlock(a);
    return true;
}

/* Reads "COUNT WAITS" of a heartbeat. */
static void take_counts(cpl_alive *a, int rank, const char *text)
{
    char *end           = NULL;
    const int64_t count = strtoll(text, &end, 10), waits = strtoll(end, NULL, 10);
    cpl_alive_lock(a);
    a->still[rank] = a->count[rank] == count && a->waits[rank] == waits;
    a->count[rank] = count;
    a->waits[rank] = waits;
    cpl_alive_unlock(a);
}

static bool on_message(cpl_alive *a, cpl_alive_link *link, const cpl_alive_message *message)
{
    if (message->kind == CPL_ALIVE_HELLO) return on_hello(a, link, message);
    if (message->kind == CPL_ALIVE_JOIN) return on_join(a, link);
    if (link->stage != CPL_ALIVE_JOINED) return false;
    if (message->kind == CPL_ALIVE_FAREWELL) {
        set_stage(a, link, CPL_ALIVE_LEFT);
        return false;
    }
    if (message->kind == CPL_ALIVE_LOSS && message->rank >= 0 && message->rank < a->size) {
        cpl_alive_lose(a, message->rank, message->text, false);
        return true;
    }
    if (message->kind != CPL_ALIVE_BEAT) return false;
    take_counts(a, link->rank, message->text);
    return true;
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

/* Returns a link for one more connection. If no link is free, closes the oldest connection that has
 * not sent the token. */
static cpl_alive_link *take_link(cpl_alive *a)
{
    cpl_alive_link *oldest = NULL;
    for (int i = 0; i < a->n_links; i++) {
        cpl_alive_link *link = &a->links[i];
        if (link->fd < 0) return link;
        if (link->stage == CPL_ALIVE_FOREIGN && (!oldest || link->since < oldest->since))
            oldest = link;
    }
    if (oldest) close_link(a, oldest);
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
        cpl_alive_link *link = take_link(a);
        if (!link) {
            close(fd);
            return;
        }
        cpl_alive_lock(a);
        cpl_alive_link_open(link, fd);
        cpl_alive_unlock(a);
    }
}

static void stop_listening(cpl_alive *a)
{
    if (a->listener >= 0) close(a->listener);
    a->listener = -1;
    for (int i = 0; i < a->n_links; i++)
        if (a->links[i].stage < CPL_ALIVE_JOINED) close_link(a, &a->links[i]);
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

/* Records the loss of ranks that sent nothing for too long before the time `asked`. `asked` is
 * before the last poll, so that messages that had arrived have been read. The connections stay
 * open, so that a stopped rank that continues receives the announcement. */
static void lose_silent_ranks(cpl_alive *a, double asked)
{
    char reason[64];
    snprintf(reason, sizeof reason, "nothing was heard of it for %g seconds", a->timeout_s);
    for (int i = 0; i < a->n_links; i++) {
        cpl_alive_link *link = &a->links[i];
        if (link->fd < 0) continue;
        if (link->stage < CPL_ALIVE_JOINED && asked - link->since > HANDSHAKE_S)
            close_link(a, link);
        else if (link->stage == CPL_ALIVE_JOINED && asked - link->heard > a->timeout_s)
            lose_link(a, link, reason);
    }
}

/* Restarts the timeouts of the other ranks if this process itself did not run for a while, since
 * the other ranks may have been suspended with it. */
static void restart_timeouts(cpl_alive *a, double asked)
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
    char text[48];
    double now = cpl_seconds_now();
    if (now < a->beat_at) return;
    a->beat_at = now + a->period_s;
    a->full    = false;
    snprintf(text, sizeof text, "%lld %lld",
             (long long)atomic_load_explicit(&a->own_count, memory_order_relaxed),
             (long long)atomic_load_explicit(&a->own_waits, memory_order_relaxed));
    for (int i = 0; i < a->n_links; i++)
        if (a->links[i].fd >= 0 && a->links[i].stage == CPL_ALIVE_JOINED && !a->links[i].n_out &&
            !a->leaving)
            cpl_alive_link_push(&a->links[i], CPL_ALIVE_BEAT, a->rank, text);
}

static void say_farewell(cpl_alive *a)
{
    a->leaving = true;
    stop_listening(a);
    for (int i = 0; i < a->n_links; i++)
        if (a->links[i].fd >= 0) cpl_alive_link_push(&a->links[i], CPL_ALIVE_FAREWELL, a->rank, "");
}

/* Sends pending messages. Returns whether a connection is open. A rank that closes shuts down its
 * half and waits for the other end, since closing with unread bytes would discard messages in
 * transit. */
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

void *cpl_alive_watch(void *alive)
{
    cpl_alive *a   = alive;
    double gone_by = 0;
    bool open      = true;
    while (!a->leaving || (open && a->looked < gone_by)) {
        double asked = cpl_seconds_now();
        restart_timeouts(a, asked);
        receive(a);
        cpl_alive_lock(a);
        bool closing = a->closing, whole = a->n_joined == a->size - 1;
        cpl_alive_unlock(a);
        if (whole && a->listener >= 0) stop_listening(a);
        if (!a->leaving) lose_silent_ranks(a, asked);
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
