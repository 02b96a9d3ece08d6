/* flags.c - see flags.h */
#include "cli/arguments/flags.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "cli/arguments/configure.h"
#include "io/file.h"

cpl_setting cpl_flag_as_setting(const cpl_flag *flag)
{
    cpl_setting setting = {.name          = flag->name,
                           .kind          = flag->kind == CPL_FLAG_INT      ? CPL_KIND_INT
                                            : flag->kind == CPL_FLAG_NUMBER ? CPL_KIND_FLOAT
                                                                            : CPL_KIND_CHOICE,
                           .default_value = flag->default_value ? flag->default_value : "",
                           .low           = flag->low,
                           .high          = flag->high,
                           .unit          = flag->unit ? flag->unit : "",
                           .help          = flag->help};
    return setting;
}

/* Returns the index of the flag whose name is the `length` bytes at `name`, or -1. */
static int find_flag(const cpl_verb *verb, const char *name, size_t length)
{
    for (size_t f = 0; f < verb->n_flags; f++)
        if (strlen(verb->flags[f].name) == length && memcmp(verb->flags[f].name, name, length) == 0)
            return (int)f;
    return -1;
}

static cpl_status refuse_moved(const cpl_verb *verb, const char *name)
{
    static const struct {
        const char *verb, *flag, *sentence;
    } moved[] = {
#define CPL_MOVED(...) {__VA_ARGS__},
#include "cli/arguments/moved.def"
#undef CPL_MOVED
    };
    for (size_t i = 0; i < sizeof moved / sizeof *moved; i++)
        if (strcmp(moved[i].verb, verb->name) == 0 && strcmp(moved[i].flag, name) == 0)
            return CPL_FAIL(CPL_ERR_USAGE, "%s is no longer there: %s", name, moved[i].sentence);
    return CPL_OK;
}

static cpl_status no_such_flag(const cpl_verb *verb, const char *word)
{
    const char *names[CPL_MOST_FLAGS + 1] = {"--help"};
    char name[64];
    size_t length = strcspn(word, "=");
    if (length >= sizeof name) length = sizeof name - 1;
    memcpy(name, word, length);
    name[length] = '\0';
    for (size_t f = 0; f < verb->n_flags; f++) names[f + 1] = verb->flags[f].name;
    CPL_TRY(refuse_moved(verb, name));
    const char *near = cpl_text_nearest(name, names, verb->n_flags + 1);
    if (near)
        return CPL_FAIL(CPL_ERR_USAGE, "%s has no flag %s; did you mean %s?", verb->name, name,
                        near);
    return CPL_FAIL(CPL_ERR_USAGE, "%s has no flag %s; couplet %s --help lists them", verb->name,
                    name, verb->name);
}

/* Fills `own` with the settings that the verb takes, one section for each. Returns their number. */
static size_t settings_of(cpl_section own[CPL_N_SETTINGS], const cpl_verb *verb)
{
    cpl_section all[CPL_N_SECTIONS];
    size_t n = 0;
    cpl_settings_sections(all);
    for (size_t s = 0; s < CPL_N_SECTIONS; s++)
        for (size_t i = 0; i < all[s].count; i++)
            if (cpl_verb_takes(verb, &all[s].list[i]))
                own[n++] = (cpl_section){.list = &all[s].list[i], .count = 1};
    return n;
}

/* Refuses a flag without its dashes, and a setting without --set or in several words. `word` begins
 * with the name of the flag or setting. */
