/* svg_file.c - see svg_file.h */
#include "study/svg_file.h"

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

cpl_status cpl_svg_write(int64_t *n_written, const char *folder, const char *name,
                         const cpl_text *svg)
{
    CPL_TRY(cpl_text_status(svg));
    char *path = cpl_path_join(folder, name);
    if (!path) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a path");
    cpl_status status = cpl_file_write_atomic(path, svg->bytes, svg->length);
    cpl_free(path);
    if (status == CPL_OK && n_written) ++*n_written;
    return status;
}
