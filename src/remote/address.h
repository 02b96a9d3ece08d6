/* address.h - checks of URLs, their hosts, and names of files as parts of URLs.
 *
 * Room: remote.
 * Allowed URLs: https://, and for tests http:// to this machine (localhost, 127.0.0.0/8, ::1).
 *   Neither has a user name or a password. */
#ifndef CPL_REMOTE_ADDRESS_H
#define CPL_REMOTE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

/* Fails with CPL_ERR_INPUT unless the URL of a folder or file that a user names is allowed and has
 * no query (?...) or fragment (#...). The sentence begins with the URL. */
CPL_NODISCARD cpl_status cpl_address_check_given(const char *url);

/* Checks the Location of a redirect in the answer from the address `from`. The address that it
 * means must be allowed, and must not lead from https to http. CPL_ERR_INPUT, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_address_check_redirect(const char *from, const char *location);

/* Returns whether scheme, host and port are written alike. A default port that only one of the URLs
 * leaves out counts as another port. */
bool cpl_address_is_same_host(const char *a, const char *b);

/* Sets `out` to "host:port" of the URL, for messages, and returns `out`. */
const char *cpl_address_host(char out[256], const char *url);

/* Removes a user's name and password from a sentence that may quote an address, in place. The
 * removed text ends with the last '@'. It begins after the first "//", else after the first
 * quotation mark, else with the word of the '@'. */
void cpl_address_hide_user(char *sentence);

/* Appends a name, with all bytes as %XX except the unreserved characters of RFC 3986 and, with
 * `slashes`, '/'. */
void cpl_address_append(cpl_text *out, const char *name, bool slashes);

#endif /* CPL_REMOTE_ADDRESS_H */
