/* reading.c - the state of a reading of questions, and rows that are missing; see questions_internal.h */
#include <string.h>

#include "base/arena.h"
#include "eval/prompts/questions_internal.h"
#include "io/paths.h"

const cpl_prompt_spec *cpl_resolved_profile_prompt(const cpl_resolved_profile *resolved,
                                                   const char *subject)
{
    for (int64_t i = 1; subject && i < resolved->n_specs; i++)
        if (cpl_string_list_holds(&resolved->specs[i].subjects, subject))
            return &resolved->specs[i];
    return &resolved->specs[0];
}

cpl_status cpl_reading_leave_out(cpl_reading *r, const cpl_seen_row *row)
{
    char sentence[1024];
    if (row->values)
        snprintf(sentence, sizeof sentence, "%s: line %lld: %s", row->path, (long long)row->line,
                 cpl_last_error());
    else
        snprintf(sentence, sizeof sentence, "%s", row->bad);
    if (!r->options->skip_bad) return CPL_FAIL(CPL_ERR_INPUT, "%s", sentence);
    r->q->skipped++;
    if (r->options->log) cpl_log_warn(r->options->log, "%s; the row is left out", sentence);
    return CPL_OK;
}

cpl_status cpl_reading_add_files(cpl_reading *r, const cpl_split_files *files)
{
    for (int64_t i = 0; i < files->paths.count; i++)
        CPL_TRY(cpl_paths_add(&r->store->files, files->paths.at[i]));
    for (int64_t i = 0; i < files->labels.count; i++)
        CPL_TRY(cpl_paths_add(&r->store->files, files->labels.at[i]));
    return CPL_OK;
}

bool cpl_reading_shows(const cpl_reading *r)
{
    return r->most_shots > 0 && r->resolved->specs[0].prompt == CPL_PROMPT_NONE;
}

/* ---- missing rows ---- */

void cpl_split_append_files(cpl_text *out, const cpl_task *task, const cpl_split *split)
{
    for (int64_t i = 0; i < split->n_sources; i++) {
        const cpl_source *source = &split->sources[i];
        cpl_text_printf(out, "%s", i ? ", or " : "");
        for (int64_t k = 0; k < source->files.count; k++)
            cpl_text_printf(out, "%s%s", k ? " and " : "", source->files.at[k]);
        if (source->labels) cpl_text_printf(out, " and %s", source->labels);
    }
    if (task->source)
        cpl_text_printf(out, ", published at %s (%s)", task->source,
                        task->licence ? task->licence : "licence not stated");
}

const char *cpl_questions_data_word(const cpl_questions_options *options)
{
    return options->of_run ? "eval.tasks_data:" : "--data";
}

bool cpl_questions_of_samples(const cpl_questions_options *options)
{
    return options->own && strcmp(options->data, options->own) == 0;
}

cpl_status cpl_split_missing(const cpl_task *task, const cpl_split *split,
                             const cpl_questions_options *options)
{
    cpl_text wanted = {0};
    cpl_split_append_files(&wanted, task, split);
    const char *names = wanted.bytes ? wanted.bytes : "";
    cpl_status status =
        cpl_questions_of_samples(options)
            ? CPL_FAIL(CPL_ERR_INPUT,
                       "%s: there are no rows of the split %s among the samples that come with the "
                       "program; %s DIR names a folder of yours: put into DIR/%s/ the file %s",
                       task->id, split->name, cpl_questions_data_word(options), task->id, names)
            : CPL_FAIL(CPL_ERR_INPUT,
                       "%s: there are no rows of the split %s in %s; put into %s/%s/ the file %s",
                       task->id, split->name, options->data, options->data, task->id, names);
    cpl_text_free(&wanted);
    return status;
}

/* ---- wishes ---- */

static cpl_status resolve_shots(cpl_reading *r)
{
    const cpl_resolved_profile *resolved = r->resolved;
    int64_t shots                        = r->options->shots;
    bool prompted                        = resolved->specs[0].prompt != CPL_PROMPT_NONE;
    r->shots                             = resolved->shots;
    r->n_shots                           = resolved->n_shots;
    if (shots != CPL_UNSET && !(prompted && shots == resolved->shots[0])) {
        if (prompted)
            return CPL_FAIL(
                CPL_ERR_INPUT,
                "%s: the %lld few-shot examples of %s are a file of their own and cannot be %lld",
                r->task->id, (long long)resolved->shots[0], r->q->profile->name, (long long)shots);
        if (shots < 0 || (shots > 0 && !resolved->fewshot_split))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: the profile %s has no few-shot examples, and %lld are wanted",
                            r->task->id, r->q->profile->name, (long long)shots);
        r->shots   = &r->options->shots;
        r->n_shots = 1;
    }
    for (int64_t i = 0; i < r->n_shots; i++)
        if (r->shots[i] > r->most_shots) r->most_shots = r->shots[i];
    r->q->shots = r->shots[r->n_shots - 1] > 0 ? r->shots[r->n_shots - 1] : 0;
    r->q->fewer = cpl_reading_shows(r);
    if (r->n_shots > 1) r->q->all_shots = r->q->profile->shots;
    return CPL_OK;
}

static cpl_status resolve_requests(cpl_reading *r)
{
    const cpl_resolved_profile *resolved = r->resolved;
    int64_t max_tokens                   = r->options->max_tokens;
    cpl_request_spec *forms =
        cpl_pool_take(&r->store->pool, (size_t)resolved->n_specs * sizeof *forms);
    if (!forms) return cpl_pool_status(&r->store->pool);
    for (int64_t i = 0; i < resolved->n_specs; i++) {
        forms[i] = resolved->specs[i].form;
        if (!forms[i].kind->generates) continue;
        if (max_tokens != CPL_UNSET) forms[i].max_gen_toks = max_tokens;
        if (forms[i].max_gen_toks > r->q->max_tokens) r->q->max_tokens = forms[i].max_gen_toks;
    }
    r->store->forms = forms;
    return CPL_OK;
}

cpl_status cpl_reading_start(cpl_reading *r, cpl_questions *q, const cpl_task *task,
                             const cpl_profile *profile, const cpl_questions_options *options)
{
    CPL_ASSERT(profile->forms.count == 0);
    *q       = (cpl_questions){.task = task, .profile = profile};
    q->store = cpl_alloc(sizeof *q->store);
    if (!q->store) return CPL_ERR_MEMORY;
    *q->store =
        (struct cpl_questions_store){.fewshot_split = json_object(), .before = json_object()};
    *r = (cpl_reading){.q        = q,
                       .store    = q->store,
                       .task     = task,
                       .options  = options,
                       .resolved = &task->parts->resolved[profile - task->profiles]};
    if (!q->store->fewshot_split || !q->store->before)
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for questions", task->id);
    CPL_TRY(resolve_shots(r));
    return resolve_requests(r);
}
