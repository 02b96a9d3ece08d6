/* score.h - the scores that compare options, by their names.
 *
 * Room:   eval/grade. The list is scores.def.
 * Source: docs/tasks.md, "Profiles". */
#ifndef CPL_EVAL_GRADE_SCORE_H
#define CPL_EVAL_GRADE_SCORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The facts of an option. Lengths are at least 1, even if the text is empty. */
typedef struct cpl_option_facts {
    double loglik;        /* sum of natural log-probabilities of its tokens */
    double unconditional; /* sum after the bare context; 0 if it was not requested */
    int64_t tokens;       /* tokens of the continuation */
    int64_t chars, bytes; /* the continuation with its delimiter, in code points and bytes */
    int64_t choice_chars, choice_bytes; /* the continuation without its delimiter */
} cpl_option_facts;

typedef double cpl_score_function(const cpl_option_facts *option);

/* The length that a score divides by, as far as results report it. */
typedef enum cpl_score_length {
    CPL_LENGTH_NONE,
    CPL_LENGTH_CHOICE,
    CPL_LENGTH_CONTINUATION,
} cpl_score_length;

typedef struct cpl_score {
    const char *name;
    cpl_score_function *of;
    bool loss; /* true for a loss of the right option, of which lower is better */
    cpl_score_length length;
} cpl_score;

extern const cpl_score cpl_scores[];
extern const size_t cpl_n_scores;

/* Sets the score of that name. CPL_ERR_INPUT, with the nearest name. */
CPL_NODISCARD cpl_status cpl_score_find(const cpl_score **score, const char *name);

/* Returns the first option with the highest score. NaN is below all numbers. */
int64_t cpl_score_best(const cpl_score *score, const cpl_option_facts *options, int64_t n);

/* Returns the share of the right options under a softmax over the scores of all options. */
double cpl_score_soft(const cpl_score *score, const cpl_option_facts *options, int64_t n,
                      const int64_t *gold, int64_t n_gold);

#endif /* CPL_EVAL_GRADE_SCORE_H */
