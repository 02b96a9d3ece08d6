/* task_parts.h - a task file in the form that questions are made from: splits, and the schemas of
 * their rows under each profile.
 *
 * Room:   eval/tasks, for task*.c and questions*.c.
 * Memory: everything is in the task's pool, or a string of its tree. */
#ifndef CPL_EVAL_TASKS_TASK_PARTS_H
#define CPL_EVAL_TASKS_TASK_PARTS_H

#include "eval/tasks/scope.h"
#include "eval/tasks/task.h"

/* An alternative of a split: files that are read one after the other. */
typedef struct cpl_task_source {
    cpl_string_list files;
    const char *labels; /* NULL: no labels */
    const char *member; /* NULL: no member */
    bool headless;
    const json_t *fields, *gold, *subject; /* they replace the task's; NULL: not replaced */
} cpl_task_source;

typedef struct cpl_split {
    const char *name;
    cpl_task_source *sources; /* (n_sources), at least one */
    int64_t n_sources;
} cpl_split;

typedef enum cpl_subject_kind {
    CPL_SUBJECT_NONE,
    CPL_SUBJECT_FILE, /* the part that `*` matches */
    CPL_SUBJECT_MADE, /* a template */
} cpl_subject_kind;

/* A list of texts: the value of a field, or the output of templates. */
typedef struct cpl_listing {
    const char *field;        /* NULL: templates */
    const cpl_template *made; /* (count) */
    int64_t count;
} cpl_listing;

typedef enum cpl_among {
    CPL_AMONG_NOTHING, /* questions have no right option */
    CPL_AMONG_FIXED,   /* the right option has the same index in all rows */
    CPL_AMONG_LETTERS,
    CPL_AMONG_NUMBERS,
    CPL_AMONG_LIST,
} cpl_among;

typedef struct cpl_gold_rule {
    cpl_among among;
    int64_t place;     /* index of the right option, if it is fixed */
    const char *value; /* name of the field with the right option */
    const char *again; /* a field that repeats the index as a number, or NULL */
    bool several;      /* true if the value is a list */
    cpl_listing list;
} cpl_gold_rule;

/* The values read from a row of a source for a prompt spec. */
typedef struct cpl_row_schema {
    cpl_fields fields;
    cpl_subject_kind subject_kind;
    cpl_template subject;
    cpl_listing choices;
    cpl_gold_rule gold;
    bool needs_options, needs_gold;
} cpl_row_schema;

/* All options of a row as one text, under a name for templates. */
typedef struct cpl_options_list {
    const char *name, *between;
    cpl_template each;
} cpl_options_list;

typedef enum cpl_prompt_kind {
    CPL_PROMPT_NONE,
    CPL_PROMPT_BBH,
    CPL_PROMPT_BBH_ANSWERS
} cpl_prompt_kind;

/* The prompts of some subjects. */
typedef struct cpl_prompt_spec {
    cpl_string_list subjects; /* empty: all subjects that no other prompt spec names */
    cpl_request_spec form;
    const cpl_template *description, *target; /* may be NULL */
    cpl_template context, option, fewshot;
    cpl_chain context_as; /* transformations of the whole context */
    bool context_each;    /* true if each option has its own context */
    const char *delimiter, *unconditional;
    cpl_options_list *lists; /* (n_lists) */
    int64_t n_lists;
    cpl_listing *references; /* (form.n_answers) templates of the references of each answer; the
                                value of a template that is a single name may be a list */
    cpl_prompt_kind prompt;
    const char *prompt_file;
    cpl_row_schema *question_schemas; /* one for each source of the split */
    cpl_row_schema *fewshot_schemas;  /* one for each source of few-shot examples, or NULL */
} cpl_prompt_spec;

/* A resolved profile. A task has one for each of its profiles. A profile with forms has no prompt
 * specs. */
typedef struct cpl_resolved_profile {
    const cpl_split *split, *fewshot_split; /* fewshot_split may be NULL */
    cpl_prompt_spec *specs;                 /* (n_specs) [0] is for subjects without a spec */
    int64_t n_specs;
    const int64_t *shots; /* (n_shots) numbers of examples; -1: no examples and no description */
    int64_t n_shots;
    bool one_option; /* true if a row may have one option, since only losses are reported */
} cpl_resolved_profile;

struct cpl_task_parts {
    cpl_pool pool;
    cpl_yaml_tree tree;
    const cpl_request_kind *const *kinds; /* kinds that a profile may name; NULL ends them */
    json_t *kept;      /* array of joined objects of the tree; NULL: still empty */
    cpl_split *splits; /* (n_splits) */
    int64_t n_splits;
    const json_t *subject, *subjects, *groups; /* the task's; NULL: not given */
    cpl_string_list known;                     /* the listed subjects; empty: not listed */
    cpl_builtin_name *facts; /* (n_facts) names of the values that `subjects` gives each subject */
    int64_t n_facts;
    cpl_resolved_profile *resolved; /* (n_profiles) */
    const char *defaults[3];        /* (n_defaults) default profiles */
    const char *default_of[3];      /* (n_defaults) set of each default profile; NULL: all sets */
    int64_t n_defaults;
};

/* ---- reading a tree: errors name the place in the file ---- */

/* FAIL returns a failure at a place in the file. AT gives that place to the failure of a call. */
#define FAIL(task, node, ...) cpl_yaml_tree_fail(&(task)->parts->tree, (node), __VA_ARGS__)
#define AT(task, node, call)  cpl_yaml_tree_place(&(task)->parts->tree, (node), (call))

