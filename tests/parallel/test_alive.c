/* test_alive.c - ranks as processes that are killed, stopped and continued. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "alive_case.h"

enum { RANKS = 8 };

typedef struct world {
    char address[CPL_ALIVE_ADDRESS];
    atomic_int listens;
    rank_state rank[RANKS];
} world;

static world *w;

/* Ends the process on a failure: an assertion of cmocka would go on with the next test here. */
static void must(cpl_status status)
{
    if (status == CPL_OK) return;
    fprintf(stderr, "%s\n", cpl_last_error());
    _exit(3);
}

static void run_rank(int rank, double timeout_s)
{
    rank_state *me   = &w->rank[rank];
    cpl_alive *alive = NULL;
    while (rank > 0 && !atomic_load(&w->listens)) nap();
    if (rank > 0)
        must(cpl_alive_connect(&alive, w->address, rank, RANKS, timeout_s, note_loss, me));
    else
        must(cpl_alive_listen(&alive, w->address, RANKS, timeout_s, note_loss, me));
    if (rank == 0) {
        atomic_store(&w->listens, 1);
        must(cpl_alive_wait(alive));
    }
    atomic_store(&me->stage, 1);
    while (!atomic_load(&me->must_close)) {
        if (atomic_exchange(&me->must_report, false)) cpl_alive_report(alive, "no space left");
        atomic_store(&me->lost_by_poll, cpl_alive_lost(alive));
        nap();
    }
    cpl_alive_close(alive);
    atomic_store(&me->stage, 2);
}

/* Starts RANKS processes. Rank 0 has its own timeout. */
static void start_ranks(double timeout_0, double timeout_s)
{
    w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(w != MAP_FAILED);
    for (int r = 0; r < RANKS; r++) {
        atomic_store(&w->rank[r].lost, -1);
        atomic_store(&w->rank[r].lost_by_poll, -1);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_rank(r, r == 0 ? timeout_0 : timeout_s);
            _exit(0);
        }
        w->rank[r].process = child;
    }
}
static void all_connected(void)
{
    for (int r = 0; r < RANKS; r++)
        if (!wait_for(&w->rank[r].stage, 1, LONG_S)) fail_msg("rank %d does not connect", r);
}

static void send_signal(int rank, int number)
{
    assert_true(w->rank[rank].process > 0);
    assert_int_equal(kill(w->rank[rank].process, number), 0);
}

/* Waits until all ranks but `lost` learn within `most_s` that it is lost, by a sentence that
 * contains `part`. Returns the time of the last rank. */
static double all_learn(int lost, double most_s, const char *part)
{
    double last = 0;
    char name[64];
    snprintf(name, sizeof name, "rank %d (host ", lost);
    for (int r = 0; r < RANKS; r++) {
        rank_state *one = &w->rank[r];
        if (r == lost) continue;
        if (!wait_for(&one->calls, 1, most_s)) fail_msg("rank %d learns nothing", r);
        assert_int_equal(atomic_load(&one->lost), lost);
        assert_true(wait_for(&one->lost_by_poll, lost, SLACK_S));
        if (strncmp(one->sentence, name, strlen(name)) != 0 || !strstr(one->sentence, part))
            fail_msg("rank %d: \"%s\"", r, one->sentence);
        last = one->lost_at > last ? one->lost_at : last;
    }
    return last;
}

/* Lets the remaining ranks close in the order 0, 1, ... or its reverse, and counts calls. */
static void end_ranks(bool reverse, int calls)
{
    for (int i = 0; i < RANKS; i++) {
        rank_state *one = &w->rank[reverse ? RANKS - 1 - i : i];
        atomic_store(&one->must_close, true);
        if (waitpid(one->process, NULL, WNOHANG) == 0)
            if (!wait_for(&one->stage, 2, LONG_S)) fail_msg("rank does not close");
    }
    for (int r = 0; r < RANKS; r++) {
        int ended = 0;
        if (waitpid(w->rank[r].process, &ended, 0) < 0) continue; /* waited for before */
        if (WIFEXITED(ended)) assert_int_equal(WEXITSTATUS(ended), 0);
        if (WIFEXITED(ended) && calls >= 0) assert_int_equal(atomic_load(&w->rank[r].calls), calls);
    }
    munmap(w, sizeof *w);
}

static void kill_rank(int rank, const char *part)
{
    start_ranks(LONG_S, LONG_S);
    all_connected();
    double killed = cpl_seconds_now();
    send_signal(rank, SIGKILL);
    double learnt = all_learn(rank, SLACK_S, part);
    print_message("rank %d killed: all learn it after %.3f s\n", rank, learnt - killed);
    end_ranks(false, -1);
}

