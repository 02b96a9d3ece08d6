/* grading.h - from a generated text to a grade.
 *
 * Room:  eval/grade. The text is cut at the stop strings and passes through a filter. The filter's
 *        answer and every reference are brought into a normal form and compared. */
#ifndef CPL_EVAL_GRADE_GRADING_H
#define CPL_EVAL_GRADE_GRADING_H

#include "base/text.h"

/* ---- stop strings ---- */

/* Returns the text up to the first occurrence of each stop string, applied in their order. */
cpl_span cpl_grading_cut_at_stop(cpl_span text, const char *const *stops, int64_t n_stops);

/* Returns whether the text contains a stop string. Its first `known` bytes contain no stop string,
 * so that only the new part of a growing text is searched. */
bool cpl_grading_stop_reached(cpl_span text, size_t known, const char *const *stops,
                              int64_t n_stops);

/* ---- regular expressions ----
 *
 * Patterns of task files have the meaning of Python's `re` on str. PCRE2 matches them with UTF and
 * UCP, so that `.` is a character, and \d, \w, \s and \b are Unicode's. The steps of a match are
 * limited, so that every evaluation ends. */

enum {
    CPL_REGEX_STEPS = 4 * 1000 * 1000, /* steps of one match: PCRE2's match limit */
    CPL_REGEX_DEPTH = 100 * 1000,      /* levels of backtracking: PCRE2's depth limit */
};

typedef struct cpl_regex {
    const char *pattern;
    bool last;       /* true for the last match, false for the first */
    bool keep_space; /* true if the answer keeps the white space at its ends */
} cpl_regex;

/* Checks a pattern. CPL_ERR_INPUT, with the place in it and PCRE2's sentence. */
CPL_NODISCARD cpl_status cpl_regex_check(const char *pattern);

/* Sets `answer`, a piece of `text`, to the capture of a match: the whole match if the pattern has
 * no group, its group, or the first of several groups that is not empty. `found` is false without a
 * match, or if all of several groups are empty. CPL_ERR_INPUT for an invalid pattern, or a pattern
 * that takes more than CPL_REGEX_STEPS steps, which the sentence names. */
CPL_NODISCARD cpl_status cpl_regex_find(bool *found, cpl_span *answer, const cpl_regex *regex,
                                        cpl_span text);

/* A replacement: every match of a pattern, from left to right, or every `what` becomes `with`. */
typedef struct cpl_substitution {
    const char *what;    /* a part of every text that changes; empty: any text may change */
    const char *pattern; /* pattern to match; NULL: the text `what` */
    const char *with;    /* the replacement; $1 is the pattern's first group */
} cpl_substitution;

/* Makes the substitutions in the text, one after the other. A pattern that takes too many steps
 * changes nothing. If memory runs out, the text or `spare` has failed. */
void cpl_regex_substitute(cpl_text *text, const cpl_substitution *steps, size_t n, cpl_text *spare);

/* ---- filters: the answer in a text ---- */

/* Sets `answer`, a piece of `text`, and returns true. If the text has no answer, sets an empty
 * answer and returns false. A found answer may be empty too. */
typedef bool cpl_filter_function(cpl_span *answer, cpl_span text);

enum { CPL_FILTER_PATTERNS = 4 };

typedef struct cpl_filter {
    const char *name;
    const char *what;                        /* the part of a text that it finds, in words */
    cpl_filter_function *find;               /* tried before the patterns; may be NULL */
    cpl_regex patterns[CPL_FILTER_PATTERNS]; /* tried in order, up to one whose pattern is NULL */
} cpl_filter;

extern const cpl_filter cpl_filters[];
extern const size_t cpl_n_filters;

/* Sets the filter of that name. CPL_ERR_INPUT, with the nearest name. */
CPL_NODISCARD cpl_status cpl_filter_find(const cpl_filter **filter, const char *name);

/* Returns the named filter with the same patterns, or `filter` if no named filter has them. A task
 * file may so hold the patterns of a named filter, and its questions have the same hash. */
const cpl_filter *cpl_filter_named(const cpl_filter *filter);

