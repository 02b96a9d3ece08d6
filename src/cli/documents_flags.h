/* documents_flags.h - the flags of every verb that reads documents: short names of data.* settings.
 *
 * Room:  cli. */
#ifndef CPL_CLI_DOCUMENTS_FLAGS_H
#define CPL_CLI_DOCUMENTS_FLAGS_H

#include "cli/configure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows for a verb's table. */
#define CPL_FLAG_ROWS_DOCUMENTS                                                                    \
    {.name       = "--split",                                                                      \
     .kind       = CPL_FLAG_CHOICE,                                                                \
     .value_name = "HOW",                                                                          \
     .sentence   = "Where one document of plain text ends.",                                       \
     .standard   = "file",                                                                         \
     .unit       = "file|blank_line|line|separator",                                               \
     .setting    = "data.split"},                                                                     \
        {.name       = "--separator",                                                              \
         .kind       = CPL_FLAG_TEXT,                                                              \
         .value_name = "TEXT",                                                                     \
         .sentence   = "The separator of --split separator.",                                      \
         .standard   = "<|endoftext|>",                                                            \
         .setting    = "data.separator"},                                                             \
        {.name       = "--text-field",                                                             \
         .kind       = CPL_FLAG_TEXT,                                                              \
         .value_name = "NAME",                                                                     \
         .sentence   = "Name of the text in a JSON document; dots reach into objects.",            \
         .standard   = "text",                                                                     \
         .setting    = "data.text_field"},                                                            \
        {.name       = "--id-field",                                                               \
         .kind       = CPL_FLAG_TEXT,                                                              \
         .value_name = "NAME",                                                                     \
         .sentence   = "Name of the document's id.",                                               \
         .standard   = "id",                                                                       \
         .setting    = "data.id_field"},                                                              \
        {.name       = "--source-field",                                                           \
         .kind       = CPL_FLAG_TEXT,                                                              \
         .value_name = "NAME",                                                                     \
         .sentence   = "Name of the document's source.",                                           \
         .standard   = "source",                                                                   \
         .setting    = "data.source_field"},                                                          \
        {.name       = "--bad",                                                                    \
         .kind       = CPL_FLAG_CHOICE,                                                            \
         .value_name = "WHAT",                                                                     \
         .sentence   = "Count and pass over a document that cannot be used, or stop.",             \
         .standard   = "skip",                                                                     \
         .unit       = "skip|stop",                                                                \
         .setting    = "data.bad"},                                                                   \
    {                                                                                              \
        .name = "--no-strip", .kind = CPL_FLAG_SWITCH,                                             \
        .sentence = "Keep white space at both ends of a document.", .setting = "data.strip=false"  \
    }

/* The settings of reading documents that have no flag. */
#define CPL_SETTINGS_DOCUMENTS "data.max_line_bytes data.zstd_window_log"

/* Whether a line that is written over again is wanted: standard error is a terminal. */
bool cpl_live_line_wanted(void);

/* Begins the line anew, so that the next output is not behind it. */
void cpl_live_line_clear(void);

#ifdef __cplusplus
}
#endif
#endif /* CPL_CLI_DOCUMENTS_FLAGS_H */
