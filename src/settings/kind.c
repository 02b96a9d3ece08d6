/* kind.c - one setting: name, memory, allowed values, equality, value as text (see settings.h) */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "settings/settings.h"

const char *cpl_setting_dotted(char out[CPL_SETTING_NAME_BYTES], const cpl_setting *setting)
{
    snprintf(out, CPL_SETTING_NAME_BYTES, "%s%s%s", setting->section ? setting->section : "",
             setting->section ? "." : "", setting->name);
    return out;
}

bool cpl_setting_may_be_unset(const cpl_setting *setting)
{
    return strcmp(setting->default_value, "unset") == 0;
}

size_t cpl_setting_bytes(const cpl_setting *setting)
{
    static const size_t bytes[] = {
        [CPL_KIND_INT]     = sizeof(cpl_field_INT),
        [CPL_KIND_FLOAT]   = sizeof(cpl_field_FLOAT),
        [CPL_KIND_BOOL]    = sizeof(cpl_field_BOOL),
        [CPL_KIND_CHOICE]  = sizeof(cpl_field_CHOICE),
        [CPL_KIND_STRING]  = sizeof(cpl_field_STRING),
        [CPL_KIND_STRINGS] = sizeof(cpl_field_STRINGS),
        [CPL_KIND_WEIGHTS] = sizeof(cpl_field_WEIGHTS),
    };
    return bytes[setting->kind];
}

static void free_strings(char **at, int64_t count)
{
    for (int64_t i = 0; i < count; i++) cpl_free(at[i]);
    cpl_free(at);
}

void cpl_setting_free(const cpl_setting *setting, void *field)
{
    if (setting->kind == CPL_KIND_STRING) cpl_free(*(cpl_field_STRING *)field);
    if (setting->kind == CPL_KIND_STRINGS) {
        cpl_strings *strings = field;
        free_strings(strings->at, strings->count);
    }
    if (setting->kind == CPL_KIND_WEIGHTS) {
        cpl_weight_list *weights = field;
        free_strings(weights->name, weights->count);
        cpl_free(weights->weight);
    }
    memset(field, 0, cpl_setting_bytes(setting));
}

/* Appends a bound, as 1e12 rather than 1000000000000. */
static void print_limit(cpl_text *out, double x)
{
    char digits[40];
    snprintf(digits, sizeof digits, "%.0e", x);
    if (fabs(x) >= 1e6 && strtod(digits, NULL) == x)
        cpl_text_printf(out, "%.*se%d", (int)strcspn(digits, "e"), digits,
                        atoi(strchr(digits, 'e') + 1));
    else
        cpl_text_printf(out, "%.15g", x);
}

static void put_bounds(cpl_text *out, double low, double high)
{
    if (isfinite(low) || isfinite(high))
        cpl_text_printf(out, isfinite(low) && isfinite(high) ? " from "
                             : isfinite(low)                 ? " of at least "
                                                             : " of at most ");
    if (isfinite(low)) print_limit(out, low);
    if (isfinite(low) && isfinite(high)) cpl_text_printf(out, " to ");
    if (isfinite(high)) print_limit(out, high);
}

static void put_number(cpl_text *out, const cpl_setting *setting, const char *noun)
{
    cpl_text_printf(out, "%s", noun);
    if (*setting->unit) cpl_text_printf(out, " of %s", setting->unit);
    put_bounds(out, setting->low, setting->high);
}

/* Appends "a, b or c" for "a|b|c". */
static void put_choice(cpl_text *out, const char *choices)
{
    for (const char *at = choices; *at;) {
        size_t length = strcspn(at, "|");
        bool last     = at[length] == '\0';
        if (at != choices) cpl_text_printf(out, "%s", last ? " or " : ", ");
        cpl_text_append(out, at, length);
        at += length + !last;
    }
}

