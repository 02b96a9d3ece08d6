/* json_pick.c - see json_pick.h */
#include "io/json_pick.h"

#include <stdbool.h>
#include <string.h>

typedef struct scan {
    const unsigned char *begin, *at, *end;
    const char *why; /* NULL until something is wrong */
    cpl_json_field *fields;
    int n_fields;
} scan;

/* What is still to be matched of each field's path inside the present object; NULL: not here. */
typedef struct wanted {
    const char *rest[CPL_JSON_FIELDS];
} wanted;

static bool wrong(scan *s, const char *why)
{
    if (!s->why) s->why = why;
    return false;
}

static void skip_blanks(scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

static bool take(scan *s, unsigned char c)
{
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

static bool skip_word(scan *s, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, word, length) != 0)
        return wrong(s, "not a JSON value");
    s->at += length;
    return true;
}

static bool skip_digits(scan *s)
{
    const unsigned char *first = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
    return s->at > first ? true : wrong(s, "a number lacks digits");
}

static bool skip_number(scan *s)
{
    take(s, '-');
    if (!take(s, '0') && !skip_digits(s)) return false;
    if (take(s, '.') && !skip_digits(s)) return false;
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+')) take(s, '-');
        return skip_digits(s);
    }
    return true;
}

/* ---- strings ---- */

