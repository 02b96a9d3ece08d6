/* status.c - see status.h */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[1024], last_place[160];

const char *cpl_last_error(void)
{
    return last_error;
}

const char *cpl_last_error_place(void)
{
    return last_place;
}

cpl_status cpl_fail(cpl_status code, const char *file, int line, const char *format, ...)
{
    char sentence[sizeof last_error]; /* apart: the arguments may quote the last one */
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    memcpy(last_error, sentence, sizeof sentence);
    snprintf(last_place, sizeof last_place, "%s:%d", file, line);
    return code;
}

void cpl_assert_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: this must hold: %s\n", file, line, what);
    abort();
}
