/* score_documents.c - see score_documents.h */
#include "app/score_documents.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "data/tokens.h"
#include "infer/document_loss.h"
#include "io/file.h"
#include "settings/yaml.h"
#include "store/run_dir.h"
#include "train/config/settings.h"

/* Checks that the held-out text is documents. */
static cpl_status check_text(const cpl_settings *s, const char *run)
{
    bool shards = s->data.validation.count == 0;
    for (int64_t i = 0; i < s->data.validation.count; i++)
        shards = shards || cpl_tokens_are_shards(s->data.validation.at[i]);
    if (!shards) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: has no held-out documents to score: data.validation is %s",
                    run, s->data.validation.count ? "token shards" : "not set");
}

/* Checks, before the work, that the file can be written and does not exist or may be replaced. */
static cpl_status check_place(const char *run, const char *path, bool overwrite)
{
    if (access(run, W_OK) != 0)
        return CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (!overwrite && cpl_path_exists(path))
        return CPL_FAIL(CPL_ERR_INPUT, "%s exists already: replace it with --overwrite", path);
    return CPL_OK;
}

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

/* Reads the configuration of the run. */
static cpl_status read_config(cpl_settings *s, const cpl_section *sections, const char *run)
{
    char *path        = cpl_path_join(run, "config.yaml");
    cpl_status status = path ? cpl_file_check(path) : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_yaml_read(s, sections, CPL_N_SECTIONS, path, NULL);
    cpl_free(path);
    return status;
}

cpl_status cpl_score_documents(const char *run, int64_t max_documents, int n_threads,
                               bool overwrite, const cpl_log *log)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings s;
    char *checkpoint = NULL, *path = NULL;
    cpl_status status = CPL_OK;
    CPL_TRY(cpl_run_dir_check(run));
    cpl_settings_sections(sections);
    CPL_TRY(cpl_settings_init(&s, sections, CPL_N_SECTIONS));
    CPL_TRY_DONE(cpl_run_dir_last(&checkpoint, run));
    path   = cpl_path_join(run, "documents.json");
    status = path ? check_place(run, path, overwrite) : CPL_ERR_MEMORY;
    CPL_TRY_DONE(status);
    CPL_TRY_DONE(read_config(&s, sections, run));
    CPL_TRY_DONE(check_text(&s, run));
    if (n_threads >= 0) s.compute.threads = n_threads;
    status = score(&s, checkpoint, path, max_documents, log);
done:
    cpl_free(checkpoint);
    cpl_free(path);
    cpl_settings_free(&s, sections, CPL_N_SECTIONS);
    return status;
}
