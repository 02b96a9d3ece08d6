/* cmd_completion.c - couplet completion: the completion of a shell, made from the tables. The verb
 * is used when installing, and hidden from the list of verbs. */
#include <stdio.h>
#include <string.h>

#include "cli/arguments/configure.h"
#include "cli/arguments/flags.h"

/* Prints the completions of --set: each setting that the verb takes, with its "=". */
static void print_settings(const cpl_verb *verb)
{
    cpl_section sections[CPL_N_SECTIONS];
    char name[CPL_SETTING_NAME_BYTES];
    cpl_settings_sections(sections);
    for (size_t s = 0; s < CPL_N_SECTIONS; s++)
        for (size_t i = 0; i < sections[s].count; i++)
            if (cpl_verb_lists(verb, &sections[s].list[i]))
                printf(" %s=", cpl_setting_dotted(name, &sections[s].list[i]));
}

/* Prints the words that may follow --help: the sections of the verb's settings. */
static void print_topics(const cpl_verb *verb)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    printf("all");
    for (size_t s = 0; s < CPL_N_SECTIONS; s++)
        for (size_t i = 0; i < sections[s].count; i++)
            if (cpl_verb_takes(verb, &sections[s].list[i])) {
                printf(" %s", sections[s].name);
                break;
            }
}

/* Prints the words of a choice, separated by blanks. */
static void print_choices(const char *choices)
{
    for (; *choices; choices++) putchar(*choices == '|' ? ' ' : *choices);
}

/* Prints the first words of verbs, each once, or the second words of the verbs of a family. */
static void print_words(const char *family)
{
    const char *last = "";
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        const char *name = (*v)->name;
        if ((*v)->hidden || (family && !cpl_verb_is_of(*v, family))) continue;
        if (family) name += strlen(family) + 1;
        size_t length = strcspn(name, " ");
        if (strncmp(last, name, length) != 0 || last[length] != name[length])
            printf(" %.*s", (int)length, name);
        last = name;
    }
}

/* Sets `family` to the first word of a verb of two words. Returns true if no earlier verb has this
 * first word. */
static bool begins_family(char family[64], const cpl_verb *const *v)
{
    const size_t length = strcspn((*v)->name, " ");
    if ((*v)->name[length] == '\0') return false;
    snprintf(family, 64, "%.*s", (int)length, (*v)->name);
    return v == cpl_verbs || !cpl_verb_is_of(v[-1], family);
}

/* Prints the cases of a shell script that offer the next word after "help ...". */
static void print_help_cases(void)
{
    char family[64];
    printf("        '') offered='");
    print_words(NULL);
    printf("' ;;\n");
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        if (begins_family(family, v)) {
            printf("        %s) offered='", family);
            print_words(family);
            printf("' ;;\n");
        }
        if (!(*v)->settings) continue;
        printf("        '%s') offered='", (*v)->name);
        print_topics(*v);
        printf("' ;;\n");
    }
}

/* Prints the words that a flag offers. */
static void print_offered(const cpl_flag *flag)
{
    cpl_text words = {0};
    flag->offer(&words);
    if (words.length) printf("%.*s", (int)words.length - 1, words.bytes); /* no blank at the end */
    cpl_text_free(&words);
}

/* bash ------------------------------------------------------------------------------------------*/

static void print_bash_value(const cpl_verb *verb, const cpl_flag *flag)
{
    if (flag->kind == CPL_FLAG_SWITCH) return;
    printf("    '%s:%s')\n        ", verb->name, flag->name);
    if (flag->kind == CPL_FLAG_SET) {
        printf("compopt -o nospace\n        COMPREPLY=($(compgen -W '");
        print_settings(verb);
        printf("' -- \"$cur\"))");
    } else if (flag->kind == CPL_FLAG_CHOICE) {
        printf("COMPREPLY=($(compgen -W '");
        print_choices(flag->unit);
        printf("' -- \"$cur\"))");
    } else if (flag->offer) { /* complete the last of several words joined by commas */
        printf("COMPREPLY=($(compgen -P \"${cur%%\"${cur##*,}\"}\" -W '");
        print_offered(flag);
        printf("' -- \"${cur##*,}\"))");
    } else if (flag->kind == CPL_FLAG_FILE || flag->kind == CPL_FLAG_FOLDER) {
        printf("compopt -o filenames\n        COMPREPLY=($(compgen -%c -- \"$cur\"))",
               flag->kind == CPL_FLAG_FILE ? 'f' : 'd');
    }
    printf("\n        return ;;\n");
}

static void print_bash_help(const cpl_verb *verb)
{
    printf("    '%s:--help')\n        COMPREPLY=($(compgen -W '", verb->name);
    print_topics(verb);
    printf("' -- \"$cur\"))\n        return ;;\n");
}

static void print_bash_families(void)
{
    char word[64];
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        if (!begins_family(word, v)) continue;
        printf("    %s)\n        if ((COMP_CWORD == 2)); then\n"
               "            COMPREPLY=($(compgen -W '",
               word);
        print_words(word);
        printf("' -- \"$cur\"))\n            return\n        fi\n"
               "        verb+=\" ${COMP_WORDS[2]}\" ;;\n");
    }
}

