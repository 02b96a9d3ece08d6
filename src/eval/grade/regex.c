/* regex.c - see grading.h: regular expressions */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "eval/grade/grading.h"

#include <pcre2.h>
#include <string.h>

#include "base/arena.h"
#include "eval/grade/words.h"

enum { HEAP_KIB = 64 * 1024 };

/* The objects of PCRE2 that a pattern needs. Every pointer may be NULL. */
typedef struct machine {
    pcre2_general_context *memory;
    pcre2_compile_context *how;
    pcre2_match_context *limits;
    pcre2_code *code;
    pcre2_match_data *match;
} machine;

static void *take_memory(size_t bytes, void *ctx)
{
    (void)ctx;
    return cpl_alloc(bytes);
}

static void give_back(void *memory, void *ctx)
{
    (void)ctx;
    cpl_free(memory);
}

static void machine_free(machine *m)
{
    pcre2_match_data_free(m->match);
    pcre2_code_free(m->code);
    pcre2_match_context_free(m->limits);
    pcre2_compile_context_free(m->how);
    pcre2_general_context_free(m->memory);
}

static cpl_status no_memory(const char *pattern)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the pattern %.200s", pattern);
}

/* Compiles a pattern. `repair`: the text may be ill-formed, and ill-formed parts match nothing. */
static cpl_status compile(machine *m, const char *pattern, bool repair)
{
    int error;
    size_t place;
    PCRE2_UCHAR why[200] = "";
    const uint32_t options =
        PCRE2_UTF | PCRE2_UCP | (repair ? PCRE2_MATCH_INVALID_UTF : 0) | PCRE2_NEVER_BACKSLASH_C;
    m->memory = pcre2_general_context_create(take_memory, give_back, NULL);
    if (m->memory) m->how = pcre2_compile_context_create(m->memory);
    if (m->memory) m->limits = pcre2_match_context_create(m->memory);
    if (!m->how || !m->limits) return no_memory(pattern);
    pcre2_set_newline(m->how, PCRE2_NEWLINE_LF);
    pcre2_set_match_limit(m->limits, CPL_REGEX_STEPS);
    pcre2_set_depth_limit(m->limits, CPL_REGEX_DEPTH);
    pcre2_set_heap_limit(m->limits, HEAP_KIB);
    m->code = pcre2_compile((PCRE2_SPTR)pattern, strlen(pattern), options, &error, &place, m->how);
    if (!m->code && error == PCRE2_ERROR_HEAP_FAILED) return no_memory(pattern);
    if (!m->code) {
        pcre2_get_error_message(error, why, sizeof why);
        return CPL_FAIL(CPL_ERR_INPUT, "the pattern %.200s is wrong at its byte %zu: %s", pattern,
                        place + 1, (const char *)why);
    }
    m->match = pcre2_match_data_create_from_pattern(m->code, m->memory);
    return m->match ? CPL_OK : no_memory(pattern);
}

cpl_status cpl_regex_check(const char *pattern)
{
    machine m               = {0};
    const cpl_status status = compile(&m, pattern, false);
    machine_free(&m);
    return status;
}

/* ---- matching ---- */

static cpl_status failure(int error, const char *pattern)
{
    PCRE2_UCHAR why[200] = "";
    if (error == PCRE2_ERROR_NOMEMORY) return no_memory(pattern);
    if (error == PCRE2_ERROR_MATCHLIMIT || error == PCRE2_ERROR_DEPTHLIMIT ||
        error == PCRE2_ERROR_HEAPLIMIT)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the pattern %.200s takes more than %d steps on a text: write it so that "
                        "it goes over the text once",
                        pattern, CPL_REGEX_STEPS);
    pcre2_get_error_message(error, why, sizeof why);
    return CPL_FAIL(CPL_ERR_INPUT, "the pattern %.200s: %s", pattern, (const char *)why);
}

static bool is_ill_formed(int error)
{
    return error <= PCRE2_ERROR_UTF8_ERR1 && error >= PCRE2_ERROR_UTF8_ERR21;
}

static int match_at(const machine *m, cpl_span text, size_t from, uint32_t options)
{
    const char *bytes = text.length ? text.bytes : "";
    return pcre2_match(m->code, (PCRE2_SPTR)bytes, text.length, from, options, m->match, m->limits);
}

