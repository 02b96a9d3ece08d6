/* group.c - see group.h */
#include "parallel/group.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"

static const double spin_seconds = 2e-4; /* seconds of a wait without sleep between polls */
static const long sleep_ns       = 50000;

/* Seconds added to the limit of a wait, on rank 0 and on other ranks. Heartbeats then find a
 * stopped process first, and rank 0, which knows the ranks that hang, gives up before the other
 * ranks. */
static const double later_seconds = 2, others_later_seconds = 3;

enum { TWO_STEP_FACTOR = 8 }; /* bound of numbers per rank below which a sum takes one step */

/* ---- groups ---- */

cpl_group cpl_group_self(void)
{
    return (cpl_group){.rank = 0, .size = 1};
}

cpl_status cpl_group_of(cpl_group *g, cpl_transport transport, cpl_ranks *ranks)
{
    *g        = (cpl_group){transport.rank, transport.size, transport, ranks, NULL};
    g->counts = cpl_alloc((size_t)(4 * g->size) * sizeof *g->counts);
    return g->counts ? CPL_OK : CPL_ERR_MEMORY;
}

cpl_status cpl_group_split(cpl_group *part, cpl_group *g, int color)
{
    cpl_transport transport = {0};
    if (g->size == 1) {
        *part       = cpl_group_self();
        part->ranks = g->ranks;
        return CPL_OK;
    }
    CPL_TRY(cpl_group_status(g));
    if (!g->transport.ops->split(g->transport.ctx, color, &transport))
        return CPL_FAIL(CPL_ERR_DEVICE, "the ranks cannot be divided into groups: %s",
                        g->transport.ops->failure(g->transport.ctx));
    return cpl_group_of(part, transport, g->ranks);
}

void cpl_group_close(cpl_group *g)
{
    if (g->transport.ops) g->transport.ops->close(g->transport.ctx);
    cpl_free(g->counts);
    memset(g, 0, sizeof *g);
}

void cpl_ranks_free(cpl_ranks *ranks)
{
    cpl_free(ranks->scratch);
    memset(ranks, 0, sizeof *ranks);
}

/* ---- failure ---- */

static bool failed(const cpl_group *g)
{
    return g->ranks && g->ranks->status != CPL_OK;
}

static void keep_failure(cpl_ranks *ranks, cpl_status status, const char *sentence)
{
    if (ranks->status != CPL_OK) return;
    ranks->status = status;
    snprintf(ranks->sentence, sizeof ranks->sentence, "%s", sentence);
}

void cpl_group_fail(cpl_group *g, cpl_status status)
{
    if (g->ranks) keep_failure(g->ranks, status, cpl_last_error());
}

cpl_status cpl_group_status(const cpl_group *g)
{
    return failed(g) ? CPL_FAIL(g->ranks->status, "%s", g->ranks->sentence) : CPL_OK;
}

/* ---- waiting ---- */

static void rest(double since)
{
    const struct timespec pause = {0, sleep_ns};
    if (cpl_seconds_now() - since < spin_seconds)
        sched_yield();
    else
        nanosleep(&pause, NULL);
}

static void give_up(cpl_pending *p, cpl_status status, const char *sentence)
{
    const cpl_transport *transport = &p->group->transport;
    transport->ops->abandon(transport->ctx, p->request);
    p->request = NULL;
    keep_failure(p->group->ranks, status, sentence);
}

/* Describes why a wait with a limit ended. */
static void describe_late(const cpl_ranks *ranks, char sentence[1024])
{
    char names[CPL_ALIVE_NAMES] = "";
    if (ranks->late) ranks->late(ranks->ctx, names);
    snprintf(sentence, 1024, "%s hangs: the other ranks waited %g seconds for it %s",
             names[0] ? names : "a rank", ranks->limit, ranks->where);
}

