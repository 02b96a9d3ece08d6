/* parse.c - parses the value of one setting, see settings.h
 *
 * The grammar is the part of YAML's flow style that settings need: plain and quoted scalars, lists
 * [a, b] and pairs {a: 1}. cpl_setting_print writes only these forms. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "settings/settings.h"

/* Fails with "NAME is TEXT, but must be ...". */
static cpl_status refuse(const cpl_setting *setting, const char *text)
{
    char name[CPL_SETTING_NAME_BYTES];
    cpl_text allowed = {0};
    cpl_setting_allowed(&allowed, setting);
    cpl_status status = cpl_text_status(&allowed);
    if (status == CPL_OK)
        status = CPL_FAIL(CPL_ERR_INPUT, "%s is %.200s, but must be %s",
                          cpl_setting_dotted(name, setting), *text ? text : "empty", allowed.bytes);
    cpl_text_free(&allowed);
    return status;
}

/* Fails with "NAME: what is wrong". */
static cpl_status complain(const cpl_setting *setting, const char *what)
{
    char name[CPL_SETTING_NAME_BYTES];
    return CPL_FAIL(CPL_ERR_INPUT, "%s: %s", cpl_setting_dotted(name, setting), what);
}

/* Numbers ---------------------------------------------------------------------------------------*/

static const char *skip_digits(const char *s)
{
    return s + strspn(s, "0123456789");
}

/* Reads a decimal number. Refuses hexadecimal, inf, nan and blanks, which strtod accepts. */
static bool read_number(double *x, const char *text)
{
    const char *s      = text + (*text == '+' || *text == '-');
    const char *point  = skip_digits(s);
    const char *behind = *point == '.' ? skip_digits(point + 1) : point;
    if (behind - s - (*point == '.') < 1) return false;
    if (*behind == 'e' || *behind == 'E') {
        const char *power = behind + 1 + (behind[1] == '+' || behind[1] == '-');
        behind            = skip_digits(power);
        if (behind == power) return false;
    }
    if (*behind) return false;
    *x = strtod(text, NULL);
    return isfinite(*x);
}

/* Reads digits, or a decimal number that is whole and below 2^53. */
static bool read_integer(int64_t *x, const char *text)
{
    const char *digits = text + (*text == '+' || *text == '-');
    double number      = 0;
    if (*digits && !*skip_digits(digits)) {
        errno = 0;
        *x    = strtoll(text, NULL, 10);
        return errno == 0;
    }
    if (!read_number(&number, text) || number != floor(number) || fabs(number) >= 0x1p53)
        return false;
    *x = (int64_t)number;
    return true;
}

static bool within(const cpl_setting *setting, double x)
{
    return x >= setting->low && x <= setting->high;
}

static cpl_status parse_int(const cpl_setting *setting, cpl_field_INT *field, const char *text)
{
    int64_t x = 0;
    if (!read_integer(&x, text) || !within(setting, (double)x)) return refuse(setting, text);
    *field = x;
    return CPL_OK;
}

static cpl_status parse_float(const cpl_setting *setting, cpl_field_FLOAT *field, const char *text)
{
    double x = 0;
    if (!read_number(&x, text) || !within(setting, x)) return refuse(setting, text);
    *field = x;
    return CPL_OK;
}

static cpl_status parse_bool(const cpl_setting *setting, cpl_field_BOOL *field, const char *text)
{
    bool yes = strcmp(text, "true") == 0;
    if (!yes && strcmp(text, "false") != 0) return refuse(setting, text);
    *field = yes;
    return CPL_OK;
}

/* Strings ---------------------------------------------------------------------------------------*/

/* Reads `count` hexadecimal digits. Returns false if there are fewer. */
static bool read_hex(uint32_t *c, const char *s, int count)
{
    *c = 0;
    for (int i = 0; i < count; i++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit          = s[i] ? strchr(digits, s[i]) : NULL;
        if (!digit) return false;
        *c = *c << 4 | (uint32_t)(digit - digits < 16 ? digit - digits : digit - digits - 6);
    }
    return true;
}

