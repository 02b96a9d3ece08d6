/* compare.h - runs lined up: what differs in their settings, their figures at equal tokens and
 * equal time, groups over seeds, pairs of runs that saw the same data in the same order.
 *
 * Room:     compare.
 * Groups:   runs whose settings differ in seeds and bookkeeping only; or, if a setting is named,
 *           runs that have the same value of it and the same training data and held-out text.
 * Point:    the largest number of tokens at which every run has an evaluated line; else at which
 *           every run has a line; else of every run its last line before the shortest one's end.
 *           Runs that have logged no step yet are left out.
 *           Without a point at which all were evaluated, validation loss is linear between two
 *           evaluations of a run.
 * Pairs:    of the first run's group, the baseline, with each other group: runs that share
 *           train.seed, the seed of the order and all settings of the data.
 * Documents: on the same held-out documents, bits per byte of a set = sum of nll / ln 2 / sum of
 *           bytes. Documents are matched by source and id. An interval is that of 2,000 resamples
 *           of the documents with replacement, from their 2.5 % to their 97.5 % quantile. Of
 *           several pairs the mean is taken; a resample draws the same documents for all of them.
 * Questions: how often one run of a pair is right and the other is not, and McNemar's exact test,
 *           in which a question with several samples counts once.
 * Numbers:  NaN is a figure that a run does not have. */
#ifndef CPL_COMPARE_COMPARE_H
#define CPL_COMPARE_COMPARE_H

#include "base/stats/statistics.h"
#include "base/text.h"
#include "compare/run_record.h"
#include "report/chart.h"

typedef struct cpl_compare_options {
    const char *group_by; /* dotted name of a setting; NULL: none */
    /* The value of a setting that a configuration does not name; NULL: it is not known. */
    const char *(*default_value)(const char *name);
} cpl_compare_options;

typedef enum cpl_setting_role {
    CPL_ROLE_MATTERS,
    CPL_ROLE_SEED,       /* train.seed, data.seed */
    CPL_ROLE_BOOKKEEPING /* settings that change no compared number */
} cpl_setting_role;

/* A setting of any of the runs. */
typedef struct cpl_compared_setting {
    const char *name;
    const char **texts;    /* (n_runs) as shown; "-" if it is not there */
    const char **meanings; /* (n_runs) equal if the runs mean the same */
    const char **marks;    /* (n_runs) hash of the content, which counts between two runs that
                            * have one; NULL: the run has none. NULL: of no setting of content */
    cpl_setting_role role;
    bool differs; /* between any two runs */
} cpl_compared_setting;

typedef struct cpl_run_group {
    const char *name;
    int64_t *members; /* (n) in the order of the runs */
    int64_t n;
    double place; /* value of the setting of group_by if all are numbers; else NaN */
} cpl_run_group;

/* A row of figures: one of run_figures.def, or the validation loss of a source. */
typedef struct cpl_compared_figure {
    const cpl_run_figure *is;
    cpl_run_figure_name name;
    const char *source; /* label of held-out text; NULL: none */
    double *values;     /* (n_runs) */
    cpl_spread *spread; /* (n_groups) */
} cpl_compared_figure;

/* The questions of a task that both runs of a pair have answered. */
typedef struct cpl_question_table {
    const char *task;
    const char *metric; /* "" if `correct` is a plain number */
    int64_t both, only_base, only_other, neither;
    int64_t left_out; /* questions that one side alone has */
    double p;         /* two-sided, exact; over questions, whatever the number of samples of each */
} cpl_question_table;

typedef struct cpl_run_pair {
    int64_t base, other;       /* runs */
    double difference;         /* validation loss of other less that of base, at the point */
    cpl_question_table *tasks; /* (n_tasks) */
    int64_t n_tasks;
} cpl_run_pair;

enum { CPL_BOOTSTRAP_RESAMPLES = 2000 };

/* Of all documents, or of those of a source. */
typedef struct cpl_document_set {
    const char *source; /* NULL: all */
    int64_t n;
    double bytes;
    double base, other; /* bits per byte, means over the pairs */
    double difference;  /* other less base */
    double low, high;   /* its interval; NaN for fewer than two documents */
} cpl_document_set;

typedef struct cpl_document_difference {
    int64_t n_pairs; /* those of which both runs have documents; 0: nothing to compare */
    int64_t step;
    int64_t only_base, only_other; /* documents of one side alone, at most, in any pair */
    cpl_document_set *sets;        /* (n_sets) all documents, then each source */
    int64_t n_sets;
} cpl_document_difference;

/* The baseline against another group. */
typedef struct cpl_pairing {
    int64_t group;
    cpl_run_pair *pairs; /* (n) */
    int64_t n;
    cpl_spread spread;       /* of the differences */
    double half, detectable; /* see statistics.h */
    cpl_document_difference documents;
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
    cpl_strings warnings; /* sentences, the weightiest first */
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

/* "at 2,048,000 tokens, the most at which every run was evaluated" into `out`, which is
 * returned. */
const char *cpl_compare_point_words(char out[CPL_POINT_WORDS], const cpl_compare *compare);

/* Appends all tables as text for a terminal, warnings at the top. */
CPL_NODISCARD cpl_status cpl_compare_text(cpl_text *out, const cpl_compare *compare);

/* A new object, whose members docs/formats.md lists; NULL if there is no memory. What is not finite
 * is null. */
json_t *cpl_compare_json(const cpl_compare *compare);

enum { CPL_COMPARE_COLOURS = 8 };

/* Appends all charts, in the sections end (figures at the end against the setting of group_by) and
 * curves (against tokens). A curve is a line a run; of groups the mean over the runs where all have
 * a number, with a band of one standard deviation to both sides. Up to CPL_COMPARE_COLOURS lines
 * have colours of their own, more take the ramp. Losses begin at a twentieth of the tokens, so that
 * the fall from the first steps does not hide what differs. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_compare_charts(cpl_charts *out, const cpl_compare *compare);

/* Appends the page; `data` is the comparison's JSON with its series, from which its charts come. */
CPL_NODISCARD cpl_status cpl_compare_page(cpl_text *out, const cpl_compare *compare,
                                          const json_t *data);

#endif /* CPL_COMPARE_COMPARE_H */