/* Checks that all keys of the object `from` are among the names. `kind` names the object in the
 * sentence. */
CPL_NODISCARD cpl_status cpl_task_keys(const cpl_task *task, const json_t *from, const char *kind,
                                       const char *const *names, size_t count);

/* Sets a text, or `absent` if `from` lacks the key. */
CPL_NODISCARD cpl_status cpl_task_text_of(const char **text, const cpl_task *task,
                                          const json_t *from, const char *key, const char *absent);

/* Sets the index of a text among the names, or `absent` if `from` lacks the key. */
CPL_NODISCARD cpl_status cpl_task_word_of(size_t *index, const cpl_task *task, const json_t *from,
                                          const char *key, const char *const *names, size_t count,
                                          size_t absent);

/* Sets the texts of a list, or a single text. The list is empty if `value` is NULL, or if `from`
 * lacks the key. */
CPL_NODISCARD cpl_status cpl_task_names(cpl_string_list *names, const cpl_task *task,
                                        const json_t *value, const char *key);
CPL_NODISCARD cpl_status cpl_task_names_of(cpl_string_list *names, const cpl_task *task,
                                           const json_t *from, const char *key);

/* Sets a whole number from `lo` to `hi`, or `absent` if `from` lacks the key. */
CPL_NODISCARD cpl_status cpl_task_int(int64_t *value, const cpl_task *task, const json_t *node,
                                      const char *key, int64_t lo, int64_t hi);
CPL_NODISCARD cpl_status cpl_task_int_of(int64_t *value, const cpl_task *task, const json_t *from,
                                         const char *key, int64_t lo, int64_t hi, int64_t absent);

/* Sets a template, and `there`, which may be NULL, to whether `from` has the key. */
CPL_NODISCARD cpl_status cpl_task_template_of(cpl_template *t, bool *there, const cpl_task *task,
                                              const json_t *from, const char *key);

/* Sets the templates of a list, or a single template. The list is empty if `from` lacks the key.
 * Errors name `place`, or, if it is NULL, the place of the template. */
CPL_NODISCARD cpl_status cpl_task_templates_of(cpl_listing *list, const cpl_task *task,
                                               const json_t *from, const char *key,
                                               const json_t *place);

/* Returns whether a name is in a list. */
bool cpl_string_list_holds(const cpl_string_list *names, const char *name);

/* Returns numbers of few-shot examples in words, from the smallest: "5", "0-5", "0,1,5". The number
 * -1 counts as 0. The pool holds the text. NULL: out of memory. */
const char *cpl_task_shots_words(cpl_pool *pool, const int64_t *shots, int64_t n);

/* ---- the parts, in the order in which they are read ---- */

CPL_NODISCARD cpl_status cpl_task_read_splits(cpl_task *task, const json_t *splits);
CPL_NODISCARD cpl_status cpl_task_read_subjects(cpl_task *task, const json_t *root);

/* Sets the profile's groups: the task's groups, which groups of `own` (may be NULL) replace or
 * extend. */
CPL_NODISCARD cpl_status cpl_task_read_groups(cpl_profile *profile, cpl_task *task,
                                              const json_t *own);
CPL_NODISCARD cpl_status cpl_task_read_profiles(cpl_task *task, const json_t *profiles);

/* Checks that all `subjects` are subjects of the task, if the task lists its subjects. */
CPL_NODISCARD cpl_status cpl_task_check_subjects(const cpl_task *task,
                                                 const cpl_string_list *subjects,
                                                 const json_t *node);

/* Fails with CPL_ERR_INPUT and the nearest subject if the task lists its subjects without
 * `subject`. */
CPL_NODISCARD cpl_status cpl_task_find_subject(const cpl_task *task, const char *subject);

/* Reads one prompt spec of a profile from `from`, its joined settings. */
CPL_NODISCARD cpl_status cpl_task_read_prompt_spec(cpl_prompt_spec *spec, cpl_task *task,
                                                   const cpl_resolved_profile *resolved,
                                                   const char *profile, const json_t *from,
                                                   const json_t *place);

/* Reads the scores that compare options. */
CPL_NODISCARD cpl_status cpl_task_read_scores(cpl_request_spec *form, const cpl_task *task,
                                              const char *profile, const json_t *from);

/* Reads the answers that are found in a text. */
CPL_NODISCARD cpl_status cpl_task_read_answers(cpl_prompt_spec *spec, cpl_task *task,
                                               const json_t *from, const json_t *place);

/* Sets the schema of the rows of a source from `from`, the joined settings of the prompt spec. */
CPL_NODISCARD cpl_status cpl_task_read_schema(cpl_row_schema *schema, cpl_task *task,
                                              const cpl_task_source *source, const json_t *from);

/* Checks that all names that a prompt spec uses of a row exist. `fewshot`: the row becomes a
 * few-shot example, otherwise a question. */
CPL_NODISCARD cpl_status cpl_task_check_schema(cpl_row_schema *schema, const cpl_task *task,
                                               const cpl_prompt_spec *spec, bool fewshot,
                                               const json_t *from, const json_t *place);

/* Sets `*out` to an object with the members of `below`, which the members of `above` replace or
 * extend. Either may be NULL. The object lives as long as the task, and has the place of `above` in
 * the file, or of `below` if `above` is NULL. */
CPL_NODISCARD cpl_status cpl_task_join(const json_t **out, cpl_task *task, const json_t *below,
                                       const json_t *above);

#endif /* CPL_EVAL_TASKS_TASK_PARTS_H */