static bool hex4(scan *s, uint32_t *unit)
{
    *unit = 0;
    if (s->end - s->at < 4) return wrong(s, "an escape is cut off");
    for (int i = 0; i < 4; i++) {
        unsigned char c = s->at[i], low = (unsigned char)(c | 0x20);
        if (c >= '0' && c <= '9')
            *unit = *unit * 16 + (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            *unit = *unit * 16 + (uint32_t)(low - 'a' + 10);
        else
            return wrong(s, "a \\u escape needs four hexadecimal digits");
    }
    s->at += 4;
    return true;
}

/* After "\u": one code point, of two escapes if they are a pair of surrogates. */
static bool unicode_escape(scan *s, cpl_json_field *out)
{
    uint32_t code = 0, low = 0;
    if (!hex4(s, &code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && s->end - s->at >= 6 && s->at[0] == '\\' &&
        s->at[1] == 'u') {
        const unsigned char *back = s->at;
        s->at += 2;
        if (!hex4(s, &low)) return false;
        if (low >= 0xDC00 && low < 0xE000)
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        else
            s->at = back;
    }
    if (!out) return true;
    if (code >= 0xD800 && code < 0xE000) {
        out->lone_surrogates++;
        code = 0xFFFD;
    }
    char bytes[4];
    cpl_text_append(&out->value, bytes, (size_t)cpl_utf8_encode(code, bytes));
    return true;
}

/* After the backslash. */
static bool escape(scan *s, cpl_json_field *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->end) return wrong(s, "a string does not end");
    if (take(s, 'u')) return unicode_escape(s, out);
    const char *name = memchr(names, *s->at, sizeof names - 1);
    if (!name) return wrong(s, "an unknown escape in a string");
    if (out) cpl_text_char(&out->value, values[name - names]);
    s->at++;
    return true;
}

/* Skips a string, or decodes it into `out` unless that is NULL. */
static bool string(scan *s, cpl_json_field *out)
{
    if (!take(s, '"')) return wrong(s, "a string was expected");
    for (;;) {
        const unsigned char *run = s->at;
        while (s->at < s->end && *s->at != '"' && *s->at != '\\' && *s->at >= 0x20) s->at++;
        if (out)
            out->repaired += cpl_utf8_repair(&out->value, (const char *)run, (size_t)(s->at - run));
        if (s->at == s->end) return wrong(s, "a string does not end");
        if (take(s, '"')) return true;
        if (!take(s, '\\')) return wrong(s, "a control character in a string");
        if (!escape(s, out)) return false;
    }
}

/* ---- values ---- */

static bool value(scan *s, int depth, const wanted *inside);

static void reset(cpl_json_field *field, cpl_json_kind kind)
{
    cpl_text_clear(&field->value);
    field->kind            = kind;
    field->lone_surrogates = field->repaired = 0;
}

static bool picked_value(scan *s, int depth, cpl_json_field *field)
{
    unsigned char c = s->at < s->end ? *s->at : 0;
    if (c == '"') {
        reset(field, CPL_JSON_STRING);
        return string(s, field);
    }
    const unsigned char *first = s->at;
    if (!value(s, depth, NULL)) return false;
    bool number = c == '-' || (c >= '0' && c <= '9');
    reset(field, number ? CPL_JSON_NUMBER : CPL_JSON_OTHER);
    if (number) cpl_text_append(&field->value, first, (size_t)(s->at - first));
    return true;
}

/* Looks `name` up among what is wanted here: the field that it completes, or NULL; `below` gets
 * the paths that go on inside its value. A name seen again undoes what was found under it. */
static cpl_json_field *match(scan *s, const wanted *here, const cpl_text *name, wanted *below)
{
    cpl_json_field *hit = NULL;
    memset(below, 0, sizeof *below);
    for (int i = 0; i < s->n_fields; i++) {
        const char *rest = here->rest[i];
        size_t length    = name->length;
        if (!rest || strlen(rest) < length || (length && memcmp(rest, name->bytes, length) != 0))
            continue;
        if (rest[length] == '\0') {
            hit = &s->fields[i];
        } else if (rest[length] == '.') {
            below->rest[i] = rest + length + 1;
            reset(&s->fields[i], CPL_JSON_ABSENT);
        }
    }
    return hit;
}

static bool member(scan *s, int depth, const wanted *here)
{
    wanted below        = {{NULL}};
    cpl_json_field name = {.path = NULL}, *hit = NULL;
    bool good = string(s, here ? &name : NULL);
    if (good && here) hit = match(s, here, &name.value, &below);
    if (name.value.failed) s->fields[0].value.failed = true;
    cpl_text_free(&name.value);
    if (!good) return false;
    skip_blanks(s);
    if (!take(s, ':')) return wrong(s, "a ':' was expected");
    skip_blanks(s);
    return hit ? picked_value(s, depth, hit) : value(s, depth, here ? &below : NULL);
}

static bool object(scan *s, int depth, const wanted *here)
{
    s->at++;
    skip_blanks(s);
    if (take(s, '}')) return true;
    do {
        skip_blanks(s);
        if (!member(s, depth, here)) return false;
        skip_blanks(s);
    } while (take(s, ','));
    return take(s, '}') ? true : wrong(s, "a ',' or '}' was expected");
}

static bool array(scan *s, int depth)
{
    s->at++;
    skip_blanks(s);
    if (take(s, ']')) return true;
    do {
        skip_blanks(s);
        if (!value(s, depth, NULL)) return false;
        skip_blanks(s);
    } while (take(s, ','));
    return take(s, ']') ? true : wrong(s, "a ',' or ']' was expected");
}

/* Recursion is bounded by CPL_JSON_DEPTH. */
static bool value(scan *s, int depth, const wanted *inside)
{
    if (s->at == s->end) return wrong(s, "it ends where a value was expected");
    if (depth == CPL_JSON_DEPTH && (*s->at == '{' || *s->at == '['))
        return wrong(s, "values nested deeper than 256");
    switch (*s->at) {
    case '{':
        return object(s, depth + 1, inside);
    case '[':
        return array(s, depth + 1);
    case '"':
        return string(s, NULL);
    case 't':
        return skip_word(s, "true");
    case 'f':
        return skip_word(s, "false");
    case 'n':
        return skip_word(s, "null");
    default:
        if (*s->at != '-' && (*s->at < '0' || *s->at > '9')) return wrong(s, "not a JSON value");
        return skip_number(s);
    }
}

const char *cpl_json_pick(const char *bytes, size_t length, cpl_json_field *fields, int n_fields,
                          size_t *where)
{
    CPL_ASSERT(n_fields > 0 && n_fields <= CPL_JSON_FIELDS);
    const unsigned char *begin = (const unsigned char *)bytes;
    scan s                     = {begin, begin, begin + length, NULL, fields, n_fields};
    wanted all                 = {{NULL}};
    for (int i = 0; i < n_fields; i++) {
        reset(&fields[i], CPL_JSON_ABSENT);
        all.rest[i] = fields[i].path;
    }
    skip_blanks(&s);
    if (s.at == s.end || *s.at != '{')
        wrong(&s, "not a JSON object");
    else if (value(&s, 0, &all)) {
        skip_blanks(&s);
        if (s.at != s.end) wrong(&s, "something follows the JSON object");
    }
    *where = (size_t)(s.at - s.begin);
    return s.why;
}

bool cpl_json_is_object(const char *bytes, size_t length)
{
    const unsigned char *begin = (const unsigned char *)bytes;
    scan s                     = {begin, begin, begin + length, NULL, NULL, 0};
    skip_blanks(&s);
    if (s.at == s.end || *s.at != '{' || !value(&s, 0, NULL)) return false;
    skip_blanks(&s);
    return s.at == s.end;
}
