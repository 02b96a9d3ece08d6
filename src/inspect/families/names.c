#include "inspect/families/names.h"

#include <ctype.h>
#include <string.h>

enum { MAX_DIGITS = 9 };

/* ---- numbers and layers ---- */

/* The number at `text`; the digits' count, 0 where there is none or too many. */
static size_t number_at(const char *text, int64_t *number)
{
    size_t digits = 0;
    *number       = 0;
    while (digits <= MAX_DIGITS && isdigit((unsigned char)text[digits]))
        *number = *number * 10 + (text[digits++] - '0');
    return digits <= MAX_DIGITS ? digits : 0;
}

bool cpl_name_layer(const char *name, size_t *prefix, int64_t *layer)
{
    static const char *const markers[] = {"layers.", "blocks.", "decoder_layer.",
                                          "h.",      "block.",  "blk."};
    for (const char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
        for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
            size_t length = strlen(markers[i]);
            if (strncmp(at, markers[i], length) != 0) continue;
            size_t digits = number_at(at + length, layer);
            if (!digits || at[length + digits] != '.') continue;
            *prefix = (size_t)(at - name) + length + digits + 1;
            return true;
        }
    return false;
}

bool cpl_name_is_mtp(const char *name)
{
    return strncmp(name, "mtp.", 4) == 0 || strstr(name, ".mtp.") || strstr(name, ".mtp_") ||
           strncmp(name, "mtp_", 4) == 0;
}

/* ---- lists of words in names ---- */

bool cpl_name_is_text(const char *name)
{
#define CPL_NOT_TEXT(text)                                                                         \
    if (strstr(name, text)) return false;
#include "inspect/families/families.def"
    return true;
}

static bool is_routed(const char *suffix)
{
#define CPL_NOT_ROUTED(text)                                                                       \
    if (strstr(suffix, text)) return false;
#include "inspect/families/families.def"
    return true;
}

const char *cpl_name_unmeasured(const char *suffix)
{
#define CPL_UNMEASURED(text, reason)                                                               \
    if (strstr(suffix, text)) return reason;
#include "inspect/families/families.def"
    return NULL;
}

bool cpl_name_projects(const char *suffix)
{
#define CPL_PROJECTED(text)                                                                        \
    if (strstr(suffix, text)) return true;
#include "inspect/families/families.def"
    return false;
}

bool cpl_words_have(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = words; *at;) {
        size_t here = strcspn(at, " ");
        if (here == length && strncmp(at, word, length) == 0) return true;
        at += here + strspn(at + here, " ");
    }
    return false;
}

/* ---- stems ---- */

static cpl_name_pattern stem_of(const char *text, size_t length, bool router)
{
    cpl_name_pattern stem = {.any_block = *text == '*', .router = router};
    stem.text             = text + stem.any_block;
    stem.length           = length - stem.any_block;
    char last             = stem.text[stem.length - 1];
    if (last == '+' || last == '-') {
        stem.mark = last;
        stem.length--;
    }
    stem.hole = 0;
    while (stem.hole < stem.length && stem.text[stem.hole] != '{') stem.hole++;
    return stem;
}

static bool same_stem(const cpl_name_pattern *a, const cpl_name_pattern *b)
{
    return a->length == b->length && a->any_block == b->any_block && a->router == b->router &&
           a->mark == b->mark && strncmp(a->text, b->text, a->length) == 0;
}

static void add_words(cpl_name_patterns *stems, const char *words, bool router)
{
    for (const char *at = words; *at;) {
        size_t length         = strcspn(at, " ");
        cpl_name_pattern stem = stem_of(at, length, router);
        bool known            = false;
        for (int i = 0; i < stems->count; i++) known |= same_stem(&stems->all[i], &stem);
        if (!known) stems->all[stems->count++] = stem;
        at += length + strspn(at + length, " ");
    }
}

static int n_words(const char *words)
{
    int count = *words != 0;
    for (const char *at = words; *at; at++) count += *at == ' ';
    return count;
}

