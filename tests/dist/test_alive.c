/* test_alive.c - ranks as processes that are killed, stopped and continued, and as threads. Limits
 * of time are for a loaded machine; where a loss must not come from silence, the timeout is far
 * longer. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/arena.h"
#include "base/clock.h"
#include "check.h"
#include "dist/alive.h"
#include "dist/alive_link.h"

enum { RANKS = 8, MANY = 64 };

static const double LONG_S  = 60; /* a timeout that no test reaches */
static const double SHORT_S = 2;
static const double SLACK_S = 15; /* a loaded machine; far below LONG_S */

/* What a process of a test does and sees, in memory that all of them share. */
typedef struct rank_state {
    pid_t process;
    atomic_int stage; /* 1: connected; 2: closed */
    atomic_int calls; /* of the callback */
    atomic_int lost, lost_by_poll;
    double lost_at;
    char sentence[CPL_ALIVE_SENTENCE];
    atomic_bool must_report, must_close;
} rank_state;

typedef struct world {
    char address[CPL_ALIVE_ADDRESS];
    atomic_int listens;
    rank_state rank[RANKS];
} world;

static world *w;

static void note_loss(void *ctx, int rank, const char *sentence)
{
    rank_state *me = ctx;
    me->lost_at    = cpl_seconds_now();
    snprintf(me->sentence, sizeof me->sentence, "%s", sentence);
    atomic_store(&me->lost, rank);
    atomic_fetch_add(&me->calls, 1);
}

static void nap(void)
{
    usleep(2000);
}

/* In a process of its own an assertion of cmocka would go on with the next test. */
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

/* Starts RANKS processes; rank 0 with its own timeout. */
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

