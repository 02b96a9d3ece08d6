/* template.h - "Question: {stem|strip}\nAnswer:" - texts of a task file with names in them.
 *
 * Room:   eval/tasks. A name is looked up in a scope (fields.h); what is made of a row is UTF-8. */
#ifndef CPL_EVAL_TASKS_TEMPLATE_H
#define CPL_EVAL_TASKS_TEMPLATE_H

#include "eval/tasks/transform.h"

struct cpl_scope;

/* A stretch of text, or a name and what is made of it. */
typedef struct cpl_template_part {
    const char *text; /* (length) */
    size_t length;
    const char *name; /* NULL: text */
    cpl_chain chain;
} cpl_template_part;

typedef struct cpl_template {
    const cpl_template_part *pieces;
    int64_t count;
} cpl_template;

/* Sets the template, whose memory is the pool's. CPL_ERR_INPUT: a brace alone, no name, an unknown
 * transformation; the sentence names no file. */
CPL_NODISCARD cpl_status cpl_template_parse(cpl_template *t, cpl_pool *pool, const char *text);

/* Whether a name stands in it. */
bool cpl_template_names(const cpl_template *t, const char *name);

/* Whether it is a single name and nothing else, which may then be a list. */
bool cpl_template_is_name(const cpl_template *t);

/* Appends what the template makes of a row. CPL_ERR_INPUT: the row is a bad one. */
CPL_NODISCARD cpl_status cpl_template_make(cpl_text *out, const cpl_template *t,
                                           struct cpl_scope *scope);

#endif /* CPL_EVAL_TASKS_TEMPLATE_H */
