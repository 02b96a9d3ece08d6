/* http.c - see http.h */
#include "remote/http.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/clock.h"
#include "remote/address.h"
#include "remote/curl_table.h"

enum {
    CONNECT_SECONDS = 30,
    SLOW_BYTES      = 64,     /* bytes per second under which a connection counts as stalled */
    ERROR_BODY      = 65536,  /* bytes of the page of an error or a redirect that may come */
    MOST_HEAD       = 1 << 18 /* bytes of all headers of a request */
};

/* The table of libcurl, set before the first request. */
static const cpl_curl_table *curl;

struct cpl_http {
    int stall_seconds;
    pthread_mutex_t lock;        /* guards the following members */
    pthread_cond_t changed;      /* a request has ended, or all are stopped */
    CURL *idle[CPL_HTTP_ACTIVE]; /* handles with their connections, the last used one last */
    int n_idle, n_busy;
    double not_before; /* time before which no request is sent */
    atomic_bool stopped;
};

/* ---- the header of an answer ---- */

/* Returns the value of a header of the newest answer, or "" if it is absent or empty. libcurl may
 * give an empty value as "\r". */
static const char *header(const cpl_http_request *t, const char *name)
{
    struct curl_header *found;
    const CURLHcode code = curl->easy_header(t->handle, name, 0, CURLH_HEADER, -1, &found);
    return code == CURLHE_OK && *found->value != '\r' ? found->value : "";
}

/* Returns how often the newest answer has a header. */
static size_t count_headers(const cpl_http_request *t, const char *name)
{
    struct curl_header *found;
    const CURLHcode code = curl->easy_header(t->handle, name, 0, CURLH_HEADER, -1, &found);
    return code == CURLHE_OK ? found->amount : 0;
}

/* Copies a tag. A long one is replaced by its hash, so that every byte counts in comparisons. */
static void copy_tag(char out[CPL_HTTP_MAX_TAG], const char *value)
{
    const size_t bytes       = strlen(value);
    const XXH128_hash_t hash = XXH3_128bits(value, bytes);
    if (bytes < CPL_HTTP_MAX_TAG)
        memcpy(out, value, bytes + 1);
    else
        snprintf(out, CPL_HTTP_MAX_TAG, "XXH3 %016" PRIx64 "%016" PRIx64 " of %zu bytes",
                 (uint64_t)hash.high64, (uint64_t)hash.low64, bytes);
}

/* Reads a number in digits alone. Returns false for any other text and for a number beyond
 * int64. */
static bool read_number(uint64_t *out, const char *value, size_t bytes)
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

/* Returns the value of Retry-After, a number of seconds or a date, in seconds. */
static double seconds_of(const char *value)
{
    uint64_t seconds;
    if (read_number(&seconds, value, strlen(value))) return (double)seconds;
    if (*value && value[strspn(value, "0123456789")] == '\0') return (double)INT64_MAX;
    const time_t at = curl->getdate(value, NULL), now = time(NULL);
    return at < 0 ? -1 : at > now ? difftime(at, now) : 0;
}

/* Sets the members that the header gives. A weak ETag counts as absent: it does not promise equal
 * bytes (RFC 9110, 13.1.5). Facts about the content from an earlier redirect are kept. */
static void read_headers(cpl_http_request *t)
{
    cpl_http_answer *a = &t->answer;
    const char *etag = header(t, "ETag"), *linked = header(t, "X-Linked-ETag");
    const char *length = header(t, "Content-Length"), *size = header(t, "X-Linked-Size");
    a->has_weak_etag = strncmp(etag, "W/", 2) == 0;
    a->has_etag      = *etag && !a->has_weak_etag;
    copy_tag(a->tag, a->has_etag ? etag : header(t, "Last-Modified"));
    if (*linked) copy_tag(a->linked_tag, linked);
    if (*size && !read_number(&a->linked_size, size, strlen(size))) a->linked_size = 0;
    a->has_length  = read_number(&a->length, length, strlen(length));
    a->retry_after = seconds_of(header(t, "Retry-After"));
    snprintf(a->range, sizeof a->range, "%s", header(t, "Content-Range"));
    snprintf(a->error_text, sizeof a->error_text, "%s", header(t, "X-Error-Message"));
}

