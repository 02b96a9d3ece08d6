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
    if (used + 1 < args->n_words)
        return CPL_FAIL(CPL_ERR_USAGE, "help has no use for the word %.100s",
                        args->words[used + 1]);
    return cpl_help_verb(stdout, verb, used < args->n_words ? args->words[used] : NULL);
}

const cpl_verb cpl_verb_help = {
    .name    = "help",
    .summary = "list the verbs, or describe one of them",
    .usage   = "[VERB [SECTION, SECTION.NAME or all]]",
    .about   = "Lists the verbs, or prints what VERB --help [SECTION] prints.",
    .most    = 4,
    .run     = run,
};
