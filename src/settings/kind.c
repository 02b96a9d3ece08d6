/* kind.c - one setting: its name, memory, what a value must be, equality; see settings.h */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* 1e12 rather than 1000000000000. */
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

static void want_bounds(cpl_text *out, double low, double high)
{
    if (isfinite(low) || isfinite(high))
        cpl_text_printf(out, isfinite(low) && isfinite(high) ? " from "
                             : isfinite(low)                 ? " of at least "
                                                             : " of at most ");
    if (isfinite(low)) print_limit(out, low);
    if (isfinite(low) && isfinite(high)) cpl_text_printf(out, " to ");
    if (isfinite(high)) print_limit(out, high);
}

static void want_number(cpl_text *out, const cpl_setting *setting, const char *noun)
{
    cpl_text_printf(out, "%s", noun);
    if (*setting->unit) cpl_text_printf(out, " of %s", setting->unit);
    want_bounds(out, setting->low, setting->high);
}

/* "a, b or c" of "a|b|c" */
static void want_choice(cpl_text *out, const char *choices)
{
    for (const char *at = choices; *at;) {
        size_t length = strcspn(at, "|");
        bool last     = at[length] == '\0';
        if (at != choices) cpl_text_printf(out, "%s", last ? " or " : ", ");
        cpl_text_append(out, at, length);
        at += length + !last;
    }
}

void cpl_setting_wants(cpl_text *out, const cpl_setting *setting)
{
    switch (setting->kind) {
    case CPL_KIND_INT:
        want_number(out, setting, "a whole number");
        break;
    case CPL_KIND_FLOAT:
        want_number(out, setting, "a number");
        break;
    case CPL_KIND_BOOL:
        cpl_text_printf(out, "true or false");
        break;
    case CPL_KIND_CHOICE:
        want_choice(out, setting->unit);
        break;
    case CPL_KIND_STRING:
        cpl_text_printf(out, "%s", strcmp(setting->unit, "path") == 0 ? "a path" : "a text");
        break;
    case CPL_KIND_STRINGS:
        cpl_text_printf(out, "a list of %s", *setting->unit ? setting->unit : "texts");
        break;
    case CPL_KIND_WEIGHTS:
        cpl_text_printf(out, "pairs {name: number, ...}, each number");
        want_bounds(out, setting->low, setting->high);
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
