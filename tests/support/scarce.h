/* scarce.h - a call that is repeated while its first, second, third allocation fails.
 *
 *     scarce s = {0};
 *     while (scarce_begin(&s)) scarce_end(&s, use());
 *     assert_true(s.nth > 6);
 *
 * The loop ends with the round that succeeds. Any round before it must end with CPL_ERR_MEMORY. */
#ifndef CPL_TESTS_SUPPORT_SCARCE_H
#define CPL_TESTS_SUPPORT_SCARCE_H

#include "base/arena.h"
#include "check.h"

typedef struct scarce {
    int64_t nth; /* number of the allocation that fails, from 1 */
    bool is_done;
} scarce;

/* Starts the next round. Returns false after a round without an error. */
static inline bool scarce_begin(scarce *s)
{
    enum { MOST_ROUNDS = 5000 };
    if (s->is_done) return false;
    assert_true(s->nth < MOST_ROUNDS);
    cpl_alloc_fail_at(++s->nth);
    return true;
}

/* Ends the round, whose call has returned `status`. */
static inline void scarce_end(scarce *s, cpl_status status)
{
    cpl_alloc_fail_at(0);
    if (status != CPL_OK && status != CPL_ERR_MEMORY)
        fail_msg("allocation %d: %s", (int)s->nth, cpl_last_error());
    s->is_done = status == CPL_OK;
}

#endif /* CPL_TESTS_SUPPORT_SCARCE_H */
