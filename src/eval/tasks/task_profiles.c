/* task_profiles.c - the profiles of a task file: their bases, cases and metrics;
 * see task_parts.h */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "eval/tasks/task_parts.h"

/* The keys of a profile. The first N_CASE_KEYS are the keys of a case. */
static const char *const keys[] = {
    "subjects",    "ask",     "context", "delimiter", "option",    "lists",         "exemplar",
    "target",      "prompt",  "tokens",  "window",    "beyond",    "unconditional", "scores",
    "until",       "answers", "choices", "gold",      "fields",    "max_gen_toks",  "context_as",
    "description", "split",   "shots",   "metrics",   "exemplars", "cases",         "forms",
    "headline",    "groups",  "like",
};
enum { N_CASE_KEYS = 22, N_KEYS = sizeof keys / sizeof *keys, MOST_SHOTS = 64, MOST_PROFILES = 64 };

static const char *default_of(const cpl_task *task, const char *set)
{
    const struct cpl_task_parts *parts = task->parts;
    for (int64_t i = 0; i < parts->n_defaults; i++)
        if (!parts->default_of[i] || !set || strcmp(parts->default_of[i], set) == 0)
            return parts->defaults[i];
    return task->profiles[0].name;
}

cpl_status cpl_task_profile(const cpl_profile **profile, const cpl_task *task, const char *set,
                            const char *name, const char *variant)
{
    size_t index;
    char whole[256];
    if (!name) name = default_of(task, set);
    snprintf(whole, sizeof whole, "%s%s%s", name, variant ? "/" : "", variant ? variant : "");
    cpl_status status = cpl_lookup_in(&index, "profile", whole, task->profiles,
                                      (size_t)task->n_profiles, sizeof *task->profiles);
    if (status != CPL_OK) return CPL_FAIL(status, "%s: %s", task->id, cpl_last_error());
    *profile = &task->profiles[index];
    return CPL_OK;
}

/* ---- the settings of a profile ---- */

/* Joins the members of `above` and `below`. `above` replaces equal keys, also inside "fields". */
static cpl_status join(const json_t **out, cpl_task *task, const json_t *below, const json_t *above)
{
    const json_t *lower = json_object_get(below, "fields"),
                 *upper = json_object_get(above, "fields");
    CPL_TRY(cpl_task_join(out, task, below, above));
    if (!json_is_object(lower) || !json_is_object(upper)) return CPL_OK;
    const json_t *fields;
    CPL_TRY(cpl_task_join(&fields, task, lower, upper));
    if (json_object_set((json_t *)(uintptr_t)*out, "fields", (json_t *)(uintptr_t)fields))
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the task %s", task->id);
    return CPL_OK;
}

/* Sets `*base` to the base of the profile `name`, or to NULL if the profile has no base. The base's
 * values apply where the profile sets none. */
static cpl_status base_of(const char **base, cpl_task *task, const json_t *profiles,
                          const char *name)
{
    const json_t *own = json_object_get(profiles, name);
    const char *slash = strchr(name, '/');
    CPL_TRY(cpl_task_text_of(base, task, own, "like", NULL));
    if (!*base && slash) *base = cpl_pool_copy(&task->parts->pool, name, (size_t)(slash - name));
    CPL_TRY(cpl_pool_status(&task->parts->pool));
    if (!*base || json_object_get(profiles, *base)) return CPL_OK;
    return FAIL(task, own,
                "there is no profile %.100s, the base of profile %.100s: add profile %.100s, or "
                "name another base: like: PROFILE",
                *base, name, *base);
}

/* Sets all settings of a profile: its own, then the settings of its base, and so on, then the
 * settings of the task. */