cpl_name_patterns cpl_name_patterns_make(cpl_pool *pool, const cpl_family *family)
{
    int most = 0;
    for (int64_t i = 0; i < cpl_n_families; i++)
        most += n_words(cpl_families[i].router) + n_words(cpl_families[i].gate);
    cpl_name_patterns stems = {cpl_pool_take(pool, 2 * (size_t)most * sizeof(cpl_name_pattern)), 0,
                               0};
    if (!stems.all) return stems;
    if (family) {
        add_words(&stems, family->router, true);
        add_words(&stems, family->gate, false);
        stems.own = stems.count;
    }
    for (int64_t i = 0; i < cpl_n_families; i++) {
        add_words(&stems, cpl_families[i].router, true);
        add_words(&stems, cpl_families[i].gate, false);
    }
    return stems;
}

static bool words_have_stem(const char *words, const cpl_name_pattern *stem)
{
    for (const char *at = words; *at;) {
        size_t length        = strcspn(at, " ");
        cpl_name_pattern one = stem_of(at, length, stem->router);
        if (same_stem(&one, stem)) return true;
        at += length + strspn(at + length, " ");
    }
    return false;
}

const cpl_family *cpl_name_patterns_in_turns(const cpl_name_pattern *router,
                                             const cpl_name_pattern *gate)
{
    for (int64_t i = 0; i < cpl_n_families; i++) {
        const cpl_family *one = &cpl_families[i];
        if (cpl_words_have(one->flags, "interleaved") && words_have_stem(one->router, router) &&
            words_have_stem(one->gate, gate))
            return one;
    }
    return NULL;
}

/* ---- one name against the stems ---- */

static bool ending_of(cpl_name_match *hit, const char *rest)
{
#define CPL_ENDING(text, kind)                                                                     \
    if (strcmp(rest, text) == 0) {                                                                 \
        hit->ending = CPL_ENDING_##kind;                                                           \
        return true;                                                                               \
    }
#define CPL_METHOD(text, name)                                                                     \
    if (strcmp(rest, text) == 0) {                                                                 \
        hit->ending = CPL_ENDING_METHOD;                                                           \
        hit->method = name;                                                                        \
        return true;                                                                               \
    }
#include "inspect/families/families.def"
    return false;
}

/* Whether `at` is the stem, with a number for {e} and a known ending. */
static bool stem_is_at(cpl_name_match *hit, const cpl_name_pattern *stem, const char *at)
{
    if (*at != *stem->text || strncmp(at, stem->text, stem->hole) != 0) return false;
    at += stem->hole;
    if (stem->hole == stem->length) return ending_of(hit, at);
    size_t digits      = number_at(at, &hit->expert);
    const char *behind = stem->text + stem->hole + strlen("{e}");
    size_t length      = stem->length - stem->hole - strlen("{e}");
    if (!digits || strncmp(at + digits, behind, length) != 0) return false;
    hit->digits = at;
    return ending_of(hit, at + digits + length);
}

static bool stem_is_in(cpl_name_match *hit, const cpl_name_pattern *stem, const char *suffix)
{
    if (stem_is_at(hit, stem, suffix)) return true;
    if (!stem->any_block) return false;
    for (const char *dot = strchr(suffix, '.'); dot; dot = strchr(dot + 1, '.'))
        if (stem_is_at(hit, stem, dot + 1)) return true;
    return false;
}

/* "layer.1." of Switch, which stands between the layer's number and the names. */
static const char *without_sublayer(const char *suffix)
{
    int64_t number;
    if (strncmp(suffix, "layer.", 6) != 0) return suffix;
    size_t digits = number_at(suffix + 6, &number);
    return digits && suffix[6 + digits] == '.' ? suffix + 6 + digits + 1 : suffix;
}

bool cpl_name_patterns_find(cpl_name_match *hit, const cpl_name_patterns *stems, const char *suffix)
{
    const char *name = without_sublayer(suffix);
    for (int i = 0; i < stems->count; i++) {
        *hit = (cpl_name_match){.stem = i};
        if (stem_is_in(hit, &stems->all[i], name)) return is_routed(suffix);
    }
    return false;
}