TEST(test_a_killed_rank_is_found_by_its_connection)
{
    kill_rank(3, "was lost: its connection closed");
}

TEST(test_a_killed_rank_0_is_found_by_all)
{
    kill_rank(0, "was lost: its connection closed");
}

/* Stops a rank. When it continues, it reads that it is the lost rank. */
static void stop_rank(int rank)
{
    start_ranks(SHORT_S, SHORT_S);
    all_connected();
    double stopped = cpl_seconds_now();
    send_signal(rank, SIGSTOP);
    double learnt =
        all_learn(rank, SHORT_S + SLACK_S, "was lost: nothing was heard of it for 2 seconds");
    print_message("rank %d stopped: all learn it after %.3f s\n", rank, learnt - stopped);
    assert_true(learnt - stopped > SHORT_S / 2);
    send_signal(rank, SIGCONT);
    if (!wait_for(&w->rank[rank].calls, 1, SLACK_S)) fail_msg("the stopped rank learns nothing");
    assert_int_equal(atomic_load(&w->rank[rank].lost), rank);
    assert_non_null(strstr(w->rank[rank].sentence, "nothing was heard of it for 2 seconds"));
    end_ranks(false, 1);
}

TEST(test_a_stopped_rank_is_found_by_its_silence)
{
    stop_rank(5);
}

TEST(test_a_stopped_rank_0_is_found_by_all)
{
    stop_rank(0);
}

/* Only rank 0's own sleep is longer than its timeout. The other ranks have longer timeouts. */
TEST(test_rank_0_reads_what_is_queued_before_it_judges)
{
    start_ranks(3, LONG_S);
    all_connected();
    send_signal(0, SIGSTOP);
    usleep(4500000);
    send_signal(0, SIGCONT);
    usleep(1200000);
    for (int r = 0; r < RANKS; r++)
        if (atomic_load(&w->rank[r].calls)) fail_msg("rank %d: %s", r, w->rank[r].sentence);
    end_ranks(false, 0);
}

/* A scheduler suspends all processes and continues them one after the other. At first rank 0 has no
 * message in its queue. */
TEST(test_a_suspended_run_goes_on)
{
    start_ranks(3, 3);
    all_connected();
    for (int r = 0; r < RANKS; r++) send_signal(r, SIGSTOP);
    usleep(4500000);
    for (int r = 0; r < RANKS; r++) {
        send_signal(r, SIGCONT);
        if (r == 0) usleep(700000);
    }
    usleep(1200000);
    for (int r = 0; r < RANKS; r++)
        if (atomic_load(&w->rank[r].calls)) fail_msg("rank %d: %s", r, w->rank[r].sentence);
    end_ranks(false, 0);
}

static void report_rank(int rank)
{
    char want[128];
    start_ranks(LONG_S, LONG_S);
    all_connected();
    atomic_store(&w->rank[rank].must_report, true);
    (void)all_learn(rank, SLACK_S, "): no space left");
    assert_true(wait_for(&w->rank[rank].lost_by_poll, rank, SLACK_S));
    snprintf(want, sizeof want, "process %ld): no space left", (long)w->rank[rank].process);
    for (int r = 0; r < RANKS; r++)
        if (r != rank) assert_non_null(strstr(w->rank[r].sentence, want));
    send_signal(6, SIGKILL); /* a later loss changes nothing */
    atomic_store(&w->rank[1].must_report, true);
    usleep(500000);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(atomic_load(&w->rank[r].calls), r != rank);
        assert_int_equal(atomic_load(&w->rank[r].lost_by_poll), rank);
    }
    end_ranks(true, -1);
}

TEST(test_an_error_reaches_every_rank_once)
{
    report_rank(4);
    report_rank(0);
}

TEST(test_farewells_in_any_order_are_no_loss)
{
    for (int reverse = 0; reverse < 2; reverse++) {
        start_ranks(LONG_S, LONG_S);
        all_connected();
        double begun = cpl_seconds_now();
        end_ranks(reverse, 0);
        assert_true(cpl_seconds_now() - begun < SLACK_S);
    }
    start_ranks(LONG_S, LONG_S); /* all ranks at once */
    all_connected();
    for (int r = 0; r < RANKS; r++) atomic_store(&w->rank[r].must_close, true);
    end_ranks(false, 0);
}
