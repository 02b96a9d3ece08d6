/* internal.h - functions shared by the files of one verb.
 *
 * Room:  cli/verbs. */
#ifndef CPL_CLI_VERBS_INTERNAL_H
#define CPL_CLI_VERBS_INTERNAL_H

#include "base/log.h"
#include "base/status.h"
#include "cli/arguments/configure.h"
#include "cli/arguments/flags.h"
#include "eval/evaluation.h"
#include "inspect/report.h"
#include "inspect/routing/report.h"
#include "parallel/gather.h"
#include "remote/remote.h"

/* ---- eval_flags.c: the forms of couplet eval ---- */

typedef enum cpl_eval_mode {
    CPL_EVAL_MODE_TASKS,
    CPL_EVAL_MODE_TEXT,
    CPL_EVAL_MODE_DOCUMENTS,
    CPL_EVAL_MODE_LIST
} cpl_eval_mode;

/* Sets the form from --tasks or --task-file, --text, --documents or --list. Fails with
 * CPL_ERR_USAGE for no form, two forms, a flag of another form, --samples without --json, a missing
 * MODEL_DIR, and too many words. */
CPL_NODISCARD cpl_status cpl_eval_mode_of(cpl_eval_mode *form, const cpl_arguments *args);

/* ---- eval_text.c ---- */

/* Reads and scores the text, prints a table of its sources and writes --json. args->words are the
 * model and further inputs. The ranks of `world` (NULL: one process) share the text. */
CPL_NODISCARD cpl_status cpl_eval_text(const cpl_arguments *args, const cpl_configuration *c,
                                       cpl_group *world, const cpl_log *log);

/* ---- eval_list.c ---- */

/* Prints all tasks: their sets, profiles, numbers of rows found in `data`, and where the full rows
 * are published. */
CPL_NODISCARD cpl_status cpl_eval_list(const cpl_selection *selection, const char *data);

/* Append the words of --tasks, or the names of profiles, with a blank after each. */
void cpl_eval_list_task_words(cpl_text *words);
void cpl_eval_list_profile_words(cpl_text *words);

/* ---- inspect_print.c: the cost before the work, the tables after it ---- */

/* Prints the expected cost on standard error, before the work begins. `base_bytes`: memory of the
 * program itself, in bytes. */
void cpl_inspect_print_cost(const cpl_coupling_report *report, const cpl_inspect_cost *cost,
                            double base_bytes);

/* Prints the tables of one checkpoint and its verdict on standard output. */
CPL_NODISCARD cpl_status cpl_inspect_print(const cpl_coupling_report *report);

/* Prints a table that compares `count` checkpoints by means over their layers. */
CPL_NODISCARD cpl_status cpl_inspect_print_compare(const cpl_coupling_report *reports,
                                                   int64_t count);

/* ---- inspect_remote.c: words that name a server ---- */

/* Holds the remote checkpoints of a command. It is all zero at first. */
typedef struct cpl_inspect_remotes {
    const cpl_arguments *args; /* set by the caller; borrowed */
    cpl_remote **at;           /* (n_words) checkpoint of each word, or NULL; owned */
    cpl_log log;               /* warnings while reading */
    int64_t n_requests;        /* requests to all servers, added up by the caller */
} cpl_inspect_remotes;

/* Opens word `i` if it names a server, and sets the origin of the options and the path to open. For
 * any other word `*path` is the word, and the options stay unchanged. */
CPL_NODISCARD cpl_status cpl_inspect_remotes_open(cpl_inspect_remotes *remotes,
                                                  cpl_inspect_options *options, const char **path,
                                                  int i);

/* Call this after all reports are closed. */
void cpl_inspect_remotes_close(cpl_inspect_remotes *remotes);

/* Fails with CPL_ERR_INPUT if there are too many requests without --yes. */
CPL_NODISCARD cpl_status cpl_inspect_remotes_limit(const cpl_inspect_remotes *remotes);

/* Refuses a cache in a local checkpoint, since files are written to it. */
CPL_NODISCARD cpl_status cpl_inspect_remotes_check_cache(const cpl_arguments *args);

/* Refuses names of servers and --dry-run with --text, which needs the whole model. */
CPL_NODISCARD cpl_status cpl_inspect_remotes_refuse_text(const cpl_arguments *args);

/* ---- routing_print.c: the flags and the tables of couplet inspect --text ---- */

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
                 "Number of these tokens, evenly spread, given to every expert.",                  \
                 .default_value = "2048", .low = 1, .high = 1e9, .unit = "tokens"),                \
        CPL_FLAG("--tokenizer", FILE, "T.json", "Take this tokenizer instead of the folder's.")

/* Sets `*wanted` to whether --text is given. If it is, sets the options, and inputs[0] to the value
 * of --text. The alphas are the values of --alpha, by default 0.5, 1, 2 and 3. Fails with
 * CPL_ERR_USAGE if the number of checkpoints is not one. */
CPL_NODISCARD cpl_status cpl_routing_options_of(bool *wanted, cpl_routing_options *options,
                                                const char **inputs, const cpl_arguments *args,
                                                const cpl_inspect_options *inspect);

/* Prints the expected cost on standard error. */
void cpl_routing_print_cost(const cpl_routing_report *report, const cpl_routing_cost *cost);

/* Prints the tables on standard output. Fails with CPL_ERR_MEMORY without memory. */
CPL_NODISCARD cpl_status cpl_routing_print(const cpl_routing_report *report);

/* ---- train_summary.c: the table at the end of a run, from the run's own files ---- */

/* Prints the held-out loss before and after, per source, and per layer the coupling before and
 * after, eps, norms and load, from RUN/start.json and the last line of RUN/metrics.jsonl with an
 * evaluation. A start.json that cannot be read is a warning, since the training is complete. */
CPL_NODISCARD cpl_status cpl_train_summary_print(const char *run, const cpl_log *log);

#endif /* CPL_CLI_VERBS_INTERNAL_H */
