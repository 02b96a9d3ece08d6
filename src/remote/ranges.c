/* ranges.c - ranges of files: fetched in advance by workers, in the order in which they are needed,
 * and given to readers; see internal.h */
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <string.h>

#include "base/arena.h"
#include "remote/cache.h"
#include "remote/internal.h"

enum {
    GAP = 1 << 17, /* largest gap, in bytes, that is fetched along: it costs less than a request */
    LEAST_RANGE = 1 << 22, /* most bytes of a range; doubled up to CPL_REMOTE_RANGE */
    MANY        = 16000,   /* while there are more ranges */
    HEADS       = 128,     /* files whose first bytes are held */
    FIRST_STEP  = 1 << 19, /* bytes of the second request of a header; doubled up to MOST_STEP */
    MOST_STEP   = 1 << 22
};

/* Ranges this many bytes before the current range are not expected to be read any more. */
static const uint64_t FAR_BEHIND = 4 * (uint64_t)CPL_REMOTE_BUFFER;

/* A file whose header is longer is not read further: its server may send without end. */
static const uint64_t MOST_HEAD = UINT64_C(1) << 28;

static uint64_t length_of(const cpl_remote_range *range)
{
    return range->end - range->begin;
}

static cpl_remote_file *file_of(const cpl_remote_range *range)
{
    return ((const cpl_remote_source *)range->source)->file;
}

/* ---- one range, under the site's lock ---- */

static void free_bytes(cpl_remote *r, cpl_remote_range *range)
{
    if (range->out) r->held -= length_of(range);
    cpl_free(range->out);
    range->out = NULL;
    pthread_cond_broadcast(&r->changed);
}

/* Keeps a range in the cache. The lock is released meanwhile. A cache that cannot be written is
 * named in one warning. */
static void keep_range(cpl_remote *r, const cpl_remote_file *file, const cpl_remote_range *range)
{
    const cpl_fetch_file facts = file->facts; /* a copy, since the lock is released */
    pthread_mutex_unlock(&r->site.lock);
    const cpl_status status =
        cpl_cache_store(r->cache, &facts, range->begin, range->end, range->out);
    pthread_mutex_lock(&r->site.lock);
    if (status == CPL_OK || r->cannot_keep) return;
    r->cannot_keep = true;
    if (r->site.log) cpl_log_warn(r->site.log, "nothing more is kept: %s", cpl_last_error());
}

/* Fetches a range, or loads it from the cache. The lock is released meanwhile. */
static void fetch_range(cpl_remote *r, cpl_remote_file *file, cpl_remote_range *range)
{
    const cpl_fetch_file facts = file->facts;
    const size_t bytes         = (size_t)length_of(range);
    bool loaded                = false;
    range->state               = CPL_REMOTE_REQUESTED;
    range->status              = CPL_ERR_MEMORY;
    range->out                 = cpl_alloc(bytes);
    cpl_fetch fetch            = {.site  = &r->site,
                                  .file  = &file->facts,
                                  .begin = range->begin,
                                  .bytes = bytes,
                                  .out   = range->out};
    if (range->out) {
        r->held += bytes;
        pthread_mutex_unlock(&r->site.lock);
        loaded =
            range->kept && cpl_cache_load(r->cache, &facts, range->begin, range->end, range->out);
        range->status = loaded ? CPL_OK : cpl_fetch_run(&fetch);
        pthread_mutex_lock(&r->site.lock);
        if (range->status != CPL_OK) range->sentence = cpl_text_copy(cpl_last_error());
    }
    range->result = range->out ? (int)fetch.result : CPL_FETCH_FAILED;
    range->got    = fetch.got;
    if (range->status != CPL_OK)
        free_bytes(r, range);
    else if (range->source && r->cache && !loaded && !r->cannot_keep)
        keep_range(r, file, range);
    range->state = range->status == CPL_OK ? CPL_REMOTE_READY : CPL_REMOTE_FAILED;
    pthread_cond_broadcast(&r->changed);
}

static cpl_status failure_of(const cpl_remote_range *range)
{
    return CPL_FAIL(range->status, "%s", range->sentence ? range->sentence : "out of memory");
}

