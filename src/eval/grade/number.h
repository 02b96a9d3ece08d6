/* number.h - the value of a number written in LaTeX.
 *
 * Room:   eval/grade.
 * Source: docs/tasks.md, "Normal forms": in the place of a computer algebra system. */
#ifndef CPL_EVAL_GRADE_NUMBER_H
#define CPL_EVAL_GRADE_NUMBER_H

#include "base/span.h"

/* Sets `value` if the whole text, without spaces, is made of integers and decimals, \frac{a}{b} and
 * a/b, \sqrt{n} and \sqrt[k]{n}, \pi, + and -, \cdot, \times, \div and juxtaposition, ^, braces and
 * round brackets, also with \left and \right, not more than 64 of them one in another; and is a
 * finite number. */
bool cpl_number_read(double *value, cpl_span text);

/* Whether both are numbers, and equal within 1e-9 of the larger one. */
bool cpl_number_equal(cpl_span a, cpl_span b);

#endif /* CPL_EVAL_GRADE_NUMBER_H */
