/* parse_value.h - values of flags that are lists or sizes: "1,2,0.5", "0,5-7", "4G".
 *
 * Room:  cli. Every failure is CPL_ERR_USAGE with a sentence that names the flag. */
#ifndef CPL_CLI_PARSE_VALUE_H
#define CPL_CLI_PARSE_VALUE_H

#include <stdint.h>

#include "base/status.h"

/* Sets numbers [at most `most`] in rising order, each in [low, high], none twice. */
CPL_NODISCARD cpl_status cpl_parse_numbers(double *numbers, int *count, int most, const char *flag,
                                           const char *text, double low, double high);

/* Sets the numbers of "0,5-7" in rising order, each once, at most 100,000; owned by the caller
 * (cpl_free). */
CPL_NODISCARD cpl_status cpl_parse_ranges(int64_t **numbers, int64_t *count, const char *flag,
                                          const char *text);

/* Sets bytes from "4G", "512M", "1.5GiB", "100K" or a plain number; powers of 1024. */
CPL_NODISCARD cpl_status cpl_parse_bytes(double *bytes, const char *flag, const char *text);

#endif /* CPL_CLI_PARSE_VALUE_H */
