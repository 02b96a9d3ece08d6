/* json_pull.c - see json_pull.h */
#include "io/json_pull.h"

#include <string.h>

#include "base/text.h"

cpl_json_pull cpl_json_pull_start(char *text, size_t length)
{
    return (cpl_json_pull){
        .begin = text, .at = text, .end = text + length, .deepest = CPL_JSON_PULL_DEPTH};
}

bool cpl_json_pull_fail(cpl_json_pull *c, const char *problem)
{
    if (!c->problem) c->problem = problem;
    return false;
}

/* Returns the next byte that is not white space, or -1 at the end or after a problem. */
static int peek(cpl_json_pull *c)
{
    if (c->problem) return -1;
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
    return c->at < c->end ? (unsigned char)*c->at : -1;
}

/* Skips `byte`, or fails with `problem`. */
static bool expect(cpl_json_pull *c, int byte, const char *problem)
{
    if (peek(c) != byte) return cpl_json_pull_fail(c, problem);
    c->at++;
    return true;
}

static bool enter(cpl_json_pull *c, int byte, const char *problem)
{
    if (!expect(c, byte, problem)) return false;
    if (++c->depth > c->deepest) return cpl_json_pull_fail(c, "values nested too deeply");
    return true;
}

/* Returns whether another member or item follows. Passes its comma, or else the closing byte. */
static bool another(cpl_json_pull *c, bool *first, int closing)
{
    int next = peek(c);
    if (next == closing) {
        c->at++;
        c->depth--;
        return false;
    }
    if (!*first && !expect(c, ',', "a comma or the closing bracket is expected here")) return false;
    *first = false;
    return !c->problem;
}

bool cpl_json_pull_object(cpl_json_pull *c)
{
    return enter(c, '{', "an object is expected here");
}

bool cpl_json_pull_member(cpl_json_pull *c, bool *first, char **key)
{
    return another(c, first, '}') && cpl_json_pull_string(c, key) &&
           expect(c, ':', "a colon is expected here");
}

bool cpl_json_pull_array(cpl_json_pull *c)
{
    return enter(c, '[', "an array is expected here");
}

bool cpl_json_pull_item(cpl_json_pull *c, bool *first)
{
    return another(c, first, ']');
}

/* Reads four hexadecimal digits. */
static bool hex4(cpl_json_pull *c, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *digit = c->at < c->end ? memchr(digits, *c->at, sizeof digits - 1) : NULL;
        if (!digit) return cpl_json_pull_fail(c, "four hexadecimal digits are expected here");
        *out = *out << 4 | ((uint32_t)(digit - digits) & 15u);
        c->at++;
    }
    return true;
}

/* Reads the code point after \u, from two such escapes if it is beyond U+FFFF. NUL and half of a
 * surrogate pair are problems unless `lenient`. */
static bool code_point(cpl_json_pull *c, uint32_t *code, bool lenient)
{
    uint32_t low;
    if (!hex4(c, code)) return false;
    if (*code >= 0xD800 && *code < 0xDC00 && c->end - c->at >= 2 && c->at[0] == '\\' &&
        c->at[1] == 'u') {
        char *back = c->at;
        c->at += 2;
        if (!hex4(c, &low)) return false;
        if (low >= 0xDC00 && low < 0xE000)
            *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
        else if (lenient)
            c->at = back;
    }
    if (lenient) return true;
    if (*code == 0) return cpl_json_pull_fail(c, "a NUL character in a string");
    if (*code >= 0xD800 && *code < 0xE000) return cpl_json_pull_fail(c, "half of a surrogate pair");
    return true;
}

static bool escape(cpl_json_pull *c, char **to)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char name        = c->at < c->end ? *c->at++ : '\0';
    const char *spot = name ? strchr(names, name) : NULL;
    if (name == 'u') {
        uint32_t code;
        if (!code_point(c, &code, false)) return false;
        *to += cpl_utf8_encode(code, *to); /* at most 4 bytes, written over the 6 or 12 that were
                                              read */
        return true;
    }
    if (!spot) return cpl_json_pull_fail(c, "an unknown escape in a string");
    *(*to)++ = values[spot - names];
    return true;
}

/* The decoded text is never longer than the text read, so it overwrites only bytes already read. */
bool cpl_json_pull_string(cpl_json_pull *c, char **out)
{
    if (!expect(c, '"', "a string is expected here")) return false;
    char *to = c->at;
    *out     = to;
    while (c->at < c->end) {
        unsigned char byte = (unsigned char)*c->at;
        if (byte < 0x20) return cpl_json_pull_fail(c, "a control character in a string");
        c->at++;
        if (byte == '"') {
            *to = '\0';
            return true;
        }
        if (byte != '\\')
            *to++ = (char)byte;
        else if (!escape(c, &to))
            return false;
    }
    return cpl_json_pull_fail(c, "a string without an end");
}

