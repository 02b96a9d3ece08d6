/* alive.c - see alive.h */
#include "parallel/alive.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/text.h"
#include "parallel/internal.h"

enum {
    FOREIGNERS = 64, /* largest number of connections of other programs to rank 0 */
    ATTEMPT_S  = 3,  /* largest time in seconds for one address, below HANDSHAKE_S */
};

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
    cpl_free(a->count);
    cpl_free(a->waits);
    cpl_free(a->still);
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

/* Allocates an object without connections and without a thread. */
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
    atomic_init(&a->own_count, 0);
    atomic_init(&a->own_waits, 0);
    init_locks(a);
    a->links  = cpl_alloc((size_t)n_links * sizeof *a->links);
    a->polled = cpl_alloc((size_t)(n_links + 2) * sizeof *a->polled);
    a->joined = cpl_alloc((size_t)size * sizeof *a->joined);
    a->count  = cpl_alloc((size_t)size * sizeof *a->count);
    a->waits  = cpl_alloc((size_t)size * sizeof *a->waits);
    a->still  = cpl_alloc((size_t)size * sizeof *a->still);
    if (!a->links || !a->polled || !a->joined || !a->count || !a->waits || !a->still) {
        release(a);
        return CPL_ERR_MEMORY;
    }
    memset(a->links, 0, (size_t)n_links * sizeof *a->links);
    memset(a->joined, 0, (size_t)size * sizeof *a->joined);
    memset(a->count, 0, (size_t)size * sizeof *a->count);
    memset(a->waits, 0, (size_t)size * sizeof *a->waits);
    memset(a->still, 0, (size_t)size * sizeof *a->still);
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
    a->runs = pthread_create(&a->thread, NULL, cpl_alive_watch, a) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!a->runs) return CPL_FAIL(CPL_ERR_MEMORY, "cannot start a thread for the heartbeat");
    return CPL_OK;
}

/* Checks the limit of open files: rank 0 needs one file for every other rank. */
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

/* Waits for rank 0's welcome. Returns false if the connection ends, or at the time `until`. */
static bool wait_for_welcome(const cpl_alive *a, cpl_alive_link *link, double until)
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

/* Connects to address `which` of rank 0 and joins, before the time `until`. Rank 0 drops a
 * connection that joins later than HANDSHAKE_S. */
static bool join(cpl_alive *a, int which, double until)
{
    cpl_alive_link *link = &a->links[0];
    char text[CPL_ALIVE_NAME];
    int fd = cpl_alive_address_dial(&a->where, which, until);
    if (fd < 0) return false;
    cpl_alive_link_open(link, fd);
    snprintf(text, sizeof text, "%.16s %ld %s", a->where.token, a->self.process, a->self.host);
    cpl_alive_link_push(link, CPL_ALIVE_HELLO, a->rank, text);
    cpl_alive_link_flush(link);
    if (!wait_for_welcome(a, link, until) || cpl_seconds_now() > until) {
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
    /* Limits each attempt, so that all addresses are tried even if one does not answer. */
    const double attempt = fmin(ATTEMPT_S, a->timeout_s / fmax(1, a->where.count));
    char ips[CPL_ALIVE_ADDRESS];
    size_t length = 0;
    int error     = EADDRNOTAVAIL;
    for (int i = 0; i < a->where.count; i++) {
        double now = cpl_seconds_now();
        if (now > until) break;
        if (join(a, i, fmin(until, now + attempt))) return CPL_OK;
        error = errno;
        if (i + 1 < a->where.count) continue;
        (void)poll(NULL, 0, 100); /* pauses before all addresses are tried again */
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

/* Waits for a change, at most until the time `until`. Returns false at `until`. The caller holds
 * the lock. */
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
    cpl_alive_lock(a);
    while (a->n_joined < a->size - 1 && atomic_load(&a->lost) < 0)
        if (!wait_for_change(a, until)) break;
    if (atomic_load(&a->lost) >= 0)
        status = CPL_FAIL(CPL_ERR_DEVICE, "%s", a->sentence);
    else if (a->n_joined < a->size - 1)
        status = fail_missing(a);
    cpl_alive_unlock(a);
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

void cpl_alive_count(cpl_alive *a)
{
    if (a) atomic_fetch_add_explicit(&a->own_count, 1, memory_order_relaxed);
}

void cpl_alive_count_anew(cpl_alive *a)
{
    static const int64_t most = (int64_t)1 << 32; /* limit of collectives between two calls of
                                                     cpl_alive_count_anew */
    if (!a) return;
    const int64_t now = atomic_load_explicit(&a->own_count, memory_order_relaxed);
    atomic_store_explicit(&a->own_count, (now / most + 1) * most, memory_order_relaxed);
}

void cpl_alive_wait_on(cpl_alive *a)
{
    if (a) atomic_fetch_add_explicit(&a->own_waits, 1, memory_order_relaxed);
}

/* Lists the ranks that have begun fewer collectives than `own`, or, if `still`, the ranks that did
 * not wait between their last two heartbeats. The caller holds the lock. */
static void name_ranks(const cpl_alive *a, char names[CPL_ALIVE_NAMES], int64_t own, bool still)
{
    size_t length = 0;
    for (int i = 0; i < a->n_links; i++) {
        const cpl_alive_link *link = &a->links[i];
        char name[CPL_ALIVE_NAME];
        if (link->fd < 0 || link->stage != CPL_ALIVE_JOINED) continue;
        if (still ? !a->still[link->rank] : a->count[link->rank] >= own) continue;
        cpl_alive_name(name, link->rank, link->host, link->process);
        if (length + strlen(name) + 3 > CPL_ALIVE_NAMES) break;
        length += (size_t)snprintf(names + length, CPL_ALIVE_NAMES - length, "%s%s",
                                   length ? ", " : "", name);
    }
}

void cpl_alive_late(cpl_alive *a, char names[CPL_ALIVE_NAMES])
{
    names[0] = '\0';
    if (!a || !a->runs) return;
    const int64_t own = atomic_load_explicit(&a->own_count, memory_order_relaxed);
    const bool waits  = atomic_load_explicit(&a->own_waits, memory_order_relaxed) > 0;
    cpl_alive_lock(a);
    name_ranks(a, names, own, false);
    if (!names[0] && waits) name_ranks(a, names, own, true);
    cpl_alive_unlock(a);
}

void cpl_alive_report(cpl_alive *a, const char *sentence)
{
    char name[CPL_ALIVE_NAME], whole[CPL_ALIVE_SENTENCE];
    if (!a || !a->runs) return;
    const double until = cpl_seconds_now() + LEAVE_S;
    cpl_alive_name(name, a->rank, a->self.host, a->self.process);
    snprintf(whole, sizeof whole, "%s: %s", name, sentence);
    cpl_alive_lose(a, a->rank, whole, true);
    cpl_alive_wake(a);
    cpl_alive_lock(a);
    while (!a->announced && wait_for_change(a, until)) continue;
    cpl_alive_unlock(a);
}

void cpl_alive_close(cpl_alive *a)
{
    if (!a) return;
    if (a->runs) {
        cpl_alive_lock(a);
        a->closing = true;
        cpl_alive_unlock(a);
        cpl_alive_wake(a);
        CPL_ASSERT(pthread_join(a->thread, NULL) == 0);
    }
    release(a);
}
