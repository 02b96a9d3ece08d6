/* address.h - URLs: which are allowed, whose they are, and names of files as parts of them.
 *
 * Room:  remote.
 * Rule:  https://, and http:// to this machine alone (localhost, 127.0.0.0/8, ::1), for tests; no
 *        user name or password in it. */
#ifndef CPL_REMOTE_ADDRESS_H
#define CPL_REMOTE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

/* CPL_ERR_INPUT unless `url` is allowed; the sentence begins with it. */
CPL_NODISCARD cpl_status cpl_address_check(const char *url);

/* The same, and without a query (?...) or fragment (#...): of a folder or a file that a user
 * names. */
CPL_NODISCARD cpl_status cpl_address_check_given(const char *url);

/* Sets `out`, from cpl_alloc, to what a Location means in the answer from `from`; a way from https
 * to http is an error, as is one that is not allowed. CPL_ERR_INPUT, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_address_redirect(char **out, const char *from, const char *location);

/* Whether scheme, host and port are the same. */
bool cpl_address_is_same_host(const char *a, const char *b);

/* "host:port" into `out`, for a sentence; returns `out`. */
const char *cpl_address_host(char out[256], const char *url);

/* Takes a user's name and password out of a sentence that may quote an address, in place: all between
 * the first "//", else the first quotation mark, else the beginning of its word, and the last '@'. */
void cpl_address_hide_user(char *sentence);

/* Appends a name, every byte that is no unreserved character of RFC 3986 as %XX; with `slashes` a
 * '/' stays. */
void cpl_address_append(cpl_text *out, const char *name, bool slashes);

#endif /* CPL_REMOTE_ADDRESS_H */