static void print_bash(void)
{
    printf("# bash completion of couplet %s\n_couplet() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
           "verb=${COMP_WORDS[1]} flags=\n"
           "    COMPREPLY=()\n    if ((COMP_CWORD == 1)); then\n"
           "        COMPREPLY=($(compgen -W '--help --version",
           COUPLET_VERSION);
    print_words(NULL);
    printf("' -- \"$cur\"))\n        return\n    fi\n"
           "    if [[ $verb == help ]]; then\n        local offered=\n"
           "        case \"${COMP_WORDS[*]:2:COMP_CWORD-2}\" in\n");
    print_help_cases();
    printf("        esac\n        COMPREPLY=($(compgen -W \"$offered\" -- \"$cur\"))\n"
           "        return\n    fi\n    case $verb in\n");
    print_bash_families();
    printf("    esac\n    case $verb:$prev in\n");
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        for (size_t f = 0; f < (*v)->n_flags; f++) print_bash_value(*v, &(*v)->flags[f]);
        if ((*v)->settings) print_bash_help(*v);
    }
    printf("    esac\n    case $verb in\n");
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        printf("    '%s') flags='--help", (*v)->name);
        for (size_t f = 0; f < (*v)->n_flags; f++) printf(" %s", (*v)->flags[f].name);
        printf("' ;;\n");
    }
    printf("    esac\n    if [[ $cur == -* ]]; then\n"
           "        COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n    else\n"
           "        compopt -o filenames\n        COMPREPLY=($(compgen -f -- \"$cur\"))\n    fi\n"
           "}\ncomplete -F _couplet couplet\n");
}

/* zsh -------------------------------------------------------------------------------------------*/

/* Prints text for use within '...' of an argument specification of zsh. */
static void print_zsh_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void print_zsh_flag(const cpl_verb *verb, const cpl_flag *flag)
{
    printf(" \\\n            '%s%s[", flag->kind == CPL_FLAG_SET ? "*" : "", flag->name);
    print_zsh_text(flag->help);
    putchar(']');
    if (flag->kind != CPL_FLAG_SWITCH) {
        putchar(':');
        print_zsh_text(flag->value_name);
        putchar(':');
    }
    if (flag->offer) {
        printf("{_sequence compadd - ");
        print_offered(flag);
        putchar('}');
    }
    if (flag->kind == CPL_FLAG_FILE) printf("_files");
    if (flag->kind == CPL_FLAG_FOLDER) printf("_files -/");
    if (flag->kind == CPL_FLAG_SET) {
        printf("{compadd -S \"\" --");
        print_settings(verb);
        putchar('}');
    }
    if (flag->kind == CPL_FLAG_CHOICE) {
        putchar('(');
        print_choices(flag->unit);
        putchar(')');
    }
    putchar('\'');
}

static void print_zsh(void)
{
    printf("#compdef couplet\n# zsh completion of couplet %s\n_couplet() {\n"
           "    if ((CURRENT == 2)); then\n        compadd -- --help --version",
           COUPLET_VERSION);
    print_words(NULL);
    printf("\n        return\n    fi\n    local verb=$words[2] offered=\n"
           "    if [[ $verb == help ]]; then\n        case \"${words[3,CURRENT-1]}\" in\n");
    print_help_cases();
    printf("        esac\n        compadd -- ${=offered}\n        return\n    fi\n");
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        const char *space = strchr((*v)->name, ' ');
        if (!space) continue;
        printf("    if ((CURRENT == 3)) && [[ $verb == %.*s ]]; then compadd -- %s; fi\n",
               (int)(space - (*v)->name), (*v)->name, space + 1);
        printf("    if ((CURRENT > 3)) && [[ \"$words[2] $words[3]\" == '%s' ]]; then\n"
               "        verb='%s'\n        shift words\n        ((CURRENT--))\n    fi\n",
               (*v)->name, (*v)->name);
    }
    printf("    shift words\n    ((CURRENT--))\n    case $verb in\n");
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        printf("    '%s')\n        _arguments '--help[Print help.]", (*v)->name);
        if ((*v)->settings) {
            printf("::section:(");
            print_topics(*v);
            putchar(')');
        }
        putchar('\'');
        for (size_t f = 0; f < (*v)->n_flags; f++) print_zsh_flag(*v, &(*v)->flags[f]);
        printf(" \\\n            '*:file:_files' ;;\n");
    }
    printf("    esac\n}\n_couplet \"$@\"\n");
}

static cpl_status run(const cpl_arguments *args)
{
    if (strcmp(args->words[0], "bash") == 0)
        print_bash();
    else if (strcmp(args->words[0], "zsh") == 0)
        print_zsh();
    else
        return CPL_FAIL(CPL_ERR_USAGE, "there is completion for bash and zsh, not for %.100s",
                        args->words[0]);
    return CPL_OK;
}

const cpl_verb cpl_verb_completion = {
    .name    = "completion",
    .summary = "print the completion of a shell",
    .usage   = "bash|zsh",
    .least   = 1,
    .most    = 1,
    .hidden  = true,
    .run     = run,
};
