/* http.h - HTTP requests of the calling thread, over connections that are kept.
 *
 * Room: remote. Only this file uses the transfers of libcurl.
 * Answers: each answer is held against its request. A range must be the range that was requested,
 *   and no more bytes are accepted than were requested. fetch.h describes the meaning of answers
 *   and the repetition of requests.
 * Redirects: libcurl follows them, at most CPL_HTTP_MOST_HOPS in a row. Each address must be
 *   allowed by address.h. libcurl sends the token to the first host alone: the same scheme, name
 *   and port.
 * TLS: certificates and host names are always verified. SSL_CERT_FILE or CURL_CA_BUNDLE name
 *   another file of certificates. Only http and https, no cookies, no .netrc.
 * Thread safety: any number of threads may send requests. */
#ifndef CPL_REMOTE_HTTP_H
#define CPL_REMOTE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum {
    CPL_HTTP_ACTIVE    = 16, /* the most requests that run at once */
    CPL_HTTP_MOST_HOPS = 10, /* redirects in a row */
    CPL_HTTP_STALL     = 60, /* seconds: the default of `stall_seconds` */
    CPL_HTTP_MAX_TAG   = 256 /* bytes of a tag that is kept, with its NUL */
};

/* Holds the facts about the file in the header of an answer. */
typedef struct cpl_http_answer {
    long code;                         /* 206; 0: no answer came, or only redirects */
    bool has_length;                   /* `length` is known */
    uint64_t length;                   /* bytes of the whole file */
    uint64_t linked_size;              /* X-Linked-Size of a redirect; 0: absent */
    double retry_after;                /* seconds; -1: absent */
    bool has_etag;                     /* the ETag is strong, and `tag` is that ETag */
    bool has_weak_etag;                /* the ETag begins with W/ */
    char tag[CPL_HTTP_MAX_TAG];        /* strong ETag, else Last-Modified, else "" */
    char linked_tag[CPL_HTTP_MAX_TAG]; /* X-Linked-ETag of a redirect; "": absent */
    char range[128];                   /* Content-Range as sent */
    char error_text[256];              /* X-Error-Message of a hub */
} cpl_http_answer;

/* Tells how a request ended. */
typedef enum cpl_http_end {
    CPL_HTTP_DONE,    /* a complete answer, of any code */
    CPL_HTTP_WHOLE,   /* the whole file came in place of the range, and was stopped at once */
    CPL_HTTP_REFUSED, /* an answer that may not be used; `error` is the sentence */
    CPL_HTTP_CUT,     /* no connection, a lost connection, or a stall; `error` has the cause */
    CPL_HTTP_BROKEN,  /* a failure that repeating does not mend; `error` is the sentence */
    CPL_HTTP_NO_MEMORY,
    CPL_HTTP_STOPPED /* cpl_http_stop was called */
} cpl_http_end;

/* Returns whether an answer of this code has bytes of the file. */
static inline bool cpl_http_has_bytes(long code)
{
    return code == 200 || code == 206;
}

typedef struct cpl_http cpl_http;
typedef struct cpl_http_request cpl_http_request;
struct cpl_http_request {
    /* The caller sets these members. */
    const char *url;
    const char *token;  /* sent as Authorization: Bearer; may be NULL */
    bool ranged;        /* bytes [begin, begin + bytes), not the whole file */
    uint64_t begin;     /* position in the file */
    size_t bytes;       /* size of the range, or the most of a whole file */
    unsigned char *out; /* [bytes]; NULL: bytes are appended to `text` */
    cpl_text *text;
    double not_before;   /* time of cpl_seconds_now before which the request waits */
    double most_seconds; /* a longer request ends as CPL_HTTP_CUT */
    /* May be NULL. It is called about once a second with the seconds since the request was sent. */
    void (*watch)(cpl_http_request *request, double seconds);
    void *ctx;

    /* These members describe the answer. */
    cpl_http_answer answer;
    cpl_http_end end;
    char *place;    /* the address after all redirects; owned by the caller. NULL: not sent */
    char host[256]; /* "host:port" of the newest answer, or of the address it redirects to */
    int hops;       /* redirects that were followed */
    size_t got;     /* bytes of the file that came, also before a cut */
    double seconds; /* seconds from sending to the end */
    char error[800];

    /* These members are private to http.c. */
    cpl_http *http;
    void *handle;
    size_t head; /* bytes of all headers */
    double began;
};

/* Starts requests. A connection on which less than 64 bytes per second come for `stall_seconds`
 * counts as lost. Fails with CPL_ERR_MEMORY, or with CPL_ERR_IO without libcurl. */
CPL_NODISCARD cpl_status cpl_http_start(cpl_http **out, int stall_seconds);

/* Ends all running and waiting requests as CPL_HTTP_STOPPED. */
void cpl_http_stop(cpl_http *http);

/* Closes the connections. No thread may use `http` any more. `http` may be NULL. */
void cpl_http_close(cpl_http *http);

/* Sends the request and waits for its end. The request is sent at `not_before` or later, once fewer
 * than CPL_HTTP_ACTIVE requests run and no server has asked to wait longer. */
void cpl_http_run(cpl_http *http, cpl_http_request *request);

/* Holds back all requests until the time `until`. The latest of several such times counts. Returns
 * the time that was set before, or 0. */
double cpl_http_hold(cpl_http *http, double until);

#endif /* CPL_REMOTE_HTTP_H */
