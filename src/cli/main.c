/* main.c - the program: finds the verb, reads its flags, runs it, reports failures.
 *
 * Room:  cli.
 * Exit:  0: success; 1: a fault of the input or the system; 2: wrong use (verb, flag, --set). After
 *        a stop the program ends by the signal that requested it, which a shell shows as 130
 *        (SIGINT) or 143 (SIGTERM). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/stop.h"
#include "cli/arguments/flags.h"
#include "cli/cmd_help.h"
#include "cli/terminal/output.h"
#include "cli/terminal/ranks.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/terminal.h"
#include "parallel/mpi.h"
#include "remote/remote.h"

enum { EXIT_DONE = 0, EXIT_WORLD = 1, EXIT_USE = 2, EXIT_SIGNAL = 128 };

/* Turns of libgomp's waiting loop, some tens of nanoseconds each. The default is 300,000.
 * bench/neighbours.py compares counts: docs/benchmarks/README.md. */
static const char spin_count[] = "10000";

/* Bounds how long a thread spins before it sleeps. By default threads of libgomp that wait for each
 * other spin for milliseconds. If other programs run, the thread that is waited for gets no
 * processor during that time, and training falls to a tenth of its speed. libgomp reads its policy
 * when it is loaded, before main, and has no call that changes it. So the program sets
 * GOMP_SPINCOUNT and executes itself again, once (4 ms). A policy that the environment already
 * names is left unchanged. The library sets nothing: inside another process the policy belongs to
 * that process. */
static void bound_spinning(char **argv)
{
    char program[PATH_MAX];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    /* Uses the program's own path, which ps and pkill show, and not /proc/self/exe. */
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", spin_count, 1) != 0) return;
    program[length] = '\0';
    (void)execv(program, argv); /* returns if it fails: then the default policy holds */
}

/* Returns true if the word has an unknown scheme: s3://..., or HTTPS://... in capitals. */
static bool has_other_scheme(const char *word)
{
    const size_t letters =
        strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    return letters && strncmp(word + letters, "://", 3) == 0 && !cpl_remote_is(word);
}

/* Refuses names of servers for verbs that need whole files. Only inspect reads parts of a file. */
static cpl_status refuse_remote(const cpl_arguments *args)
{
    for (int i = 0; i < args->n_words; i++)
        if (has_other_scheme(args->words[i]))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%.500s: names of places elsewhere begin with hf:// or https://",
                            args->words[i]);
    for (int i = 0; i < args->n_words && !args->verb->afar; i++)
        if (cpl_remote_is(args->words[i]))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%.500s: couplet %s reads whole files, and local ones only: fetch it "
                            "first; couplet inspect reads routers and gates where they lie",
                            args->words[i], args->verb->name);
    return CPL_OK;
}

static cpl_status run_verb(int count, char **words)
{
    const cpl_verb *verb = NULL;
    cpl_arguments args;
    int used = 0;
    CPL_TRY(cpl_verb_find(&verb, &used, count, (const char *const *)words));
    if (!verb->over_ranks) CPL_TRY(cpl_ranks_refuse(verb->name));
    CPL_TRY(cpl_arguments_read(&args, verb, count - used, words + used));
    args.given        = words;
    args.n_given      = count;
    cpl_status status = args.help ? CPL_OK : refuse_remote(&args);
    if (status == CPL_OK)
        status = args.help ? cpl_help_verb(stdout, verb, args.topic) : verb->run(&args);
    cpl_arguments_free(&args);
    return status;
}

static cpl_status no_such_flag(const char *word)
{
    const char *names[] = {"--help", "--version"};
    const char *near    = cpl_text_nearest(word, names, 2);
    if (near)
        return CPL_FAIL(CPL_ERR_USAGE, "there is no flag %.100s; did you mean %s?", word, near);
    return CPL_FAIL(CPL_ERR_USAGE, "a verb comes first, not %.100s; couplet help lists them", word);
}

static cpl_status run(int count, char **words)
{
    if (strcmp(words[0], "--help") == 0 || strcmp(words[0], "-h") == 0) {
        cpl_help_general(stdout);
        return CPL_OK;
    }
    if (strcmp(words[0], "--version") == 0) {
        printf("couplet %s\n", COUPLET_VERSION);
        return CPL_OK;
    }
    if (words[0][0] == '-') return no_such_flag(words[0]);
    if (count > 1 && cpl_verb_is_family(words[0]) &&
        (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0)) {
        cpl_help_family(stdout, words[0]);
        return CPL_OK;
    }
    return run_verb(count, words);
}

int main(int argc, char **argv)
{
    bound_spinning(argv);
    cpl_output_prepare();
    if (argc < 2) {
        cpl_help_general(stderr);
        return EXIT_USE;
    }
    cpl_status status = run(argc - 1, argv + 1);
    if (status == CPL_OK) status = cpl_output_check();
    cpl_terminal_flush();
    (void)fflush(stdout);
    if (status != CPL_OK && !cpl_output_unread() && !cpl_ranks_is_silent())
        cpl_output_sentence(stderr, "couplet: ", cpl_last_error());
    if (cpl_stop_signal() && cpl_mpi_launched() > 1)
        return EXIT_SIGNAL + cpl_stop_signal(); /* launchers pass a code on, not every signal */
    if (cpl_stop_signal()) cpl_signals_end(cpl_stop_signal());
    if (status == CPL_OK) return EXIT_DONE;
    const int code = status == CPL_ERR_USAGE ? EXIT_USE : EXIT_WORLD;
    cpl_ranks_abandon(code);
    return code;
}
