/* cmd_certify.c - couplet certify: whether an implementation of the coupling loss is right. */
#include <stdio.h>
#include <string.h>

#include "certify/show.h"
#include "cli/flags.h"
#include "cli/output_paths.h"
#include "cli/terminal/output.h"

static cpl_status print_text(const cpl_certificate *certificate, const char *path)
{
    cpl_text text           = {0};
    const cpl_status status = cpl_certify_text(&text, certificate, path);
    if (status == CPL_OK) fputs(text.bytes, stdout);
    cpl_text_free(&text);
    return status;
}

/* Fails unless the verdict is right; the failure sets the exit code. */
static cpl_status tell(const cpl_certificate *certificate, const char *path)
{
    cpl_text clause   = {0};
    cpl_status status = CPL_OK;
    if (certificate->verdict == CPL_CERTIFY_RIGHT) return CPL_OK;
    cpl_certify_clause(&clause, certificate);
    status = cpl_text_status(&clause);
    if (status == CPL_OK)
        status = CPL_FAIL(CPL_ERR_INPUT, "%s is not right: %s", path, clause.bytes);
    cpl_text_free(&clause);
    return status;
}

static cpl_status run(const cpl_arguments *args)
{
    const char *path = args->words[0], *json = cpl_flag_text(args, "--json");
    cpl_certificate certificate;
    CPL_TRY(cpl_output_paths_outside(args));
    CPL_TRY(cpl_output_paths_check(args, "verdict"));
    CPL_TRY(cpl_certify(&certificate, path, (int)cpl_flag_int(args, "--threads")));
    if (!json || strcmp(json, "-") != 0) CPL_TRY(print_text(&certificate, path));
    if (json)
        CPL_TRY(cpl_output_json(cpl_certify_json(&certificate, path), "the certificate", json,
                                JSON_REAL_PRECISION(9)));
    cpl_output_paths_describe(args);
    return tell(&certificate, path);
}

static const cpl_flag flags[] = {
    CPL_FLAG("--json", FILE, "FILE",
             "Also write verdict and figures as JSON; - prints it instead of the text."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_OVERWRITE,
};

const cpl_verb cpl_verb_certify = {
    .name    = "certify",
    .summary = "check an implementation of the coupling loss, and name its fault",
    .usage   = "DUMP.safetensors [--json FILE]",
    .about =
        "DUMP holds the inputs of an implementation - R [n,d], W_g [n,D,d]; if used, delta "
        "[n,d], W_p [n,D,d], alpha, weight, layers - and its outputs: loss; M [n,n], dR, dW_g, "
        "dW_p. A missing gradient counts as zero.\n"
        "All known faults and pairs of faults are tried; the smallest set that explains every "
        "number is named, with a fix. Rounding to bf16 and the treatment of ties are not faults. "
        "Faults that the dump cannot show are listed.\n"
        "Exit code 0: right. 1: a fault, or a file that is not a dump.",
    .least   = 1,
    .most    = 1,
    .flags   = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run     = run,
};
