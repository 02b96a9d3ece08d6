/* filters.h - from a generated text to the answer in it, by the name of a filter.
 *
 * Room:   eval/grade. The list is filters.def.
 * Note:   an answer is a piece of the text. No filter takes more time than a few passes over the
 *         text, whatever its bytes are.
 * Source: docs/tasks.md, "Patterns". What the reference programs say by regular expressions is
 *         scanned by hand; "a character" is a code point there as here. */
#ifndef CPL_EVAL_GRADE_FILTERS_H
#define CPL_EVAL_GRADE_FILTERS_H

#include "base/span.h"

/* Sets `answer`, a piece of `text`; false, and an empty one, if there is nothing to be found. An
 * answer that is found may be empty too. */
typedef bool cpl_filter_function(cpl_span *answer, cpl_span text);

typedef struct cpl_filter {
    const char *name;
    cpl_filter_function *find;
    const char *what; /* it takes out of a text */
} cpl_filter;

extern const cpl_filter cpl_filters[];
extern const size_t cpl_n_filters;

/* CPL_ERR_INPUT with the nearest name if there is none of that name. */
CPL_NODISCARD cpl_status cpl_filter_find(const cpl_filter **filter, const char *name);

#define CPL_FILTER(name, what) cpl_filter_function cpl_filter_##name;
#include "eval/grade/filters.def"
#undef CPL_FILTER

#endif /* CPL_EVAL_GRADE_FILTERS_H */
