/* internal.h - what remote.c, probe.c and window.c share.
 *
 * Room:  remote, inside those three only.
 * Locks: all that changes is under site.lock, except what probe.c reads one after the other under
 *        `direct`; site.lock is taken after it. */
#ifndef CPL_REMOTE_INTERNAL_H
#define CPL_REMOTE_INTERNAL_H

#include "remote/fetch.h"
#include "remote/hub.h"
#include "remote/plan.h"
#include "remote/remote.h"

/* A file that was asked for, under whatever name. */
typedef struct cpl_remote_file {
    cpl_fetch_file facts;
    struct cpl_remote_file *next;
    bool probed;          /* it has been asked for */
    cpl_fetch probe;      /* of its first bytes */
    unsigned char *head;  /* those; NULL: given back */
    unsigned char *ahead; /* bytes [ahead_at, ahead_at + n_ahead) after them; NULL: none */
    uint64_t ahead_at, n_ahead;
    uint64_t direct_end;   /* of the bytes read last without a plan */
    uint64_t direct_bytes; /* so far */
} cpl_remote_file;

/* An open file. */
typedef struct cpl_remote_source {
    cpl_source source;
    cpl_remote *remote;
    cpl_remote_file *file;
} cpl_remote_source;

struct cpl_remote {
    cpl_origin origin;
    cpl_fetch_site site;
    char *word;           /* as given, without '/' at its end */
    char *root;           /* the folder; of a file, the one that it lies in */
    bool is_file, is_hub; /* of the word */
    cpl_hub_place place;
    cpl_strings names; /* all files of the repository */
    char *page, *token;
    char *cache;            /* a folder; NULL: nothing is kept */
    cpl_remote_file *files; /* the newest first */
    int64_t n_files;
    cpl_strings expected;       /* paths that will be opened, in this order */
    int64_t n_begun, n_arrived; /* of them: asked for, opened */
    pthread_mutex_t direct;

    /* The ranges of the plan on their way. */
    cpl_remote_plan plan;
    int64_t next;       /* the first that was not considered yet */
    int n_active;       /* asked for and not there */
    uint64_t held;      /* bytes of those asked for and those there */
    double last_change; /* seconds, when something was there or was spent */
    bool cannot_keep;   /* the cache could not be written, and it was said */
};

/* ---- probe.c: files before there is a plan ---- */

/* Asks for the first bytes of the file, if that was not done; under the site's lock. */
void cpl_remote_probe_begin(cpl_remote *remote, cpl_remote_file *file);

/* Asks and waits; `there` is false if it is known not to be there. Any other failure is an error.
 * Takes the site's lock. */
CPL_NODISCARD cpl_status cpl_remote_probe(cpl_remote *remote, cpl_remote_file *file, bool *there);

/* Bytes without a plan: those that are there, or a request of their own, with what follows if the
 * file is read front to back. */
CPL_NODISCARD cpl_status cpl_remote_read_direct(cpl_remote *remote, cpl_remote_file *file,
                                                void *out, size_t bytes, uint64_t offset);

/* Gives back the first bytes of all files but the newest `kept` that have arrived; under the site's
 * lock. */
void cpl_remote_forget_heads(cpl_remote *remote, int kept);

/* ---- window.c: the plan, carried out ---- */

CPL_NODISCARD cpl_status cpl_remote_set_plan(cpl_remote *remote, cpl_origin_plan *facts,
                                             const cpl_source_pieces *pieces);

/* Sets the bytes of a source: from the plan, and what it does not hold directly. */
CPL_NODISCARD cpl_status cpl_remote_read_planned(const cpl_remote_source *source, void *out,
                                                 size_t bytes, uint64_t offset);

/* A source is closed: no more of its ranges are asked for. */
void cpl_remote_forget_source(cpl_remote *remote, const cpl_source *source);
void cpl_remote_drop_plan(cpl_remote *remote); /* with the engine stopped */

/* The most that ranges take in memory at once. */
enum { CPL_REMOTE_BUFFER = 1 << 27 };

#endif /* CPL_REMOTE_INTERNAL_H */