static bool wait_for(atomic_int *what, int value, double most_s)
{
    const double until = cpl_seconds_now() + most_s;
    while (atomic_load(what) != value && cpl_seconds_now() < until) nap();
    return atomic_load(what) == value;
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

/* All ranks but `lost` learn within `most_s` that it is lost, by a sentence that contains `part`;
 * returns the time of the last one. */
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

/* The ranks that live close in the order 0, 1, ... or its reverse; nobody calls a second time. */
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

static void test_a_killed_rank_is_found_by_its_connection(void **state)
{
    (void)state;
    kill_rank(3, "was lost: its connection closed");
}

static void test_a_killed_rank_0_is_found_by_all(void **state)
{
    (void)state;
    kill_rank(0, "was lost: its connection closed");
}

/* After it continues, a stopped rank reads that it is the lost one. */
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

static void test_a_stopped_rank_is_found_by_its_silence(void **state)
{
    (void)state;
    stop_rank(5);
}

static void test_a_stopped_rank_0_is_found_by_all(void **state)
{
    (void)state;
    stop_rank(0);
}

/* The others are patient: only rank 0's own sleep is longer than its timeout. */
static void test_rank_0_reads_what_is_queued_before_it_judges(void **state)
{
    (void)state;
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

/* A scheduler suspends all processes and continues them one after the other: at first nothing is
 * queued for rank 0. */
static void test_a_suspended_run_goes_on(void **state)
{
    (void)state;
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

static void test_an_error_reaches_every_rank_once(void **state)
{
    (void)state;
    report_rank(4);
    report_rank(0);
}

static void test_farewells_in_any_order_are_no_loss(void **state)
{
    (void)state;
    for (int reverse = 0; reverse < 2; reverse++) {
        start_ranks(LONG_S, LONG_S);
        all_connected();
        double begun = cpl_seconds_now();
        end_ranks(reverse, 0);
        assert_true(cpl_seconds_now() - begun < SLACK_S);
    }
    start_ranks(LONG_S, LONG_S); /* all at once */
    all_connected();
    for (int r = 0; r < RANKS; r++) atomic_store(&w->rank[r].must_close, true);
    end_ranks(false, 0);
}

/* ---- one process ---- */

static int open_files(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static rank_state alone;

static rank_state *nobody_lost(void)
{
    memset(&alone, 0, sizeof alone);
    atomic_store(&alone.lost, -1);
    return &alone;
}

static void test_one_rank_loses_nothing(void **state)
{
    char address[CPL_ALIVE_ADDRESS] = "?";
    cpl_alive *alive                = NULL;
    (void)state;
    assert_ok(cpl_alive_listen(&alive, address, 1, 1, note_loss, nobody_lost()));
    assert_string_equal(address, "");
    assert_ok(cpl_alive_wait(alive));
    cpl_alive_report(alive, "nobody hears it");
    assert_int_equal(cpl_alive_lost(alive), -1);
    assert_string_equal(cpl_alive_sentence(alive), "");
    cpl_alive_close(alive);
    assert_int_equal(atomic_load(&alone.calls), 0);
    assert_int_equal(cpl_alive_lost(NULL), -1);
    assert_string_equal(cpl_alive_sentence(NULL), "");
    cpl_alive_report(NULL, "");
    cpl_alive_close(NULL);
}

static void test_missing_ranks_are_named(void **state)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive *zero = NULL, *two = NULL;
    (void)state;
    assert_ok(cpl_alive_listen(&zero, address, 4, SHORT_S, NULL, NULL));
    assert_ok(cpl_alive_connect(&two, address, 2, 4, SHORT_S, NULL, NULL));
    assert_fails(CPL_ERR_DEVICE, "ranks 1, 3 of 4 did not connect to rank 0 (host ",
                 cpl_alive_wait(zero));
    assert_non_null(strstr(cpl_last_error(), "within 2 seconds"));
    assert_int_equal(cpl_alive_lost(zero), -1);
    cpl_alive_close(two);
    cpl_alive_close(zero);
    assert_ok(cpl_alive_listen(&zero, address, 20, 0.1, NULL, NULL));
    assert_fails(CPL_ERR_DEVICE, "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more of 20",
                 cpl_alive_wait(zero));
    cpl_alive_close(zero);
}

static void test_a_loss_ends_the_wait(void **state)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive *zero = NULL, *two = NULL, *one = NULL;
    (void)state;
    assert_ok(cpl_alive_listen(&zero, address, 3, LONG_S, note_loss, nobody_lost()));
    assert_ok(cpl_alive_connect(&two, address, 2, 3, LONG_S, NULL, NULL));
    cpl_alive_report(two, "cannot read its data");
    double begun = cpl_seconds_now();
    assert_fails(CPL_ERR_DEVICE, "): cannot read its data", cpl_alive_wait(zero));
    assert_true(cpl_seconds_now() - begun < SLACK_S);
    /* who joins later learns it too */
    assert_ok(cpl_alive_connect(&one, address, 1, 3, LONG_S, NULL, NULL));
    for (double until = cpl_seconds_now() + SLACK_S;
         cpl_alive_lost(one) < 0 && cpl_seconds_now() < until;)
        nap();
    assert_int_equal(cpl_alive_lost(one), 2);
    assert_string_equal(cpl_alive_sentence(one), cpl_alive_sentence(zero));
    assert_true(wait_for(&alone.calls, 1, SLACK_S));
    cpl_alive_close(one);
    cpl_alive_close(two);
    cpl_alive_close(zero);
    assert_int_equal(atomic_load(&alone.calls), 1);
}

static void test_a_damaged_address_is_refused(void **state)
{
    char address[CPL_ALIVE_ADDRESS], damaged[CPL_ALIVE_ADDRESS];
    cpl_alive *zero = NULL, *one = NULL;
    (void)state;
    assert_ok(cpl_alive_listen(&zero, address, 2, LONG_S, NULL, NULL));
    for (size_t i = 0; i < strlen(address); i++)
        for (int kind = 0; kind < 3; kind++) {
            strcpy(damaged, address);
            if (kind == 0) damaged[i] = '\0';
            if (kind > 0) damaged[i] ^= kind == 1 ? 1 : 0x80;
            assert_fails(CPL_ERR_INPUT, "the address of rank 0 was damaged",
                         cpl_alive_connect(&one, damaged, 1, 2, LONG_S, NULL, NULL));
        }
    assert_ok(cpl_alive_connect(&one, address, 1, 2, LONG_S, NULL, NULL));
    cpl_alive_close(one);
    cpl_alive_close(zero);
    assert_fails(CPL_ERR_DEVICE, "rank 1 (host ",
                 cpl_alive_connect(&one, address, 1, 2, 0.5, NULL, NULL));
    assert_non_null(strstr(cpl_last_error(), "did not reach rank 0"));
}

/* The longest address there can be fits, and is read again as it was. */
static void test_a_long_address_fits(void **state)
{
    char text[CPL_ALIVE_ADDRESS];
    cpl_alive_address all, again;
    (void)state;
    assert_ok(cpl_alive_address_here(&all));
    all.port    = 65535;
    all.process = 4194304;
    memset(all.host, 'h', CPL_ALIVE_HOST);
    all.host[CPL_ALIVE_HOST] = '\0';
    for (all.count = 0; all.count < CPL_ALIVE_IPS; all.count++)
        snprintf(all.ip[all.count], sizeof all.ip[0],
                 "%04x:0000:0000:0000:0000:ffff:255.255.255.255", (unsigned)all.count);
    cpl_alive_address_write(text, sizeof text, &all);
    assert_ok(cpl_alive_address_read(&again, text));
    assert_string_equal(again.token, all.token);
    assert_string_equal(again.host, all.host);
    assert_int_equal(again.port, all.port);
    assert_int_equal(again.process, all.process);
    assert_int_equal(again.count, all.count);
    for (int i = 0; i < all.count; i++) assert_string_equal(again.ip[i], all.ip[i]);
}

static void test_allocations_may_fail(void **state)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive *zero = NULL, *one = NULL;
    const int64_t before = cpl_alloc_in_use();
    const int files      = open_files();
    (void)state;
    for (int n = 1; n <= 4; n++) {
        cpl_alloc_fail_at(n);
        assert_int_equal(cpl_alive_listen(&zero, address, 2, LONG_S, NULL, NULL), CPL_ERR_MEMORY);
    }
    cpl_alloc_fail_at(0);
    assert_ok(cpl_alive_listen(&zero, address, 2, LONG_S, NULL, NULL));
    for (int n = 1; n <= 4; n++) {
        cpl_alloc_fail_at(n);
        assert_int_equal(cpl_alive_connect(&one, address, 1, 2, LONG_S, NULL, NULL),
                         CPL_ERR_MEMORY);
    }
    cpl_alloc_fail_at(0);
    cpl_alive_close(zero);
    assert_int_equal(cpl_alloc_in_use(), before);
    assert_int_equal(open_files(), files);
}

/* ---- foreign connections ---- */

/* Whatever bytes come, a message is within its bounds or refused. */
static void test_random_bytes_are_messages_or_refused(void **state)
{
    static cpl_alive_link link;
    cpl_alive_message message;
    int taken = 0, refused = 0;
    (void)state;
    srand(1);
    for (int round = 0; round < 20000; round++) {
        int found   = 1;
        link.stage  = round % 2 ? CPL_ALIVE_FOREIGN : CPL_ALIVE_JOINED;
        link.n_in   = (size_t)rand() % (sizeof link.in + 1);
        size_t left = link.n_in;
        for (size_t i = 0; i < 24 && i < left; i++)
            link.in[i] = (char)(rand() % (i % 8 == 0 ? 8 : i % 8 == 3 ? 5 : 256));
        while ((found = cpl_alive_link_take(&link, &message)) > 0) {
            size_t used = left - link.n_in; /* more than there was: a huge number */
            assert_true(used >= CPL_ALIVE_HEADER);
            assert_true(used < CPL_ALIVE_HEADER + (round % 2 ? 129 : CPL_ALIVE_SENTENCE));
            assert_true(strlen(message.text) <= used - CPL_ALIVE_HEADER);
            left = link.n_in;
            taken++;
        }
        refused += found < 0;
        if (found < 0) assert_true(left >= CPL_ALIVE_HEADER);
        if (found == 0) assert_true(link.n_in < sizeof link.in); /* there is room for the rest */
    }
    assert_true(taken > 1000 && refused > 1000);
}

static int dial(const char *address)
{
    cpl_alive_address where;
    assert_ok(cpl_alive_address_read(&where, address));
    int fd = cpl_alive_address_dial(&where, 0, cpl_seconds_now() + SLACK_S);
    assert_true(fd >= 0);
    return fd;
}

/* Whether the other end closes within the time, whatever it sends before. */
static bool is_closed(int fd, double most_s)
{
    const double until = cpl_seconds_now() + most_s;
    char bytes[256];
    for (;;) {
        if (!cpl_alive_address_ready(fd, POLLIN, until)) return false;
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
    }
}

/* Sends one message on a connection of its own, which is returned. */
static int say(const char *address, cpl_alive_kind kind, int rank, const char *text)
{
    static cpl_alive_link link;
    cpl_alive_link_open(&link, dial(address));
    cpl_alive_link_push(&link, kind, rank, text);
    cpl_alive_link_flush(&link);
    return link.fd;
}

static void test_foreign_messages_are_dropped_at_once(void **state)
{
    static const char GARBAGE[][20] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01",
                                       "\x01\x01\xff\xff\x01", "\x04\x01\x01\x00\x01"};
    char address[CPL_ALIVE_ADDRESS], hello[256];
    cpl_alive_address where;
    cpl_alive *zero = NULL, *one = NULL;
    int fds[8], n                = 0;
    (void)state;
    assert_ok(cpl_alive_listen(&zero, address, 3, LONG_S, note_loss, nobody_lost()));
    assert_ok(cpl_alive_address_read(&where, address));
    assert_ok(cpl_alive_connect(&one, address, 1, 3, LONG_S, NULL, NULL));
    for (size_t i = 0; i < sizeof GARBAGE / sizeof *GARBAGE; i++) {
        fds[n] = dial(address);
        assert_true(send(fds[n++], GARBAGE[i], sizeof GARBAGE[i], MSG_NOSIGNAL) > 0);
    }
    fds[n++] = say(address, CPL_ALIVE_HELLO, 2, "0123456789abcdef 1 host");
    fds[n++] = say(address, CPL_ALIVE_JOIN, 2, "");
    fds[n++] = say(address, CPL_ALIVE_LOSS, 1, "a forged loss");
    snprintf(hello, sizeof hello, "%.16s 1 host", where.token);
    fds[n++] = say(address, CPL_ALIVE_HELLO, 3, hello); /* no such rank */
    for (int i = 0; i < n; i++) {
        if (!is_closed(fds[i], 4))
            fail_msg("foreign connection %d stays", i); /* < 5 s: not by age */
        close(fds[i]);
    }
    /* a second rank 1, which even has the token: never joins, and rank 1 is not disturbed */
    int second        = say(address, CPL_ALIVE_HELLO, 1, hello);
    const char join[] = {CPL_ALIVE_JOIN, 0, 0, 0, 1, 0, 0, 0};
    assert_int_equal(send(second, join, sizeof join, MSG_NOSIGNAL), sizeof join);
    assert_true(is_closed(second, 4));
    close(second);
    assert_int_equal(cpl_alive_lost(zero), -1);
    assert_int_equal(cpl_alive_lost(one), -1);
    cpl_alive_close(one);
    cpl_alive_close(zero);
    assert_int_equal(atomic_load(&alone.calls), 0);
}

