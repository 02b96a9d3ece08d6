/* evaluation_page.h - results as one self-contained HTML page.
 *
 * Room:  eval; the look is page.h's. */
#ifndef CPL_EVAL_EVALUATION_PAGE_H
#define CPL_EVAL_EVALUATION_PAGE_H

#include "eval/evaluation.h"

/* Appends the page; `model` is the name of what was evaluated. */
CPL_NODISCARD cpl_status cpl_evaluation_page(cpl_text *out, const cpl_evaluation *e,
                                             const char *model);

#endif /* CPL_EVAL_EVALUATION_PAGE_H */
