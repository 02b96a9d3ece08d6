/* multiple_choice.c - options compared by their log-likelihoods; see kinds.h */
#include <string.h>

#include "base/arena.h"
#include "eval/grade/words.h"
#include "eval/prompts/questions.h"
#include "eval/run/kinds.h"
#include "eval/tasks/task_parts.h"
#include "io/json.h"

/* ---- samples ---- */

/* Returns the length that the form's scores divide by: the choice's length if a score uses it. */
static cpl_score_length length_of(const cpl_request_spec *form)
{
    cpl_score_length length = CPL_LENGTH_NONE;
    for (int64_t i = 0; i < form->n_scores; i++) {
        const cpl_score_length own = form->scores[i]->length;
        if (own == CPL_LENGTH_CHOICE || length == CPL_LENGTH_NONE) length = own;
    }
    return length;
}

/* Adds the lists that have an element for each option. */
static void put_options(bool *failed, json_t *sample, const cpl_question *q,
                        const cpl_encoded *encoded, const cpl_option_facts *facts)
{
    const cpl_score_length length = length_of(q->form);
    int64_t cut                   = 0;
    json_t *loglik                = cpl_json_open(failed, sample, "loglik", json_array());
    json_t *tokens                = cpl_json_open(failed, sample, "tokens", json_array());
    json_t *context               = cpl_json_open(failed, sample, "ctx_tokens", json_array());
    json_t *sha256                = cpl_json_open(failed, sample, "sha256", json_array());
    for (int64_t i = 0; i < q->n_options; i++) {
        const cpl_option *option = &q->options[i];
        if (encoded[i].cut > cut) cut = encoded[i].cut;
        cpl_json_add(failed, loglik, json_real(facts[i].loglik));
        cpl_json_add(failed, tokens, json_integer(encoded[i].scored));
        cpl_json_add(failed, context, json_integer(encoded[i].context));
        cpl_json_add(failed, sha256, cpl_sample_digest(option->context, option->continuation));
    }
    cpl_json_put(failed, sample, "cut", json_integer(cut));
    if (q->unconditional) {
        json_t *list = cpl_json_open(failed, sample, "unconditional", json_array());
        for (int64_t i = 0; i < q->n_options; i++)
            cpl_json_add(failed, list, json_real(facts[i].unconditional));
    }
    if (length != CPL_LENGTH_NONE) {
        json_t *list = cpl_json_open(failed, sample, "chars", json_array());
        for (int64_t i = 0; i < q->n_options; i++)
            cpl_json_add(
                failed, list,
                json_integer(length == CPL_LENGTH_CHOICE ? facts[i].choice_chars : facts[i].chars));
    }
}

static bool is_gold(const cpl_question *q, int64_t option)
{
    for (int64_t i = 0; i < q->n_gold; i++)
        if (q->gold[i] == option) return true;
    return false;
}

static void put_gold(bool *failed, json_t *sample, const cpl_question *q)
{
    if (!q->several && q->n_gold == 1) {
        cpl_json_put(failed, sample, "gold", json_integer(q->gold[0]));
        return;
    }
    json_t *gold = cpl_json_open(failed, sample, "gold", json_array());
    for (int64_t i = 0; i < q->n_gold; i++) cpl_json_add(failed, gold, json_integer(q->gold[i]));
}

/* Puts the results of every score, then the losses of the right option (the first of several). */
static void put_scores(bool *failed, json_t *sample, const cpl_question *q,
                       const cpl_option_facts *facts)
{
    json_t *pred    = cpl_json_open(failed, sample, "pred", json_object());
    json_t *correct = cpl_json_open(failed, sample, "correct", json_object());
    json_t *soft    = cpl_json_open(failed, sample, "soft", json_object());
    json_t *loss    = cpl_json_open(failed, sample, "loss", json_object());
    for (int64_t i = 0; i < q->form->n_scores; i++) {
        const cpl_score *score = q->form->scores[i];
        const int64_t best     = cpl_score_best(score, facts, q->n_options);
        cpl_json_put(failed, pred, score->name, json_integer(best));
        cpl_json_put(failed, correct, score->name, json_integer(is_gold(q, best)));
        cpl_json_put(failed, soft, score->name,
                     json_real(cpl_score_soft(score, facts, q->n_options, q->gold, q->n_gold)));
    }
    for (size_t i = 0; i < cpl_n_scores; i++)
        if (cpl_scores[i].loss)
            cpl_json_put(failed, loss, cpl_scores[i].name,
                         json_real(cpl_scores[i].of(&facts[q->gold[0]])));
}

