/* cmd_compare.c - couplet compare: starts couplet.compare of the Python package that lies beside
 * the program. It runs in this process, so that streams, signals and the exit code are its own. The
 * signal of Ctrl-C waits until couplet.compare has begun: Python's start would end with a traceback
 * and exit code 1. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "cli/arguments/flags.h"
#include "cli/arguments/output_paths.h"
#include "io/paths.h"

static const char module[] = "python/couplet/compare/__main__.py";

/* Sets PYTHONPATH with the package's folder first, and this program for scoring documents. Modules
 * of the current folder are not found, and compiled modules are not written beside the package. */
static cpl_status set_environment(const char *folder)
{
    char program[PATH_MAX] = "";
    const char *there      = getenv("PYTHONPATH");
    cpl_text path          = {0};
    cpl_text_printf(&path, "%s%s%s", folder, there && *there ? ":" : "", there ? there : "");
    cpl_status status    = cpl_text_status(&path);
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    bool set             = status == CPL_OK && setenv("PYTHONPATH", path.bytes, 1) == 0;
    set                  = set && (length <= 0 || setenv("COUPLET_PROGRAM", program, 1) == 0);
    set                  = set && setenv("PYTHONSAFEPATH", "1", 1) == 0;
    set                  = set && setenv("PYTHONDONTWRITEBYTECODE", "1", 1) == 0;
    cpl_text_free(&path);
    return set ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the environment");
}

static cpl_status run(const cpl_arguments *args)
{
    enum { FIRST = 3 };
    char path[CPL_MODULE_PATH];
    const char *named = getenv("COUPLET_PYTHON"), *python = named && *named ? named : "python3";
    CPL_TRY(cpl_flags_exclude(args, "--documents", "--no-documents"));
    if (!cpl_module_find(path, module))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the Python package of compare is not beside the program (%s): install "
                        "the program as a whole, or run python3 -m couplet.compare in a checkout",
                        path);
    path[strlen(path) - strlen("/couplet/compare/__main__.py")] = '\0';
    CPL_TRY(set_environment(path));
    const size_t n     = (size_t)args->n_given; /* the first word is the verb */
    const char **words = cpl_alloc((n + FIRST) * sizeof *words);
    if (!words) return CPL_ERR_MEMORY;
    memcpy(words, (const char *const[]){python, "-m", "couplet.compare"}, FIRST * sizeof *words);
    memcpy(words + FIRST, args->given + 1, (n - 1) * sizeof *words);
    words[n + FIRST - 1] = NULL;
    fflush(stdout);
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    execvp(python, (char *const *)words);
    const int reason = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    cpl_free(words);
    return CPL_FAIL(CPL_ERR_INPUT,
                    "compare needs Python 3.10 or newer with numpy, and %.200s cannot be started: "
                    "%s: apt-get install python3 python3-numpy, or name an interpreter with the "
                    "variable COUPLET_PYTHON",
                    python, strerror(reason));
}

static const cpl_flag flags[] = {
    CPL_FLAG("--group-by", TEXT, "SETTING",
             "Group runs by the value of this setting, such as erc.alpha, and order them by it; "
             "default: runs that differ only in their seeds are a group."),
    CPL_FLAG(
        "--documents", INT, "N",
        "Score the first N held-out documents of each source under the last checkpoint of every "
        "finished run, even if they have been scored before; 0: all. If not given: 64, only for "
        "runs without RUN/documents.json, and only for two or more runs.",
        .default_value = "64", .low = 0, .high = 1e9, .unit = "documents"),
    CPL_SWITCH("--no-documents", "Score no documents; use existing scores."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG("--json", FILE, "FILE",
             "Also write everything as JSON; - prints it instead of the tables."),
    CPL_FLAG("--html", FILE, "FILE", "Write a self-contained page with tables and curves."),
    CPL_FLAG_ROW_OVERWRITE,
};

const cpl_verb cpl_verb_compare = {
    .name    = "compare",
    .summary = "compare runs: settings, losses, coupling, speed, with spread over seeds",
    .usage   = "RUN [RUN ...] [--group-by SETTING] [--json FILE] [--html FILE]",
    .about =
        "A RUN is a folder of couplet train; it may still be in progress. The only file written "
        "into it is documents.json, the losses of held-out documents (--documents), for which "
        "couplet eval RUN --documents is started, with the run's own compute.threads unless "
        "--threads is given.\n"
        "Figures are taken at the largest number of tokens at which every run was evaluated. "
        "Runs that differ only in their seeds are summarised by mean and standard deviation. "
        "Runs of different groups that share seed and data are compared in pairs with the group "
        "of the first RUN: mean difference, 95 % interval, and the smallest difference that this "
        "number of pairs can detect.\n"
        "If training data, tokenizer or held-out text differ, a warning is printed first.\n"
        "It runs python3 -m couplet.compare, and needs Python 3.10 or newer with numpy. The "
        "environment variable COUPLET_PYTHON names another interpreter.",
    .least = 1,
    .most  = -1,
    CPL_VERB_FLAGS(flags),
    .run = run,
};