static cpl_status collect(const json_t **out, cpl_task *task, const json_t *profiles,
                          const char *name)
{
    static const char *const of_task[] = {"fields", "gold", "choices"};
    const char *at                     = name, *base;
    const json_t *all                  = json_object_get(profiles, name), *task_wide;
    for (size_t steps = 0;; steps++) {
        CPL_TRY(base_of(&base, task, profiles, at));
        if (!base) break;
        if (steps > json_object_size(profiles))
            return FAIL(task, json_object_get(profiles, name),
                        "the bases of the profile %.100s form a cycle: leave out one `like`", name);
        const json_t *below = json_object_get(profiles, base), *without;
        CPL_TRY(cpl_task_join(&without, task, below, NULL));
        json_object_del((json_t *)(uintptr_t)without, "forms");
        CPL_TRY(join(&all, task, without, all));
        at = base;
    }
    CPL_TRY(cpl_task_join(&task_wide, task, NULL, NULL));
    for (size_t i = 0; i < sizeof of_task / sizeof *of_task; i++) {
        json_t *value = json_object_get(task->parts->tree.root, of_task[i]);
        if (value && json_object_set((json_t *)(uintptr_t)task_wide, of_task[i], value))
            return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the task %s", task->id);
    }
    return join(out, task, task_wide, all);
}

/* ---- shots, splits ---- */

static cpl_status find_split(const cpl_split **split, const cpl_task *task, const json_t *from,
                             const char *key)
{
    const cpl_split *splits = task->parts->splits;
    const char *name;
    size_t index;
    CPL_TRY(cpl_task_text_of(&name, task, from, key, NULL));
    *split = NULL;
    if (!name) return CPL_OK;
    CPL_TRY(AT(task, json_object_get(from, key),
               cpl_lookup_in(&index, "split", name, splits, (size_t)task->parts->n_splits,
                             sizeof *splits)));
    *split = &splits[index];
    return CPL_OK;
}

static bool is_wanted(const int64_t *shots, int64_t n, int64_t value)
{
    for (int64_t i = 0; i < n; i++)
        if (shots[i] == value || (shots[i] < 0 && value == 0)) return true;
    return false;
}

const char *cpl_task_shots_words(cpl_pool *pool, const int64_t *shots, int64_t n)
{
    int64_t most = 0, count = 0, first = -1;
    const char *words = "";
    for (int64_t i = 0; i < n; i++) most = shots[i] > most ? shots[i] : most;
    for (int64_t value = 0; value <= most && words; value++) {
        if (!is_wanted(shots, n, value)) continue;
        words = cpl_pool_printf(pool, "%s%s%lld", words, count++ ? "," : "", (long long)value);
        if (first < 0) first = value;
    }
    if (count > 2 && count == most - first + 1)
        words = cpl_pool_printf(pool, "%lld-%lld", (long long)first, (long long)most);
    return words;
}

static cpl_status read_shots(cpl_resolved_profile *resolved, cpl_profile *profile, cpl_task *task,
                             const json_t *from, const json_t *place)
{
    static const char *const nought[] = {"0"};
    const json_t *node                = json_object_get(from, "shots");
    bool prompted                     = json_object_get(from, "prompt") != NULL;
    cpl_string_list texts;
    CPL_TRY(cpl_task_names_of(&texts, task, from, "shots"));
    if (!texts.count) texts = (cpl_string_list){nought, 1};
    int64_t n = texts.count, *shots = cpl_pool_take(&task->parts->pool, (size_t)n * sizeof *shots);
    if (!shots) return cpl_pool_status(&task->parts->pool);
    for (int64_t i = 0; i < n; i++) {
        const char *text = texts.at[i];
        char *end        = NULL;
        long value       = strtol(text, &end, 10);
        bool none        = strcmp(text, "none") == 0;
        if (!none && (end == text || *end || value < 0 || value > MOST_SHOTS))
            return FAIL(task, node, "`shots` must be none or a number up to %d, not %.40s",
                        MOST_SHOTS, text);
        shots[i] = none ? -1 : value;
        if (shots[i] > 0 && !resolved->fewshot_split && !prompted)
            return FAIL(task, node ? node : place,
                        "the %ld few-shot examples need a split: write exemplars: SPLIT", value);
    }
    resolved->shots   = shots;
    resolved->n_shots = n;
    profile->shots    = cpl_task_shots_words(&task->parts->pool, shots, n);
    return cpl_pool_status(&task->parts->pool);
}

