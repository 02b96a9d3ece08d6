/* task_splits.c - splits, subjects and groups of a task file; see task_parts.h */
#include <string.h>

#include "base/text.h"
#include "eval/tasks/task_parts.h"
#include "io/file.h"

static const char *const source_keys[] = {"files",  "member", "headless", "labels",
                                          "fields", "gold",   "subject"};
static const char *const endings[]     = {".jsonl", ".json", ".csv", ".tsv", ".lst", ".txt"};

static cpl_status check_file(const cpl_task *task, const json_t *place, const char *name)
{
    bool known = false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        known |= cpl_path_ends_in(name, endings[i]);
    if (!known)
        return FAIL(task, place,
                    "%.200s: rows are read from files that end in .jsonl, .json, .csv, .tsv, "
                    ".lst or .txt",
                    name);
    if (*name == '/' || strstr(name, ".."))
        return FAIL(task, place, "%.200s: files lie below the folder of the data", name);
    return CPL_OK;
}

/* Checks that a name has one `*`, after its last slash. */
static cpl_status check_star(const cpl_task *task, const json_t *place, const char *name)
{
    const char *star = strchr(name, '*'), *slash = strrchr(name, '/');
    if (!star || strchr(star + 1, '*') || (slash && slash > star))
        return FAIL(task, place, "%.200s: subject: file needs one * after the last /, the subject",
                    name);
    return CPL_OK;
}

static cpl_status read_source(cpl_task_source *source, const cpl_task *task, const json_t *from)
{
    static const char *const truths[] = {"false", "true"};
    size_t truth;
    if (json_is_string(from)) {
        CPL_TRY(cpl_task_names(&source->files, task, from, "files"));
        return check_file(task, from, json_string_value(from));
    }
    CPL_TRY(cpl_task_keys(task, from, "file of a split", source_keys,
                          sizeof source_keys / sizeof *source_keys));
    CPL_TRY(cpl_task_names_of(&source->files, task, from, "files"));
    CPL_TRY(cpl_task_text_of(&source->labels, task, from, "labels", NULL));
    CPL_TRY(cpl_task_text_of(&source->member, task, from, "member", NULL));
    CPL_TRY(cpl_task_word_of(&truth, task, from, "headless", truths, 2, 0));
    source->headless = truth == 1;
    source->fields   = json_object_get(from, "fields");
    source->gold     = json_object_get(from, "gold");
    source->subject  = json_object_get(from, "subject");
    if (!source->files.count)
        return FAIL(task, from, "the split has no files: files: [rows.jsonl]");
    if (source->labels && source->files.count > 1)
        return FAIL(task, from, "`labels` belong to one file of rows: name one in `files`");
    for (int64_t i = 0; i < source->files.count; i++)
        CPL_TRY(check_file(task, from, source->files.at[i]));
    if (source->labels) CPL_TRY(check_file(task, from, source->labels));
    return CPL_OK;
}

static cpl_status read_split(cpl_split *split, const cpl_task *task, const json_t *from)
{
    size_t n       = json_is_array(from) ? json_array_size(from) : 1;
    split->sources = cpl_pool_take(&task->parts->pool, n * sizeof *split->sources);
    if (!split->sources) return cpl_pool_status(&task->parts->pool);
    if (!n)
        return FAIL(task, from, "the split %s has no file: write %s: rows.jsonl", split->name,
                    split->name);
    split->n_sources = (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *source = json_is_array(from) ? json_array_get(from, i) : from;
        CPL_TRY(read_source(&split->sources[i], task, source));
        const json_t *subject =
            split->sources[i].subject ? split->sources[i].subject : task->parts->subject;
        if (!json_is_string(subject) || strcmp(json_string_value(subject), "file") != 0) continue;
        for (int64_t k = 0; k < split->sources[i].files.count; k++)
            CPL_TRY(check_star(task, source, split->sources[i].files.at[k]));
    }
    return CPL_OK;
}

cpl_status cpl_task_read_splits(cpl_task *task, const json_t *splits)
{
    struct cpl_task_parts *parts = task->parts;
    const char *name;
    json_t *from;
    if (!json_object_size(splits))
        return FAIL(task, splits, "the task names no rows: splits: {test: FILE}");
    if (json_object_size(splits) > 64) return FAIL(task, splits, "more than 64 splits");
    parts->splits = cpl_pool_take(&parts->pool, json_object_size(splits) * sizeof *parts->splits);
    if (!parts->splits) return cpl_pool_status(&parts->pool);
    json_object_foreach((json_t *)(uintptr_t)splits, name, from)
    {
        cpl_split *split = &parts->splits[parts->n_splits++];
        split->name      = name;
        CPL_TRY(read_split(split, task, from));
    }
    return CPL_OK;
}

/* ---- subjects and groups ---- */

/* Reads the names of the values of the first subject, and checks that every subject has them. */
static cpl_status read_facts(cpl_task *task, const json_t *subjects)
{
    struct cpl_task_parts *parts = task->parts;
    const char *subject, *name;
    json_t *facts, *value;
    json_object_foreach((json_t *)(uintptr_t)subjects, subject, facts)
    {
        if (!json_object_size(facts))
            return FAIL(task, facts, "a subject has values: %.100s: {title: TEXT}", subject);
        if (!parts->facts) {
            parts->facts =
                cpl_pool_take(&parts->pool, json_object_size(facts) * sizeof *parts->facts);
            if (!parts->facts) return cpl_pool_status(&parts->pool);
            json_object_foreach(facts, name, value) parts->facts[parts->n_facts++].name = name;
        }
        for (int64_t i = 0; i < parts->n_facts; i++)
            if (!json_is_string(json_object_get(facts, parts->facts[i].name)))
                return FAIL(task, facts, "%.100s has no text %s", subject, parts->facts[i].name);
        if ((int64_t)json_object_size(facts) != parts->n_facts)
            return FAIL(task, facts, "%.100s has values that the first subject has not", subject);
    }
    return CPL_OK;
}