typedef struct stranger {
    int listener;
    atomic_int accepted;
} stranger;

/* Answers every connection with a welcome that has the wrong half of the token. */
static void *welcome_all(void *state)
{
    stranger *me = state;
    static cpl_alive_link link;
    int fd;
    while (cpl_alive_address_ready(me->listener, POLLIN, cpl_seconds_now() + 2)) {
        if ((fd = accept(me->listener, NULL, NULL)) < 0) continue;
        atomic_fetch_add(&me->accepted, 1);
        cpl_alive_link_open(&link, fd);
        cpl_alive_link_push(&link, CPL_ALIVE_WELCOME, 0, "0123456789abcdef");
        cpl_alive_link_flush(&link);
        (void)is_closed(fd, SLACK_S);
        close(fd);
    }
    return NULL;
}

static void test_a_stranger_is_not_taken_for_rank_0(void **state)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive_address where;
    cpl_alive *one = NULL;
    stranger other = {0};
    pthread_t thread;
    (void)state;
    assert_ok(cpl_alive_address_here(&where));
    other.listener = cpl_alive_address_listen(&where);
    assert_true(other.listener >= 0);
    cpl_alive_address_write(address, sizeof address, &where);
    assert_fails(CPL_ERR_DEVICE, "did not reach rank 0", /* it is silent at first */
                 cpl_alive_connect(&one, address, 1, 2, 0.3, NULL, NULL));
    assert_int_equal(pthread_create(&thread, NULL, welcome_all, &other), 0);
    assert_fails(CPL_ERR_DEVICE, "did not reach rank 0",
                 cpl_alive_connect(&one, address, 1, 2, 1, NULL, NULL));
    assert_true(atomic_load(&other.accepted) > 0);
    pthread_join(thread, NULL);
    close(other.listener);
}

