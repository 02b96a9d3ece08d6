/* sample_ranked.c - see sample.h */
#include <string.h>

#include "eval/run/sample.h"

/* Whatever the options have one of each. */
static bool put_options(json_t *sample, const cpl_question *q, const cpl_encoded *encoded,
                        const cpl_option_facts *facts)
{
    json_t *loglik = json_array(), *tokens = json_array(), *context = json_array();
    json_t *sha256 = json_array();
    bool ok        = cpl_sample_put(sample, "loglik", loglik);
    int64_t cut    = 0;
    ok             = cpl_sample_put(sample, "tokens", tokens) && ok;
    ok             = cpl_sample_put(sample, "ctx_tokens", context) && ok;
    ok             = cpl_sample_put(sample, "sha256", sha256) && ok;
    for (int64_t i = 0; ok && i < q->n_options; i++) {
        const cpl_option *option = &q->options[i];
        if (encoded[i].cut > cut) cut = encoded[i].cut;
        ok = cpl_sample_push(loglik, json_real(facts[i].loglik)) &&
             cpl_sample_push(tokens, json_integer((json_int_t)encoded[i].scored)) &&
             cpl_sample_push(context, json_integer((json_int_t)encoded[i].context)) &&
             cpl_sample_push(sha256, cpl_sample_digest(option->context, option->continuation));
    }
    return ok && cpl_sample_put_int(sample, "cut", cut);
}

static bool put_unconditional(json_t *sample, const cpl_question *q, const cpl_option_facts *facts)
{
    if (!q->unconditional) return true;
    json_t *unconditional = json_array();
    bool ok               = cpl_sample_put(sample, "unconditional", unconditional);
    for (int64_t i = 0; ok && i < q->n_options; i++)
        ok = cpl_sample_push(unconditional, json_real(facts[i].unconditional));
    return ok;
}

/* The length by which the form's scores divide: of the choice if any of them does. */
static cpl_score_length length_of(const cpl_request_spec *form)
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
    bool ok       = cpl_sample_put(sample, "chars", chars);
    for (int64_t i = 0; ok && i < q->n_options; i++)
        ok = cpl_sample_push(
            chars, json_integer((json_int_t)(length == CPL_LENGTH_CHOICE ? facts[i].choice_chars
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
        if (!cpl_sample_push(gold, json_integer((json_int_t)q->gold[i]))) {
            json_decref(gold);
            return NULL;
        }
    return gold;
}

/* What every score says. */
static bool put_scores(json_t *sample, const cpl_question *q, const cpl_option_facts *facts)
{
    json_t *pred = json_object(), *correct = json_object(), *soft = json_object();
    bool ok = cpl_sample_put(sample, "pred", pred);
    ok      = cpl_sample_put(sample, "correct", correct) && ok;
    ok      = cpl_sample_put(sample, "soft", soft) && ok;
    for (int64_t i = 0; ok && i < q->form->n_scores; i++) {
        const cpl_score *score = q->form->scores[i];
        const int64_t best     = cpl_score_best(score, facts, q->n_options);
        ok                     = cpl_sample_put_int(pred, score->name, best) &&
             cpl_sample_put_int(correct, score->name, is_gold(q, best)) &&
             cpl_sample_put(
                 soft, score->name,
                 json_real(cpl_score_soft(score, facts, q->n_options, q->gold, q->n_gold)));
    }
    return ok;
}

/* What the right option, the first of several, loses. */
static bool put_losses(json_t *sample, const cpl_question *q, const cpl_option_facts *facts)
{
    json_t *loss = json_object();
    bool ok      = cpl_sample_put(sample, "loss", loss);
    for (size_t i = 0; ok && i < cpl_n_scores; i++)
        if (cpl_scores[i].loss)
            ok = cpl_sample_put(loss, cpl_scores[i].name,
                                json_real(cpl_scores[i].of(&facts[q->gold[0]])));
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
    bool ok = cpl_sample_put(sample, "contexts", contexts);
    ok      = cpl_sample_put(sample, "continuations", continuations) && ok;
    for (int64_t i = 0; ok && i < q->n_options; i++) {
        const cpl_option *option = &q->options[i];
        ok                       = (is_told(q, i) ||
              cpl_sample_push(contexts, cpl_sample_words(cpl_span_of(option->context)))) &&
             cpl_sample_push(continuations, cpl_sample_words(cpl_span_of(option->continuation)));
    }
    return ok;
}

cpl_status cpl_sample_ranked(json_t **sample, const cpl_question *q, const cpl_encoded *encoded,
                             const cpl_option_facts *facts, bool texts)
{
    json_t *made  = json_object();
    const bool ok = cpl_sample_put(made, "id", cpl_sample_id(q)) &&
                    put_options(made, q, encoded, facts) && put_unconditional(made, q, facts) &&
                    put_chars(made, q, facts) && cpl_sample_put(made, "gold", gold_json(q)) &&
                    put_scores(made, q, facts) && put_losses(made, q, facts) &&
                    (!texts || put_texts(made, q));
    return cpl_sample_finish(sample, made, ok);
}
