/* input.c - see input.h */
#include "cli/input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 16 };

cpl_status cpl_input_read(cpl_text *out, size_t most_bytes)
{
    char chunk[CHUNK];
    size_t got, all = 0;
    errno = 0;
    while ((got = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        if (got > most_bytes - all)
            return CPL_FAIL(CPL_ERR_INPUT, "the standard input is longer than %zu bytes",
                            most_bytes);
        all += got;
        cpl_text_append(out, chunk, got);
        CPL_TRY(cpl_text_status(out));
    }
    if (!ferror(stdin)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "cannot read the standard input: %s", strerror(errno));
}
