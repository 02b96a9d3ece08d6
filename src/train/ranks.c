/* ranks.c - see ranks.h */
#include "train/ranks.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/stop.h"
#include "base/text.h"
#include "io/file.h"
#include "io/json.h"
#include "parallel/gather.h"
#include "train/trainer.h"

/* ---- the folder ---- */

static void host_name(char out[256])
{
    if (gethostname(out, 255) != 0) snprintf(out, 256, "unknown host");
    out[255] = '\0';
}

/* Rank 0 writes its process and the time to a file of the folder. All ranks read it. */
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

static json_t *list_of(const cpl_strings *strings)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < strings->count; i++)
        (void)json_array_append_new(list, json_string(strings->at[i]));
    return list;
}

/* Makes an object, owned by the caller, with all values that must be equal on all ranks, by
 * name. */
static cpl_status describe(json_t **out, const cpl_settings *s, json_t *made_with, uint64_t data)
{
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"dist.expert_parallel", s->dist.expert_parallel},
                   {"log.every", s->log.every},
                   {"eval.every", s->eval.every},
                   {"eval.max_sequences", s->eval.max_sequences},
                   {"eval.tasks_every", s->eval.tasks_every},
                   {"checkpoint.every", s->checkpoint.every},
                   {"checkpoint.keep", s->checkpoint.keep},
                   {"eval.tasks_limit", s->eval.tasks_limit},
                   {"train.micro_batch", s->train.micro_batch},
                   {"eval.prompt_tokens", s->eval.prompt_tokens}};
    *out        = NULL;
    CPL_TRY(cpl_resume_settings(out, s));
    bool failed = json_object_update(*out, made_with) != 0;
    cpl_json_put(&failed, *out, "the fingerprint of the data", cpl_json_hash(data));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cpl_json_put(&failed, *out, numbers[i].name, json_integer(numbers[i].value));
    cpl_json_put(&failed, *out, "dist.overlap", json_boolean(s->dist.overlap));
    cpl_json_put(&failed, *out, "dist.timeout", json_real(s->dist.timeout));
    cpl_json_put(&failed, *out, "eval.prompts", list_of(&s->eval.prompts));
    cpl_json_put(&failed, *out, "eval.tasks", list_of(&s->eval.tasks));
    return failed ? CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the settings of the ranks")
                  : CPL_OK;
}

cpl_status cpl_ranks_agree_on_weights(cpl_group *world, const cpl_hf *from)
{
    uint64_t weights  = 0, bytes, config;
    cpl_status status = CPL_OK;
    if (world->size == 1) return CPL_OK;
    if (from) status = cpl_hf_identify(from, &weights, &bytes, &config);
    return cpl_gather_equal(world, status,
                            json_pack("{s:o}", "the fingerprint of the initial weights (--from)",
                                      from ? cpl_json_hash(weights) : json_string("none")));
}

cpl_status cpl_ranks_agree_on_run(cpl_group *world, const cpl_settings *settings, json_t *made_with,
                                  uint64_t data)
{
    json_t *own = NULL;
    if (world->size == 1) return CPL_OK;
    const cpl_status status = describe(&own, settings, made_with, data);
    return cpl_gather_equal(world, status, own);
}

/* ---- stopping ---- */

bool cpl_ranks_are_stopped(cpl_group *world)
{
    const int own     = cpl_stop_signal();
    int64_t signals[] = {own != 0, own == SIGINT}; /* counts over the ranks */
    cpl_group_sum_i64(world, signals, 2);
    if (signals[0] > 0 && own == 0) cpl_stop_request(signals[1] == signals[0] ? SIGINT : SIGTERM);
    return signals[0] > 0;
}

/* The agreement detects a signal that arrives between the two calls. */
cpl_status cpl_ranks_check_stop(cpl_group *world)
{
    (void)cpl_ranks_are_stopped(world);
    return cpl_group_agree(world, cpl_stop_check());
}
