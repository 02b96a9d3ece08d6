/* http.h - one thread that moves bytes over HTTP: requests in, answers out.
 *
 * Room:    remote. The only one that uses the transfers of libcurl.
 * Rule:    one request is one answer: redirects, repetitions and what an answer means are the
 *          business of fetch.h. Here an answer is only held against the request: a range must be
 *          the range that was asked for, and never are more bytes taken than were asked for.
 * TLS:     certificates and host names are always verified. SSL_CERT_FILE or CURL_CA_BUNDLE name
 *          another file of certificates. http and https only; no cookies, no .netrc.
 * Threads: cpl_http_submit from any; `done` is called in the thread of the engine. */
#ifndef CPL_REMOTE_HTTP_H
#define CPL_REMOTE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum {
    CPL_HTTP_ACTIVE      = 16,  /* requests on their way at once */
    CPL_HTTP_STALL       = 60,  /* seconds: the usual limit; tests have a shorter one */
    CPL_HTTP_MAX_TAG     = 256, /* bytes of an ETag that is kept */
    CPL_HTTP_MAX_ADDRESS = 8192 /* bytes of a Location */
};

/* What an answer says of the file, from its header. Texts are cut at their sizes. */
typedef struct cpl_http_answer {
    long code;       /* 206; 0: there was no answer */
    bool has_length; /* of the whole file */
    uint64_t length;
    uint64_t linked_size;              /* X-Linked-Size; 0: not given */
    double retry_after;                /* seconds; -1: not given */
    char tag[CPL_HTTP_MAX_TAG];        /* ETag, else Last-Modified; "": neither */
    char linked_tag[CPL_HTTP_MAX_TAG]; /* X-Linked-ETag */
    char location[CPL_HTTP_MAX_ADDRESS];
    char range[128];      /* Content-Range as sent */
    char error_code[64];  /* X-Error-Code, of hubs */
    char error_text[256]; /* X-Error-Message */
} cpl_http_answer;

/* What ended it. */
typedef enum cpl_http_end {
    CPL_HTTP_DONE,     /* an answer, complete, of whatever code */
    CPL_HTTP_WHOLE,    /* the whole file where a range was asked for: stopped at once */
    CPL_HTTP_MISMATCH, /* another range than the one that was asked for, or where none was */
    CPL_HTTP_LONG,     /* more bytes than were asked for */
    CPL_HTTP_ENCODED,  /* compressed, so that ranges mean nothing */
    CPL_HTTP_CUT,      /* no connection, or a lost one, or nothing for a long time */
    CPL_HTTP_TLS,      /* the certificate is not valid, or not of this host */
    CPL_HTTP_BROKEN    /* anything else that repeating does not mend */
} cpl_http_end;

/* Whether an answer of this code has bytes of the file. */
static inline bool cpl_http_has_bytes(long code)
{
    return code == 200 || code == 206;
}

typedef struct cpl_http_transfer cpl_http_transfer;
struct cpl_http_transfer {
    /* The request, set before it is submitted and left alone until it is done. */
    const char *url;
    const char *token; /* sent as Authorization: Bearer; NULL: none */
    bool ranged;       /* bytes [begin, begin + bytes); else the whole file */
    uint64_t begin;
    size_t bytes;       /* asked for; of a whole file at most */
    unsigned char *out; /* [bytes]; NULL: they are added to `text` */
    cpl_text *text;
    void (*begun)(
        cpl_http_transfer *transfer); /* NULL, or: an answer's header is here, bytes follow */
    void (*done)(cpl_http_transfer *transfer);
    void *ctx;

    /* The answer. */
    cpl_http_answer answer;
    cpl_http_end end;
    size_t got;      /* bytes taken, also of one that was cut */
    size_t head;     /* bytes of its header */
    char error[256]; /* of CUT, TLS and BROKEN: why, in libcurl's words */

    /* Of http.c. */
    void *handle, *headers;
    double not_before;
    char host[256]; /* of the URL, with its port */
    cpl_http_transfer *next;
};

typedef struct cpl_http cpl_http;

/* Starts the thread. A connection on which nearly nothing came for `stall_seconds` counts as lost.
 * CPL_ERR_MEMORY, CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_http_start(cpl_http **out, int stall_seconds);

/* Ends the thread. Transfers on their way are dropped without a call of `done`. */
void cpl_http_stop(cpl_http *http); /* NULL: nothing to do */

/* Sends the request at the time `not_before` of cpl_seconds_now, or later: once less than
 * CPL_HTTP_ACTIVE are on their way, and its host is not held. */
void cpl_http_submit(cpl_http *http, cpl_http_transfer *transfer, double not_before);

/* No request to the host of `url` is sent before the time `until`, also of those submitted before.
 * Of several such times the latest counts; returns that of before, 0 if there was none. */
double cpl_http_hold(cpl_http *http, const char *url, double until);

#endif /* CPL_REMOTE_HTTP_H */