/* Reads the subjects: a list, or a mapping from each to its values. */
static cpl_status read_known(cpl_task *task, const json_t *root)
{
    struct cpl_task_parts *parts = task->parts;
    const char *subject;
    json_t *facts;
    if (json_is_array(parts->subjects))
        return cpl_task_names_of(&parts->known, task, root, "subjects");
    CPL_TRY(read_facts(task, parts->subjects));
    const char **at = cpl_pool_take(&parts->pool, json_object_size(parts->subjects) * sizeof *at);
    if (!at) return cpl_pool_status(&parts->pool);
    json_object_foreach((json_t *)(uintptr_t)parts->subjects, subject, facts)
        at[parts->known.count++] = subject;
    parts->known.at              = at;
    return CPL_OK;
}

cpl_status cpl_task_find_subject(const cpl_task *task, const char *subject)
{
    const cpl_string_list *known = &task->parts->known;
    if (!known->count || cpl_string_list_holds(known, subject)) return CPL_OK;
    const char *near = cpl_text_nearest(subject, known->at, (size_t)known->count);
    return CPL_FAIL(CPL_ERR_INPUT, "%s has no subject %.100s%s%s%s", task->id, subject,
                    near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

cpl_status cpl_task_check_subjects(const cpl_task *task, const cpl_string_list *subjects,
                                   const json_t *node)
{
    for (int64_t i = 0; i < subjects->count; i++)
        CPL_TRY(AT(task, json_is_array(node) ? json_array_get(node, (size_t)i) : node,
                   cpl_task_find_subject(task, subjects->at[i])));
    return CPL_OK;
}

/* Reads the subjects of a group: "all", or a list. */
static cpl_status read_members(cpl_task_group *group, const cpl_task *task, const json_t *from,
                               const json_t *place)
{
    const char *text = json_string_value(from);
    if (text && strcmp(text, "all") == 0) return CPL_OK;
    if (!json_array_size(from))
        return FAIL(task, place,
                    "the group has no subjects: write `all`, or a list such as [law, medicine]");
    CPL_TRY(cpl_task_names(&group->subjects, task, from, "subjects"));
    return cpl_task_check_subjects(task, &group->subjects, from);
}

static cpl_status read_group(cpl_task_group *group, const cpl_task *task, const json_t *from)
{
    static const char *const keys[] = {"subjects", "metrics"};
    if (!json_is_object(from)) return read_members(group, task, from, from);
    CPL_TRY(cpl_task_keys(task, from, "group", keys, 2));
    CPL_TRY(cpl_task_names_of(&group->metrics, task, from, "metrics"));
    return read_members(group, task, json_object_get(from, "subjects"), from);
}

static cpl_status check_groups(const cpl_task *task, const json_t *groups)
{
    if (!groups) return CPL_OK;
    if (!task->parts->subject)
        return FAIL(task, groups,
                    "subjects and groups need to know what a subject is: subject: file");
    if (!json_is_object(groups))
        return FAIL(task, groups,
                    "`groups` must be a mapping: groups: {sciences: [physics, biology]}");
    return CPL_OK;
}

cpl_status cpl_task_read_groups(cpl_profile *profile, cpl_task *task, const json_t *own)
{
    const json_t *all = task->parts->groups, *maps[2] = {all, own};
    const size_t most = json_object_size(all) + json_object_size(own);
    const char *name;
    json_t *from;
    CPL_TRY(check_groups(task, own));
    if (most == 0) return CPL_OK;
    profile->groups = cpl_pool_take(&task->parts->pool, most * sizeof *profile->groups);
    if (!profile->groups) return cpl_pool_status(&task->parts->pool);
    for (int i = 0; i < 2; i++) json_object_foreach((json_t *)(uintptr_t)maps[i], name, from)
        {
            if (i == 0 && json_object_get(own, name)) continue;
            cpl_task_group *group = &profile->groups[profile->n_groups++];
            group->name           = name;
            CPL_TRY(read_group(group, task, from));
        }
    return CPL_OK;
}

cpl_status cpl_task_read_subjects(cpl_task *task, const json_t *root)
{
    struct cpl_task_parts *parts = task->parts;
    parts->subject               = json_object_get(root, "subject");
    parts->subjects              = json_object_get(root, "subjects");
    parts->groups                = json_object_get(root, "groups");
    if (parts->subject && !json_is_string(parts->subject))
        return FAIL(task, parts->subject, "subject is file, or a text with a field in it");
    if (parts->subjects && !parts->subject)
        return FAIL(task, root,
                    "subjects and groups need to know what a subject is: subject: file");
    if (parts->subjects && !json_object_size(parts->subjects) && !json_array_size(parts->subjects))
        return FAIL(task, parts->subjects,
                    "subjects is a list, or a mapping from a subject to values");
    if (parts->subjects) CPL_TRY(read_known(task, root));
    return check_groups(task, parts->groups);
}
