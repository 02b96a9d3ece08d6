/* mpi_module.c - the transport on an MPI library (MPI 3.1), as a shared object that the program
 * loads (parallel/mpi.h). Compiled once for each MPI library that the build finds, without the rest
 * of libcouplet.
 *
 * Threads:  MPI is started with MPI_THREAD_SERIALIZED, and one lock protects every call. While
 *           collectives are pending, a thread of this module tests them a few thousand times a
 *           second: most MPI libraries move data only within calls, and the program may be
 *           computing. A rank that waits tests by itself.
 * Sums:     group.h computes all sums. MPI only moves bytes. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "parallel/transport.h"

static const long progress_ns = 200000; /* time between two tests of the thread */

/* One pending collective. */
typedef struct request {
    struct request *next, *before; /* links of the list of pending requests */
    MPI_Request request;
    MPI_Datatype unit;
    int done;   /* 1 complete, -1 failed */
    int ints[]; /* counts and offsets, which MPI reads until the request is complete */
} request;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more  = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static bool has_thread, ends;
static bool is_over; /* a request was abandoned */
static request under_way = {&under_way, &under_way, 0, 0, 0};
static char sentence[MPI_MAX_ERROR_STRING + 64];

static bool went_wrong(int code)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code == MPI_SUCCESS) return false;
    MPI_Error_string(code, text, &length);
    snprintf(sentence, sizeof sentence, "MPI failed: %.*s", length, text);
    return true;
}

/* ---- progress; the lock is held ---- */

static void test_one(request *r)
{
    int complete = 0;
    if (r->done == 0 && went_wrong(MPI_Test(&r->request, &complete, MPI_STATUS_IGNORE)))
        r->done = -1;
    if (complete) r->done = 1;
}

static void give_back(request *r)
{
    r->next->before = r->before;
    r->before->next = r->next;
    if (r->unit != MPI_DATATYPE_NULL) MPI_Type_free(&r->unit);
    free(r);
}