/* ---- workers ---- */

static bool is_full(const cpl_remote *r, const cpl_remote_range *range)
{
    return r->held && r->held + length_of(range) > CPL_REMOTE_BUFFER;
}

/* Returns the next range of the plan, or NULL if there is none or the buffer has no room for it. */
static cpl_remote_range *next_planned(cpl_remote *r)
{
    const cpl_remote_plan *plan = &r->plan;
    while (r->next < plan->count && plan->ranges[r->next].state != CPL_REMOTE_WAITING) r->next++;
    if (r->site.down || r->next == plan->count || is_full(r, &plan->ranges[r->next])) return NULL;
    return &plan->ranges[r->next];
}

/* Returns the range to fetch next and its file, or NULL if no range is due. First bytes that are
 * wanted come first, the oldest before others, then the next range of the plan. */
static cpl_remote_range *next_range(cpl_remote *r, cpl_remote_file **file)
{
    cpl_remote_range *head = NULL;
    for (cpl_remote_file *f = r->files; f; f = f->next) {
        if (f->head.state != CPL_REMOTE_WAITING) continue;
        head  = &f->head;
        *file = f;
    }
    if (head || !r->is_reading) return head;
    cpl_remote_range *range = next_planned(r);
    if (range) *file = file_of(range);
    return range;
}

static void *fetch_ranges(void *ctx)
{
    cpl_remote *r = ctx;
    pthread_mutex_lock(&r->site.lock);
    while (!r->stopped) {
        cpl_remote_file *file;
        cpl_remote_range *range = next_range(r, &file);
        if (range)
            fetch_range(r, file, range);
        else
            pthread_cond_wait(&r->changed, &r->site.lock);
    }
    pthread_mutex_unlock(&r->site.lock);
    return NULL;
}

/* Starts the workers, with all signals blocked. The caller holds the lock. If no worker starts,
 * readers fetch. The memory of a range is mapped by itself, because it is freed by another thread:
 * malloc would keep it for the worker. */
static void start_workers(cpl_remote *r)
{
    sigset_t all, before;
    if (r->n_workers) return;
    (void)mallopt(M_MMAP_THRESHOLD, CPL_REMOTE_HEAD);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (r->n_workers < CPL_HTTP_ACTIVE &&
           pthread_create(&r->workers[r->n_workers], NULL, fetch_ranges, r) == 0)
        r->n_workers++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void cpl_remote_stop(cpl_remote *r)
{
    if (!r->site.http) return;
    cpl_http_stop(r->site.http);
    pthread_mutex_lock(&r->site.lock);
    r->stopped = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->site.lock);
    for (int i = 0; i < r->n_workers; i++) pthread_join(r->workers[i], NULL);
    cpl_http_close(r->site.http);
}

/* ---- reading from a range, under the site's lock ---- */

/* Returns whether a worker will fetch the range soon. */
static bool is_coming(cpl_remote *r, const cpl_remote_range *range)
{
    if (range->state != CPL_REMOTE_WAITING || !r->n_workers) return false;
    const cpl_remote_range *next = range->source ? next_planned(r) : range;
    return next && next <= range;
}

/* Makes room in a full buffer, which may hold ranges of layers that were left out. A dropped range
 * that is read later is fetched again. */
static void drop_unread(cpl_remote *r, const cpl_remote_range *wanted)
{
    uint64_t distance = 0;
    if (!is_full(r, wanted)) return;
    for (int64_t i = wanted - r->plan.ranges - 1; i >= r->plan.first; i--) {
        cpl_remote_range *range = &r->plan.ranges[i];
        distance += length_of(range);
        if (distance < FAR_BEHIND || range->readers || range->state != CPL_REMOTE_READY) continue;
        free_bytes(r, range);
        range->state = CPL_REMOTE_WAITING;
    }
}

/* Returns whether a reader may fetch the range itself. In a full buffer one reader at a time may,
 * until its bytes are copied: its range is `beyond`. */
static bool may_fetch(cpl_remote *r, const cpl_remote_range *range)
{
    if (!range->source) return true;
    if (r->beyond && is_full(r, range)) return false;
    drop_unread(r, range);
    if (is_full(r, range)) r->beyond = range;
    return true;
}

