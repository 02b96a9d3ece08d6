/* inspect_remote.c - see internal.h */
#include "cli/verbs/internal.h"

#include <string.h>

#include "base/arena.h"
#include "io/file.h"

static const int64_t MANY_REQUESTS = 20000; /* more need --yes */

static cpl_status make_room(cpl_inspect_remotes *r)
{
    const size_t bytes = (size_t)r->args->n_words * sizeof *r->at;
    if (r->at) return CPL_OK;
    r->at = cpl_alloc(bytes);
    if (!r->at) return CPL_ERR_MEMORY;
    memset((void *)r->at, 0, bytes);
    return CPL_OK;
}

cpl_status cpl_inspect_remotes_open(cpl_inspect_remotes *r, cpl_inspect_options *options,
                                    const char **path, int i)
{
    *path                  = r->args->words[i];
    const char *repository = cpl_remote_repository(*path);
    if (repository && !cpl_path_exists(*path))
        return CPL_FAIL(CPL_ERR_IO,
                        "%.500s: no file or folder has this name; a model of the hub is "
                        "hf://%.500s",
                        *path, repository);
    if (!cpl_remote_is(*path)) return CPL_OK;
    CPL_TRY(make_room(r));
    CPL_TRY(cpl_remote_open(&r->at[i], *path, cpl_flag_text(r->args, "--cache"), &r->log));
    options->origin = cpl_remote_origin(r->at[i]);
    *path           = cpl_remote_path(r->at[i]);
    return CPL_OK;
}

void cpl_inspect_remotes_close(cpl_inspect_remotes *r)
{
    for (int i = 0; r->at && i < r->args->n_words; i++) cpl_remote_close(r->at[i]);
    cpl_free((void *)r->at);
    r->at = NULL;
}

cpl_status cpl_inspect_remotes_limit(const cpl_inspect_remotes *r)
{
    if (r->n_requests <= MANY_REQUESTS || cpl_flag_given(r->args, "--yes")) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "this takes %lld requests, and more than %lld are made with --yes only; "
                    "--layers reads fewer layers",
                    (long long)r->n_requests, (long long)MANY_REQUESTS);
}

cpl_status cpl_inspect_remotes_check_cache(const cpl_arguments *args)
{
    const char *cache = cpl_flag_text(args, "--cache");
    int n_remote      = 0;
    for (int i = 0; cache && i < args->n_words; i++) {
        n_remote += cpl_remote_is(args->words[i]);
        if (!cpl_remote_is(args->words[i])) CPL_TRY(cpl_path_guard_check(cache, args->words[i]));
    }
    if (cache && !n_remote)
        return CPL_FAIL(CPL_ERR_USAGE, "--cache keeps what is fetched: of local files nothing is");
    return CPL_OK;
}

cpl_status cpl_inspect_remotes_refuse_text(const cpl_arguments *args)
{
    for (int i = 0; i < args->n_words; i++)
        if (cpl_remote_is(args->words[i]))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%.500s: --text reads the whole model, and a local one only: fetch it "
                            "first",
                            args->words[i]);
    if (cpl_flag_given(args, "--dry-run"))
        return CPL_FAIL(CPL_ERR_USAGE, "--dry-run is for inspections without --text");
    return CPL_OK;
}
