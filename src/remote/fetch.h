/* fetch.h - a range of a file, or a small file as a whole, fetched whatever it takes: redirects,
 * repetition after a lost connection, waiting when a server asks for it, renewed signed URLs.
 *
 * Room:   remote.
 * Same:   the first answer gives the file's length and its ETag (else Last-Modified). Every later
 *         one must give the same: a file that changed in between is an error. Where a hub leads to
 *         another host than before, the hub's X-Linked-ETag must be the same (fetch_compare.c).
 * Cut:    what is there is kept, and the rest is asked for: of a whole file too, if its length and
 *         an ETag are known. If it then is another file, it is read from its start.
 * Moved:  where redirects led is remembered for the file, so that one request a range is made. If
 *         that URL is refused later (signed URLs expire), the way is asked for once more.
 * Token:  goes to the site's endpoint alone: the same scheme, host and port.
 * Locks:  all fields are under the site's lock; `done` is called with it, by the engine's thread or by
 *         cpl_fetch_begin; it does not free the fetch. */
#ifndef CPL_REMOTE_FETCH_H
#define CPL_REMOTE_FETCH_H

#include <pthread.h>

#include "base/log.h"
#include "remote/http.h"

/* What all fetches of one checkpoint share. */
typedef struct cpl_fetch_site {
    cpl_http *http;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a fetch has ended, or whatever else is waited for */
    const char *endpoint;   /* of a hub; NULL: a web server. Borrowed, as all texts here */
    const char *page;       /* of the repository, for people; with an endpoint */
    const char *token;      /* NULL: none */
    const cpl_log *log;     /* may be NULL */
    char *down;             /* NULL, or why nothing can be reached: owned */
    bool told;              /* the log, that a host could not be reached */
    int64_t n_requests;     /* so far */
} cpl_fetch_site;

typedef struct cpl_fetch cpl_fetch;

/* A file as it is known so far. */
typedef struct cpl_fetch_file {
    char *path;  /* for sentences */
    char *url;   /* where the way to it begins; both owned */
    char *moved; /* where redirects have led; NULL: nowhere. Owned */
    bool known;  /* the following are */
    uint64_t length;
    char tag[CPL_HTTP_MAX_TAG];    /* "": the server gives none */
    char place[256];               /* the host that gave `tag`: the one that `moved` leads to */
    char linked[CPL_HTTP_MAX_TAG]; /* the hub's tag of the content; "": none */

    /* Of fetch.c. */
    cpl_fetch *renewing; /* the one that asks for the way again; NULL: none */
    cpl_fetch *waiting;  /* those that wait for it, a list */
} cpl_fetch_file;

typedef enum cpl_fetch_result {
    CPL_FETCH_RUNNING,
    CPL_FETCH_DONE,
    CPL_FETCH_ABSENT, /* there is no such file: 404 */
    CPL_FETCH_DENIED, /* 403 of a web server: there may be no such file */
    CPL_FETCH_WHOLE,  /* the server sends no ranges, and was stopped */
    CPL_FETCH_FAILED
} cpl_fetch_result;

struct cpl_fetch {
    /* Set by the caller. */
    cpl_fetch_site *site;
    cpl_fetch_file *file;
    uint64_t begin;
    size_t bytes;       /* of a whole file at most; of a range it may go beyond the file's end */
    unsigned char *out; /* [bytes]; NULL: a whole file, into `text` */
    cpl_text *text;
    void (*done)(cpl_fetch *fetch); /* may be NULL; `changed` is signalled in any case */
    void *ctx;

    /* The result. */
    cpl_fetch_result result;
    size_t got;          /* bytes of `out` or `text` that are there */
    cpl_status status;   /* of any result but DONE */
    char sentence[1024]; /* the same */

    /* Of fetch.c. */
    cpl_http_transfer transfer;
    char *url;                     /* of the request on its way; owned */
    char tag[CPL_HTTP_MAX_TAG];    /* with `remembered`: that of file->moved when it was taken */
    char linked[CPL_HTTP_MAX_TAG]; /* X-Linked-ETag and -Size of the way; "", 0: not given */
    uint64_t linked_size;
    int hops, tries, renewals;
    bool learned;     /* what is known of the file, this fetch has learned */
    bool changed;     /* a whole file that became another while it was read, and was begun again */
    bool unresumable; /* a whole file that the server does not send in parts */
    bool remembered;  /* the request goes to file->moved */
    size_t fresh;     /* bytes got since the last failure */
    cpl_fetch *next;  /* of those that wait */
};

/* Begins. The fetch must stay where it is until it has a result. Under the site's lock. */
void cpl_fetch_begin(cpl_fetch *fetch);

/* Waits for the result; under the site's lock. CPL_OK, or its status and sentence. */
CPL_NODISCARD cpl_status cpl_fetch_wait(cpl_fetch *fetch);

/* Compares the answer with what is known of the file: NULL, or what is not as it was. Sets what is
 * not known yet, once the answer has a length. Of fetch.c; in fetch_compare.c. */
const char *cpl_fetch_compare(cpl_fetch *fetch);

void cpl_fetch_file_free(cpl_fetch_file *file);

#endif /* CPL_REMOTE_FETCH_H */
