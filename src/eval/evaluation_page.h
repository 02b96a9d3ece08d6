/* evaluation_page.h - results as one self-contained HTML page, and its chart.
 *
 * Room:  eval; the look is report/page.h's. */
#ifndef CPL_EVAL_EVALUATION_PAGE_H
#define CPL_EVAL_EVALUATION_PAGE_H

#include "eval/evaluation.h"
#include "report/chart.h"

/* Appends the chart. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_evaluation_charts(cpl_charts *out, const cpl_evaluation *e);

/* Appends the page; `model` is the name of what was evaluated, `data` its JSON with its series. */
CPL_NODISCARD cpl_status cpl_evaluation_page(cpl_text *out, const cpl_evaluation *e,
                                             const char *model, const json_t *data);

#endif /* CPL_EVAL_EVALUATION_PAGE_H */
