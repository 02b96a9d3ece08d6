/* log.c - see log.h */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void cpl_log_say(const cpl_log *log, cpl_log_level level, const char *format, ...)
{
    char sentence[2048];
    va_list args;
    if (!log || !log->say) return;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    log->say(log->ctx, level, sentence);
}
