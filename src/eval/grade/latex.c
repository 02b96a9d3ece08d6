/* latex.c - see grading.h: equality of two expressions in LaTeX.
 *
 * Both expressions are computed at one point, in the field of p^2 numbers re + im sqrt(-1),
 * p = 2^61 - 2373. Every variable has a fixed value there that follows from its name, so that two
 * expressions of sums, products, quotients and whole powers have the same value if they are equal.
 * Different expressions have the same value with a probability of about 1e-18 (Schwartz and
 * Zippel). A prime has a square root in the field. A power x^n or a function f(x) that has no
 * value there gets a value that follows from its name and the values of its arguments. A
 * rational constant is also kept as a fraction. The grammar is a part of the grammar of SymPy's
 * parse_latex, with its meanings: 1/2x is 1/(2x), x^10 is x^{10}, f(x) is a function. A text
 * outside of the grammar has no value. The parser is a recursive descent, with one function for
 * each precedence. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "eval/grade/grading.h"
#include "eval/grade/words.h"

__extension__ typedef __int128 wide;

enum {
    DEEPEST  = 64,   /* depth of nested brackets */
    LONGEST  = 4096, /* bytes of an expression */
    GREATEST = 4096, /* whole exponents, and numbers before ! */
    DIGITS   = 15,   /* significant digits of a decimal that SymPy keeps in a double */
};
/* p and (p - 1) / 2 are primes. The powers of a number that is not 0, 1 or -1 therefore repeat
 * after (p - 1) / 2 at the earliest. (Modulo 2^61 - 1, the powers of 2 repeat after 61.) p is 3
 * modulo 4. */
enum { SHORT = 2373 }; /* 2^61 - p */
static const uint64_t p                = ((uint64_t)1 << 61) - SHORT;
static const int64_t largest           = (int64_t)1 << 53; /* bound of a fraction's parts */
static const int64_t largest_to_factor = 10 * 1000 * 1000 * 1000ll; /* by 1e5 divisions */

typedef struct value {
    uint64_t re, im;  /* below p */
    int64_t num, den; /* the value as a fraction in lowest terms; den 0: it is no fraction */
    bool variable;    /* true if the value has variables */
    bool decimal;     /* true if a number in the value has a decimal point */
} value;

typedef struct reader {
    cpl_span text;
    size_t at;
    int depth;
    bool lenient; /* true if numbers may be written .5, 5. and 007, unlike in SymPy */
    bool wrong;   /* true if the text has no value; later results mean nothing */
} reader;

static value sum(reader *r);

static value fail(reader *r)
{
    r->wrong = true;
    return (value){0};
}

/* ---- the field ---- */

static uint64_t times_mod(uint64_t a, uint64_t b)
{
    const uint64_t low = ((uint64_t)1 << 61) - 1;
    const wide product = (wide)a * b, once = (product & low) + (product >> 61) * SHORT;
    const uint64_t sum = (uint64_t)(once & low) + (uint64_t)(once >> 61) * SHORT; /* below 2 p */
    return sum < p ? sum : sum - p;
}

static uint64_t power_mod(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1;
    for (; exponent; exponent >>= 1, base = times_mod(base, base))
        if (exponent & 1) result = times_mod(result, base);
    return result;
}

static wide greatest_divisor(wide a, wide b)
{
    while (b) {
        wide rest = a % b;
        a         = b;
        b         = rest;
    }
    return a < 0 ? -a : a;
}

/* Sets the fraction, or den 0 if the fraction is too large. */
static void set_fraction(value *v, wide num, wide den)
{
    wide divisor = greatest_divisor(num, den) * (den < 0 ? -1 : 1);
    num /= divisor;
    den /= divisor;
    bool fits = num <= largest && num >= -largest && den <= largest;
    v->num    = fits ? (int64_t)num : 0;
    v->den    = fits ? (int64_t)den : 0;
}

static value whole(int64_t n)
{
    return (value){.re = (uint64_t)(n < 0 ? n + (int64_t)p : n), .num = n, .den = 1};
}

static bool is_whole(value v, int64_t least, int64_t most)
{
    return v.den == 1 && v.num >= least && v.num <= most;
}