void cpl_setting_allowed(cpl_text *out, const cpl_setting *setting)
{
    switch (setting->kind) {
    case CPL_KIND_INT:
        put_number(out, setting, "a whole number");
        break;
    case CPL_KIND_FLOAT:
        put_number(out, setting, "a number");
        break;
    case CPL_KIND_BOOL:
        cpl_text_printf(out, "true or false");
        break;
    case CPL_KIND_CHOICE:
        put_choice(out, setting->unit);
        break;
    case CPL_KIND_STRING:
        cpl_text_printf(out, "%s", strcmp(setting->unit, "path") == 0 ? "a path" : "a text");
        break;
    case CPL_KIND_STRINGS:
        cpl_text_printf(out, "a list of %s", *setting->unit ? setting->unit : "texts");
        break;
    case CPL_KIND_WEIGHTS:
        cpl_text_printf(out, "pairs {name: number, ...}, each number");
        put_bounds(out, setting->low, setting->high);
        break;
    }
    if (cpl_setting_may_be_unset(setting)) cpl_text_printf(out, ", or unset");
}

static int same_string(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static int same_strings(char *const *a, char *const *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!same_string(a[i], b[i])) return 0;
    return 1;
}

static int same_number(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static int same_weights(const cpl_weight_list *a, const cpl_weight_list *b)
{
    if (a->count != b->count || !same_strings(a->name, b->name, a->count)) return 0;
    for (int64_t i = 0; i < a->count; i++)
        if (!same_number(a->weight[i], b->weight[i])) return 0;
    return 1;
}

int cpl_setting_equal(const cpl_setting *setting, const void *a, const void *b)
{
    switch (setting->kind) {
    case CPL_KIND_INT:
        return *(const cpl_field_INT *)a == *(const cpl_field_INT *)b;
    case CPL_KIND_FLOAT:
        return same_number(*(const cpl_field_FLOAT *)a, *(const cpl_field_FLOAT *)b);
    case CPL_KIND_BOOL:
        return !*(const cpl_field_BOOL *)a == !*(const cpl_field_BOOL *)b;
    case CPL_KIND_CHOICE:
        return *(const cpl_field_CHOICE *)a == *(const cpl_field_CHOICE *)b;
    case CPL_KIND_STRING:
        return same_string(*(const cpl_field_STRING *)a, *(const cpl_field_STRING *)b);
    case CPL_KIND_STRINGS: {
        const cpl_strings *x = a, *y = b;
        return x->count == y->count && same_strings(x->at, y->at, x->count);
    }
    case CPL_KIND_WEIGHTS:
        return same_weights(a, b);
    }
    return 0;
}

/* ---- value -> text ---- */

/* Returns whether YAML accepts the code point only as an escape within double quotes, as a line end
 * or as the byte order mark. */
static bool needs_escape(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0xFEFF ||
           c == 0xFFFE || c == 0xFFFF || c == '"' || c == '\\';
}

static void print_escape(cpl_text *out, uint32_t c)
{
    if (c == '"' || c == '\\')
        cpl_text_printf(out, "\\%c", (char)c);
    else if (c == '\n')
        cpl_text_append(out, "\\n", 2);
    else if (c == '\t')
        cpl_text_append(out, "\\t", 2);
    else
        cpl_text_printf(out, c < 0x100 ? "\\x%02X" : "\\u%04X", c);
}

void cpl_setting_quote(cpl_text *out, const char *string)
{
    const unsigned char *s = (const unsigned char *)string;
    size_t left            = strlen(string);
    cpl_text_char(out, '"');
    while (left) {
        int length = cpl_utf8_length(s, left);
        CPL_ASSERT(length > 0);
        uint32_t c = cpl_utf8_decode(s, length);
        if (needs_escape(c))
            print_escape(out, c);
        else
            cpl_text_append(out, s, (size_t)length);
        s += length;
        left -= (size_t)length;
    }
    cpl_text_char(out, '"');
}

/* Returns whether every YAML reader reads the unquoted string as a string of these characters. */
static bool is_plain(const char *s)
{
    static const char *const words[] = {"null", "unset", "true", "false", "yes",
                                        "no",   "on",    "off",  "y",     "n"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(s, words[i]) == 0) return false;
    bool starts = isalpha((unsigned char)*s) || *s == '_' || *s == '/' ||
                  strncmp(s, "./", 2) == 0 || strncmp(s, "../", 3) == 0;
    return starts && s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                 "_./+-")] == '\0';
}