/* Returns 1 if complete, 0 if not, -1 if failed. After 1 and -1 the request is freed. */
static int poll_request(cpl_pending *p)
{
    const cpl_group *g = p->group;
    char sentence[1024];
    int done = g->transport.ops->test(g->transport.ctx, p->request);
    if (done != 0) p->request = NULL;
    if (done < 0)
        keep_failure(g->ranks, CPL_ERR_DEVICE, g->transport.ops->failure(g->transport.ctx));
    if (done == 0 && g->ranks->lost && g->ranks->lost(g->ranks->ctx, sentence)) {
        give_up(p, CPL_ERR_IO, sentence);
        return -1;
    }
    return done;
}

/* Sets out to the sum of the parts of all ranks, in the order of the ranks. `parts` holds the parts
 * of other ranks. */
static void add_parts(const cpl_pending *p)
{
    enum { BLOCK = 2048 };
    const int size = p->group->size, rank = p->group->rank;
    float sum[BLOCK];
    for (int64_t at = 0; at < p->count; at += BLOCK) {
        const int64_t n = p->count - at < BLOCK ? p->count - at : BLOCK;
        for (int r = 0; r < size; r++) {
            const float *part =
                r == rank ? p->own + at : p->parts + (r - (r > rank)) * p->count + at;
            if (r == 0)
                memcpy(sum, part, (size_t)n * sizeof *sum);
            else
                for (int64_t i = 0; i < n; i++) sum[i] += part[i];
        }
        memcpy(p->out + at, sum, (size_t)n * sizeof *sum);
    }
}

static void wait_for(cpl_pending *p)
{
    static const double most = 0.1; /* seconds between two polls of a process that runs */
    const double begin       = cpl_seconds_now();
    double last = begin, waited = 0;
    while (p->request && poll_request(p) == 0) {
        cpl_ranks *ranks = p->group->ranks;
        const double now = cpl_seconds_now();
        char sentence[1024];
        waited += now - last < most ? now - last : most;
        last = now;
        if (ranks->patience > 0 && waited > ranks->patience) {
            describe_late(ranks, sentence);
            give_up(p, CPL_ERR_DEVICE, sentence);
        } else {
            rest(begin);
        }
    }
}

void cpl_group_finish(cpl_pending *p)
{
    if (!p->group) return;
    cpl_group *g       = p->group;
    const double begin = cpl_seconds_now();
    wait_for(p);
    if (g->size > 1) g->ranks->traffic[p->kind].wait_s += cpl_seconds_now() - begin;
    if (failed(g)) {
        if (p->received) memset(p->received, 0, p->received_bytes);
        if (p->out) memset(p->out, 0, (size_t)p->count * sizeof *p->out);
    } else if (p->out && g->size > 1) {
        add_parts(p);
    }
    p->group = NULL;
}

/* ---- starting ---- */

/* Sets places [size] to the offsets of pieces with these counts. Returns the sum of the counts. */
static int64_t line_up(int64_t *places, const int64_t *counts, int size)
{
    int64_t at = 0;
    for (int r = 0; r < size; r++) {
        places[r] = at;
        at += counts[r];
    }
    return at;
}

/* Returns the largest power of two up to 8 that divides all counts. */
static int64_t common_unit(const int64_t *bytes, int size)
{
    int64_t bits = 8;
    for (int r = 0; r < size; r++) bits |= bytes[r];
    return bits & -bits; /* the lowest bit set */
}

static cpl_pending begin(cpl_group *g, cpl_collective kind, void *received, int64_t bytes)
{
    return (cpl_pending){
        .group = g, .kind = kind, .received = received, .received_bytes = (size_t)bytes};
}

/* Records a started collective that sends `bytes` to other ranks. */
static void started(cpl_pending *p, void *request, int64_t bytes)
{
    cpl_ranks *ranks = p->group->ranks;
    p->request       = request;
    if (ranks->began) ranks->began(ranks->ctx);
    ranks->traffic[p->kind].calls++;
    ranks->traffic[p->kind].bytes += bytes;
    if (!request)
        keep_failure(ranks, CPL_ERR_DEVICE,
                     p->group->transport.ops->failure(p->group->transport.ctx));
}