/* ---- prompt specs ---- */

static cpl_status read_case(cpl_prompt_spec *spec, cpl_task *task,
                            const cpl_resolved_profile *resolved, const char *profile,
                            const json_t *all, const json_t *own)
{
    const json_t *joint;
    CPL_TRY(cpl_task_keys(task, own, "case", keys, N_CASE_KEYS));
    CPL_TRY(cpl_task_names_of(&spec->subjects, task, own, "subjects"));
    if (!spec->subjects.count)
        return FAIL(task, own, "the case has no subjects: write subjects: [law, medicine]");
    CPL_TRY(cpl_task_check_subjects(task, &spec->subjects, json_object_get(own, "subjects")));
    CPL_TRY(join(&joint, task, all, own));
    return cpl_task_read_prompt_spec(spec, task, resolved, profile, joint, own);
}

static cpl_status read_specs(cpl_resolved_profile *resolved, cpl_task *task, const char *profile,
                             const json_t *all, const json_t *place)
{
    const json_t *cases = json_object_get(all, "cases");
    size_t n            = json_array_size(cases);
    if (cases && !json_is_array(cases))
        return FAIL(task, cases,
                    "`cases` must be a list: cases: [{subjects: [law], context: TEXT}]");
    if (n && !task->parts->subject)
        return FAIL(task, cases,
                    "`cases` need subjects, and the task has none: write subject: file");
    resolved->specs = cpl_pool_take(&task->parts->pool, (n + 1) * sizeof *resolved->specs);
    if (!resolved->specs) return cpl_pool_status(&task->parts->pool);
    resolved->n_specs = (int64_t)n + 1;
    CPL_TRY(cpl_task_read_prompt_spec(&resolved->specs[0], task, resolved, profile, all, place));
    for (size_t i = 0; i < n; i++)
        CPL_TRY(read_case(&resolved->specs[i + 1], task, resolved, profile, all,
                          json_array_get(cases, i)));
    return CPL_OK;
}

/* ---- metrics ---- */

bool cpl_metric_is_score(const char *name)
{
    for (size_t i = 0; i < cpl_n_scores; i++)
        if (strcmp(cpl_scores[i].name, name) == 0) return true;
    return strcmp(name, "soft") == 0;
}

bool cpl_metric_is_loss(const char *name)
{
    const cpl_score *score;
    return cpl_score_find(&score, name) == CPL_OK && score->loss;
}

/* Returns the name of a prompt spec for messages: "the profile" or "the case of law". */
static const char *profile_or_case(cpl_pool *pool, const cpl_resolved_profile *resolved,
                                   const cpl_prompt_spec *spec)
{
    if (spec == &resolved->specs[0]) return "the profile";
    return cpl_pool_printf(pool, "the case of %.100s", spec->subjects.at[0]);
}

/* Returns whether any prompt spec can report a metric. */
static bool is_reported(const cpl_resolved_profile *resolved, const char *metric)
{
    for (int64_t i = 0; i < resolved->n_specs; i++) {
        const cpl_request_spec *form = &resolved->specs[i].form;
        if (form->kind->has_metric(form, metric)) return true;
    }
    return false;
}

/* Sets the list to the scores, or to the answers. */
static cpl_status all_metrics(cpl_string_list *list, const cpl_task *task,
                              const cpl_request_spec *form)
{
    int64_t n = 0;
    while (form->kind->metric(form, n)) n++;
    const char **at = cpl_pool_take(&task->parts->pool, (size_t)n * sizeof *at);
    if (!at) return cpl_pool_status(&task->parts->pool);
    for (int64_t i = 0; i < n; i++) at[i] = form->kind->metric(form, i);
    *list = (cpl_string_list){at, n};
    return CPL_OK;
}

