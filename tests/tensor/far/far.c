/* far.c - see far.h */
#include "tensor/far/far.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arena.h"

/* The function of the sanitizers' run time, or NULL in a program without it. */
extern void __sanitizer_print_stack_trace(void) __attribute__((weak));
extern void __sanitizer_symbolize_pc(void *pc, const char *format, char *out, size_t size)
    __attribute__((weak));
extern void __lsan_ignore_object(const void *object) __attribute__((weak));

enum { CALLERS = 6, NOT_SET = 0xff }; /* a NaN as F32, BF16 or double; -1 as a whole number */

/* A block of memory that the backend has taken. */
typedef struct block {
    char *at;   /* the address that tensors have */
    char *real; /* the memory */
    size_t bytes;
} block;

typedef void run_fn(cpl_backend *be, const void *arguments);

/* An operation that waits, with its arguments behind it. */
typedef struct work {
    struct work *next;
    run_fn *run;
    cpl_backend be; /* the inner backend as the operation uses it */
    _Alignas(max_align_t) char arguments[];
} work;

/* The callers of a get or sync that has waited. */
typedef struct wait {
    void *caller[CALLERS];
    int64_t count;
} wait;

typedef struct far_backend {
    cpl_backend cpu; /* the backend that runs the operations */
    cpl_ops ops;
    bool late;
    block *blocks;
    size_t n_blocks;
    work *first, **last;
} far_backend;

static far_backend *of(const cpl_backend *be)
{
    return be->own;
}

static void *grown(void *array, size_t count, size_t each)
{
    array = realloc(array, (count + 1) * each);
    CPL_ASSERT(array);
    return array;
}

/* ---- addresses: each is given out once, from a range without access ---- */

static const size_t range_bytes = (size_t)1 << 40;
static char *range;
static atomic_size_t range_used;
static struct sigaction before_us;

static void end_with(const char *sentence)
{
    fprintf(stderr, "%s\n", sentence);
    if (__sanitizer_print_stack_trace) __sanitizer_print_stack_trace();
    abort();
}

static void touched(int number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    (void)context;
    if (at >= range && at < range + range_bytes)
        end_with("The host has read or written memory of the backend: use get or put "
                 "(tensor/ops.h).");
    sigaction(number, &before_us, NULL); /* the earlier handler meets the fault when it repeats */
}

static void make_range(void)
{
    range = mmap(NULL, range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CPL_ASSERT(range != MAP_FAILED);
}

/* Installs the handler. Each test needs a call, since cmocka has a handler for each test. */
static void watch_range(void)
{
    const struct sigaction ours = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO};
    struct sigaction before;
    sigaction(SIGSEGV, &ours, &before);
    if (before.sa_sigaction != touched) before_us = before;
}

static char *new_address(size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const size_t page          = 4096;
    pthread_once(&once, make_range);
    watch_range();
    const size_t room = (bytes / page + 2) * page; /* a page between neighbours */
    const size_t at   = atomic_fetch_add(&range_used, room);
    CPL_ASSERT(at + room <= range_bytes);
    return range + at;
}

static block *block_at(const far_backend *f, const void *memory)
{
    const char *at = memory;
    for (size_t i = 0; i < f->n_blocks; i++)
        if (at >= f->blocks[i].at && at <= f->blocks[i].at + f->blocks[i].bytes)
            return &f->blocks[i];
    return NULL;
}

/* Returns the memory behind `bytes` at an address of tensors. */
static void *real_memory(const far_backend *f, const void *at, size_t bytes)
{
    const block *b = block_at(f, at);
    if (!at) return NULL;
    if (!b || (size_t)(b->at + b->bytes - (const char *)at) < bytes)
        end_with("An operation was given memory that its backend has not taken, or has been given "
                 "back, or more than there is.");
    return b->real + ((const char *)at - b->at);
}

/* ---- the queue ---- */

/* Returns the inner backend as an operation that is given now uses it. */
static cpl_backend seen_now(const cpl_backend *be)
{
    cpl_backend inner   = of(be)->cpu;
    inner.compute       = be->compute;
    inner.n_threads     = be->n_threads;
    inner.scratch       = real_memory(of(be), be->scratch, be->scratch_bytes);
    inner.scratch_bytes = be->scratch_bytes;
    return inner;
}

static void run_one(far_backend *f, run_fn *run, cpl_backend be, const void *arguments)
{
    be.failure = f->cpu.failure;
    run(&be, arguments);
    f->cpu.failure = be.failure;
}

static void run_all(cpl_backend *be)
{
    far_backend *f = of(be);
    while (f->first) {
        work *w  = f->first;
        f->first = w->next;
        run_one(f, w->run, w->be, w->arguments);
        free(w);
    }
    f->last     = &f->first;
    be->failure = f->cpu.failure;
}

static void give_work(cpl_backend *be, run_fn *run, const void *arguments, size_t bytes)
{
    far_backend *f = of(be);
    if (!f->late) {
        run_one(f, run, seen_now(be), arguments);
        be->failure = f->cpu.failure;
        return;
    }
    work *w = malloc(sizeof *w + bytes);
    CPL_ASSERT(w);
    *w = (work){.run = run, .be = seen_now(be)};
    memcpy(w->arguments, arguments, bytes);
    *f->last = w;
    f->last  = &w->next;
}

