/* test_alive_connections.c - connections of ranks within one process: missing ranks, addresses,
 * allocations that fail, and connections from other programs. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "alive_case.h"
#include "base/arena.h"

static rank_state alone;

static rank_state *nobody_lost(void)
{
    memset(&alone, 0, sizeof alone);
    atomic_store(&alone.lost, -1);
    return &alone;
}

TEST(test_one_rank_loses_nothing)
{
    char address[CPL_ALIVE_ADDRESS] = "?";
    cpl_alive *alive                = NULL;
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

TEST(test_missing_ranks_are_named)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive *zero = NULL, *two = NULL;
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

TEST(test_a_loss_ends_the_wait)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive *zero = NULL, *two = NULL, *one = NULL;
    assert_ok(cpl_alive_listen(&zero, address, 3, LONG_S, note_loss, nobody_lost()));
    assert_ok(cpl_alive_connect(&two, address, 2, 3, LONG_S, NULL, NULL));
    cpl_alive_report(two, "cannot read its data");
    double begun = cpl_seconds_now();
    assert_fails(CPL_ERR_DEVICE, "): cannot read its data", cpl_alive_wait(zero));
    assert_true(cpl_seconds_now() - begun < SLACK_S);
    /* A rank that joins later learns it too. */
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

TEST(test_a_damaged_address_is_refused)
{
    char address[CPL_ALIVE_ADDRESS], damaged[CPL_ALIVE_ADDRESS];
    cpl_alive *zero = NULL, *one = NULL;
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

/* The longest possible address fits, and is read back unchanged. */
TEST(test_a_long_address_fits)
{
    char text[CPL_ALIVE_ADDRESS];
    cpl_alive_address all, again;
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

TEST(test_allocations_may_fail)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive *zero = NULL, *one = NULL;
    const int64_t before = cpl_alloc_in_use();
    const int files      = open_files();
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

/* For any bytes, a message is within its bounds or refused. */
TEST(test_random_bytes_are_messages_or_refused)
{
    static cpl_alive_link link;
    cpl_alive_message message;
    int taken = 0, refused = 0;
    srand(1);
    for (int round = 0; round < 20000; round++) {
        int found   = 1;
        link.stage  = round % 2 ? CPL_ALIVE_FOREIGN : CPL_ALIVE_JOINED;
        link.n_in   = (size_t)rand() % (sizeof link.in + 1);
        size_t left = link.n_in;
        for (size_t i = 0; i < 24 && i < left; i++)
            link.in[i] = (char)(rand() % (i % 8 == 0 ? 8 : i % 8 == 3 ? 5 : 256));
        while ((found = cpl_alive_link_take(&link, &message)) > 0) {
            size_t used = left - link.n_in; /* more than before: a huge number */
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

/* Returns whether the other end closes within the time, whatever it sends before. */
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

/* Sends one message on a connection of its own, and returns the connection. */
static int say(const char *address, cpl_alive_kind kind, int rank, const char *text)
{
    static cpl_alive_link link;
    cpl_alive_link_open(&link, dial(address));
    cpl_alive_link_push(&link, kind, rank, text);
    cpl_alive_link_flush(&link);
    return link.fd;
}

TEST(test_foreign_messages_are_dropped_at_once)
{
    static const char GARBAGE[][20] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01",
                                       "\x01\x01\xff\xff\x01", "\x04\x01\x01\x00\x01"};
    char address[CPL_ALIVE_ADDRESS], hello[256];
    cpl_alive_address where;
    cpl_alive *zero = NULL, *one = NULL;
    int fds[8], n                = 0;
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
    fds[n++] = say(address, CPL_ALIVE_HELLO, 3, hello); /* a rank outside of the run */
    for (int i = 0; i < n; i++) {
        if (!is_closed(fds[i], 4))
            fail_msg("foreign connection %d stays", i); /* < 5 s: not by age */
        close(fds[i]);
    }
    /* A second rank 1, even with the token, never joins, and rank 1 is not disturbed. */
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

TEST(test_a_stranger_is_not_taken_for_rank_0)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive_address where;
    cpl_alive *one = NULL;
    stranger other = {0};
    pthread_t thread;
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

/* Returns a socket that listens on this IPv4 address and port (0: any), and sets the port. */
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

/* One address of rank 0 is silent: the next address is tried within the timeout. */
TEST(test_a_silent_address_leaves_time_for_the_next)
{
    char address[CPL_ALIVE_ADDRESS];
    cpl_alive_address where;
    cpl_alive *one = NULL;
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

/* Tests silent and half-spoken connections, more than rank 0 holds, and broken handshakes. */
TEST(test_silent_connections_do_not_disturb)
{
    enum { SILENT = 200 };
    char address[CPL_ALIVE_ADDRESS], hello[256];
    cpl_alive_address where;
    cpl_alive *zero = NULL, *ranks[3] = {NULL};
    int fds[SILENT], closed           = 0;
    assert_ok(cpl_alive_listen(&zero, address, 4, 20, note_loss, nobody_lost()));
    assert_ok(cpl_alive_address_read(&where, address));
    snprintf(hello, sizeof hello, "%.16s 1 host", where.token);
    for (int i = 0; i < SILENT; i++) {
        fds[i] = dial(address);
        if (i % 3 == 1) assert_int_equal(send(fds[i], "\x01\x00\x20", 3, MSG_NOSIGNAL), 3);
        if (i % 20 == 0) close(say(address, CPL_ALIVE_HELLO, 2, hello));
    }
    int halfway  = say(address, CPL_ALIVE_HELLO, 3, hello); /* welcomed, but does not join */
    double begun = cpl_seconds_now();
    for (int r = 1; r < 3; r++)
        assert_ok(cpl_alive_connect(&ranks[r - 1], address, r, 4, 20, NULL, NULL));
    assert_true(cpl_seconds_now() - begun < 4); /* before the silent ones are too old */
    for (int i = 0; i < SILENT; i++)
        closed += is_closed(fds[i], fmax(0, begun + SLACK_S - cpl_seconds_now()));
    assert_int_equal(closed, SILENT); /* while rank 3 is still awaited: by number or by age */
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
