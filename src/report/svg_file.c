/* svg_file.c - see svg_file.h */
#include "report/svg_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"

void cpl_svg_name(char out[CPL_SVG_NAME_BYTES], const char *name, const char *otherwise)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n                 = 0;
    if (!*name) name = otherwise;
    for (; name[n] && n + 1 < CPL_SVG_NAME_BYTES; n++)
        out[n] = strchr(good, name[n]) ? name[n] : '_';
    out[n] = '\0';
    if (out[0] == '.' || out[0] == '-') out[0] = '_';
}

cpl_status cpl_svg_write(int64_t *n_written, const char *folder, cpl_text *svg, const char *name,
                         ...)
{
    char file[256]; /* as long as file systems take */
    va_list args;
    CPL_TRY(cpl_text_status(svg));
    va_start(args, name);
    vsnprintf(file, sizeof file, name, args);
    va_end(args);
    char *path = cpl_path_join(folder, file);
    if (!path) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a path");
    cpl_status status = cpl_file_write_atomic(path, svg->bytes, svg->length);
    cpl_free(path);
    cpl_text_clear(svg);
    if (status == CPL_OK && n_written) ++*n_written;
    return status;
}
