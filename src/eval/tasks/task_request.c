/* task_request.c - the request of a profile: scores, answers, metrics; see task_internal.h */
#include <string.h>

#include "base/text.h"
#include "eval/tasks/task_internal.h"

/* What the name of a profile, without its variant, stands for where nothing else is said. */
typedef struct habit {
    const char *name;
    cpl_joining joining;
    int64_t window;
    bool fixed; /* whatever the model's is: the reference program does not ask for that */
    const char *scores[4];
} habit;

static const habit habits[] = {
    {"harness", CPL_JOIN_JOINT, 0, false, {"acc", "acc_norm", "acc_bytes"}},
    {"inloop", CPL_JOIN_SEPARATE, 2048, true, {"acc", "len_norm", "len_norm_v2"}},
    {"olmes", CPL_JOIN_SEPARATE, 2048, false, {"acc", "acc_per_char", "acc_per_token"}},
};

static const habit *habit_of(const char *profile)
{
    size_t length = strcspn(profile, "/");
    for (size_t i = 1; i < sizeof habits / sizeof *habits; i++)
        if (strlen(habits[i].name) == length && strncmp(habits[i].name, profile, length) == 0)
            return &habits[i];
    return &habits[0];
}

cpl_status cpl_task_read_scores(cpl_request_spec *form, const cpl_task *task, const char *profile,
                                const json_t *from)
{
    const habit *usual    = habit_of(profile);
    cpl_string_list names = {usual->scores, 0};
    while (names.count < 4 && usual->scores[names.count]) names.count++;
    const json_t *given = json_object_get(from, "scores");
    if (given) CPL_TRY(cpl_task_names_of(&names, task, from, "scores"));
    const cpl_score **at = cpl_pool_take(&task->parts->pool, (size_t)names.count * sizeof *at);
    if (!at) return cpl_pool_status(&task->parts->pool);
    if (!names.count) return FAIL(task, given, "scores: by which are options compared?");
    for (int64_t i = 0; i < names.count; i++) {
        CPL_TRY(AT(task, given, cpl_score_find(&at[i], names.at[i])));
        if (at[i]->loss)
            return FAIL(task, given, "%s is of the right option alone: a metric, no score",
                        names.at[i]);
    }
    form->scores   = at;
    form->n_scores = names.count;
    return CPL_OK;
}

static cpl_status read_reference(cpl_reference_rule *rule, const cpl_task *task, const json_t *from,
                                 const cpl_template *target, const json_t *place)
{
    cpl_string_list texts;
    const json_t *node = json_object_get(from, "reference");
    CPL_TRY(cpl_task_names_of(&texts, task, from, "reference"));
    if (!texts.count) {
        if (!target)
            return FAIL(task, place, "an answer wants a reference, or the profile a target");
        *rule = (cpl_reference_rule){target, 1};
        return CPL_OK;
    }
    cpl_template *made = cpl_pool_take(&task->parts->pool, (size_t)texts.count * sizeof *made);
    if (!made) return cpl_pool_status(&task->parts->pool);
    for (int64_t i = 0; i < texts.count; i++)
        CPL_TRY(AT(task, node, cpl_template_parse(&made[i], &task->parts->pool, texts.at[i])));
    *rule = (cpl_reference_rule){made, texts.count};
    return CPL_OK;
}

/* {regex_pattern: PATTERN, group_select: -1, strip: false} */
static cpl_status read_pattern(cpl_regex *regex, const cpl_task *task, const json_t *from)
{
    static const char *const keys[]   = {"regex_pattern", "group_select", "strip"};
    static const char *const truths[] = {"false", "true"};
    int64_t select;
    size_t strip;
    CPL_TRY(cpl_task_keys(task, from, "filter", keys, 3));
    CPL_TRY(cpl_task_text_of(&regex->pattern, task, from, "regex_pattern", NULL));
    CPL_TRY(cpl_task_int_of(&select, task, from, "group_select", -1, 0, 0));
    CPL_TRY(cpl_task_word_of(&strip, task, from, "strip", truths, 2, 1));
    if (!regex->pattern || !*regex->pattern)
        return FAIL(task, from, "a filter is a name, or {regex_pattern: PATTERN}");
    regex->last       = select == -1;
    regex->keep_space = strip == 0;
    return AT(task, json_object_get(from, "regex_pattern"), cpl_regex_check(regex->pattern));
}

