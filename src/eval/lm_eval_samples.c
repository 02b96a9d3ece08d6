/* lm_eval_samples.c - see lm_eval.h: answered questions as lines of a samples file */
#include <sha256.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "eval/lm_eval.h"
#include "eval/run/kinds.h"
#include "io/json.h"

/* ---- values ---- */

/* Any value as a text, as they write their responses: a string as it is, null as null. */
static json_t *as_text(const json_t *value)
{
    if (!value || json_is_null(value)) return json_null();
    if (json_is_string(value)) return json_string(json_string_value(value));
    char *text   = json_dumps(value, JSON_ENCODE_ANY);
    json_t *made = text ? json_string(text) : NULL;
    cpl_json_text_free(text);
    return made;
}

/* The row of an id "12", "law/12", "law/12#0". */
static int64_t row_of(const json_t *id)
{
    const char *text  = json_string_value(id);
    const char *slash = text ? strrchr(text, '/') : NULL;
    return text ? strtoll(slash ? slash + 1 : text, NULL, 10) : json_integer_value(id);
}

static json_t *digest(const json_t *text)
{
    return cpl_sample_digest(json_is_string(text) ? json_string_value(text) : "", NULL);
}

/* Of a document as Python's json.dumps(doc, indent=2) writes it. */
static json_t *document_digest(const json_t *document)
{
    char *text   = json_dumps(document, JSON_INDENT(2));
    json_t *made = text ? cpl_sample_digest(text, NULL) : NULL;
    cpl_json_text_free(text);
    return made;
}

/* ---- requests ---- */

json_t *cpl_lm_eval_generation(const cpl_lm_eval_task *t)
{
    bool failed  = false;
    json_t *made = json_object();
    json_t *list = cpl_json_open(&failed, made, "until", json_array());
    for (int64_t i = 0; i < t->form->n_until; i++)
        cpl_json_add(&failed, list, cpl_json_words(t->form->until[i]));
    cpl_json_put(&failed, made, "max_gen_toks", json_integer(t->max_gen_toks));
    cpl_json_put(&failed, made, "do_sample", json_false());
    cpl_json_put(&failed, made, "temperature", json_real(0));
    if (!failed) return made;
    json_decref(made);
    return NULL;
}

/* The context of option i: equal ones are stored once, and where neither all are equal nor all
 * differ, the hash of context and continuation says which it is. NULL: it is not known. */
static json_t *context_of(const json_t *sample, size_t i)
{
    const json_t *contexts = json_object_get(sample, "contexts");
    const size_t n         = json_array_size(contexts);
    if (n == 1) return json_array_get(contexts, 0);
    const json_t *continuations = json_object_get(sample, "continuations");
    if (n == json_array_size(continuations)) return json_array_get(contexts, i);
    const char *hash = json_string_value(json_array_get(json_object_get(sample, "sha256"), i));
    const char *continuation = json_string_value(json_array_get(continuations, i));
    for (size_t k = 0; k < n && hash && continuation; k++) {
        json_t *context = json_array_get(contexts, k);
        json_t *sum     = cpl_sample_digest(json_string_value(context), continuation);
        const bool is   = sum && strcmp(json_string_value(sum), hash) == 0;
        json_decref(sum);
        if (is) return context;
    }
    return NULL;
}

static void put_request(bool *failed, json_t *arguments, size_t i, const json_t *context,
                        json_t *argument)
{
    char name[40];
    snprintf(name, sizeof name, "gen_args_%zu", i);
    cpl_json_put(failed, arguments, name,
                 json_pack("{s:o,s:o}", "arg_0", as_text(context), "arg_1", argument));
}

/* [log-likelihood, is_greedy] as texts; the second is not known. */
static json_t *response(const json_t *loglik)
{
    char text[40];
    snprintf(text, sizeof text, "%.9g", json_number_value(loglik));
    return json_pack("[s,n]", text);
}

static void put_options(bool *failed, json_t *line, const json_t *sample)
{
    json_t *arguments = cpl_json_open(failed, line, "arguments", json_object());
    json_t *all       = cpl_json_open(failed, line, "resps", json_array());
    json_t *filtered  = cpl_json_open(failed, line, "filtered_resps", json_array());
    json_t *loglik;
    size_t i;
    json_array_foreach(json_object_get(sample, "loglik"), i, loglik)
    {
        put_request(failed, arguments, i, context_of(sample, i),
                    as_text(json_array_get(json_object_get(sample, "continuations"), i)));
        cpl_json_add(failed, all, json_pack("[o]", response(loglik)));
        cpl_json_add(failed, filtered, response(loglik));
    }
}

/* The first metric of a filter. */
static const cpl_lm_eval_metric *first_of(const cpl_lm_eval_task *t, const char *filter)
{
    int64_t i = 0;
    while (strcmp(t->metric[i].filter, filter) != 0) i++;
    return &t->metric[i];
}

