/* curl_table.h - the functions of libcurl that are used, found when they are first needed.
 *
 * Room: remote, inside it: http.c and address.c.
 * Loading: a program that is linked to libcurl loads it and twenty more libraries at each start of
 *   any verb, which takes 12 ms. A machine without libcurl runs all other verbs. */
#ifndef CPL_REMOTE_CURL_TABLE_H
#define CPL_REMOTE_CURL_TABLE_H

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

#include "base/status.h"

#define CPL_CURL_FUNCTIONS(FUNCTION)                                                               \
    FUNCTION(global_init)                                                                          \
    FUNCTION(version_info)                                                                         \
    FUNCTION(free)                                                                                 \
    FUNCTION(getdate)                                                                              \
    FUNCTION(url)                                                                                  \
    FUNCTION(url_cleanup)                                                                          \
    FUNCTION(url_get)                                                                              \
    FUNCTION(url_set)                                                                              \
    FUNCTION(easy_init)                                                                            \
    FUNCTION(easy_cleanup)                                                                         \
    FUNCTION(easy_perform)                                                                         \
    FUNCTION(easy_reset)                                                                           \
    FUNCTION(easy_header)                                                                          \
    FUNCTION(easy_getinfo)                                                                         \
    FUNCTION(easy_setopt)                                                                          \
    FUNCTION(easy_strerror)

/* curl->easy_init is curl_easy_init. */
typedef struct cpl_curl_table {
#define CPL_CURL_MEMBER(name) __typeof__(curl_##name) *name;
    CPL_CURL_FUNCTIONS(CPL_CURL_MEMBER)
#undef CPL_CURL_MEMBER
} cpl_curl_table;

/* Sets the table, which stays for the life of the process. Fails with CPL_ERR_IO if libcurl is
 * missing or older than 7.85. The sentence says what to install. */
CPL_NODISCARD cpl_status cpl_curl_table_load(const cpl_curl_table **curl);

#endif /* CPL_REMOTE_CURL_TABLE_H */