/* Gives the tensors among the arguments of an operation the addresses of their memory. */
static void reach(const cpl_backend *be, cpl_tensor *const *tensors, int count)
{
    for (int i = 0; i < count; i++)
        tensors[i]->storage =
            real_memory(of(be), tensors[i]->storage, cpl_tensor_bytes(*tensors[i]));
}

#include "far_operations.inc" /* written by make_operations.py */

/* ---- waits ---- */

static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static wait *places;
static size_t n_places;

/* Records a wait. `caller`: the address to which the operation returns. */
static void note_wait(void *caller)
{
    enum { OWN = 4 }; /* at most, frames of this file and of a sanitizer */
    void *all[OWN + CALLERS] = {0};
    int own                  = 0;
    const int there          = backtrace(all, OWN + CALLERS);
    while (own < there - 1 && own < OWN && all[own] != caller) own++;
    pthread_mutex_lock(&places_lock);
    size_t i = 0;
    while (i < n_places && memcmp(places[i].caller, all + own, sizeof places->caller)) i++;
    if (i == n_places) {
        places    = grown(places, n_places++, sizeof *places);
        places[i] = (wait){0};
        memcpy(places[i].caller, all + own, sizeof places->caller);
    }
    places[i].count++;
    pthread_mutex_unlock(&places_lock);
}

static void show(FILE *list, const wait *w)
{
    for (int k = 0; k < CALLERS && w->caller[k]; k++) {
        char text[256] = "";
        void *pc       = (char *)w->caller[k] - 1; /* the call, not the instruction after it */
        if (__sanitizer_symbolize_pc) __sanitizer_symbolize_pc(pc, "%f (%s:%l)", text, sizeof text);
        if (k == 0) fprintf(list, "%lld waits:\n", (long long)w->count);
        fprintf(list, "    %p %s\n", pc, text);
    }
}

int64_t cpl_far_waits(FILE *list)
{
    int64_t waits = 0;
    pthread_mutex_lock(&places_lock);
    for (size_t i = 0; i < n_places; i++) {
        waits += places[i].count;
        if (list) show(list, &places[i]);
    }
    n_places = 0;
    pthread_mutex_unlock(&places_lock);
    return waits;
}

/* ---- memory ---- */

static void *take(cpl_backend *be, size_t bytes)
{
    far_backend *f = of(be);
    char *real     = cpl_alloc(bytes);
    if (!real) return NULL;
    memset(real, NOT_SET, bytes);
    f->blocks              = grown(f->blocks, f->n_blocks, sizeof *f->blocks);
    f->blocks[f->n_blocks] = (block){new_address(bytes), real, bytes};
    return f->blocks[f->n_blocks++].at;
}

static void give(cpl_backend *be, void *memory)
{
    far_backend *f = of(be);
    block *b       = block_at(f, memory);
    if (!memory) return;
    if (!b || b->at != memory) end_with("Memory is given back that was not taken, or twice.");
    run_all(be);
    cpl_free(b->real);
    *b = f->blocks[--f->n_blocks];
}

typedef struct put_arguments {
    void *to;
    size_t bytes;
    char from[];
} put_arguments;

static void run_put(cpl_backend *be, const void *memory)
{
    const put_arguments *a = memory;
    (void)be;
    memcpy(a->to, a->from, a->bytes);
}

static void put(cpl_backend *be, cpl_tensor to, const void *from)
{
    const size_t bytes = cpl_tensor_bytes(to);
    put_arguments *a   = malloc(sizeof *a + bytes);
    CPL_ASSERT(a);
    *a = (put_arguments){real_memory(of(be), to.storage, bytes), bytes};
    memcpy(a->from, from, bytes);
    give_work(be, run_put, a, sizeof *a + bytes);
    free(a);
}

static void get(cpl_backend *be, void *to, cpl_tensor from)
{
    note_wait(__builtin_return_address(0));
    run_all(be);
    memcpy(to, real_memory(of(be), from.storage, cpl_tensor_bytes(from)), cpl_tensor_bytes(from));
}

static cpl_status sync_work(cpl_backend *be)
{
    far_backend *f = of(be);
    note_wait(__builtin_return_address(0));
    run_all(be);
    return f->cpu.ops->sync(&f->cpu);
}

/* ---- the backend ---- */

void cpl_backend_far(cpl_backend *be, bool late)
{
    far_backend *f = calloc(1, sizeof *f);
    CPL_ASSERT(f);
    *f      = (far_backend){.cpu = *be, .ops = *be->ops, .late = late};
    f->last = &f->first;
    be->ops = &f->ops;
    be->own = f;
    fill_table(&f->ops);
    if (__lsan_ignore_object)
        __lsan_ignore_object(f); /* a backend without memory need not be freed */
    f->ops.take = take;
    f->ops.give = give;
    f->ops.put  = put;
    f->ops.get  = get;
    f->ops.sync = sync_work;
}

bool cpl_is_far(const cpl_backend *be)
{
    return be->ops && be->ops->take == take;
}

void cpl_far_free(cpl_backend *be)
{
    if (!cpl_is_far(be)) return;
    far_backend *f = of(be);
    run_all(be);
    if (f->n_blocks > 0) end_with("A backend is freed before all of its memory was given back.");
    free(f->blocks);
    free(f);
    be->ops = NULL;
}