/* ---- strings that are skipped or repaired, not decoded in place ---- */

static bool repaired_unicode_escape(cpl_json_pull *c, cpl_json_field *out)
{
    uint32_t code;
    char bytes[4];
    if (!code_point(c, &code, true)) return false;
    if (!out) return true;
    if (code >= 0xD800 && code < 0xE000) {
        out->lone_surrogates++;
        code = 0xFFFD;
    }
    cpl_text_append(&out->value, bytes, (size_t)cpl_utf8_encode(code, bytes));
    return true;
}

static bool repaired_escape(cpl_json_pull *c, cpl_json_field *out)
{
    char byte, *to = &byte;
    if (c->at < c->end && *c->at == 'u') {
        c->at++;
        return repaired_unicode_escape(c, out);
    }
    if (!escape(c, &to)) return false;
    if (out) cpl_text_char(&out->value, byte);
    return true;
}

/* Skips a string (`out` NULL), or appends its content, made well-formed, to `out`. Changes no byte
 * of the text. */
static bool repaired_string(cpl_json_pull *c, cpl_json_field *out)
{
    if (!expect(c, '"', "a string is expected here")) return false;
    for (;;) {
        const char *run = c->at;
        while (c->at < c->end && *c->at != '"' && *c->at != '\\' && (unsigned char)*c->at >= 0x20)
            c->at++;
        if (out) out->repaired += cpl_utf8_repair(&out->value, run, (size_t)(c->at - run));
        if (c->at == c->end) return cpl_json_pull_fail(c, "a string without an end");
        if ((unsigned char)*c->at < 0x20)
            return cpl_json_pull_fail(c, "a control character in a string");
        if (*c->at++ == '"') return true;
        if (!repaired_escape(c, out)) return false;
    }
}

static bool skip_string(cpl_json_pull *c)
{
    char *ignored;
    return c->unchanged ? repaired_string(c, NULL) : cpl_json_pull_string(c, &ignored);
}

/* ---- numbers and words ---- */

