/* fetch.c - see fetch.h */
#include "remote/fetch.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "remote/address.h"

enum {
    MOST_HOPS    = 10,
    MOST_TRIES   = 4,   /* after a lost connection without getting on, or when a server fails */
    MOST_WAITS   = 7,   /* when a server asks to wait */
    LONGEST_WAIT = 600, /* seconds a server may ask for */
    A_DAY        = 86400,
    GETTING_ON   = 65536 /* bytes after which a lost connection counts as the first one */
};
static const double FIRST_WAIT = 0.5; /* seconds; doubled each time */

static void send(cpl_fetch *f, double at);
static void release(cpl_fetch *f);

/* ---- results ---- */

static void end(cpl_fetch *f, cpl_fetch_result result)
{
    f->result = result;
    release(f);
    cpl_free(f->url);
    f->url = NULL;
    if (f->done) f->done(f);
    pthread_cond_broadcast(&f->site->changed);
}

/* Ends it with a sentence that begins with the path. */
static void stop(cpl_fetch *f, cpl_fetch_result result, cpl_status status, const char *format, ...)
    CPL_PRINTF(4, 5);

static void stop(cpl_fetch *f, cpl_fetch_result result, cpl_status status, const char *format, ...)
{
    va_list args;
    const int n = snprintf(f->sentence, sizeof f->sentence, "%.400s: ", f->file->path);
    va_start(args, format);
    vsnprintf(f->sentence + n, sizeof f->sentence - (size_t)n, format, args);
    va_end(args);
    f->status = status;
    end(f, result);
}

/* "; it says "..."", of a hub. */
static const char *what_it_says(char out[300], const cpl_http_answer *a)
{
    out[0] = '\0';
    if (*a->error_text) snprintf(out, 300, "; it says \"%s\"", a->error_text);
    return out;
}

/* ---- answers that are refusals ---- */

static void deny(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->transfer.answer;
    const char *page         = f->site->page;
    char host[256], says[300];
    cpl_address_host(host, f->url);
    what_it_says(says, a);
    if (f->site->endpoint && !cpl_address_is_same_host(f->url, f->site->endpoint))
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT, "%s, to which the hub leads, refuses it (%ld)%s",
             host, a->code, f->renewals ? ", by a new way too" : "");
    else if (!f->site->endpoint)
        stop(f, a->code == 403 ? CPL_FETCH_DENIED : CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "%s refuses it (%ld)%s", host, a->code,
             a->code == 401 ? ": it asks for a login, and none is sent to a web server" : "");
    else if (f->transfer.token)
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "%s refuses it (%ld) with the token that was sent: if the model is gated, accept its "
             "terms on %s with the account of that token; HF_TOKEN is another one%s",
             host, a->code, page, says);
    else
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "%s refuses it (%ld): there is no such repository, or it is private or gated: accept "
             "its terms on %s, then set HF_TOKEN to a token that may read it%s",
             host, a->code, page, says);
}

static void absent(cpl_fetch *f)
{
    char host[256], says[300];
    stop(f, CPL_FETCH_ABSENT, CPL_ERR_INPUT, "%s has no such file (%ld)%s",
         cpl_address_host(host, f->url), f->transfer.answer.code,
         what_it_says(says, &f->transfer.answer));
}

/* ---- again ---- */

/* Sends the same request later; the way to the file is kept. */
static void again_after(cpl_fetch *f, double seconds)
{
    send(f, cpl_seconds_now() + seconds);
}

static double backed_off(int tries)
{
    return FIRST_WAIT * (double)(1 << tries);
}

/* Without a connection, or after a lost one. The first wait of a site is told. */
static void try_again(cpl_fetch *f)
{
    const bool answered = f->transfer.answer.code != 0, complete = f->transfer.end == CPL_HTTP_DONE;
    const char *why = complete ? "it sends fewer bytes than it says" : f->transfer.error;
    char host[256];
    cpl_address_host(host, f->url);
    if (f->fresh >= GETTING_ON) f->tries = 0;
    f->fresh = 0;
    if (f->tries < MOST_TRIES) {
        if (!answered && !f->site->told && f->site->log)
            cpl_log_warn(f->site->log, "cannot reach %s: %s; trying again", host, why);
        f->site->told |= !answered;
        again_after(f, backed_off(f->tries++));
        return;
    }
    if (answered)
        stop(f, CPL_FETCH_FAILED, CPL_ERR_IO,
             "the connection with %s was lost %d times in a row: %s", host, MOST_TRIES + 1, why);
    else
        stop(f, CPL_FETCH_FAILED, CPL_ERR_IO, "cannot reach %s: %s (%d tries)", host, why,
             MOST_TRIES + 1);
    if (!f->site->down) f->site->down = cpl_text_copy(f->sentence);
}

