/* eval_flags.c - the form of couplet eval, and the flags of each form; see internal.h */
#include "cli/verbs/internal.h"

#include <string.h>

enum {
    TASKS     = 1 << CPL_EVAL_MODE_TASKS,
    TEXT      = 1 << CPL_EVAL_MODE_TEXT,
    DOCUMENTS = 1 << CPL_EVAL_MODE_DOCUMENTS,
    LIST      = 1 << CPL_EVAL_MODE_LIST
};

static const char *const names[] = {"--tasks", "--text", "--documents", "--list"}; /* by form */
enum { N_FORMS = sizeof names / sizeof *names };

/* Flags that only some forms take. */
static const struct rule {
    unsigned forms;
    const char *flags[12]; /* ended by NULL */
} rules[] = {
    {TASKS | LIST, {"--task-file", "--data"}},
    {TASKS,
     {"--profile", "--variant", "--offset", "--num-fewshot", "--max-gen-toks", "--samples",
      "--skip-bad", "--html"}},
    {TEXT, {"--window", "--stride"}},
    {TASKS | TEXT, {"--tokenizer", "--json", "--set"}},
    {TASKS | DOCUMENTS, {"--limit"}},
    {TASKS | TEXT | DOCUMENTS, {"--overwrite", "--threads"}},
};

enum { N_RULES = sizeof rules / sizeof *rules };

static cpl_status find_form(cpl_eval_mode *form, const cpl_arguments *args)
{
    for (int i = N_FORMS - 1; i > 0; i--)
        for (int k = 0; k < i; k++) CPL_TRY(cpl_flags_exclude(args, names[i], names[k]));
    *form = CPL_EVAL_MODE_TASKS;
    for (int i = 1; i < N_FORMS; i++)
        if (cpl_flag_given(args, names[i])) *form = (cpl_eval_mode)i;
    if (*form != CPL_EVAL_MODE_TASKS || cpl_flag_given(args, "--tasks") ||
        cpl_flag_given(args, "--task-file"))
        return CPL_OK;
    if (args->n_words == 0) return CPL_FAIL(CPL_ERR_USAGE, "eval needs a MODEL_DIR, or --list");
    return CPL_FAIL(CPL_ERR_USAGE, "eval needs --tasks, --task-file, --text or --documents: "
                                   "`couplet eval --list` shows the tasks there are");
}

static cpl_status check_flags(const cpl_arguments *args, cpl_eval_mode form)
{
    for (size_t i = 0; i < N_RULES; i++)
        for (const char *const *flag = rules[i].flags; *flag; flag++) {
            if (!cpl_flag_given(args, *flag) || rules[i].forms & (1u << form)) continue;
            return CPL_FAIL(
                CPL_ERR_USAGE, "eval %s does not take %s, which belongs to %s", names[form], *flag,
                names[rules[i].forms & TASKS ? CPL_EVAL_MODE_TASKS : CPL_EVAL_MODE_TEXT]);
        }
    for (int i = 0; form == CPL_EVAL_MODE_TASKS && i < args->n_sets; i++)
        if (strncmp(args->sets[i], "data.", 5) == 0)
            return CPL_FAIL(CPL_ERR_USAGE,
                            "eval --tasks does not use --set %.100s, which belongs to --text",
                            args->sets[i]);
    if (cpl_flag_given(args, "--samples") && !cpl_flag_given(args, "--json"))
        return CPL_FAIL(CPL_ERR_USAGE, "--samples needs --json FILE: that is where questions and "
                                       "their answers are written");
    return CPL_OK;
}

static cpl_status check_words(const cpl_arguments *args, cpl_eval_mode form)
{
    if (form == CPL_EVAL_MODE_LIST && args->n_words > 0)
        return CPL_FAIL(CPL_ERR_USAGE, "eval --list reads no model: leave %.200s out",
                        args->words[0]);
    if (form != CPL_EVAL_MODE_LIST && args->n_words == 0)
        return CPL_FAIL(CPL_ERR_USAGE, "eval needs a MODEL_DIR, or --list");
    if ((form == CPL_EVAL_MODE_TASKS || form == CPL_EVAL_MODE_DOCUMENTS) && args->n_words > 1)
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