/* A name, patterns, or a list of patterns of which the first that finds something counts. */
static cpl_status read_filter(const cpl_filter **filter, const cpl_task *task, const json_t *from,
                              const char *key)
{
    const json_t *node = json_object_get(from, key);
    if (json_is_string(node))
        return AT(task, from, cpl_filter_find(filter, json_string_value(node)));
    const bool list  = json_is_array(node);
    const size_t n   = list ? json_array_size(node) : 1;
    cpl_pool *pool   = &task->parts->pool;
    cpl_filter *made = cpl_pool_take(pool, sizeof *made);
    if (!made) return cpl_pool_status(pool);
    if (n == 0 || n > CPL_FILTER_PATTERNS)
        return FAIL(task, node, "a filter has 1 to %d patterns", CPL_FILTER_PATTERNS);
    made->name = "";
    for (size_t i = 0; i < n; i++) {
        cpl_regex *regex = &made->patterns[i];
        CPL_TRY(read_pattern(regex, task, list ? json_array_get(node, i) : node));
        made->name = cpl_pool_printf(pool, "%s%s %d %d\n", made->name, regex->pattern, regex->last,
                                     regex->keep_space);
        if (!made->name) return cpl_pool_status(pool);
    }
    *filter = cpl_filter_named(made);
    return CPL_OK;
}

static cpl_status read_answer(cpl_answer *answer, cpl_reference_rule *rule, const cpl_task *task,
                              const cpl_prompt_spec *spec, const json_t *from, const json_t *place)
{
    static const char *const keys[]  = {"filter",     "reference", "clean", "normal",
                                        "comparison", "invalid",   "show"};
    static const char *const shown[] = {"found", "normal"};
    const char *normal, *comparison;
    size_t show;
    CPL_TRY(cpl_task_keys(task, from, "answer", keys, sizeof keys / sizeof *keys));
    CPL_TRY(cpl_task_text_of(&normal, task, from, "normal", "none"));
    CPL_TRY(cpl_task_text_of(&comparison, task, from, "comparison", "exact"));
    CPL_TRY(cpl_task_text_of(&answer->invalid, task, from, "invalid", "[invalid]"));
    CPL_TRY(cpl_task_word_of(&show, task, from, "show", shown, 2, 0));
    CPL_TRY(cpl_filter_find(&answer->grading.filter, "none"));
    if (json_object_get(from, "filter"))
        CPL_TRY(read_filter(&answer->grading.filter, task, from, "filter"));
    if (json_object_get(from, "clean"))
        CPL_TRY(read_filter(&answer->grading.reference, task, from, "clean"));
    CPL_TRY(AT(task, from, cpl_normal_find(&answer->grading.normal, normal)));
    CPL_TRY(AT(task, from, cpl_comparison_find(&answer->grading.comparison, comparison)));
    if (strcmp(answer->invalid, "null") == 0) answer->invalid = NULL;
    answer->show_normal = show == 1;
    return read_reference(rule, task, from, spec->target, place);
}