/* Ends a request with a sentence that begins with the host of the answer. Returns false. */
static bool refuse(cpl_http_request *t, cpl_http_end end, const char *format, ...) CPL_PRINTF(3, 4);

static bool refuse(cpl_http_request *t, cpl_http_end end, const char *format, ...)
{
    char *place = NULL;
    va_list args;
    curl->easy_getinfo(t->handle, CURLINFO_EFFECTIVE_URL, &place);
    const int n = snprintf(t->error, sizeof t->error, "%s ",
                           cpl_address_host(t->host, place ? place : t->url));
    va_start(args, format);
    vsnprintf(t->error + n, sizeof t->error - (size_t)n, format, args);
    va_end(args);
    t->end = end;
    return false;
}

/* Returns whether Content-Range, such as "bytes 0-9/100", is the range that was requested, which
 * may be cut only where the file ends. Sets the length of the file. */
static bool range_fits(cpl_http_request *t)
{
    uint64_t first, last, length;
    const char *value = t->answer.range, *dash = strchr(value, '-'), *slash = strchr(value, '/');
    if (strncasecmp(value, "bytes ", 6) != 0 || !dash || !slash || dash > slash) return false;
    if (!read_number(&first, value + 6, (size_t)(dash - value) - 6) ||
        !read_number(&last, dash + 1, (size_t)(slash - dash) - 1) ||
        !read_number(&length, slash + 1, strlen(slash + 1)))
        return false;
    const uint64_t end   = t->begin + t->bytes < length ? t->begin + t->bytes : length;
    t->answer.has_length = true;
    t->answer.length     = length;
    return first == t->begin && last + 1 == end;
}

/* Returns whether the whole file may come: it was requested, or the range covers all of it. */
static bool whole_fits(const cpl_http_request *t)
{
    if (!t->ranged) return !t->answer.has_length || t->answer.length <= t->bytes;
    return t->begin == 0 && t->answer.has_length && t->answer.length <= t->bytes;
}

/* Returns whether libcurl may follow the redirect. The code is 0 until the next answer. Several
 * places are refused: libcurl follows one that is not the first if the first is empty. From https
 * on the user's proxy is used, as no redirect leads from https back to http. */
static bool accept_redirect(cpl_http_request *t, const char *location, size_t n_places)
{
    char *from     = NULL;
    t->answer.code = 0;
    if (n_places > 1)
        return refuse(t, CPL_HTTP_REFUSED,
                      "redirects to several places: its answer has %zu Location headers, and one "
                      "is allowed",
                      n_places);
    curl->easy_getinfo(t->handle, CURLINFO_EFFECTIVE_URL, &from);
    if (cpl_address_check_redirect(from ? from : t->url, location) == CPL_OK) {
        if (strncasecmp(location, "http", 4) == 0) cpl_address_host(t->host, location);
        if (strncasecmp(location, "https:", 6) == 0)
            curl->easy_setopt(t->handle, CURLOPT_PROXY, NULL);
        return true;
    }
    return refuse(t, CPL_HTTP_REFUSED, "redirects to a place that is not allowed: %s",
                  cpl_last_error());
}

static bool refuse_range(cpl_http_request *t)
{
    const char *range = t->answer.range;
    if (strstr(range, "/*"))
        return refuse(t, CPL_HTTP_REFUSED, "does not say how long it is: \"%s\"", range);
    return refuse(t, CPL_HTTP_REFUSED,
                  "answered with other bytes than those asked for: \"%s\" for bytes %" PRIu64
                  " to %" PRIu64,
                  range, t->begin, t->begin + t->bytes - 1);
}

static bool refuse_more(cpl_http_request *t)
{
    return refuse(t, CPL_HTTP_REFUSED, "sends more than the %zu bytes that %s, and was stopped",
                  t->bytes, t->out ? "were asked for" : "such a file may have");
}