/* 429, 503 and other failures of a server that may pass. */
static void wait_and_try(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->transfer.answer;
    const double now         = cpl_seconds_now();
    char host[256];
    cpl_address_host(host, f->url);
    const double own = backed_off(f->tries); /* a date in the past asks for no wait */
    double seconds   = a->retry_after > own ? a->retry_after : own;
    if (seconds > A_DAY) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_IO,
             "%s asks to wait for more than a day (%ld): try again later", host, a->code);
        return;
    }
    if (seconds > LONGEST_WAIT) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_IO, "%s asks to wait %.0f seconds (%ld): try again then",
             host, seconds, a->code);
        return;
    }
    /* A server that says it is busy is given more time than one that fails. */
    const bool busy = a->code == 429 || a->code == 503;
    if (f->tries++ >= (busy ? MOST_WAITS : MOST_TRIES)) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_IO, "%s answered %ld, %d times in a row%s", host, a->code,
             f->tries, a->code == 429 ? ": too many requests; try again later" : "");
        return;
    }
    const double before = cpl_http_hold(f->site->http, f->url, now + seconds);
    if (seconds >= 2 && now + seconds > before + 1 && f->site->log)
        cpl_log_warn(f->site->log, "%s asks to wait %.0f seconds (%ld)", host, seconds, a->code);
    again_after(f, seconds);
}

/* ---- redirects ---- */

static void follow(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->transfer.answer;
    char *to, host[256];
    cpl_address_host(host, f->url);
    if (!*a->location) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "%s answered %ld without a place to go to, or with one of more than 8 KiB", host,
             a->code);
        return;
    }
    if (f->hops++ == MOST_HOPS) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "a redirect loop: after %d redirects %s gives another one", MOST_HOPS, host);
        return;
    }
    const cpl_status status = cpl_address_redirect(&to, f->url, a->location);
    if (status != CPL_OK) {
        stop(f, CPL_FETCH_FAILED, status, "%s redirects to a place that is not allowed: %s", host,
             cpl_last_error());
        return;
    }
    if (*a->linked_tag) memcpy(f->linked, a->linked_tag, sizeof f->linked);
    if (a->linked_size) f->linked_size = a->linked_size;
    cpl_free(f->url);
    f->url = to;
    send(f, 0);
}

/* Sends it to the place that is remembered, or else to where the way begins. */
static void set_out(cpl_fetch *f)
{
    f->remembered  = f->file->moved != NULL;
    *f->linked     = '\0';
    f->linked_size = 0;
    if (f->remembered) memcpy(f->tag, f->file->tag, sizeof f->tag);
    cpl_free(f->url);
    f->url  = cpl_text_copy(f->remembered ? f->file->moved : f->file->url);
    f->hops = 0;
    if (f->url)
        send(f, 0);
    else
        stop(f, CPL_FETCH_FAILED, CPL_ERR_MEMORY, "out of memory");
}

/* The place that was remembered is refused: a signed URL that has expired. One fetch asks for the way
 * again, the others of the file wait for it. */
static void renew(cpl_fetch *f)
{
    cpl_fetch_file *file = f->file;
    if (file->moved && strcmp(file->moved, f->url) == 0) {
        cpl_free(file->moved);
        file->moved = NULL;
    }
    f->renewals++;
    if (file->moved || !file->renewing) {
        if (!file->moved) file->renewing = f;
        set_out(f);
        return;
    }
    f->next       = file->waiting;
    file->waiting = f;
}

/* If it was the one that asked for the way: those that wait set out again. */
static void release(cpl_fetch *f)
{
    cpl_fetch_file *file = f->file;
    if (file->renewing != f) return;
    file->renewing     = NULL;
    cpl_fetch *waiting = file->waiting;
    file->waiting      = NULL;
    while (waiting) {
        cpl_fetch *next = waiting->next;
        set_out(waiting);
        waiting = next;
    }
}

/* Whether redirects had led to the place that refused: one that was signed just now, once. */
static bool may_renew(const cpl_fetch *f)
{
    return f->remembered ? f->renewals < 2 : f->hops > 0 && f->renewals < 1;
}

