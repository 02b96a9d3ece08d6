/* student_t.h - Student's t.
 *
 * Room:  base/stats; plain doubles. */
#ifndef CPL_BASE_STATS_STUDENT_T_H
#define CPL_BASE_STATS_STUDENT_T_H

/* Student's t with `freedom` > 0 degrees: P(T <= t), and its inverse for 0 < p < 1, to a relative
 * 1e-9 or better. */
double cpl_student_cdf(double t, double freedom);
double cpl_student_quantile(double p, double freedom);

#endif /* CPL_BASE_STATS_STUDENT_T_H */