/* Returns, after the last line of a header, whether the body may come. */
static bool accept_answer(cpl_http_request *t)
{
    const char *location = header(t, "Location"), *encoding = header(t, "Content-Encoding");
    const size_t n_places = count_headers(t, "Location");
    read_headers(t);
    if (t->answer.code / 100 == 3 && (*location || n_places > 1))
        return accept_redirect(t, location, n_places);
    if (!cpl_http_has_bytes(t->answer.code)) return true;
    if (*encoding && strcasecmp(encoding, "identity") != 0)
        return refuse(t, CPL_HTTP_REFUSED,
                      "sends it compressed, so that ranges of it mean nothing");
    if (t->answer.code == 206) return (t->ranged && range_fits(t)) || refuse_range(t);
    if (whole_fits(t)) return true;
    if (!t->ranged) return refuse_more(t);
    return refuse(t, CPL_HTTP_WHOLE,
                  "sends no ranges: it answered with the whole file, and was stopped at once; "
                  "fetch the checkpoint from it first");
}

static size_t receive_header(char *line, size_t size, size_t count, void *ctx)
{
    cpl_http_request *t = ctx;
    const size_t length = size * count;
    t->head += length;
    if (t->head > MOST_HEAD) return 0;
    if (length >= 5 && strncasecmp(line, "HTTP/", 5) == 0) t->answer.code = 0;
    if (length && line[0] != '\r' && line[0] != '\n') return length;
    curl->easy_getinfo(t->handle, CURLINFO_RESPONSE_CODE, &t->answer.code);
    if (t->answer.code / 100 != 1) return accept_answer(t) ? length : 0;
    t->answer.code = 0; /* the answer itself follows */
    return length;
}

/* ---- the body ---- */

static size_t receive_body(char *bytes, size_t size, size_t count, void *ctx)
{
    cpl_http_request *t = ctx;
    const size_t length = size * count;
    if (!cpl_http_has_bytes(t->answer.code)) { /* the page of an error is not read */
        t->got += length;
        return t->got > ERROR_BODY ? 0 : length;
    }
    if (length > t->bytes - t->got) return refuse_more(t);
    if (t->out) memcpy(t->out + t->got, bytes, length);
    if (t->text) cpl_text_append(t->text, bytes, length);
    t->got += length;
    return t->text && t->text->failed ? 0 : length;
}

/* Bounds a request. libcurl calls this about once a second, and ends the request if the result is
 * not 0. libcurl discards the page of a redirect, whose bytes are bounded here. */
static int watch_request(void *ctx, curl_off_t all, curl_off_t got, curl_off_t up, curl_off_t sent)
{
    cpl_http_request *t = ctx;
    (void)all, (void)up, (void)sent;
    if (t->http->stopped) return 1;
    if (t->watch) t->watch(t, cpl_seconds_now() - t->began);
    return !t->answer.code && got > ERROR_BODY;
}

/* ---- a request ---- */

static void set_security(const cpl_http_request *t, CURL *easy)
{
    const bool http          = strncasecmp(t->url, "http:", 5) == 0;
    const char *certificates = getenv("SSL_CERT_FILE");
    if (!certificates || !*certificates) certificates = getenv("CURL_CA_BUNDLE");
    if (certificates && *certificates) curl->easy_setopt(easy, CURLOPT_CAINFO, certificates);
    curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl->easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, http ? "http,https" : "https");
    if (http) curl->easy_setopt(easy, CURLOPT_PROXY, ""); /* this machine: see accept_redirect */
    curl->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
    curl->easy_setopt(easy, CURLOPT_MAXREDIRS, (long)CPL_HTTP_MOST_HOPS);
    curl->easy_setopt(easy, CURLOPT_UNRESTRICTED_AUTH, 0L);
    curl->easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
    curl->easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
    curl->easy_setopt(easy, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    if (!t->token) return;
    curl->easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl->easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, t->token);
}

