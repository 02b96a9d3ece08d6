/* address.c - see address.h */
#include "remote/address.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "remote/curl_table.h"

/* One part of a URL, "" if it has none; freed with curl_free unless it is `none`. */
static char none[] = "";

static char *part_of(const cpl_curl_table *curl, CURLU *url, CURLUPart part)
{
    char *text = NULL;
    return curl->url_get(url, part, &text, part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0) ==
                   CURLUE_OK
               ? text
               : none;
}

static void free_part(const cpl_curl_table *curl, char *text)
{
    if (text != none) curl->free(text);
}

static bool is_this_machine(const char *host)
{
    unsigned a, b, c, d;
    char end;
    if (strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0) return true;
    return sscanf(host, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &end) == 4 && a == 127;
}

/* A URL, for sentences: without user, password, query and fragment, which may be secret. */
static const char *plain(char out[256], const char *url)
{
    const char *scheme = strstr(url, "://"), *host = scheme ? scheme + 3 : url;
    const size_t authority = strcspn(host, "/?#");
    const char *user       = memrchr(host, '@', authority);
    const size_t skipped   = user ? (size_t)(user + 1 - host) : 0;
    const size_t kept      = strcspn(host, "?#") > skipped ? strcspn(host, "?#") - skipped : 0;
    snprintf(out, 256, "%.*s%.*s", scheme ? (int)(host - url < 16 ? host - url : 0) : 0, url,
             (int)(kept < 200 ? kept : 200), host + skipped);
    return out;
}

/* NULL, or what is wrong with it. */
static const char *fault_of(const cpl_curl_table *curl, CURLU *url, const char *text)
{
    if (curl->url_set(url, CURLUPART_URL, text, CURLU_DISALLOW_USER) != CURLUE_OK)
        return "is no URL that can be read (a user name in it is not allowed, nor are blanks)";
    char *scheme = part_of(curl, url, CURLUPART_SCHEME), *host = part_of(curl, url, CURLUPART_HOST);
    const bool http   = strcasecmp(scheme, "http") == 0;
    const char *fault = NULL;
    if (!http && strcasecmp(scheme, "https") != 0)
        fault = "is neither https:// nor http://";
    else if (http && !is_this_machine(host))
        fault = "http:// is not encrypted and is accepted for this machine only: use https://";
    free_part(curl, scheme);
    free_part(curl, host);
    return fault;
}

static cpl_status check(const char *text, bool given)
{
    const cpl_curl_table *curl;
    CPL_TRY(cpl_curl_table_load(&curl));
    CURLU *url = curl->url();
    if (!url) return CPL_ERR_MEMORY;
    const char *fault = fault_of(curl, url, text);
    if (given && strstr(text, ":///")) fault = "names no host";
    if (!fault && given && strpbrk(text, "?#"))
        fault = "a URL with a query (?...) or a fragment (#...) names no folder or file here";
    curl->url_cleanup(url);
    char shown[256];
    if (!fault) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%.500s: %s", plain(shown, text), fault);
}

cpl_status cpl_address_check(const char *url)
{
    return check(url, false);
}

cpl_status cpl_address_check_given(const char *url)
{
    return check(url, true);
}

cpl_status cpl_address_redirect(char **out, const char *from, const char *location)
{
    const cpl_curl_table *curl;
    cpl_status status = CPL_OK;
    char *text        = NULL, shown[256];
    *out              = NULL;
    plain(shown, location);
    CPL_TRY(cpl_curl_table_load(&curl));
    CURLU *url = curl->url();
    if (!url) return CPL_ERR_MEMORY;
    if (curl->url_set(url, CURLUPART_URL, from, 0) != CURLUE_OK ||
        curl->url_set(url, CURLUPART_URL, location, CURLU_DISALLOW_USER) != CURLUE_OK ||
        curl->url_get(url, CURLUPART_URL, &text, 0) != CURLUE_OK)
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "\"%s\" is no URL", shown));
    CPL_TRY_DONE(cpl_address_check(text));
    if (strncasecmp(from, "https:", 6) == 0 && strncasecmp(text, "https:", 6) != 0)
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "\"%s\" is not encrypted", shown));
    *out = cpl_text_copy(text);
    if (!*out) status = CPL_ERR_MEMORY;
done:
    curl->free(text);
    curl->url_cleanup(url);
    return status;
}

/* Whether two URLs have this part in common, whatever its case. */
static bool is_same(const cpl_curl_table *curl, CURLU *a, CURLU *b, CURLUPart part)
{
    char *x = part_of(curl, a, part), *y = part_of(curl, b, part);
    const bool same = strcasecmp(x, y) == 0;
    free_part(curl, x);
    free_part(curl, y);
    return same;
}

bool cpl_address_is_same_host(const char *a, const char *b)
{
    const cpl_curl_table *curl;
    if (cpl_curl_table_load(&curl) != CPL_OK) return false;
    CURLU *x = curl->url(), *y = curl->url();
    const bool same = x && y && curl->url_set(x, CURLUPART_URL, a, 0) == CURLUE_OK &&
                      curl->url_set(y, CURLUPART_URL, b, 0) == CURLUE_OK &&
                      is_same(curl, x, y, CURLUPART_SCHEME) &&
                      is_same(curl, x, y, CURLUPART_HOST) && is_same(curl, x, y, CURLUPART_PORT);
    curl->url_cleanup(x);
    curl->url_cleanup(y);
    return same;
}

const char *cpl_address_host(char out[256], const char *text)
{
    const cpl_curl_table *curl;
    snprintf(out, 256, "%.255s", text);
    if (cpl_curl_table_load(&curl) != CPL_OK) return out;
    CURLU *url = curl->url();
    if (url && curl->url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK) {
        char *host = part_of(curl, url, CURLUPART_HOST), *port = part_of(curl, url, CURLUPART_PORT);
        snprintf(out, 256, "%.200s:%s", host, port);
        free_part(curl, host);
        free_part(curl, port);
    }
    curl->url_cleanup(url);
    return out;
}

void cpl_address_hide_user(char *sentence)
{
    char *end = strrchr(sentence, '@'), *from = strstr(sentence, "//");
    if (!end) return;
    if (from && from < end) {
        from += 2;
    } else if ((from = strpbrk(sentence, "'\"")) && from < end) {
        from++;
    } else {
        for (from = end; from > sentence && from[-1] != ' ';) from--;
    }
    memmove(from, end + 1, strlen(end + 1) + 1);
}

void cpl_address_append(cpl_text *out, const char *name, bool slashes)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (; *name; name++) {
        if (strchr(plain, *name) || (slashes && *name == '/'))
            cpl_text_char(out, *name);
        else
            cpl_text_printf(out, "%%%02X", (unsigned char)*name);
    }
}
