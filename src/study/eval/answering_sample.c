/* answering_sample.c - see answering_parts.h: what is told of an answered question.
 * docs/formats.md, "Results of an evaluation", lists the keys. */
#include <sha256.h>
#include <string.h>

#include "base/arena.h"
#include "io/json.h"
#include "study/eval/answering_parts.h"
#include "study/eval/words.h"

/* ---- JSON ---- */

/* Takes the value; false without memory, as with a value that could not be made. */
static bool put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static bool push(json_t *array, json_t *value)
{
    return json_array_append_new(array, value) == 0;
}

static bool put_int(json_t *object, const char *key, int64_t value)
{
    return put(object, key, json_integer((json_int_t)value));
}

/* What no JSON reader of ours takes, a NUL or bytes that are no UTF-8, is told as U+FFFD. */
static json_t *words(cpl_span span)
{
    cpl_text text = {0};
    json_t *json  = NULL;
    for (size_t at = 0; at < span.length;) {
        const char *bytes = span.bytes + at;
        const char *nul   = memchr(bytes, '\0', span.length - at);
        const size_t n    = nul ? (size_t)(nul - bytes) : span.length - at;
        cpl_utf8_repair(&text, bytes, n);
        if (nul) cpl_text_append(&text, "\xEF\xBF\xBD", 3);
        at += n + (nul ? 1 : 0);
    }
    if (!text.failed) json = json_stringn(text.length ? text.bytes : "", text.length);
    cpl_text_free(&text);
    return json;
}

/* The digest of the texts with a NUL between them; `second` may be NULL. */
static json_t *digest(const char *first, const char *second)
{
    SHA256_CTX context;
    char hex[SHA256_DIGEST_STRING_LENGTH];
    SHA256Init(&context);
    SHA256Update(&context, (const uint8_t *)first, strlen(first) + (second ? 1 : 0));
    if (second) SHA256Update(&context, (const uint8_t *)second, strlen(second));
    return json_string(SHA256End(&context, hex));
}

/* 0 and 1 as whole numbers. */
static json_t *mark_json(double score)
{
    return score == 0 || score == 1 ? json_integer((json_int_t)score) : json_real(score);
}

/* ---- ranked ---- */

/* Whatever the options have one of each. */
static bool put_options(json_t *sample, const cpl_question *q, const cpl_encoded *encoded,
                        const cpl_option_facts *facts)
{
    json_t *loglik = json_array(), *tokens = json_array(), *context = json_array();
    json_t *sha256 = json_array();
    bool ok        = put(sample, "loglik", loglik);
    int64_t cut    = 0;
    ok             = put(sample, "tokens", tokens) && ok;
    ok             = put(sample, "ctx_tokens", context) && ok;
    ok             = put(sample, "sha256", sha256) && ok;
    for (int64_t i = 0; ok && i < q->n_options; i++) {
        const cpl_option *option = &q->options[i];
        if (encoded[i].cut > cut) cut = encoded[i].cut;
        ok = push(loglik, json_real(facts[i].loglik)) &&
             push(tokens, json_integer((json_int_t)encoded[i].scored)) &&
             push(context, json_integer((json_int_t)encoded[i].context)) &&
             push(sha256, digest(option->context, option->continuation));
    }
    return ok && put_int(sample, "cut", cut);
}

static bool put_unconditional(json_t *sample, const cpl_question *q, const cpl_option_facts *facts)
{
    if (!q->unconditional) return true;
    json_t *unconditional = json_array();
    bool ok               = put(sample, "unconditional", unconditional);
    for (int64_t i = 0; ok && i < q->n_options; i++)
        ok = push(unconditional, json_real(facts[i].unconditional));
    return ok;
}

/* The length by which the form's scores divide: of the choice if any of them does. */
static cpl_score_length length_of(const cpl_form *form)
{
    cpl_score_length length = CPL_LENGTH_NONE;
    for (int64_t i = 0; i < form->n_scores; i++) {
        const cpl_score_length own = form->scores[i]->length;
        if (own == CPL_LENGTH_CHOICE || length == CPL_LENGTH_NONE) length = own;
    }
    return length;
}

static bool put_chars(json_t *sample, const cpl_question *q, const cpl_option_facts *facts)
{
    const cpl_score_length length = length_of(q->form);
    if (length == CPL_LENGTH_NONE) return true;
    json_t *chars = json_array();
    bool ok       = put(sample, "chars", chars);
    for (int64_t i = 0; ok && i < q->n_options; i++)
        ok = push(chars,
                  json_integer((json_int_t)(length == CPL_LENGTH_CHOICE ? facts[i].choice_chars
                                                                        : facts[i].chars)));
    return ok;
}