static cpl_status check_metrics(const cpl_task *task, const cpl_profile *profile,
                                const cpl_resolved_profile *resolved,
                                const cpl_string_list *metrics, const json_t *node)
{
    cpl_string_list there;
    size_t index;
    for (int64_t i = 0; i < metrics->count; i++) {
        if (!is_reported(resolved, metrics->at[i])) {
            CPL_TRY(all_metrics(&there, task, &resolved->specs[0].form));
            CPL_TRY(AT(task, node,
                       cpl_lookup(&index, "score or answer", metrics->at[i], there.at,
                                  (size_t)there.count)));
        }
        for (int64_t k = 0; k < resolved->n_specs; k++) {
            const cpl_request_spec *form = &resolved->specs[k].form;
            const char *of = profile_or_case(&task->parts->pool, resolved, &resolved->specs[k]);
            if (form->kind->reports(profile, metrics->at[i]))
                CPL_TRY(form->kind->check_metric(task, form, profile, metrics->at[i], of, node));
        }
    }
    return CPL_OK;
}

/* Checks that all prompt specs that generate text list the answers of the first prompt spec, if the
 * answers are filters of one metric. */
static cpl_status check_filters(const cpl_task *task, const cpl_resolved_profile *resolved,
                                const json_t *node)
{
    const cpl_request_spec *first = &resolved->specs[0].form;
    for (int64_t i = 1; first->filters && i < resolved->n_specs; i++) {
        const cpl_request_spec *form = &resolved->specs[i].form;
        bool same                    = form->n_answers == first->n_answers;
        for (int64_t k = 0; same && k < first->n_answers; k++)
            same = strcmp(form->answers[k].name, first->answers[k].name) == 0;
        if (!same && form->kind->generates)
            return FAIL(task, node, "metrics: filters: %s has other answers than the profile",
                        profile_or_case(&task->parts->pool, resolved, &resolved->specs[i]));
    }
    return CPL_OK;
}

/* Sets the metrics of a profile: its list, or, without a list, the scores or the answers. */
static cpl_status list_metrics(cpl_profile *profile, const cpl_resolved_profile *resolved,
                               cpl_task *task, const json_t *from)
{
    static const char *const one[] = {"exact_match"};
    const cpl_request_spec *form   = &resolved->specs[0].form;
    CPL_TRY(cpl_task_names_of(&profile->metrics, task, from, "metrics"));
    if (form->filters) profile->metrics = (cpl_string_list){one, 1};
    return profile->metrics.count ? CPL_OK : all_metrics(&profile->metrics, task, form);
}

/* Reads the metrics of a profile, whose prompt specs were read before. */
static cpl_status read_metrics(cpl_profile *profile, cpl_resolved_profile *resolved, cpl_task *task,
                               const json_t *from, const json_t *place)
{
    const json_t *node = json_object_get(from, "metrics");
    if (!node) node = place;
    CPL_TRY(list_metrics(profile, resolved, task, from));
    for (int64_t i = 0; i < profile->n_groups; i++)
        CPL_TRY(check_metrics(task, profile, resolved, &profile->groups[i].metrics, node));
    CPL_TRY(check_metrics(task, profile, resolved, &profile->metrics, node));
    CPL_TRY(check_filters(task, resolved, node));
    resolved->one_option = resolved->specs[0].form.kind->has_options;
    for (int64_t i = 0; i < profile->metrics.count; i++)
        resolved->one_option &= cpl_metric_is_loss(profile->metrics.at[i]);
    return cpl_pool_status(&task->parts->pool);
}

/* ---- profiles ---- */

