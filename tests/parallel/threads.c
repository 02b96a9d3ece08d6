/* threads.c - see threads.h
 *
 * Method: a collective is a record of the group, found by its number: every rank counts the
 *         collectives it has started. Starting copies what is sent into the record. A request is
 *         complete when all ranks have started. It then copies what is received from the record,
 *         and the last rank to do so removes the record. Splitting is a collective too: every rank
 *         writes its color. */
#include "parallel/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

typedef struct record {
    struct record *next;
    int64_t number;
    int started, finished;
    char **sent;      /* [size] copies, NULL until a rank has started */
    int64_t **places; /* [size] offsets of a rank's pieces in bytes, [size + 1]; NULL: one piece */
} record;

/* The ranks of one group. A team is freed with the cpl_thread_ranks. */
typedef struct team {
    struct team *next;
    cpl_thread_ranks *whole;
    int size;
    record *records;
    struct member {
        struct team *team;
        int rank;
        int64_t number; /* collectives started */
    } * members;        /* [size] */
    /* For a team made by a split: the split team, the number of its collective, and the color. */
    const struct team *parent;
    int64_t number;
    int color;
} team;

struct cpl_thread_ranks {
    pthread_mutex_t lock;
    bool failed;
    team *teams;
};

/* A request for which a rank waits. */
typedef struct request {
    record *of;
    int root; /* root of a broadcast, or -1 */
    char *recv;
    int64_t *places, *counts; /* [size] in bytes; NULL in a broadcast */
} request;

typedef struct member member;

static void *must(void *memory)
{
    CPL_ASSERT(memory);
    return memory;
}

/* ---- teams ---- */

static team *new_team(cpl_thread_ranks *whole, int size)
{
    team *t    = must(calloc(1, sizeof *t));
    t->whole   = whole;
    t->size    = size;
    t->members = must(calloc((size_t)size, sizeof *t->members));
    for (int r = 0; r < size; r++) t->members[r] = (member){t, r, 0};
    t->next      = whole->teams;
    whole->teams = t;
    return t;
}

cpl_status cpl_thread_ranks_init(cpl_thread_ranks **out, int size)
{
    cpl_thread_ranks *whole = *out = calloc(1, sizeof *whole);
    if (!whole) return CPL_ERR_MEMORY;
    pthread_mutex_init(&whole->lock, NULL);
    new_team(whole, size);
    return CPL_OK;
}

static void free_record(record *of, int size)
{
    for (int r = 0; r < size; r++) {
        free(of->sent[r]);
        free(of->places[r]);
    }
    free(of->sent);
    free(of->places);
    free(of);
}

void cpl_thread_ranks_free(cpl_thread_ranks *whole)
{
    if (!whole) return;
    for (team *t = whole->teams, *next; t; t = next) {
        next = t->next;
        for (record *of = t->records, *later; of; of = later) {
            later = of->next;
            free_record(of, t->size);
        }
        free(t->members);
        free(t);
    }
    pthread_mutex_destroy(&whole->lock);
    free(whole);
}

void cpl_thread_ranks_fail(const cpl_group *world)
{
    const member *m         = world->transport.ctx;
    cpl_thread_ranks *whole = m->team->whole;
    pthread_mutex_lock(&whole->lock);
    whole->failed = true;
    pthread_mutex_unlock(&whole->lock);
}

/* ---- records ---- */

/* Returns the record of the member's next collective. The caller holds the lock. */
static record *next_record(member *m)
{
    team *t              = m->team;
    const int64_t number = m->number++;
    record *of           = t->records;
    while (of && of->number != number) of = of->next;
    if (!of) {
        of         = must(calloc(1, sizeof *of));
        of->number = number;
        of->sent   = must(calloc((size_t)t->size, sizeof *of->sent));
        of->places = must(calloc((size_t)t->size, sizeof *of->places));
        of->next   = t->records;
        t->records = of;
    }
    return of;
}

/* Ends a rank's part in a collective. The caller holds the lock. */
static void leave(team *t, record *of)
{
    if (++of->finished < t->size) return;
    record **at = &t->records;
    while (*at != of) at = &(*at)->next;
    *at = of->next;
    free_record(of, t->size);
}

static char *copy(const void *bytes, int64_t count)
{
    char *own = must(malloc((size_t)count + 1));
    if (count) memcpy(own, bytes, (size_t)count);
    return own;
}

/* Starts a collective: `bytes` of send, in pieces or, with places NULL, as one piece. */
static request *start(member *m, const void *send, int64_t bytes, int64_t *places, int root,
                      void *recv)
{
    team *t      = m->team;
    request *own = must(calloc(1, sizeof *own));
    char *sent   = copy(send, bytes);
    pthread_mutex_lock(&t->whole->lock);
    record *of          = next_record(m);
    of->sent[m->rank]   = sent;
    of->places[m->rank] = places;
    of->started++;
    pthread_mutex_unlock(&t->whole->lock);
    *own = (request){of, root, recv, NULL, NULL};
    return own;
}

static void receive_into(request *own, cpl_message_parts received, int size, int64_t unit)
{
    own->places = must(malloc((size_t)size * sizeof *own->places));
    own->counts = must(malloc((size_t)size * sizeof *own->counts));
    for (int r = 0; r < size; r++) {
        own->places[r] = received.at[r] * unit;
        own->counts[r] = received.count[r] * unit;
    }
}

static void free_request(request *own)
{
    free(own->places);
    free(own->counts);
    free(own);
}

/* ---- the operations ---- */

