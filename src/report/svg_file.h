/* svg_file.h - a chart as a file of its own.
 *
 * Room:  report. */
#ifndef CPL_REPORT_SVG_FILE_H
#define CPL_REPORT_SVG_FILE_H

#include "base/text.h"

enum { CPL_SVG_NAME_BYTES = 72 };

/* Writes a name that every file system takes: what is neither letter, digit, dot, dash nor
 * underscore becomes an underscore; a dot or dash in front, too. `otherwise` stands for an empty
 * one. */
void cpl_svg_name(char out[CPL_SVG_NAME_BYTES], const char *name, const char *otherwise);

/* Writes the chart to the file of that name in `folder`, counts it in `n_written` (NULL: nowhere) and
 * clears `svg` for the next; a failure of its text is told here. */
CPL_NODISCARD cpl_status cpl_svg_write(int64_t *n_written, const char *folder, cpl_text *svg,
                                       const char *name, ...) CPL_PRINTF(4, 5);

#endif /* CPL_REPORT_SVG_FILE_H */
