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
    MOST_TRIES   = 4,   /* after lost connections without progress, or when a server fails */
    MOST_WAITS   = 7,   /* when a server asks to wait */
    LONGEST_WAIT = 600, /* seconds a server may ask for */
    A_DAY        = 86400,
    PROGRESS     = 65536, /* bytes after which a lost connection counts as the first one */
    LINE_RATE    = 65536  /* bytes per second of the slowest line, which all requests share */
};
static const double FIRST_WAIT = 0.5; /* seconds; doubled each time */

/* ---- results ---- */

/* Ends the fetch with a sentence that begins with the path. */
static cpl_status stop(cpl_fetch *f, cpl_fetch_result result, cpl_status status, const char *format,
                       ...) CPL_PRINTF(4, 5);

static cpl_status stop(cpl_fetch *f, cpl_fetch_result result, cpl_status status, const char *format,
                       ...)
{
    char sentence[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    f->result = result;
    return CPL_FAIL(status, "%.400s: %s", f->file->path, sentence);
}

#define REFUSE(f, ...)  stop((f), CPL_FETCH_FAILED, CPL_ERR_INPUT, __VA_ARGS__)
#define GIVE_UP(f, ...) stop((f), CPL_FETCH_FAILED, CPL_ERR_IO, __VA_ARGS__)

static cpl_status end_well(cpl_fetch *f)
{
    f->result = CPL_FETCH_DONE;
    return CPL_OK;
}

/* Returns "; it says "..."", from a hub's header. */
static const char *quote_error(char out[300], const cpl_http_answer *a)
{
    out[0] = '\0';
    if (*a->error_text) snprintf(out, 300, "; it says \"%s\"", a->error_text);
    return out;
}

/* ---- time ---- */

/* Returns the least bytes per second of a fetch. Ranges share the line, whole files do not. */
static double least_rate(const cpl_fetch *f)
{
    return f->out ? (double)LINE_RATE / CPL_HTTP_ACTIVE : LINE_RATE;
}

/* Returns the most seconds that the requests of the fetch may take together. */
static double most_seconds(const cpl_fetch *f)
{
    return f->site->patience + (double)f->bytes / least_rate(f);
}

/* Warns about a fetch that is too slow, once in `notice` seconds for the site. */
static void watch_fetch(cpl_http_request *t, double seconds)
{
    cpl_fetch *f         = t->ctx;
    cpl_fetch_site *site = f->site;
    const double spent = f->spent + seconds, now = cpl_seconds_now();
    const size_t got = f->dropped + f->got + (cpl_http_has_bytes(t->answer.code) ? t->got : 0);
    if (spent < site->notice || (double)got > spent * least_rate(f)) return;
    pthread_mutex_lock(&site->lock);
    const bool due = now - site->slow_named >= site->notice;
    if (due) site->slow_named = now;
    if (due && site->log)
        cpl_log_warn(site->log, "%s: waiting for %s, which has sent %zu bytes in %.0f seconds",
                     f->file->path, t->host, got, spent);
    pthread_mutex_unlock(&site->lock);
}

/* ---- repetition ---- */

/* Continues the fetch after so many seconds, unless its requests have taken too long. */
static cpl_status repeat_after(cpl_fetch *f, double seconds)
{
    if (f->spent >= most_seconds(f) - 0.01)
        return GIVE_UP(
            f,
            "%s is too slow: it has sent %zu bytes in %.0f seconds, the most that is waited "
            "for; try again later",
            f->request.host, f->dropped + f->got, f->spent);
    f->not_before = cpl_seconds_now() + seconds;
    return CPL_OK;
}

static double backed_off(int tries)
{
    return FIRST_WAIT * (double)(1 << tries);
}

/* Repeats a request that had no connection or lost it. Names the first unreachable host. */
static cpl_status try_again(cpl_fetch *f)
{
    const cpl_http_request *t = &f->request;
    const bool answered       = t->answer.code != 0;
    const char *why = t->end == CPL_HTTP_DONE ? "it sends fewer bytes than it says" : t->error;
    if (f->fresh >= PROGRESS) f->tries = 0;
    f->fresh = 0;
    if (f->tries < MOST_TRIES) {
        if (!answered && !f->site->unreachable_named && f->site->log)
            cpl_log_warn(f->site->log, "cannot reach %s: %s; trying again", f->request.host, why);
        f->site->unreachable_named |= !answered;
        return repeat_after(f, backed_off(f->tries++));
    }
    if (answered)
        return GIVE_UP(f, "the connection with %s was lost %d times in a row: %s", f->request.host,
                       MOST_TRIES + 1, why);
    const cpl_status status =
        GIVE_UP(f, "cannot reach %s: %s (%d tries)", f->request.host, why, MOST_TRIES + 1);
    if (!f->site->down) f->site->down = cpl_text_copy(cpl_last_error());
    return status;
}

/* Repeats the request after 429, 503 and other failures of a server that may pass. */
static cpl_status wait_and_try(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->request.answer;
    const double now = cpl_seconds_now(), own = backed_off(f->tries);
    const double seconds = a->retry_after > own ? a->retry_after : own; /* a past date: 0 s */
    if (seconds > A_DAY)
        return GIVE_UP(f, "%s asks to wait for more than a day (%ld): try again later",
                       f->request.host, a->code);
    if (seconds > LONGEST_WAIT)
        return GIVE_UP(f, "%s asks to wait %.0f seconds (%ld): try again then", f->request.host,
                       seconds, a->code);
    /* A busy server is given more time than a server that fails. */
    const bool busy = a->code == 429 || a->code == 503;
    if (f->tries++ >= (busy ? MOST_WAITS : MOST_TRIES))
        return GIVE_UP(f, "%s answered %ld, %d times in a row%s", f->request.host, a->code,
                       f->tries, a->code == 429 ? ": too many requests; try again later" : "");
    const double before = cpl_http_hold(f->site->http, now + seconds);
    if (seconds >= 2 && now + seconds > before + 1 && f->site->log)
        cpl_log_warn(f->site->log, "%s asks to wait %.0f seconds (%ld)", f->request.host, seconds,
                     a->code);
    return repeat_after(f, seconds);
}

/* Returns whether redirects led to the address that refused: a kept address, or once a new one. */
static bool may_renew(const cpl_fetch *f)
{
    return f->remembered ? f->renewals < 2 : f->request.hops > 0 && f->renewals < 1;
}

/* Forgets the address that refused, such as a signed URL that has expired. */
static cpl_status renew_address(cpl_fetch *f)
{
    cpl_fetch_file *file = f->file;
    if (file->moved && strcmp(file->moved, f->request.url) == 0) {
        cpl_free(file->moved);
        file->moved = NULL;
    }
    f->renewals++;
    return repeat_after(f, 0);
}

/* ---- bytes ---- */

/* Drops the bytes of a whole file that came, and the facts of its first answer. */
static void start_over(cpl_fetch *f)
{
    cpl_text_clear(f->text);
    f->dropped += f->got;
    f->got = f->fresh = 0;
    if (f->learned) f->file->known = false;
    f->learned = false;
}

/* Refuses an answer of a file that changed. A whole file that nobody has read yet is requested
 * again, once. */
static cpl_status refuse_change(cpl_fetch *f, const char *what)
{
    if (f->out || !f->learned || f->changed)
        return REFUSE(f, "%s: begin again once it stays as it is", what);
    f->changed = true;
    start_over(f);
    return try_again(f);
}

static void remember_address(cpl_fetch *f)
{
    if (f->remembered || strcmp(f->request.place, f->file->url) == 0) return;
    cpl_free(f->file->moved);
    f->file->moved = cpl_text_copy(f->request.place); /* NULL: a redirect follows again */
}

/* Returns the number of bytes of the range that the file has. */
static size_t expected_bytes(const cpl_fetch *f)
{
    const uint64_t length = f->file->length;
    if (f->begin >= length) return 0;
    return length - f->begin < f->bytes ? (size_t)(length - f->begin) : f->bytes;
}

/* Accepts more bytes of a whole file. The rest is requested where length and tag are known. */
static cpl_status accept_whole(cpl_fetch *f)
{
    cpl_http_answer *a  = &f->request.answer;
    const bool complete = f->request.end == CPL_HTTP_DONE;
    if (complete && !a->has_length) { /* its end gives the length */
        a->has_length    = true;
        a->length        = f->got;
        const char *what = cpl_fetch_compare(f);
        if (what) return refuse_change(f, what);
    }
    if (complete && f->got == f->file->length) return end_well(f);
    if (!f->file->known || !*f->file->tag || f->unresumable) start_over(f);
    return try_again(f);
}

/* Accepts an answer with bytes, complete or cut. */
static cpl_status accept_bytes(cpl_fetch *f)
{
    const char *what = cpl_fetch_compare(f);
    if (what) return refuse_change(f, what);
    remember_address(f);
    f->got += f->request.got;
    f->fresh += f->request.got;
    if (!f->out) return accept_whole(f);
    return f->got >= expected_bytes(f) ? end_well(f) : try_again(f);
}

/* Requests a whole file from its start, after the server has sent no range for the rest. */
static cpl_status read_from_start(cpl_fetch *f)
{
    f->unresumable = true;
    start_over(f);
    return repeat_after(f, 0);
}

/* ---- answers without bytes ---- */

/* Refuses 401 and 403. */
static cpl_status refuse_denied(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->request.answer;
    const char *hub = f->site->endpoint, *place = f->request.place;
    char says[300];
    quote_error(says, a);
    if (hub && !cpl_address_is_same_host(place, hub))
        return REFUSE(f, "%s, to which the hub leads, refuses it (%ld)%s", f->request.host, a->code,
                      f->renewals ? ", by a new way too" : "");
    if (!hub)
        return stop(f, a->code == 403 ? CPL_FETCH_DENIED : CPL_FETCH_FAILED, CPL_ERR_INPUT,
                    "%s refuses it (%ld)%s", f->request.host, a->code,
                    a->code == 401 ? ": it asks for a login, and none is sent to a web server"
                                   : "");
    if (f->request.token)
        return REFUSE(
            f,
            "%s refuses it (%ld) with the token that was sent: if the model is gated, "
            "accept its terms on %s/%s with the account of that token; HF_TOKEN is another "
            "one%s",
            f->request.host, a->code, hub, f->site->repository, says);
    return REFUSE(f,
                  "%s refuses it (%ld): there is no such repository, or it is private or gated: "
                  "accept its terms on %s/%s, then set HF_TOKEN to a token that may read it%s",
                  f->request.host, a->code, hub, f->site->repository, says);
}

/* Refuses 416, which is right for an empty file only. */
static cpl_status refuse_range(cpl_fetch *f)
{
    cpl_http_request *t = &f->request;
    if (f->begin == 0 && strcmp(t->answer.range, "bytes */0") == 0) {
        t->answer.has_length = true;
        t->answer.length     = 0;
        const char *what     = cpl_fetch_compare(f);
        return what ? refuse_change(f, what) : end_well(f);
    }
    return REFUSE(f, "%s has no bytes %" PRIu64 " to %" PRIu64 " of it (416)%s", f->request.host,
                  t->begin, t->begin + t->bytes - 1,
                  f->file->known ? ": the file became shorter" : "");
}

static cpl_status judge_code(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->request.answer;
    const long code          = a->code;
    const bool passing = code == 408 || code == 429 || code == 500 || (code >= 502 && code <= 504);
    char says[300];
    quote_error(says, a);
    if (passing) return wait_and_try(f);
    if (code == 416) return refuse_range(f);
    if (code >= 400 && code < 500 && may_renew(f)) return renew_address(f);
    if (code == 401 || code == 403) return refuse_denied(f);
    if (code == 404 || code == 410)
        return stop(f, CPL_FETCH_ABSENT, CPL_ERR_INPUT, "%s has no such file (%ld)%s",
                    f->request.host, code, says);
    return REFUSE(f, "%s answered %ld%s%s", f->request.host, code,
                  code / 100 == 3 ? " without a place to go to" : "", says);
}

/* Decides whether an answer ends the fetch or the request is repeated. The caller holds the site's
 * lock. */
static cpl_status judge_answer(cpl_fetch *f)
{
    const cpl_http_request *t = &f->request;
    const bool bytes          = cpl_http_has_bytes(t->answer.code);
    f->spent += t->seconds;
    f->site->n_requests += 1 + t->hops;
    if (t->end == CPL_HTTP_NO_MEMORY)
        return stop(f, CPL_FETCH_FAILED, CPL_ERR_MEMORY, "out of memory");
    if (t->end == CPL_HTTP_STOPPED) return GIVE_UP(f, "stopped");
    if (t->end == CPL_HTTP_DONE && !bytes) return judge_code(f);
    if (t->end == CPL_HTTP_DONE || (t->end == CPL_HTTP_CUT && bytes)) return accept_bytes(f);
    if (t->end == CPL_HTTP_CUT) return try_again(f);
    if (t->end == CPL_HTTP_WHOLE && !f->out) return read_from_start(f);
    return stop(f, t->end == CPL_HTTP_WHOLE ? CPL_FETCH_WHOLE : CPL_FETCH_FAILED,
                t->end == CPL_HTTP_BROKEN ? CPL_ERR_IO : CPL_ERR_INPUT, "%s", t->error);
}

/* ---- requests ---- */

/* Sets the next request. Its address is the address after redirects, if that is known. The caller
 * holds the lock. */
static cpl_status prepare(cpl_fetch *f, char **url)
{
    const cpl_fetch_site *site = f->site;
    cpl_fetch_file *file       = f->file;
    cpl_http_request *t        = &f->request;
    f->remembered              = file->moved != NULL;
    *url                       = NULL;
    if (site->down) { /* a server that is down gets no further request */
        f->result = CPL_FETCH_FAILED;
        return CPL_FAIL(CPL_ERR_IO, "%s", site->down);
    }
    *url = cpl_text_copy(f->remembered ? file->moved : file->url);
    if (!*url) return stop(f, CPL_FETCH_FAILED, CPL_ERR_MEMORY, "out of memory");
    const bool own = site->endpoint && cpl_address_is_same_host(*url, site->endpoint);
    memcpy(f->tag, file->tag, sizeof f->tag);
    t->url          = *url;
    t->token        = own ? site->token : NULL;
    t->ranged       = f->out || f->got;
    t->begin        = f->begin + f->got;
    t->bytes        = f->out || !f->got ? f->bytes - f->got : (size_t)(file->length - f->got);
    t->out          = f->out ? f->out + f->got : NULL;
    t->text         = f->out ? NULL : f->text;
    t->not_before   = f->not_before;
    t->most_seconds = most_seconds(f) - f->spent;
    t->watch        = watch_fetch;
    t->ctx          = f;
    return CPL_OK;
}

static cpl_status send_once(cpl_fetch *f)
{
    cpl_fetch_site *site = f->site;
    char *url;
    pthread_mutex_lock(&site->lock);
    cpl_status status = prepare(f, &url);
    pthread_mutex_unlock(&site->lock);
    if (status != CPL_OK) return status;
    cpl_http_run(site->http, &f->request);
    pthread_mutex_lock(&site->lock);
    status = judge_answer(f);
    pthread_mutex_unlock(&site->lock);
    cpl_free(f->request.place);
    cpl_free(url);
    return status;
}

cpl_status cpl_fetch_run(cpl_fetch *f)
{
    cpl_status status = CPL_OK;
    f->result         = CPL_FETCH_RUNNING;
    while (f->result == CPL_FETCH_RUNNING) status = send_once(f);
    return status;
}

void cpl_fetch_file_free(cpl_fetch_file *file)
{
    cpl_free(file->path);
    cpl_free(file->url);
    cpl_free(file->moved);
    *file = (cpl_fetch_file){0};
}
