/* small_server.h - a web server in this process: the files of one folder, with ranges, ETags and
 * kept connections. It is for tests of code that reads from a server. Its only faults are stalls
 * and slow bodies, which tests switch on. */
#ifndef CPL_TESTS_REMOTE_SMALL_SERVER_H
#define CPL_TESTS_REMOTE_SMALL_SERVER_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "check.h"

typedef struct small_server {
    int listener;
    char folder[256], url[64];
    pthread_t thread;
    atomic_int n_requests, n_open; /* connections */
    atomic_uint etag;              /* the tag of all files; 0: a weak one, which does not count */
    atomic_int n_stalls; /* number of coming answers of which only `stall_after` bytes are sent */
    int stall_after;     /* bytes of the body; -1: the header is not sent either */
    atomic_bool is_slow; /* bodies come at 2,000 bytes per second */
} small_server;

static small_server the_server;

static bool send_all(int to, const void *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        const ssize_t n = send(to, (const char *)bytes + done, length - done, MSG_NOSIGNAL);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool send_body(int to, const char *bytes, uint64_t length)
{
    const uint64_t piece = the_server.is_slow ? 100 : length + 1;
    for (uint64_t at = 0; at < length; at += piece) {
        if (!send_all(to, bytes + at, length - at < piece ? length - at : piece)) return false;
        if (the_server.is_slow) usleep(50000);
    }
    return true;
}

static bool send_file(int to, const char *name, uint64_t begin, uint64_t end, bool ranged)
{
    char path[512], head[512];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", the_server.folder, name);
    const int file = strchr(name, '/') ? -1 : open(path, O_RDONLY);
    if (file < 0 || fstat(file, &info) != 0) {
        static const char none[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        return send_all(to, none, sizeof none - 1);
    }
    const uint64_t length = (uint64_t)info.st_size;
    if (!ranged) begin = 0;
    if (!ranged || end > length) end = length;
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\nETag: %s\"%u\"\r\nContent-Length: %" PRIu64 "\r\n",
                     ranged ? "206 Partial Content" : "200 OK", the_server.etag ? "" : "W/",
                     the_server.etag, end - begin);
    if (ranged)
        n += snprintf(head + n, sizeof head - (size_t)n,
                      "Content-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n", begin,
                      end - 1, length);
    n += snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    char *bytes         = malloc(end - begin + 1);
    const bool read_all = pread(file, bytes, end - begin, (off_t)begin) == (ssize_t)(end - begin);
    close(file);
    const bool stalls = the_server.n_stalls > 0 && the_server.n_stalls-- > 0;
    uint64_t n_sent   = end - begin;
    if (stalls) n_sent = the_server.stall_after < 0 ? 0 : (uint64_t)the_server.stall_after;
    const bool silent = stalls && the_server.stall_after < 0;
    const bool sent =
        read_all && (silent || send_all(to, head, (size_t)n)) && send_body(to, bytes, n_sent);
    free(bytes);
    if (stalls) (void)!recv(to, head, 1, 0); /* until the client gives up */
    return sent && !stalls;
}

/* Serves one request after the other. Each fits into the buffer. */
static void *serve_one(void *ctx)
{
    const int to = (int)(intptr_t)ctx;
    char text[4096], name[256];
    size_t held  = 0;
    bool goes_on = true;
    while (goes_on) {
        const ssize_t n = recv(to, text + held, sizeof text - 1 - held, 0);
        if (n <= 0) break;
        held += (size_t)n;
        text[held]       = '\0';
        const char *last = strstr(text, "\r\n\r\n");
        if (!last) continue;
        uint64_t begin = 0, end = 0;
        const char *range = strstr(text, "Range: bytes=");
        const bool ranged =
            range && sscanf(range, "Range: bytes=%" SCNu64 "-%" SCNu64, &begin, &end) == 2;
        the_server.n_requests++;
        goes_on =
            sscanf(text, "GET /%255s ", name) == 1 && send_file(to, name, begin, end + 1, ranged);
        held = 0; /* our clients wait for the answer before they send the next request */
    }
    close(to);
    the_server.n_open--;
    return NULL;
}

static void *serve(void *ctx)
{
    int one = 1, to;
    (void)ctx;
    while ((to = accept(the_server.listener, NULL, NULL)) >= 0) {
        pthread_t thread;
        setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        the_server.n_open++;
        if (pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)to) == 0)
            pthread_detach(thread);
    }
    return NULL;
}

/* Starts to serve the folder and returns the URL. */
static inline const char *server_start(const char *folder)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size        = sizeof at;
    snprintf(the_server.folder, sizeof the_server.folder, "%s", folder);
    the_server.etag = 1;
    if (the_server.url[0]) return the_server.url;
    the_server.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(the_server.listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(the_server.listener, 64), 0);
    assert_int_equal(getsockname(the_server.listener, (struct sockaddr *)&at, &size), 0);
    snprintf(the_server.url, sizeof the_server.url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&the_server.thread, NULL, serve, NULL), 0);
    return the_server.url;
}

/* Ends the server, and waits a while for its connections. */
static inline int server_stop(void **state)
{
    (void)state;
    shutdown(the_server.listener, SHUT_RDWR);
    pthread_join(the_server.thread, NULL);
    close(the_server.listener);
    for (int i = 0; the_server.n_open && i < 2000; i++)
        usleep(1000); /* a failed test leaves some open */
    return 0;
}
TESTS_DO(after_all, server_stop);

#endif /* CPL_TESTS_REMOTE_SMALL_SERVER_H */