/* ---- bytes ---- */

/* Of a whole file: drops what is there. What the first answer said is forgotten with its bytes. */
static void start_over(cpl_fetch *f)
{
    cpl_text_clear(f->text);
    f->got = f->fresh = 0;
    if (f->learned) f->file->known = false;
    f->learned = false;
}

static void change(cpl_fetch *f, const char *what)
{
    stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT, "%s: begin again once it stays as it is", what);
}

/* Whether the bytes of this answer may be kept. If not, ends the fetch; but a whole file that changed
 * while it was read, and of which nobody has read anything, is asked for again, once. */
static bool accept_bytes(cpl_fetch *f)
{
    const char *what = cpl_fetch_compare(f);
    if (!what) return true;
    if (!f->out && f->learned && !f->changed) {
        f->changed = true;
        start_over(f);
        try_again(f);
    } else {
        change(f, what);
    }
    return false;
}

static void remember_way(cpl_fetch *f)
{
    if (f->remembered || strcmp(f->url, f->file->url) == 0) return;
    cpl_free(f->file->moved);
    f->file->moved = cpl_text_copy(f->url); /* without memory: redirected again */
    release(f);
}

/* Bytes of the range that the file has. */
static size_t expected(const cpl_fetch *f)
{
    const uint64_t length = f->file->length;
    if (f->begin >= length) return 0;
    return length - f->begin < f->bytes ? (size_t)(length - f->begin) : f->bytes;
}

/* After more bytes of a whole file. If it was cut, the rest is asked for where length and ETag are
 * known. */
static void take_whole(cpl_fetch *f)
{
    cpl_http_answer *a  = &f->transfer.answer;
    const bool complete = f->transfer.end == CPL_HTTP_DONE;
    if (complete && !a->has_length) { /* its end gives the length */
        a->has_length = true;
        a->length     = f->got;
        if (!accept_bytes(f)) return;
    }
    if (complete && f->got == f->file->length) {
        end(f, CPL_FETCH_DONE);
        return;
    }
    if (!f->file->known || !*f->file->tag || f->unresumable) start_over(f);
    try_again(f);
}

/* An answer with bytes, complete or cut. */
static void take(cpl_fetch *f)
{
    if (!accept_bytes(f)) return;
    remember_way(f);
    f->got += f->transfer.got;
    f->fresh += f->transfer.got;
    if (!f->out)
        take_whole(f);
    else if (f->got >= expected(f))
        end(f, CPL_FETCH_DONE);
    else
        try_again(f);
}

/* The rest of a whole file was asked for, and the server sends no ranges. */
static void read_from_start(cpl_fetch *f)
{
    f->unresumable = true;
    start_over(f);
    send(f, 0);
}

/* 416: right of an empty file only. */
static void out_of_range(cpl_fetch *f)
{
    cpl_http_answer *a = &f->transfer.answer;
    char host[256];
    if (f->begin == 0 && strcmp(a->range, "bytes */0") == 0) {
        a->has_length = true;
        a->length     = 0;
        if (accept_bytes(f)) end(f, CPL_FETCH_DONE);
        return;
    }
    stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
         "%s has no bytes %" PRIu64 " to %" PRIu64 " of it (416)%s", cpl_address_host(host, f->url),
         f->transfer.begin, f->transfer.begin + f->transfer.bytes - 1,
         f->file->known ? ": the file became shorter" : "");
}

/* ---- one answer ---- */

static void judge_code(cpl_fetch *f)
{
    const long code = f->transfer.answer.code;
    char host[256], says[300];
    switch (code) {
    case 301:
    case 302:
    case 303:
    case 307:
    case 308:
        follow(f);
        return;
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
        wait_and_try(f);
        return;
    case 416:
        out_of_range(f);
        return;
    default:
        break;
    }
    if (code >= 400 && code < 500 && may_renew(f))
        renew(f);
    else if (code == 401 || code == 403)
        deny(f);
    else if (code == 404 || code == 410)
        absent(f);
    else
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT, "%s answered %ld%s",
             cpl_address_host(host, f->url), code, what_it_says(says, &f->transfer.answer));
}

