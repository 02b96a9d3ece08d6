/* alive_address.c - see internal.h */
#include "parallel/internal.h"

#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

static const char MARK[] = "couplet-alive-1";

void cpl_alive_address_self(cpl_alive_address *address)
{
    char *c = address->host;
    if (gethostname(address->host, sizeof address->host) != 0 || !*c) strcpy(c, "unknown");
    address->host[CPL_ALIVE_HOST] = '\0';
    for (; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr(".-_", *c)) *c = '_';
    address->process = (long)getpid();
}

/* Returns whether other hosts may reach this address. */
static bool is_public(const struct ifaddrs *one)
{
    if (!one->ifa_addr || !(one->ifa_flags & IFF_UP) || (one->ifa_flags & IFF_LOOPBACK))
        return false;
    if (one->ifa_addr->sa_family == AF_INET) return true;
    return one->ifa_addr->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(void *)one->ifa_addr)->sin6_addr);
}

static cpl_status list_interfaces(cpl_alive_address *address)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return CPL_FAIL(CPL_ERR_IO, "the network addresses of this host: %s", strerror(errno));
    for (struct ifaddrs *one = all; one && address->count < CPL_ALIVE_IPS; one = one->ifa_next) {
        if (!is_public(one)) continue;
        socklen_t bytes = one->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                              : sizeof(struct sockaddr_in6);
        if (getnameinfo(one->ifa_addr, bytes, address->ip[address->count], CPL_ALIVE_IP + 1, NULL,
                        0, NI_NUMERICHOST) == 0)
            address->count++;
    }
    freeifaddrs(all);
    return CPL_OK;
}

cpl_status cpl_alive_address_here(cpl_alive_address *address)
{
    unsigned char random[CPL_ALIVE_TOKEN / 2];
    memset(address, 0, sizeof *address);
    cpl_alive_address_self(address);
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return CPL_FAIL(CPL_ERR_IO, "random bytes of the system: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(address->token + 2 * i, 3, "%02x", random[i]);
    return list_interfaces(address);
}

static void close_keeping_errno(int fd)
{
    int error = errno;
    close(fd);
    errno = error;
}

/* Returns the checksum FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/. */
static uint32_t checksum(const char *text)
{
    uint32_t hash = 2166136261u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

void cpl_alive_address_write(char *text, size_t bytes, const cpl_alive_address *address)
{
    char *body    = text + 9; /* text after eight digits of the checksum and a space */
    size_t room   = bytes - 9;
    size_t length = (size_t)snprintf(body, room, "%s %s %d %ld %s", MARK, address->token,
                                     address->port, address->process, address->host);
    for (int i = 0; i < address->count && length < room; i++)
        length += (size_t)snprintf(body + length, room - length, " %s", address->ip[i]);
    CPL_ASSERT(length < room);
    snprintf(text, 9, "%08x", checksum(body));
    text[8] = ' ';
}

static void add_ip(cpl_alive_address *address, const char *ip)
{
    snprintf(address->ip[address->count++], CPL_ALIVE_IP + 1, "%s", ip);
}

cpl_status cpl_alive_address_read(cpl_alive_address *address, const char *text)
{
    char mark[sizeof MARK], sum[10], ip[CPL_ALIVE_IP + 1];
    int used = 0, more = 0;
    cpl_alive_address self;
    memset(address, 0, sizeof *address);
    if (strnlen(text, 10) == 10) snprintf(sum, sizeof sum, "%08x ", checksum(text + 9));
    if (strnlen(text, 10) < 10 || memcmp(text, sum, 9) != 0 ||
        sscanf(text + 9, "%15s %32s %5d %18ld %64s%n", mark, address->token, &address->port,
               &address->process, address->host, &used) != 5 ||
        strcmp(mark, MARK) != 0 || strlen(address->token) != CPL_ALIVE_TOKEN || address->port < 1 ||
        address->port > 65535)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "the address of rank 0 was damaged or comes from another version: \"%.80s\"", text);
    cpl_alive_address_self(&self);
    if (strcmp(self.host, address->host) == 0) {
        add_ip(address, "127.0.0.1");
        add_ip(address, "::1");
    }
    for (const char *rest = text + 9 + used;
         address->count < CPL_ALIVE_IPS + 2 && sscanf(rest, " %45s%n", ip, &more) == 1;
         rest += more)
        add_ip(address, ip);
    return CPL_OK;
}

/* Returns a socket of `family` bound to any address and a free port, or -1. */
static int bind_anywhere(int family)
{
    const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}};
    const int no                  = 0;
    int fd                        = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (family == AF_INET ? bind(fd, (const struct sockaddr *)&four, sizeof four) == 0
                          : setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0 &&
                                bind(fd, (const struct sockaddr *)&six, sizeof six) == 0)
        return fd;
    close_keeping_errno(fd);
    return -1;
}

int cpl_alive_address_listen(cpl_alive_address *address)
{
    struct sockaddr_in6 bound;
    socklen_t bytes = sizeof bound;
    int fd          = bind_anywhere(AF_INET6);
    if (fd < 0) fd = bind_anywhere(AF_INET);
    if (fd < 0) return -1;
    if (listen(fd, SOMAXCONN) != 0 || getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0) {
        close_keeping_errno(fd);
        return -1;
    }
    address->port = ntohs(bound.sin6_port); /* the port has the same offset for IPv4 */
    return fd;
}

bool cpl_alive_address_ready(int fd, short events, double until)
{
    struct pollfd one = {.fd = fd, .events = events};
    for (;;) {
        double left = until - cpl_seconds_now();
        int found   = poll(&one, 1, left > 0 ? (int)ceil(1e3 * left) : 0);
        if (found > 0) return true;
        if (left <= 0 || (found < 0 && errno != EINTR)) return false;
    }
}

/* Waits until the connection is made, at most until the time `until`. Otherwise returns false, with
 * errno. */
static bool connects(int fd, const struct addrinfo *to, double until)
{
    int error       = 0;
    socklen_t bytes = sizeof error;
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) return true;
    if (errno != EINPROGRESS) return false;
    if (!cpl_alive_address_ready(fd, POLLOUT, until))
        error = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    errno = error;
    return error == 0;
}

int cpl_alive_address_dial(const cpl_alive_address *address, int which, double until)
{
    struct addrinfo *to   = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags    = AI_NUMERICHOST | AI_NUMERICSERV};
    char port[8];
    snprintf(port, sizeof port, "%d", address->port);
    if (getaddrinfo(address->ip[which], port, &hints, &to) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connects(fd, to, until)) {
        close_keeping_errno(fd);
        fd = -1;
    }
    freeaddrinfo(to);
    return fd;
}
