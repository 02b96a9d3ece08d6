/* generate_until.c - texts generated up to a stop string; see kinds.h */
#include <string.h>

#include "base/arena.h"
#include "eval/grade/grading.h"
#include "eval/grade/words.h"
#include "eval/prompts/questions.h"
#include "eval/run/kinds.h"
#include "eval/tasks/task_parts.h"
#include "io/json.h"

/* Returns a score as JSON, with 0 and 1 as whole numbers. */
static json_t *score_json(double score)
{
    return score == 0 || score == 1 ? json_integer((json_int_t)score) : json_real(score);
}

/* Returns an answer as JSON for a sample, in its normal form if `normal`. */
static json_t *answer_json(const cpl_answer *answer, const cpl_grade *grade, bool normal)
{
    if (!grade->found)
        return answer->invalid ? cpl_sample_words(cpl_span_of(answer->invalid)) : json_null();
    return cpl_sample_words(normal ? grade->normal : grade->answer);
}

/* Adds answer i and its grade to a sample. Filters of one metric are members of "answer" and
 * "correct" under their names. Otherwise the first answer is "answer" and "correct", and a further
 * answer has the keys NAME and correct_NAME. */
static void put_answer(bool *failed, json_t *sample, const cpl_request_spec *form, int64_t i,
                       const cpl_grade *grade)
{
    const cpl_answer *answer = &form->answers[i];
    json_t *value            = answer_json(answer, grade, answer->show_normal),
           *correct          = score_json(grade->score);
    const char *key          = cpl_sample_key(answer->name);
    if (form->filters) {
        cpl_json_put(failed, json_object_get(sample, "answer"), answer->name, value);
        cpl_json_put(failed, json_object_get(sample, "correct"), answer->name, correct);
    } else if (i == 0) {
        cpl_json_put(failed, sample, "answer", value);
        cpl_json_put(failed, sample, "correct", correct);
        if (answer->show_normal)
            cpl_json_put(failed, sample, "extracted", answer_json(answer, grade, false));
    } else {
        cpl_text name = {0};
        cpl_text_printf(&name, "correct_%s", key);
        cpl_json_put(failed, sample, key, value);
        cpl_json_put(failed, sample, name.bytes, correct);
        cpl_text_free(&name);
    }
}

static cpl_status grade_answer(bool *failed, json_t *sample, const cpl_question *q, int64_t i,
                               cpl_span text, cpl_grading_scratch *room)
{
    const cpl_references *r = &q->references[i];
    cpl_grade grade;
    cpl_span *spans = cpl_alloc((size_t)r->count * sizeof *spans + 1);
    if (!spans) return CPL_ERR_MEMORY;
    for (int64_t k = 0; k < r->count; k++) spans[k] = cpl_span_of(r->at[k]);
    cpl_status status =
        cpl_grading_grade(&grade, &q->form->answers[i].grading, text, spans, r->count, room);
    if (status == CPL_OK) put_answer(failed, sample, q->form, i, &grade);
    cpl_free(spans);
    return status;
}

/* Sets a reference as it is shown: the capture of its own filter, or null. The reference is in the
 * normal form if the answer is. */
static cpl_status shown_reference(json_t **shown, const cpl_answer *answer, const char *reference,
                                  cpl_grading_scratch *room)
{
    const cpl_grading *m = &answer->grading;
    cpl_span text        = cpl_span_of(reference);
    bool found           = true;
    if (m->reference) CPL_TRY(cpl_filter_apply(&found, &text, m->reference, text));
    if (found && answer->show_normal && m->normal->make(&room->reference, text, &room->spare))
        text = cpl_span_text(&room->reference);
    if (room->reference.failed || room->spare.failed) return CPL_ERR_MEMORY;
    *shown = found ? cpl_sample_words(text) : json_null();
    return CPL_OK;
}

/* Adds "target", the references of the first answer: a text if a single one is not listed. */
static cpl_status put_target(bool *failed, json_t *sample, const cpl_question *q,
                             cpl_grading_scratch *room)
{
    const cpl_references *r = &q->references[0];
    const bool listed       = q->listed || r->count != 1;
    json_t *list            = listed ? cpl_json_open(failed, sample, "target", json_array()) : NULL;
    for (int64_t i = 0; i < r->count; i++) {
        json_t *shown = NULL;
        CPL_TRY(shown_reference(&shown, &q->form->answers[0], r->at[i], room));
        if (listed)
            cpl_json_add(failed, list, shown);
        else
            cpl_json_put(failed, sample, "target", shown);
    }
    return CPL_OK;
}

