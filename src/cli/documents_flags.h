/* documents_flags.h - the flags of every verb that reads documents: short names of data.* settings.
 *
 * Room:  cli. */
#ifndef CPL_CLI_DOCUMENTS_FLAGS_H
#define CPL_CLI_DOCUMENTS_FLAGS_H

#include "cli/configure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows for a verb's table; the verb takes the settings of data. */
#define CPL_FLAG_ROWS_DOCUMENTS                                                                    \
    {.name       = "--split",                                                                      \
     .kind       = CPL_FLAG_CHOICE,                                                                \
     .value_name = "HOW",                                                                          \
     .sentence   = "Where one document of plain text ends (data.split).",                          \
     .standard   = "file",                                                                         \
     .unit       = "file|blank_line|line|separator"},                                                    \
        {.name       = "--separator",                                                              \
         .kind       = CPL_FLAG_TEXT,                                                              \
         .value_name = "TEXT",                                                                     \
         .sentence   = "The separator of --split separator (data.separator)."},                      \
        {.name       = "--text-field",                                                             \
         .kind       = CPL_FLAG_TEXT,                                                              \
         .value_name = "NAME",                                                                     \
         .sentence   = "Name of the text in a JSON document (data.text_field)."},                    \
        {.name       = "--id-field",                                                               \
         .kind       = CPL_FLAG_TEXT,                                                              \
         .value_name = "NAME",                                                                     \
         .sentence   = "Name of the document's id (data.id_field)."},                                \
        {.name       = "--source-field",                                                           \
         .kind       = CPL_FLAG_TEXT,                                                              \
         .value_name = "NAME",                                                                     \
         .sentence   = "Name of the document's source (data.source_field)."},                        \
        {.name       = "--bad",                                                                    \
         .kind       = CPL_FLAG_CHOICE,                                                            \
         .value_name = "WHAT",                                                                     \
         .sentence   = "Count and pass over a document that cannot be used, or stop (data.bad).",  \
         .standard   = "skip",                                                                     \
         .unit       = "skip|stop"},                                                                     \
    {                                                                                              \
        .name = "--no-strip", .kind = CPL_FLAG_SWITCH,                                             \
        .sentence = "Keep white space at both ends of a document (data.strip)."                    \
    }

/* Sets data.* of `c` from the flags that were given; they count more than --set. */
CPL_NODISCARD cpl_status cpl_documents_flags_apply(cpl_configuration *c, const cpl_arguments *args);

/* Whether a line that is written over again is wanted: standard error is a terminal. */
bool cpl_live_line_wanted(void);

/* Begins the line anew, so that the next output is not behind it. */
void cpl_live_line_clear(void);

#ifdef __cplusplus
}
#endif
#endif /* CPL_CLI_DOCUMENTS_FLAGS_H */
