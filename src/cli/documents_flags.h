/* documents_flags.h - the flags of every verb that reads documents: short names of data.* settings.
 *
 * Room:  cli. */
#ifndef CPL_CLI_DOCUMENTS_FLAGS_H
#define CPL_CLI_DOCUMENTS_FLAGS_H

#include "cli/configure.h"

/* Rows for a verb's table. */
#define CPL_FLAG_ROWS_DOCUMENTS                                                                    \
    {.name          = "--split",                                                                   \
     .kind          = CPL_FLAG_CHOICE,                                                             \
     .value_name    = "HOW",                                                                       \
     .help          = "Where one document of plain text ends.",                                    \
     .default_value = "file",                                                                      \
     .unit          = "file|blank_line|line|separator",                                            \
     .setting       = "data.split"},                                                                     \
        {.name          = "--separator",                                                           \
         .kind          = CPL_FLAG_TEXT,                                                           \
         .value_name    = "TEXT",                                                                  \
         .help          = "The separator of --split separator.",                                   \
         .default_value = "<|endoftext|>",                                                         \
         .setting       = "data.separator"},                                                             \
        {.name          = "--text-field",                                                          \
         .kind          = CPL_FLAG_TEXT,                                                           \
         .value_name    = "NAME",                                                                  \
         .help          = "Name of the text in a JSON document; dots select nested values.",       \
         .default_value = "text",                                                                  \
         .setting       = "data.text_field"},                                                            \
        {.name          = "--id-field",                                                            \
         .kind          = CPL_FLAG_TEXT,                                                           \
         .value_name    = "NAME",                                                                  \
         .help          = "Name of the document's id.",                                            \
         .default_value = "id",                                                                    \
         .setting       = "data.id_field"},                                                              \
        {.name          = "--source-field",                                                        \
         .kind          = CPL_FLAG_TEXT,                                                           \
         .value_name    = "NAME",                                                                  \
         .help          = "Name of the document's source.",                                        \
         .default_value = "source",                                                                \
         .setting       = "data.source_field"},                                                          \
        {.name          = "--bad",                                                                 \
         .kind          = CPL_FLAG_CHOICE,                                                         \
         .value_name    = "WHAT",                                                                  \
         .help          = "Count and skip a document that cannot be used, or stop.",               \
         .default_value = "skip",                                                                  \
         .unit          = "skip|stop",                                                             \
         .setting       = "data.bad"},                                                                   \
    {                                                                                              \
        .name = "--no-strip", .kind = CPL_FLAG_SWITCH,                                             \
        .help = "Keep white space at both ends of a document.", .setting = "data.strip=false"      \
    }

/* The settings of reading documents that have no flag. */
#define CPL_SETTINGS_DOCUMENTS "data.max_line_bytes data.zstd_window_log"

/* Whether a line that is written over again is wanted: standard error is a terminal. */
bool cpl_live_line_wanted(void);

/* Begins the line anew, so that the next output is not behind it. */
void cpl_live_line_clear(void);

#endif /* CPL_CLI_DOCUMENTS_FLAGS_H */
