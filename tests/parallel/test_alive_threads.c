/* test_alive_threads.c - 64 ranks as threads, and ranks that hang. */
#include <pthread.h>
#include <signal.h>

#include "alive_case.h"

enum { MANY = 64 };

/* ---- threads ---- */

typedef struct crowd {
    char address[CPL_ALIVE_ADDRESS];
    pthread_barrier_t barrier;
    atomic_int calls, right;
} crowd;

typedef struct crowd_rank {
    crowd *all;
    int rank;
    cpl_alive *alive;
    bool unblocked; /* the thread that made it has its signals as before */
} crowd_rank;

static void count_loss(void *ctx, int rank, const char *sentence)
{
    crowd *all = ctx;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    atomic_fetch_add(&all->calls, 1);
    if (rank == 17 && strstr(sentence, "rank 17 (host ") && strstr(sentence, "): NaN") &&
        sigismember(&blocked, SIGTERM) && sigismember(&blocked, SIGUSR1))
        atomic_fetch_add(&all->right, 1);
}

static void *be_rank(void *state)
{
    crowd_rank *me    = state;
    cpl_status status = me->rank ? cpl_alive_connect(&me->alive, me->all->address, me->rank, MANY,
                                                     LONG_S, count_loss, me->all)
                                 : cpl_alive_wait(me->alive);
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    me->unblocked = !sigismember(&blocked, SIGUSR1);
    if (status != CPL_OK) {
        fprintf(stderr, "rank %d: %s\n", me->rank, cpl_last_error());
        abort();
    }
    pthread_barrier_wait(&me->all->barrier);
    if (me->rank == 17) cpl_alive_report(me->alive, "NaN");
    while (cpl_alive_lost(me->alive) < 0) nap();
    if (cpl_alive_lost(me->alive) == 17) pthread_barrier_wait(&me->all->barrier);
    cpl_alive_close(me->alive);
    return NULL;
}

TEST(test_64_ranks_as_threads)
{
    static crowd all;
    static crowd_rank ranks[MANY];
    pthread_t threads[MANY];
    const int files = open_files();
    pthread_barrier_init(&all.barrier, NULL, MANY);
    for (int r = 0; r < MANY; r++) ranks[r] = (crowd_rank){.all = &all, .rank = r};
    assert_ok(cpl_alive_listen(&ranks[0].alive, all.address, MANY, LONG_S, count_loss, &all));
    for (int r = 0; r < MANY; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, be_rank, &ranks[r]), 0);
    for (int r = 0; r < MANY; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < MANY; r++) assert_true(ranks[r].unblocked);
    pthread_barrier_destroy(&all.barrier);
    assert_int_equal(atomic_load(&all.calls), MANY - 1);
    assert_int_equal(atomic_load(&all.right), MANY - 1);
    assert_int_equal(open_files(), files);
}

/* ---- ranks that hang ---- */

/* Waits until this rank finds the late ranks that it should: "" or a part of their names. */
static void wait_for_late(cpl_alive *alive, const char *part)
{
    const double until          = cpl_seconds_now() + LONG_S;
    char names[CPL_ALIVE_NAMES] = "?";
    while (cpl_seconds_now() < until) {
        cpl_alive_late(alive, names);
        if (part[0] ? strstr(names, part) != NULL : !names[0]) return;
        nap();
    }
    fail_msg("late should be '%s', but are '%s'", part, names);
}

typedef struct join {
    const char *address;
    cpl_alive *alive;
    int rank;
} join;

static void *join_in(void *state)
{
    join *j           = state;
    cpl_status status = cpl_alive_connect(&j->alive, j->address, j->rank, 3, LONG_S, NULL, NULL);
    CPL_ASSERT(status == CPL_OK);
    return NULL;
}

static void join_all(join r[3])
{
    char address[CPL_ALIVE_ADDRESS];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) r[i] = (join){.rank = i, .address = address};
    assert_ok(cpl_alive_listen(&r[0].alive, address, 3, LONG_S, NULL, NULL));
    for (int i = 1; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, join_in, &r[i]), 0);
    for (int i = 1; i < 3; i++) pthread_join(threads[i], NULL);
    assert_ok(cpl_alive_wait(r[0].alive));
}

static void close_all(join r[3])
{
    for (int i = 2; i >= 0; i--) assert_int_equal(cpl_alive_lost(r[i].alive), -1);
    for (int i = 2; i >= 0; i--) cpl_alive_close(r[i].alive);
}

TEST(test_late_ranks_are_named)
{
    char names[CPL_ALIVE_NAMES];
    join r[3];
    cpl_alive_late(NULL, names);
    assert_string_equal(names, "");
    join_all(r);
    cpl_alive_late(r[0].alive, names);
    assert_string_equal(names, ""); /* no rank has begun a collective */
    cpl_alive_count(r[0].alive);
    wait_for_late(r[0].alive, ", rank ");
    cpl_alive_count(r[1].alive); /* rank 2 is late; rank 1 sees only rank 0, which is not late */
    wait_for_late(r[1].alive, "");
    const double until = cpl_seconds_now() + LONG_S;
    do cpl_alive_late(r[0].alive, names);
    while (strstr(names, "rank 1 ") && cpl_seconds_now() < until);
    assert_non_null(strstr(names, "rank 2 (host "));
    assert_null(strstr(names, "rank 1 "));
    cpl_alive_count(r[2].alive);
    wait_for_late(r[0].alive, "");
    for (int i = 0; i < 9; i++) cpl_alive_count(r[2].alive); /* further counts change nothing */
    cpl_alive_count_anew(r[0].alive);                        /* only rank 0 counts anew here */
    wait_for_late(r[0].alive, ", rank ");
    for (int i = 1; i < 3; i++) cpl_alive_count_anew(r[i].alive);
    wait_for_late(r[0].alive, "");
    cpl_alive_count_anew(r[1].alive); /* now rank 0 is late */
    wait_for_late(r[1].alive, "rank 0 (host ");
    close_all(r);
}

/* All ranks are in the same collective. Ranks 0 and 1 look whether it is complete, and rank 2 hangs
 * in it for several heartbeats. Each heartbeat reports that rank 1 has looked again. */
TEST(test_a_rank_that_hangs_in_a_collective_is_named)
{
    enum { BEATS_S = 4 };
    const double until          = cpl_seconds_now() + LONG_S;
    double named                = cpl_seconds_now();
    char names[CPL_ALIVE_NAMES] = "";
    join r[3];
    join_all(r);
    for (int i = 0; i < 3; i++) cpl_alive_count(r[i].alive);
    wait_for_late(r[0].alive, "");
    while (cpl_seconds_now() < named + BEATS_S) {
        assert_true(cpl_seconds_now() < until);
        if (!strstr(names, "rank 2 (host ") || strstr(names, "rank 1 (host "))
            named = cpl_seconds_now(); /* no rank is named, or a wrong one */
        for (int i = 0; i < 2; i++) cpl_alive_wait_on(r[i].alive);
        cpl_alive_late(r[0].alive, names);
        nap();
    }
    close_all(r);
}
