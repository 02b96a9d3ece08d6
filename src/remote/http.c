/* http.c - see http.h */
#include "remote/http.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "base/clock.h"
#include "remote/address.h"
#include "remote/curl_table.h"

enum {
    CONNECT_SECONDS = 30,
    SLOW_BYTES      = 64,    /* a second, or less: nearly nothing */
    STREAMS         = 4,     /* of one HTTP/2 connection at once: several connections share a way */
    ERROR_BODY      = 65536, /* bytes of the page of an error that are let come */
    MOST_HEAD       = 1 << 18, /* bytes of a header */
    HOSTS           = 16       /* that are held at once */
};

/* A host that has asked to wait. */
typedef struct hold {
    char host[256];
    double until;
} hold;

/* Set before the first engine starts. */
static const cpl_curl_table *curl;

struct cpl_http {
    CURLM *multi;
    int stall_seconds;
    pthread_t thread;
    pthread_mutex_t lock;     /* of the next three */
    cpl_http_transfer *queue; /* submitted and not taken over yet */
    hold holds[HOSTS];
    bool stopped;
    cpl_http_transfer *asleep; /* of the thread: to be sent later, or when others are done */
    cpl_http_transfer *active; /* of the thread: on their way */
    int n_active;
};

/* ---- the header of an answer ---- */

/* The value of a header line of this name, without blanks around it; NULL: another name. */
static const char *value_of(const char *line, size_t length, const char *name, size_t *bytes)
{
    const size_t n = strlen(name);
    if (length <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') return NULL;
    size_t from = n + 1, end = length;
    while (from < end && (line[from] == ' ' || line[from] == '\t')) from++;
    while (end > from && strchr(" \t\r\n", line[end - 1])) end--;
    *bytes = end - from;
    return line + from;
}

static void keep(char *out, size_t size, const char *value, size_t bytes)
{
    const size_t n = bytes < size - 1 ? bytes : size - 1;
    memcpy(out, value, n);
    out[n] = '\0';
}

/* A number in digits alone; false: none, or beyond int64. */
static bool number_of(uint64_t *out, const char *value, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (value[i] < '0' || value[i] > '9') return false;
        if (__builtin_mul_overflow(sum, UINT64_C(10), &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(value[i] - '0'), &sum) || sum > INT64_MAX)
            return false;
    }
    *out = sum;
    return bytes > 0;
}

/* Seconds, or a date. */
static double seconds_of(const char *value)
{
    uint64_t seconds;
    if (number_of(&seconds, value, strlen(value))) return (double)seconds;
    if (*value && value[strspn(value, "0123456789")] == '\0') return (double)INT64_MAX;
    const time_t at = curl->getdate(value, NULL), now = time(NULL);
    return at < 0 ? -1 : at > now ? difftime(at, now) : 0;
}

static void read_line(cpl_http_transfer *t, const char *line, size_t length)
{
    cpl_http_answer *a = &t->answer;
    size_t n;
    const char *v;
    char text[128];
    if ((v = value_of(line, length, "ETag", &n))) {
        keep(a->tag, sizeof a->tag, v, n);
    } else if ((v = value_of(line, length, "Last-Modified", &n)) && !*a->tag) {
        keep(a->tag, sizeof a->tag, v, n);
    } else if ((v = value_of(line, length, "X-Linked-ETag", &n))) {
        keep(a->linked_tag, sizeof a->linked_tag, v, n);
    } else if ((v = value_of(line, length, "X-Linked-Size", &n))) {
        if (!number_of(&a->linked_size, v, n)) a->linked_size = 0;
    } else if ((v = value_of(line, length, "Location", &n))) {
        keep(a->location, sizeof a->location, v, n < sizeof a->location ? n : 0);
    } else if ((v = value_of(line, length, "Content-Range", &n))) {
        keep(a->range, sizeof a->range, v, n);
    } else if ((v = value_of(line, length, "Content-Length", &n))) {
        a->has_length = number_of(&a->length, v, n);
    } else if ((v = value_of(line, length, "Content-Encoding", &n))) {
        if (n && !(n == 8 && strncasecmp(v, "identity", n) == 0)) t->end = CPL_HTTP_ENCODED;
    } else if ((v = value_of(line, length, "Retry-After", &n))) {
        keep(text, sizeof text, v, n);
        a->retry_after = seconds_of(text);
    } else if ((v = value_of(line, length, "X-Error-Code", &n))) {
        keep(a->error_code, sizeof a->error_code, v, n);
    } else if ((v = value_of(line, length, "X-Error-Message", &n))) {
        keep(a->error_text, sizeof a->error_text, v, n);
    }
}

