/* task_tree.c - values of a task file's tree, checked; see task_parts.h */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "eval/tasks/task_parts.h"

cpl_status cpl_task_keys(const cpl_task *task, const json_t *from, const char *kind,
                         const char *const *names, size_t count)
{
    const char *key;
    json_t *value;
    size_t index;
    char what[64];
    if (!json_is_object(from)) return FAIL(task, from, "a %s must be a mapping, NAME: VALUE", kind);
    snprintf(what, sizeof what, "key of a %s", kind);
    json_object_foreach((json_t *)(uintptr_t)from, key, value)
        CPL_TRY(AT(task, value, cpl_lookup(&index, what, key, names, count)));
    return CPL_OK;
}

/* Fails because `value` is not a text. */
static cpl_status no_text(const cpl_task *task, const json_t *value, const char *key,
                          const char *wanted)
{
    const char *is =
        json_is_object(value) ? "a mapping: quote a text that begins with {" : "a list";
    return FAIL(task, value, "%s must be %s, and here is %s", key, wanted, is);
}

cpl_status cpl_task_text_of(const char **text, const cpl_task *task, const json_t *from,
                            const char *key, const char *absent)
{
    const json_t *value = json_object_get(from, key);
    *text               = absent;
    if (!value) return CPL_OK;
    if (!json_is_string(value)) return no_text(task, value, key, "a text");
    *text = json_string_value(value);
    return CPL_OK;
}

cpl_status cpl_task_word_of(size_t *index, const cpl_task *task, const json_t *from,
                            const char *key, const char *const *names, size_t count, size_t absent)
{
    const char *word;
    *index = absent;
    CPL_TRY(cpl_task_text_of(&word, task, from, key, NULL));
    if (!word) return CPL_OK;
    return AT(task, json_object_get(from, key), cpl_lookup(index, key, word, names, count));
}

cpl_status cpl_task_names(cpl_string_list *names, const cpl_task *task, const json_t *value,
                          const char *key)
{
    size_t n        = json_is_array(value) ? json_array_size(value) : value != NULL;
    const char **at = cpl_pool_take(&task->parts->pool, n * sizeof *at);
    if (!at) return cpl_pool_status(&task->parts->pool);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(item)) return no_text(task, item, key, "a text or a list of texts");
        at[i] = json_string_value(item);
    }
    *names = (cpl_string_list){at, (int64_t)n};
    return CPL_OK;
}

cpl_status cpl_task_names_of(cpl_string_list *names, const cpl_task *task, const json_t *from,
                             const char *key)
{
    return cpl_task_names(names, task, json_object_get(from, key), key);
}

cpl_status cpl_task_int(int64_t *value, const cpl_task *task, const json_t *node, const char *key,
                        int64_t lo, int64_t hi)
{
    const char *text = json_string_value(node);
    char *end        = NULL;
    if (!text) return no_text(task, node, key, "a number");
    errno  = 0;
    *value = strtoll(text, &end, 10);
    if (errno || end == text || *end || *value < lo || *value > hi)
        return FAIL(task, node, "%s must be a whole number from %lld to %lld, not %.40s", key,
                    (long long)lo, (long long)hi, text);
    return CPL_OK;
}

cpl_status cpl_task_int_of(int64_t *value, const cpl_task *task, const json_t *from,
                           const char *key, int64_t lo, int64_t hi, int64_t absent)
{
    const json_t *node = json_object_get(from, key);
    *value             = absent;
    return node ? cpl_task_int(value, task, node, key, lo, hi) : CPL_OK;
}

cpl_status cpl_task_template_of(cpl_template *t, bool *there, const cpl_task *task,
                                const json_t *from, const char *key)
{
    const char *text;
    CPL_TRY(cpl_task_text_of(&text, task, from, key, NULL));
    if (there) *there = text != NULL;
    if (!text) return CPL_OK;
    return AT(task, json_object_get(from, key), cpl_template_parse(t, &task->parts->pool, text));
}

cpl_status cpl_task_templates_of(cpl_listing *list, const cpl_task *task, const json_t *from,
                                 const char *key, const json_t *place)
{
    const json_t *node = json_object_get(from, key);
    cpl_string_list texts;
    CPL_TRY(cpl_task_names(&texts, task, node, key));
    cpl_template *made = cpl_pool_take(&task->parts->pool, (size_t)texts.count * sizeof *made);
    if (!made) return cpl_pool_status(&task->parts->pool);
    for (int64_t i = 0; i < texts.count; i++)
        CPL_TRY(AT(task, place ? place : json_array_get(node, (size_t)i),
                   cpl_template_parse(&made[i], &task->parts->pool, texts.at[i])));
    *list = (cpl_listing){NULL, made, texts.count};
    return CPL_OK;
}

bool cpl_string_list_holds(const cpl_string_list *names, const char *name)
{
    for (int64_t i = 0; i < names->count; i++)
        if (strcmp(names->at[i], name) == 0) return true;
    return false;
}

cpl_status cpl_task_join(const json_t **out, cpl_task *task, const json_t *below,
                         const json_t *above)
{
    struct cpl_task_parts *parts = task->parts;
    if (!parts->kept) parts->kept = json_array();
    json_t *joint = json_object();
    bool failed   = json_array_append_new(parts->kept, joint) != 0;
    if (!failed && below) failed = json_object_update(joint, (json_t *)(uintptr_t)below) != 0;
    if (!failed && above) failed = json_object_update(joint, (json_t *)(uintptr_t)above) != 0;
    if (failed) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the task %s", task->id);
    *out                = joint;
    const json_t *whole = json_object_size(above) || !below ? above : below;
    return cpl_yaml_tree_same_place(&parts->tree, joint, whole);
}