/* Waits until the range is ready or has failed. Fetches the range itself if no worker will. */
static void await_range(cpl_remote *r, cpl_remote_file *file, cpl_remote_range *range)
{
    while (range->state < CPL_REMOTE_READY) {
        if (range->state == CPL_REMOTE_REQUESTED || is_coming(r, range) || !may_fetch(r, range))
            pthread_cond_wait(&r->changed, &r->site.lock);
        else
            fetch_range(r, file, range);
    }
}

/* Copies bytes of a range when the range is ready. The lock is released meanwhile. */
static cpl_status copy_range(cpl_remote *r, cpl_remote_range *range, void *out, size_t bytes,
                             uint64_t offset)
{
    cpl_status status = CPL_OK;
    range->readers++;
    await_range(r, file_of(range), range);
    if (range->state == CPL_REMOTE_READY) {
        pthread_mutex_unlock(&r->site.lock);
        memcpy(out, range->out + (offset - range->begin), bytes);
        pthread_mutex_lock(&r->site.lock);
        range->taken += bytes;
    } else {
        status = failure_of(range);
    }
    range->readers--;
    if (range->state == CPL_REMOTE_READY && range->taken >= range->wanted && !range->readers) {
        range->state = CPL_REMOTE_SPENT;
        free_bytes(r, range);
    }
    if (r->beyond == range && !range->readers) {
        r->beyond = NULL;
        pthread_cond_broadcast(&r->changed);
    }
    return status;
}

/* ---- the first bytes of files ---- */

static void forget_head(cpl_remote *r, cpl_remote_file *file)
{
    if (file->head.state != CPL_REMOTE_READY) return;
    file->head.state = CPL_REMOTE_SPENT;
    free_bytes(r, &file->head);
}

/* Frees the first bytes of all files but the newest `kept`. */
static void forget_heads(cpl_remote *r, int kept)
{
    for (cpl_remote_file *f = r->files; f; f = f->next)
        if (f->head.out && kept-- <= 0) forget_head(r, f);
}

void cpl_remote_want_head(cpl_remote *r, cpl_remote_file *file)
{
    pthread_mutex_lock(&r->site.lock);
    start_workers(r);
    if (file->head.state == CPL_REMOTE_IDLE) file->head.state = CPL_REMOTE_WAITING;
    forget_heads(r, HEADS);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->site.lock);
}

cpl_status cpl_remote_probe(cpl_remote *r, cpl_remote_file *file, bool *there)
{
    cpl_status status = CPL_OK;
    pthread_mutex_lock(&r->site.lock);
    await_range(r, file, &file->head);
    const cpl_fetch_result result = (cpl_fetch_result)file->head.result;
    if (result == CPL_FETCH_FAILED || result == CPL_FETCH_DENIED) status = failure_of(&file->head);
    pthread_mutex_unlock(&r->site.lock);
    *there = result == CPL_FETCH_DONE || result == CPL_FETCH_WHOLE;
    return status;
}

/* ---- bytes outside of the plan, under `direct` ---- */

static cpl_status fetch_now(cpl_remote *r, cpl_remote_file *file, void *out, size_t bytes,
                            uint64_t offset)
{
    cpl_fetch fetch = {
        .site = &r->site, .file = &file->facts, .begin = offset, .bytes = bytes, .out = out};
    return cpl_fetch_run(&fetch);
}

/* Before there is a plan, headers and metadata are read front to back: more than is wanted now,
 * up to `end`, is fetched after the first bytes. */
static cpl_status grow_head(cpl_remote *r, cpl_remote_file *file, uint64_t end)
{
    cpl_remote_range *head = &file->head;
    const uint64_t step    = head->got < FIRST_STEP  ? FIRST_STEP
                             : head->got > MOST_STEP ? MOST_STEP
                                                     : head->got;
    if (end < head->got + step) end = head->got + step;
    if (end > file->facts.length) end = file->facts.length;
    if (end > MOST_HEAD)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its header and metadata take more than %" PRIu64
                        " MiB, which is refused",
                        file->facts.path, MOST_HEAD >> 20);
    pthread_mutex_lock(&r->site.lock); /* headers of other files have been read */
    for (cpl_remote_file *f = r->files; f; f = f->next)
        if (f != file && f->head.got > CPL_REMOTE_HEAD) forget_head(r, f);
    pthread_mutex_unlock(&r->site.lock);
    unsigned char *out = cpl_realloc(head->out, (size_t)end);
    if (!out) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", file->facts.path);
    head->out = out;
    CPL_TRY(fetch_now(r, file, out + head->got, (size_t)end - head->got, head->got));
    head->got = (size_t)end;
    return CPL_OK;
}