/* Returns a + b. Fails for decimals: SymPy adds them in double, and x + 0.1 - 3 depends on the
 * order. */
static value plus(reader *r, value a, value b)
{
    value v    = {.re = (a.re + b.re) % p, .im = (a.im + b.im) % p};
    v.variable = a.variable || b.variable;
    if (a.decimal || b.decimal) return fail(r);
    if (a.den && b.den)
        set_fraction(&v, (wide)a.num * b.den + (wide)b.num * a.den, (wide)a.den * b.den);
    return v;
}

static value negative(value v)
{
    v.re  = (p - v.re) % p;
    v.im  = (p - v.im) % p;
    v.num = -v.num;
    return v;
}

/* Returns whether v, the product of decimals a and b, is also their product in double. */
static bool exact(value v, value a, value b)
{
    double of_a = (double)a.num / (double)a.den, of_b = (double)b.num / (double)b.den;
    return v.den && (double)v.num / (double)v.den == of_a * of_b;
}

static value times(reader *r, value a, value b)
{
    value v    = {.re = (times_mod(a.re, b.re) + p - times_mod(a.im, b.im)) % p,
                  .im = (times_mod(a.re, b.im) + times_mod(a.im, b.re)) % p};
    v.variable = a.variable || b.variable;
    v.decimal  = a.decimal || b.decimal;
    if (a.den && b.den) set_fraction(&v, (wide)a.num * b.num, (wide)a.den * b.den);
    /* SymPy rounds the product of two decimal coefficients: only one factor may have a decimal. */
    bool beside = (a.den && !b.decimal) || (b.den && !a.decimal);
    return v.decimal && !(a.den && b.den ? exact(v, a, b) : beside) ? fail(r) : v;
}

static value inverse(reader *r, value v)
{
    uint64_t norm = (times_mod(v.re, v.re) + times_mod(v.im, v.im)) % p;
    if (!norm) return fail(r);
    bool rounded = v.decimal &&
                   (!v.den || 1 / ((double)v.num / (double)v.den) != (double)v.den / (double)v.num);
    if (rounded) return fail(r);
    uint64_t scale = power_mod(norm, p - 2);
    v.re           = times_mod(v.re, scale);
    v.im           = times_mod((p - v.im) % p, scale);
    if (v.den) set_fraction(&v, v.den, v.num);
    return v;
}

static value divided(reader *r, value a, value b)
{
    return times(r, a, inverse(r, b));
}

/* Returns a value that follows from a name and two values. */
static value named(cpl_span name, value a, value b)
{
    const uint64_t of[] = {a.re, a.im, b.re, b.im};
    XXH128_hash_t hash = XXH3_128bits_withSeed(of, sizeof of, XXH3_64bits(name.bytes, name.length));
    return (value){hash.low64 % p,           hash.high64 % p,       0, 0,
                   a.variable || b.variable, a.decimal || b.decimal};
}

/* ---- powers ---- */

static value whole_power(reader *r, value base, int64_t exponent)
{
    value v = whole(1);
    if (exponent < 0) base = inverse(r, base);
    for (uint64_t n = (uint64_t)llabs(exponent); n; n >>= 1) {
        if (n & 1) v = times(r, v, base);
        if (n > 1) base = times(r, base, base);
    }
    return v;
}

/* Returns a square root of a prime: r = prime^((p + 1) / 4) if r^2 is the prime, otherwise r
 * sqrt(-1), since r^2 is the negative of the prime. */
static value root_of_prime(int64_t prime)
{
    uint64_t root = power_mod((uint64_t)prime, (p + 1) / 4);
    bool real     = times_mod(root, root) == (uint64_t)prime;
    return (value){.re = real ? root : 0, .im = real ? 0 : root};
}

/* Returns prime^(num/den). */
static value power_of_prime(reader *r, int64_t prime, int64_t num, int64_t den)
{
    int64_t floor = num / den - (num % den < 0), rest = num - floor * den;
    value v = whole_power(r, whole(prime), floor);
    if (!rest) return v;
    int64_t divisor = (int64_t)greatest_divisor(rest, den);
    value root      = den / divisor == 2
                          ? root_of_prime(prime)
                          : named(cpl_span_of("\\sqrt"), whole(prime), whole(den / divisor));
    return times(r, v, whole_power(r, root, rest / divisor));
}

