/* print.c - value of one setting -> text; see settings.h */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "settings/settings.h"

/* YAML takes these code points only as escapes within double quotes (or as line ends, or as the
 * mark of the byte order). */
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

/* Whether every reader of YAML takes the string for itself when it stands without quotes. */
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

/* The shortest of 15 to 17 digits that reads back to `x`; a mantissa before an exponent gets a
 * point, without which readers of YAML 1.1 take it for a string. */
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
    cpl_setting_wants(out, setting);
    if (*setting->default_value) cpl_text_printf(out, "; default %s", setting->default_value);
    cpl_text_char(out, ')');
}
