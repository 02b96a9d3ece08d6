/* routing_print.h - a routing report in the terminal, and the flags of `couplet inspect` for one.
 *
 * Room:  cli/verbs. */
#ifndef CPL_CLI_VERBS_ROUTING_PRINT_H
#define CPL_CLI_VERBS_ROUTING_PRINT_H

#include "cli/arguments/flags.h"
#include "inspect/report.h"
#include "inspect/routing/report.h"

/* Rows for the verb's table. */
#define CPL_FLAG_ROWS_ROUTING                                                                      \
    CPL_FLAG("--text", FILE, "FILE",                                                               \
             "Also report the routing of this text: a file, a folder or a pattern, in any format " \
             "of data.train."),                                                                    \
        CPL_FLAG(                                                                                  \
            "--window", INT, "N",                                                                  \
            "Tokens per window of that text; default: data.seq_len of the run that the model "     \
            "is of, else 1024, or the model's context if shorter.",                                \
            .low = 1, .high = 16777216, .unit = "tokens"),                                         \
        CPL_FLAG("--text-tokens", INT, "N",                                                        \
                 "Read at most this many tokens, shared equally by its sources; 0: all.",          \
                 .default_value = "65536", .low = 0, .high = 1e12, .unit = "tokens"),              \
        CPL_FLAG("--response-tokens", INT, "N",                                                    \
                 "Of these, give this many, evenly spread, to every expert.",                      \
                 .default_value = "2048", .low = 1, .high = 1e9, .unit = "tokens"),                \
        CPL_FLAG("--tokenizer", FILE, "T.json", "Take this tokenizer instead of the folder's.")

/* Whether --text is given, and the options it comes with. `inputs` [1] is set to its value. Alphas
 * are those of --alpha if it is given, else 0.5, 1, 2 and 3. CPL_ERR_USAGE if another number
 * of checkpoints than one is given. */
CPL_NODISCARD cpl_status cpl_routing_options_of(bool *wanted, cpl_routing_options *options,
                                                const char **inputs, const cpl_arguments *args,
                                                const cpl_inspect_options *inspect);

/* What it will cost, on standard error. */
void cpl_routing_print_cost(const cpl_routing_report *report, const cpl_routing_cost *cost);

/* The tables, on standard output. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_print(const cpl_routing_report *report);

#endif /* CPL_CLI_VERBS_ROUTING_PRINT_H */
