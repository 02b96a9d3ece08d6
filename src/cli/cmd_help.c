/* cmd_help.c - couplet help, and the text of --help; see cmd_help.h */
#include "cli/cmd_help.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/arguments/configure.h"
#include "cli/arguments/flags.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"

enum {
    LINE_BYTES = 92,
    FEW        = 12, /* most settings that the short help of a verb describes one by one */
};

const char *const cpl_help_about = "Couplet trains, inspects and evaluates Mixture-of-Experts "
                                   "language models, with or without the "
                                   "expert-router coupling loss.";

/* Prints a heading or the name of a section: bold on a terminal, unless NO_COLOR is set
 * (https://no-color.org). */
static void print_bold(FILE *out, const char *text)
{
    const char *plain = getenv("NO_COLOR");
    if (cpl_terminal_columns(out) && !(plain && *plain) && getenv("TERM"))
        cpl_terminal_bold(out, text);
    else
        fputs(text, out);
}

/* Prints a heading on its own line. Line ends before the heading stay plain. */
static void print_heading(FILE *out, const char *text)
{
    for (; *text == '\n'; text++) fputc('\n', out);
    print_bold(out, text);
    fputc('\n', out);
}

static void print_wrapped(FILE *out, int indent, const char *text)
{
    cpl_output_wrapped(out, LINE_BYTES, 0, indent, text, text + strlen(text));
}

static void print_verbs(FILE *out, const char *family)
{
    for (const cpl_verb *const *v = cpl_verbs; *v; v++)
        if (family ? cpl_verb_is_of(*v, family) : !(*v)->hidden)
            fprintf(out, "    %-20s %s\n", (*v)->name, (*v)->summary);
}

void cpl_help_general(FILE *out)
{
    print_wrapped(out, 0, cpl_help_about);
    fprintf(out, "\nUsage:\n    couplet VERB [WORDS AND FLAGS]\n\nVerbs:\n");
    print_verbs(out, NULL);
    fprintf(out,
            "\ncouplet VERB --help describes a verb; couplet --version prints %s.\n"
            "couplet completion bash|zsh prints the completion of a shell, couplet manual the "
            "manual page.\n",
            COUPLET_VERSION);
}

void cpl_help_family(FILE *out, const char *word)
{
    fprintf(out, "Usage:\n    couplet %s WORD [WORDS AND FLAGS]\n\nVerbs:\n", word);
    print_verbs(out, word);
    fprintf(out, "\ncouplet %s WORD --help describes one.\n", word);
}

/* Appends the name of the setting that a flag gives, if --set can give it too. */
static void describe_setting(cpl_text *out, const cpl_verb *verb, const cpl_flag *flag)
{
    for (size_t f = 0; flag->setting && f < verb->n_flags; f++)
        if (verb->flags[f].kind == CPL_FLAG_SET)
            cpl_text_printf(out, " Sets %.*s.", (int)strcspn(flag->setting, "="), flag->setting);
}

void cpl_help_describe(cpl_text *out, const cpl_verb *verb, const cpl_flag *flag)
{
    bool checked = flag->kind == CPL_FLAG_INT || flag->kind == CPL_FLAG_NUMBER ||
                   flag->kind == CPL_FLAG_CHOICE;
    cpl_setting setting = cpl_flag_as_setting(flag);
    if (checked)
        cpl_setting_describe(out, &setting);
    else if (flag->default_value)
        cpl_text_printf(out, "%s (default %s)", flag->help, flag->default_value);
    else
        cpl_text_printf(out, "%s", flag->help);
    if (flag->required) cpl_text_printf(out, " Must be given.");
    describe_setting(out, verb, flag);
}

/* Prints the forms of use, one line of the table each. */
static void print_usage(FILE *out, const cpl_verb *verb)
{
    print_heading(out, "Usage:");
    for (const char *line = verb->usage, *end;; line = end + 1) {
        end = line + strcspn(line, "\n");
        cpl_output_wrapped(out, LINE_BYTES, fprintf(out, "    couplet %s", verb->name), 8, line,
                           end);
        if (*end == '\0') break;
    }
}