static void *make_progress(void *unused)
{
    const struct timespec pause = {0, progress_ns};
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!ends && !is_over) {
        bool waits = false;
        for (request *r = under_way.next; r != &under_way; r = r->next) {
            test_one(r);
            waits = waits || r->done == 0;
        }
        if (!waits) {
            pthread_cond_wait(&more, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- collectives ---- */

typedef struct communicator {
    MPI_Comm comm;
    int rank, size;
} communicator;

/* Returns a new request in the list, with room for `ints` numbers and with the type of `unit`
 * bytes, or NULL if memory is not available. */
static request *new_request(int ints, int64_t unit)
{
    request *r = calloc(1, sizeof *r + (size_t)ints * sizeof *r->ints);
    if (!r) {
        snprintf(sentence, sizeof sentence, "out of memory for a message");
        return NULL;
    }
    r->unit         = MPI_DATATYPE_NULL;
    r->next         = under_way.next;
    r->before       = &under_way;
    r->next->before = r;
    under_way.next  = r;
    if (went_wrong(MPI_Type_contiguous((int)unit, MPI_BYTE, &r->unit)) ||
        went_wrong(MPI_Type_commit(&r->unit))) {
        give_back(r);
        return NULL;
    }
    return r;
}

/* Sets ints [2, size] to counts and offsets. Returns false if they are too large for MPI's int. */
static bool fill(int *ints, cpl_message_parts pieces, int size)
{
    for (int i = 0; i < size; i++) {
        if (pieces.count[i] > INT32_MAX || pieces.at[i] > INT32_MAX) {
            snprintf(sentence, sizeof sentence, "a message is too large for MPI");
            return false;
        }
        ints[i]        = (int)pieces.count[i];
        ints[size + i] = (int)pieces.at[i];
    }
    return true;
}

/* Returns the result of a collective: the request, or NULL if `code` is an error. */
static request *begun(request *r, int code)
{
    if (!went_wrong(code)) {
        if (has_thread) pthread_cond_signal(&more);
        return r;
    }
    give_back(r);
    return NULL;
}

/* Removes a request that cannot be started. Returns NULL. */
static request *dropped(request *r)
{
    if (r) give_back(r);
    return NULL;
}

static bool is_empty(cpl_message_parts pieces, int size)
{
    for (int i = 0; i < size; i++)
        if (pieces.count[i] > 0) return false;
    return true;
}

static void *all_to_all(void *ctx, void *recv, cpl_message_parts received, const void *send,
                        cpl_message_parts sent, int64_t unit)
{
    static char nothing[2]; /* an address for 0 bytes: Open MPI treats equal addresses as in
                               place */
    const communicator *c = ctx;
    const int n           = c->size;
    if (is_empty(sent, n)) send = &nothing[0];
    if (is_empty(received, n)) recv = &nothing[1];
    pthread_mutex_lock(&lock);
    request *r = new_request(4 * n, unit);
    int *in = r ? r->ints : NULL, *out = in ? in + 2 * n : NULL;
    if (!r || !fill(in, received, n) || !fill(out, sent, n))
        r = dropped(r);
    else
        r = begun(r, MPI_Ialltoallv(send, out, out + n, r->unit, recv, in, in + n, r->unit, c->comm,
                                    &r->request));
    pthread_mutex_unlock(&lock);
    return r;
}

static void *all_gather(void *ctx, void *recv, cpl_message_parts received, const void *send,
                        int64_t count, int64_t unit)
{
    const communicator *c = ctx;
    const int n           = c->size;
    pthread_mutex_lock(&lock);
    request *r = new_request(2 * n, unit);
    int *in    = r ? r->ints : NULL;
    if (!r || !fill(in, received, n))
        r = dropped(r);
    else
        r = begun(r, MPI_Iallgatherv(send, (int)count, r->unit, recv, in, in + n, r->unit, c->comm,
                                     &r->request));
    pthread_mutex_unlock(&lock);
    return r;
}

static void *broadcast(void *ctx, void *data, int64_t count, int64_t unit, int root)
{
    const communicator *c = ctx;
    pthread_mutex_lock(&lock);
    request *r = new_request(0, unit);
    if (r) r = begun(r, MPI_Ibcast(data, (int)count, r->unit, root, c->comm, &r->request));
    pthread_mutex_unlock(&lock);
    return r;
}

static int test(void *ctx, void *which)
{
    request *r = which;
    (void)ctx;
    int done = -1;
    pthread_mutex_lock(&lock);
    if (!is_over) {
        test_one(r);
        done = r->done;
        if (done != 0) give_back(r);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

/* Abandons a request when the process is about to end and frees the request's buffers. No further
 * call of MPI is made, since a call might write to the buffers. The request stays in the list. */
static void abandon(void *ctx, void *which)
{
    (void)ctx;
    (void)which;
    pthread_mutex_lock(&lock);
    is_over = true;
    pthread_mutex_unlock(&lock);
}

/* ---- communicators ---- */

static const cpl_transport_ops operations;

/* Makes a transport that owns `comm`. Returns false, with a message, if memory is not available. */
static bool transport_of(MPI_Comm comm, cpl_transport *out)
{
    communicator *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(sentence, sizeof sentence, "out of memory for a group of ranks");
        return false;
    }
    c->comm = comm;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &c->rank);
    MPI_Comm_size(comm, &c->size);
    *out = (cpl_transport){&operations, c, c->rank, c->size};
    return true;
}

/* Runs a blocking MPI_Comm_split, during which the thread waits for the lock. */
static int split(void *ctx, int color, cpl_transport *part)
{
    const communicator *c = ctx;
    MPI_Comm comm         = MPI_COMM_NULL;
    pthread_mutex_lock(&lock);
    const bool made = !is_over && !went_wrong(MPI_Comm_split(c->comm, color, c->rank, &comm)) &&
                      transport_of(comm, part);
    pthread_mutex_unlock(&lock);
    return made;
}

static void close_transport(void *ctx)
{
    communicator *c = ctx;
    pthread_mutex_lock(&lock);
    if (c->comm != MPI_COMM_WORLD && under_way.next == &under_way) MPI_Comm_free(&c->comm);
    pthread_mutex_unlock(&lock);
    free(c);
}

static const char *failure(void *ctx)
{
    (void)ctx;
    return sentence;
}

static const cpl_transport_ops operations = {all_to_all, all_gather, broadcast,       test,
                                             abandon,    split,      close_transport, failure};

/* ---- the module ---- */

/* Starts the thread, which leaves all signals to the program. */
static bool start_thread(void)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    const bool made = pthread_create(&thread, NULL, make_progress, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return made;
}

/* Counts the ranks that share memory with this rank. */
static bool count_local(int *local)
{
    MPI_Comm machine;
    if (went_wrong(
            MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine)))
        return false;
    const bool counted = !went_wrong(MPI_Comm_size(machine, local));
    MPI_Comm_free(&machine);
    return counted;
}

static const char *start(cpl_transport *world, int *local)
{
    int provided = 0;
    if (went_wrong(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided))) return sentence;
    if (!count_local(local) || !transport_of(MPI_COMM_WORLD, world)) return sentence;
    /* Without the thread, collectives progress only while a rank waits, which is correct but
     * slower. */
    has_thread = provided >= MPI_THREAD_SERIALIZED && start_thread();
    return NULL;
}

static void finish(void)
{
    if (has_thread) {
        pthread_mutex_lock(&lock);
        ends = true;
        pthread_cond_signal(&more);
        pthread_mutex_unlock(&lock);
        pthread_join(thread, NULL);
        has_thread = false;
    }
    MPI_Finalize();
}

extern const cpl_mpi_module cpl_mpi_module_entry;
__attribute__((visibility("default")))
const cpl_mpi_module cpl_mpi_module_entry = {CPL_MPI_MODULE_VERSION,
#ifdef OPEN_MPI
                                             "Open MPI",
#else
                                             "MPICH",
#endif
                                             start, finish};
