/* arena.c - see arena.h */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LARGE_BLOCK = 4 << 20 };

/* The size is stored in front of each block, so that cpl_realloc keeps the alignment. */
typedef struct block_head {
    size_t bytes;
} block_head;

static atomic_llong alloc_count, fail_at, held, most_held;

static size_t round_up(size_t bytes, size_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static bool must_fail(void)
{
    return atomic_load(&fail_at) > 0 && atomic_fetch_sub(&fail_at, 1) == 1;
}

static void count_held(size_t bytes)
{
    long long now  = atomic_fetch_add(&held, (long long)bytes) + (long long)bytes;
    long long most = atomic_load(&most_held);
    while (now > most && !atomic_compare_exchange_weak(&most_held, &most, now)) continue;
}

/* Requests large pages for large blocks, if the system has them: a matrix of 5 MB in pages of 4 KB
 * has more pages than the processor's address cache holds. */
static void ask_for_large_pages(char *block, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const size_t page = 4096, lead = (page - (uintptr_t)block % page) % page;
    if (bytes >= LARGE_BLOCK) (void)madvise(block + lead, bytes - lead, MADV_HUGEPAGE);
#else
    (void)block, (void)bytes;
#endif
}

void *cpl_alloc(size_t bytes)
{
    atomic_fetch_add(&alloc_count, 1);
    char *block = NULL;
    if (bytes < SIZE_MAX - 2 * CPL_ALIGNMENT && !must_fail())
        block = aligned_alloc(CPL_ALIGNMENT, round_up(bytes, CPL_ALIGNMENT) + CPL_ALIGNMENT);
    if (!block) {
        (void)CPL_FAIL(CPL_ERR_MEMORY, "out of memory: %zu bytes were requested", bytes);
        return NULL;
    }
    ask_for_large_pages(block, bytes);
    ((block_head *)(void *)block)->bytes = bytes;
    count_held(bytes);
    return block + CPL_ALIGNMENT;
}

/* Returns the head of the block that begins at `memory`. */
static block_head *head_of(void *memory)
{
    return (block_head *)(void *)((char *)memory - CPL_ALIGNMENT);
}

void *cpl_realloc(void *old, size_t bytes)
{
    void *fresh = cpl_alloc(bytes);
    if (!fresh || !old) return fresh;
    size_t had = head_of(old)->bytes;
    memcpy(fresh, old, had < bytes ? had : bytes);
    cpl_free(old);
    return fresh;
}

void cpl_free(void *memory)
{
    if (!memory) return;
    atomic_fetch_sub(&held, (long long)head_of(memory)->bytes);
    free(head_of(memory));
}

int64_t cpl_alloc_count(void)
{
    return (int64_t)atomic_load(&alloc_count);
}

int64_t cpl_alloc_in_use(void)
{
    return (int64_t)atomic_load(&held);
}

int64_t cpl_alloc_peak(void)
{
    return (int64_t)atomic_exchange(&most_held, atomic_load(&held));
}

void cpl_alloc_fail_at(int64_t nth)
{
    atomic_store(&fail_at, nth);
}

cpl_status cpl_arena_init(cpl_arena *arena, size_t bytes, const char *what)
{
    memset(arena, 0, sizeof *arena);
    arena->base = cpl_alloc(bytes);
    if (!arena->base)
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory: %.1f MiB for %s", (double)bytes / 1048576.0,
                        what);
    memset(arena->base, 0, bytes);
    arena->capacity = bytes;
    return CPL_OK;
}

void cpl_arena_free(cpl_arena *arena)
{
    cpl_free(arena->base);
    memset(arena, 0, sizeof *arena);
}

void cpl_arena_measure(cpl_arena *arena)
{
    memset(arena, 0, sizeof *arena);
    arena->capacity = SIZE_MAX;
}

void *cpl_arena_take(cpl_arena *arena, size_t bytes)
{
    size_t start = arena->used;
    arena->used += round_up(bytes, CPL_ALIGNMENT);
    if (arena->used > arena->peak) arena->peak = arena->used;
    if (!arena->base) {
        CPL_ASSERT(arena->capacity == SIZE_MAX);
        return NULL;
    }
    CPL_ASSERT(arena->used <= round_up(arena->capacity, CPL_ALIGNMENT));
    return arena->base + start;
}

size_t cpl_arena_mark(const cpl_arena *arena)
{
    return arena->used;
}

void cpl_arena_release(cpl_arena *arena, size_t mark)
{
    CPL_ASSERT(mark <= arena->used);
    arena->used = mark;
}

/* ---- many small pieces ---- */

enum {
    CHUNK_BYTES = 1 << 16,
    LINE_BYTES  = 1024,
    ALIGN       = alignof(max_align_t),
    LINK_BYTES  = ALIGN /* bytes at the beginning of a chunk, for the address of the previous
                           chunk */
};
_Static_assert(sizeof(void *) <= LINK_BYTES, "an address does not fit");

static bool grow(cpl_pool *pool, size_t bytes)
{
    size_t size = LINK_BYTES + (bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES);
    char *chunk = cpl_alloc(size);
    if (!chunk) {
        pool->failed = true;
        return false;
    }
    memcpy(chunk, &pool->chunks, sizeof(void *));
    pool->chunks = chunk;
    pool->next   = chunk + LINK_BYTES;
    pool->left   = size - LINK_BYTES;
    return true;
}

void *cpl_pool_take(cpl_pool *pool, size_t bytes)
{
    bytes = round_up(bytes ? bytes : 1, ALIGN);
    if (bytes > pool->left && !grow(pool, bytes)) return NULL;
    void *piece = pool->next;
    pool->next += bytes;
    pool->left -= bytes;
    memset(piece, 0, bytes);
    return piece;
}

const char *cpl_pool_printf(cpl_pool *pool, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    return cpl_pool_copy(pool, line, strlen(line));
}

const char *cpl_pool_copy(cpl_pool *pool, const char *bytes, size_t length)
{
    char *copy = cpl_pool_take(pool, length + 1);
    if (!copy) return "out of memory";
    if (length) memcpy(copy, bytes, length);
    return copy;
}

cpl_status cpl_pool_status(const cpl_pool *pool)
{
    return pool->failed ? CPL_FAIL(CPL_ERR_MEMORY, "out of memory") : CPL_OK;
}

void cpl_pool_free(cpl_pool *pool)
{
    while (pool->chunks) {
        void *before;
        memcpy(&before, pool->chunks, sizeof before);
        cpl_free(pool->chunks);
        pool->chunks = before;
    }
    *pool = (cpl_pool){0};
}
