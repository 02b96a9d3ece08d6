/* internal.h - declarations that remote.c and ranges.c share.
 *
 * Room: remote, inside remote.c and ranges.c only.
 * Thread safety: site.lock guards all members that change, except bytes that are read front to
 *   back, which `direct` guards. site.lock is taken after `direct`. */
#ifndef CPL_REMOTE_INTERNAL_H
#define CPL_REMOTE_INTERNAL_H

#include <pthread.h>

#include "remote/fetch.h"
#include "remote/hub.h"
#include "remote/plan.h"
#include "remote/remote.h"

/* Describes a file that was requested, under any name. */
typedef struct cpl_remote_file {
    cpl_fetch_file facts;
    struct cpl_remote_file *next;
    cpl_remote_range head; /* first bytes of the file, without a source */
} cpl_remote_file;

/* Describes an open file. */
typedef struct cpl_remote_source {
    cpl_source source;
    cpl_remote *remote;
    cpl_remote_file *file;
} cpl_remote_source;

struct cpl_remote {
    cpl_origin origin;
    cpl_fetch_site site;
    char *word;           /* as given, without '/' at its end */
    char *root;           /* the folder, or the folder of the file */
    bool is_file, is_hub; /* kinds of the word */
    cpl_hub_place place;
    cpl_strings names; /* all files of the repository */
    char *token;
    char *cache;            /* a folder; NULL: ranges are not kept */
    cpl_remote_file *files; /* the newest first */
    int64_t n_files;
    cpl_strings expected;       /* paths that will be opened, in this order */
    int64_t n_begun, n_arrived; /* paths wanted in advance, and opened */
    pthread_mutex_t direct;

    /* These members describe ranges that are being fetched. */
    pthread_cond_t changed; /* a range's state or the workers' tasks changed */
    pthread_t workers[CPL_HTTP_ACTIVE];
    int n_workers;
    bool stopped; /* the workers end */
    cpl_remote_plan plan;
    bool is_reading;                /* the plan is carried out */
    int64_t next;                   /* the first range that no worker has looked at */
    uint64_t held;                  /* bytes of all ranges in memory */
    const cpl_remote_range *beyond; /* a reader's range in a full buffer, or NULL */
    bool cannot_keep;               /* the cache could not be written, and a warning was given */
};

/* ---- files before there is a plan ---- */

/* Requests the first bytes of the file in advance, unless they were requested. Takes the lock. */
void cpl_remote_want_head(cpl_remote *remote, cpl_remote_file *file);

/* Fetches the first bytes. Sets `there` to false if the file is known not to exist. Any other
 * failure is an error. Takes the lock. */
CPL_NODISCARD cpl_status cpl_remote_probe(cpl_remote *remote, cpl_remote_file *file, bool *there);

/* ---- the plan ---- */

CPL_NODISCARD cpl_status cpl_remote_set_plan(cpl_remote *remote, cpl_origin_plan *facts,
                                             const cpl_source_pieces *pieces);

/* Sets `out` [bytes] from the plan. Bytes outside of the plan are requested at once. */
CPL_NODISCARD cpl_status cpl_remote_read_planned(const cpl_remote_source *source, void *out,
                                                 size_t bytes, uint64_t offset);

/* Stops requesting ranges of the source, which is closed. */
void cpl_remote_forget_source(cpl_remote *remote, const cpl_source *source);

/* Ends all requests and the workers. */
void cpl_remote_stop(cpl_remote *remote);

enum {
    CPL_REMOTE_HEAD   = 1 << 18, /* bytes of a file's first request: most headers are shorter */
    CPL_REMOTE_RANGE  = 1 << 25, /* the most bytes of a range */
    CPL_REMOTE_BUFFER = 1 << 27  /* the most bytes that ranges take in memory at once, without the
                                    one range that a reader fetches although there is no room */
};

#endif /* CPL_REMOTE_INTERNAL_H */