static void start_gather(cpl_pending *p, cpl_group *g, cpl_collective kind, void *recv,
                         const void *send, const int64_t *bytes)
{
    int64_t *counts = g->counts, *places = counts + g->size;
    int64_t whole = 0;
    for (int r = 0; r < g->size; r++) whole += bytes[r];
    *p = begin(g, kind, recv, whole);
    if (failed(g)) return;
    if (g->size == 1) {
        if (recv != send) memcpy(recv, send, (size_t)whole);
        return;
    }
    const int64_t unit = common_unit(bytes, g->size);
    for (int r = 0; r < g->size; r++) counts[r] = bytes[r] / unit;
    line_up(places, counts, g->size);
    started(p,
            g->transport.ops->all_gather(g->transport.ctx, recv,
                                         (cpl_message_parts){counts, places}, send, counts[g->rank],
                                         unit),
            (g->size - 1) * bytes[g->rank]);
}

static void start_exchange(cpl_pending *p, cpl_group *g, cpl_collective kind, void *recv,
                           const int64_t *received, const void *send, const int64_t *sent,
                           int64_t unit)
{
    int64_t *from = g->counts, *to = from + g->size;
    if (g->size == 1) {
        *p = begin(g, kind, recv, received[0] * unit);
        if (!failed(g)) memcpy(recv, send, (size_t)(sent[0] * unit));
        return;
    }
    *p                     = begin(g, kind, recv, line_up(from, received, g->size) * unit);
    const int64_t all_sent = line_up(to, sent, g->size);
    if (failed(g)) return;
    started(p,
            g->transport.ops->all_to_all(g->transport.ctx, recv,
                                         (cpl_message_parts){received, from}, send,
                                         (cpl_message_parts){sent, to}, unit),
            (all_sent - sent[g->rank]) * unit);
}

void cpl_group_start_all_gather(cpl_pending *p, cpl_group *g, void *recv, const void *send,
                                const int64_t *bytes)
{
    start_gather(p, g, CPL_ALL_GATHER, recv, send, bytes);
}

/* Starts the exchange. This rank's own part is not sent: add_parts reads it in place. */
void cpl_group_start_sum_parts(cpl_pending *p, cpl_group *g, float *out, const float *in,
                               const int64_t *count, float *parts)
{
    const int rank = g->rank, size = g->size;
    *p = begin(g, CPL_SUM_PARTS, NULL, 0);
    if (size == 1) {
        if (out != in) memcpy(out, in, (size_t)count[0] * sizeof *out);
        return;
    }
    int64_t *places = g->counts, *sent = places + size, *received = sent + size;
    int64_t *from       = received + size;
    const int64_t whole = line_up(places, count, size);
    for (int r = 0; r < size; r++) {
        sent[r]     = r == rank ? 0 : count[r];
        received[r] = r == rank ? 0 : count[rank];
    }
    line_up(from, received, size);
    p->out   = out;
    p->own   = in + places[rank];
    p->parts = parts;
    p->count = count[rank];
    if (failed(g)) return;
    started(p,
            g->transport.ops->all_to_all(g->transport.ctx, parts,
                                         (cpl_message_parts){received, from}, in,
                                         (cpl_message_parts){sent, places}, (int64_t)sizeof *in),
            (whole - count[rank]) * (int64_t)sizeof *in);
}

/* ---- blocking ---- */

void cpl_group_all_gather(cpl_group *g, void *recv, const void *send, const int64_t *bytes)
{
    cpl_pending p;
    cpl_group_start_all_gather(&p, g, recv, send, bytes);
    cpl_group_finish(&p);
}

void cpl_group_all_to_all(cpl_group *g, void *recv, const int64_t *received, const void *send,
                          const int64_t *sent, int64_t unit)
{
    cpl_pending p;
    start_exchange(&p, g, CPL_ALL_TO_ALL, recv, received, send, sent, unit);
    cpl_group_finish(&p);
}

