/* settings.c - the settings of all runs side by side; see compare.h */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "compare/internal.h"

static const char *const seeds[] = {"train.seed", "data.seed"};

/* Names, or with a dot at their end whole sections. */
static const char *const bookkeeping[] = {"checkpoint.",         "log.",
                                          "eval.every",          "eval.tasks",
                                          "eval.tasks_every",    "eval.tasks_limit",
                                          "eval.tasks_data",     "eval.prompts",
                                          "eval.prompt_tokens",  "compute.threads",
                                          "train.recompute",     "compute.device",
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

/* The hash of the content of the files that a setting names. The fingerprint of training data
 * includes the length of sequences: data of different lengths cannot be compared by it. */
typedef struct content {
    const char *setting;
    size_t at; /* of the hash in a cpl_run_record */
    bool holds_length;
} content;

static const content contents[] = {
    {"data.train", offsetof(cpl_run_record, data), true},
    {"data.validation", offsetof(cpl_run_record, held_out), false},
    {"data.tokenizer", offsetof(cpl_run_record, tokenizer), false},
};
enum { CONTENTS = sizeof contents / sizeof *contents };

static const char *hash_of(const cpl_run_record *run, const content *of)
{
    return *(const char *const *)((const char *)run + of->at);
}

static const content *content_of(const char *name)
{
    for (int i = 0; i < CONTENTS; i++)
        if (strcmp(contents[i].setting, name) == 0) return &contents[i];
    return NULL;
}

const cpl_compared_setting *cpl_compare_setting(const cpl_compare *c, const char *name)
{
    for (int64_t i = 0; i < c->n_settings; i++)
        if (strcmp(c->settings[i].name, name) == 0) return &c->settings[i];
    return NULL;
}

/* Every name of any run once: those of a role together, in the order they first come. */
static cpl_status list_names(cpl_compare *c)
{
    int64_t most = CONTENTS;
    for (int64_t r = 0; r < c->n_runs; r++) most += c->runs[r].settings.count;
    c->settings = cpl_pool_take(&c->pool, (size_t)most * sizeof *c->settings);
    if (!c->settings) return CPL_ERR_MEMORY;
    for (cpl_setting_role role = CPL_ROLE_MATTERS; role <= CPL_ROLE_BOOKKEEPING; role++)
        for (int64_t r = 0; r < c->n_runs; r++)
            for (int64_t i = 0; i < c->runs[r].settings.count; i++) {
                const char *name = c->runs[r].settings.pairs[i].name;
                if (role_of(name) != role || cpl_compare_setting(c, name)) continue;
                c->settings[c->n_settings++] = (cpl_compared_setting){.name = name, .role = role};
            }
    return CPL_OK;
}

/* Content that is known is compared though no configuration names it. */
static void list_contents(cpl_compare *c)
{
    for (int i = 0; i < CONTENTS; i++) {
        bool known = false;
        for (int64_t r = 0; r < c->n_runs; r++) known = known || hash_of(&c->runs[r], &contents[i]);
        if (!known || cpl_compare_setting(c, contents[i].setting)) continue;
        memmove(c->settings + 1, c->settings, (size_t)c->n_settings++ * sizeof *c->settings);
        c->settings[0] = (cpl_compared_setting){.name = contents[i].setting};
    }
}

/* ---- values ---- */

/* The place of the last two parts of a path of `*length` bytes; a slash at its end is cut. */
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
static const char *plain_meaning(cpl_pool *pool, const char *name, const char *text)
{
    static const char *const nothing[] = {"", "null", "~", "[]", "{}"};
    char *end                          = NULL;
    const double value                 = strtod(text, &end);
    if (end != text && *end == '\0' && isfinite(value))
        return cpl_pool_printf(pool, "%.17g", value);
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        if (strcmp(text, nothing[i]) == 0) return "unset";
    /* Older versions left it so in a run of one process. */
    if (strcmp(name, "balance.scope") == 0 && strcmp(text, "auto") == 0) return "micro";
    /* So were all runs of older versions. */
    if (strcmp(name, "compute.activations") == 0 && strcmp(text, "auto") == 0) return "f32";
    return text;
}

static void set_values(cpl_compare *c, cpl_compared_setting *s)
{
    for (int64_t r = 0; r < c->n_runs; r++) {
        const char *text = cpl_yaml_flat_get(&c->runs[r].settings, s->name);
        if (!text && c->options.default_value) text = c->options.default_value(s->name);
        if (text && IS_AMONG(s->name, paths)) text = short_paths(&c->pool, text);
        s->texts[r]    = text ? text : "-";
        s->meanings[r] = plain_meaning(&c->pool, s->name, s->texts[r]);
    }
}

static cpl_status set_marks(cpl_compare *c, cpl_compared_setting *s)
{
    const content *of = content_of(s->name);
    if (!of) return CPL_OK;
    s->marks = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof(char *));
    if (!s->marks) return CPL_ERR_MEMORY;
    for (int64_t r = 0; r < c->n_runs; r++) {
        s->marks[r] = hash_of(&c->runs[r], of);
        if (s->marks[r])
            s->texts[r] = cpl_pool_printf(&c->pool, "%s (%s)", s->texts[r], s->marks[r]);
    }
    return CPL_OK;
}

static cpl_status fill(cpl_compare *c, cpl_compared_setting *s)
{
    const size_t bytes = (size_t)c->n_runs * sizeof(char *);
    s->texts           = cpl_pool_take(&c->pool, bytes);
    s->meanings        = cpl_pool_take(&c->pool, bytes);
    if (!s->texts || !s->meanings) return CPL_ERR_MEMORY;
    set_values(c, s);
    return set_marks(c, s);
}

/* ---- comparing ---- */

static bool same_length(const cpl_compare *c, int64_t a, int64_t b)
{
    const cpl_compared_setting *length = cpl_compare_setting(c, "data.seq_len");
    return !length || strcmp(length->meanings[a], length->meanings[b]) == 0;
}

bool cpl_compare_same(const cpl_compare *c, const cpl_compared_setting *s, int64_t a, int64_t b)
{
    if (s->marks && s->marks[a] && s->marks[b] &&
        (!content_of(s->name)->holds_length || same_length(c, a, b)))
        return strcmp(s->marks[a], s->marks[b]) == 0;
    return strcmp(s->meanings[a], s->meanings[b]) == 0;
}

/* Compares all pairs. Equality of marks is not transitive: two runs may be the same as a third and
 * not the same as each other. */
static bool differs(const cpl_compare *c, const cpl_compared_setting *s)
{
    const int64_t last = s->marks ? c->n_runs : 1;
    for (int64_t a = 0; a < last; a++)
        for (int64_t b = a + 1; b < c->n_runs; b++)
            if (!cpl_compare_same(c, s, a, b)) return true;
    return false;
}

cpl_status cpl_compare_settings(cpl_compare *c)
{
    CPL_TRY(list_names(c));
    list_contents(c);
    for (int64_t i = 0; i < c->n_settings; i++) CPL_TRY(fill(c, &c->settings[i]));
    for (int64_t i = 0; i < c->n_settings; i++)
        c->settings[i].differs = differs(c, &c->settings[i]);
    return CPL_OK;
}