static cpl_status check_no_name(const cpl_verb *verb, const char *word, int n_more,
                                char *const *more)
{
    char dashed[2 + CPL_SETTING_NAME_BYTES], *name = dashed + 2;
    cpl_section own[CPL_N_SETTINGS];
    const size_t length = strcspn(word, "=");
    const char *value   = word + length + (word[length] == '=');
    if (length == 0 || length >= CPL_SETTING_NAME_BYTES) return CPL_OK;
    snprintf(dashed, sizeof dashed, "--%.*s", (int)length, word);
    const bool yaml = name[length - 1] == ':';
    if (yaml) name[length - 1] = '\0';
    for (int i = 0; i < n_more && !*value && more[i][0] != '-'; i++)
        value = more[i] + (more[i][0] == '=');
    const int f = word[length] == '=' || yaml ? find_flag(verb, dashed, strlen(dashed)) : -1;
    if (f >= 0) {
        const cpl_flag *flag = &verb->flags[f];
        const char *shown    = *value ? value : flag->value_name;
        if (flag->kind == CPL_FLAG_SWITCH) shown = "";
        return CPL_FAIL(CPL_ERR_USAGE, "%s is a flag of %s: did you mean %s%s%.100s?", dashed,
                        verb->name, dashed, *shown ? " " : "", shown);
    }
    if (find_flag(verb, "--set", strlen("--set")) < 0) return CPL_OK;
    const size_t n       = settings_of(own, verb);
    const cpl_setting *s = cpl_settings_find(NULL, own, n, name, NULL);
    if (!s && word[length] == '=') s = cpl_settings_nearest(own, n, name);
    if (!s || (!strchr(name, '.') && strcmp(s->name, name) != 0)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_USAGE,
                    "a setting is given in one word after --set: did you mean --set %s=%.100s?",
                    cpl_setting_dotted(name, s), *value ? value : "VALUE");
}

/* Checks `text` and stores it as the value of flag `f`. */
static cpl_status take_value(cpl_arguments *args, size_t f, const char *text)
{
    const cpl_flag *flag = &args->verb->flags[f];
    cpl_setting setting  = cpl_flag_as_setting(flag);
    cpl_status status    = CPL_OK;
    int choice           = 0;
    args->flag[f].text   = text;
    if (flag->kind == CPL_FLAG_INT)
        status = cpl_setting_parse(&setting, &args->flag[f].integer, text);
    if (flag->kind == CPL_FLAG_NUMBER)
        status = cpl_setting_parse(&setting, &args->flag[f].number, text);
    if (flag->kind == CPL_FLAG_CHOICE) {
        status                = cpl_setting_parse(&setting, &choice, text);
        args->flag[f].integer = choice;
    }
    return status == CPL_ERR_INPUT ? CPL_FAIL(CPL_ERR_USAGE, "%s", cpl_last_error()) : status;
}

/* Reads the flag in words[*at], and the next word if it is the flag's value. */
static cpl_status take_flag(cpl_arguments *args, int *at, int count, char *const *words)
{
    const char *word = words[*at], *equals = strchr(word, '=');
    int f = find_flag(args->verb, word, equals ? (size_t)(equals - word) : strlen(word));
    if (f < 0) {
        CPL_TRY(
            check_no_name(args->verb, word + strspn(word, "-"), count - *at - 1, words + *at + 1));
        return no_such_flag(args->verb, word);
    }
    const cpl_flag *flag = &args->verb->flags[f];
    if (args->flag[f].given && flag->kind != CPL_FLAG_SET)
        return CPL_FAIL(CPL_ERR_USAGE, "%s is given twice", flag->name);
    args->flag[f].given = true;
    if (flag->kind == CPL_FLAG_SWITCH)
        return equals ? CPL_FAIL(CPL_ERR_USAGE, "%s takes no value", flag->name) : CPL_OK;
    const char *value = equals ? equals + 1 : NULL;
    if (!equals && *at + 1 < count && strncmp(words[*at + 1], "--", 2) != 0) value = words[++*at];
    if (!value)
        return CPL_FAIL(CPL_ERR_USAGE, "%s needs a value: %s %s", flag->name, flag->name,
                        flag->value_name);
    if (flag->kind == CPL_FLAG_SET) {
        if (!strchr(value, '='))
            CPL_TRY(check_no_name(args->verb, value, count - *at - 1, words + *at + 1));
        args->sets[args->n_sets++] = value;
        return CPL_OK;
    }
    return take_value(args, (size_t)f, value);
}

static bool asks_for_help(const char **topic, int count, char *const *words)
{
    for (int i = 0; i < count && strcmp(words[i], "--") != 0; i++) {
        if (strcmp(words[i], "--help") != 0 && strcmp(words[i], "-h") != 0) continue;
        if (i + 1 < count && words[i + 1][0] != '-') *topic = words[i + 1];
        return true;
    }
    return false;
}

