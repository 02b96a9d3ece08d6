/* log.h - messages for the user. The library never prints: it passes messages to the caller's
 * function.
 *
 * Room:  base. */
#ifndef CPL_BASE_LOG_H
#define CPL_BASE_LOG_H

#include <stdbool.h>

#include "base/status.h"

typedef enum cpl_log_level { CPL_LOG_INFO, CPL_LOG_WARN } cpl_log_level;

/* All zero is a valid log that drops every message. `sentence` has no line end. */
typedef struct cpl_log {
    void (*say)(void *ctx, cpl_log_level level, const char *sentence);
    void *ctx;
} cpl_log;

/* Returns whether messages are passed on. Returns false for NULL. */
static inline bool cpl_log_is_heard(const cpl_log *log)
{
    return log && log->say;
}

void cpl_log_say(const cpl_log *log, cpl_log_level level, const char *format, ...) CPL_PRINTF(3, 4);

#define cpl_log_info(log, ...) cpl_log_say((log), CPL_LOG_INFO, __VA_ARGS__)
#define cpl_log_warn(log, ...) cpl_log_say((log), CPL_LOG_WARN, __VA_ARGS__)

#endif /* CPL_BASE_LOG_H */
