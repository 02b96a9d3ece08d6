/* eval_list.c - `couplet eval --list`, and the names that completion offers; see internal.h */
#include "cli/verbs/internal.h"

#include <stdio.h>
#include <string.h>

#include "cli/terminal/output.h"
#include "eval/run/runner.h"
#include "io/file.h"

static const char *sets_words(cpl_pool *pool, const cpl_task *task)
{
    const char *words = "";
    for (int64_t i = 0; i < task->sets.count; i++)
        words = cpl_pool_printf(pool, "%s%s%s", words, *words ? ", " : "", task->sets.at[i]);
    return words;
}

/* Sets the number of rows in words: "300", "300, 2 bad", or "-" if there is no file. */
static cpl_status rows_words(const char **words, cpl_pool *pool, const cpl_task *task,
                             const cpl_profile *profile, const char *data)
{
    int64_t rows, bad;
    *words = profile->forms.count ? "" : "-";
    if (profile->forms.count) return CPL_OK;
    CPL_TRY(cpl_questions_count(&rows, &bad, task, profile, data));
    if (rows < 0) return CPL_OK;
    *words = bad ? cpl_pool_printf(pool, "%lld, %lld bad", (long long)rows, (long long)bad)
                 : cpl_pool_printf(pool, "%lld", (long long)rows);
    return CPL_OK;
}

static bool is_standard(const cpl_task *task, const cpl_profile *profile, const char *set)
{
    const cpl_profile *standard;
    return cpl_task_profile(&standard, task, set, NULL, NULL) == CPL_OK && standard == profile;
}

/* Returns the profile's name, with " *" if it is the default of the task in one of its sets. */
static const char *profile_name(cpl_pool *pool, const cpl_task *task, const cpl_profile *profile)
{
    bool chosen = is_standard(task, profile, NULL);
    for (int64_t i = 0; i < task->sets.count; i++)
        chosen |= is_standard(task, profile, task->sets.at[i]);
    return cpl_pool_printf(pool, "%s%s", profile->name, chosen ? " *" : "");
}

static cpl_status fill_list(cpl_grid *g, cpl_pool *pool, const cpl_selection *s, const char *data)
{
    static const char *const columns[] = {"paper", "profile", "split", "shots", "metric", "rows"};
    int64_t rows = 0, row = 0;
    for (int64_t i = 0; i < s->n_tasks; i++) rows += s->tasks[i]->n_profiles;
    CPL_TRY(cpl_grid_open(g, pool, rows, 6));
    g->corner = "task";
    for (int k = 0; k < 6; k++) g->columns[k] = columns[k];
    for (int64_t i = 0; i < s->n_tasks; i++)
        for (int64_t p = 0; p < s->tasks[i]->n_profiles; p++, row++) {
            const cpl_task *task       = s->tasks[i];
            const cpl_profile *profile = &task->profiles[p];
            const char *words          = "";
            CPL_TRY(rows_words(&words, pool, task, profile, data));
            g->rows[row] = p ? "" : task->id;
            cpl_grid_set(g, row, 0, p ? "" : sets_words(pool, task));
            cpl_grid_set(g, row, 1, profile_name(pool, task, profile));
            cpl_grid_set(g, row, 2, profile->split ? profile->split : "");
            cpl_grid_set(g, row, 3, profile->shots);
            cpl_grid_set(g, row, 4, profile->metrics.count ? profile->metrics.at[0] : "");
            cpl_grid_set(g, row, 5, words);
        }
    return cpl_pool_status(pool);
}

static void print_sources(const cpl_selection *s)
{
    printf("\nWhere the full rows are published, and their licence:\n");
    for (int64_t i = 0; i < s->n_tasks; i++)
        if (s->tasks[i]->source)
            printf("  %-16s %s (%s)\n", s->tasks[i]->id, s->tasks[i]->source,
                   s->tasks[i]->licence ? s->tasks[i]->licence : "licence not stated");
}

cpl_status cpl_eval_list(const cpl_selection *s, const char *data)
{
    cpl_pool pool = {0};
    cpl_grid g;
    cpl_status status = fill_list(&g, &pool, s, data);
    if (status == CPL_OK) {
        if (cpl_path_is_folder(data))
            printf("rows in %s; ", data);
        else
            printf("the rows that come with the program are not installed (--data DIR); ");
        printf("* is the profile of a task where none is named, of mmlu in paper-3b and in "
               "paper-15b\n");
    }
    CPL_TRY(cpl_output_grid(status, &g, &pool));
    print_sources(s);
    return CPL_OK;
}

/* ---- for completion ---- */

void cpl_eval_list_task_words(cpl_text *words)
{
    cpl_selection s = {0};
    cpl_text_printf(words, "all paper-3b paper-15b ");
    if (cpl_selection_init(&s, cpl_request_kinds) == CPL_OK)
        for (int64_t i = 0; i < s.n_tasks; i++) cpl_text_printf(words, "%s ", s.tasks[i]->id);
    cpl_selection_free(&s);
}

/* Returns true if an earlier profile, of this task or an earlier one, has the name. */
static bool is_offered(const cpl_selection *s, int64_t task, int64_t profile)
{
    const char *name = s->tasks[task]->profiles[profile].name;
    for (int64_t i = 0; i <= task; i++)
        for (int64_t p = 0; p < (i < task ? s->tasks[i]->n_profiles : profile); p++)
            if (strcmp(s->tasks[i]->profiles[p].name, name) == 0) return true;
    return false;
}

/* Variants, which follow a slash, are left out. */
void cpl_eval_list_profile_words(cpl_text *words)
{
    cpl_selection s = {0};
    if (cpl_selection_init(&s, cpl_request_kinds) == CPL_OK)
        for (int64_t i = 0; i < s.n_tasks; i++)
            for (int64_t p = 0; p < s.tasks[i]->n_profiles; p++)
                if (!strchr(s.tasks[i]->profiles[p].name, '/') && !is_offered(&s, i, p))
                    cpl_text_printf(words, "%s ", s.tasks[i]->profiles[p].name);
    cpl_selection_free(&s);
}