void cpl_group_broadcast(cpl_group *g, void *data, int64_t bytes, int root)
{
    cpl_pending p = begin(g, CPL_BROADCAST, root == g->rank ? NULL : data, bytes);
    if (g->size == 1) return;
    if (!failed(g)) {
        const int64_t unit = common_unit(&bytes, 1);
        started(&p, g->transport.ops->broadcast(g->transport.ctx, data, bytes / unit, unit, root),
                root == g->rank ? (g->size - 1) * bytes : 0);
    }
    cpl_group_finish(&p);
}

void cpl_group_barrier(cpl_group *g)
{
    int64_t none = 0;
    cpl_group_sum_i64(g, &none, 1);
}

/* ---- sums ---- */

/* Returns memory for one sum, valid until the next sum. If memory is not available, returns NULL
 * and records the failure. */
static void *scratch_of(cpl_ranks *ranks, size_t bytes)
{
    if (bytes <= ranks->scratch_bytes) return ranks->scratch;
    void *more = cpl_realloc(ranks->scratch, bytes);
    if (!more) {
        keep_failure(ranks, CPL_ERR_MEMORY, cpl_last_error());
        return NULL;
    }
    ranks->scratch       = more;
    ranks->scratch_bytes = bytes;
    return more;
}

typedef enum number { F32, F64, I32, I64 } number;

static int64_t bytes_of(number type)
{
    return type == F32 || type == I32 ? 4 : 8;
}

/* Sets x [count] to the sum of `n` consecutive arrays, in their order. */
static void add_all(void *x, const void *all, int n, int64_t count, number type)
{
    memcpy(x, all, (size_t)(count * bytes_of(type)));
    for (int r = 1; r < n; r++) {
        const int64_t at = r * count;
        for (int64_t i = 0; i < count; i++) {
            if (type == F32)
                ((float *)x)[i] += ((const float *)all)[at + i];
            else if (type == F64)
                ((double *)x)[i] += ((const double *)all)[at + i];
            else if (type == I32)
                ((int32_t *)x)[i] += ((const int32_t *)all)[at + i];
            else
                ((int64_t *)x)[i] += ((const int64_t *)all)[at + i];
        }
    }
}

/* Computes a sum in one step: every rank gets all arrays and adds them. */
static void sum_at_once(cpl_group *g, char *x, int64_t count, number type, char *all)
{
    cpl_pending p;
    int64_t *bytes = g->counts + 3 * g->size;
    for (int r = 0; r < g->size; r++) bytes[r] = count * bytes_of(type);
    start_gather(&p, g, CPL_SUM, all, x, bytes);
    cpl_group_finish(&p);
    add_all(x, all, g->size, count, type);
}

/* Computes a sum in two steps: rank r adds part r of all arrays, then every rank gets the sums of
 * all parts. */
static void sum_in_parts(cpl_group *g, char *x, int64_t count, number type, char *scratch)
{
    const int64_t each = (count + g->size - 1) / g->size, unit = bytes_of(type);
    int64_t *sent = g->counts + 2 * g->size, *other = sent + g->size;
    cpl_pending p;
    for (int r = 0; r < g->size; r++) {
        const int64_t left = count - r * each;
        sent[r]            = left < 0 ? 0 : left < each ? left : each;
    }
    const int64_t own = sent[g->rank];
    for (int r = 0; r < g->size; r++) other[r] = own;
    start_exchange(&p, g, CPL_SUM, scratch, other, x, sent, unit);
    cpl_group_finish(&p);
    char *sum = scratch + g->size * own * unit;
    add_all(sum, scratch, g->size, own, type);
    for (int r = 0; r < g->size; r++) sent[r] *= unit;
    start_gather(&p, g, CPL_SUM, x, sum, sent);
    cpl_group_finish(&p);
}

