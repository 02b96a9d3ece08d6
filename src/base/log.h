/* log.h - sentences for the person who watches. The library never prints: it says, and whoever
 * called decides where that goes.
 *
 * Room:  base. */
#ifndef CPL_BASE_LOG_H
#define CPL_BASE_LOG_H

#include "base/status.h"

typedef enum cpl_log_level { CPL_LOG_INFO, CPL_LOG_WARN } cpl_log_level;

/* All zero is a valid log that hears nothing. `sentence` has no line end. */
typedef struct cpl_log {
    void (*say)(void *ctx, cpl_log_level level, const char *sentence);
    void *ctx;
} cpl_log;

void cpl_log_info(const cpl_log *log, const char *format, ...) CPL_PRINTF(2, 3);
void cpl_log_warn(const cpl_log *log, const char *format, ...) CPL_PRINTF(2, 3);

#endif /* CPL_BASE_LOG_H */
