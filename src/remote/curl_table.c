/* curl_table.c - see curl_table.h */
#include "remote/curl_table.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { OLDEST = 0x075500 }; /* 7.85: CURLOPT_PROTOCOLS_STR, and a thread-safe curl_global_init */

static const char file[]   = "libcurl.so.4";
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cpl_curl_table table;
static char fault[512]; /* the reason why the table is missing, or "" */

/* Sets the function pointer at `to` to the symbol `name`. POSIX allows the copy from void *. */
static void find(void *library, const char *name, void *to)
{
    void *symbol = dlsym(library, name);
    memcpy(to, &symbol, sizeof symbol);
    if (!symbol) snprintf(fault, sizeof fault, "%s has no function %s", file, name);
}

static void load(void)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(fault, sizeof fault,
                 "checkpoints on servers need libcurl, which cannot be loaded "
                 "(%.200s): install it (Debian: libcurl4)",
                 dlerror());
        return;
    }
#define FIND(name) find(library, "curl_" #name, &table.name);
    CPL_CURL_FUNCTIONS(FIND)
#undef FIND
    if (*fault) return;
    const curl_version_info_data *version = table.version_info(CURLVERSION_NOW);
    if (version->version_num < OLDEST)
        snprintf(fault, sizeof fault,
                 "checkpoints on servers need libcurl 7.85 or later; here is %s", version->version);
    else if (table.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        snprintf(fault, sizeof fault, "libcurl cannot be started");
}

cpl_status cpl_curl_table_load(const cpl_curl_table **curl)
{
    pthread_once(&once, load);
    *curl = &table;
    return *fault ? CPL_FAIL(CPL_ERR_IO, "%s", fault) : CPL_OK;
}
