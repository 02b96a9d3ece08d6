/* verb.h - a verb of the program: its words, its flags, its function.
 *
 * Room:  cli/arguments. To add one: write cmd_<name>.c with a `const cpl_verb cpl_verb_<name>` and
 *        add its line to verbs.def. Parsing, --help, the manual page and the completion of shells
 *        are generated from the tables. */
#ifndef CPL_CLI_ARGUMENTS_VERB_H
#define CPL_CLI_ARGUMENTS_VERB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef enum cpl_flag_kind {
    CPL_FLAG_SWITCH, /* takes no value */
    CPL_FLAG_TEXT,   /* taken literally */
    CPL_FLAG_FILE,   /* a text that shells complete as a file */
    CPL_FLAG_FOLDER, /* a text that shells complete as a folder */
    CPL_FLAG_SET,    /* may be given several times: --set */
    CPL_FLAG_INT,
    CPL_FLAG_NUMBER,
    CPL_FLAG_CHOICE, /* unit is "one|another" */
} cpl_flag_kind;

typedef struct cpl_flag {
    const char *name; /* including its dashes: "--out" */
    cpl_flag_kind kind;
    const char *value_name; /* name of the value in help, "RUN"; SWITCH: NULL */
    const char *help;
    const char *default_value; /* the value if the flag is not given; may be NULL */
    double low, high;          /* bounds of INT and NUMBER, inclusive */
    const char *unit;          /* INT and NUMBER: unit of the value, may be NULL; CHOICE: the
                                  words */
    bool required;
    const char
        *setting; /* the setting that the flag gives: "data.split", for a SWITCH with its value:
                     "data.strip=false"; may be NULL */
    void (*offer)(cpl_text *words); /* appends the values that shells offer, separated by blanks; a
                                       value may be several words joined by commas; may be
                                       NULL */
} cpl_flag;

/* Rows of a verb's table: CPL_FLAG(name, KIND, value_name, help, .other = ...), or CPL_SWITCH(name,
 * help, .other = ...) for a SWITCH. */
#define CPL_FLAG(flag, KIND, value, ...)                                                           \
    {                                                                                              \
        .name = flag, .kind = CPL_FLAG_##KIND, .value_name = value, .help = __VA_ARGS__            \
    }
#define CPL_SWITCH(flag, ...)                                                                      \
    {                                                                                              \
        .name = flag, .kind = CPL_FLAG_SWITCH, .help = __VA_ARGS__                                 \
    }

/* The members of a verb's flags, from its array of rows. */
#define CPL_VERB_FLAGS(rows) .flags = rows, .n_flags = sizeof rows / sizeof *rows

/* The row of --set, for every verb that takes settings. */
#define CPL_FLAG_ROW_SET                                                                           \
    CPL_FLAG("--set", SET, "SECTION.NAME=VALUE",                                                   \
             "Use this value of a setting; may be given several times.")

/* The row of --threads, for every verb that computes with more than one thread. */
#define CPL_FLAG_ROW_THREADS                                                                       \
    CPL_FLAG("--threads", INT, "N", "Threads; 0: one per processor this program may use.",         \
             .default_value = "0", .low = 0, .high = 4096, .unit = "threads",                      \
             .setting = "compute.threads")

enum { CPL_MOST_FLAGS = 32 }; /* largest number of flags of one verb */

typedef struct cpl_arguments cpl_arguments;

typedef struct cpl_verb {
    const char *name;    /* "train"; "tokenize encode" for a verb of two words */
    const char *summary; /* one line: begins with a verb in lower case, no full stop */
    const char *usage;   /* the words after the name; one line for each form */
    const char *about;   /* paragraphs of full sentences, one line each; may be NULL */
    int least, most;     /* number of arguments that are not flags; `most` -1: no limit */
    const cpl_flag *flags;
    size_t n_flags;
    /* Settings that --set may name besides those that flags give. "erc -erc.draws train.seed" means
     * all settings of erc except erc.draws, and train.seed. "*" means all, NULL none. */
    const char *settings;
    const char *first; /* settings that a beginner needs, for the short help; may be NULL */
    bool hidden;       /* not shown in the list of verbs */
    bool afar;         /* its words may name checkpoints on a server */
    bool over_ranks;   /* true if it may run as several processes of mpirun */

    /* Runs the verb. main reports a failure and turns it into the exit code. */
    cpl_status (*run)(const cpl_arguments *args);
} cpl_verb;

#define CPL_VERB(name) extern const cpl_verb cpl_verb_##name;
#include "cli/arguments/verbs.def"
#undef CPL_VERB

/* All verbs in the order of verbs.def. NULL ends the list. */
extern const cpl_verb *const cpl_verbs[];

/* Sets `*verb` to the verb whose name begins `words` [count], and `*used` to the number of words in
 * its name. Fails with CPL_ERR_USAGE and the nearest name if there is no such verb. */
CPL_NODISCARD cpl_status cpl_verb_find(const cpl_verb **verb, int *used, int count,
                                       const char *const *words);

/* Returns true if a verb of two words begins with `word`: "tokenize". */
bool cpl_verb_is_family(const char *word);

/* Returns true if the verb is a member of the family `word`. */
bool cpl_verb_is_of(const cpl_verb *verb, const char *word);

#endif /* CPL_CLI_ARGUMENTS_VERB_H */