/* Returns n^(num/den), computed prime by prime. */
static value power_of_whole(reader *r, int64_t n, int64_t num, int64_t den)
{
    value v = whole(1);
    if (n < 1 || n > largest_to_factor) return fail(r);
    for (int64_t prime = 2; n > 1; prime++) {
        int64_t times_in = 0;
        if (prime * prime > n) prime = n;
        for (; n % prime == 0; n /= prime) times_in++;
        if (times_in) v = times(r, v, power_of_prime(r, prime, times_in * num, den));
    }
    return v;
}

static value power(reader *r, value base, value exponent)
{
    if (exponent.decimal) return fail(r);
    if (exponent.den == 1) {
        bool possible =
            is_whole(exponent, -GREATEST, GREATEST) && (exponent.num > 0 || !base.den || base.num);
        return possible ? whole_power(r, base, exponent.num) : fail(r);
    }
    if (base.decimal) return fail(r);
    if (!base.den || !exponent.den) return named(cpl_span_of("^"), base, exponent);
    int64_t a = exponent.num, b = exponent.den;
    if (llabs(a) > GREATEST || b > GREATEST) return fail(r);
    return times(r, power_of_whole(r, base.num, a, b), power_of_whole(r, base.den, -a, b));
}

/* ---- tokens ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static char byte_at(const reader *r, size_t at)
{
    return at < r->text.length ? r->text.bytes[at] : '\0';
}

/* Returns the end of the command, a backslash and letters, that begins at `at`. */
static size_t command_end(const reader *r, size_t at)
{
    for (at++; is_letter(byte_at(r, at));) at++;
    return at;
}

/* Returns whether `what` is next, and is not a part of a longer command. */
static bool is_at(const reader *r, const char *what)
{
    bool command = *what == '\\' && is_letter(what[1]);
    return cpl_span_is_at(r->text, r->at, what) &&
           (!command || command_end(r, r->at) == r->at + strlen(what));
}

/* Passes over spaces, \left and \right. */
static void skip(reader *r)
{
    for (;;) {
        size_t end = command_end(r, r->at);
        if ((is_at(r, "\\left") || is_at(r, "\\right")) && byte_at(r, end) != '|')
            r->at = end;
        else if (is_at(r, "\\,") || is_at(r, "\\!"))
            r->at += 2;
        else if (is_at(r, " ") || is_at(r, "\n"))
            r->at++;
        else
            return;
    }
}

/* Skips spaces, and returns the next byte, or 0 at the end. */
static char next(reader *r)
{
    skip(r);
    return byte_at(r, r->at);
}

static bool take_word(reader *r, const char *what)
{
    skip(r);
    if (!is_at(r, what)) return false;
    r->at += strlen(what);
    return true;
}

/* ---- atoms ---- */

/* Reads a sum up to `end`. */
static value enclosed(reader *r, const char *end)
{
    if (r->wrong || r->depth == DEEPEST) return fail(r);
    r->depth++;
    value v = sum(r);
    r->depth--;
    return take_word(r, end) ? v : fail(r);
}

/* Reads an argument of a command. */
static value group(reader *r)
{
    return take_word(r, "{") ? enclosed(r, "}") : fail(r);
}

/* Returns whether a comma before three digits, or a point before a digit, continues the number.
 * Fails if more digits follow a comma: SymPy takes three of them, as factors of their own. */
static bool number_goes_on(reader *r, bool point)
{
    int digits = 0;
    while (digits < 4 && cpl_words_is_digit(byte_at(r, r->at + 1 + (size_t)digits))) digits++;
    if (next(r) == ',' && digits == 4) r->wrong = true;
    return !point &&
           ((next(r) == ',' && digits == 3) || (next(r) == '.' && (digits > 0 || r->lenient)));
}

