/* address.c - see address.h */
#include "remote/address.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "remote/curl_table.h"

/* Returns one part of a URL, to be freed with curl_free, or NULL if the URL has no such part. */
static char *part_of(const cpl_curl_table *curl, CURLU *url, CURLUPart part)
{
    char *text = NULL;
    (void)curl->url_get(url, part, &text, part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0);
    return text;
}

static bool is_this_machine(const char *host)
{
    unsigned a, b, c, d;
    char end;
    if (strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0) return true;
    return sscanf(host, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &end) == 4 && a == 127;
}

/* Returns a URL for sentences, without user, password, query and fragment, which may be secret. */
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

/* Returns NULL, or the reason why an address with this scheme and host is not allowed. */
static const char *fault_of(const cpl_curl_table *curl, CURLU *url)
{
    char *scheme = part_of(curl, url, CURLUPART_SCHEME), *host = part_of(curl, url, CURLUPART_HOST);
    const bool https = scheme && strcasecmp(scheme, "https") == 0;
    const bool http  = scheme && strcasecmp(scheme, "http") == 0;
    const bool here  = host && is_this_machine(host);
    curl->free(scheme);
    curl->free(host);
    if (!http && !https) return "is neither https:// nor http://";
    if (http && !here)
        return "http:// is not encrypted and is accepted for this machine only: use https://";
    return NULL;
}

cpl_status cpl_address_check_given(const char *text)
{
    const cpl_curl_table *curl;
    char shown[256];
    CPL_TRY(cpl_curl_table_load(&curl));
    CURLU *url = curl->url();
    if (!url) return CPL_ERR_MEMORY;
    const char *fault =
        "is no URL that can be read (a user name in it is not allowed, nor are blanks)";
    if (strstr(text, ":///"))
        fault = "names no host";
    else if (curl->url_set(url, CURLUPART_URL, text, CURLU_DISALLOW_USER) == CURLUE_OK)
        fault = fault_of(curl, url);
    if (!fault && strpbrk(text, "?#"))
        fault = "a URL with a query (?...) or a fragment (#...) names no folder or file here";
    curl->url_cleanup(url);
    return fault ? CPL_FAIL(CPL_ERR_INPUT, "%.500s: %s", plain(shown, text), fault) : CPL_OK;
}

cpl_status cpl_address_check_redirect(const char *from, const char *location)
{
    const cpl_curl_table *curl;
    char shown[256];
    plain(shown, location);
    CPL_TRY(cpl_curl_table_load(&curl));
    CURLU *url = curl->url();
    if (!url) return CPL_ERR_MEMORY;
    const bool good = curl->url_set(url, CURLUPART_URL, from, 0) == CURLUE_OK &&
                      curl->url_set(url, CURLUPART_URL, location, CURLU_DISALLOW_USER) == CURLUE_OK;
    const char *fault = good ? fault_of(curl, url) : NULL;
    char *scheme      = part_of(curl, url, CURLUPART_SCHEME);
    const bool open   = scheme && strcasecmp(scheme, "https") != 0;
    curl->free(scheme);
    curl->url_cleanup(url);
    if (!good) return CPL_FAIL(CPL_ERR_INPUT, "\"%s\" is no URL", shown);
    if (fault) return CPL_FAIL(CPL_ERR_INPUT, "%s: %s", shown, fault);
    if (open && strncasecmp(from, "https:", 6) == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "\"%s\" is not encrypted", shown);
    return CPL_OK;
}

/* Returns the length of "https://host:port". */
static size_t origin_length(const char *url)
{
    const char *host = strstr(url, "://");
    return host ? (size_t)(host - url) + 3 + strcspn(host + 3, "/?#") : 0;
}

bool cpl_address_is_same_host(const char *a, const char *b)
{
    const size_t n = origin_length(a);
    return n && n == origin_length(b) && strncasecmp(a, b, n) == 0;
}

const char *cpl_address_host(char out[256], const char *text)
{
    const cpl_curl_table *curl;
    snprintf(out, 256, "%.255s", text);
    if (cpl_curl_table_load(&curl) != CPL_OK) return out;
    CURLU *url = curl->url();
    if (url && curl->url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK) {
        char *host = part_of(curl, url, CURLUPART_HOST), *port = part_of(curl, url, CURLUPART_PORT);
        snprintf(out, 256, "%.200s:%s", host ? host : "", port ? port : "");
        curl->free(host);
        curl->free(port);
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