static void set_transfer(cpl_http_request *t, CURL *easy)
{
    char range[64];
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, t->begin, t->begin + t->bytes - 1);
    curl->easy_setopt(easy, CURLOPT_URL, t->url);
    if (t->ranged) curl->easy_setopt(easy, CURLOPT_RANGE, range);
    curl->easy_setopt(easy, CURLOPT_ACCEPT_ENCODING, "identity");
    curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    curl->easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl->easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl->easy_setopt(easy, CURLOPT_BUFFERSIZE, 1L << 19);
    curl->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl->easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(1000 * t->most_seconds) + 1);
    curl->easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES);
    curl->easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)t->http->stall_seconds);
    curl->easy_setopt(easy, CURLOPT_USERAGENT, "couplet/" COUPLET_VERSION);
    curl->easy_setopt(easy, CURLOPT_HEADERFUNCTION, receive_header);
    curl->easy_setopt(easy, CURLOPT_HEADERDATA, t);
    curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, receive_body);
    curl->easy_setopt(easy, CURLOPT_WRITEDATA, t);
    curl->easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl->easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, watch_request);
    curl->easy_setopt(easy, CURLOPT_XFERINFODATA, t);
}

/* Returns whether repeating the request does not mend the failure. */
static bool is_permanent(CURLcode code)
{
    return code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
           code == CURLE_SSL_CACERT_BADFILE || code == CURLE_WEIRD_SERVER_REPLY ||
           code == CURLE_FAILED_INIT || code == CURLE_OUT_OF_MEMORY; /* also for a long header */
}

static bool is_certificate(CURLcode code)
{
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_ISSUER_ERROR ||
           code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_INVALIDCERTSTATUS;
}

/* Sets end and error of a request that libcurl ended. `words` is libcurl's text, in which a proxy's
 * password may stand. A proxy is refused before anything is sent, at every try. */
static void set_failure(cpl_http_request *t, CURLcode code, char *words)
{
    const bool proxy = strncmp(words, "Unsupported proxy", strlen("Unsupported proxy")) == 0;
    cpl_address_hide_user(words);
    t->end = CPL_HTTP_BROKEN;
    if (code == CURLE_TOO_MANY_REDIRECTS) {
        snprintf(t->error, sizeof t->error,
                 "a redirect loop: after %d redirects %s gives another one", CPL_HTTP_MOST_HOPS,
                 t->host);
        t->end = CPL_HTTP_REFUSED;
    } else if (is_certificate(code)) {
        snprintf(t->error, sizeof t->error,
                 "the certificate of %s is not valid, and nothing was sent: %s", t->host, words);
        t->end = CPL_HTTP_REFUSED;
    } else if (t->head > MOST_HEAD || proxy || is_permanent(code)) {
        snprintf(t->error, sizeof t->error, "the request to %s failed: %s", t->host,
                 t->head > MOST_HEAD ? "its answer is a header without an end"
                 : proxy ? "the address of the proxy cannot be used (in https_proxy or all_proxy "
                           "write a slash of its password as %2F, and other signs likewise)"
                         : words);
    } else {
        snprintf(t->error, sizeof t->error, "%s", words);
        t->end = CPL_HTTP_CUT;
    }
}

static void finish_request(cpl_http_request *t, CURLcode code, char *words)
{
    char *place = NULL;
    long hops   = 0;
    t->seconds  = cpl_seconds_now() - t->began;
    curl->easy_getinfo(t->handle, CURLINFO_EFFECTIVE_URL, &place);
    curl->easy_getinfo(t->handle, CURLINFO_REDIRECT_COUNT, &hops);
    t->hops  = (int)hops;
    t->place = cpl_text_copy(place ? place : t->url);
    cpl_address_host(t->host, place ? place : t->url);
    const bool is_error = t->answer.code && !cpl_http_has_bytes(t->answer.code);
    if (is_error) t->got = 0;
    if (!*words) snprintf(words, CURL_ERROR_SIZE, "%s", curl->easy_strerror(code));
    if (!t->place || (t->text && t->text->failed))
        t->end = CPL_HTTP_NO_MEMORY;
    else if (t->http->stopped)
        t->end = CPL_HTTP_STOPPED;
    else if (t->end == CPL_HTTP_DONE && code != CURLE_OK && (!is_error || t->head > MOST_HEAD))
        set_failure(t, code, words);
}

