/* cmd_manual.c - couplet manual: the manual page in man's own language, made from the tables. The
 * verb is used when installing, and hidden from the list of verbs. */
#include <stdio.h>
#include <string.h>

#include "cli/arguments/flags.h"
#include "cli/cmd_help.h"

/* Prints text with the characters that man interprets escaped. A line end begins a paragraph. */
static void print_text(const char *text)
{
    bool begins = true;
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        begins = *text == '\n';
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else if (*text == '\n')
            fputs("\n.PP\n", stdout);
        else
            putchar(*text);
    }
    putchar('\n');
}

static void print_tagged(const char *bold, const char *italic, const char *text)
{
    printf(".TP\n\\fB");
    for (; *bold; bold++) printf(*bold == '-' ? "\\-" : "%c", *bold);
    printf("\\fR%s%s%s\n", italic ? " \\fI" : "", italic ? italic : "", italic ? "\\fR" : "");
    print_text(text);
}

static void print_usage(const cpl_verb *verb)
{
    for (const char *line = verb->usage;; line += strcspn(line, "\n") + 1) {
        int length = (int)strcspn(line, "\n");
        printf(".br\n\\fBcouplet %s\\fR ", verb->name);
        for (int i = 0; i < length; i++) printf(line[i] == '-' ? "\\-" : "%c", line[i]);
        putchar('\n');
        if (line[length] == '\0') break;
    }
}

static cpl_status print_verb(const cpl_verb *verb)
{
    cpl_text text = {0};
    printf(".SS couplet %s\n", verb->name);
    print_usage(verb);
    printf(".PP\n");
    print_text(verb->about ? verb->about : verb->summary);
    for (size_t f = 0; f < verb->n_flags; f++) {
        cpl_text_clear(&text);
        cpl_help_describe(&text, verb, &verb->flags[f]);
        if (text.failed) break;
        print_tagged(verb->flags[f].name, verb->flags[f].value_name, text.bytes);
    }
    cpl_status status = cpl_text_status(&text);
    cpl_text_free(&text);
    return status;
}

static cpl_status print_settings(void)
{
    cpl_section sections[CPL_N_SECTIONS];
    char name[CPL_SETTING_NAME_BYTES];
    cpl_text text = {0};
    cpl_settings_sections(sections);
    printf(".SH SETTINGS\n");
    print_text("A configuration file is YAML: a mapping of sections, each a mapping of its "
               "settings. --set SECTION.NAME=VALUE goes before the file.");
    for (size_t s = 0; s < CPL_N_SECTIONS; s++) {
        printf(".SS %s: ", sections[s].name);
        print_text(sections[s].help);
        for (size_t i = 0; i < sections[s].count; i++) {
            cpl_text_clear(&text);
            cpl_setting_describe(&text, &sections[s].list[i]);
            if (text.failed) break;
            print_tagged(cpl_setting_dotted(name, &sections[s].list[i]), NULL, text.bytes);
        }
    }
    cpl_status status = cpl_text_status(&text);
    cpl_text_free(&text);
    return status;
}

static cpl_status run(const cpl_arguments *args)
{
    (void)args;
    printf(".TH COUPLET 1 \"\" \"couplet %s\" \"User Commands\"\n.SH NAME\ncouplet \\- ",
           COUPLET_VERSION);
    print_text("train Mixture-of-Experts language models with the expert-router coupling loss");
    printf(".SH SYNOPSIS\n\\fBcouplet\\fR \\fIVERB\\fR [words and flags]\n.SH DESCRIPTION\n");
    print_text(cpl_help_about);
    printf(".SH VERBS\n");
    for (const cpl_verb *const *v = cpl_verbs; *v; v++)
        if (!(*v)->hidden) CPL_TRY(print_verb(*v));
    CPL_TRY(print_settings());
    printf(".SH EXIT STATUS\n");
    print_text("0: success. 1: bad input, or I/O, memory or a GPU failed. 2: usage error (verb, "
               "flag, --set). "
               "130: stopped by SIGINT (Ctrl-C); 143: by SIGTERM. An error is one sentence on the "
               "standard error; if the reader of a pipe is gone, the exit code is 1 without one.");
    printf(".SH ENVIRONMENT\n");
    print_tagged("COUPLET_ISA", NULL,
                 "v2, v3 or v4: use an older instruction set than the processor's own.");
    print_tagged("OMP_NUM_THREADS", NULL, "Number of threads if compute.threads is 0.");
    print_tagged("OMP_WAIT_POLICY, GOMP_SPINCOUNT", NULL,
                 "How threads wait for each other. Without either the program sets GOMP_SPINCOUNT, "
                 "so that a waiting thread soon sleeps and leaves its processor to other work.");
    print_tagged(
        "NO_COLOR", NULL,
        "If set and not empty, help has no bold words; also if TERM is dumb or the output is "
        "not a terminal.");
    return CPL_OK;
}

const cpl_verb cpl_verb_manual = {
    .name    = "manual",
    .summary = "print the manual page",
    .usage   = "",
    .hidden  = true,
    .run     = run,
};