static bool is_gold(const cpl_question *q, int64_t option)
{
    for (int64_t i = 0; i < q->n_gold; i++)
        if (q->gold[i] == option) return true;
    return false;
}

static json_t *gold_json(const cpl_question *q)
{
    if (!q->several && q->n_gold == 1) return json_integer((json_int_t)q->gold[0]);
    json_t *gold = json_array();
    for (int64_t i = 0; i < q->n_gold; i++)
        if (!push(gold, json_integer((json_int_t)q->gold[i]))) {
            json_decref(gold);
            return NULL;
        }
    return gold;
}

/* What every score says. */
static bool put_scores(json_t *sample, const cpl_question *q, const cpl_option_facts *facts)
{
    json_t *pred = json_object(), *correct = json_object(), *soft = json_object();
    bool ok = put(sample, "pred", pred);
    ok      = put(sample, "correct", correct) && ok;
    ok      = put(sample, "soft", soft) && ok;
    for (int64_t i = 0; ok && i < q->form->n_scores; i++) {
        const cpl_score *score = q->form->scores[i];
        const int64_t best     = cpl_score_best(score, facts, q->n_options);
        ok = put_int(pred, score->name, best) && put_int(correct, score->name, is_gold(q, best)) &&
             put(soft, score->name,
                 json_real(cpl_score_soft(score, facts, q->n_options, q->gold, q->n_gold)));
    }
    return ok;
}

/* What the right option, the first of several, loses. */
static bool put_losses(json_t *sample, const cpl_question *q, const cpl_option_facts *facts)
{
    json_t *loss = json_object();
    bool ok      = put(sample, "loss", loss);
    for (size_t i = 0; ok && i < cpl_n_scores; i++)
        if (cpl_scores[i].loss)
            ok = put(loss, cpl_scores[i].name, json_real(cpl_scores[i].of(&facts[q->gold[0]])));
    return ok;
}

/* Whether an option before `at` has the same context. */
static bool is_told(const cpl_question *q, int64_t at)
{
    for (int64_t i = 0; i < at; i++)
        if (strcmp(q->options[i].context, q->options[at].context) == 0) return true;
    return false;
}

static bool put_texts(json_t *sample, const cpl_question *q)
{
    json_t *contexts = json_array(), *continuations = json_array();
    bool ok = put(sample, "contexts", contexts);
    ok      = put(sample, "continuations", continuations) && ok;
    for (int64_t i = 0; ok && i < q->n_options; i++) {
        const cpl_option *option = &q->options[i];
        ok = (is_told(q, i) || push(contexts, words(cpl_span_of(option->context)))) &&
             push(continuations, words(cpl_span_of(option->continuation)));
    }
    return ok;
}

/* The number of a row alone is told as a number. */
static json_t *id_json(const cpl_question *q)
{
    enum { MOST_DIGITS = 18 };
    const size_t length = strlen(q->id);
    const bool number   = length > 0 && length <= MOST_DIGITS &&
                        strspn(q->id, "0123456789") == length && (*q->id != '0' || length == 1);
    return number ? json_integer(strtoll(q->id, NULL, 10)) : words(cpl_span_of(q->id));
}

static cpl_status finished(json_t **sample, json_t *made, bool ok)
{
    *sample = ok ? made : NULL;
    if (ok) return CPL_OK;
    json_decref(made);
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for an answered question");
}

cpl_status cpl_sample_ranked(json_t **sample, const cpl_question *q, const cpl_encoded *encoded,
                             const cpl_option_facts *facts, bool texts)
{
    json_t *made  = json_object();
    const bool ok = put(made, "id", id_json(q)) && put_options(made, q, encoded, facts) &&
                    put_unconditional(made, q, facts) && put_chars(made, q, facts) &&
                    put(made, "gold", gold_json(q)) && put_scores(made, q, facts) &&
                    put_losses(made, q, facts) && (!texts || put_texts(made, q));
    return finished(sample, made, ok);
}

/* ---- generated ---- */

/* What an answer is told as: `normal` where its form wants that. */
static json_t *answer_json(const cpl_answer *answer, const cpl_mark *mark, bool normal)
{
    if (!mark->found) return answer->invalid ? words(cpl_span_of(answer->invalid)) : json_null();
    return words(normal ? mark->normal : mark->answer);
}