static void put_prompt(bool *failed, json_t *sample, const cpl_question *q, const cpl_generated *g,
                       bool texts)
{
    const cpl_span prompt = cpl_span_of(q->prompt);
    cpl_json_put(failed, sample, "prompt_sha256", cpl_sample_digest(q->prompt, NULL));
    cpl_json_put(failed, sample, "prompt_chars", json_integer((json_int_t)cpl_words_count(prompt)));
    cpl_json_put(failed, sample, "prompt_bytes", json_integer((json_int_t)prompt.length));
    cpl_json_put(failed, sample, "prompt_tokens", json_integer(g->prompt.context));
    cpl_json_put(failed, sample, "cut", json_integer(g->prompt.cut));
    cpl_json_put(failed, sample, "gen_tokens", json_integer(g->tokens));
    if (texts) cpl_json_put(failed, sample, "prompt", cpl_sample_words(prompt));
}

cpl_status cpl_sample_generated(json_t **sample, const cpl_question *q, const cpl_generated *g,
                                cpl_grading_scratch *room, bool texts)
{
    json_t *made      = json_object();
    bool failed       = !made;
    cpl_status status = CPL_OK;
    cpl_json_put(&failed, made, "id", cpl_sample_id(q));
    cpl_json_put(&failed, made, "text", cpl_sample_words(g->text));
    if (q->form->filters) {
        cpl_json_put(&failed, made, "answer", json_object());
        cpl_json_put(&failed, made, "correct", json_object());
    }
    for (int64_t i = 0; status == CPL_OK && i < q->form->n_answers; i++)
        status = grade_answer(&failed, made, q, i, g->text, room);
    if (status == CPL_OK) status = put_target(&failed, made, q, room);
    put_prompt(&failed, made, q, g, texts);
    if (status == CPL_ERR_INPUT) json_decref(made);
    if (status == CPL_ERR_INPUT) return cpl_eval_runner_about(status, q);
    return cpl_sample_finish(sample, made, failed || status != CPL_OK);
}

enum { MOST_QUESTIONS = 128 }; /* questions of a block */

/* The text generated after one prompt. Special tokens are no part of the text, but a stop string
 * may be one: lm-eval searches for stop strings before it removes special tokens. */
typedef struct written {
    cpl_text text, whole; /* without and with special tokens */
    int64_t tokens;
    bool enough; /* true after a stop string or max_gen_toks tokens */
} written;

typedef struct block {
    cpl_eval_runner_work *w;
    int64_t first, last;
    cpl_pool pool;
    cpl_encoded *encoded;  /* (n) */
    cpl_sequence *prompts; /* (n) */
    written *written;      /* (n) */
    cpl_text eos, cut;     /* text of the end-of-text token, and of one answer */
    cpl_grading_scratch room;
    cpl_status heard;
} block;

static void free_block(block *b)
{
    for (int64_t i = 0; b->written && i < b->last - b->first; i++) {
        cpl_text_free(&b->written[i].text);
        cpl_text_free(&b->written[i].whole);
    }
    cpl_pool_free(&b->pool);
    cpl_text_free(&b->eos);
    cpl_text_free(&b->cut);
    cpl_grading_scratch_free(&b->room);
}

/* Returns the end of the block. All prompts of a block have the same max_gen_toks. */
static int64_t end_of_block(const cpl_eval_runner_work *w, int64_t first)
{
    const cpl_question *q = w->question;
    int64_t last          = first;
    while (last < w->n && last - first < MOST_QUESTIONS &&
           q[last].form->kind == &cpl_request_kind_generate_until &&
           q[last].form->max_gen_toks == q[first].form->max_gen_toks)
        last++;
    return last;
}