static cpl_status print_flags(FILE *out, const cpl_verb *verb)
{
    cpl_text text = {0};
    print_heading(out, "\nFlags:");
    for (size_t f = 0; f < verb->n_flags; f++) {
        const cpl_flag *flag = &verb->flags[f];
        cpl_text_clear(&text);
        cpl_help_describe(&text, verb, flag);
        if (text.failed) break;
        fprintf(out, "    %s%s%s\n", flag->name, flag->value_name ? " " : "",
                flag->value_name ? flag->value_name : "");
        print_wrapped(out, 8, text.bytes);
    }
    if (verb->settings)
        fprintf(out,
                "    --help [SECTION, SECTION.NAME or all]\n"
                "        Print this, or the settings of a section, one setting, everything.\n");
    else
        fprintf(out, "    --help\n        Print this.\n");
    cpl_status status = cpl_text_status(&text);
    cpl_text_free(&text);
    return status;
}

/* ---- settings ---- */

static cpl_status print_setting(FILE *out, const cpl_setting *setting)
{
    char name[CPL_SETTING_NAME_BYTES];
    cpl_text text = {0};
    cpl_setting_describe(&text, setting);
    cpl_status status = cpl_text_status(&text);
    if (status == CPL_OK) {
        fprintf(out, "    %s\n", cpl_setting_dotted(name, setting));
        print_wrapped(out, 8, text.bytes);
    }
    cpl_text_free(&text);
    return status;
}

typedef bool has_setting(const cpl_verb *verb, const cpl_setting *setting);

static size_t count_in(const cpl_verb *verb, const cpl_section *section, has_setting *has)
{
    size_t n = 0;
    for (size_t i = 0; i < section->count; i++) n += has(verb, &section->list[i]);
    return n;
}

/* Prints the section and a description of each of its settings that the verb has. */
static cpl_status print_section(FILE *out, const cpl_verb *verb, const cpl_section *section,
                                has_setting *has)
{
    print_bold(out, section->name);
    fprintf(out, ": %s\n", section->help);
    for (size_t i = 0; i < section->count; i++)
        if (has(verb, &section->list[i])) CPL_TRY(print_setting(out, &section->list[i]));
    return CPL_OK;
}

static cpl_status print_all_settings(FILE *out, const cpl_verb *verb, const cpl_section *sections)
{
    const bool file = strcmp(verb->settings, "*") == 0;
    print_heading(out, file ? "\nSettings, for --set and, under their section, for a configuration "
                              "file:"
                            : "\nSettings, for --set:");
    for (size_t s = 0; s < CPL_N_SECTIONS; s++) {
        if (count_in(verb, &sections[s], cpl_verb_lists) == 0) continue;
        fputc('\n', out);
        CPL_TRY(print_section(out, verb, &sections[s], cpl_verb_lists));
    }
    return CPL_OK;
}

static cpl_status print_first_settings(FILE *out, const cpl_verb *verb, const cpl_section *sections)
{
    char name[CPL_SETTING_NAME_BYTES];
    if (!verb->first) return CPL_OK;
    print_heading(out, "\nSettings that one needs first:");
    for (const char *at = verb->first; *at; at += strspn(at, " ")) {
        const int length = (int)strcspn(at, " ");
        snprintf(name, sizeof name, "%.*s", length, at);
        const cpl_setting *s = cpl_settings_find(NULL, sections, CPL_N_SECTIONS, name, NULL);
        CPL_ASSERT(s);
        CPL_TRY(print_setting(out, s));
        at += length;
    }
    return CPL_OK;
}

/* Prints a line for each section. */
static void list_sections(FILE *out, const cpl_verb *verb, const cpl_section *sections)
{
    print_heading(out, "\nSections of settings, and how many each has:");
    for (size_t s = 0; s < CPL_N_SECTIONS; s++) {
        const size_t n = count_in(verb, &sections[s], cpl_verb_lists);
        if (n == 0) continue;
        fprintf(out, "    ");
        print_bold(out, sections[s].name);
        fprintf(out, "%*s %s (%zu)\n", 11 - (int)strlen(sections[s].name), "", sections[s].help, n);
    }
    fprintf(out,
            "\ncouplet %s --help SECTION describes the settings of a section, --help all those of "
            "all.\n",
            verb->name);
}