/* A socket that listens on this IPv4 address and port (0: any); the port is set. */
static int listen_on(const char *ip, int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t bytes       = sizeof at;
    int fd                = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, ip, &at.sin_addr), 1);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* Of the addresses of rank 0 one is silent: the next one is tried within the timeout. */
static void test_a_silent_address_leaves_time_for_the_next(void **state)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive_address where;
    cpl_alive *one = NULL;
    (void)state;
    assert_ok(cpl_alive_address_here(&where));
    int silent = listen_on("127.0.0.2", &where.port), next = listen_on("127.0.0.3", &where.port);
    where.count = 2;
    strcpy(where.ip[0], "127.0.0.2");
    strcpy(where.ip[1], "127.0.0.3");
    cpl_alive_address_write(address, sizeof address, &where);
    assert_fails(CPL_ERR_DEVICE, "127.0.0.2 127.0.0.3",
                 cpl_alive_connect(&one, address, 1, 2, 1, NULL, NULL));
    assert_true(cpl_alive_address_ready(next, POLLIN, cpl_seconds_now()));
    close(silent);
    close(next);
}

/* Silent and half-spoken connections, more than rank 0 holds; and handshakes given up halfway. */
static void test_silent_connections_do_not_disturb(void **state)
{
    enum { SILENT = 200 };
    char address[CPL_ALIVE_ADDRESS], hello[256];
    cpl_alive_address where;
    cpl_alive *zero = NULL, *ranks[3] = {NULL};
    int fds[SILENT], closed           = 0;
    (void)state;
    assert_ok(cpl_alive_listen(&zero, address, 4, 20, note_loss, nobody_lost()));
    assert_ok(cpl_alive_address_read(&where, address));
    snprintf(hello, sizeof hello, "%.16s 1 host", where.token);
    for (int i = 0; i < SILENT; i++) {
        fds[i] = dial(address);
        if (i % 3 == 1) assert_int_equal(send(fds[i], "\x01\x00\x20", 3, MSG_NOSIGNAL), 3);
        if (i % 20 == 0) close(say(address, CPL_ALIVE_HELLO, 2, hello));
    }
    int halfway  = say(address, CPL_ALIVE_HELLO, 3, hello); /* welcome, but does not join */
    double begun = cpl_seconds_now();
    for (int r = 1; r < 3; r++)
        assert_ok(cpl_alive_connect(&ranks[r - 1], address, r, 4, 20, NULL, NULL));
    assert_true(cpl_seconds_now() - begun < 4); /* before the silent ones are too old */
    for (int i = 0; i < SILENT; i++)
        closed += is_closed(fds[i], fmax(0, begun + SLACK_S - cpl_seconds_now()));
    assert_int_equal(closed, SILENT); /* while rank 3 is awaited still: by number or by age */
    assert_true(is_closed(halfway, SLACK_S));
    assert_ok(cpl_alive_connect(&ranks[2], address, 3, 4, 20, NULL, NULL));
    assert_ok(cpl_alive_wait(zero));
    assert_int_equal(cpl_alive_lost(zero), -1);
    for (int i = 0; i < SILENT; i++) close(fds[i]);
    close(halfway);
    usleep(200000);
    cpl_alive_address none = where;
    assert_int_equal(cpl_alive_address_dial(&none, 0, cpl_seconds_now() + 5), -1);
    for (int r = 0; r < 3; r++) cpl_alive_close(ranks[r]);
    cpl_alive_close(zero);
    assert_int_equal(atomic_load(&alone.calls), 0);
}

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
    bool unblocked; /* whether the thread that made it has its signals as before */
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

