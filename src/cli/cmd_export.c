/* cmd_export.c - couplet export: a run in the form that another program reads. */
#include <stdio.h>

#include "cli/flags.h"
#include "train/tensorboard.h"

static cpl_status run(const cpl_arguments *args)
{
    int64_t lines, damaged;
    const char *folder = cpl_flag_text(args, "--tensorboard");
    CPL_TRY(cpl_tensorboard_export(args->words[0], folder, &lines, &damaged));
    printf("%lld steps of %s for tensorboard --logdir %s\n", (long long)lines, args->words[0],
           folder);
    if (damaged)
        printf("%lld damaged line%s of metrics.jsonl %s left out\n", (long long)damaged,
               damaged == 1 ? "" : "s", damaged == 1 ? "is" : "are");
    return CPL_OK;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--tensorboard", FOLDER, "DIR",
             "Write an event file into this folder, which is made if it does not exist.",
             .required = true),
};

const cpl_verb cpl_verb_export = {
    .name    = "export",
    .summary = "hand a run over to TensorBoard",
    .usage   = "RUN --tensorboard DIR",
    .about =
        "Reads metrics.jsonl of a run of couplet train, which may be compressed, and writes what "
        "its lines say as one event file: numbers, those of each layer, tokens of each expert as "
        "histograms, and the configuration as text. Names are those of metrics.jsonl.\n"
        "A run with log.tensorboard=true writes such files itself while it trains.",
    .least   = 1,
    .most    = 1,
    .flags   = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run     = run,
};