static void sum(cpl_group *g, void *x, int64_t count, number type)
{
    const int64_t each = (count + g->size - 1) / g->size;
    const bool at_once = count < TWO_STEP_FACTOR * (int64_t)g->size;
    const int64_t room = at_once ? g->size * count : (g->size + 1) * each;
    if (g->size == 1 || count == 0) return;
    char *scratch = failed(g) ? NULL : scratch_of(g->ranks, (size_t)(room * bytes_of(type)));
    if (!scratch) {
        memset(x, 0, (size_t)(count * bytes_of(type)));
        return;
    }
    if (at_once)
        sum_at_once(g, x, count, type, scratch);
    else
        sum_in_parts(g, x, count, type, scratch);
}

int64_t cpl_group_sum_bytes(int size, int rank, int64_t count, int64_t unit)
{
    const int64_t each = (count + size - 1) / size, left = count - rank * each;
    const int64_t own = left < 0 ? 0 : left < each ? left : each;
    if (size == 1 || count == 0) return 0;
    if (count < TWO_STEP_FACTOR * (int64_t)size) return (size - 1) * count * unit;
    return (count - own) * unit + (size - 1) * own * unit;
}

void cpl_group_sum_f64(cpl_group *g, double *x, int64_t count)
{
    sum(g, x, count, F64);
}

void cpl_group_sum_f32(cpl_group *g, float *x, int64_t count)
{
    sum(g, x, count, F32);
}

void cpl_group_sum_i32(cpl_group *g, int32_t *x, int64_t count)
{
    sum(g, x, count, I32);
}

void cpl_group_sum_i64(cpl_group *g, int64_t *x, int64_t count)
{
    sum(g, x, count, I64);
}

/* ---- agreement ---- */

/* Returns the lowest rank with a nonzero code, and sets *code to the code. Returns -1 if all codes
 * are 0, or after a failure. */
static int first_failure(cpl_group *g, int64_t *code)
{
    int64_t *bytes = g->counts + 3 * g->size;
    int64_t *codes = failed(g) ? NULL : scratch_of(g->ranks, (size_t)g->size * sizeof *codes);
    cpl_pending p;
    if (!codes) return -1;
    for (int r = 0; r < g->size; r++) bytes[r] = (int64_t)sizeof *code;
    start_gather(&p, g, CPL_SUM, codes, code, bytes);
    cpl_group_finish(&p);
    for (int r = 0; r < g->size; r++) {
        *code = codes[r];
        if (codes[r] != 0) return r;
    }
    return -1;
}

cpl_status cpl_group_agree(cpl_group *g, cpl_status status)
{
    char sentence[1024];
    int64_t code = (int64_t)status;
    if (g->size == 1) return status;
    snprintf(sentence, sizeof sentence, "%s", status == CPL_OK ? "" : cpl_last_error());
    const int rank = first_failure(g, &code);
    if (rank >= 0) cpl_group_broadcast(g, sentence, sizeof sentence, rank);
    CPL_TRY(cpl_group_status(g));
    if (rank < 0) return CPL_OK;
    g->ranks->agreed = true;
    return rank == g->rank ? CPL_FAIL((cpl_status)code, "%s", sentence)
                           : CPL_FAIL((cpl_status)code, "rank %d: %s", rank, sentence);
}

void cpl_group_expect(cpl_group *g, double seconds, const char *where)
{
    cpl_ranks *ranks = g->ranks;
    if (g->size == 1) return;
    if (ranks->begins_anew) ranks->begins_anew(ranks->ctx);
    ranks->where = where;
    ranks->limit = seconds;
    ranks->patience =
        seconds > 0 ? seconds + (g->rank == 0 ? later_seconds : others_later_seconds) : 0;
}

cpl_status cpl_group_agree_within(cpl_group *g, cpl_status status, double seconds,
                                  const char *where)
{
    cpl_group_expect(g, seconds, where);
    status = cpl_group_agree(g, status);
    cpl_group_expect(g, 0, NULL);
    return status;
}
