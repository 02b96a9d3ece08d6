/* mirror.h - tensors of a test whose numbers the host and a backend both use.
 *
 * Operations get memory of any backend (tensor/far/far.h). The test keeps its arrays. */
#ifndef CPL_TESTS_SUPPORT_MIRROR_H
#define CPL_TESTS_SUPPORT_MIRROR_H

#include "check.h"
#include "tensor/memory.h"

enum { MOST_MIRRORS = 64, MOST_SEEN = 32 };

typedef struct mirror {
    cpl_backend *be;
    cpl_tensor host, there;
} mirror;

static inline mirror *mirrors(int64_t **count)
{
    static _Thread_local mirror all[MOST_MIRRORS];
    static _Thread_local int64_t n;
    *count = &n;
    return all;
}

/* Returns the tensor in memory of the backend, until mirrors_end. An absent one stays absent. */
static inline cpl_tensor mirrored(cpl_backend *be, cpl_tensor host)
{
    int64_t *n;
    mirror *all  = mirrors(&n);
    cpl_tensor t = host, room = cpl_tensor_none();
    if (!host.storage) return host;
    for (int64_t i = 0; i < *n; i++)
        if (all[i].be == be && all[i].host.storage == host.storage) room = all[i].there;
    if (!room.storage) {
        assert_true(*n < MOST_MIRRORS);
        assert_ok(cpl_tensor_reserve(&room, be, host.dtype, cpl_tensor_count(host)));
        all[(*n)++] = (mirror){be, host, room};
        be->ops->put(be, room, host.storage);
    }
    t.storage = room.storage;
    return t;
}

/* Returns the tensor as it is now, in memory of the host, until MOST_SEEN later calls. */
static inline cpl_tensor seen(cpl_backend *be, cpl_tensor t)
{
    static _Thread_local void *copy[MOST_SEEN];
    static _Thread_local int turn;
    void **mine = &copy[turn = (turn + 1) % MOST_SEEN];
    *mine       = realloc(*mine, cpl_tensor_bytes(t) + 1);
    assert_non_null(*mine);
    be->ops->get(be, *mine, t);
    t.storage = *mine;
    return t;
}

/* Copies the backend's results into the test's arrays. Unchanged arrays are not written. */
static inline void mirrors_read(cpl_backend *be)
{
    int64_t *n;
    mirror *all = mirrors(&n);
    for (int64_t i = 0; i < *n; i++) {
        if (all[i].be != be) continue;
        const cpl_tensor now = seen(be, all[i].there);
        if (memcmp(all[i].host.storage, now.storage, cpl_tensor_bytes(now)))
            memcpy(all[i].host.storage, now.storage, cpl_tensor_bytes(now));
    }
}

/* Frees the memory of the mirrors. */
static inline void mirrors_drop(cpl_backend *be)
{
    int64_t *n, kept = 0;
    mirror *all = mirrors(&n);
    for (int64_t i = 0; i < *n; i++)
        if (all[i].be == be)
            cpl_tensor_free(&all[i].there, be);
        else
            all[kept++] = all[i];
    *n = kept;
}

/* Calls mirrors_read, then mirrors_drop. */
static inline void mirrors_end(cpl_backend *be)
{
    mirrors_read(be);
    mirrors_drop(be);
}

#endif /* CPL_TESTS_SUPPORT_MIRROR_H */