/* Appends the character of the escape at `s`, after the backslash. Returns the length of the
 * escape, or 0 if the text is not an escape. */
static int read_escape(cpl_text *out, const char *s)
{
    static const char letters[] = "ntr\"\\/ ", meanings[] = "\n\t\r\"\\/ ";
    const char *letter = *s ? strchr(letters, *s) : NULL;
    int digits         = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    uint32_t c         = 0;
    char bytes[4];
    if (letter) {
        cpl_text_char(out, meanings[letter - letters]);
        return 1;
    }
    if (!digits || !read_hex(&c, s + 1, digits)) return 0;
    if (c == 0 || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0;
    cpl_text_append(out, bytes, (size_t)cpl_utf8_encode(c, bytes));
    return 1 + digits;
}

/* Reads the quoted string at `*at` and moves past it. Returns the error text, or NULL. */
static const char *read_quoted(cpl_text *out, const char **at)
{
    char quote    = **at;
    const char *s = *at + 1;
    for (; *s; s++) {
        if (*s == quote && quote == '\'' && s[1] == '\'')
            s++;
        else if (*s == quote)
            break;
        else if (*s == '\\' && quote == '"') {
            int length = read_escape(out, s + 1);
            if (!length) return "a backslash begins no escape that is known here";
            s += length;
            continue;
        }
        cpl_text_char(out, *s);
    }
    if (!*s) return "a quote is not closed";
    *at = s + 1;
    return NULL;
}

static const char *skip_blanks(const char *s)
{
    return s + strspn(s, " \t\r\n");
}

static bool is_quote(char c)
{
    return c == '"' || c == '\'';
}

/* Reads an item, quoted or plain up to a byte of `stops`, and moves past it and the blanks that
 * follow. Returns the error text, or NULL. */
static const char *read_item(cpl_text *out, const char **at, const char *stops)
{
    cpl_text_clear(out);
    cpl_text_append(out, "", 0); /* gives an empty item bytes too */
    *at = skip_blanks(*at);
    if (is_quote(**at)) {
        const char *wrong = read_quoted(out, at);
        if (wrong) return wrong;
        *at = skip_blanks(*at);
        return **at && !strchr(stops, **at) ? "something follows a closing quote" : NULL;
    }
    size_t length = strcspn(*at, stops), trimmed = length;
    while (trimmed && strchr(" \t\r\n", (*at)[trimmed - 1])) trimmed--;
    if (!trimmed) return "an item is empty";
    cpl_text_append(out, *at, trimmed);
    *at += length;
    return NULL;
}

/* Sets `*field` to a copy of the text, "" if it is empty. */
static cpl_status store_copy(const cpl_setting *setting, char **field, const cpl_text *text)
{
    CPL_TRY(cpl_text_status(text));
    if (!cpl_utf8_is(text->bytes, strlen(text->bytes)))
        return complain(setting, "the text is not UTF-8");
    char *copy = cpl_text_copy(text->bytes);
    if (!copy) return CPL_ERR_MEMORY;
    *field = copy;
    return CPL_OK;
}

/* Reads `text` as one string: the content of its quotes, or the text itself. */
static cpl_status read_string(const cpl_setting *setting, cpl_text *out, const char *text)
{
    const char *at = text;
    if (!is_quote(*text)) {
        cpl_text_append(out, text, strlen(text));
        return CPL_OK;
    }
    const char *wrong = read_item(out, &at, "");
    return wrong ? complain(setting, wrong) : CPL_OK;
}

static cpl_status parse_string(const cpl_setting *setting, cpl_field_STRING *field,
                               const char *text)
{
    cpl_status status = CPL_OK;
    cpl_text word     = {0};
    char *fresh       = NULL;
    CPL_TRY_DONE(read_string(setting, &word, text));
    CPL_TRY_DONE(store_copy(setting, &fresh, &word));
    cpl_free(*field);
    *field = fresh;
done:
    cpl_text_free(&word);
    return status;
}

static cpl_status parse_choice(const cpl_setting *setting, cpl_field_CHOICE *field,
                               const char *text)
{
    cpl_status status = CPL_OK;
    cpl_text word     = {0};
    int index         = 0;
    CPL_TRY_DONE(read_string(setting, &word, text));
    CPL_TRY_DONE(cpl_text_status(&word));
    for (const char *at = setting->unit; *at; index++) {
        size_t length = strcspn(at, "|");
        if (word.length == length && memcmp(word.bytes, at, length) == 0) {
            *field = index;
            goto done;
        }
        at += length + (at[length] == '|');
    }
    status = refuse(setting, text);
done:
    cpl_text_free(&word);
    return status;
}

/* Lists and pairs -------------------------------------------------------------------------------*/

/* Reader of the items of "[...]", of "{...}", or of a text without brackets. */
typedef struct item_reader {
    const char *at;
    char closing; /* the closing bracket, NUL without brackets */
    bool more;    /* an item follows at `at` */
} item_reader;

/* Moves past a comma after an opening bracket or an item. Sets `more`. Returns the error or
 * NULL. */
static const char *look_for_more(item_reader *in)
{
    const char *after = skip_blanks(in->at + (*in->at != '\0'));
    if (*in->at == ',' && !(in->closing && *after == in->closing)) { /* [a, b,] is allowed */
        in->more = true;
        in->at   = after;
        return NULL;
    }
    in->more = false;
    if (*in->at == ',') after = skip_blanks(after + 1);
    if (*in->at == '\0' && in->closing) return "the closing bracket is missing";
    return *after ? "something follows the closing bracket" : NULL;
}

static const char *open_items(item_reader *in, const char *text, char opening, char closing)
{
    const char *at = skip_blanks(text);
    size_t end     = strlen(at);
    while (end && strchr(" \t\r\n", at[end - 1])) end--;
    bool bracketed = end >= 2 && *at == opening && at[end - 1] == closing;
    in->closing    = bracketed ? closing : '\0';
    in->at         = bracketed ? skip_blanks(at + 1) : at;
    in->more       = *in->at != in->closing;
    return in->more ? NULL : look_for_more(in);
}

/* Returns the array of `count` elements of `bytes` bytes with room for one more. A full array
 * doubles. Returns NULL if memory is not available. */
static void *grown(void *array, int64_t count, size_t bytes)
{
    if (count & (count - 1)) return array;
    return cpl_realloc(array, (size_t)(count ? 2 * count : 1) * bytes);
}

static cpl_status read_strings(const cpl_setting *setting, cpl_strings *list, cpl_text *word,
                               const char *text)
{
    item_reader in;
    const char *wrong = open_items(&in, text, '[', ']');
    while (!wrong && in.more) {
        wrong = read_item(word, &in.at, in.closing ? ",]" : ",");
        if (wrong) break;
        char **at = grown(list->at, list->count, sizeof *at);
        if (!at) return CPL_ERR_MEMORY;
        list->at = at;
        CPL_TRY(store_copy(setting, &at[list->count], word));
        list->count++;
        wrong = look_for_more(&in);
    }
    return wrong ? complain(setting, wrong) : CPL_OK;
}

/* Returns the reason why `name` cannot be the next name of the list, or NULL. */
static const char *wrong_name(const cpl_weight_list *list, const cpl_text *name)
{
    if (name->length > CPL_WEIGHT_NAME_BYTES) return "a name is longer than 200 bytes";
    if (list->count == CPL_WEIGHTS_MOST) return "there are more than 4096 pairs";
    for (int64_t i = 0; i < list->count; i++)
        if (strcmp(list->name[i], name->bytes) == 0) return "a name is given twice";
    return NULL;
}

/* Adds a pair with this name and weight 0. */
static cpl_status add_pair(const cpl_setting *setting, cpl_weight_list *list, const cpl_text *word)
{
    CPL_TRY(cpl_text_status(word));
    const char *wrong = wrong_name(list, word);
    if (wrong) return complain(setting, wrong);
    char **name = grown(list->name, list->count, sizeof *name);
    if (!name) return CPL_ERR_MEMORY;
    list->name     = name;
    double *weight = grown(list->weight, list->count, sizeof *weight);
    if (!weight) return CPL_ERR_MEMORY;
    list->weight = weight;
    CPL_TRY(store_copy(setting, &name[list->count], word));
    weight[list->count++] = 0;
    return CPL_OK;
}

static cpl_status read_pair(const cpl_setting *setting, cpl_weight_list *list, cpl_text *word,
                            item_reader *in)
{
    double weight     = 0;
    const char *wrong = read_item(word, &in->at, ":,}");
    if (!wrong && *in->at != ':') wrong = "a name has no number after it";
    if (wrong) return complain(setting, wrong);
    CPL_TRY(add_pair(setting, list, word));
    in->at++;
    wrong = read_item(word, &in->at, in->closing ? ",}" : ",");
    if (wrong) return complain(setting, wrong);
    CPL_TRY(cpl_text_status(word));
    if (!read_number(&weight, word->bytes) || !within(setting, weight))
        return refuse(setting, word->bytes);
    list->weight[list->count - 1] = weight;
    return CPL_OK;
}

static cpl_status read_weights(const cpl_setting *setting, cpl_weight_list *list, cpl_text *word,
                               const char *text)
{
    item_reader in;
    const char *wrong = open_items(&in, text, '{', '}');
    while (!wrong && in.more) {
        CPL_TRY(read_pair(setting, list, word, &in));
        wrong = look_for_more(&in);
    }
    return wrong ? complain(setting, wrong) : CPL_OK;
}

/* Reads a list or pairs into `field`, which keeps its value if this fails. */
static cpl_status parse_items(const cpl_setting *setting, void *field, const char *text)
{
    union {
        cpl_strings strings;
        cpl_weight_list weights;
    } fresh           = {0};
    cpl_text word     = {0};
    cpl_status status = setting->kind == CPL_KIND_WEIGHTS
                            ? read_weights(setting, &fresh.weights, &word, text)
                            : read_strings(setting, &fresh.strings, &word, text);
    cpl_text_free(&word);
    if (status != CPL_OK) {
        cpl_setting_free(setting, &fresh);
        return status;
    }
    cpl_setting_free(setting, field);
    memcpy(field, &fresh, cpl_setting_bytes(setting));
    return CPL_OK;
}

/* All kinds -------------------------------------------------------------------------------------*/

static bool says_unset(const char *text)
{
    return strcmp(text, "unset") == 0 || strcmp(text, "null") == 0 || strcmp(text, "~") == 0;
}

static cpl_status parse_unset(const cpl_setting *setting, void *field, const char *text)
{
    if (!cpl_setting_may_be_unset(setting)) return refuse(setting, text);
    cpl_setting_free(setting, field);
    if (setting->kind == CPL_KIND_INT) *(cpl_field_INT *)field = CPL_UNSET;
    if (setting->kind == CPL_KIND_FLOAT) *(cpl_field_FLOAT *)field = (double)NAN;
    return CPL_OK;
}

cpl_status cpl_setting_parse(const cpl_setting *setting, void *field, const char *text)
{
    if (says_unset(text)) return parse_unset(setting, field, text);
    switch (setting->kind) {
    case CPL_KIND_INT:
        return parse_int(setting, field, text);
    case CPL_KIND_FLOAT:
        return parse_float(setting, field, text);
    case CPL_KIND_BOOL:
        return parse_bool(setting, field, text);
    case CPL_KIND_CHOICE:
        return parse_choice(setting, field, text);
    case CPL_KIND_STRING:
        return parse_string(setting, field, text);
    case CPL_KIND_STRINGS:
    case CPL_KIND_WEIGHTS:
        return parse_items(setting, field, text);
    }
    CPL_ASSERT(false); /* not reached: the switch handles every kind */
    return CPL_ERR_INPUT;
}
