/* alive_link.c - see internal.h */
#include "parallel/internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum { HELLO_MOST = 128 }; /* limit of the text from a connection without the token */

void cpl_alive_link_open(cpl_alive_link *link, int fd)
{
    int yes = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    link->fd    = fd;
    link->stage = CPL_ALIVE_FOREIGN;
    link->since = link->heard = cpl_seconds_now();
    link->n_in = link->n_out = 0;
}

void cpl_alive_link_close(cpl_alive_link *link)
{
    if (link->fd >= 0) close(link->fd);
    link->fd = -1;
}

void cpl_alive_link_push(cpl_alive_link *link, cpl_alive_kind kind, int rank, const char *text)
{
    size_t length    = strnlen(text, CPL_ALIVE_SENTENCE - 1);
    uint32_t number  = (uint32_t)rank;
    const char all[] = {(char)kind,           0,
                        (char)length,         (char)(length >> 8),
                        (char)number,         (char)(number >> 8),
                        (char)(number >> 16), (char)(number >> 24)};
    CPL_ASSERT(link->n_out + sizeof all + length <= sizeof link->out);
    memcpy(link->out + link->n_out, all, sizeof all);
    memcpy(link->out + link->n_out + sizeof all, text, length);
    link->n_out += sizeof all + length;
}

void cpl_alive_link_flush(cpl_alive_link *link)
{
    while (link->fd >= 0 && link->n_out > 0) {
        ssize_t sent = send(link->fd, link->out, link->n_out, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return;
        if (sent < 0) sent = (ssize_t)link->n_out; /* the other end is closed */
        link->n_out -= (size_t)sent;
        memmove(link->out, link->out + sent, link->n_out);
    }
}

bool cpl_alive_link_fill(cpl_alive_link *link)
{
    ssize_t got = recv(link->fd, link->in + link->n_in, sizeof link->in - link->n_in, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    link->heard = cpl_seconds_now();
    link->n_in += (size_t)got;
    return true;
}

int cpl_alive_link_take(cpl_alive_link *link, cpl_alive_message *message)
{
    const unsigned char *in = (const unsigned char *)link->in;
    if (link->n_in < CPL_ALIVE_HEADER) return 0;
    size_t length = in[2] | (size_t)in[3] << 8;
    size_t most   = link->stage == CPL_ALIVE_FOREIGN ? HELLO_MOST : CPL_ALIVE_SENTENCE - 1;
    if (in[0] < CPL_ALIVE_HELLO || in[0] > CPL_ALIVE_FAREWELL || length > most) return -1;
    if (link->n_in < CPL_ALIVE_HEADER + length) return 0;
    message->kind = (cpl_alive_kind)in[0];
    message->rank =
        (int)(in[4] | (uint32_t)in[5] << 8 | (uint32_t)in[6] << 16 | (uint32_t)in[7] << 24);
    memcpy(message->text, link->in + CPL_ALIVE_HEADER, length);
    message->text[length] = '\0';
    link->n_in -= CPL_ALIVE_HEADER + length;
    memmove(link->in, link->in + CPL_ALIVE_HEADER + length, link->n_in);
    return 1;
}
