/* remote_disabled.c - takes the place of remote.c in a build without libcurl; see remote.h */
#include "remote/remote.h"

cpl_status cpl_remote_open(cpl_remote **out, const char *word, const char *cache,
                           const cpl_log *log)
{
    *out = NULL;
    (void)cache, (void)log;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: this program was built without libcurl (-DCPL_REMOTE=OFF), so that it "
                    "reads local files only: fetch the checkpoint first",
                    word);
}

void cpl_remote_close(cpl_remote *remote)
{
    (void)remote;
}

const char *cpl_remote_path(const cpl_remote *remote)
{
    (void)remote;
    return NULL;
}

const cpl_origin *cpl_remote_origin(const cpl_remote *remote)
{
    (void)remote;
    return NULL;
}
