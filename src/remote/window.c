/* window.c - the ranges of the plan: asked for in their order, as many at once as the buffer holds,
 * and given to those who read; see internal.h */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "remote/cache.h"
#include "remote/internal.h"

enum {
    GAP = 1 << 17, /* bytes between two pieces that are read along: less than a request costs */
    LEAST_RANGE = 1 << 22, /* the longest range, if there are not too many requests then */
    MOST_RANGE  = 1 << 25,
    MANY        = 16000, /* requests */
    LOOK_MS     = 500
};
static const double PATIENCE = 5; /* seconds without any change */

static cpl_remote_file *file_of(const cpl_remote_range *range)
{
    return ((const cpl_remote_source *)range->source)->file;
}

static uint64_t length_of(const cpl_remote_range *range)
{
    return range->end - range->begin;
}

/* ---- asking, under the site's lock ---- */

static void give_back(cpl_remote *r, cpl_remote_range *range)
{
    if (range->out) r->held -= length_of(range);
    cpl_free(range->out);
    range->out     = NULL;
    r->last_change = cpl_seconds_now();
}

static bool reserve(cpl_remote *r, cpl_remote_range *range)
{
    range->out = cpl_alloc((size_t)length_of(range));
    if (range->out) r->held += length_of(range);
    return range->out != NULL;
}

static void pump(cpl_remote *r);

/* A range is there, or has failed. Its source may be closed by now. */
static void arrived(cpl_fetch *fetch)
{
    cpl_remote_range *range = fetch->ctx;
    cpl_remote *r = (cpl_remote *)(void *)((char *)fetch->site - offsetof(cpl_remote, site));
    r->n_active--;
    r->last_change = cpl_seconds_now();
    if (fetch->result == CPL_FETCH_DONE) {
        range->state = CPL_REMOTE_READY;
        pump(r);
    } else {
        range->state = CPL_REMOTE_FAILED;
        give_back(r, range);
    }
}

/* Without memory it has failed without a fetch. */
static void ask(cpl_remote *r, cpl_remote_range *range)
{
    cpl_fetch *fetch = cpl_alloc(sizeof *fetch);
    if (!fetch || (!range->out && !reserve(r, range))) {
        cpl_free(fetch);
        range->state = CPL_REMOTE_FAILED;
        return;
    }
    *fetch       = (cpl_fetch){.site  = &r->site,
                               .file  = &file_of(range)->facts,
                               .begin = range->begin,
                               .bytes = (size_t)length_of(range),
                               .out   = range->out,
                               .done  = arrived,
                               .ctx   = range};
    range->fetch = fetch;
    range->state = CPL_REMOTE_ASKED;
    r->n_active++;
    cpl_fetch_begin(fetch);
}

/* Asks for as many of the next ranges as may be on their way, and as there is room for. */
static void pump(cpl_remote *r)
{
    while (r->next < r->plan.count && r->n_active < CPL_HTTP_ACTIVE && !r->site.down) {
        cpl_remote_range *range = &r->plan.ranges[r->next];
        if (range->state == CPL_REMOTE_WAITING) {
            if (r->held && r->held + length_of(range) > CPL_REMOTE_BUFFER) return;
            ask(r, range);
        }
        r->next++;
    }
}

/* Nothing moves: the buffer is full of ranges that nobody reads, since their layers are left out. A
 * reader waits for this one: all before it is dropped. */
static void skip_to(cpl_remote *r, cpl_remote_range *wanted)
{
    for (cpl_remote_range *range = r->plan.ranges; range < wanted; range++) {
        if (range->readers) continue;
        if (range->state == CPL_REMOTE_READY) give_back(r, range);
        if (range->state == CPL_REMOTE_READY || range->state == CPL_REMOTE_WAITING)
            range->state = CPL_REMOTE_SPENT;
    }
    if (r->next < wanted - r->plan.ranges) r->next = wanted - r->plan.ranges;
    r->last_change = cpl_seconds_now();
}

static void wait_a_while(cpl_remote *r)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&r->site.changed, &r->site.lock, &until);
}

/* ---- reading ---- */

/* Reads a range of an earlier run; one that is damaged is asked for. */
static void load_kept(cpl_remote *r, cpl_remote_range *range)
{
    range->state = CPL_REMOTE_ASKED;
    if (!reserve(r, range)) {
        range->state = CPL_REMOTE_FAILED;
        return;
    }
    const cpl_fetch_file facts = file_of(range)->facts; /* as they are now */
    pthread_mutex_unlock(&r->site.lock);
    const bool good = cpl_cache_load(r->cache, &facts, range->begin, range->end, range->out);
    pthread_mutex_lock(&r->site.lock);
    if (good)
        range->state = CPL_REMOTE_READY;
    else
        ask(r, range);
    pthread_cond_broadcast(&r->site.changed);
}

static void await(cpl_remote *r, cpl_remote_range *range)
{
    if (range->state == CPL_REMOTE_KEPT) load_kept(r, range);
    while (range->state == CPL_REMOTE_WAITING || range->state == CPL_REMOTE_ASKED) {
        pump(r);
        if (range->state == CPL_REMOTE_WAITING && r->site.down) ask(r, range);
        if (range->state == CPL_REMOTE_WAITING && !r->n_active &&
            cpl_seconds_now() - r->last_change > PATIENCE)
            skip_to(r, range);
        if (range->state == CPL_REMOTE_WAITING || range->state == CPL_REMOTE_ASKED) wait_a_while(r);
    }
}

