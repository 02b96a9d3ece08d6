/* inspect_remote.h - words of couplet inspect that name a server: which flags they allow, opening
 * them, and how many requests they take.
 *
 * Room:  cli/verbs. */
#ifndef CPL_CLI_VERBS_INSPECT_REMOTE_H
#define CPL_CLI_VERBS_INSPECT_REMOTE_H

#include "cli/arguments/flags.h"
#include "inspect/report.h"
#include "remote/remote.h"

/* All zero at first. */
typedef struct cpl_inspect_remotes {
    const cpl_arguments *args; /* borrowed; set by the caller */
    cpl_remote **at;           /* (n_words) of words that name a server, else NULL; owned */
    cpl_log log;               /* warnings while reading */
    int64_t n_requests;        /* to all servers together, added up by the caller */
} cpl_inspect_remotes;

/* Opens word `i` if it names a server: sets the origin of the options and the path to open. For any
 * other word the path is the word, and the options stay as they are. */
CPL_NODISCARD cpl_status cpl_inspect_remotes_open(cpl_inspect_remotes *remotes,
                                                  cpl_inspect_options *options, const char **path,
                                                  int i);

/* After all reports are closed. */
void cpl_inspect_remotes_close(cpl_inspect_remotes *remotes);

/* CPL_ERR_INPUT if there are too many requests without --yes. */
CPL_NODISCARD cpl_status cpl_inspect_remotes_limit(const cpl_inspect_remotes *remotes);

/* The cache is written to, so it must not lie in a local checkpoint. */
CPL_NODISCARD cpl_status cpl_inspect_remotes_check_cache(const cpl_arguments *args);

/* The routing of a text (--text) needs the whole model: neither servers nor --dry-run. */
CPL_NODISCARD cpl_status cpl_inspect_remotes_refuse_text(const cpl_arguments *args);

#endif /* CPL_CLI_VERBS_INSPECT_REMOTE_H */
