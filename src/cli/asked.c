/* asked.c - see asked.h */
#include "cli/asked.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/places.h"
#include "io/file.h"
#include "io/json.h"

enum { TASKS = 1 << CPL_ASKED_TASKS, TEXT = 1 << CPL_ASKED_TEXT, LIST = 1 << CPL_ASKED_LIST };

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
    {"--window", TEXT},
    {"--stride", TEXT},
    {"--tokenizer", TASKS | TEXT},
    {"--json", TASKS | TEXT},
    {"--overwrite", TASKS | TEXT},
    {"--threads", TASKS | TEXT},
    {"--set", TASKS | TEXT},
};

static cpl_status find_form(cpl_asked_form *form, const cpl_arguments *args)
{
    CPL_TRY(cpl_flags_exclude(args, "--text", "--tasks"));
    CPL_TRY(cpl_flags_exclude(args, "--list", "--tasks"));
    CPL_TRY(cpl_flags_exclude(args, "--list", "--text"));
    *form = cpl_flag_on(args, "--list")      ? CPL_ASKED_LIST
            : cpl_flag_given(args, "--text") ? CPL_ASKED_TEXT
                                             : CPL_ASKED_TASKS;
    if (*form != CPL_ASKED_TASKS || cpl_flag_given(args, "--tasks") ||
        cpl_flag_given(args, "--task-file"))
        return CPL_OK;
    if (args->n_words == 0) return CPL_FAIL(CPL_ERR_USAGE, "eval wants a MODEL_DIR, or --list");
    return CPL_FAIL(CPL_ERR_USAGE, "eval wants --tasks, --task-file or --text: `couplet eval "
                                   "--list` shows the tasks there are");
}

static cpl_status check_flags(const cpl_arguments *args, cpl_asked_form form)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *r = &rules[i];
        if (!cpl_flag_given(args, r->flag) || r->forms & (1u << form)) continue;
        return CPL_FAIL(CPL_ERR_USAGE, "eval %s has no use for %s, which goes with %s", names[form],
                        r->flag, names[r->forms & TASKS ? CPL_ASKED_TASKS : CPL_ASKED_TEXT]);
    }
    for (int i = 0; form == CPL_ASKED_TASKS && i < args->n_sets; i++)
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

static cpl_status check_words(const cpl_arguments *args, cpl_asked_form form)
{
    if (form == CPL_ASKED_LIST && args->n_words > 0)
        return CPL_FAIL(CPL_ERR_USAGE, "eval --list asks no model: leave %.200s out",
                        args->words[0]);
    if (form != CPL_ASKED_LIST && args->n_words == 0)
        return CPL_FAIL(CPL_ERR_USAGE, "eval wants a MODEL_DIR, or --list");
    if (form == CPL_ASKED_TASKS && args->n_words > 1)
        return CPL_FAIL(CPL_ERR_USAGE, "eval takes one MODEL_DIR; %.200s is one too many",
                        args->words[1]);
    return CPL_OK;
}

cpl_status cpl_asked_form_of(cpl_asked_form *form, const cpl_arguments *args)
{
    CPL_TRY(find_form(form, args));
    CPL_TRY(check_flags(args, *form));
    return check_words(args, *form);
}

/* ---- results ---- */

/* Whether a file is empty or begins so. */
static bool begins(const char *path, const char *with)
{
    char bytes[16];
    int file;
    uint64_t length;
    const size_t count = strlen(with);
    CPL_ASSERT(count <= sizeof bytes);
    if (cpl_file_open(&file, &length, path) != CPL_OK) return false;
    const bool is = length == 0 ||
                    (length >= count && cpl_file_read_at(file, bytes, count, 0, path) == CPL_OK &&
                     memcmp(bytes, with, count) == 0);
    close(file);
    return is;
}

/* Whether a file holds what this flag writes, or nothing yet. */
static bool is_of_flag(const char *path, const char *flag)
{
    struct stat there;
    json_t *object = NULL;
    if (stat(path, &there) != 0 || !S_ISREG(there.st_mode) || there.st_size == 0) return true;
    if (strcmp(flag, "--html") == 0) return begins(path, "<!DOCTYPE html>");
    if (!begins(path, "{") || cpl_json_load(&object, path) != CPL_OK) return false;
    const bool is = json_object_get(object, "results") || json_object_get(object, "sources");
    json_decref(object);
    return is;
}

/* --overwrite replaces results, and neither weights nor rows that somebody names by mistake. */
static cpl_status check_new(const cpl_arguments *args, const char *flag)
{
    const char *path = cpl_flag_text(args, flag);
    if (!path || (strcmp(flag, "--json") == 0 && strcmp(path, "-") == 0)) return CPL_OK;
    if (!cpl_path_exists(path)) return CPL_OK;
    if (!cpl_flag_on(args, "--overwrite"))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s is there already: --overwrite replaces it, or write to another file",
                        path);
    if (is_of_flag(path, flag)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s %s: is there and holds no results of couplet eval, which is all that "
                    "--overwrite replaces: name another file, or take it away",
                    flag, path);
}

cpl_status cpl_asked_check_results(const cpl_arguments *args)
{
    CPL_TRY(cpl_places_check_files(args));
    CPL_TRY(cpl_places_keep(args, cpl_flag_text(args, "--task-file")));
    CPL_TRY(cpl_places_keep(args, cpl_flag_text(args, "--tokenizer")));
    CPL_TRY(check_new(args, "--json"));
    return check_new(args, "--html");
}
