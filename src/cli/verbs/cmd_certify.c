/* cmd_certify.c - couplet certify: its error names the present place of the judge of coupling
 * losses. The verb and its flags are removed in the next minor version. */
#include "cli/arguments/flags.h"
#include "cli/arguments/output_paths.h"

static cpl_status run(const cpl_arguments *args)
{
    return CPL_FAIL(CPL_ERR_USAGE,
                    "couplet certify is a command of the Python package now: pip install ./python, "
                    "then python -m couplet.certify %.200s",
                    args->n_words ? args->words[0] : "DUMP.safetensors or my_module:my_loss");
}

static const cpl_flag flags[] = {
    CPL_FLAG("--json", FILE, "FILE", "Taken by python -m couplet.certify too."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_OVERWRITE,
};

const cpl_verb cpl_verb_certify = {
    .name    = "certify",
    .summary = "moved: python -m couplet.certify of the Python package",
    .usage   = "[DUMP.safetensors]",
    .about   = "Reads no dump any more: python -m couplet.certify DUMP.safetensors does, with the "
               "same dumps and the same JSON. Exit code 2.",
    .most    = 1,
    CPL_VERB_FLAGS(flags),
    .run = run,
};