/* Sets the answer to the capture of the match: see cpl_regex_find. */
static bool captured(cpl_span *answer, const machine *m, cpl_span text)
{
    const size_t *at      = pcre2_get_ovector_pointer(m->match);
    const uint32_t groups = pcre2_get_ovector_count(m->match) - 1;
    uint32_t group        = groups > 0 ? 1 : 0;
    while (groups > 1 && group <= groups && at[2 * group] == at[2 * group + 1]) group++;
    if (group > groups) return false;
    const bool set = at[2 * group] != PCRE2_UNSET && at[2 * group] <= at[2 * group + 1];
    *answer        = cpl_span_part(text, set ? at[2 * group] : 0, set ? at[2 * group + 1] : 0);
    return true;
}

/* Finds the match after the current match. After an empty match, tries a match at the same place
 * that is not empty, then a match after the next character. */
static int match_next(const machine *m, cpl_span text, uint32_t options)
{
    const size_t *at = pcre2_get_ovector_pointer(m->match);
    size_t from      = at[1];
    uint32_t point;
    if (at[1] > at[0]) return match_at(m, text, from, options);
    const int count = match_at(m, text, from, options | PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED);
    if (count != PCRE2_ERROR_NOMATCH || from == text.length) return count;
    from += cpl_words_next(&point, text, from);
    return match_at(m, text, from, options);
}

static cpl_status find(bool *found, cpl_span *answer, const cpl_regex *regex, cpl_span text,
                       bool repair, bool *ill_formed)
{
    machine m              = {0};
    cpl_status status      = compile(&m, regex->pattern, repair);
    int count              = status == CPL_OK ? match_at(&m, text, 0, 0) : 0;
    *ill_formed            = is_ill_formed(count);
    const uint32_t options = repair ? 0 : PCRE2_NO_UTF_CHECK;
    while (status == CPL_OK && count > 0) {
        *found = captured(answer, &m, text);
        count  = regex->last ? match_next(&m, text, options) : PCRE2_ERROR_NOMATCH;
    }
    if (status == CPL_OK && count < 0 && count != PCRE2_ERROR_NOMATCH && !*ill_formed)
        status = failure(count, regex->pattern);
    machine_free(&m);
    return status;
}

cpl_status cpl_regex_find(bool *found, cpl_span *answer, const cpl_regex *regex, cpl_span text)
{
    bool ill_formed;
    *found  = false;
    *answer = (cpl_span){0};
    CPL_TRY(find(found, answer, regex, text, false, &ill_formed));
    if (ill_formed) CPL_TRY(find(found, answer, regex, text, true, &ill_formed));
    if (!*found) *answer = (cpl_span){0};
    if (*found && !regex->keep_space) *answer = cpl_words_strip(*answer);
    return CPL_OK;
}

/* ---- substitutions ---- */

/* Makes one substitution in the text. `repair` as in compile. */
static void substitute(cpl_text *text, const cpl_substitution *step, cpl_text *spare, bool repair)
{
    machine m        = {0};
    cpl_span s       = cpl_span_text(text);
    size_t length    = 0;
    const bool ready = compile(&m, step->pattern, repair) == CPL_OK;
    int count        = PCRE2_ERROR_NOMEMORY;
    cpl_text_clear(spare);
    while (ready && count == PCRE2_ERROR_NOMEMORY && !spare->failed) {
        cpl_text_append(spare, s.bytes, s.length); /* grows `spare` until the result fits */
        length = spare->capacity;
        count  = pcre2_substitute(m.code, (PCRE2_SPTR)s.bytes, s.length, 0, PCRE2_SUBSTITUTE_GLOBAL,
                                  m.match, m.limits, (PCRE2_SPTR)step->with, PCRE2_ZERO_TERMINATED,
                                  (PCRE2_UCHAR *)spare->bytes, &length);
    }
    machine_free(&m);
    if (is_ill_formed(count) && !repair) {
        substitute(text, step, spare, true);
        return;
    }
    if (count == PCRE2_ERROR_NOMEMORY) text->failed = true;
    if (count <= 0) return;
    spare->length = length;
    cpl_words_swap(text, spare);
}

void cpl_regex_substitute(cpl_text *text, const cpl_substitution *steps, size_t n, cpl_text *spare)
{
    for (const cpl_substitution *step = steps; step < steps + n; step++) {
        if (!step->pattern)
            cpl_words_replace(text, step->what, step->with, spare);
        else if (text->length &&
                 (!*step->what || cpl_span_find(cpl_span_text(text), 0, step->what) != CPL_NOWHERE))
            substitute(text, step, spare, false);
    }
}