/* Returns whether an option before `at` has the same context. */
static bool is_repeated(const cpl_question *q, int64_t at)
{
    for (int64_t i = 0; i < at; i++)
        if (strcmp(q->options[i].context, q->options[at].context) == 0) return true;
    return false;
}

static void put_texts(bool *failed, json_t *sample, const cpl_question *q)
{
    json_t *contexts      = cpl_json_open(failed, sample, "contexts", json_array());
    json_t *continuations = cpl_json_open(failed, sample, "continuations", json_array());
    for (int64_t i = 0; i < q->n_options; i++) {
        const cpl_option *option = &q->options[i];
        if (!is_repeated(q, i))
            cpl_json_add(failed, contexts, cpl_sample_words(cpl_span_of(option->context)));
        cpl_json_add(failed, continuations, cpl_sample_words(cpl_span_of(option->continuation)));
    }
}

static cpl_status make_sample(json_t **sample, const cpl_question *q, const cpl_encoded *encoded,
                              const cpl_option_facts *facts, bool texts)
{
    json_t *made = json_object();
    bool failed  = !made;
    cpl_json_put(&failed, made, "id", cpl_sample_id(q));
    put_options(&failed, made, q, encoded, facts);
    put_gold(&failed, made, q);
    put_scores(&failed, made, q, facts);
    if (texts) put_texts(&failed, made, q);
    return cpl_sample_finish(sample, made, failed);
}

/* ---- blocks ---- */

enum { MOST_QUESTIONS = 128, MOST_TOKENS = 1 << 20 }; /* limits of a block */

/* A block of questions. Its sequences are the sequences of its questions in order: the options,
 * then the same options after the bare context. Equal sequences pass through the model once
 * (lm_batch.h). */
typedef struct block {
    cpl_eval_runner_work *w;
    int64_t first, last; /* range of its questions */
    cpl_pool pool;
    cpl_encoded *encoded;     /* (n) */
    cpl_lm_request *requests; /* (n) */
    int64_t n;
    cpl_option_facts *facts; /* the options of one question */
} block;

/* Counts the sequences of a question: its options, and, if a score needs them, the same
 * continuations after the bare context. */
static int64_t count_requests(const cpl_question *q)
{
    return q->n_options * (q->unconditional ? 2 : 1);
}

/* Takes memory for the sequences of as many questions as a block may have at most. */
static cpl_status make_room(block *b)
{
    int64_t requests = 0, options = 0;
    for (int64_t i = b->first; i < b->w->n && i - b->first < MOST_QUESTIONS; i++) {
        const cpl_question *q = &b->w->question[i];
        requests += count_requests(q);
        if (q->n_options > options) options = q->n_options;
    }
    b->encoded  = cpl_pool_take(&b->pool, (size_t)requests * sizeof *b->encoded);
    b->requests = cpl_pool_take(&b->pool, (size_t)requests * sizeof *b->requests);
    b->facts    = cpl_pool_take(&b->pool, (size_t)options * sizeof *b->facts);
    return cpl_pool_status(&b->pool);
}

static cpl_status encode_question(block *b, const cpl_question *q)
{
    cpl_eval_runner_work *w = b->w;
    for (int64_t i = 0; i < count_requests(q); i++) {
        cpl_option option = q->options[i % q->n_options];
        if (i >= q->n_options) option.context = q->unconditional;
        CPL_TRY(cpl_encode_option(&w->encoding, &b->encoded[b->n++], q->form, &option));
    }
    return CPL_OK;
}

static cpl_status encode_all(block *b)
{
    cpl_eval_runner_work *w = b->w;
    w->encoding.ids.count   = 0;
    for (b->last = b->first; b->last < w->n; b->last++) {
        const cpl_question *q = &w->question[b->last];
        if (q->form->kind != &cpl_request_kind_multiple_choice ||
            b->last - b->first == MOST_QUESTIONS || w->encoding.ids.count > MOST_TOKENS)
            break;
        CPL_TRY(cpl_eval_runner_about(encode_question(b, q), q));
    }
    for (int64_t i = 0; i < b->n; i++) {
        const cpl_encoded *e = &b->encoded[i];
        b->requests[i] = (cpl_lm_request){w->encoding.ids.at + e->first, e->length, e->scored, 0};
    }
    return CPL_OK;
}

static int64_t at_least_1(size_t length)
{
    return length > 0 ? (int64_t)length : 1;
}

/* Returns the facts of option i. Its sequences are requests[i] and, after the bare context,
 * requests[n_options + i]. */
