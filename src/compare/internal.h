/* internal.h - the steps of cpl_compare_open, in their order, and what the files of the room share.
 *
 * Room:  compare only. */
#ifndef CPL_COMPARE_INTERNAL_H
#define CPL_COMPARE_INTERNAL_H

#include "compare/compare.h"
#include "report/grid.h"

/* Sets the lines of `run`, their sources and counts of damage, from a file of JSON lines, plain or
 * compressed. `batch_tokens` are the tokens of a step if a line does not give them, and a line that
 * gives others is damaged; NaN: unknown, and lines whose tokens fall are damaged. CPL_ERR_INPUT if
 * there are lines and none can be used. */
CPL_NODISCARD cpl_status cpl_run_lines_read(cpl_run_record *run, const char *path,
                                            double batch_tokens);

/* Sets the start of `run`, and what start.json records of its data. The file exists. CPL_ERR_INPUT
 * if it is no JSON object; CPL_ERR_IO; CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_run_lines_start(cpl_run_record *run, const char *path);

/* Sets the settings of all runs. */
CPL_NODISCARD cpl_status cpl_compare_settings(cpl_compare *compare);

/* The setting of a name; NULL: no run has it. */
const cpl_compared_setting *cpl_compare_setting(const cpl_compare *compare, const char *name);

/* Whether two runs have the same under a setting: by the hash of its content if both have one,
 * else by its meaning. */
bool cpl_compare_same(const cpl_compare *compare, const cpl_compared_setting *setting, int64_t a,
                      int64_t b);

/* Sets groups, baseline and names. */
CPL_NODISCARD cpl_status cpl_compare_groups(cpl_compare *compare);

/* Sets point, times and figures. */
CPL_NODISCARD cpl_status cpl_compare_figures(cpl_compare *compare);

/* Validation loss of a run at the point of comparison; NaN: it has none there. */
double cpl_compare_loss(const cpl_compare *compare, int64_t run);

/* Sets the pairings. */
CPL_NODISCARD cpl_status cpl_compare_pairs(cpl_compare *compare);

/* Sets the documents of a pairing, and the tasks of its pairs. Pairs without both files are passed
 * over; a file that cannot be used is no failure but a reason. */
CPL_NODISCARD cpl_status cpl_compare_documents(cpl_compare *compare, cpl_pairing *pairing,
                                               const char **reason);
CPL_NODISCARD cpl_status cpl_compare_questions(cpl_compare *compare, cpl_pairing *pairing,
                                               const char **reason);

/* The interval of sum(delta) / sum(bytes) under resampling of the n > 1 documents. `layer`
 * separates the random numbers of the sets of one comparison. */
CPL_NODISCARD cpl_status cpl_compare_interval(double *low, double *high, const double *delta,
                                              const double *bytes, int64_t n, uint32_t layer);

/* Sets the warnings. */
CPL_NODISCARD cpl_status cpl_compare_warnings(cpl_compare *compare);

/* Adds one sentence to them. */
CPL_NODISCARD cpl_status cpl_compare_warn(cpl_compare *compare, const char *format, ...)
    CPL_PRINTF(2, 3);

/* A table, the same on a terminal and in a page. */
typedef struct cpl_compare_table {
    /* Sets `grid`, whose texts are taken from the pool; without rows if there is nothing. */
    cpl_status (*make)(cpl_grid *grid, cpl_pool *pool, const cpl_compare *compare);
    bool details;        /* in pages only, after the others */
    const char *heading; /* in a page; NULL: its title */
    const char *words;   /* below the heading; NULL: none */
    bool of_groups;      /* the words are for runs in groups */
} cpl_compare_table;

enum { CPL_COMPARE_TABLES = 8 };
extern const cpl_compare_table cpl_compare_tables[CPL_COMPARE_TABLES];

#endif /* CPL_COMPARE_INTERNAL_H */
