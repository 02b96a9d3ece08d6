/* task_metrics.c - what a profile reports, and that all its questions can say it; see task_internal.h */
#include <string.h>

#include "eval/tasks/task_internal.h"

#define FAIL(task, node, ...) cpl_yaml_tree_fail(&(task)->parts->tree, (node), __VA_ARGS__)

static bool is_score(const char *name)
{
    for (size_t i = 0; i < cpl_n_scores; i++)
        if (strcmp(cpl_scores[i].name, name) == 0) return true;
    return strcmp(name, "soft") == 0;
}

bool cpl_profile_reports(const cpl_profile *profile, const char *metric, bool ranked)
{
    if (ranked) return is_score(metric);
    return !is_score(metric) || strcmp(metric, profile->metrics.at[0]) == 0;
}

static bool is_loss(const char *metric)
{
    const cpl_score *score;
    return cpl_score_find(&score, metric) == CPL_OK && score->loss;
}

static bool has_score(const cpl_request_spec *form, const char *name)
{
    for (int64_t k = 0; k < form->n_scores; k++)
        if (strcmp(form->scores[k]->name, name) == 0) return true;
    return false;
}

static bool has_answer(const cpl_request_spec *form, const char *name)
{
    if (form->filters) return strcmp(name, "exact_match") == 0;
    for (int64_t k = 0; k < form->n_answers; k++)
        if (strcmp(form->answers[k].name, name) == 0) return true;
    return false;
}

/* "the profile" or "the case of law". */
static const char *whose(cpl_pool *pool, const cpl_resolved_profile *way,
                         const cpl_prompt_spec *manner)
{
    if (manner == &way->manners[0]) return "the profile";
    return cpl_pool_printf(pool, "the case of %.100s", manner->subjects.at[0]);
}

/* What a manner's questions have to say of a metric, they can. */
static cpl_status check_manner(const cpl_task *task, const cpl_profile *profile,
                               const cpl_resolved_profile *way, const cpl_prompt_spec *manner,
                               const char *metric, const json_t *node)
{
    const cpl_request_spec *form = &manner->form;
    const char *headline         = profile->metrics.at[0];
    const bool ranked            = form->ask == CPL_ASK_RANK;
    const char *who              = whose(&task->parts->pool, way, manner);
    if (!cpl_profile_reports(profile, metric, ranked)) return CPL_OK;
    if (!ranked && !has_answer(form, metric))
        return FAIL(task, node,
                    "%s generates text, and none of its answers is called %.100s: write answers: "
                    "{%.100s: {...}} there, or leave the metric out",
                    who, metric, metric);
    if (ranked && strcmp(metric, "soft") == 0 && !has_score(form, headline))
        return FAIL(task, node,
                    "soft is made of the headline's scores, and %.100s, which stands first, is no "
                    "score of %s: write metrics: [acc, soft]",
                    headline, who);
    if (ranked && strcmp(metric, "soft") != 0 && !is_loss(metric) && !has_score(form, metric))
        return FAIL(task, node, "%.100s is not among the scores of %s", metric, who);
    return CPL_OK;
}

/* Whether any manner says anything of a metric. */
static bool is_told(const cpl_profile *profile, const cpl_resolved_profile *way, const char *metric)
{
    for (int64_t i = 0; i < way->n_manners; i++) {
        const cpl_request_spec *form = &way->manners[i].form;
        const bool ranked            = form->ask == CPL_ASK_RANK;
        if (ranked ? cpl_profile_reports(profile, metric, true) : has_answer(form, metric))
            return true;
    }
    return false;
}

static cpl_status check_metrics(const cpl_task *task, const cpl_profile *profile,
                                const cpl_resolved_profile *way, const cpl_string_list *metrics,
                                const json_t *node)
{
    for (int64_t i = 0; i < metrics->count; i++) {
        if (!is_told(profile, way, metrics->at[i]))
            return FAIL(task, node,
                        "there is no metric %.100s: neither among the scores nor an answer",
                        metrics->at[i]);
        for (int64_t k = 0; k < way->n_manners; k++)
            CPL_TRY(check_manner(task, profile, way, &way->manners[k], metrics->at[i], node));
    }
    return CPL_OK;
}

/* Where the answers are filters of one metric, every text has the same ones. */
static cpl_status check_filters(const cpl_task *task, const cpl_resolved_profile *way,
                                const json_t *node)
{
    const cpl_request_spec *first = &way->manners[0].form;
    for (int64_t i = 1; first->filters && i < way->n_manners; i++) {
        const cpl_request_spec *form = &way->manners[i].form;
        bool same                    = form->n_answers == first->n_answers;
        for (int64_t k = 0; same && k < first->n_answers; k++)
            same = strcmp(form->answers[k].name, first->answers[k].name) == 0;
        if (!same && form->ask == CPL_ASK_GENERATE)
            return FAIL(task, node, "metrics: filters: %s has other answers than the profile",
                        whose(&task->parts->pool, way, &way->manners[i]));
    }
    return CPL_OK;
}

/* Without a list: the scores, or the answers. */
static cpl_status list_metrics(cpl_profile *profile, const cpl_resolved_profile *way,
                               cpl_task *task, const json_t *from)
{
    static const char *const one[] = {"exact_match"};
    const cpl_request_spec *form   = &way->manners[0].form;
    const bool rank                = form->ask == CPL_ASK_RANK;
    CPL_TRY(cpl_task_names_of(&profile->metrics, task, from, "metrics"));
    if (form->filters) profile->metrics = (cpl_string_list){one, 1};
    if (profile->metrics.count) return CPL_OK;
    const int64_t n = rank ? form->n_scores : form->n_answers;
    const char **at = cpl_pool_take(&task->parts->pool, (size_t)n * sizeof *at);
    if (!at) return cpl_pool_status(&task->parts->pool);
    for (int64_t i = 0; i < n; i++) at[i] = rank ? form->scores[i]->name : form->answers[i].name;
    profile->metrics = (cpl_string_list){at, n};
    return CPL_OK;
}

cpl_status cpl_task_read_metrics(cpl_profile *profile, cpl_resolved_profile *way, cpl_task *task,
                                 const json_t *from, const json_t *place)
{
    const json_t *node = json_object_get(from, "metrics");
    if (!node) node = place;
    CPL_TRY(list_metrics(profile, way, task, from));
    for (int64_t i = 0; i < profile->n_groups; i++)
        CPL_TRY(check_metrics(task, profile, way, &profile->groups[i].metrics, node));
    CPL_TRY(check_metrics(task, profile, way, &profile->metrics, node));
    CPL_TRY(check_filters(task, way, node));
    way->one_option = way->manners[0].form.ask == CPL_ASK_RANK;
    for (int64_t i = 0; i < profile->metrics.count; i++)
        way->one_option &= is_loss(profile->metrics.at[i]);
    return cpl_pool_status(&task->parts->pool);
}
