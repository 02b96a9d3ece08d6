/* selection.c - see selection.h */
#include "eval/prompts/selection.h"

#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "eval/tasks/task_parts.h"

/* ---- the known tasks ---- */

static cpl_status add_task(cpl_selection *s, cpl_task *task)
{
    cpl_task **larger = cpl_realloc(s->tasks, (size_t)(s->n_tasks + 1) * sizeof(cpl_task *));
    if (!larger) {
        cpl_task_free(task);
        return CPL_ERR_MEMORY;
    }
    s->tasks               = larger;
    s->tasks[s->n_tasks++] = task;
    return CPL_OK;
}

cpl_status cpl_selection_init(cpl_selection *s, const cpl_request_kind *const *kinds)
{
    cpl_status status = CPL_OK;
    *s                = (cpl_selection){.kinds = kinds};
    for (size_t i = 0; i < cpl_n_task_texts && status == CPL_OK; i++) {
        const cpl_task_text *text = &cpl_task_texts[i];
        cpl_task *task            = NULL;
        status = cpl_task_parse(&task, text->id, text->bytes, text->length, kinds);
        if (status == CPL_OK) status = add_task(s, task);
    }
    s->n_built_in = s->n_tasks;
    if (status != CPL_OK) cpl_selection_free(s);
    return status;
}

void cpl_selection_free(cpl_selection *s)
{
    for (int64_t i = 0; i < s->n_tasks; i++) cpl_task_free(s->tasks[i]);
    for (int64_t i = 0; i < s->count; i++) cpl_free(s->at[i].key);
    cpl_free(s->tasks);
    cpl_free(s->at);
    *s = (cpl_selection){0};
}

/* Returns the last task of that id, since a user's file may replace a built-in task, or NULL. */
static const cpl_task *find_task(const cpl_selection *s, const char *id)
{
    for (int64_t i = s->n_tasks - 1; i >= 0; i--)
        if (strcmp(s->tasks[i]->id, id) == 0) return s->tasks[i];
    return NULL;
}

const cpl_selection_set cpl_selection_sets[CPL_SELECTION_SETS] = {{"paper-3b", "3b"},
                                                                  {"paper-15b", "15b"}};

/* Returns whether `name` has all characters of `word` in their order and begins with the first, as
 * "social_iqa" for "siqa". */
static bool abbreviates(const char *word, const char *name)
{
    const char *at = name;
    if (*word != *name) return false;
    for (; *at && *word; at++) word += *at == *word;
    return !*word;
}

/* Returns whether `word` is `name` with a separator after it, as "mmlu_anatomy" for "mmlu". */
static bool begins(const char *name, const char *word)
{
    const size_t length = strlen(name);
    return strncmp(word, name, length) == 0 && strchr("_-/:", word[length]);
}

/* Appends the names that may have been meant: all names that begin with the word. Otherwise appends
 * the shortest name that the word abbreviates, the longest name that begins the word, or the
 * nearest. */
static void append_meant(cpl_text *out, const char *word, const char *const *names, size_t count)
{
    const char *shortest = NULL, *whole = NULL;
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(names[i]);
        if (strncmp(names[i], word, strlen(word)) == 0)
            cpl_text_printf(out, "%s%s", out->length ? " or " : "", names[i]);
        if (strlen(word) > 2 && abbreviates(word, names[i]) &&
            (!shortest || length < strlen(shortest)))
            shortest = names[i];
        if (begins(names[i], word) && (!whole || length > strlen(whole))) whole = names[i];
    }
    if (out->length) return;
    const char *one = shortest ? shortest : whole ? whole : cpl_text_nearest(word, names, count);
    cpl_text_printf(out, "%s", one ? one : "");
}

static cpl_status unknown(const cpl_selection *s, const char *word)
{
    const size_t count = (size_t)s->n_tasks + CPL_SELECTION_SETS + 1;
    cpl_text meant     = {0};
    const char **names = cpl_alloc(count * sizeof *names);
    if (!names) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < s->n_tasks; i++) names[i] = s->tasks[i]->id;
    for (int i = 0; i < CPL_SELECTION_SETS; i++) names[s->n_tasks + i] = cpl_selection_sets[i].word;
    names[count - 1] = "all";
    append_meant(&meant, word, names, count);
    cpl_free(names);
    cpl_status status = cpl_text_status(&meant);
    if (status == CPL_OK)
        status =
            CPL_FAIL(CPL_ERR_USAGE, "there is no task %s%s%s%s (`couplet eval --list` shows all)",
                     word, meant.length ? "; did you mean " : "", meant.length ? meant.bytes : "",
                     meant.length ? "?" : "");
    cpl_text_free(&meant);
    return status;
}