/* Keeps a range that was fetched, without the lock. A cache that cannot be written is no reason to
 * stop: it is said once. */
static void keep(cpl_remote *r, cpl_remote_range *range)
{
    if (!r->cache || !range->fetch || r->cannot_keep) return;
    const cpl_fetch_file facts = file_of(range)->facts; /* as they are now */
    pthread_mutex_unlock(&r->site.lock);
    cpl_status status = cpl_cache_store(r->cache, &facts, range->begin, range->end, range->out);
    pthread_mutex_lock(&r->site.lock);
    if (status == CPL_OK || r->cannot_keep) return;
    r->cannot_keep = true;
    if (r->site.log) cpl_log_warn(r->site.log, "nothing more is kept: %s", cpl_last_error());
}

static void spend(cpl_remote *r, cpl_remote_range *range)
{
    range->state = CPL_REMOTE_SPENT; /* no new reader comes */
    keep(r, range);
    give_back(r, range);
    cpl_free(range->fetch);
    range->fetch = NULL;
    pump(r);
    pthread_cond_broadcast(&r->site.changed);
}

static cpl_status failure_of(const cpl_remote_range *range)
{
    const cpl_fetch *fetch = range->fetch;
    if (fetch) return CPL_FAIL(fetch->status, "%s", fetch->sentence);
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", range->source->path);
}

/* Copies bytes of a range once it is there; under the site's lock, which is left meanwhile. */
static cpl_status take(cpl_remote *r, cpl_remote_range *range, void *out, size_t bytes,
                       uint64_t offset)
{
    cpl_status status = CPL_OK;
    range->readers++;
    await(r, range);
    if (range->state == CPL_REMOTE_READY) {
        pthread_mutex_unlock(&r->site.lock);
        memcpy(out, range->out + (offset - range->begin), bytes);
        pthread_mutex_lock(&r->site.lock);
        range->taken += bytes;
    } else {
        status = failure_of(range);
    }
    range->readers--;
    if (range->state == CPL_REMOTE_READY && range->taken >= range->wanted && !range->readers)
        spend(r, range);
    return status;
}

static cpl_status past_the_end(const cpl_source *source)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: ends at byte %" PRIu64, source->path, source->length);
}

cpl_status cpl_remote_read_planned(const cpl_remote_source *s, void *out, size_t bytes,
                                   uint64_t offset)
{
    cpl_remote *r      = s->remote;
    cpl_status status  = CPL_OK;
    const uint64_t end = offset + bytes;
    if (offset > s->source.length || bytes > s->source.length - offset)
        return past_the_end(&s->source);
    while (bytes && status == CPL_OK) {
        uint64_t until;
        pthread_mutex_lock(&r->site.lock);
        cpl_remote_range *range = cpl_remote_plan_find(&r->plan, &until, &s->source, offset, end);
        const size_t n          = (size_t)(until - offset);
        if (range) status = take(r, range, out, n, offset);
        pthread_mutex_unlock(&r->site.lock);
        if (!range) status = cpl_remote_read_direct(r, s->file, out, n, offset);
        out = (char *)out + n;
        bytes -= n;
        offset += n;
    }
    return status;
}

/* ---- the plan ---- */

void cpl_remote_forget_source(cpl_remote *r, const cpl_source *source)
{
    pthread_mutex_lock(&r->site.lock);
    for (int64_t i = 0; i < r->plan.count; i++) {
        cpl_remote_range *range = &r->plan.ranges[i];
        if (range->source != source) continue;
        if (range->state == CPL_REMOTE_READY) give_back(r, range);
        if (range->state != CPL_REMOTE_ASKED && range->state != CPL_REMOTE_FAILED)
            range->state = CPL_REMOTE_SPENT;
    }
    pthread_mutex_unlock(&r->site.lock);
}

static void find_kept(cpl_remote *r, cpl_origin_plan *facts)
{
    for (int64_t i = 0; i < r->plan.count; i++) {
        cpl_remote_range *range = &r->plan.ranges[i];
        const bool kept =
            r->cache && cpl_cache_has(r->cache, &file_of(range)->facts, range->begin, range->end);
        if (kept) {
            range->state = CPL_REMOTE_KEPT;
            facts->kept_bytes += (double)length_of(range);
        } else {
            facts->n_requests++;
            facts->bytes += (double)length_of(range);
        }
    }
}

cpl_status cpl_remote_set_plan(cpl_remote *r, cpl_origin_plan *facts,
                               const cpl_source_pieces *pieces)
{
    uint64_t most = LEAST_RANGE;
    pthread_mutex_lock(&r->site.lock);
    cpl_status status = cpl_remote_plan_make(&r->plan, pieces, GAP, most);
    while (status == CPL_OK && r->plan.count > MANY && most < MOST_RANGE)
        status = cpl_remote_plan_make(&r->plan, pieces, GAP, most *= 2);
    if (status == CPL_OK) find_kept(r, facts);
    cpl_remote_forget_heads(r, 0);
    facts->n_requests_made = r->site.n_requests;
    r->last_change         = cpl_seconds_now();
    pthread_mutex_unlock(&r->site.lock);
    return status;
}

void cpl_remote_drop_plan(cpl_remote *r)
{
    for (int64_t i = 0; i < r->plan.count; i++) {
        cpl_remote_range *range = &r->plan.ranges[i];
        cpl_fetch *fetch        = range->fetch;
        if (fetch) cpl_free(fetch->url);
        cpl_free(fetch);
        cpl_free(range->out);
    }
    cpl_remote_plan_free(&r->plan);
}