static bool digit_at(const cpl_json_pull *c)
{
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

bool cpl_json_pull_u64(cpl_json_pull *c, uint64_t *out)
{
    uint64_t value = 0;
    peek(c);
    if (c->problem) return false;
    if (!digit_at(c)) return cpl_json_pull_fail(c, "an unsigned integer is expected here");
    bool zero = *c->at == '0';
    for (int digits = 0; digit_at(c); digits++, c->at++) {
        uint64_t digit = (uint64_t)(*c->at - '0');
        if (zero && digits) return cpl_json_pull_fail(c, "an integer with a leading zero");
        if (value > (UINT64_MAX - digit) / 10)
            return cpl_json_pull_fail(c, "an integer above 2^64-1");
        value = 10 * value + digit;
    }
    if (c->at < c->end && (*c->at == '.' || *c->at == 'e' || *c->at == 'E'))
        return cpl_json_pull_fail(c, "a plain integer is expected here");
    *out = value;
    return true;
}

/* Skips `text` if it comes next. Returns whether it did. */
static bool word(cpl_json_pull *c, const char *text)
{
    size_t length = strlen(text);
    if (peek(c) != text[0] || (size_t)(c->end - c->at) < length) return false;
    if (memcmp(c->at, text, length) != 0) return false;
    c->at += length;
    return true;
}

bool cpl_json_pull_null(cpl_json_pull *c)
{
    return word(c, "null");
}

static bool some_digits(cpl_json_pull *c)
{
    if (!digit_at(c)) return cpl_json_pull_fail(c, "a digit is expected here");
    while (digit_at(c)) c->at++;
    return true;
}

static bool passes(cpl_json_pull *c, char a, char b)
{
    if (c->at == c->end || (*c->at != a && *c->at != b)) return false;
    c->at++;
    return true;
}

/* Skips a number of the JSON grammar. */
static bool skip_number(cpl_json_pull *c)
{
    passes(c, '-', '-');
    bool zero = passes(c, '0', '0');
    if (zero && digit_at(c)) return cpl_json_pull_fail(c, "a number with a leading zero");
    if (!zero && !some_digits(c)) return false;
    if (passes(c, '.', '.') && !some_digits(c)) return false;
    if (!passes(c, 'e', 'E')) return true;
    passes(c, '+', '-');
    return some_digits(c);
}

static bool skip_scalar(cpl_json_pull *c)
{
    int next = peek(c);
    if (next == '"') return skip_string(c);
    if (next == '-' || (next >= '0' && next <= '9')) return skip_number(c);
    if (word(c, "true") || word(c, "false") || word(c, "null")) return true;
    return cpl_json_pull_fail(c, "a value is expected here");
}

static bool skip_key(cpl_json_pull *c, bool *first)
{
    return another(c, first, '}') && skip_string(c) && expect(c, ':', "a colon is expected here");
}

/* Loops over the open brackets without recursion. */
bool cpl_json_pull_skip(cpl_json_pull *c)
{
    bool object[CPL_JSON_DEPTH + 1], first = true;
    int outside = c->depth;
    do {
        int next = peek(c);
        if (next == '{' || next == '[') {
            if (next == '{' ? !cpl_json_pull_object(c) : !cpl_json_pull_array(c)) return false;
            object[c->depth] = next == '{';
            first            = true;
        } else if (!skip_scalar(c)) {
            return false;
        }
        while (c->depth > outside) { /* moves to the next value inside and closes brackets that end
                                        here */
            bool more = object[c->depth] ? skip_key(c, &first) : cpl_json_pull_item(c, &first);
            if (c->problem) return false;
            if (more) break;
            first = false;
        }
    } while (c->depth > outside);
    return true;
}

bool cpl_json_pull_end(cpl_json_pull *c)
{
    if (peek(c) >= 0) return cpl_json_pull_fail(c, "something follows the value");
    return !c->problem;
}

/* ---- a few named values ---- */

typedef struct picker {
    cpl_json_pull pull;
    cpl_json_field *fields, name;
    int n_fields;
} picker;

/* Rest of each field's path to match inside the present object, NULL if the field is not in it. */
typedef struct wanted {
    const char *rest[CPL_JSON_FIELDS];
} wanted;

static void reset(cpl_json_field *field, cpl_json_kind kind)
{
    cpl_text_clear(&field->value);
    field->kind            = kind;
    field->lone_surrogates = field->repaired = 0;
}

/* Looks `name` up among the requested paths at this level. Returns the field that it completes, or
 * NULL, and sets `below` to the paths that continue inside its value. A repeated name discards the
 * earlier values. */
static cpl_json_field *match(const picker *s, const wanted *here, const cpl_text *name,
                             wanted *below)
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

static bool pick_value(cpl_json_pull *c, cpl_json_field *field)
{
    const int next    = peek(c);
    const char *begin = c->at;
    const bool number = next == '-' || (next >= '0' && next <= '9');
    if (next == '"') {
        reset(field, CPL_JSON_STRING);
        return repaired_string(c, field);
    }
    if (!cpl_json_pull_skip(c)) return false;
    reset(field, number ? CPL_JSON_NUMBER : CPL_JSON_OTHER);
    if (number) cpl_text_append(&field->value, begin, (size_t)(c->at - begin));
    return true;
}

/* Reads the members of an object, and enters objects in it only where paths lead. */
static bool pick_members(picker *s, const wanted *here)
{
    static const wanted nothing;
    cpl_json_pull *c = &s->pull;
    if (!cpl_json_pull_object(c)) return false;
    for (bool first = true; another(c, &first, '}');) {
        wanted below;
        cpl_text_clear(&s->name.value);
        if (!repaired_string(c, &s->name) || !expect(c, ':', "a colon is expected here"))
            return false;
        cpl_json_field *hit = match(s, here, &s->name.value, &below);
        if (hit)
            pick_value(c, hit);
        else if (peek(c) == '{' && memcmp(&below, &nothing, sizeof below) != 0)
            pick_members(s, &below);
        else
            cpl_json_pull_skip(c);
    }
    return !c->problem;
}

/* Returns a cursor that changes no byte of the text. */
static cpl_json_pull start_unchanged(const char *bytes, size_t length)
{
    cpl_json_pull c = cpl_json_pull_start((char *)(uintptr_t)bytes, length);
    c.unchanged     = true;
    c.deepest       = CPL_JSON_DEPTH;
    return c;
}

const char *cpl_json_pick(const char *bytes, size_t length, cpl_json_field *fields, int n_fields,
                          size_t *where)
{
    CPL_ASSERT(n_fields > 0 && n_fields <= CPL_JSON_FIELDS);
    picker s   = {start_unchanged(bytes, length), .fields = fields, .n_fields = n_fields};
    wanted all = {{NULL}};
    for (int i = 0; i < n_fields; i++) {
        reset(&fields[i], CPL_JSON_ABSENT);
        all.rest[i] = fields[i].path;
    }
    if (peek(&s.pull) != '{')
        cpl_json_pull_fail(&s.pull, "not a JSON object");
    else if (pick_members(&s, &all))
        cpl_json_pull_end(&s.pull);
    if (s.name.value.failed) fields[0].value.failed = true;
    cpl_text_free(&s.name.value);
    *where = (size_t)(s.pull.at - s.pull.begin);
    return s.pull.problem;
}

bool cpl_json_is_object(const char *bytes, size_t length)
{
    cpl_json_pull c = start_unchanged(bytes, length);
    return peek(&c) == '{' && cpl_json_pull_skip(&c) && cpl_json_pull_end(&c);
}