/* ---- handles ---- */

/* Waits for a change, at most the given seconds and at most one second. The caller holds the
 * lock. */
static void wait_a_while(cpl_http *http, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += seconds < 1 ? (long)(1e9 * seconds) : 999999999L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&http->changed, &http->lock, &until);
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Sets the handle once the request may be sent, or `end`. A hold that begins after that time,
 * before this thread runs again, does not count: requests that waited for the same time are sent
 * together. */
static void take_handle(cpl_http *http, cpl_http_request *t)
{
    pthread_mutex_lock(&http->lock);
    double at = later(t->not_before, http->not_before);
    while (!http->stopped) {
        const double left = at - cpl_seconds_now();
        if (left <= 0 && http->n_busy < CPL_HTTP_ACTIVE) break;
        wait_a_while(http, left > 0 ? left : 1);
        if (left <= 0 || at > cpl_seconds_now()) at = later(at, http->not_before);
    }
    t->end = http->stopped ? CPL_HTTP_STOPPED : CPL_HTTP_DONE;
    if (!http->stopped) {
        http->n_busy++;
        t->handle = http->n_idle ? http->idle[--http->n_idle] : NULL;
    }
    pthread_mutex_unlock(&http->lock);
    if (t->end == CPL_HTTP_DONE && !t->handle) t->handle = curl->easy_init();
}

static void give_back_handle(cpl_http *http, CURL *easy)
{
    if (easy) curl->easy_reset(easy);
    pthread_mutex_lock(&http->lock);
    if (easy) http->idle[http->n_idle++] = easy;
    http->n_busy--;
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
}

void cpl_http_run(cpl_http *http, cpl_http_request *t)
{
    char words[CURL_ERROR_SIZE] = "";
    t->answer                   = (cpl_http_answer){.retry_after = -1};
    t->http                     = http;
    t->handle                   = NULL;
    t->place                    = NULL;
    cpl_address_host(t->host, t->url);
    t->got = t->head = 0;
    t->hops          = 0;
    *t->error        = '\0';
    take_handle(http, t);
    t->began   = cpl_seconds_now();
    t->seconds = 0;
    if (t->end == CPL_HTTP_STOPPED) return;
    if (t->handle) {
        set_security(t, t->handle);
        set_transfer(t, t->handle);
        curl->easy_setopt(t->handle, CURLOPT_ERRORBUFFER, words);
        const CURLcode code = curl->easy_perform(t->handle);
        finish_request(t, code, words);
    } else {
        t->end = CPL_HTTP_NO_MEMORY;
    }
    give_back_handle(http, t->handle);
}

double cpl_http_hold(cpl_http *http, double until)
{
    pthread_mutex_lock(&http->lock);
    const double before = http->not_before;
    http->not_before    = later(before, until);
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
    return before;
}

/* ---- all requests ---- */

cpl_status cpl_http_start(cpl_http **out, int stall_seconds)
{
    *out = NULL;
    const cpl_curl_table *loaded;
    CPL_TRY(cpl_curl_table_load(&loaded));
    if (!curl) curl = loaded; /* other threads may already use it */
    cpl_http *http = cpl_alloc(sizeof *http);
    if (!http) return CPL_ERR_MEMORY;
    *http = (cpl_http){.stall_seconds = stall_seconds};
    pthread_mutex_init(&http->lock, NULL);
    pthread_cond_init(&http->changed, NULL);
    *out = http;
    return CPL_OK;
}

void cpl_http_stop(cpl_http *http)
{
    pthread_mutex_lock(&http->lock);
    http->stopped = true;
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
}

void cpl_http_close(cpl_http *http)
{
    if (!http) return;
    for (int i = 0; i < http->n_idle; i++) curl->easy_cleanup(http->idle[i]);
    pthread_cond_destroy(&http->changed);
    pthread_mutex_destroy(&http->lock);
    cpl_free(http);
}
