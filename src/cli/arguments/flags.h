/* flags.h - the words after a verb: read once against its table, then looked up by name.
 *
 * Room:  cli/arguments.
 * Use:   --name VALUE, --name=VALUE, or --switch. Flags and other arguments may be in any order.
 *        After -- every word is an argument. A VALUE that begins with -- must be written
 *        --name=VALUE. */
#ifndef CPL_CLI_ARGUMENTS_FLAGS_H
#define CPL_CLI_ARGUMENTS_FLAGS_H

#include "cli/arguments/verb.h"
#include "settings/settings.h"

struct cpl_arguments {
    const cpl_verb *verb;
    const char **words; /* (n_words) the arguments that are not flags; owned array, borrowed
                           words */
    int n_words;
    const char **sets; /* the values of --set in their order; owned array */
    int n_sets;
    bool help;          /* --help or -h is given, and other words are unchecked */
    char *const *given; /* (n_given) all words, beginning with the verb's; borrowed */
    int n_given;
    const char *topic; /* the word after --help: a section, a setting or all; may be NULL */
    struct {           /* by index in verb->flags */
        bool given;
        const char *text; /* the given text, else the default, else NULL */
        int64_t integer;  /* value of an INT flag, index of a CHOICE flag */
        double number;    /* value of a NUMBER flag */
    } flag[CPL_MOST_FLAGS];
};

/* Reads the `count` words after the verb. Fails with CPL_ERR_USAGE for an unknown flag (the error
 * suggests the nearest name), a value that is missing, superfluous or out of bounds, a missing
 * required flag, and too few or too many words. */
CPL_NODISCARD cpl_status cpl_arguments_read(cpl_arguments *args, const cpl_verb *verb, int count,
                                            char *const *words);
void cpl_arguments_free(cpl_arguments *args);

/* Look up the flag called `name` ("--out"), which the verb's table must have. A flag of kind INT,
 * NUMBER or CHOICE must have been given or have a default, except for cpl_flag_int_or. A SWITCH is
 * on if it is given. */
bool cpl_flag_given(const cpl_arguments *args, const char *name);
const char *cpl_flag_text(const cpl_arguments *args, const char *name); /* NULL if without value or
                                                                           default */
int64_t cpl_flag_int(const cpl_arguments *args, const char *name); /* CHOICE: index of the word */
int64_t cpl_flag_int_or(const cpl_arguments *args, const char *name, int64_t if_not_given);
double cpl_flag_number(const cpl_arguments *args, const char *name);

/* Returns true if the verb's table has this flag. */
bool cpl_flag_known(const cpl_arguments *args, const char *name);

/* Fails with CPL_ERR_USAGE if both flags are given. */
CPL_NODISCARD cpl_status cpl_flags_exclude(const cpl_arguments *args, const char *one,
                                           const char *other);

/* CPL_ERR_USAGE "VERB FORM does not take FLAG" if a flag other than the `n` names is given. Names
 * may be settings: --set may then give only these. */
CPL_NODISCARD cpl_status cpl_flags_only(const cpl_arguments *args, const char *form,
                                        const char *const *names, size_t n);

/* The following functions read values that are lists or sizes: "1,2,0.5", "0,5-7", "4G". Every
 * failure except CPL_ERR_MEMORY is CPL_ERR_USAGE with an error that names the flag. */

/* Sets numbers[*count], at most `most`, in rising order. Each number lies in [low, high] and occurs
 * once. */
CPL_NODISCARD cpl_status cpl_parse_numbers(double *numbers, int *count, int most, const char *flag,
                                           const char *text, double low, double high);

/* Sets the numbers of "0,5-7" in rising order, each once, at most 100,000. The caller frees them
 * with cpl_free. */
CPL_NODISCARD cpl_status cpl_parse_ranges(int64_t **numbers, int64_t *count, const char *flag,
                                          const char *text);

/* Sets the bytes that "4G", "512M", "1.5GiB", "100K" or a plain number mean. Units are powers of
 * 1024. */
CPL_NODISCARD cpl_status cpl_parse_bytes(double *bytes, const char *flag, const char *text);

/* Returns a flag of kind INT, NUMBER or CHOICE as a setting without a section. */
cpl_setting cpl_flag_as_setting(const cpl_flag *flag);

#endif /* CPL_CLI_ARGUMENTS_FLAGS_H */
