/* selection.h - the tasks and profiles to evaluate, from the words that a user gives.
 *
 * Room:   eval/prompts.
 * Words:  ids of tasks; `paper-3b` and `paper-15b`, the two sets of the paper, each task under the
 *         profile it has there; `all`, the one and then the other. */
#ifndef CPL_EVAL_PROMPTS_SELECTION_H
#define CPL_EVAL_PROMPTS_SELECTION_H

#include "eval/tasks/task.h"

/* The sets of the paper: the word for all their tasks, and their names in task files. */
typedef struct cpl_selection_set {
    const char *word, *set;
} cpl_selection_set;

enum { CPL_SELECTION_SETS = 2 };
extern const cpl_selection_set cpl_selection_sets[CPL_SELECTION_SETS];

/* A task under a profile. */
typedef struct cpl_selected {
    const cpl_task *task;
    const cpl_profile *profile;
    int64_t form_of; /* the entry whose profile has this form; -1: it is no form */
    char *key;       /* its name among the results: the task's id, or if that is taken id/profile */
} cpl_selected;

typedef struct cpl_selection {
    cpl_task **tasks;            /* (n_tasks) owned: all built-in ones, and those of files */
    int64_t n_tasks, n_built_in; /* these come first */
    cpl_selected *at; /* (count) in the order given; forms precede the entry that they belong to */
    int64_t count;
    const cpl_request_kind *const *kinds; /* that tasks may name; NULL ends them */
} cpl_selection;

typedef struct cpl_selection_options {
    const char *const *words; /* (n_words) */
    int64_t n_words;
    const char *const *files; /* (n_files) task files; each adds its task, and selects it */
    int64_t n_files;
    const char *profile, *variant; /* profile and variant of all tasks; NULL: each task's default */
} cpl_selection_options;

/* The built-in tasks alone, none selected. `kinds` are the request kinds that tasks may name
 * (cpl_task_read). */
CPL_NODISCARD cpl_status cpl_selection_init(cpl_selection *s, const cpl_request_kind *const *kinds);
void cpl_selection_free(cpl_selection *s); /* all zero: nothing to do */

/* CPL_ERR_USAGE: an empty name, an unknown task (with the nearest name), a profile or variant that
 * a task has not (with those it has); CPL_ERR_INPUT: a task file. A task under a profile is
 * selected once. */
CPL_NODISCARD cpl_status cpl_selection_add(cpl_selection *s, const cpl_selection_options *options);

/* Whether task i belongs to a set of the paper, which built-in ones alone do. */
bool cpl_selection_is_of(const cpl_selection *s, int64_t i, const char *set);

#endif /* CPL_EVAL_PROMPTS_SELECTION_H */