static cpl_status read_direct(cpl_remote *r, cpl_remote_file *file, void *out, size_t bytes,
                              uint64_t offset)
{
    cpl_status status      = CPL_OK;
    cpl_remote_range *head = &file->head;
    const uint64_t end     = offset + bytes;
    pthread_mutex_lock(&r->direct);
    const bool onwards = head->out && !r->plan.count && offset <= head->got + MOST_STEP;
    if (onwards && end > head->got) status = grow_head(r, file, end);
    if (status == CPL_OK && head->out && end <= head->got)
        memcpy(out, head->out + offset, bytes);
    else if (status == CPL_OK)
        status = fetch_now(r, file, out, bytes, offset);
    pthread_mutex_unlock(&r->direct);
    return status;
}

/* ---- reading ---- */

cpl_status cpl_remote_read_planned(const cpl_remote_source *s, void *out, size_t bytes,
                                   uint64_t offset)
{
    cpl_remote *r      = s->remote;
    cpl_status status  = CPL_OK;
    const uint64_t end = offset + bytes;
    if (offset > s->source.length || bytes > s->source.length - offset)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: ends at byte %" PRIu64, s->source.path,
                        s->source.length);
    while (bytes && status == CPL_OK) {
        uint64_t until;
        pthread_mutex_lock(&r->site.lock);
        cpl_remote_range *range = cpl_remote_plan_find(&r->plan, &until, &s->source, offset, end);
        const size_t n          = (size_t)(until - offset);
        if (range && !r->is_reading) {
            r->is_reading = true;
            start_workers(r);
            pthread_cond_broadcast(&r->changed);
        }
        if (range) status = copy_range(r, range, out, n, offset);
        pthread_mutex_unlock(&r->site.lock);
        if (!range) status = read_direct(r, s->file, out, n, offset);
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
    for (int64_t i = r->plan.first; i < r->plan.count; i++) {
        cpl_remote_range *range = &r->plan.ranges[i];
        if (range->source != source) continue;
        if (range->state == CPL_REMOTE_READY) free_bytes(r, range);
        if (range->state == CPL_REMOTE_READY || range->state == CPL_REMOTE_WAITING)
            range->state = CPL_REMOTE_SPENT;
    }
    pthread_mutex_unlock(&r->site.lock);
}

static void find_kept(cpl_remote *r, cpl_origin_plan *facts)
{
    for (int64_t i = 0; i < r->plan.count; i++) {
        cpl_remote_range *range = &r->plan.ranges[i];
        const double bytes      = (double)length_of(range);
        range->kept =
            r->cache && cpl_cache_has(r->cache, &file_of(range)->facts, range->begin, range->end);
        if (range->kept) {
            facts->kept_bytes += bytes;
        } else {
            facts->n_requests++;
            facts->bytes += bytes;
        }
    }
}

cpl_status cpl_remote_set_plan(cpl_remote *r, cpl_origin_plan *facts,
                               const cpl_source_pieces *pieces)
{
    uint64_t most = LEAST_RANGE;
    pthread_mutex_lock(&r->site.lock);
    cpl_status status = cpl_remote_plan_make(&r->plan, pieces, GAP, most);
    while (status == CPL_OK && r->plan.count > MANY && most < CPL_REMOTE_RANGE)
        status = cpl_remote_plan_make(&r->plan, pieces, GAP, most *= 2);
    if (status == CPL_OK) find_kept(r, facts);
    forget_heads(r, 0);
    facts->n_requests_made = r->site.n_requests;
    pthread_mutex_unlock(&r->site.lock);
    return status;
}
