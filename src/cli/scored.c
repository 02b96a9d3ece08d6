/* scored.c - see scored.h */
#include "cli/scored.h"

#include "base/arena.h"
#include "cli/configure.h"
#include "io/file.h"
#include "io/tokens.h"
#include "io/yaml.h"
#include "store/checkpoint.h"
#include "study/document_loss.h"

/* ---- what there is to do ---- */

/* Documents, not token shards, of which every one is still there. */
static bool has_documents(const cpl_settings *s)
{
    for (int64_t i = 0; i < s->data.validation.count; i++)
        if (cpl_tokens_are_shards(s->data.validation.at[i]) ||
            !cpl_path_exists(s->data.validation.at[i]))
            return false;
    return s->data.validation.count > 0;
}

/* Whether `path` holds the losses of this step and window. */
static bool is_scored(const char *path, int64_t step, int64_t window)
{
    cpl_document_losses there = {0};
    if (!cpl_path_exists(path) || cpl_document_losses_load(&there, path) != CPL_OK) return false;
    bool same = there.step == step && there.window == window;
    cpl_document_losses_free(&there);
    return same;
}

/* ---- doing it ---- */

static cpl_status score(const cpl_settings *s, const char *checkpoint, const char *path,
                        int64_t max_documents, const cpl_log *log)
{
    cpl_document_losses losses = {0};
    cpl_reader_options reader  = {.window = s->data.seq_len, .n_threads = (int)s->compute.threads};
    cpl_texts_options texts    = cpl_texts_defaults();
    texts.reading              = cpl_tokens_reading(&s->data);
    texts.special_as_text      = s->data.special_as_text;
    texts.max_documents        = max_documents;
    CPL_TRY(cpl_document_losses_of(&losses, checkpoint, (const char *const *)s->data.validation.at,
                                   s->data.validation.count, &reader, &texts, log));
    cpl_log_info(log, "%s: %lld held-out documents scored", checkpoint, (long long)losses.count);
    cpl_status status = cpl_document_losses_write(&losses, path);
    cpl_document_losses_free(&losses);
    return status;
}

static cpl_status score_done_run(const cpl_settings *s, const char *run, int64_t max_documents,
                                 bool again, const cpl_log *log)
{
    char *checkpoint = NULL, *path = cpl_path_join(run, "documents.json");
    cpl_status status  = path ? cpl_checkpoint_last(&checkpoint, run) : CPL_ERR_MEMORY;
    const int64_t step = status == CPL_OK ? cpl_reader_step(checkpoint) : -1;
    if (status == CPL_OK && step == s->train.steps && has_documents(s) &&
        (again || !is_scored(path, step, s->data.seq_len))) {
        status = score(s, checkpoint, path, max_documents, log);
        if (status == CPL_ERR_INPUT) { /* a comparison stands without it */
            cpl_log_warn(log, "held-out documents were not scored: %s", cpl_last_error());
            status = CPL_OK;
        }
    }
    cpl_free(checkpoint);
    cpl_free(path);
    return status;
}

/* The run's own configuration, if this program can read all of it; false: it is left alone. */
static bool read_config(cpl_settings *s, const cpl_section *sections, const char *run)
{
    char *path = cpl_path_join(run, "config.yaml");
    bool read  = path && cpl_path_exists(path) &&
                cpl_yaml_read(s, sections, CPL_N_SECTIONS, path, NULL) == CPL_OK;
    cpl_free(path);
    return read;
}

cpl_status cpl_scored_run(const char *run, int64_t max_documents, int n_threads, bool again,
                          const cpl_log *log)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings s;
    cpl_status status = CPL_OK;
    cpl_settings_sections(sections);
    CPL_TRY(cpl_settings_init(&s, sections, CPL_N_SECTIONS));
    const bool read = cpl_checkpoint_exists(run) && read_config(&s, sections, run);
    if (n_threads >= 0) s.compute.threads = n_threads;
    if (read) status = score_done_run(&s, run, max_documents, again, log);
    cpl_settings_free(&s, sections, CPL_N_SECTIONS);
    return status;
}
