/* memory.c - see memory.h */
#include "tensor/memory.h"

#include <string.h>

#include "base/text.h"

cpl_tensor_arena cpl_tensor_arena_measure(void)
{
    cpl_tensor_arena arena = {0};
    cpl_arena_measure(&arena.tensors);
    cpl_arena_measure(&arena.host);
    return arena;
}

cpl_tensor_arena cpl_tensor_arena_over(cpl_backend *be, void *memory, size_t bytes)
{
    return (cpl_tensor_arena){.be = be, .tensors = cpl_arena_over(memory, bytes)};
}

size_t cpl_tensor_arena_bytes(const cpl_tensor_arena *arena)
{
    return arena->tensors.peak + arena->host.peak;
}

cpl_status cpl_tensor_no_memory(cpl_backend *be, size_t bytes, const char *what)
{
    double there, all;
    char had[2][32];
    const double needs = (double)bytes / 1048576.0;
    CPL_TRY(be->ops->sync(be)); /* returns the failure of a device that has failed */
    if (!be->room) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory: %.1f MiB for %s", needs, what);
    be->room(be, &there, &all);
    return CPL_FAIL(
        CPL_ERR_MEMORY,
        "out of memory on %s: %.1f MiB are needed for %s, and %s of the device's %s are free",
        be->device, needs, what, cpl_text_bytes(had[0], there), cpl_text_bytes(had[1], all));
}

cpl_status cpl_tensor_arena_init(cpl_tensor_arena *arena, cpl_backend *be,
                                 const cpl_tensor_arena *measured, const char *what)
{
    const size_t bytes = measured->tensors.peak, host = measured->host.peak;
    memset(arena, 0, sizeof *arena);
    void *memory = be->ops->take(be, bytes);
    if (!memory) return cpl_tensor_no_memory(be, bytes, what);
    *arena = cpl_tensor_arena_over(be, memory, bytes);
    be->ops->fill(be, cpl_tensor_1d(memory, CPL_F32, (int64_t)(bytes / sizeof(float))), 0);
    cpl_status status = cpl_arena_init(&arena->host, host, what);
    if (status != CPL_OK) cpl_tensor_arena_free(arena);
    return status;
}

void cpl_tensor_arena_free(cpl_tensor_arena *arena)
{
    if (arena->be) arena->be->ops->give(arena->be, arena->tensors.base);
    cpl_arena_free(&arena->host);
    memset(arena, 0, sizeof *arena);
}

cpl_tensor_mark cpl_tensor_arena_mark(const cpl_tensor_arena *arena)
{
    return (cpl_tensor_mark){cpl_arena_mark(&arena->tensors), cpl_arena_mark(&arena->host)};
}

void cpl_tensor_arena_release(cpl_tensor_arena *arena, cpl_tensor_mark mark)
{
    cpl_arena_release(&arena->tensors, mark.tensors);
    cpl_arena_release(&arena->host, mark.host);
}

cpl_tensor cpl_tensor_take(cpl_tensor_arena *arena, cpl_tensor t)
{
    t.storage = cpl_arena_take(&arena->tensors, cpl_tensor_bytes(t));
    return t;
}

cpl_tensor cpl_tensor_take_1d(cpl_tensor_arena *arena, int64_t a)
{
    return cpl_tensor_take(arena, cpl_tensor_1d(NULL, CPL_F32, a));
}

cpl_tensor cpl_tensor_take_2d(cpl_tensor_arena *arena, int64_t a, int64_t b)
{
    return cpl_tensor_take(arena, cpl_tensor_2d(NULL, CPL_F32, a, b));
}

cpl_tensor cpl_tensor_take_3d(cpl_tensor_arena *arena, int64_t a, int64_t b, int64_t c)
{
    return cpl_tensor_take(arena, cpl_tensor_3d(NULL, CPL_F32, a, b, c));
}

cpl_tensor cpl_tensor_take_ids(cpl_tensor_arena *arena, int64_t count)
{
    return cpl_tensor_take(arena, cpl_tensor_1d(NULL, CPL_I32, count));
}

void *cpl_tensor_take_host(cpl_tensor_arena *arena, size_t bytes)
{
    return cpl_arena_take(&arena->host, bytes);
}

cpl_tensor cpl_tensor_take_numbers(cpl_tensor_arena *arena, int64_t count)
{
    return cpl_tensor_take(arena, cpl_tensor_1d(NULL, CPL_F64, count));
}

cpl_status cpl_tensor_reserve(cpl_tensor *t, cpl_backend *be, cpl_dtype dtype, int64_t count)
{
    if (t->storage && cpl_tensor_count(*t) >= count) return CPL_OK;
    cpl_tensor_free(t, be);
    cpl_tensor fresh = cpl_tensor_1d(NULL, dtype, count);
    fresh.storage    = be->ops->take(be, cpl_tensor_bytes(fresh));
    if (!fresh.storage) return cpl_tensor_no_memory(be, cpl_tensor_bytes(fresh), "a tensor");
    *t = fresh;
    return CPL_OK;
}

void cpl_tensor_free(cpl_tensor *t, cpl_backend *be)
{
    if (t->storage) be->ops->give(be, t->storage);
    *t = cpl_tensor_none();
}

double cpl_tensor_number(cpl_backend *be, cpl_tensor x)
{
    double number;
    CPL_ASSERT(x.dtype == CPL_F64 && cpl_tensor_count(x) == 1);
    be->ops->get(be, &number, x);
    return number;
}
