/* score_run.c - see score_run.h */
#include "app/score_run.h"

#include "base/arena.h"
#include "data/tokens.h"
#include "infer/document_loss.h"
#include "io/file.h"
#include "settings/yaml.h"
#include "store/run_dir.h"
#include "train/config/settings.h"

/* ---- which runs to score ---- */

/* Documents, not token shards. */
static bool has_documents(const cpl_settings *s)
{
    for (int64_t i = 0; i < s->data.validation.count; i++)
        if (cpl_tokens_are_shards(s->data.validation.at[i])) return false;
    return s->data.validation.count > 0;
}

/* Sets whether `path` holds the losses of this step and window; one that is damaged does not. */
static cpl_status find_scored(bool *scored, const char *path, int64_t step, int64_t window)
{
    cpl_document_losses there = {0};
    *scored                   = false;
    if (!cpl_path_exists(path)) return CPL_OK;
    cpl_status status = cpl_document_losses_load(&there, path);
    if (status == CPL_ERR_INPUT) return CPL_OK;
    *scored = status == CPL_OK && there.step == step && there.window == window;
    cpl_document_losses_free(&there);
    return status;
}

/* A comparison is made without the scores of a run; the reason is logged as a warning. */
static cpl_status without(cpl_status status, const char *run, const cpl_log *log)
{
    if (status != CPL_ERR_INPUT) return status;
    cpl_log_warn(log, "%s: held-out documents were not scored: %s", run, cpl_last_error());
    return CPL_OK;
}

/* ---- doing it ---- */

static cpl_status score(const cpl_settings *s, const char *checkpoint, const char *path,
                        int64_t max_documents, const cpl_log *log)
{
    cpl_document_losses losses = {0};
    cpl_reader_options reader  = {.window    = s->data.seq_len,
                                  .device    = s->compute.device,
                                  .n_threads = (int)s->compute.threads};
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
    cpl_status status  = path ? cpl_run_dir_last(&checkpoint, run) : CPL_ERR_MEMORY;
    const int64_t step = status == CPL_OK ? cpl_reader_step(checkpoint) : -1;
    bool scored        = true;
    if (status == CPL_OK && step == s->train.steps && has_documents(s)) {
        scored = false;
        if (!again) status = find_scored(&scored, path, step, s->data.seq_len);
    }
    if (status == CPL_OK && !scored)
        status = without(score(s, checkpoint, path, max_documents, log), run, log);
    cpl_free(checkpoint);
    cpl_free(path);
    return status;
}

/* The run's own configuration; false: there is none, or this program cannot read all of it. */
static cpl_status read_config(bool *read, cpl_settings *s, const cpl_section *sections,
                              const char *run, const cpl_log *log)
{
    char *path = cpl_path_join(run, "config.yaml");
    *read      = false;
    if (!path) return CPL_ERR_MEMORY;
    cpl_status status = CPL_OK;
    if (cpl_path_exists(path)) {
        status = cpl_file_check(path);
        if (status == CPL_OK) status = cpl_yaml_read(s, sections, CPL_N_SECTIONS, path, NULL);
        *read = status == CPL_OK;
    }
    cpl_free(path);
    return without(status, run, log);
}

cpl_status cpl_score_run(const char *run, int64_t max_documents, int n_threads, bool again,
                         const cpl_log *log)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings s;
    bool read         = false;
    cpl_status status = CPL_OK;
    cpl_settings_sections(sections);
    CPL_TRY(cpl_settings_init(&s, sections, CPL_N_SECTIONS));
    if (cpl_run_dir_has_checkpoint(run)) status = read_config(&read, &s, sections, run, log);
    if (n_threads >= 0) s.compute.threads = n_threads;
    if (read) status = score_done_run(&s, run, max_documents, again, log);
    cpl_settings_free(&s, sections, CPL_N_SECTIONS);
    return status;
}