static void test_64_ranks_as_threads(void **state)
{
    static crowd all;
    static crowd_rank ranks[MANY];
    pthread_t threads[MANY];
    const int files = open_files();
    (void)state;
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

/* Until this rank knows of those that are late what it should: "" or a part of their names. */
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

static void test_late_ranks_are_named(void **state)
{
    char names[CPL_ALIVE_NAMES];
    join r[3];
    (void)state;
    cpl_alive_late(NULL, names);
    assert_string_equal(names, "");
    join_all(r);
    cpl_alive_late(r[0].alive, names);
    assert_string_equal(names, ""); /* nobody has begun anything */
    cpl_alive_count(r[0].alive);
    wait_for_late(r[0].alive, ", rank ");
    cpl_alive_count(r[1].alive); /* rank 2 is late; rank 1 sees only rank 0, which is not */
    wait_for_late(r[1].alive, "");
    const double until = cpl_seconds_now() + LONG_S;
    do cpl_alive_late(r[0].alive, names);
    while (strstr(names, "rank 1 ") && cpl_seconds_now() < until);
    assert_non_null(strstr(names, "rank 2 (host "));
    assert_null(strstr(names, "rank 1 "));
    cpl_alive_count(r[2].alive);
    wait_for_late(r[0].alive, "");
    for (int i = 0; i < 9; i++) cpl_alive_count(r[2].alive); /* more are no less */
    cpl_alive_count_anew(r[0].alive);                        /* but here only rank 0 is */
    wait_for_late(r[0].alive, ", rank ");
    for (int i = 1; i < 3; i++) cpl_alive_count_anew(r[i].alive);
    wait_for_late(r[0].alive, "");
    cpl_alive_count_anew(r[1].alive); /* now rank 0 is late */
    wait_for_late(r[1].alive, "rank 0 (host ");
    close_all(r);
}

/* All are in the same collective; ranks 0 and 1 look whether it is complete, rank 2 hangs in it: for
 * several heartbeats, which each report that rank 1 has looked again. */
static void test_a_rank_that_hangs_in_a_collective_is_named(void **state)
{
    enum { BEATS_S = 4 };
    const double until          = cpl_seconds_now() + LONG_S;
    double named                = cpl_seconds_now();
    char names[CPL_ALIVE_NAMES] = "";
    join r[3];
    (void)state;
    join_all(r);
    for (int i = 0; i < 3; i++) cpl_alive_count(r[i].alive);
    wait_for_late(r[0].alive, "");
    while (cpl_seconds_now() < named + BEATS_S) {
        assert_true(cpl_seconds_now() < until);
        if (!strstr(names, "rank 2 (host ") || strstr(names, "rank 1 (host "))
            named = cpl_seconds_now(); /* not yet, or wrong */
        for (int i = 0; i < 2; i++) cpl_alive_wait_on(r[i].alive);
        cpl_alive_late(r[0].alive, names);
        nap();
    }
    close_all(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_killed_rank_is_found_by_its_connection),
        cmocka_unit_test(test_a_killed_rank_0_is_found_by_all),
        cmocka_unit_test(test_a_stopped_rank_is_found_by_its_silence),
        cmocka_unit_test(test_a_stopped_rank_0_is_found_by_all),
        cmocka_unit_test(test_rank_0_reads_what_is_queued_before_it_judges),
        cmocka_unit_test(test_a_suspended_run_goes_on),
        cmocka_unit_test(test_an_error_reaches_every_rank_once),
        cmocka_unit_test(test_farewells_in_any_order_are_no_loss),
        cmocka_unit_test(test_one_rank_loses_nothing),
        cmocka_unit_test(test_missing_ranks_are_named),
        cmocka_unit_test(test_a_loss_ends_the_wait),
        cmocka_unit_test(test_a_damaged_address_is_refused),
        cmocka_unit_test(test_a_long_address_fits),
        cmocka_unit_test(test_allocations_may_fail),
        cmocka_unit_test(test_random_bytes_are_messages_or_refused),
        cmocka_unit_test(test_foreign_messages_are_dropped_at_once),
        cmocka_unit_test(test_a_stranger_is_not_taken_for_rank_0),
        cmocka_unit_test(test_a_silent_address_leaves_time_for_the_next),
        cmocka_unit_test(test_silent_connections_do_not_disturb),
        cmocka_unit_test(test_64_ranks_as_threads),
        cmocka_unit_test(test_late_ranks_are_named),
        cmocka_unit_test(test_a_rank_that_hangs_in_a_collective_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