static void *all_to_all(void *ctx, void *recv, cpl_message_parts received, const void *send,
                        cpl_message_parts sent, int64_t unit)
{
    member *m       = ctx;
    const int size  = m->team->size;
    int64_t *places = must(malloc((size_t)(size + 1) * sizeof *places)), bytes = 0;
    for (int r = 0; r < size; r++) {
        places[r] = sent.at[r] * unit;
        if (bytes < places[r] + sent.count[r] * unit) bytes = places[r] + sent.count[r] * unit;
    }
    request *own = start(m, send, bytes, places, -1, recv);
    receive_into(own, received, size, unit);
    return own;
}

static void *all_gather(void *ctx, void *recv, cpl_message_parts received, const void *send,
                        int64_t count, int64_t unit)
{
    member *m    = ctx;
    request *own = start(m, send, count * unit, NULL, -1, recv);
    receive_into(own, received, m->team->size, unit);
    return own;
}

static void *broadcast(void *ctx, void *data, int64_t count, int64_t unit, int root)
{
    member *m    = ctx;
    request *own = start(m, data, m->rank == root ? count * unit : 0, NULL, root, data);
    own->counts  = must(malloc(sizeof *own->counts));
    *own->counts = count * unit;
    return own;
}

static void receive(const member *m, const request *own)
{
    const record *of = own->of;
    if (own->root >= 0) {
        if (own->root != m->rank) memcpy(own->recv, of->sent[own->root], (size_t)*own->counts);
        return;
    }
    for (int r = 0; r < m->team->size; r++) {
        const int64_t at = of->places[r] ? of->places[r][m->rank] : 0;
        if (own->counts[r] > 0)
            memcpy(own->recv + own->places[r], of->sent[r] + at, (size_t)own->counts[r]);
    }
}

static int test(void *ctx, void *which)
{
    member *m    = ctx;
    request *own = which;
    pthread_mutex_lock(&m->team->whole->lock);
    const bool failed = m->team->whole->failed, all = own->of->started == m->team->size;
    if (all && !failed) {
        receive(m, own);
        leave(m->team, own->of);
    }
    pthread_mutex_unlock(&m->team->whole->lock);
    if (failed || all) free_request(own);
    return failed ? -1 : all;
}

static void give_up(void *ctx, void *which)
{
    (void)ctx; /* the record stays until cpl_thread_ranks is freed */
    free_request(which);
}

static const cpl_transport_ops operations;

/* Returns the team of `size` ranks of this color that the member's last collective, a split, makes.
 * The first of its ranks makes it. The caller holds the lock. */
static team *team_of(const member *m, int color, int size)
{
    const team *parent   = m->team;
    const int64_t number = m->number - 1;
    for (team *t = parent->whole->teams; t; t = t->next)
        if (t->parent == parent && t->number == number && t->color == color) return t;
    team *t   = new_team(parent->whole, size);
    t->parent = parent;
    t->number = number;
    t->color  = color;
    return t;
}

static int split(void *ctx, int color, cpl_transport *part)
{
    member *m      = ctx;
    const int size = m->team->size;
    int *colors    = must(malloc((size_t)size * sizeof *colors));
    int64_t *one = must(malloc((size_t)(2 * size) * sizeof *one)), *places = one + size;
    int done = 0, before = 0, alike = 0;
    for (int r = 0; r < size; r++) {
        one[r]    = 1;
        places[r] = r;
    }
    void *own = all_gather(ctx, colors, (cpl_message_parts){one, places}, &color, 1, sizeof color);
    while ((done = test(ctx, own)) == 0) sched_yield();
    for (int r = 0; done > 0 && r < size; r++) {
        alike += colors[r] == color;
        before += colors[r] == color && r < m->rank;
    }
    if (done > 0) {
        pthread_mutex_lock(&m->team->whole->lock);
        team *t = team_of(m, color, alike);
        pthread_mutex_unlock(&m->team->whole->lock);
        *part = (cpl_transport){&operations, &t->members[before], before, t->size};
    }
    free(colors);
    free(one);
    return done > 0;
}

static void close_rank(void *ctx)
{
    (void)ctx;
}

static const char *failure(void *ctx)
{
    (void)ctx;
    return "a rank has ended";
}

static const cpl_transport_ops operations = {all_to_all, all_gather, broadcast,  test,
                                             give_up,    split,      close_rank, failure};

cpl_transport cpl_thread_ranks_at(cpl_thread_ranks *whole, int rank)
{
    team *t = whole->teams;
    while (t->next) t = t->next; /* the first team is the last of the list */
    return (cpl_transport){&operations, &t->members[rank], rank, t->size};
}

/* ---- running them ---- */

typedef struct rank_thread {
    pthread_t thread;
    cpl_transport transport;
    cpl_rank_work *work;
    void *job;
} rank_thread;

static void *run_rank(void *context)
{
    const rank_thread *r = context;
    cpl_ranks ranks      = {0};
    cpl_group world;
    CPL_ASSERT(cpl_group_of(&world, r->transport, &ranks) == CPL_OK);
    r->work(r->job, &world);
    cpl_group_close(&world);
    cpl_ranks_free(&ranks);
    return NULL;
}

void cpl_thread_ranks_run(int size, cpl_rank_work *work, void *jobs, size_t job_bytes)
{
    cpl_thread_ranks *whole;
    rank_thread *all = must(calloc((size_t)size, sizeof *all));
    CPL_ASSERT(cpl_thread_ranks_init(&whole, size) == CPL_OK);
    for (int r = 0; r < size; r++) {
        all[r].transport = cpl_thread_ranks_at(whole, r);
        all[r].work      = work;
        all[r].job       = (char *)jobs + (size_t)r * job_bytes;
        CPL_ASSERT(pthread_create(&all[r].thread, NULL, run_rank, &all[r]) == 0);
    }
    for (int r = 0; r < size; r++) pthread_join(all[r].thread, NULL);
    cpl_thread_ranks_free(whole);
    free(all);
}