/* "bytes 0-9/100", which must be the range asked for, cut only where the file ends. */
static bool range_fits(cpl_http_transfer *t)
{
    uint64_t first, last, length;
    const char *value = t->answer.range, *dash = strchr(value, '-'), *slash = strchr(value, '/');
    if (strncasecmp(value, "bytes ", 6) != 0 || !dash || !slash || dash > slash) return false;
    if (!number_of(&first, value + 6, (size_t)(dash - value) - 6) ||
        !number_of(&last, dash + 1, (size_t)(slash - dash) - 1) ||
        !number_of(&length, slash + 1, strlen(slash + 1)))
        return false;
    const uint64_t end   = t->begin + t->bytes < length ? t->begin + t->bytes : length;
    t->answer.has_length = true;
    t->answer.length     = length;
    return first == t->begin && last + 1 == end;
}

/* The whole file is what was asked for if the range begins with it and is no shorter. */
static bool whole_fits(const cpl_http_transfer *t)
{
    if (!t->ranged) return !t->answer.has_length || t->answer.length <= t->bytes;
    return t->begin == 0 && t->answer.has_length && t->answer.length <= t->bytes;
}

/* After the last line of a header: whether the body may come. */
static bool accept_answer(cpl_http_transfer *t)
{
    curl->easy_getinfo(t->handle, CURLINFO_RESPONSE_CODE, &t->answer.code);
    if (!cpl_http_has_bytes(t->answer.code)) {
        t->end = CPL_HTTP_DONE; /* no matter how the page of an error is encoded */
        return true;
    }
    if (t->end == CPL_HTTP_ENCODED) return false;
    if (t->answer.code == 206 && !(t->ranged && range_fits(t)))
        t->end = CPL_HTTP_MISMATCH;
    else if (t->answer.code != 206 && !whole_fits(t))
        t->end = t->ranged ? CPL_HTTP_WHOLE : CPL_HTTP_LONG;
    return t->end == CPL_HTTP_DONE;
}

static size_t take_header(char *line, size_t size, size_t count, void *ctx)
{
    cpl_http_transfer *t = ctx;
    const size_t length  = size * count;
    t->head += length;
    if (t->head > MOST_HEAD) {
        t->end = CPL_HTTP_BROKEN;
        return 0;
    }
    if (length >= 5 && strncasecmp(line, "HTTP/", 5) == 0) {
        t->answer = (cpl_http_answer){.retry_after = -1};
        t->end    = CPL_HTTP_DONE;
        return length;
    }
    if (length && line[0] != '\r' && line[0] != '\n') {
        read_line(t, line, length);
        return length;
    }
    long code = 0;
    curl->easy_getinfo(t->handle, CURLINFO_RESPONSE_CODE, &code);
    if (code / 100 == 1) return length; /* the answer itself follows */
    if (!accept_answer(t)) return 0;
    if (t->begun && cpl_http_has_bytes(t->answer.code)) t->begun(t);
    return length;
}

/* ---- its body ---- */

static size_t take_body(char *bytes, size_t size, size_t count, void *ctx)
{
    cpl_http_transfer *t = ctx;
    const size_t length  = size * count;
    if (!cpl_http_has_bytes(t->answer.code)) { /* the page of an error is not read */
        t->got += length;
        return t->got > ERROR_BODY ? 0 : length;
    }
    if (length > t->bytes - t->got) {
        t->end = CPL_HTTP_LONG;
        return 0;
    }
    if (t->out) memcpy(t->out + t->got, bytes, length);
    if (t->text) cpl_text_append(t->text, bytes, length);
    t->got += length;
    return t->text && t->text->failed ? 0 : length;
}

/* ---- a request ---- */

static void set_options(const cpl_http *http, const cpl_http_transfer *t, CURL *easy)
{
    const char *certificates = getenv("SSL_CERT_FILE");
    if (!certificates || !*certificates) certificates = getenv("CURL_CA_BUNDLE");
    if (certificates && *certificates) curl->easy_setopt(easy, CURLOPT_CAINFO, certificates);
    curl->easy_setopt(easy, CURLOPT_URL, t->url);
    curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    if (strncasecmp(t->url, "http:", 5) == 0) /* stays on this machine */
        curl->easy_setopt(easy, CURLOPT_PROXY, "");
    curl->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl->easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
    curl->easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
    curl->easy_setopt(easy, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    curl->easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl->easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl->easy_setopt(easy, CURLOPT_BUFFERSIZE, 1L << 19);
    curl->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl->easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES);
    curl->easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)http->stall_seconds);
    curl->easy_setopt(easy, CURLOPT_USERAGENT, "couplet/" COUPLET_VERSION);
    curl->easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl->easy_setopt(easy, CURLOPT_HEADERDATA, (void *)(uintptr_t)t);
    curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl->easy_setopt(easy, CURLOPT_WRITEDATA, (void *)(uintptr_t)t);
    curl->easy_setopt(easy, CURLOPT_ERRORBUFFER, t->error);
    curl->easy_setopt(easy, CURLOPT_PRIVATE, (void *)(uintptr_t)t);
}

