/* compare.h - runs lined up: what differs in their settings, their figures at equal tokens and equal
 * time, groups over seeds, pairs of runs that saw the same data in the same order.
 *
 * Room:     compare.
 * Groups:   runs whose settings differ in seeds and bookkeeping only; or, where a setting is named,
 *           runs that have the same value of it and the same training data and held-out text.
 * Point:    the largest number of tokens at which every run has an evaluated line; else at which
 *           every run has a line; else of every run its last line before the shortest one's end.
 *           Runs that have logged no step yet have no part in it.
 *           Without a point at which all were evaluated, validation loss is linear between two
 *           evaluations of a run.
 * Pairs:    of the first run's group, the baseline, with each other group: runs that share
 *           train.seed, the seed of the order and all settings of the data.
 * Numbers:  NaN is what a run has not. */
#ifndef CPL_COMPARE_COMPARE_H
#define CPL_COMPARE_COMPARE_H

#include "base/stats/statistics.h"
#include "compare/documents.h"
#include "compare/questions.h"
#include "compare/run_record.h"

typedef struct cpl_compare_options {
    const char *group_by; /* dotted name of a setting; NULL: none */
    /* The value of a setting that a configuration does not name; NULL: it is not known. */
    const char *(*default_value)(void *ctx, const char *name);
    void *ctx;
} cpl_compare_options;

typedef enum cpl_setting_role {
    CPL_ROLE_MATTERS,
    CPL_ROLE_SEED,       /* train.seed, data.seed */
    CPL_ROLE_BOOKKEEPING /* what changes no number that is compared */
} cpl_setting_role;

/* A setting of any of the runs. */
typedef struct cpl_compared_setting {
    const char *name;
    const char **texts;    /* (n_runs) as shown; "-" where it is not there */
    const char **meanings; /* (n_runs) equal where the runs mean the same */
    const char **marks;    /* (n_runs) hash of the content, which counts between two runs that
                            * have one; NULL: the run has none. NULL: of no setting of content */
    cpl_setting_role role;
    bool differs; /* between any two runs */
} cpl_compared_setting;

typedef struct cpl_run_group {
    const char *name;
    int64_t *members; /* (n) in the order of the runs */
    int64_t n;
    double place; /* value of the setting of group_by where all are numbers; else NaN */
} cpl_run_group;

/* A row of figures: one of run_figures.def, or the validation loss of a source. */
typedef struct cpl_compared_figure {
    const cpl_run_figure *is;
    cpl_run_figure_name name;
    const char *source; /* label of held-out text; NULL: none */
    double *values;     /* (n_runs) */
    cpl_spread *spread; /* (n_groups) */
} cpl_compared_figure;

typedef struct cpl_run_pair {
    int64_t base, other; /* runs */
    double difference;   /* validation loss of other less that of base, at the point */
} cpl_run_pair;

/* The baseline against another group. */
typedef struct cpl_pairing {
    int64_t group;
    cpl_run_pair *pairs; /* (n) */
    int64_t n;
    cpl_spread spread;       /* of the differences */
    double half, detectable; /* see statistics.h */
    cpl_document_difference documents;
    cpl_question_counts questions;
} cpl_pairing;

typedef enum cpl_point_kind {
    CPL_POINT_EVALUATED,
    CPL_POINT_LOGGED,
    CPL_POINT_LAST,
    CPL_POINT_NONE /* no run has logged a step */
} cpl_point_kind;

typedef struct cpl_compare {
    const cpl_run_record *runs; /* (n_runs) not owned */
    int64_t n_runs;
    cpl_compare_options options;
    const char **names;             /* (n_runs) of the runs, each another one */
    cpl_compared_setting *settings; /* (n_settings) that matter, then seeds, then bookkeeping */
    int64_t n_settings;
    cpl_run_group *groups; /* (n_groups) */
    int64_t n_groups;
    int64_t *group_of; /* (n_runs) */
    int64_t baseline;  /* a group */
    bool grouped;      /* some group has several runs, or group_by is set */
    double point;      /* tokens */
    cpl_point_kind point_kind;
    double seconds; /* of equal time: the shortest time to a run's last evaluation; NaN: none */
    double *speed;  /* (n_runs) median tokens/s */
    cpl_compared_figure *figures; /* (n_figures) */
    int64_t n_figures;
    cpl_pairing *pairings; /* (n_pairings) */
    int64_t n_pairings;
    const char **warnings; /* (n_warnings) sentences, the weightiest first */
    int64_t n_warnings, warning_capacity;
    cpl_pool pool;
} cpl_compare;

/* Lines up `n_runs` > 0 records, which stay until cpl_compare_close. CPL_ERR_USAGE: no run has the
 * setting of group_by. After a failure it is closed. */
CPL_NODISCARD cpl_status cpl_compare_open(cpl_compare *compare, const cpl_run_record *runs,
                                          int64_t n_runs, const cpl_compare_options *options);
void cpl_compare_close(cpl_compare *compare);

/* The line of a run that its figures are taken from; NULL: none. */
const cpl_run_line *cpl_compare_line(const cpl_compare *compare, int64_t run);

enum { CPL_POINT_WORDS = 240 };

/* "at 2,048,000 tokens, the most at which every run was evaluated" into `out`, which is returned. */
const char *cpl_compare_point_words(char out[CPL_POINT_WORDS], const cpl_compare *compare);

#endif /* CPL_COMPARE_COMPARE_H */
