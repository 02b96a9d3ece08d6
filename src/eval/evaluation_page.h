/* evaluation_page.h - results as one self-contained HTML page.
 *
 * Room:  eval; the look is page.h's. */
#ifndef CPL_EVAL_EVALUATION_PAGE_H
#define CPL_EVAL_EVALUATION_PAGE_H

#include "eval/evaluation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends the page; `model` is the name of what was evaluated. */
CPL_NODISCARD cpl_status cpl_evaluation_page(cpl_text *out, const cpl_evaluation *e,
                                             const char *model);

#ifdef __cplusplus
}
#endif
#endif /* CPL_EVAL_EVALUATION_PAGE_H */