/* Adds a header line; false: no memory. */
static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl->slist_append(*list, line);
    if (more) *list = more;
    return more != NULL;
}

static bool set_headers(cpl_http_transfer *t)
{
    struct curl_slist *list = NULL;
    cpl_text line           = {0};
    char range[64];
    bool good = add_header(&list, "Accept-Encoding: identity");
    if (t->token) {
        cpl_text_printf(&line, "Authorization: Bearer %s", t->token);
        good = good && !line.failed && add_header(&list, line.bytes);
        cpl_text_free(&line);
    }
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, t->begin, t->begin + t->bytes - 1);
    if (t->ranged) good = good && curl->easy_setopt(t->handle, CURLOPT_RANGE, range) == CURLE_OK;
    t->headers = list;
    return good && curl->easy_setopt(t->handle, CURLOPT_HTTPHEADER, list) == CURLE_OK;
}

static void clean_up(cpl_http *http, cpl_http_transfer *t)
{
    if (t->handle) {
        curl->multi_remove_handle(http->multi, t->handle);
        curl->easy_cleanup(t->handle);
    }
    curl->slist_free_all(t->headers);
    t->handle = t->headers = NULL;
}

static void begin(cpl_http *http, cpl_http_transfer *t)
{
    CURL *easy = curl->easy_init();
    t->answer  = (cpl_http_answer){.retry_after = -1};
    t->end     = CPL_HTTP_DONE;
    t->got     = 0;
    t->head    = 0;
    *t->error  = '\0';
    t->handle  = easy;
    if (easy) set_options(http, t, easy);
    if (easy && set_headers(t) && curl->multi_add_handle(http->multi, easy) == CURLM_OK) {
        t->next      = http->active;
        http->active = t;
        http->n_active++;
        return;
    }
    clean_up(http, t);
    snprintf(t->error, sizeof t->error, "out of memory for a request");
    t->end = CPL_HTTP_BROKEN;
    t->done(t);
}

/* ---- how it ended ---- */

static cpl_http_end end_of(CURLcode code)
{
    switch (code) {
    case CURLE_OK:
        return CPL_HTTP_DONE;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_INVALIDCERTSTATUS:
        return CPL_HTTP_TLS;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_FAILED_INIT:
        return CPL_HTTP_BROKEN;
    default:
        return CPL_HTTP_CUT;
    }
}

/* Before anything is sent, and the same at every try. libcurl quotes the address, with the password. */
static bool is_proxy_unusable(const cpl_http_transfer *t)
{
    return strncmp(t->error, "Unsupported proxy", strlen("Unsupported proxy")) == 0;
}

/* Sets why a transfer ended, in libcurl's words but for those that may have a secret. */
static void set_error(cpl_http_transfer *t, CURLcode code)
{
    if (t->head > MOST_HEAD)
        snprintf(t->error, sizeof t->error, "its answer is a header without an end");
    else if (is_proxy_unusable(t))
        snprintf(t->error, sizeof t->error,
                 "the address of the proxy cannot be used (in https_proxy or all_proxy write a "
                 "slash of its password as %%2F, and other signs likewise)");
    else if (!*t->error)
        snprintf(t->error, sizeof t->error, "%s", curl->easy_strerror(code));
    cpl_address_hide_user(t->error);
}

static void finish(cpl_http *http, CURL *easy, CURLcode code)
{
    char *private = NULL;
    curl->easy_getinfo(easy, CURLINFO_PRIVATE, &private);
    cpl_http_transfer *t = (cpl_http_transfer *)(void *)private, **at = &http->active;
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    http->n_active--;
    const bool is_error =
        t->answer.code && !cpl_http_has_bytes(t->answer.code) && t->head <= MOST_HEAD;
    if (t->end == CPL_HTTP_DONE && !is_error)
        t->end = is_proxy_unusable(t) ? CPL_HTTP_BROKEN : end_of(code);
    if (t->text && t->text->failed) t->end = CPL_HTTP_BROKEN;
    if (is_error) t->got = 0;
    set_error(t, code);
    clean_up(http, t);
    t->done(t);
}

/* ---- the thread ---- */

static void take_over(cpl_http *http)
{
    pthread_mutex_lock(&http->lock);
    cpl_http_transfer *t = http->queue;
    http->queue          = NULL;
    pthread_mutex_unlock(&http->lock);
    while (t) { /* the queue has the last one first: this turns it */
        cpl_http_transfer *next = t->next;
        t->next                 = http->asleep;
        http->asleep            = t;
        t                       = next;
    }
}

