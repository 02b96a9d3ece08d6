/* input.c - see input.h */
#include "cli/terminal/input.h"

#include <unistd.h>

#include "io/file.h"

enum { CHUNK = 1 << 16 };

cpl_status cpl_input_read(cpl_text *out, size_t most_bytes)
{
    char chunk[CHUNK];
    size_t all = 0;
    for (size_t got;;) {
        CPL_TRY(cpl_file_read_next(STDIN_FILENO, chunk, sizeof chunk, &got, "the standard input"));
        if (got == 0) return CPL_OK;
        if (got > most_bytes - all)
            return CPL_FAIL(CPL_ERR_INPUT, "the standard input is longer than %zu bytes",
                            most_bytes);
        all += got;
        cpl_text_append(out, chunk, got);
        CPL_TRY(cpl_text_status(out));
    }
}