static void print_string(cpl_text *out, const char *string)
{
    if (is_plain(string))
        cpl_text_append(out, string, strlen(string));
    else
        cpl_setting_quote(out, string);
}

/* Appends the shortest form of 15 to 17 digits that reads back to `x`. A mantissa before an
 * exponent gets a point: without it readers of YAML 1.1 read a string. */
static void print_number(cpl_text *out, double x)
{
    char digits[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, x);
        if (strtod(digits, NULL) == x) break;
    }
    char *exponent = strchr(digits, 'e');
    if (!exponent || strchr(digits, '.'))
        cpl_text_printf(out, "%s", digits);
    else
        cpl_text_printf(out, "%.*s.0%s", (int)(exponent - digits), digits, exponent);
}

static void print_choice(cpl_text *out, const char *choices, int wanted)
{
    for (; wanted > 0 && strchr(choices, '|'); wanted--) choices = strchr(choices, '|') + 1;
    cpl_text_append(out, choices, strcspn(choices, "|"));
}

static void print_strings(cpl_text *out, const cpl_strings *strings)
{
    cpl_text_char(out, '[');
    for (int64_t i = 0; i < strings->count; i++) {
        if (i) cpl_text_append(out, ", ", 2);
        print_string(out, strings->at[i]);
    }
    cpl_text_char(out, ']');
}

static void print_weights(cpl_text *out, const cpl_weight_list *weights)
{
    cpl_text_char(out, '{');
    for (int64_t i = 0; i < weights->count; i++) {
        if (i) cpl_text_append(out, ", ", 2);
        print_string(out, weights->name[i]);
        cpl_text_append(out, ": ", 2);
        print_number(out, weights->weight[i]);
    }
    cpl_text_char(out, '}');
}

static bool is_unset(const cpl_setting *setting, const void *field)
{
    if (setting->kind == CPL_KIND_INT)
        return cpl_setting_may_be_unset(setting) && *(const cpl_field_INT *)field == CPL_UNSET;
    if (setting->kind == CPL_KIND_FLOAT) return isnan(*(const cpl_field_FLOAT *)field);
    if (setting->kind == CPL_KIND_STRING) return !*(const cpl_field_STRING *)field;
    return false;
}

void cpl_setting_print(cpl_text *out, const cpl_setting *setting, const void *field)
{
    if (is_unset(setting, field)) {
        cpl_text_printf(out, "unset");
        return;
    }
    switch (setting->kind) {
    case CPL_KIND_INT:
        cpl_text_printf(out, "%lld", (long long)*(const cpl_field_INT *)field);
        break;
    case CPL_KIND_FLOAT:
        print_number(out, *(const cpl_field_FLOAT *)field);
        break;
    case CPL_KIND_BOOL:
        cpl_text_printf(out, "%s", *(const cpl_field_BOOL *)field ? "true" : "false");
        break;
    case CPL_KIND_CHOICE:
        print_choice(out, setting->unit, *(const cpl_field_CHOICE *)field);
        break;
    case CPL_KIND_STRING:
        print_string(out, *(const cpl_field_STRING *)field);
        break;
    case CPL_KIND_STRINGS:
        print_strings(out, field);
        break;
    case CPL_KIND_WEIGHTS:
        print_weights(out, field);
        break;
    }
}

void cpl_setting_describe(cpl_text *out, const cpl_setting *setting)
{
    cpl_text_printf(out, "%s (", setting->help);
    cpl_setting_allowed(out, setting);
    if (*setting->default_value) cpl_text_printf(out, "; default %s", setting->default_value);
    cpl_text_char(out, ')');
}