/* The time before which nothing may be sent to the host; 0: none. */
static double held_until(cpl_http *http, const char *host)
{
    double until = 0;
    pthread_mutex_lock(&http->lock);
    for (int i = 0; i < HOSTS; i++)
        if (strcmp(http->holds[i].host, host) == 0) until = http->holds[i].until;
    pthread_mutex_unlock(&http->lock);
    return until;
}

/* Begins those whose time has come; returns the seconds until the next, at most one. */
static double wake(cpl_http *http)
{
    const double now       = cpl_seconds_now();
    double soonest         = 1;
    cpl_http_transfer **at = &http->asleep;
    while (*at && http->n_active < CPL_HTTP_ACTIVE) {
        cpl_http_transfer *t  = *at;
        const double held     = held_until(http, t->host);
        const double earliest = held > t->not_before ? held : t->not_before;
        if (earliest > now) {
            if (earliest - now < soonest) soonest = earliest - now;
            at = &t->next;
            continue;
        }
        *at = t->next;
        begin(http, t);
    }
    return soonest;
}

static bool is_stopped(cpl_http *http)
{
    pthread_mutex_lock(&http->lock);
    const bool stopped = http->stopped;
    pthread_mutex_unlock(&http->lock);
    return stopped;
}

static void *move_bytes(void *ctx)
{
    cpl_http *http = ctx;
    while (!is_stopped(http)) {
        CURLMsg *message;
        int running, left;
        take_over(http);
        const double seconds = wake(http);
        curl->multi_perform(http->multi, &running);
        bool any = false;
        while ((message = curl->multi_info_read(http->multi, &left))) {
            if (message->msg != CURLMSG_DONE) continue;
            finish(http, message->easy_handle, message->data.result);
            any = true;
        }
        if (!any) curl->multi_poll(http->multi, NULL, 0, (int)(1000 * seconds) + 1, NULL);
    }
    return NULL;
}

void cpl_http_submit(cpl_http *http, cpl_http_transfer *t, double not_before)
{
    t->not_before = not_before;
    cpl_address_host(t->host, t->url);
    pthread_mutex_lock(&http->lock);
    t->next     = http->queue;
    http->queue = t;
    pthread_mutex_unlock(&http->lock);
    curl->multi_wakeup(http->multi);
}

double cpl_http_hold(cpl_http *http, const char *url, double until)
{
    char host[256];
    cpl_address_host(host, url);
    pthread_mutex_lock(&http->lock);
    hold *h = &http->holds[0]; /* that of the host, else the one that ends first */
    for (int i = 0; i < HOSTS && strcmp(h->host, host) != 0; i++) {
        hold *other = &http->holds[i];
        if (strcmp(other->host, host) == 0 || other->until < h->until) h = other;
    }
    const double before = strcmp(h->host, host) == 0 ? h->until : 0;
    snprintf(h->host, sizeof h->host, "%s", host);
    h->until = until > before ? until : before;
    pthread_mutex_unlock(&http->lock);
    return before;
}

/* Signals are for the other threads. */
static int start_thread(cpl_http *http)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&http->thread, NULL, move_bytes, http);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

cpl_status cpl_http_start(cpl_http **out, int stall_seconds)
{
    *out = NULL;
    const cpl_curl_table *loaded;
    CPL_TRY(cpl_curl_table_load(&loaded));
    if (!curl) curl = loaded; /* other engines may be at work with it */
    cpl_http *http = cpl_alloc(sizeof *http);
    if (!http) return CPL_ERR_MEMORY;
    *http = (cpl_http){.multi = curl->multi_init(), .stall_seconds = stall_seconds};
    pthread_mutex_init(&http->lock, NULL);
    if (http->multi) {
        curl->multi_setopt(http->multi, CURLMOPT_MAX_CONCURRENT_STREAMS, (long)STREAMS);
        curl->multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)CPL_HTTP_ACTIVE);
    }
    if (!http->multi || start_thread(http) != 0) {
        curl->multi_cleanup(http->multi);
        pthread_mutex_destroy(&http->lock);
        cpl_free(http);
        return CPL_FAIL(CPL_ERR_MEMORY, "no thread can be started for connections");
    }
    *out = http;
    return CPL_OK;
}

void cpl_http_stop(cpl_http *http)
{
    if (!http) return;
    pthread_mutex_lock(&http->lock);
    http->stopped = true;
    pthread_mutex_unlock(&http->lock);
    curl->multi_wakeup(http->multi);
    pthread_join(http->thread, NULL);
    for (cpl_http_transfer *t = http->active; t; t = t->next) clean_up(http, t);
    curl->multi_cleanup(http->multi);
    pthread_mutex_destroy(&http->lock);
    cpl_free(http);
}