static cpl_status take_all(cpl_arguments *args, int count, char *const *words)
{
    bool flags = true;
    for (int at = 0; at < count; at++) {
        const char *word = words[at];
        if (flags && strcmp(word, "--") == 0)
            flags = false;
        else if (flags && word[0] == '-' && word[1] != '\0')
            CPL_TRY(take_flag(args, &at, count, words));
        else {
            if (flags && !cpl_path_exists(word))
                CPL_TRY(check_no_name(args->verb, word, count - at - 1, words + at + 1));
            args->words[args->n_words++] = word;
        }
    }
    return CPL_OK;
}

/* Sets the defaults of flags not given and checks required flags and the number of words, once all
 * words are read. */
static cpl_status check_all(cpl_arguments *args)
{
    const cpl_verb *verb = args->verb;
    for (size_t f = 0; f < verb->n_flags; f++) {
        const cpl_flag *flag = &verb->flags[f];
        if (args->flag[f].given) continue;
        if (flag->required)
            return CPL_FAIL(CPL_ERR_USAGE, "%s needs %s %s", verb->name, flag->name,
                            flag->value_name);
        if (flag->default_value) CPL_TRY(take_value(args, f, flag->default_value));
    }
    if (args->n_words < verb->least)
        return CPL_FAIL(CPL_ERR_USAGE, "%s needs more arguments: couplet %s %.*s", verb->name,
                        verb->name, (int)strcspn(verb->usage, "\n"), verb->usage);
    if (verb->most >= 0 && args->n_words > verb->most)
        return CPL_FAIL(CPL_ERR_USAGE, "%s does not take the argument %.200s", verb->name,
                        args->words[verb->most]);
    return CPL_OK;
}

cpl_status cpl_arguments_read(cpl_arguments *args, const cpl_verb *verb, int count,
                              char *const *words)
{
    CPL_ASSERT(verb->n_flags <= CPL_MOST_FLAGS);
    memset(args, 0, sizeof *args);
    args->verb = verb;
    args->help = asks_for_help(&args->topic, count, words);
    if (args->help) return CPL_OK;
    cpl_status status = CPL_OK;
    args->words       = cpl_alloc((size_t)(count + 1) * sizeof *args->words);
    args->sets        = cpl_alloc((size_t)(count + 1) * sizeof *args->sets);
    if (!args->words || !args->sets) status = CPL_ERR_MEMORY;
    if (status == CPL_OK) status = take_all(args, count, words);
    if (status == CPL_OK) status = check_all(args);
    if (status != CPL_OK) cpl_arguments_free(args);
    return status;
}

void cpl_arguments_free(cpl_arguments *args)
{
    cpl_free(args->words);
    cpl_free(args->sets);
    memset(args, 0, sizeof *args);
}

static size_t index_of(const cpl_arguments *args, const char *name)
{
    int f = find_flag(args->verb, name, strlen(name));
    CPL_ASSERT(f >= 0);
    return (size_t)f;
}

bool cpl_flag_known(const cpl_arguments *args, const char *name)
{
    return find_flag(args->verb, name, strlen(name)) >= 0;
}

bool cpl_flag_given(const cpl_arguments *args, const char *name)
{
    return args->flag[index_of(args, name)].given;
}

const char *cpl_flag_text(const cpl_arguments *args, const char *name)
{
    return args->flag[index_of(args, name)].text;
}

int64_t cpl_flag_int(const cpl_arguments *args, const char *name)
{
    CPL_ASSERT(cpl_flag_text(args, name));
    return args->flag[index_of(args, name)].integer;
}

int64_t cpl_flag_int_or(const cpl_arguments *args, const char *name, int64_t if_not_given)
{
    return cpl_flag_given(args, name) ? cpl_flag_int(args, name) : if_not_given;
}

double cpl_flag_number(const cpl_arguments *args, const char *name)
{
    CPL_ASSERT(cpl_flag_text(args, name));
    return args->flag[index_of(args, name)].number;
}

cpl_status cpl_flags_exclude(const cpl_arguments *args, const char *one, const char *other)
{
    if (cpl_flag_given(args, one) && cpl_flag_given(args, other))
        return CPL_FAIL(CPL_ERR_USAGE, "%s and %s cannot be given together", one, other);
    return CPL_OK;
}

static bool is_among(const char *name, size_t length, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return true;
    return false;
}

