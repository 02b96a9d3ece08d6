/* help.c - see help.h */
#include "cli/help.h"

#include <string.h>

#include "cli/configure.h"
#include "cli/flags.h"

enum { LINE_BYTES = 92 };

const char *const cpl_help_about =
    "Couplet trains Mixture-of-Experts language models whose router and experts are tied together "
    "by the expert-router coupling loss.";

/* Prints `text` broken between words, each line behind `indent` blanks; "\n" begins a paragraph. */
static void print_wrapped(FILE *out, int indent, const char *text)
{
    int column = 0;
    while (*text) {
        int word = (int)strcspn(text, " \n");
        if (column && column + 1 + word > LINE_BYTES) {
            fputc('\n', out);
            column = 0;
        }
        column += column ? fprintf(out, " %.*s", word, text)
                         : fprintf(out, "%*s%.*s", indent, "", word, text);
        text += word;
        if (*text == '\n') {
            fputc('\n', out);
            column = 0;
        }
        text += *text != '\0';
    }
    fputc('\n', out);
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
    fprintf(out, "\ncouplet VERB --help tells more of a verb; couplet --version prints %s.\n",
            COUPLET_VERSION);
}

void cpl_help_family(FILE *out, const char *word)
{
    fprintf(out, "Usage:\n    couplet %s WORD [WORDS AND FLAGS]\n\nVerbs:\n", word);
    print_verbs(out, word);
    fprintf(out, "\ncouplet %s WORD --help tells more of one.\n", word);
}

void cpl_help_describe(cpl_text *out, const cpl_flag *flag)
{
    bool checked = flag->kind == CPL_FLAG_INT || flag->kind == CPL_FLAG_NUMBER ||
                   flag->kind == CPL_FLAG_CHOICE;
    cpl_setting setting = cpl_flag_as_setting(flag);
    if (checked)
        cpl_setting_describe(out, &setting);
    else if (flag->standard)
        cpl_text_printf(out, "%s (default %s)", flag->sentence, flag->standard);
    else
        cpl_text_printf(out, "%s", flag->sentence);
    if (flag->required) cpl_text_printf(out, " Must be given.");
}

/* One form of use, from the name of the verb to the end of its line, broken between words. */
static void print_form(FILE *out, const cpl_verb *verb, const char *line)
{
    int column = fprintf(out, "    couplet %s", verb->name);
    while (*line && *line != '\n') {
        int word = (int)strcspn(line, " \n");
        if (column + 1 + word > LINE_BYTES) {
            fprintf(out, "\n       ");
            column = 7;
        }
        column += fprintf(out, " %.*s", word, line);
        line += word + (line[word] == ' ');
    }
    fputc('\n', out);
}

static void print_usage(FILE *out, const cpl_verb *verb)
{
    fprintf(out, "Usage:\n");
    for (const char *line = verb->usage;; line += strcspn(line, "\n") + 1) {
        print_form(out, verb, line);
        if (line[strcspn(line, "\n")] == '\0') break;
    }
}

static cpl_status print_flags(FILE *out, const cpl_verb *verb)
{
    cpl_text text = {0};
    fprintf(out, "\nFlags:\n");
    for (size_t f = 0; f < verb->n_flags; f++) {
        const cpl_flag *flag = &verb->flags[f];
        cpl_text_clear(&text);
        cpl_help_describe(&text, flag);
        if (text.failed) break;
        fprintf(out, "    %s%s%s\n", flag->name, flag->value_name ? " " : "",
                flag->value_name ? flag->value_name : "");
        print_wrapped(out, 8, text.bytes);
    }
    fprintf(out, "    --help\n        Print this.\n");
    cpl_status status = cpl_text_status(&text);
    cpl_text_free(&text);
    return status;
}

static cpl_status print_settings(FILE *out, const cpl_verb *verb)
{
    cpl_section sections[CPL_N_SECTIONS];
    char name[CPL_SETTING_NAME_BYTES];
    cpl_text text = {0};
    cpl_settings_sections(sections);
    fprintf(out, "\nSettings, for --set and, under their section, for a configuration file:\n");
    for (size_t s = 0; s < CPL_N_SECTIONS; s++)
        for (size_t i = 0; i < sections[s].count; i++) {
            if (!cpl_verb_takes(verb, sections[s].name)) continue;
            cpl_text_clear(&text);
            cpl_setting_describe(&text, &sections[s].list[i]);
            if (text.failed) break;
            fprintf(out, "%s    %s\n", i ? "" : "\n",
                    cpl_setting_dotted(name, &sections[s].list[i]));
            print_wrapped(out, 8, text.bytes);
        }
    cpl_status status = cpl_text_status(&text);
    cpl_text_free(&text);
    return status;
}

cpl_status cpl_help_verb(FILE *out, const cpl_verb *verb)
{
    fprintf(out, "couplet %s - %s\n\n", verb->name, verb->summary);
    print_usage(out, verb);
    if (verb->about) {
        fputc('\n', out);
        print_wrapped(out, 0, verb->about);
    }
    CPL_TRY(print_flags(out, verb));
    return verb->sections ? print_settings(out, verb) : CPL_OK;
}