static cpl_status read_headline(cpl_profile *profile, const cpl_task *task, const json_t *all)
{
    static const char *const what[] = {"questions", "groups", "subjects"};
    size_t headline;
    CPL_TRY(cpl_task_word_of(&headline, task, all, "headline", what, 3, 0));
    profile->headline = (cpl_headline_of)headline;
    if (profile->headline == CPL_OF_GROUPS && !profile->n_groups)
        return FAIL(task, json_object_get(all, "headline"),
                    "the task has no groups: write groups: {sciences: [physics, biology]}");
    if (profile->headline == CPL_OF_SUBJECTS && !task->parts->subject)
        return FAIL(task, json_object_get(all, "headline"),
                    "the task has no subjects: write subject: file");
    return CPL_OK;
}

static cpl_status read_profile(cpl_profile *profile, cpl_resolved_profile *resolved, cpl_task *task,
                               const json_t *profiles)
{
    const json_t *own = json_object_get(profiles, profile->name), *all;
    CPL_TRY(cpl_task_names_of(&profile->forms, task, own, "forms"));
    CPL_TRY(collect(&all, task, profiles, profile->name));
    CPL_TRY(find_split(&resolved->split, task, all, "split"));
    CPL_TRY(find_split(&resolved->fewshot_split, task, all, "exemplars"));
    CPL_TRY(cpl_task_read_groups(profile, task, json_object_get(all, "groups")));
    CPL_TRY(read_headline(profile, task, all));
    if (resolved->split) profile->split = resolved->split->name;
    CPL_TRY(read_shots(resolved, profile, task, all, own));
    if (profile->forms.count) return CPL_OK;
    if (!resolved->split)
        return FAIL(task, own, "split: missing; it names the split with the questions");
    if (resolved->split == resolved->fewshot_split)
        return FAIL(task, own, "exemplars: a question would be among its own few-shot examples");
    CPL_TRY(read_specs(resolved, task, profile->name, all, own));
    return read_metrics(profile, resolved, task, all, own);
}

/* Checks that the forms of a profile have no forms. The first form sets the metrics and the
 * split. */
static cpl_status check_forms(cpl_profile *profile, const cpl_task *task, const json_t *own)
{
    for (int64_t i = 0; i < profile->forms.count; i++) {
        const cpl_profile *form;
        CPL_TRY(AT(task, own,
                   cpl_task_profile(&form, task, NULL, profile->name, profile->forms.at[i])));
        if (form->forms.count)
            return FAIL(task, own, "the form %s has forms of its own: name those instead",
                        form->name);
        if (i == 0) profile->metrics = form->metrics;
        if (i == 0) profile->split = form->split;
    }
    return CPL_OK;
}

cpl_status cpl_task_read_profiles(cpl_task *task, const json_t *profiles)
{
    struct cpl_task_parts *parts = task->parts;
    size_t n = json_object_size(profiles), i = 0;
    const char *name;
    json_t *own;
    if (!n)
        return FAIL(task, profiles,
                    "a task needs a profile: profiles: {NAME: {split: SPLIT, context: TEXT}}");
    if (n > MOST_PROFILES) return FAIL(task, profiles, "more than %d profiles", MOST_PROFILES);
    task->profiles  = cpl_pool_take(&parts->pool, n * sizeof *task->profiles);
    parts->resolved = cpl_pool_take(&parts->pool, n * sizeof *parts->resolved);
    if (!task->profiles || !parts->resolved) return cpl_pool_status(&parts->pool);
    json_object_foreach((json_t *)(uintptr_t)profiles, name, own)
    {
        CPL_TRY(cpl_task_keys(task, own, "profile", keys + 1, N_KEYS - 1));
        task->profiles[task->n_profiles++].name = name;
    }
    for (i = 0; i < n; i++)
        CPL_TRY(read_profile(&task->profiles[i], &parts->resolved[i], task, profiles));
    for (i = 0; i < n; i++)
        CPL_TRY(check_forms(&task->profiles[i], task,
                            json_object_get(profiles, task->profiles[i].name)));
    return CPL_OK;
}
