/* selection.h - the tasks and profiles to evaluate, from the words that a user gives.
 *
 * Room:   eval/prompts.
 * Names:  ids of tasks select tasks. `paper-3b` and `paper-15b` select the two sets of the paper,
 *         with each task under its profile in the set. `all` selects the first set and then the
 *         second. */
#ifndef CPL_EVAL_PROMPTS_SELECTION_H
#define CPL_EVAL_PROMPTS_SELECTION_H

#include "eval/tasks/task.h"

/* A set of the paper: the word for all its tasks, and its name in task files. */
typedef struct cpl_selection_set {
    const char *word, *set;
} cpl_selection_set;

enum { CPL_SELECTION_SETS = 2 };
extern const cpl_selection_set cpl_selection_sets[CPL_SELECTION_SETS];

/* A task under a profile. */
typedef struct cpl_selected {
    const cpl_task *task;
    const cpl_profile *profile;
    int64_t form_of; /* index of the entry whose profile has this form; -1: not a form */
    char *key;       /* name among the results: the task's id, or id/profile if taken */
} cpl_selected;

typedef struct cpl_selection {
    cpl_task **tasks; /* (n_tasks) owned: built-in tasks, then tasks of files */
    int64_t n_tasks, n_built_in;
    cpl_selected *at; /* (count) in the order given; forms precede the entry that they belong to */
    int64_t count;
    const cpl_request_kind *const *kinds; /* kinds that tasks may name; NULL ends them */
} cpl_selection;

typedef struct cpl_selection_options {
    const char *const *words; /* (n_words) */
    int64_t n_words;
    const char *const *files; /* (n_files) task files whose tasks are added and selected */
    int64_t n_files;
    const char *profile, *variant; /* profile and variant of all tasks; NULL: each task's default */
} cpl_selection_options;

/* Begins a selection with the built-in tasks, of which none is selected. `kinds` are the request
 * kinds that tasks may name (cpl_task_read). */
CPL_NODISCARD cpl_status cpl_selection_init(cpl_selection *s, const cpl_request_kind *const *kinds);
void cpl_selection_free(cpl_selection *s); /* all zero is allowed */

/* Selects tasks. A task under a profile is selected once. CPL_ERR_USAGE for an empty name, an
 * unknown task (with the nearest name), and a profile or variant that a task lacks (with the names
 * that exist). CPL_ERR_INPUT for a wrong task file. */
CPL_NODISCARD cpl_status cpl_selection_add(cpl_selection *s, const cpl_selection_options *options);

/* Returns whether task i belongs to a set of the paper, which only built-in tasks do. */
bool cpl_selection_is_of(const cpl_selection *s, int64_t i, const char *set);

#endif /* CPL_EVAL_PROMPTS_SELECTION_H */