static cpl_status make_room(block *b)
{
    const cpl_eval_runner *a = b->w->a;
    const size_t n           = (size_t)(b->last - b->first);
    const int32_t eos        = (int32_t)a->eos;
    b->encoded               = cpl_pool_take(&b->pool, n * sizeof *b->encoded);
    b->prompts               = cpl_pool_take(&b->pool, n * sizeof *b->prompts);
    b->written               = cpl_pool_take(&b->pool, n * sizeof *b->written);
    CPL_TRY(cpl_pool_status(&b->pool));
    if (a->eos >= 0) CPL_TRY(cpl_tokenizer_decode(a->tokenizer, &b->eos, &eos, 1, false));
    return cpl_text_status(&b->eos);
}

static cpl_status encode_all(block *b)
{
    cpl_eval_runner_work *w = b->w;
    w->encoding.ids.count   = 0;
    for (int64_t i = b->first; i < b->last; i++) {
        const cpl_question *q = &w->question[i];
        CPL_TRY(cpl_eval_runner_about(
            cpl_encode_question(&w->encoding, &b->encoded[i - b->first], q), q));
    }
    for (int64_t i = 0; i < b->last - b->first; i++)
        b->prompts[i] =
            (cpl_sequence){w->encoding.ids.at + b->encoded[i].first, b->encoded[i].length};
    return CPL_OK;
}

/* Returns whether a stop string, or the text of the end-of-text token as in lm-eval, is reached. */
static bool reached(const block *b, const cpl_request_spec *form, const cpl_text *text,
                    size_t known)
{
    const char *eos     = b->eos.length ? b->eos.bytes : "";
    const cpl_span span = cpl_span_text(text);
    return cpl_grading_stop_reached(span, known, form->until, form->n_until) ||
           cpl_grading_stop_reached(span, known, &eos, 1);
}

static cpl_status add(block *b, written *one, const cpl_request_spec *form, int32_t id)
{
    const cpl_tokenizer *t = b->w->a->tokenizer;
    const size_t known     = one->whole.length;
    CPL_TRY(cpl_tokenizer_decode(t, &one->text, &id, 1, true));
    CPL_TRY(cpl_tokenizer_decode(t, &one->whole, &id, 1, false));
    one->tokens++;
    one->enough = one->tokens == form->max_gen_toks || reached(b, form, &one->whole, known);
    CPL_TRY(cpl_text_status(&one->whole));
    return cpl_text_status(&one->text);
}

static bool on_token(void *ctx, int64_t index, int32_t id)
{
    block *b          = ctx;
    written *one      = &b->written[index];
    cpl_status status = add(b, one, b->w->question[b->first + index].form, id);
    if (status != CPL_OK) b->heard = status;
    return status == CPL_OK && !one->enough;
}

static cpl_status give_sample(block *b, int64_t i)
{
    const cpl_eval_runner_work *w = b->w;
    const cpl_question *q         = &w->question[b->first + i];
    const cpl_text *text          = &b->written[i].text;
    const char *eos               = b->eos.length ? b->eos.bytes : "";
    cpl_generated generated       = {.prompt = b->encoded[i], .tokens = b->written[i].tokens};
    json_t *sample                = NULL;
    cpl_text_clear(&b->cut);
    cpl_utf8_repair(&b->cut, text->length ? text->bytes : "", text->length);
    CPL_TRY(cpl_text_status(&b->cut));
    generated.text =
        cpl_grading_cut_at_stop(cpl_span_text(&b->cut), q->form->until, q->form->n_until);
    generated.text = cpl_grading_cut_at_stop(generated.text, &eos, 1);
    CPL_TRY(cpl_sample_generated(&sample, q, &generated, &b->room, w->a->texts));
    return w->callbacks->take(w->callbacks->ctx, b->first + i, sample);
}

/* Finishes a text. A text that ended without `enough` has met the end-of-text, which counts as a
 * token. */
static cpl_status finish(void *ctx, int64_t index)
{
    block *b = ctx;
    CPL_TRY(b->heard);
    if (!b->written[index].enough) b->written[index].tokens++;
    CPL_TRY(give_sample(b, index));
    return cpl_eval_runner_count(b->w, index);
}