cpl_status cpl_flags_only(const cpl_arguments *args, const char *form, const char *const *names,
                          size_t n)
{
    const cpl_verb *verb = args->verb;
    for (size_t f = 0; f < verb->n_flags; f++) {
        const cpl_flag *flag = &verb->flags[f];
        if (args->flag[f].given && flag->kind != CPL_FLAG_SET &&
            !is_among(flag->name, strlen(flag->name), names, n))
            return CPL_FAIL(CPL_ERR_USAGE, "%s %s does not take %s", verb->name, form, flag->name);
    }
    for (int i = 0; i < args->n_sets; i++)
        if (!is_among(args->sets[i], strcspn(args->sets[i], "="), names, n))
            return CPL_FAIL(CPL_ERR_USAGE, "%s %s does not use --set %.100s", verb->name, form,
                            args->sets[i]);
    return CPL_OK;
}

/* ---- lists and sizes ---- */

enum { MOST_IN_RANGES = 100000 };

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

cpl_status cpl_parse_numbers(double *numbers, int *count, int most, const char *flag,
                             const char *text, double low, double high)
{
    const char *at = text;
    char *end      = NULL;
    *count         = 0;
    do {
        const double value = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(value >= low && value <= high))
            return CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: needs numbers from %g to %g, with commas",
                            flag, text, low, high);
        if (*count == most)
            return CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: more than %d numbers", flag, text, most);
        numbers[(*count)++] = value;
        at                  = end + 1;
    } while (*end);
    qsort(numbers, (size_t)*count, sizeof *numbers, by_number);
    for (int i = 1; i < *count; i++)
        if (!(numbers[i] > numbers[i - 1]))
            return CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: %g is there twice", flag, text, numbers[i]);
    return CPL_OK;
}

/* Reads "5" or "5-7" and moves `at` past it. Returns false for any other text. */
static bool read_range(const char **at, int64_t *first, int64_t *last)
{
    char *end = NULL;
    if (**at < '0' || **at > '9') return false;
    *first = *last = strtoll(*at, &end, 10);
    if (*end == '-') {
        if (end[1] < '0' || end[1] > '9') return false;
        *last = strtoll(end + 1, &end, 10);
    }
    *at = end;
    return (*end == 0 || *end == ',') && *first <= *last && *last < INT64_C(1) << 40;
}

static void insert(int64_t *numbers, int64_t *count, int64_t value)
{
    int64_t at = *count;
    while (at > 0 && numbers[at - 1] >= value) at--;
    if (at < *count && numbers[at] == value) return;
    memmove(numbers + at + 1, numbers + at, (size_t)(*count - at) * sizeof *numbers);
    numbers[at] = value;
    (*count)++;
}

cpl_status cpl_parse_ranges(int64_t **numbers, int64_t *count, const char *flag, const char *text)
{
    const char *at    = text;
    cpl_status status = CPL_OK;
    *count            = 0;
    *numbers          = cpl_alloc((MOST_IN_RANGES + 1) * sizeof **numbers);
    if (!*numbers) return CPL_ERR_MEMORY;
    for (;; at++) {
        int64_t first, last;
        if (!read_range(&at, &first, &last)) {
            status = CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: needs numbers and ranges, as 0,5-7", flag,
                              text);
            break;
        }
        if (last - first >= MOST_IN_RANGES - *count) {
            status = CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: more than %d numbers", flag, text,
                              MOST_IN_RANGES);
            break;
        }
        for (int64_t i = first; i <= last; i++) insert(*numbers, count, i);
        if (*at == 0) break;
    }
    if (status == CPL_OK) return CPL_OK;
    cpl_free(*numbers);
    *numbers = NULL;
    return status;
}

cpl_status cpl_parse_bytes(double *bytes, const char *flag, const char *text)
{
    static const char letters[] = "KMGT";
    char *end                   = NULL;
    *bytes                      = strtod(text, &end);
    bool good                   = end != text && isfinite(*bytes) && *bytes > 0;
    const char *letter          = *end ? strchr(letters, *end) : NULL;
    if (letter) {
        *bytes *= pow(1024, (double)(letter - letters + 1));
        end++;
        if (strcmp(end, "iB") == 0) end += 2;
    }
    if (*end == 'B' && end[1] == 0) end++;
    if (good && *end == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: needs a size, as 512M or 4G", flag, text);
}
