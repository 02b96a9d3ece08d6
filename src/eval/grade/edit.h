/* edit.h - a text rewritten pass by pass.
 *
 * Room:  eval/grade. A pass reads `text` and writes `spare`, and then the two change places: what
 *        was rewritten is in `text` again, and no pass takes more time than the text is long. */
#ifndef CPL_EVAL_GRADE_EDIT_H
#define CPL_EVAL_GRADE_EDIT_H

#include "base/span.h"

void cpl_edit_set(cpl_text *text, cpl_span to); /* `to` is not of this text */
void cpl_edit_swap(cpl_text *text, cpl_text *spare);

/* Keeps the bytes [from, end), as cpl_span_part. */
void cpl_edit_keep(cpl_text *text, size_t from, size_t end);

/* Replaces every `what`, from left to right; what was put in is not looked at again. */
void cpl_edit_replace(cpl_text *text, const char *what, const char *with, cpl_text *spare);

#endif /* CPL_EVAL_GRADE_EDIT_H */
