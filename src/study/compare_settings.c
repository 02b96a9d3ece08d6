/* compare_settings.c - the settings of all runs side by side; see compare.h */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "study/compare_parts.h"

static const char *const seeds[] = {"train.seed", "data.seed"};

/* Names, or with a dot at their end whole sections. */
static const char *const bookkeeping[] = {"checkpoint.",         "log.",
                                          "eval.every",          "compute.threads",
                                          "data.cache",          "data.max_line_bytes",
                                          "data.zstd_window_log"};

static const char *const paths[] = {"data.train", "data.validation", "data.tokenizer",
                                    "data.cache"};

static bool is_among(const char *name, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(list[i]);
        const bool section  = list[i][length - 1] == '.';
        if (section ? strncmp(name, list[i], length) == 0 : strcmp(name, list[i]) == 0) return true;
    }
    return false;
}
#define IS_AMONG(name, list) is_among((name), (list), sizeof(list) / sizeof *(list))

static cpl_setting_role role_of(const char *name)
{
    if (IS_AMONG(name, seeds)) return CPL_ROLE_SEED;
    return IS_AMONG(name, bookkeeping) ? CPL_ROLE_BOOKKEEPING : CPL_ROLE_MATTERS;
}

/* ---- names ---- */

static bool has_name(const cpl_compare *c, const char *name)
{
    return cpl_compare_setting(c, name) != NULL;
}

const cpl_compared_setting *cpl_compare_setting(const cpl_compare *c, const char *name)
{
    for (int64_t i = 0; i < c->n_settings; i++)
        if (strcmp(c->settings[i].name, name) == 0) return &c->settings[i];
    return NULL;
}

const char *cpl_compare_value(const cpl_compare *c, int64_t run, const char *name)
{
    const cpl_compared_setting *s = cpl_compare_setting(c, name);
    return s ? s->texts[run] : "-";
}

/* Every name of any run once: those of a role together, in the order they first come. */
static cpl_status list_names(cpl_compare *c)
{
    int64_t most = 1;
    for (int64_t r = 0; r < c->n_runs; r++) most += c->runs[r].settings.count;
    c->settings = cpl_pool_take(&c->pool, (size_t)most * sizeof *c->settings);
    if (!c->settings) return CPL_ERR_MEMORY;
    for (cpl_setting_role role = CPL_ROLE_MATTERS; role <= CPL_ROLE_BOOKKEEPING; role++)
        for (int64_t r = 0; r < c->n_runs; r++)
            for (int64_t i = 0; i < c->runs[r].settings.count; i++) {
                const char *name = c->runs[r].settings.pairs[i].name;
                if (role_of(name) != role || has_name(c, name)) continue;
                c->settings[c->n_settings++] = (cpl_compared_setting){.name = name, .role = role};
            }
    return CPL_OK;
}

/* ---- values ---- */

/* Where the last two parts of a path of `*length` bytes begin; a slash at its end is cut. */
static const char *last_parts(const char *path, size_t *length)
{
    int parts = 0;
    while (*length > 1 && path[*length - 1] == '/') --*length;
    const char *at = path + *length;
    for (; at > path; at--)
        if (at[-1] == '/' && ++parts == 2) break;
    return at;
}

/* A path, or a list of paths, with no more than the last two parts of each. */
static const char *short_paths(cpl_pool *pool, const char *text)
{
    cpl_text out = {0};
    while (*text) {
        const size_t between = strspn(text, "[], \"");
        cpl_text_append(&out, text, between);
        text += between;
        const size_t length = *text ? strcspn(text, "],\"") : 0;
        size_t shown        = length;
        const char *begin   = last_parts(text, &shown);
        cpl_text_append(&out, begin, (size_t)(text + shown - begin));
        text += length;
    }
    pool->failed       = pool->failed || out.failed;
    const char *result = cpl_pool_copy(pool, out.bytes ? out.bytes : "", out.length);
    cpl_text_free(&out);
    return result;
}

/* Numbers mean the same however they are written; so do the words for nothing. */
static const char *plain_meaning(cpl_pool *pool, const char *text)
{
    char *end          = NULL;
    const double value = strtod(text, &end);
    if (end != text && *end == '\0' && isfinite(value))
        return cpl_pool_printf(pool, "%.17g", value);
    if (strcmp(text, "null") == 0 || strcmp(text, "~") == 0 || *text == '\0') return "unset";
    return text;
}

static void set_values(cpl_compare *c, cpl_compared_setting *s)
{
    for (int64_t r = 0; r < c->n_runs; r++) {
        const char *text = cpl_yaml_flat_get(&c->runs[r].settings, s->name);
        if (!text && c->options.standard) text = c->options.standard(c->options.who, s->name);
        if (text && IS_AMONG(s->name, paths)) text = short_paths(&c->pool, text);
        s->texts[r]    = text ? text : "-";
        s->meanings[r] = plain_meaning(&c->pool, s->texts[r]);
    }
}

static bool has_other_lengths(const cpl_compare *c)
{
    const char *name = "data.seq_len";
    for (int64_t r = 1; r < c->n_runs; r++) {
        const char *one   = cpl_yaml_flat_get(&c->runs[0].settings, name);
        const char *other = cpl_yaml_flat_get(&c->runs[r].settings, name);
        if (!one || !other || strcmp(one, other) != 0) return one != other;
    }
    return false;
}

/* Where every run has a checkpoint that says what it was trained on, that counts. The fingerprint of
 * training data holds the length of sequences too: of other lengths it says nothing. */
static void set_fingerprints(cpl_compare *c, cpl_compared_setting *s,
                             const char *(*of)(const cpl_run_record *run))
{
    for (int64_t r = 0; r < c->n_runs; r++)
        if (!of(&c->runs[r])) return;
    for (int64_t r = 0; r < c->n_runs; r++) {
        s->meanings[r] = of(&c->runs[r]);
        s->texts[r]    = cpl_pool_printf(&c->pool, "%s (%s)", s->texts[r], s->meanings[r]);
    }
}

static const char *data_of(const cpl_run_record *run)
{
    return run->data;
}
static const char *tokenizer_of(const cpl_run_record *run)
{
    return run->tokenizer;
}

static cpl_status fill(cpl_compare *c, cpl_compared_setting *s)
{
    const size_t bytes = (size_t)c->n_runs * sizeof(char *);
    s->texts           = cpl_pool_take(&c->pool, bytes);
    s->meanings        = cpl_pool_take(&c->pool, bytes);
    if (!s->texts || !s->meanings) return CPL_ERR_MEMORY;
    set_values(c, s);
    if (strcmp(s->name, "data.train") == 0 && !has_other_lengths(c))
        set_fingerprints(c, s, data_of);
    if (strcmp(s->name, "data.tokenizer") == 0) set_fingerprints(c, s, tokenizer_of);
    for (int64_t r = 1; r < c->n_runs; r++)
        s->differs = s->differs || strcmp(s->meanings[r], s->meanings[0]) != 0;
    return CPL_OK;
}

cpl_status cpl_compare_settings(cpl_compare *c)
{
    CPL_TRY(list_names(c));
    for (int64_t i = 0; i < c->n_settings; i++) CPL_TRY(fill(c, &c->settings[i]));
    return CPL_OK;
}