bool cpl_selection_is_of(const cpl_selection *s, int64_t i, const char *set)
{
    return i < s->n_built_in && cpl_string_list_holds(&s->tasks[i]->sets, set);
}

/* ---- the selected tasks ---- */

static bool key_is_taken(const cpl_selection *s, const char *key)
{
    for (int64_t i = 0; i < s->count; i++)
        if (strcmp(s->at[i].key, key) == 0) return true;
    return false;
}

/* Returns id, or id/profile for a second profile of the task and for a form. A number is appended
 * if another task of the same id has that key. NULL: out of memory. */
static char *make_key(const cpl_selection *s, const cpl_task *task, const cpl_profile *profile,
                      bool form)
{
    cpl_text key = {0};
    cpl_text_printf(&key, "%s", task->id);
    if (form || (!key.failed && key_is_taken(s, key.bytes)))
        cpl_text_printf(&key, "/%s", profile->name);
    const size_t length = key.length;
    for (int n = 2; !key.failed && key_is_taken(s, key.bytes); n++) {
        key.length = length;
        cpl_text_printf(&key, "#%d", n);
    }
    if (cpl_text_status(&key) == CPL_OK) return key.bytes;
    cpl_text_free(&key);
    return NULL;
}

static cpl_status append(cpl_selection *s, const cpl_task *task, const cpl_profile *profile,
                         bool form)
{
    cpl_selected *larger = cpl_realloc(s->at, (size_t)(s->count + 1) * sizeof *larger);
    if (!larger) return CPL_ERR_MEMORY;
    s->at            = larger;
    cpl_selected one = {
        .task = task, .profile = profile, .form_of = -1, .key = make_key(s, task, profile, form)};
    if (!one.key) return CPL_ERR_MEMORY;
    s->at[s->count++] = one;
    return CPL_OK;
}

/* Appends the variants of a profile that has forms, and then the profile itself. */
static cpl_status append_forms(cpl_selection *s, const cpl_task *task, const cpl_profile *profile)
{
    const int64_t first = s->count;
    for (int64_t i = 0; i < profile->forms.count; i++) {
        const cpl_profile *form;
        CPL_TRY(cpl_task_profile(&form, task, NULL, profile->name, profile->forms.at[i]));
        CPL_TRY(append(s, task, form, true));
    }
    for (int64_t i = first; i < s->count; i++) s->at[i].form_of = first + profile->forms.count;
    return append(s, task, profile, false);
}

static cpl_status select_task(cpl_selection *s, const cpl_task *task, const char *set,
                              const cpl_selection_options *options)
{
    const cpl_profile *profile;
    cpl_status status = cpl_task_profile(&profile, task, set, options->profile, options->variant);
    if (status == CPL_ERR_INPUT) return CPL_FAIL(CPL_ERR_USAGE, "%s", cpl_last_error());
    CPL_TRY(status);
    for (int64_t i = 0; i < s->count; i++)
        if (s->at[i].task == task && s->at[i].profile == profile && s->at[i].form_of < 0)
            return CPL_OK;
    return profile->forms.count ? append_forms(s, task, profile) : append(s, task, profile, false);
}

static cpl_status select_word(cpl_selection *s, const char *word,
                              const cpl_selection_options *options)
{
    const bool all       = strcmp(word, "all") == 0;
    const cpl_task *task = find_task(s, word);
    bool found           = all;
    if (!*word)
        return CPL_FAIL(CPL_ERR_USAGE, "the name of a task is empty: names of tasks are needed, "
                                       "with one comma between two of them");
    for (int i = 0; i < CPL_SELECTION_SETS; i++) {
        if (!all && strcmp(word, cpl_selection_sets[i].word) != 0) continue;
        const char *set = cpl_selection_sets[i].set;
        for (int64_t k = 0; k < s->n_tasks; k++)
            if (cpl_selection_is_of(s, k, set)) CPL_TRY(select_task(s, s->tasks[k], set, options));
        found = true;
    }
    if (found) return CPL_OK;
    return task ? select_task(s, task, NULL, options) : unknown(s, word);
}

cpl_status cpl_selection_add(cpl_selection *s, const cpl_selection_options *options)
{
    for (int64_t i = 0; i < options->n_words; i++)
        CPL_TRY(select_word(s, options->words[i], options));
    for (int64_t i = 0; i < options->n_files; i++) {
        cpl_task *task = NULL;
        CPL_TRY(cpl_task_read(&task, options->files[i], s->kinds));
        CPL_TRY(add_task(s, task));
        CPL_TRY(select_task(s, task, NULL, options));
    }
    return CPL_OK;
}
