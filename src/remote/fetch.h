/* fetch.h - a range of a file, or a small file as a whole, fetched by as many requests as it takes.
 *
 * Room: remote.
 * Consistency: the first answer gives the length of the file and its tag, which is its strong ETag
 *   or else its Last-Modified. Every later answer must give the same length and tag: a file that
 *   changed in between is an error. If a hub redirects to another host than before, the hub's
 *   X-Linked-ETag must be the same (fetch_compare.c). A server without strong ETags is named in a
 *   warning.
 * Resuming: after a cut the bytes that came are kept, and the rest is requested. A whole file is
 *   resumed too if its length and tag are known. If it changed before anybody read it, it is read
 *   again from its start.
 * Redirects: the address after all redirects is kept for the file, so that each range takes one
 *   request. If that address is refused later, because a signed URL expired, the file's own address
 *   is requested again.
 * Waiting: a lost connection is tried again after 0.5, 1, 2 and 4 seconds. Retry-After is obeyed up
 *   to ten minutes, by all requests of the site.
 * Time: the requests of a fetch may take `patience` seconds, and as long as a slow line needs for
 *   its bytes. A fetch that is slower than such a line is named in a warning every 30 seconds.
 * Authentication: the token goes to the site's endpoint alone: the same scheme, host and port.
 * Thread safety: any number of threads may fetch; the site's lock is taken here. */
#ifndef CPL_REMOTE_FETCH_H
#define CPL_REMOTE_FETCH_H

#include <pthread.h>

#include "base/log.h"
#include "remote/http.h"

enum { CPL_FETCH_PATIENCE = 600, CPL_FETCH_NOTICE = 30 }; /* seconds: the defaults of a site */

/* Holds the state that all fetches of one checkpoint share. */
typedef struct cpl_fetch_site {
    cpl_http *http;
    pthread_mutex_t lock;   /* guards the members that change, here and in all files */
    const char *endpoint;   /* address of a hub; NULL: a web server. Texts are borrowed */
    const char *repository; /* "owner/name", with an endpoint; for messages */
    const char *token;      /* may be NULL */
    const cpl_log *log;     /* may be NULL */
    double patience;        /* seconds that a fetch may take beside the seconds of a slow line */
    double notice;          /* seconds after which a fetch that is slower is named */

    char *down;             /* the sentence of the first host that could not be reached; owned */
    bool unreachable_named; /* the host was named in a warning */
    bool tag_named;         /* a missing ETag was named in a warning */
    double slow_named;      /* time of the last warning about a slow fetch */
    int64_t n_requests;     /* requests so far, with redirects */
} cpl_fetch_site;

/* Holds the facts about a file that are known so far. */
typedef struct cpl_fetch_file {
    char *path;  /* for messages; owned */
    char *url;   /* the file's own address; owned */
    char *moved; /* the address after redirects, or NULL; owned */
    bool known;  /* the following members are set */
    uint64_t length;
    char tag[CPL_HTTP_MAX_TAG];    /* "" if the server gives no tag */
    char place[256];               /* the host of `moved`, which gave `tag` */
    char linked[CPL_HTTP_MAX_TAG]; /* the hub's tag of the content; may be "" */
} cpl_fetch_file;

typedef enum cpl_fetch_result {
    CPL_FETCH_RUNNING,
    CPL_FETCH_DONE,
    CPL_FETCH_ABSENT, /* the file does not exist: 404 */
    CPL_FETCH_DENIED, /* 403 of a web server, which may mean that the file does not exist */
    CPL_FETCH_WHOLE,  /* the server sends no ranges, and was stopped */
    CPL_FETCH_FAILED
} cpl_fetch_result;

typedef struct cpl_fetch {
    /* The caller sets these members. */
    cpl_fetch_site *site;
    cpl_fetch_file *file;
    uint64_t begin;
    size_t bytes; /* size of the range, which may go beyond the file's end, or the most of a file */
    unsigned char *out; /* [bytes]; NULL: the whole file is set to `text` */
    cpl_text *text;

    cpl_fetch_result result;
    size_t got; /* bytes of `out` or `text` that are set */

    /* These members are private to fetch.c and fetch_compare.c. */
    cpl_http_request request;
    char tag[CPL_HTTP_MAX_TAG]; /* with `remembered`: file->tag when the request was sent */
    int tries, renewals;
    double not_before, spent; /* time of the next request; seconds of all so far */
    bool learned;             /* this fetch has set the facts about the file */
    bool changed;             /* the whole file changed while it was read, and was begun again */
    bool unresumable;         /* the server does not send the whole file in parts */
    bool remembered;          /* the request went to file->moved */
    size_t fresh;             /* bytes since the last failure */
    size_t dropped;           /* bytes that came before the whole file was begun again */
} cpl_fetch;

/* Runs the fetch. Returns CPL_OK if `result` is CPL_FETCH_DONE, else CPL_ERR_INPUT, CPL_ERR_IO or
 * CPL_ERR_MEMORY with an error whose sentence begins with the path. */
CPL_NODISCARD cpl_status cpl_fetch_run(cpl_fetch *fetch);

/* Compares the answer with the facts about the file. Returns NULL, or the difference. Sets facts
 * that are not known yet, once the answer has a length. fetch_compare.c defines it for fetch.c. */
const char *cpl_fetch_compare(cpl_fetch *fetch);

void cpl_fetch_file_free(cpl_fetch_file *file);

#endif /* CPL_REMOTE_FETCH_H */
