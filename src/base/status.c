/* status.c - see status.h */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[1024];

const char *cpl_last_error(void)
{
    return last_error;
}

cpl_status cpl_fail(cpl_status code, const char *format, ...)
{
    char sentence[sizeof last_error]; /* separate, since the arguments may point to last_error */
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    memcpy(last_error, sentence, sizeof sentence);
    return code;
}

void cpl_assert_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: this must hold: %s\n", file, line, what);
    abort();
}
