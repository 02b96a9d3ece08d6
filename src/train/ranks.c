/* ranks.c - see ranks.h */
#include "train/ranks.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "io/file.h"
#include "io/json.h"
#include "train/trainer.h"

/* ---- the folder ---- */

static void host_name(char out[256])
{
    if (gethostname(out, 255) != 0) snprintf(out, 256, "unknown host");
    out[255] = '\0';
}

/* Rank 0 writes its process and the time into a file of the folder, and all read it. */
static cpl_status write_mark(const char *path, char mark[64])
{
    char host[256];
    host_name(host);
    snprintf(mark, 64, "%.40s %ld", host, (long)getpid());
    return cpl_file_write_atomic(path, mark, strlen(mark));
}

static cpl_status read_mark(const char *path, const char *folder, const char mark[64])
{
    cpl_text found = {0};
    char host[256];
    host_name(host);
    const cpl_status status = cpl_file_read(&found, path, 64);
    const bool same         = status == CPL_OK && found.bytes && strcmp(found.bytes, mark) == 0;
    cpl_text_free(&found);
    if (same) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s on %s is not the folder that rank 0 has made: all ranks need one folder on "
                    "a file system that they share",
                    folder, host);
}

cpl_status cpl_ranks_share_folder(cpl_group *world, const char *folder)
{
    char mark[64]     = "";
    char *path        = cpl_path_join(folder, ".tmp-ranks");
    cpl_status status = path ? CPL_OK : CPL_ERR_MEMORY;
    if (world->size > 1) {
        if (world->rank == 0 && path) status = write_mark(path, mark);
        cpl_group_broadcast(world, mark, sizeof mark, 0);
        if (world->rank > 0 && path && mark[0]) status = read_mark(path, folder, mark);
        cpl_group_barrier(world);
        if (world->rank == 0 && path) unlink(path);
    }
    cpl_free(path);
    return status;
}

/* ---- settings ---- */

/* All that must be equal, by name, as an object of the caller's. */
static cpl_status describe(json_t **out, const cpl_settings *settings, const cpl_backend *backend,
                           uint64_t data)
{
    char hex[17];
    *out = NULL;
    CPL_TRY(cpl_resume_settings(out, settings));
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)data);
    bool set =
        json_object_set_new(*out, "the version of the program", json_string(COUPLET_VERSION)) == 0;
    set = set && json_object_set_new(*out, "the fingerprint of the data", json_string(hex)) == 0;
    set =
        set && json_object_set_new(*out, "the type of products (compute.dtype)",
                                   json_string(backend->compute == CPL_BF16 ? "bf16" : "f32")) == 0;
    set = set && json_object_set_new(*out, "the number of threads (compute.threads)",
                                     json_integer(backend->n_threads)) == 0;
    set = set && json_object_set_new(*out, "dist.expert_parallel",
                                     json_integer(settings->dist.expert_parallel)) == 0;
    set =
        set && json_object_set_new(*out, "dist.overlap", json_boolean(settings->dist.overlap)) == 0;
    set = set && json_object_set_new(*out, "log.every", json_integer(settings->log.every)) == 0;
    set = set && json_object_set_new(*out, "eval.every", json_integer(settings->eval.every)) == 0;
    set = set && json_object_set_new(*out, "eval.max_sequences",
                                     json_integer(settings->eval.max_sequences)) == 0;
    set = set && json_object_set_new(*out, "eval.tasks_every",
                                     json_integer(settings->eval.tasks_every)) == 0;
    set = set && json_object_set_new(*out, "checkpoint.every",
                                     json_integer(settings->checkpoint.every)) == 0;
    return set ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the settings of the ranks");
}

/* From malloc; NULL: not set. */
static char *text_of(const json_t *value)
{
    return json_is_string(value) ? strdup(json_string_value(value))
                                 : json_dumps(value, JSON_ENCODE_ANY);
}

static cpl_status compare(const json_t *own, const json_t *first)
{
    const char *name;
    json_t *theirs;
    json_object_foreach((json_t *)(uintptr_t)first, name, theirs)
    {
        const json_t *mine = json_object_get(own, name);
        if (mine && json_equal((json_t *)(uintptr_t)mine, theirs)) continue;
        char *a           = text_of(mine);
        char *b           = text_of(theirs);
        cpl_status status = CPL_FAIL(CPL_ERR_INPUT, "%s is %s, but %s on rank 0", name,
                                     a ? a : "not set", b ? b : "not set");
        free(a);
        free(b);
        return status;
    }
    return CPL_OK;
}

/* The text of rank 0 on every rank, from cpl_alloc; NULL, without a sentence, if there is none. */
static char *text_of_first(cpl_group *world, const char *own)
{
    int64_t length = own ? (int64_t)strlen(own) + 1 : 0;
    cpl_group_broadcast(world, &length, sizeof length, 0);
    char *text = length > 0 ? cpl_alloc((size_t)length) : NULL;
    if (length == 0) return NULL;
    if (text && world->rank == 0) memcpy(text, own, (size_t)length);
    cpl_status status = cpl_group_agree(world, text ? CPL_OK : CPL_ERR_MEMORY);
    if (status == CPL_OK) {
        cpl_group_broadcast(world, text, length, 0);
        return text;
    }
    cpl_free(text);
    return NULL;
}

cpl_status cpl_ranks_agree_on_run(cpl_group *world, const cpl_settings *settings,
                                  const cpl_backend *backend, uint64_t data)
{
    json_t *own = NULL, *first = NULL;
    if (world->size == 1) return CPL_OK;
    cpl_status status = describe(&own, settings, backend, data);
    char *dumped      = own ? json_dumps(own, JSON_COMPACT) : NULL;
    char *text        = text_of_first(world, dumped);
    if (status == CPL_OK && text) first = json_loads(text, 0, NULL);
    if (status == CPL_OK)
        status = first ? compare(own, first)
                       : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the settings of the ranks");
    json_decref(first);
    json_decref(own);
    free(dumped);
    cpl_free(text);
    return status;
}
