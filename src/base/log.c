/* log.c - see log.h */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static void say(const cpl_log *log, cpl_log_level level, const char *format, va_list args)
{
    char sentence[2048];
    if (!log || !log->say) return;
    vsnprintf(sentence, sizeof sentence, format, args);
    log->say(log->ctx, level, sentence);
}

void cpl_log_info(const cpl_log *log, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(log, CPL_LOG_INFO, format, args);
    va_end(args);
}

void cpl_log_warn(const cpl_log *log, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(log, CPL_LOG_WARN, format, args);
    va_end(args);
}