/* Reads digits, with commas and one point. */
static value number(reader *r)
{
    value v         = whole(0);
    const char head = next(r);
    int64_t unit    = 1;
    int digits      = 0;
    for (;; r->at++) {
        char c = next(r);
        if (cpl_words_is_digit(c)) {
            v.re = (times_mod(v.re, 10) + (uint64_t)(c - '0')) % p;
            if (digits++ < DIGITS) v.num = v.num * 10 + (c - '0');
            if (v.decimal && digits <= DIGITS) unit *= 10;
        } else if (number_goes_on(r, v.decimal)) {
            v.decimal |= c == '.';
        } else {
            break;
        }
    }
    bool written_otherwise = !v.decimal && digits > 1 && head == '0'; /* 007 */
    if ((written_otherwise && !r->lenient) || !digits || (v.decimal && digits > DIGITS))
        return fail(r);
    if (digits > DIGITS) v.den = 0;
    if (!v.decimal) return v;
    v.re = times_mod(v.re, power_mod((uint64_t)unit, p - 2));
    set_fraction(&v, v.num, unit);
    return v;
}

static bool is_fraction(reader *r)
{
    return take_word(r, "\\frac") || take_word(r, "\\dfrac") || take_word(r, "\\tfrac");
}

/* Reads a part of a fraction: a group or a single digit. */
static value digit_or_group(reader *r)
{
    char c = next(r);
    if (!cpl_words_is_digit(c)) return group(r);
    r->at++;
    return whole(c - '0');
}

static value fraction(reader *r)
{
    value above = digit_or_group(r);
    return divided(r, above, digit_or_group(r));
}

static value binomial(reader *r)
{
    value n = group(r), k = group(r), v = whole(1);
    if (!is_whole(n, 0, GREATEST) || !is_whole(k, 0, n.num)) return fail(r);
    for (int64_t i = 1; i <= k.num; i++)
        v = divided(r, times(r, v, whole(n.num - k.num + i)), whole(i));
    return v;
}

/* ---- names ---- */

static const char *const greek[] = {
    "\\alpha", "\\beta",  "\\gamma", "\\delta", "\\epsilon", "\\theta",  "\\lambda", "\\mu",
    "\\pi",    "\\rho",   "\\sigma", "\\tau",   "\\phi",     "\\varphi", "\\psi",    "\\omega",
    "\\Gamma", "\\Delta", "\\Theta", "\\Sigma", "\\Phi",     "\\Omega",
};

/* Passes over a letter or the command of a Greek letter. Returns false for a word and for dx, which
 * are no products of letters. */
static bool take_letter(reader *r)
{
    enum { WORD = 4 };
    char c     = next(r);
    size_t end = r->at;
    for (size_t i = 0; i < sizeof greek / sizeof *greek; i++)
        if (take_word(r, greek[i])) return true;
    while (end < r->at + WORD && is_letter(byte_at(r, end))) end++;
    if (end == r->at || end == r->at + WORD) return false;
    r->at++;
    return c != 'd' || (!is_letter(next(r)) && next(r) != '\\');
}

/* Reads an index, and returns its text: a letter, a number, or a sum in braces. */
static cpl_span subscript(reader *r)
{
    const bool braces  = take_word(r, "{");
    const char c       = next(r);
    const size_t begin = r->at;
    if (braces)
        (void)enclosed(r, "}");
    else if (cpl_words_is_digit(c))
        (void)number(r);
    else if (!take_letter(r))
        r->wrong = true;
    return cpl_span_part(r->text, begin, r->at - (braces && !r->wrong));
}

/* Returns `of`, or a value that follows from `of` and the index that is next. `letter`: `of` is a
 * letter, otherwise a number. */
static value indexed(reader *r, value of, bool letter)
{
    return take_word(r, "_") ? named(subscript(r), of, whole(letter)) : of;
}

/* Reads a variable. A variable before a bracket is a function, unless it is an exponent. */
static value name(reader *r, bool exponent)
{
    (void)next(r);
    size_t begin = r->at;
    if (!take_letter(r)) return fail(r);
    value v    = named(cpl_span_part(r->text, begin, r->at), whole(0), whole(0));
    v.variable = true;
    v          = indexed(r, v, true);
    if (exponent || !take_word(r, "(")) return v;
    value argument = enclosed(r, ")");
    v.variable     = false;
    return argument.decimal ? fail(r) : named(cpl_span_of("()"), v, argument);
}

/* ---- from atoms to sums ---- */

static value root(reader *r)
{
    value degree = take_word(r, "[") ? enclosed(r, "]") : whole(2);
    value of     = group(r);
    return power(r, of, inverse(r, degree));
}

