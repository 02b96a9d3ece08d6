/* evaluation_tables.h - results as tables, the same on a terminal and in a page.
 *
 * Room:  eval. */
#ifndef CPL_EVAL_EVALUATION_TABLES_H
#define CPL_EVAL_EVALUATION_TABLES_H

#include "eval/evaluation.h"
#include "report/grid.h"

/* "54.21" percent of a share, "2.685" of a loss, "-" of what is not a number, from the pool. */
const char *cpl_evaluation_value(cpl_pool *pool, const char *metric, double value);

/* Each sets `grid`, whose texts are taken from the pool; without rows where there is nothing. */
/* A row for every metric of every task, the headline first, then the paper's averages. */
CPL_NODISCARD cpl_status cpl_evaluation_table(cpl_grid *grid, cpl_pool *pool,
                                              const cpl_evaluation *e);
/* The groups, or the subjects, of one result: `of` is "groups" or "subjects". */
CPL_NODISCARD cpl_status cpl_evaluation_table_of(cpl_grid *grid, cpl_pool *pool,
                                                 const cpl_task_evaluation *one, const char *of);

/* Appends the table, and what was left out or cut, as text for a terminal. */
CPL_NODISCARD cpl_status cpl_evaluation_text(cpl_text *out, const cpl_evaluation *e);

/* Appends a sentence for every result of which questions were cut or rows left out. */
void cpl_evaluation_remarks(cpl_text *out, const cpl_evaluation *e);

#endif /* CPL_EVAL_EVALUATION_TABLES_H */
