/* regex.h - regular expressions of task files, with the meaning that Python's `re` gives them on str.
 *
 * Room:   eval/grade. PCRE2 with UTF and UCP: `.` is a character, \d, \w, \s and \b are Unicode's.
 * Bounds: the steps of a match are limited, so that no pattern and no text stop an evaluation. */
#ifndef CPL_EVAL_GRADE_REGEX_H
#define CPL_EVAL_GRADE_REGEX_H

#include "base/text.h"

enum {
    CPL_REGEX_STEPS = 4 * 1000 * 1000, /* of a match: PCRE2's match limit */
    CPL_REGEX_DEPTH = 100 * 1000,      /* of nested backtracking: its depth limit */
};

typedef struct cpl_regex {
    const char *pattern;
    bool last;       /* the last match, otherwise the first one */
    bool keep_space; /* white space at the ends of what was found stays */
} cpl_regex;

/* CPL_ERR_INPUT: the pattern is none, with its place and PCRE2's words. */
CPL_NODISCARD cpl_status cpl_regex_check(const char *pattern);

/* Sets `answer`, a piece of `text`, to what a match captures: the whole match where the pattern has no
 * group, its group, or the first of several that is not empty. `found` is false if there is no match, or
 * all of several groups are empty. CPL_ERR_INPUT: no pattern, or one that takes more than
 * CPL_REGEX_STEPS steps, which the sentence names. */
CPL_NODISCARD cpl_status cpl_regex_find(bool *found, cpl_span *answer, const cpl_regex *regex,
                                        cpl_span text);

/* Every match of a pattern, from left to right, or every `what`, becomes `with`. */
typedef struct cpl_substitution {
    const char *what;    /* stands in every text that changes; empty: any text may change */
    const char *pattern; /* NULL: `what` itself */
    const char *with;    /* of a pattern: $1 is its first group */
} cpl_substitution;

/* Makes the substitutions in the text, one after the other. A pattern that takes too many steps changes
 * nothing; out of memory is remembered in the text. */
void cpl_regex_substitute(cpl_text *text, const cpl_substitution *steps, size_t n, cpl_text *spare);

#endif /* CPL_EVAL_GRADE_REGEX_H */