static void judge_end(cpl_fetch *f)
{
    const cpl_http_transfer *t = &f->transfer;
    char host[256];
    cpl_address_host(host, f->url);
    if (t->end == CPL_HTTP_WHOLE) {
        stop(f, CPL_FETCH_WHOLE, CPL_ERR_INPUT,
             "%s sends no ranges: it answered with the whole file, and was stopped at once; "
             "fetch the checkpoint from it first",
             host);
    } else if (t->end == CPL_HTTP_MISMATCH && strstr(t->answer.range, "/*")) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT, "%s does not say how long it is: \"%s\"", host,
             t->answer.range);
    } else if (t->end == CPL_HTTP_MISMATCH) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "%s answered with other bytes than those asked for: \"%s\" for bytes %" PRIu64
             " to %" PRIu64,
             host, t->answer.range, t->begin, t->begin + t->bytes - 1);
    } else if (t->end == CPL_HTTP_LONG) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "%s sends more than the %zu bytes that %s, and was stopped", host, t->bytes,
             f->out ? "were asked for" : "such a file may have");
    } else if (t->end == CPL_HTTP_ENCODED) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "%s sends it compressed, so that ranges of it mean nothing", host);
    } else if (t->end == CPL_HTTP_TLS) {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_INPUT,
             "the certificate of %s is not valid, and nothing was sent: %s", host, t->error);
    } else {
        stop(f, CPL_FETCH_FAILED, CPL_ERR_IO, "the request to %s failed: %s", host, t->error);
    }
}

/* A renewed way leads to the file: those that wait for it need not wait for this range too. */
static void open_way(cpl_http_transfer *t)
{
    cpl_fetch *f         = t->ctx;
    cpl_fetch_site *site = f->site;
    pthread_mutex_lock(&site->lock);
    if (f->file->renewing == f && !cpl_fetch_compare(f)) remember_way(f);
    pthread_mutex_unlock(&site->lock);
}

/* The engine's thread comes back with an answer. */
static void judge(cpl_http_transfer *t)
{
    cpl_fetch *f         = t->ctx;
    cpl_fetch_site *site = f->site;
    pthread_mutex_lock(&site->lock);
    const bool bytes = cpl_http_has_bytes(t->answer.code);
    if (t->end == CPL_HTTP_DONE && !bytes)
        judge_code(f);
    else if (t->end == CPL_HTTP_DONE || (t->end == CPL_HTTP_CUT && bytes))
        take(f);
    else if (t->end == CPL_HTTP_CUT)
        try_again(f);
    else if (t->end == CPL_HTTP_WHOLE && !f->out)
        read_from_start(f);
    else
        judge_end(f);
    pthread_mutex_unlock(&site->lock);
}

/* ---- one request ---- */

static void send(cpl_fetch *f, double at)
{
    cpl_fetch_site *site = f->site;
    cpl_http_transfer *t = &f->transfer;
    const bool own       = site->endpoint && cpl_address_is_same_host(f->url, site->endpoint);
    if (site->down) { /* what cannot be reached is not asked again and again */
        snprintf(f->sentence, sizeof f->sentence, "%s", site->down);
        f->status = CPL_ERR_IO;
        end(f, CPL_FETCH_FAILED);
        return;
    }
    t->url    = f->url;
    t->token  = own ? site->token : NULL;
    t->ranged = f->out || f->got;
    t->begin  = f->begin + f->got;
    t->bytes  = f->out || !f->got ? f->bytes - f->got : (size_t)(f->file->length - f->got);
    t->out    = f->out ? f->out + f->got : NULL;
    t->text   = f->out ? NULL : f->text;
    t->begun  = open_way;
    t->done   = judge;
    t->ctx    = f;
    site->n_requests++;
    cpl_http_submit(site->http, t, at);
}

void cpl_fetch_begin(cpl_fetch *f)
{
    f->result = CPL_FETCH_RUNNING;
    f->status = CPL_OK;
    if (f->file->renewing) {
        f->next          = f->file->waiting;
        f->file->waiting = f;
        return;
    }
    set_out(f);
}

cpl_status cpl_fetch_wait(cpl_fetch *f)
{
    while (f->result == CPL_FETCH_RUNNING) pthread_cond_wait(&f->site->changed, &f->site->lock);
    return f->result == CPL_FETCH_DONE ? CPL_OK : CPL_FAIL(f->status, "%s", f->sentence);
}

void cpl_fetch_file_free(cpl_fetch_file *file)
{
    cpl_free(file->path);
    cpl_free(file->url);
    cpl_free(file->moved);
    *file = (cpl_fetch_file){0};
}
