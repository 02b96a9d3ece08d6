/* task.c - see task.h: the members of a task file, without the parts that task_*.c read */
#include "eval/tasks/task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "eval/tasks/task_parts.h"
#include "io/file.h"

static const char *const keys[] = {"task",     "title",   "sets",    "default", "chance",
                                   "source",   "licence", "splits",  "fields",  "subject",
                                   "subjects", "groups",  "choices", "gold",    "profiles"};

static cpl_status read_id(cpl_task *task, const json_t *root)
{
    CPL_TRY(cpl_task_text_of(&task->id, task, root, "task", NULL));
    if (!task->id || !*task->id) return FAIL(task, root, "the task has no id: task: my_task");
    if (task->id[strspn(task->id, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return FAIL(task, json_object_get(root, "task"),
                    "an id is made of lower-case letters, digits and _, not %.100s", task->id);
    return CPL_OK;
}

static cpl_status read_chance(cpl_task *task, const json_t *root)
{
    const char *text;
    char *end    = NULL;
    task->chance = NAN;
    CPL_TRY(cpl_task_text_of(&text, task, root, "chance", NULL));
    if (!text) return CPL_OK;
    task->chance = strtod(text, &end);
    if (end == text || *end || !(task->chance >= 0 && task->chance <= 100))
        return FAIL(task, json_object_get(root, "chance"),
                    "chance is a number of percent, not %.40s", text);
    return CPL_OK;
}

static cpl_status read_sets(cpl_task *task, const json_t *root)
{
    const json_t *from = json_object_get(root, "sets");
    CPL_TRY(cpl_task_names_of(&task->sets, task, root, "sets"));
    for (int64_t i = 0; i < task->sets.count; i++)
        if (strcmp(task->sets.at[i], "3b") != 0 && strcmp(task->sets.at[i], "15b") != 0)
            return FAIL(task, json_is_array(from) ? json_array_get(from, (size_t)i) : from,
                        "the sets of the paper are 3b and 15b, not %.40s", task->sets.at[i]);
    return CPL_OK;
}

static cpl_status read_defaults(cpl_task *task, const json_t *root)
{
    struct cpl_task_parts *parts = task->parts;
    json_t *from                 = json_object_get(root, "default"), *value;
    const cpl_profile *profile;
    const char *set;
    if (!from) return CPL_OK;
    if (json_is_string(from)) parts->defaults[parts->n_defaults++] = json_string_value(from);
    if (!json_is_string(from) && (!json_is_object(from) || json_object_size(from) > 3))
        return FAIL(task, from,
                    "`default` must be a profile, or one for each set: default: {3b: inloop}");
    if (json_is_object(from)) json_object_foreach(from, set, value)
        {
            if (!json_is_string(value))
                return FAIL(task, value, "the name of a profile is missing: default: {3b: inloop}");
            if (!cpl_string_list_holds(&task->sets, set))
                return FAIL(task, value, "%.40s is not among its sets", set);
            parts->default_of[parts->n_defaults] = set;
            parts->defaults[parts->n_defaults++] = json_string_value(value);
        }
    for (int64_t i = 0; i < parts->n_defaults; i++)
        CPL_TRY(AT(task, from, cpl_task_profile(&profile, task, NULL, parts->defaults[i], NULL)));
    return CPL_OK;
}

static cpl_status read_task(cpl_task *task)
{
    const json_t *root = task->parts->tree.root, *fields = json_object_get(root, "fields");
    CPL_TRY(cpl_task_keys(task, root, "task", keys, sizeof keys / sizeof *keys));
    CPL_TRY(read_id(task, root));
    CPL_TRY(cpl_task_text_of(&task->title, task, root, "title", task->id));
    CPL_TRY(cpl_task_text_of(&task->source, task, root, "source", NULL));
    CPL_TRY(cpl_task_text_of(&task->licence, task, root, "licence", NULL));
    CPL_TRY(read_sets(task, root));
    CPL_TRY(read_chance(task, root));
    if (!json_is_object(fields))
        return FAIL(task, fields ? fields : root,
                    "the task reads nothing of its rows: fields: {NAME: PATH}");
    CPL_TRY(cpl_task_read_subjects(task, root));
    CPL_TRY(cpl_task_read_splits(task, json_object_get(root, "splits")));
    CPL_TRY(cpl_task_read_profiles(task, json_object_get(root, "profiles")));
    return read_defaults(task, root);
}

static cpl_status parse_into(cpl_task *task, const char *name, const void *bytes, size_t length,
                             const cpl_request_kind *const *kinds)
{
    *task       = (cpl_task){.id = "", .chance = NAN};
    task->parts = cpl_alloc(sizeof *task->parts);
    if (!task->parts) return CPL_ERR_MEMORY;
    memset(task->parts, 0, sizeof *task->parts);
    task->parts->kinds = kinds;
    CPL_TRY(cpl_yaml_tree_parse(&task->parts->tree, name, bytes, length));
    CPL_TRY(read_task(task));
    return cpl_pool_status(&task->parts->pool);
}

cpl_status cpl_task_parse(cpl_task **task, const char *name, const void *bytes, size_t length,
                          const cpl_request_kind *const *kinds)
{
    *task             = cpl_alloc(sizeof **task);
    cpl_status status = *task ? parse_into(*task, name, bytes, length, kinds) : CPL_ERR_MEMORY;
    if (status == CPL_OK) return CPL_OK;
    cpl_task_free(*task);
    *task = NULL;
    return status;
}

cpl_status cpl_task_read(cpl_task **task, const char *path, const cpl_request_kind *const *kinds)
{
    cpl_text text = {0};
    *task         = NULL;
    if (cpl_path_ends_in(path, ".jsonl"))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a file of rows, and a task file is YAML that names it: splits: "
                        "{test: ROWS.jsonl} (docs/tasks.md)",
                        path);
    cpl_status status = cpl_file_read_given(&text, path, CPL_YAML_MOST_BYTES);
    if (status == CPL_OK) status = cpl_task_parse(task, path, text.bytes, text.length, kinds);
    cpl_text_free(&text);
    return status;
}

void cpl_task_free(cpl_task *task)
{
    if (task && task->parts) {
        json_decref(task->parts->kept);
        cpl_yaml_tree_free(&task->parts->tree);
        cpl_pool_free(&task->parts->pool);
        cpl_free(task->parts);
    }
    cpl_free(task);
}
