/* task_form.c - how a question of a manner is scored; see task_internal.h */
#include <string.h>

#include "base/lookup.h"
#include "eval/tasks/task_internal.h"

#define FAIL(task, node, ...) cpl_yaml_tree_fail(&(task)->parts->tree, (node), __VA_ARGS__)
#define AT(task, node, call)  cpl_yaml_tree_place(&(task)->parts->tree, (node), (call))

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

static cpl_status read_scores(cpl_request_spec *form, const cpl_task *task, const json_t *from,
                              const habit *usual)
{
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
            return FAIL(task, given, "%s is told of the right option alone: a metric, no score",
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

static cpl_status read_answer(cpl_answer *answer, cpl_reference_rule *rule, const cpl_task *task,
                              const cpl_prompt_spec *manner, const json_t *from,
                              const json_t *place)
{
    static const char *const keys[]  = {"filter",     "reference", "clean", "normal",
                                        "comparison", "invalid",   "show"};
    static const char *const shown[] = {"found", "normal"};
    const char *filter, *clean, *normal, *comparison;
    size_t show;
    CPL_TRY(cpl_task_keys(task, from, "answer", keys, sizeof keys / sizeof *keys));
    CPL_TRY(cpl_task_text_of(&filter, task, from, "filter", "none"));
    CPL_TRY(cpl_task_text_of(&clean, task, from, "clean", NULL));
    CPL_TRY(cpl_task_text_of(&normal, task, from, "normal", "none"));
    CPL_TRY(cpl_task_text_of(&comparison, task, from, "comparison", "exact"));
    CPL_TRY(cpl_task_text_of(&answer->invalid, task, from, "invalid", "[invalid]"));
    CPL_TRY(cpl_task_word_of(&show, task, from, "show", shown, 2, 0));
    CPL_TRY(AT(task, from, cpl_filter_find(&answer->marking.filter, filter)));
    if (clean) CPL_TRY(AT(task, from, cpl_filter_find(&answer->marking.reference, clean)));
    CPL_TRY(AT(task, from, cpl_normal_find(&answer->marking.normal, normal)));
    CPL_TRY(AT(task, from, cpl_comparison_find(&answer->marking.comparison, comparison)));
    if (strcmp(answer->invalid, "null") == 0) answer->invalid = NULL;
    answer->show_normal = show == 1;
    return read_reference(rule, task, from, manner->target, place);
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

static cpl_status read_answers(cpl_prompt_spec *manner, cpl_task *task, const json_t *from,
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
    cpl_answer *at     = cpl_pool_take(&task->parts->pool, n * sizeof *at);
    manner->references = cpl_pool_take(&task->parts->pool, n * sizeof *manner->references);
    if (!at || !manner->references) return cpl_pool_status(&task->parts->pool);
    manner->form.answers = at;
    manner->form.filters =
        json_is_string(metrics) && strcmp(json_string_value(metrics), "filters") == 0;
    json_object_foreach((json_t *)(uintptr_t)answers, name, value)
    {
        int64_t i = manner->form.n_answers++;
        if (!is_answer_name(name))
            return FAIL(
                task, value,
                "answers: \"%.100s\" is no name: letters, digits, _ and -, and not _stderr, "
                "_macro or _micro, which results have behind it",
                name);
        at[i].name = name;
        CPL_TRY(read_answer(&at[i], &manner->references[i], task, manner, value, place));
    }
    return CPL_OK;
}

static cpl_status read_until(cpl_request_spec *form, const cpl_task *task, const json_t *from)
{
    cpl_string_list until;
    CPL_TRY(cpl_task_names_of(&until, task, from, "until"));
    for (int64_t i = 0; i < until.count; i++)
        if (!*until.at[i])
            return FAIL(task, json_object_get(from, "until"), "an empty stop string");
    form->until   = until.at;
    form->n_until = until.count;
    return CPL_OK;
}

cpl_status cpl_task_read_form(cpl_prompt_spec *manner, cpl_task *task, const char *profile,
                              const json_t *from, const json_t *place)
{
    static const char *const asks[]    = {"rank", "generate"};
    static const char *const tokens[]  = {"joint", "separate"};
    static const char *const beyonds[] = {"cut", "error"};
    const habit *usual                 = habit_of(profile);
    cpl_request_spec *form             = &manner->form;
    size_t ask, joining, beyond;
    CPL_TRY(cpl_task_word_of(&ask, task, from, "ask", asks, 2, 0));
    CPL_TRY(cpl_task_word_of(&joining, task, from, "tokens", tokens, 2, usual->joining));
    CPL_TRY(cpl_task_word_of(&beyond, task, from, "beyond", beyonds, 2, 0));
    CPL_TRY(cpl_task_int_of(&form->window, task, from, "window", 1, 1 << 24, usual->window));
    form->ask         = (cpl_ask)ask;
    form->joining     = (cpl_joining)joining;
    form->stop_beyond = beyond == 1;
    form->fixed       = usual->fixed && !json_object_get(from, "window");
    if (form->ask == CPL_ASK_RANK) return read_scores(form, task, from, usual);
    CPL_TRY(cpl_task_int_of(&form->max_gen_toks, task, from, "max_gen_toks", 1, 1 << 24, 256));
    CPL_TRY(read_until(form, task, from));
    return read_answers(manner, task, from, place);
}
