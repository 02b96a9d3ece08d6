/* eval_text.h - couplet eval --text: how well a model predicts a text.
 *
 * Room:  cli. */
#ifndef CPL_CLI_EVAL_TEXT_H
#define CPL_CLI_EVAL_TEXT_H

#include "base/log.h"
#include "cli/configure.h"

/* Rows for the verb's table. */
#define CPL_FLAG_ROWS_PERPLEXED                                                                    \
    CPL_FLAG("--text", FILE, "FILE",                                                               \
             "Perplexity and bits per byte of this text, and of those named after the flags; "     \
             "files, folders and patterns as in data.train (--set data.*)."),                      \
        CPL_FLAG("--window", INT, "N",                                                             \
                 "Tokens per window of --text; default: 1024, or the model's context if shorter.", \
                 .low = 1, .high = 1e7, .unit = "tokens"),                                         \
        CPL_FLAG("--stride", INT, "N",                                                             \
                 "Tokens of --text by which the window advances; each token is predicted once, "   \
                 "from the tokens before it in the window; default: whole windows.",               \
                 .low = 1, .high = 1e7, .unit = "tokens")

/* The settings of the verb that this form reads. */
#define CPL_SETTINGS_PERPLEXED                                                                     \
    "data.bad data.text_field data.id_field data.source_field data.strip data.split "              \
    "data.separator data.special_as_text data.max_line_bytes data.zstd_window_log"

/* Reads, scores, prints a table of the sources and writes --json. args->words are the model and
 * further inputs. */
CPL_NODISCARD cpl_status cpl_eval_text(const cpl_arguments *args, const cpl_configuration *c,
                                       const cpl_log *log);

#endif /* CPL_CLI_EVAL_TEXT_H */
