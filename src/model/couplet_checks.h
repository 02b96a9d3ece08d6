/* couplet_checks.h - checks of arguments that the functions of couplet.h share. Each returns
 * CPL_ERR_INPUT with a sentence that names the field `what`.
 *
 * Room:  model. */
#ifndef CPL_MODEL_COUPLET_CHECKS_H
#define CPL_MODEL_COUPLET_CHECKS_H

#include <stdbool.h>

#include "couplet.h"

#include "base/status.h"

#define CPL_REFUSE(...) CPL_FAIL(CPL_ERR_INPUT, "cpl_erc: " __VA_ARGS__)

enum { CPL_MOST_EXPERTS = 65535, CPL_MOST_WIDTH = 1 << 24, CPL_MOST_THREADS = 4096 };

/* Checks that size is 1 ... most. */
CPL_NODISCARD cpl_status cpl_erc_check_size(const char *what, int64_t size, int most);

/* Checks an array of floats or of 32-bit integers: aligned, and not NULL if `needed`. */
CPL_NODISCARD cpl_status cpl_erc_check_floats(const char *what, const void *at, bool needed);

CPL_NODISCARD cpl_status cpl_erc_check_threads(int n_threads);

/* Checks the noise of n rows of d numbers. A given delta [n,d] must be finite. */
CPL_NODISCARD cpl_status cpl_erc_check_noise(cpl_erc_noise_kind noise, uint64_t step,
                                             uint32_t layer, uint32_t draw, const float *delta,
                                             int64_t n, int64_t d);

#endif /* CPL_MODEL_COUPLET_CHECKS_H */