static cpl_status print_settings(FILE *out, const cpl_verb *verb, bool whole)
{
    cpl_section sections[CPL_N_SECTIONS];
    size_t n = 0;
    cpl_settings_sections(sections);
    for (size_t s = 0; s < CPL_N_SECTIONS; s++) n += count_in(verb, &sections[s], cpl_verb_lists);
    if (whole || n <= FEW) return print_all_settings(out, verb, sections);
    CPL_TRY(print_first_settings(out, verb, sections));
    list_sections(out, verb, sections);
    return CPL_OK;
}

/* ---- the requested topic ---- */

static cpl_status no_such_topic(const cpl_verb *verb, const cpl_section *sections,
                                const char *topic)
{
    const char *names[CPL_N_SECTIONS + 1] = {"all"};
    size_t n                              = 1;
    for (size_t s = 0; s < CPL_N_SECTIONS; s++)
        if (count_in(verb, &sections[s], cpl_verb_takes)) names[n++] = sections[s].name;
    const char *near = cpl_text_nearest(topic, names, n);
    if (near)
        return CPL_FAIL(CPL_ERR_USAGE, "%s has no section %.100s of settings; did you mean %s?",
                        verb->name, topic, near);
    if (cpl_settings_find(NULL, sections, CPL_N_SECTIONS, topic, NULL))
        return CPL_FAIL(CPL_ERR_USAGE, "%s does not use the setting %s", verb->name, topic);
    return cpl_settings_unknown(CPL_ERR_USAGE, sections, CPL_N_SECTIONS, topic);
}

/* Prints the help of a section or of a setting. */
static cpl_status print_topic(FILE *out, const cpl_verb *verb, const char *topic)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    const cpl_setting *s = cpl_settings_find(NULL, sections, CPL_N_SECTIONS, topic, NULL);
    if (s && cpl_verb_takes(verb, s)) return print_setting(out, s);
    for (size_t i = 0; i < CPL_N_SECTIONS; i++)
        if (strcmp(sections[i].name, topic) == 0 && count_in(verb, &sections[i], cpl_verb_takes))
            return print_section(out, verb, &sections[i], cpl_verb_takes);
    return no_such_topic(verb, sections, topic);
}

cpl_status cpl_help_verb(FILE *out, const cpl_verb *verb, const char *topic)
{
    const bool whole = topic && strcmp(topic, "all") == 0;
    if (topic && !verb->settings)
        return CPL_FAIL(CPL_ERR_USAGE, "%s has no settings, and so no help on %.100s", verb->name,
                        topic);
    if (topic && !whole) return print_topic(out, verb, topic);
    fprintf(out, "couplet %s - %s\n\n", verb->name, verb->summary);
    print_usage(out, verb);
    if (verb->about) {
        fputc('\n', out);
        print_wrapped(out, 0, verb->about);
    }
    CPL_TRY(print_flags(out, verb));
    return verb->settings ? print_settings(out, verb, whole) : CPL_OK;
}

/* Returns true if the word is a setting or a section of settings and not a verb. */
static bool is_setting(const char *word)
{
    cpl_section sections[CPL_N_SECTIONS];
    bool found = false;
    cpl_settings_sections(sections);
    for (size_t i = 0; i < CPL_N_SECTIONS && !found; i++)
        found = strcmp(sections[i].name, word) == 0;
    for (const cpl_verb *const *v = cpl_verbs; *v && found; v++)
        found = strcmp((*v)->name, word) != 0;
    return found || cpl_settings_find(NULL, sections, CPL_N_SECTIONS, word, NULL);
}

/* ---- the verb ---- */

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
    if (args->n_words == 1 && is_setting(args->words[0]))
        return print_topic(stdout, &cpl_verb_train, args->words[0]);
    CPL_TRY(cpl_verb_find(&verb, &used, args->n_words, args->words));
    if (used + 1 < args->n_words)
        return CPL_FAIL(CPL_ERR_USAGE, "help does not take the argument %.100s",
                        args->words[used + 1]);
    return cpl_help_verb(stdout, verb, used < args->n_words ? args->words[used] : NULL);
}

const cpl_verb cpl_verb_help = {
    .name    = "help",
    .summary = "list the verbs, or describe one of them",
    .usage   = "[VERB [SECTION, SECTION.NAME or all] or SECTION.NAME]",
    .about =
        "Lists the verbs, or prints what VERB --help [SECTION] prints; of a setting alone, what "
        "train --help SECTION.NAME prints.",
    .most = 4,
    .run  = run,
};