/* Appends KEY or, of a further metric, PREFIX_NAME. */
static bool put_named(json_t *sample, const char *prefix, const char *name, json_t *value)
{
    cpl_text key = {0};
    cpl_text_printf(&key, "%s_%s", prefix, name);
    const bool ok = !key.failed && put(sample, key.bytes, value);
    if (key.failed) json_decref(value);
    cpl_text_free(&key);
    return ok;
}

/* Answer i: filters of one metric are told by their names; otherwise the first one plainly, and a
 * further one under its own name. */
static bool put_answer(json_t *sample, const cpl_form *form, int64_t i, const cpl_mark *mark)
{
    const cpl_answer *answer = &form->answers[i];
    json_t *value            = answer_json(answer, mark, answer->show_normal),
           *correct          = mark_json(mark->score);
    if (form->filters) {
        const bool ok = put(json_object_get(sample, "answer"), answer->name, value);
        return put(json_object_get(sample, "correct"), answer->name, correct) && ok;
    }
    if (i == 0) {
        bool ok = put(sample, "answer", value);
        ok      = put(sample, "correct", correct) && ok;
        return ok &&
               (!answer->show_normal || put(sample, "extracted", answer_json(answer, mark, false)));
    }
    const bool ok = put(sample, answer->name, value);
    return put_named(sample, "correct", answer->name, correct) && ok;
}

static cpl_status mark_answer(json_t *sample, const cpl_question *q, int64_t i, cpl_span text,
                              cpl_marking_room *room)
{
    const cpl_references *r = &q->references[i];
    cpl_mark mark;
    cpl_span *spans = cpl_alloc((size_t)r->count * sizeof *spans + 1);
    if (!spans) return CPL_ERR_MEMORY;
    for (int64_t k = 0; k < r->count; k++) spans[k] = cpl_span_of(r->at[k]);
    cpl_status status =
        cpl_marking_mark(&mark, &q->form->answers[i].marking, text, spans, r->count, room);
    if (status == CPL_OK && !put_answer(sample, q->form, i, &mark)) status = CPL_ERR_MEMORY;
    cpl_free(spans);
    return status;
}

/* A reference as it is told: what its own filter finds in it, or null; in the normal form where the
 * answer is told in that. */
static json_t *reference_json(const cpl_answer *answer, const char *reference,
                              cpl_marking_room *room)
{
    const cpl_marking *m = &answer->marking;
    cpl_span told        = cpl_span_of(reference);
    if (m->reference && !m->reference->find(&told, told)) return json_null();
    if (answer->show_normal && m->normal->make(&room->reference, told, &room->spare))
        told = cpl_span_text(&room->reference);
    return room->reference.failed || room->spare.failed ? NULL : words(told);
}

static json_t *target_json(const cpl_question *q, cpl_marking_room *room)
{
    const cpl_references *r  = &q->references[0];
    const cpl_answer *answer = &q->form->answers[0];
    if (!q->listed && r->count == 1) return reference_json(answer, r->at[0], room);
    json_t *list = json_array();
    for (int64_t i = 0; i < r->count; i++)
        if (!push(list, reference_json(answer, r->at[i], room))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static bool put_prompt(json_t *sample, const cpl_question *q, const cpl_generated *g, bool texts)
{
    const cpl_span prompt = cpl_span_of(q->prompt);
    return put(sample, "prompt_sha256", digest(q->prompt, NULL)) &&
           put_int(sample, "prompt_chars", (int64_t)cpl_words_count(prompt)) &&
           put_int(sample, "prompt_bytes", (int64_t)prompt.length) &&
           put_int(sample, "prompt_tokens", g->prompt.context) &&
           put_int(sample, "cut", g->prompt.cut) && put_int(sample, "gen_tokens", g->tokens) &&
           (!texts || put(sample, "prompt", words(prompt)));
}

cpl_status cpl_sample_generated(json_t **sample, const cpl_question *q, const cpl_generated *g,
                                cpl_marking_room *room, bool texts)
{
    json_t *made = json_object();
    bool ok      = put(made, "id", id_json(q)) && put(made, "text", words(g->text));
    if (ok && q->form->filters)
        ok = put(made, "answer", json_object()) && put(made, "correct", json_object());
    for (int64_t i = 0; ok && i < q->form->n_answers; i++)
        ok = mark_answer(made, q, i, g->text, room) == CPL_OK;
    ok = ok && put(made, "target", target_json(q, room)) && put_prompt(made, q, g, texts);
    return finished(sample, made, ok);
}
