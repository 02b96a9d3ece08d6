/* cmd_help.c - couplet help: what there is, or one verb. */
#include <stdio.h>

#include "cli/flags.h"
#include "cli/help.h"

static cpl_status run(const cpl_arguments *args)
{
    const cpl_verb *verb = NULL;
    int used             = 0;
    if (args->n_words == 0) {
        cpl_help_general(stdout);
        return CPL_OK;
    }
    if (args->n_words == 1 && cpl_verb_is_family(args->words[0])) {
        cpl_help_family(stdout, args->words[0]);
        return CPL_OK;
    }
    CPL_TRY(cpl_verb_find(&verb, &used, args->n_words, args->words));
    if (used < args->n_words)
        return CPL_FAIL(CPL_ERR_USAGE, "help has no use for the word %.100s", args->words[used]);
    return cpl_help_verb(stdout, verb);
}

const cpl_verb cpl_verb_help = {
    .name    = "help",
    .summary = "tell what there is, or more of one verb",
    .usage   = "[VERB]",
    .about   = "Lists the verbs, or prints what VERB --help prints.",
    .most    = 2,
    .run     = run,
};
