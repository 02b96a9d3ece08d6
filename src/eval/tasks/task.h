/* task.h - a task file, read and checked.
 *
 * Room:   eval/tasks. docs/tasks.md describes the file; task*.c check all of it when it is read, so
 *         that what is wrong is said before a model is touched.
 * Errors: "FILE:LINE:COLUMN: what is wrong", with the nearest name where one is unknown. */
#ifndef CPL_EVAL_TASKS_TASK_H
#define CPL_EVAL_TASKS_TASK_H

#include "eval/grade/score.h"

typedef struct cpl_string_list {
    const char *const *at;
    int64_t count;
} cpl_string_list;

typedef enum cpl_headline_of {
    CPL_OF_QUESTIONS, /* of all questions */
    CPL_OF_GROUPS,    /* of the groups, each counting once; "_micro" is that of all questions */
    CPL_OF_SUBJECTS,  /* the same of the subjects */
} cpl_headline_of;

typedef struct cpl_group {
    const char *name;
    cpl_string_list subjects; /* none: all there are */
    cpl_string_list metrics;  /* none: the profile's */
} cpl_group;

/* A profile: "inloop", or a variant of one, "harness/authors". */
typedef struct cpl_profile {
    const char *name;
    const char *split;
    cpl_string_list
        metrics; /* what is reported, the headline first: names of scores.def, "soft", or of
                        * answers; "exact_match" alone where the answers are filters of one metric.
                        * With forms those of the first one, as `split` is */
    cpl_headline_of headline; /* whose mean the plain metric is */
    cpl_string_list
        forms; /* the variants that are evaluated in its place; none: it is evaluated itself */
    const char *shots; /* few-shot examples: "5", or of several numbers "0-5" or "0,1,5" */
    cpl_group *groups; /* (n_groups) the task's, and the profile's own in their place */
    int64_t n_groups;
} cpl_profile;

typedef struct cpl_task_parts cpl_task_parts; /* fields, splits, templates: task_internal.h */

typedef struct cpl_task {
    const char *id, *title;
    const char *source, *licence; /* NULL: not given */
    cpl_string_list sets;         /* of the paper: "3b", "15b" */
    double chance;                /* percent; NaN: not given */
    cpl_profile *profiles;        /* (n_profiles) */
    int64_t n_profiles;
    cpl_task_parts *parts;
} cpl_task;

/* Reads a task file, or `length` bytes of one that the sentences call `name`. The caller gives the
 * task to cpl_task_free. */
CPL_NODISCARD cpl_status cpl_task_read(cpl_task **task, const char *path);
CPL_NODISCARD cpl_status cpl_task_parse(cpl_task **task, const char *name, const void *bytes,
                                        size_t length);
void cpl_task_free(cpl_task *task); /* NULL is allowed */

/* Sets the profile of that name; `variant` may be NULL; `name` NULL: the default one of `set` ("3b",
 * "15b"; NULL: of the task). CPL_ERR_INPUT with the names there are. */
CPL_NODISCARD cpl_status cpl_task_profile(const cpl_profile **profile, const cpl_task *task,
                                          const char *set, const char *name, const char *variant);

/* ---- the built-in ones ---- */

/* Their files, in the order of the paper: embedded in the library. */
typedef struct cpl_task_text {
    const char *id;
    const char *bytes;
    size_t length;
} cpl_task_text;

extern const cpl_task_text cpl_task_texts[];
extern const size_t cpl_n_task_texts;

/* Whether a metric is a score of options or "soft"; and whether it is a loss of the right option. */
bool cpl_metric_is_score(const char *name);
bool cpl_metric_is_loss(const char *name);

#endif /* CPL_EVAL_TASKS_TASK_H */
