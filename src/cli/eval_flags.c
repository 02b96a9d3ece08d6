/* eval_flags.c - see eval_flags.h */
#include "cli/eval_flags.h"

#include <string.h>

#include "cli/output_paths.h"

enum {
    TASKS = 1 << CPL_EVAL_MODE_TASKS,
    TEXT  = 1 << CPL_EVAL_MODE_TEXT,
    LIST  = 1 << CPL_EVAL_MODE_LIST
};

static const char *const names[] = {"--tasks", "--text", "--list"}; /* by form */

/* Flags that not every form takes. */
static const struct rule {
    const char *flag;
    unsigned forms;
} rules[] = {
    {"--task-file", TASKS | LIST},
    {"--data", TASKS | LIST},
    {"--profile", TASKS},
    {"--variant", TASKS},
    {"--limit", TASKS},
    {"--offset", TASKS},
    {"--num-fewshot", TASKS},
    {"--max-gen-toks", TASKS},
    {"--samples", TASKS},
    {"--skip-bad", TASKS},
    {"--html", TASKS},
    {"--series", TASKS},
    {"--window", TEXT},
    {"--stride", TEXT},
    {"--tokenizer", TASKS | TEXT},
    {"--json", TASKS | TEXT},
    {"--overwrite", TASKS | TEXT},
    {"--threads", TASKS | TEXT},
    {"--set", TASKS | TEXT},
};

static cpl_status find_form(cpl_eval_mode *form, const cpl_arguments *args)
{
    CPL_TRY(cpl_flags_exclude(args, "--text", "--tasks"));
    CPL_TRY(cpl_flags_exclude(args, "--list", "--tasks"));
    CPL_TRY(cpl_flags_exclude(args, "--list", "--text"));
    *form = cpl_flag_on(args, "--list")      ? CPL_EVAL_MODE_LIST
            : cpl_flag_given(args, "--text") ? CPL_EVAL_MODE_TEXT
                                             : CPL_EVAL_MODE_TASKS;
    if (*form != CPL_EVAL_MODE_TASKS || cpl_flag_given(args, "--tasks") ||
        cpl_flag_given(args, "--task-file"))
        return CPL_OK;
    if (args->n_words == 0) return CPL_FAIL(CPL_ERR_USAGE, "eval wants a MODEL_DIR, or --list");
    return CPL_FAIL(CPL_ERR_USAGE, "eval wants --tasks, --task-file or --text: `couplet eval "
                                   "--list` shows the tasks there are");
}

static cpl_status check_flags(const cpl_arguments *args, cpl_eval_mode form)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *r = &rules[i];
        if (!cpl_flag_given(args, r->flag) || r->forms & (1u << form)) continue;
        return CPL_FAIL(CPL_ERR_USAGE, "eval %s has no use for %s, which goes with %s", names[form],
                        r->flag,
                        names[r->forms & TASKS ? CPL_EVAL_MODE_TASKS : CPL_EVAL_MODE_TEXT]);
    }
    for (int i = 0; form == CPL_EVAL_MODE_TASKS && i < args->n_sets; i++)
        if (strncmp(args->sets[i], "data.", 5) == 0)
            return CPL_FAIL(CPL_ERR_USAGE,
                            "eval --tasks has no use for --set %.100s, which goes "
                            "with --text",
                            args->sets[i]);
    if (cpl_flag_on(args, "--samples") && !cpl_flag_given(args, "--json"))
        return CPL_FAIL(CPL_ERR_USAGE, "--samples needs --json FILE: that is where questions and "
                                       "their answers are written");
    return CPL_OK;
}

static cpl_status check_words(const cpl_arguments *args, cpl_eval_mode form)
{
    if (form == CPL_EVAL_MODE_LIST && args->n_words > 0)
        return CPL_FAIL(CPL_ERR_USAGE, "eval --list asks no model: leave %.200s out",
                        args->words[0]);
    if (form != CPL_EVAL_MODE_LIST && args->n_words == 0)
        return CPL_FAIL(CPL_ERR_USAGE, "eval wants a MODEL_DIR, or --list");
    if (form == CPL_EVAL_MODE_TASKS && args->n_words > 1)
        return CPL_FAIL(CPL_ERR_USAGE, "eval takes one MODEL_DIR; %.200s is one too many",
                        args->words[1]);
    return CPL_OK;
}

cpl_status cpl_eval_mode_of(cpl_eval_mode *form, const cpl_arguments *args)
{
    CPL_TRY(find_form(form, args));
    CPL_TRY(check_flags(args, *form));
    return check_words(args, *form);
}

/* ---- results ---- */

cpl_status cpl_eval_flags_check_results(const cpl_arguments *args)
{
    CPL_TRY(cpl_output_paths_keep(args, cpl_flag_text(args, "--task-file")));
    CPL_TRY(cpl_output_paths_keep(args, cpl_flag_text(args, "--tokenizer")));
    return cpl_output_paths_check(args, "results sources");
}
