/* alive_link.h - one connection between rank 0 and another rank, and the messages on it.
 *
 * Room:  parallel.
 * Shape: a message is its kind (1 byte), 0 (1 byte), length of its text (2 bytes), rank (4 bytes),
 *        both little-endian, and the text without a NUL. */
#ifndef CPL_PARALLEL_ALIVE_LINK_H
#define CPL_PARALLEL_ALIVE_LINK_H

#include <stdbool.h>
#include <stddef.h>

#include "parallel/alive_address.h"

enum { CPL_ALIVE_HEADER = 8, CPL_ALIVE_SENTENCE = 1024 };

typedef enum cpl_alive_kind {
    CPL_ALIVE_HELLO = 1, /* to rank 0: rank; half of the token, process, host */
    CPL_ALIVE_WELCOME,   /* the answer: the other half of the token */
    CPL_ALIVE_JOIN,      /* to rank 0: this connection is the one that stays */
    CPL_ALIVE_BEAT,      /* the sender lives */
    CPL_ALIVE_LOSS,      /* rank; the sentence of its loss */
    CPL_ALIVE_FAREWELL,  /* the sender leaves in good order */
} cpl_alive_kind;

typedef struct cpl_alive_message {
    cpl_alive_kind kind;
    int rank;
    char text[CPL_ALIVE_SENTENCE]; /* NUL-terminated */
} cpl_alive_message;

typedef enum cpl_alive_stage {
    CPL_ALIVE_FOREIGN, /* has not shown the token */
    CPL_ALIVE_KNOWN,   /* has, and is welcome */
    CPL_ALIVE_JOINED,
    CPL_ALIVE_LEFT, /* said farewell */
} cpl_alive_stage;

typedef struct cpl_alive_link {
    int fd; /* -1: none */
    cpl_alive_stage stage;
    int rank; /* rank, process and host of the other end: set from stage KNOWN on */
    long process;
    char host[CPL_ALIVE_HOST + 1];
    double since, heard; /* seconds, as cpl_seconds_now: when it was made; when bytes came last */
    size_t n_in, n_out;
    char in[CPL_ALIVE_HEADER + CPL_ALIVE_SENTENCE], out[2 * CPL_ALIVE_SENTENCE];
} cpl_alive_link;

/* Sets the link to a fresh one on `fd`, which it owns until cpl_alive_link_close. */
void cpl_alive_link_open(cpl_alive_link *link, int fd);
void cpl_alive_link_close(cpl_alive_link *link); /* does nothing to a closed one */

/* Adds a message to what is to be sent. `text` is cut at CPL_ALIVE_SENTENCE - 1 bytes. No room is a
 * programming error (assert): at most one message of each kind waits, one of them with a
 * sentence. */
void cpl_alive_link_push(cpl_alive_link *link, cpl_alive_kind kind, int rank, const char *text);

/* Sends what the system takes now. An error is left to cpl_alive_link_fill. */
void cpl_alive_link_flush(cpl_alive_link *link);

/* Receives what has come, at most a buffer; never waits. False if the connection has ended. */
CPL_NODISCARD bool cpl_alive_link_fill(cpl_alive_link *link);

/* Takes the next whole message out of what was received: 1, or 0 if there is none yet, or -1 if the
 * bytes are not a message. */
CPL_NODISCARD int cpl_alive_link_take(cpl_alive_link *link, cpl_alive_message *message);

#endif /* CPL_PARALLEL_ALIVE_LINK_H */