static cpl_option_facts facts_of(const cpl_question *q, const cpl_lm_request *requests, int64_t i)
{
    const cpl_span whole = cpl_span_of(q->options[i].continuation);
    CPL_ASSERT(q->options[i].choice <= whole.length);
    const cpl_span choice = cpl_span_part(whole, q->options[i].choice, whole.length);
    return (cpl_option_facts){
        .loglik        = requests[i].log_prob,
        .unconditional = q->unconditional ? requests[q->n_options + i].log_prob : 0,
        .tokens        = requests[i].scored,
        .chars         = at_least_1(cpl_words_count(whole)),
        .bytes         = at_least_1(whole.length),
        .choice_chars  = at_least_1(cpl_words_count(choice)),
        .choice_bytes  = at_least_1(choice.length),
    };
}

static cpl_status give_samples(block *b)
{
    const cpl_eval_runner_work *w = b->w;
    int64_t at                    = 0;
    for (int64_t i = b->first; i < b->last; i++) {
        const cpl_question *q = &w->question[i];
        json_t *sample        = NULL;
        for (int64_t k = 0; k < q->n_options; k++) b->facts[k] = facts_of(q, b->requests + at, k);
        CPL_TRY(make_sample(&sample, q, b->encoded + at, b->facts, w->a->texts));
        CPL_TRY(w->callbacks->take(w->callbacks->ctx, i, sample));
        at += count_requests(q);
    }
    return CPL_OK;
}

static cpl_status run_block(cpl_eval_runner_work *w, int64_t first, int64_t *last)
{
    block b           = {.w = w, .first = first};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(make_room(&b));
    CPL_TRY_DONE(encode_all(&b));
    CPL_TRY_DONE(cpl_lm_batch_score(w->a->batch, b.requests, b.n, cpl_eval_runner_count, w));
    status = give_samples(&b);
    *last  = b.last;
done:
    cpl_pool_free(&b.pool);
    return status;
}

static cpl_status block_end(cpl_eval_runner_work *w, int64_t first, int64_t *last)
{
    block b           = {.w = w, .first = first};
    cpl_status status = make_room(&b);
    if (status == CPL_OK) status = encode_all(&b);
    *last = b.last;
    cpl_pool_free(&b.pool);
    return status;
}

/* ---- metrics ---- */

static bool has_score(const cpl_request_spec *form, const char *name)
{
    for (int64_t k = 0; k < form->n_scores; k++)
        if (strcmp(form->scores[k]->name, name) == 0) return true;
    return false;
}

static const char *metric(const cpl_request_spec *form, int64_t i)
{
    return i < form->n_scores ? form->scores[i]->name : NULL;
}

static bool has_metric(const cpl_request_spec *form, const char *name)
{
    (void)form;
    return cpl_metric_is_score(name);
}

static bool reports_metric(const cpl_profile *profile, const char *name)
{
    (void)profile;
    return cpl_metric_is_score(name);
}

static cpl_status check_metric(const cpl_task *task, const cpl_request_spec *form,
                               const cpl_profile *profile, const char *name, const char *of,
                               const json_t *node)
{
    const char *headline = profile->metrics.at[0];
    const bool soft      = strcmp(name, "soft") == 0;
    if (soft && !has_score(form, headline))
        return FAIL(task, node,
                    "soft is made of the headline's scores, and %.100s, which is first, is no "
                    "score of %s: write metrics: [acc, soft]",
                    headline, of);
    if (soft || cpl_metric_is_loss(name) || has_score(form, name)) return CPL_OK;
    return FAIL(task, node,
                "the metric %.100s needs a score of the same name: add it to the scores of %s, or "
                "list metrics without it",
                name, of);
}

static const json_t *value(const json_t *sample, const cpl_metric_key *m, const char *headline)
{
    const json_t *value = json_object_get(json_object_get(sample, "correct"), m->name);
    if (!value) value = json_object_get(json_object_get(sample, "loss"), m->name);
    if (value || strcmp(m->name, "soft") != 0) return value;
    return json_object_get(json_object_get(sample, "soft"), headline);
}

static cpl_status read_spec(cpl_prompt_spec *spec, cpl_task *task, const char *profile,
                            const json_t *from, const json_t *place)
{
    (void)place;
    return cpl_task_read_scores(&spec->form, task, profile, from);
}

const cpl_request_kind cpl_request_kind_multiple_choice = {
    .name         = "rank",
    .output_type  = "multiple_choice",
    .questions    = "are answered by choosing an option, without generated text",
    .sample_key   = "loglik",
    .has_options  = true,
    .read         = read_spec,
    .metric       = metric,
    .has_metric   = has_metric,
    .reports      = reports_metric,
    .check_metric = check_metric,
    .build        = cpl_prompt_builder_options,
    .add_to_sum   = cpl_question_sum_options,
    .check        = cpl_encode_check_options,
    .count        = count_requests,
    .block_end    = block_end,
    .run          = run_block,
    .value        = value,
};
