/* questions_missing.c - rows that are not there, and what to put where; see questions_internal.h */
#include <string.h>

#include "eval/prompts/questions_internal.h"

/* "val.jsonl, or copa-dev.xml, published at URL (LICENCE)" */
static void append_wanted(cpl_text *out, const cpl_task *task, const cpl_split *split)
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

const char *cpl_questions_data_word(const cpl_questions_options *wish)
{
    return wish->of_run ? "eval.tasks_data:" : "--data";
}

bool cpl_questions_of_samples(const cpl_questions_options *wish)
{
    return wish->own && strcmp(wish->data, wish->own) == 0;
}

cpl_status cpl_split_missing(const cpl_task *task, const cpl_split *split,
                             const cpl_questions_options *wish)
{
    cpl_text wanted = {0};
    append_wanted(&wanted, task, split);
    const char *names = wanted.bytes ? wanted.bytes : "";
    cpl_status status =
        cpl_questions_of_samples(wish)
            ? CPL_FAIL(CPL_ERR_INPUT,
                       "%s: there are no rows of the split %s among the samples that come with the "
                       "program; %s DIR names a folder of yours: put into DIR/%s/ the file %s",
                       task->id, split->name, cpl_questions_data_word(wish), task->id, names)
            : CPL_FAIL(CPL_ERR_INPUT,
                       "%s: there are no rows of the split %s in %s; put into %s/%s/ the file %s",
                       task->id, split->name, wish->data, wish->data, task->id, names);
    cpl_text_free(&wanted);
    return status;
}

/* Sets whether a split has files in `data`, or in `other`, which may be NULL. */
static cpl_status look_for(bool *there, const cpl_task *task, const cpl_split *split,
                           const char *data, const char *other)
{
    cpl_split_files files;
    CPL_TRY(cpl_split_find(&files, task, split, data));
    *there = files.source >= 0;
    cpl_split_files_free(&files);
    return *there || !other ? CPL_OK : look_for(there, task, split, other, NULL);
}

static cpl_status append_missing(cpl_text *out, const cpl_reading *r)
{
    const cpl_split *splits[] = {r->way->split, r->way->exemplars};
    const char *others[]      = {NULL, r->wish->own};
    for (int i = 0; i < (cpl_reading_shows(r) ? 2 : 1); i++) {
        bool there;
        CPL_TRY(look_for(&there, r->task, splits[i], r->wish->data, others[i]));
        if (there) continue;
        append_wanted(out, r->task, splits[i]);
        return cpl_text_status(out);
    }
    return CPL_OK;
}

cpl_status cpl_questions_missing(cpl_text *wanted, const cpl_task *task, const cpl_profile *profile,
                                 const cpl_questions_options *wish)
{
    cpl_questions q;
    cpl_reading r;
    cpl_status status = cpl_reading_start(&r, &q, task, profile, wish);
    if (status == CPL_OK) status = append_missing(wanted, &r);
    cpl_questions_free(&q);
    return status;
}