static value primary(reader *r)
{
    if (take_word(r, "{")) return enclosed(r, "}");
    if (take_word(r, "(")) return enclosed(r, ")");
    if (take_word(r, "[")) return enclosed(r, "]");
    if (take_word(r, "\\sqrt")) return root(r);
    if (take_word(r, "\\binom")) return binomial(r);
    if (is_fraction(r)) return fraction(r);
    if (cpl_words_is_digit(next(r)) || (r->lenient && next(r) == '.')) return number(r);
    return name(r, false);
}

static value exponent(reader *r)
{
    value v;
    if (take_word(r, "{")) return enclosed(r, "}");
    if (is_fraction(r)) return fraction(r);
    v = cpl_words_is_digit(next(r)) ? number(r) : name(r, true);
    return next(r) == '_' ? fail(r) : v;
}

static value factorial(reader *r, value n)
{
    value v = whole(1);
    if (!is_whole(n, 0, GREATEST)) return fail(r);
    for (int64_t i = 2; i <= n.num; i++) v = times(r, v, whole(i));
    return v;
}

/* Reads powers, from left to right, and factorials. */
static value factor(reader *r)
{
    value v = primary(r);
    while (!r->wrong && take_word(r, "^")) v = power(r, v, exponent(r));
    while (!r->wrong && take_word(r, "!")) v = factorial(r, v);
    return v;
}

/* Returns whether a factor without a sign before it may be next. */
static bool factor_is_next(reader *r)
{
    char c = next(r);
    if (is_at(r, "\\cdot") || is_at(r, "\\times") || is_at(r, "\\div")) return false;
    return c == '{' || c == '(' || c == '\\' || is_letter(c) || cpl_words_is_digit(c);
}

static bool is_x(value v)
{
    value x = named(cpl_span_of("x"), whole(0), whole(0));
    return v.re == x.re && v.im == x.im;
}

/* Reads factors without signs between them. SymPy takes an x between constants for a sign of
 * multiplication, so 2x\sqrt{3} has no value. */
static value juxtaposed(reader *r)
{
    value v = factor(r), last = v;
    bool x_after_constant = false;
    while (!r->wrong && factor_is_next(r)) {
        value f = factor(r);
        if (x_after_constant && !f.variable) return fail(r);
        x_after_constant = is_x(f) && !last.variable;
        last             = f;
        v                = times(r, v, f);
    }
    return v;
}

/* Reads factors after any number of signs, which hold for the whole product: -2x is -(2x). */
static value signed_factors(reader *r)
{
    bool minus = false;
    for (char c = next(r); c == '+' || c == '-'; c = next(r)) {
        minus ^= c == '-';
        r->at++;
    }
    value v = juxtaposed(r);
    return minus ? negative(v) : v;
}

static value product(reader *r)
{
    value v = signed_factors(r);
    while (!r->wrong) {
        if (take_word(r, "\\cdot") || take_word(r, "\\times") || take_word(r, "*"))
            v = times(r, v, signed_factors(r));
        else if (take_word(r, "/") || take_word(r, "\\div") || take_word(r, ":"))
            v = divided(r, v, signed_factors(r));
        else
            break;
    }
    return v;
}

static value sum(reader *r)
{
    value v = product(r);
    while (!r->wrong && (next(r) == '+' || next(r) == '-')) v = plus(r, v, product(r));
    return v;
}

/* Reads one member of a list. The index of a number is its base: 2516_8. */
static value member(reader *r)
{
    value v = sum(r);
    return indexed(r, v, false);
}

bool cpl_latex_equal(cpl_span a, cpl_span b, bool lenient)
{
    reader x = {.text = a, .lenient = lenient}, y = {.text = b, .lenient = lenient};
    if (a.length > LONGEST || b.length > LONGEST) return false;
    do {
        value of_x = member(&x), of_y = member(&y);
        if (x.wrong || y.wrong || of_x.re != of_y.re || of_x.im != of_y.im) return false;
    } while (next(&x) == ',' && next(&y) == ',' && ++x.at && ++y.at);
    return !next(&x) && !next(&y) && x.at == a.length && y.at == b.length;
}