/* Sets `found`, and `answer`, a piece of `text`. CPL_ERR_INPUT as cpl_regex_find. */
CPL_NODISCARD cpl_status cpl_filter_apply(bool *found, cpl_span *answer, const cpl_filter *filter,
                                          cpl_span text);

/* Finds the content of the last \boxed or \fbox. */
cpl_filter_function cpl_filter_last_boxed;

/* ---- normal forms ---- */

/* Sets `out` to the normal form. `answer` must not be a piece of `out`. Returns false if the answer
 * has no normal form. It is then compared as it is. `spare` is memory to work in. If memory runs
 * out, `out` or `spare` has failed. */
typedef bool cpl_normal_function(cpl_text *out, cpl_span answer, cpl_text *spare);

typedef struct cpl_normal {
    const char *name;
    cpl_normal_function *make;
    const char *what; /* the normal form, in words */
} cpl_normal;

extern const cpl_normal cpl_normals[];
extern const size_t cpl_n_normals;

/* Sets the normal form of that name. CPL_ERR_INPUT, with the nearest name. */
CPL_NODISCARD cpl_status cpl_normal_find(const cpl_normal **normal, const char *name);

/* ---- comparisons ---- */

/* Returns a score from 0 to 1. Only shared_words returns values between. `spare` is memory to work
 * in. */
typedef double cpl_comparison_function(cpl_span answer, cpl_span reference, cpl_text *spare);

typedef struct cpl_comparison {
    const char *name;
    cpl_comparison_function *score;
    double score_if_both_empty; /* the score if neither text nor reference holds an answer */
    bool equality;              /* true if only equal bytes score 1 */
    const char *what;           /* the comparison, in words */
} cpl_comparison;

extern const cpl_comparison cpl_comparisons[];
extern const size_t cpl_n_comparisons;

/* Sets the comparison of that name. CPL_ERR_INPUT, with the nearest name. */
CPL_NODISCARD cpl_status cpl_comparison_find(const cpl_comparison **comparison, const char *name);

/* ---- expressions in LaTeX ---- */

/* Returns whether `a` and `b` are the same number, the same expression, or lists with equal
 * members, by the rules of sums, products, quotients and powers: \frac{3}{x} and 3x^{-1}, 2\sqrt{3}
 * and \sqrt{12}. Expressions are made of numbers, letters with indices, Greek letters, + - * / :
 * \cdot \times \div, juxtaposition, ^, \frac, \sqrt, \binom, ! and f(x). Returns false for any
 * other text, and for an expression that is too long or too deep, even if both texts are equal.
 * `lenient`: numbers may also be written .5, 5. and 007. */
bool cpl_latex_equal(cpl_span a, cpl_span b, bool lenient);

/* ---- grades ---- */

/* One metric of a task. */
typedef struct cpl_grading {
    const cpl_filter *filter;
    const cpl_filter *reference; /* finds the answer in a reference; NULL: the whole reference */
    const cpl_normal *normal;
    const cpl_comparison *comparison;
} cpl_grading;

/* Memory that is used for one text after the other. All zero is valid. */
typedef struct cpl_grading_scratch {
    cpl_text answer, reference, spare;
} cpl_grading_scratch;

void cpl_grading_scratch_free(cpl_grading_scratch *room);

typedef struct cpl_grade {
    bool found;      /* true if the text has an answer; else "[invalid]" is reported */
    cpl_span answer; /* a piece of the text */
    cpl_span normal; /* normal form, in `room` until the next grade; `answer` without one */
    double score;    /* the best score over all references, 0 to 1; 0 without references */
    bool correct;    /* true if the score is 1 */
} cpl_grade;

/* Sets `grade`. An answer or a reference without a normal form is compared byte by byte.
 * CPL_ERR_INPUT: a pattern takes too many steps. */
CPL_NODISCARD cpl_status cpl_grading_grade(cpl_grade *grade, const cpl_grading *grading,
                                           cpl_span text, const cpl_span *references,
                                           int64_t n_references, cpl_grading_scratch *room);

#endif /* CPL_EVAL_GRADE_GRADING_H */