/* A name of an answer is one of a metric in results, where other names end in these. */
static bool is_answer_name(const char *name)
{
    static const char *const taken[] = {"_stderr", "_macro", "_micro"};
    for (int i = 0; i < 3; i++)
        if (strstr(name, taken[i])) return false;
    return *name && strspn(name, "abcdefghijklmnopqrstuvwxyz"
                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(name);
}

cpl_status cpl_task_read_answers(cpl_prompt_spec *spec, cpl_task *task, const json_t *from,
                                 const json_t *place)
{
    const json_t *answers = json_object_get(from, "answers"),
                 *metrics = json_object_get(from, "metrics");
    const char *name;
    json_t *value;
    if (!answers) {
        static const char text[] = "exact_match";
        json_t *bare             = json_pack("{s:{}}", text);
        if (!bare) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the task %s", task->id);
        cpl_status status = cpl_task_join(&answers, task, bare, NULL);
        json_decref(bare);
        CPL_TRY(status);
    }
    size_t n = json_object_size(answers);
    if (!n) return FAIL(task, answers, "answers: NAME: {filter: ...}");
    cpl_answer *at   = cpl_pool_take(&task->parts->pool, n * sizeof *at);
    spec->references = cpl_pool_take(&task->parts->pool, n * sizeof *spec->references);
    if (!at || !spec->references) return cpl_pool_status(&task->parts->pool);
    spec->form.answers = at;
    spec->form.filters =
        json_is_string(metrics) && strcmp(json_string_value(metrics), "filters") == 0;
    json_object_foreach((json_t *)(uintptr_t)answers, name, value)
    {
        int64_t i = spec->form.n_answers++;
        if (!is_answer_name(name))
            return FAIL(
                task, value,
                "answers: \"%.100s\" is no name: letters, digits, _ and -, and not _stderr, "
                "_macro or _micro, which results have behind it",
                name);
        at[i].name = name;
        CPL_TRY(read_answer(&at[i], &spec->references[i], task, spec, value, place));
    }
    return CPL_OK;
}

/* By its name, or by lm-evaluation-harness's. */
static cpl_status read_kind(const cpl_request_kind **kind, const cpl_task *task, const json_t *from)
{
    enum { MOST_KINDS = 16 };
    const char *names[2 * MOST_KINDS] = {0};
    const size_t n                    = cpl_n_request_kinds;
    size_t index;
    CPL_ASSERT(n <= MOST_KINDS);
    for (size_t i = 0; i < n; i++) {
        names[i]     = cpl_request_kinds[i]->name;
        names[n + i] = cpl_request_kinds[i]->output_type;
    }
    CPL_TRY(cpl_task_word_of(&index, task, from, "ask", names, 2 * n, 0));
    *kind = cpl_request_kinds[index % n];
    return CPL_OK;
}

cpl_status cpl_task_read_request(cpl_prompt_spec *spec, cpl_task *task, const char *profile,
                                 const json_t *from, const json_t *place)
{
    static const char *const tokens[]  = {"joint", "separate"};
    static const char *const beyonds[] = {"cut", "error"};
    const habit *usual                 = habit_of(profile);
    cpl_request_spec *form             = &spec->form;
    size_t joining, beyond;
    CPL_TRY(read_kind(&form->kind, task, from));
    CPL_TRY(cpl_task_word_of(&joining, task, from, "tokens", tokens, 2, usual->joining));
    CPL_TRY(cpl_task_word_of(&beyond, task, from, "beyond", beyonds, 2, 0));
    CPL_TRY(cpl_task_int_of(&form->window, task, from, "window", 1, 1 << 24, usual->window));
    form->joining     = (cpl_joining)joining;
    form->stop_beyond = beyond == 1;
    form->fixed       = usual->fixed && !json_object_get(from, "window");
    return form->kind->read(spec, task, profile, from, place);
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

/* "the profile" or "the case of law". */
static const char *whose(cpl_pool *pool, const cpl_resolved_profile *resolved,
                         const cpl_prompt_spec *spec)
{
    if (spec == &resolved->specs[0]) return "the profile";
    return cpl_pool_printf(pool, "the case of %.100s", spec->subjects.at[0]);
}

/* Whether any prompt spec says anything of a metric. */
static bool is_reported(const cpl_resolved_profile *resolved, const char *metric)
{
    for (int64_t i = 0; i < resolved->n_specs; i++) {
        const cpl_request_spec *form = &resolved->specs[i].form;
        if (form->kind->has_metric(form, metric)) return true;
    }
    return false;
}

static cpl_status check_metrics(const cpl_task *task, const cpl_profile *profile,
                                const cpl_resolved_profile *resolved,
                                const cpl_string_list *metrics, const json_t *node)
{
    for (int64_t i = 0; i < metrics->count; i++) {
        if (!is_reported(resolved, metrics->at[i]))
            return FAIL(task, node,
                        "there is no metric %.100s: neither among the scores nor an answer",
                        metrics->at[i]);
        for (int64_t k = 0; k < resolved->n_specs; k++) {
            const cpl_request_spec *form = &resolved->specs[k].form;
            const char *who              = whose(&task->parts->pool, resolved, &resolved->specs[k]);
            if (form->kind->reports(profile, metrics->at[i]))
                CPL_TRY(form->kind->check_metric(task, form, profile, metrics->at[i], who, node));
        }
    }
    return CPL_OK;
}

/* Where the answers are filters of one metric, every text has the same ones. */
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
                        whose(&task->parts->pool, resolved, &resolved->specs[i]));
    }
    return CPL_OK;
}

/* Without a list: the scores, or the answers. */
static cpl_status list_metrics(cpl_profile *profile, const cpl_resolved_profile *resolved,
                               cpl_task *task, const json_t *from)
{
    static const char *const one[] = {"exact_match"};
    const cpl_request_spec *form   = &resolved->specs[0].form;
    int64_t n                      = 0;
    CPL_TRY(cpl_task_names_of(&profile->metrics, task, from, "metrics"));
    if (form->filters) profile->metrics = (cpl_string_list){one, 1};
    if (profile->metrics.count) return CPL_OK;
    while (form->kind->metric(form, n)) n++;
    const char **at = cpl_pool_take(&task->parts->pool, (size_t)n * sizeof *at);
    if (!at) return cpl_pool_status(&task->parts->pool);
    for (int64_t i = 0; i < n; i++) at[i] = form->kind->metric(form, i);
    profile->metrics = (cpl_string_list){at, n};
    return CPL_OK;
}

cpl_status cpl_task_read_metrics(cpl_profile *profile, cpl_resolved_profile *resolved,
                                 cpl_task *task, const json_t *from, const json_t *place)
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