static cpl_status ask(block *b)
{
    const cpl_eval_runner *a               = b->w->a;
    const cpl_lm_batch_callbacks callbacks = {.eos      = a->eos,
                                              .n_ids    = cpl_tokenizer_vocab_size(a->tokenizer),
                                              .on_token = on_token,
                                              .done     = finish,
                                              .ctx      = b,
                                              .extra_stop_ids = a->extra_stop_ids};
    const int64_t n                        = b->last - b->first;
    CPL_TRY(make_room(b));
    CPL_TRY(encode_all(b));
    return cpl_lm_batch_continue(a->batch, b->prompts, n,
                                 b->w->question[b->first].form->max_gen_toks, &callbacks);
}

static cpl_status run_block(cpl_eval_runner_work *w, int64_t first, int64_t *last)
{
    block b                 = {.w = w, .first = first, .last = end_of_block(w, first)};
    const cpl_status status = ask(&b);
    *last                   = b.last;
    free_block(&b);
    return status;
}

static cpl_status block_end(cpl_eval_runner_work *w, int64_t first, int64_t *last)
{
    *last = end_of_block(w, first);
    return CPL_OK;
}

static int64_t count_requests(const cpl_question *q)
{
    (void)q;
    return 1;
}

/* ---- metrics ---- */

static const char *metric(const cpl_request_spec *form, int64_t i)
{
    return i < form->n_answers ? form->answers[i].name : NULL;
}

static bool has_metric(const cpl_request_spec *form, const char *name)
{
    if (form->filters) return strcmp(name, "exact_match") == 0;
    for (int64_t k = 0; k < form->n_answers; k++)
        if (strcmp(form->answers[k].name, name) == 0) return true;
    return false;
}

/* Returns whether a metric is an answer. A score is an answer only if it is the headline, which
 * then is the name of an answer. */
static bool reports(const cpl_profile *profile, const char *name)
{
    return !cpl_metric_is_score(name) || strcmp(name, profile->metrics.at[0]) == 0;
}

static cpl_status check_metric(const cpl_task *task, const cpl_request_spec *form,
                               const cpl_profile *profile, const char *name, const char *of,
                               const json_t *node)
{
    (void)profile;
    if (has_metric(form, name)) return CPL_OK;
    return FAIL(task, node,
                "%s generates text, and none of its answers is called %.100s: write answers: "
                "{%.100s: {...}} there, or leave the metric out",
                of, name, name);
}

/* Returns the grade of an answer. Only a further answer is recorded under its own name. */
static const json_t *value(const json_t *sample, const cpl_metric_key *m, const char *headline)
{
    (void)headline;
    const json_t *correct = json_object_get(sample, "correct");
    if (m->filter) return json_object_get(correct, m->filter);
    const json_t *own = json_object_get(sample, m->own);
    return own ? own : correct;
}

/* ---- the keys of a task file ---- */

static cpl_status read_until(cpl_request_spec *form, const cpl_task *task, const json_t *from)
{
    cpl_string_list until;
    CPL_TRY(cpl_task_names_of(&until, task, from, "until"));
    for (int64_t i = 0; i < until.count; i++)
        if (!*until.at[i])
            return FAIL(task, json_object_get(from, "until"),
                        "a stop string is empty: leave it out of `until`");
    form->until   = until.at;
    form->n_until = until.count;
    return CPL_OK;
}

static cpl_status read_spec(cpl_prompt_spec *spec, cpl_task *task, const char *profile,
                            const json_t *from, const json_t *place)
{
    (void)profile;
    CPL_TRY(cpl_task_int_of(&spec->form.max_gen_toks, task, from, "max_gen_toks", 1, 1 << 24, 256));
    CPL_TRY(read_until(&spec->form, task, from));
    return cpl_task_read_answers(spec, task, from, place);
}

const cpl_request_kind cpl_request_kind_generate_until = {
    .name         = "generate",
    .output_type  = "generate_until",
    .questions    = "are answered in writing, and have no options to compare",
    .generates    = true,
    .read         = read_spec,
    .metric       = metric,
    .has_metric   = has_metric,
    .reports      = reports,
    .check_metric = check_metric,
    .build        = cpl_prompt_builder_text,
    .add_to_sum   = cpl_question_sum_text,
    .check        = cpl_encode_check_prompt,
    .count        = count_requests,
    .block_end    = block_end,
    .run          = run_block,
    .value        = value,
};