/* What the filter takes out of the text. Only a further answer has a member of its own. */
static json_t *extracted(const cpl_lm_eval_task *t, const json_t *sample, const char *filter)
{
    const char *name    = first_of(t, filter)->key.name;
    const json_t *first = json_object_get(sample, "answer");
    const json_t *found = json_object_get(sample, "extracted");
    if (t->form->filters) return as_text(json_object_get(first, filter));
    if (strcmp(name, t->form->answers[0].name) != 0)
        return as_text(json_object_get(sample, cpl_sample_key(name)));
    return as_text(found ? found : first);
}

static void put_text(bool *failed, json_t *line, const cpl_lm_eval_task *t, const json_t *sample,
                     const char *filter)
{
    json_t *arguments = cpl_json_open(failed, line, "arguments", json_object());
    put_request(failed, arguments, 0, json_object_get(sample, "prompt"), cpl_lm_eval_generation(t));
    cpl_json_put(failed, line, "resps",
                 json_pack("[[o]]", as_text(json_object_get(sample, "text"))));
    cpl_json_put(failed, line, "filtered_resps", json_pack("[o]", extracted(t, sample, filter)));
}

/* ---- lines ---- */

/* The names of the metrics that have this filter, and at the end of the line their values. */
static void put_metrics(bool *failed, json_t *line, const cpl_lm_eval_task *t, const json_t *sample,
                        const char *filter, bool values)
{
    const char *headline = t->of->what->profile->metrics.at[0];
    json_t *names        = values ? NULL : cpl_json_open(failed, line, "metrics", json_array());
    for (int64_t i = 0; i < t->n_metrics; i++) {
        const cpl_lm_eval_metric *m = &t->metric[i];
        if (strcmp(m->filter, filter) != 0) continue;
        const json_t *value = t->form->kind->value(sample, &m->key, headline);
        if (values)
            cpl_json_put(failed, line, m->name,
                         json_real(json_is_true(value) ? 1 : json_number_value(value)));
        else
            cpl_json_add(failed, names, json_string(m->name));
    }
}

static void put_hashes(bool *failed, json_t *line)
{
    const json_t *first = json_object_get(json_object_get(line, "arguments"), "gen_args_0");
    cpl_json_put(failed, line, "doc_hash", document_digest(json_object_get(line, "doc")));
    cpl_json_put(failed, line, "prompt_hash", digest(json_object_get(first, "arg_0")));
    cpl_json_put(failed, line, "target_hash", digest(json_object_get(line, "target")));
}

static json_t *line_of(bool *failed, const cpl_lm_eval_task *t, const json_t *sample,
                       const char *filter)
{
    json_t *id           = json_object_get(sample, "id");
    const bool generates = t->form->kind->generates;
    json_t *line =
        json_pack("{s:I,s:{s:O},s:o}", "doc_id", (json_int_t)row_of(id), "doc", "id", id, "target",
                  as_text(json_object_get(sample, generates ? "target" : "gold")));
    if (generates)
        put_text(failed, line, t, sample, filter);
    else
        put_options(failed, line, sample);
    cpl_json_put(failed, line, "filter", json_string(filter));
    put_metrics(failed, line, t, sample, filter, false);
    put_hashes(failed, line);
    put_metrics(failed, line, t, sample, filter, true);
    return line;
}

/* Whether a metric before `at` has its filter. */
static bool is_repeated(const cpl_lm_eval_task *t, int64_t at)
{
    for (int64_t i = 0; i < at; i++)
        if (strcmp(t->metric[i].filter, t->metric[at].filter) == 0) return true;
    return false;
}

json_t *cpl_lm_eval_lines(const cpl_lm_eval_task *t, const json_t *samples)
{
    json_t *lines = json_array(), *sample;
    bool failed   = !lines;
    size_t i;
    for (int64_t m = 0; m < t->n_metrics; m++) {
        if (is_repeated(t, m)) continue;
        json_array_foreach((json_t *)samples, i, sample)
            cpl_json_add(&failed, lines, line_of(&failed, t, sample, t->metric[m].filter));
    }
    if (!failed) return lines;
    json_decref(lines);
    return NULL;
}

json_t *cpl_lm_eval_hash(const json_t *lines)
{
    static const char *const parts[] = {"doc_hash", "prompt_hash", "target_hash"};
    cpl_text text                    = {0};
    json_t *line;
    size_t i;
    json_array_foreach((json_t *)lines, i, line)
    {
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            cpl_text_printf(&text, "%s", json_string_value(json_object_get(line, parts[k])));
    }
    json_t *made = text.failed ? NULL : cpl_sample_digest(text.bytes ? text.bytes : "", NULL);
    cpl_text_free(&text);
    return made;
}
