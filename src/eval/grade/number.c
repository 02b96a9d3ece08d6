/* number.c - see grading.h: recursive descent, one function a precedence */
#include "eval/grade/grading.h"

#include <math.h>
#include <string.h>

#include "eval/grade/words.h"

enum { DEEPEST = 64 };

typedef struct reader {
    cpl_span text;
    size_t at;
    int depth;
    bool wrong; /* it is no number; what is read from then on means nothing */
} reader;

static double sum(reader *r);

/* The next byte; 0 at the end. */
static char next(const reader *r)
{
    return r->at < r->text.length ? r->text.bytes[r->at] : '\0';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Passes `what` if it is next. The name of a command ends before the first byte that is no
 * letter. */
static bool take(reader *r, const char *what)
{
    size_t end = r->at + strlen(what);
    if (!cpl_span_is_at(r->text, r->at, what)) return false;
    bool named = *what == '\\' && is_letter(r->text.bytes[end - 1]);
    if (named && end < r->text.length && is_letter(r->text.bytes[end])) return false;
    r->at = end;
    return true;
}

static double fail(reader *r)
{
    r->wrong = true;
    return 0;
}

/* A sum up to `end`. */
static double enclosed(reader *r, const char *end)
{
    if (r->depth == DEEPEST) return fail(r);
    r->depth++;
    double value = sum(r);
    r->depth--;
    return take(r, end) ? value : fail(r);
}

/* An argument of a command. */
static double group(reader *r)
{
    return take(r, "{") ? enclosed(r, "}") : fail(r);
}

/* Digits with at most one point, at least one digit. */
static double decimal(reader *r)
{
    double value = 0, unit = 1;
    bool any = false, point = false;
    for (;; r->at++) {
        char c = next(r);
        if (cpl_words_is_digit(c)) {
            value = value * 10 + (c - '0');
            if (point) unit *= 10;
            any = true;
        } else if (c == '.' && !point) {
            point = true;
        } else {
            break;
        }
    }
    return any ? value / unit : fail(r);
}

static double root(reader *r)
{
    double degree = take(r, "[") ? enclosed(r, "]") : 2;
    double of     = group(r);
    return degree == 2 ? sqrt(of) : pow(of, 1 / degree);
}

static bool fraction_is_next(reader *r)
{
    return take(r, "\\frac") || take(r, "\\dfrac") || take(r, "\\tfrac");
}

static double primary(reader *r)
{
    if (take(r, "{")) return enclosed(r, "}");
    if (take(r, "(")) return enclosed(r, ")");
    if (take(r, "\\left(")) return enclosed(r, "\\right)");
    if (take(r, "\\sqrt")) return root(r);
    if (take(r, "\\pi")) return acos(-1);
    if (!fraction_is_next(r)) return decimal(r);
    double above = group(r);
    return above / group(r);
}

static double power(reader *r);

/* A power after any number of signs. */
static double signed_power(reader *r)
{
    double sign = 1;
    for (char c = next(r); c == '+' || c == '-'; c = next(r)) {
        if (c == '-') sign = -sign;
        r->at++;
    }
    return sign * power(r);
}

static double power(reader *r)
{
    double base = primary(r);
    if (!take(r, "^")) return base;
    bool minus      = take(r, "-");
    double exponent = primary(r);
    return pow(base, minus ? -exponent : exponent);
}

/* Whether a factor may follow without a sign: not a decimal that has no digit before its point. */
static bool factor_is_next(const reader *r)
{
    char c = next(r);
    return c == '{' || c == '(' || c == '\\' || cpl_words_is_digit(c);
}

static double product(reader *r)
{
    double value = signed_power(r);
    while (!r->wrong) {
        if (take(r, "\\cdot") || take(r, "\\times") || take(r, "*")) {
            value *= signed_power(r);
        } else if (take(r, "/") || take(r, "\\div")) {
            value /= signed_power(r);
        } else if (factor_is_next(r) && !cpl_span_is_at(r->text, r->at, "\\right")) {
            value *= power(r);
        } else {
            break;
        }
    }
    return value;
}

static double sum(reader *r)
{
    double value = product(r);
    while (!r->wrong && (next(r) == '+' || next(r) == '-')) value += product(r);
    return value;
}

bool cpl_number_read(double *value, cpl_span text)
{
    reader r = {.text = text};
    *value   = sum(&r);
    return !r.wrong && r.at == text.length && isfinite(*value);
}

bool cpl_number_equal(cpl_span a, cpl_span b)
{
    double x, y;
    if (!cpl_number_read(&x, a) || !cpl_number_read(&y, b)) return false;
    return fabs(x - y) <= 1e-9 * fmax(fabs(x), fabs(y));
}
