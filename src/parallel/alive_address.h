/* alive_address.h - where rank 0 listens for heartbeats, as a text; connecting to it.
 *
 * Room:  parallel. */
#ifndef CPL_PARALLEL_ALIVE_ADDRESS_H
#define CPL_PARALLEL_ALIVE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum {
    CPL_ALIVE_TOKEN = 32, /* hexadecimal digits: ranks show the first half, rank 0 the second */
    CPL_ALIVE_HOST  = 64, /* bytes of a host's name */
    CPL_ALIVE_IP    = 45, /* bytes of a numeric address */
    CPL_ALIVE_IPS   = 14, /* addresses of a host; more are left out */
};

typedef struct cpl_alive_address {
    char token[CPL_ALIVE_TOKEN + 1];
    int port;
    long process;
    char host[CPL_ALIVE_HOST + 1];
    char ip[CPL_ALIVE_IPS + 2][CPL_ALIVE_IP + 1]; /* two more for loopback */
    int count;
} cpl_alive_address;

/* Sets host and process to those of the caller. A byte of the host's name that is not a letter,
 * digit, '.', '-' or '_' becomes '_'. */
void cpl_alive_address_self(cpl_alive_address *address);

/* Sets all but the port: host and process as above, a random token, and the addresses of all
 * interfaces that are up, without loopback and IPv6 link-local ones. CPL_ERR_IO if the system gives
 * no random bytes or no list of interfaces. */
CPL_NODISCARD cpl_status cpl_alive_address_here(cpl_alive_address *address);

/* Writes `address` with a checksum to `text`, which has room for `bytes`, the NUL included
 * (assert). */
void cpl_alive_address_write(char *text, size_t bytes, const cpl_alive_address *address);

/* Sets `address` from a text that may have any content. If the caller runs on the host of the text,
 * loopback addresses come first. CPL_ERR_INPUT if the checksum or the form is wrong. */
CPL_NODISCARD cpl_status cpl_alive_address_read(cpl_alive_address *address, const char *text);

/* A non-blocking socket that listens on all interfaces, for IPv6 and IPv4, or for IPv4 where the
 * system has no IPv6; -1 with errno if there is none. Sets the port. Owned by the caller. */
int cpl_alive_address_listen(cpl_alive_address *address);

/* Waits until `fd` is ready for `events` of poll(2). False if it was not before the time `until`
 * (seconds, as cpl_seconds_now). */
bool cpl_alive_address_ready(int fd, short events, double until);

/* A connected, non-blocking socket to ip[which]; -1 with errno if it is not connected before the
 * time `until` (seconds, as cpl_seconds_now). Owned by the caller. */
int cpl_alive_address_dial(const cpl_alive_address *address, int which, double until);

#endif /* CPL_PARALLEL_ALIVE_ADDRESS_H */
