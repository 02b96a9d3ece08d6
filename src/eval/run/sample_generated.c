/* sample_generated.c - see sample.h */
#include "base/arena.h"
#include "eval/grade/words.h"
#include "eval/run/sample.h"

/* 0 and 1 as whole numbers. */
static json_t *mark_json(double score)
{
    return score == 0 || score == 1 ? json_integer((json_int_t)score) : json_real(score);
}

/* What an answer is told as: `normal` where its form wants that. */
static json_t *answer_json(const cpl_answer *answer, const cpl_grade *mark, bool normal)
{
    if (!mark->found)
        return answer->invalid ? cpl_sample_words(cpl_span_of(answer->invalid)) : json_null();
    return cpl_sample_words(normal ? mark->normal : mark->answer);
}

/* Appends KEY or, of a further metric, PREFIX_NAME. */
static bool put_named(json_t *sample, const char *prefix, const char *name, json_t *value)
{
    cpl_text key = {0};
    cpl_text_printf(&key, "%s_%s", prefix, name);
    const bool ok = !key.failed && cpl_sample_put(sample, key.bytes, value);
    if (key.failed) json_decref(value);
    cpl_text_free(&key);
    return ok;
}

/* Answer i: filters of one metric are told by their names; otherwise the first one plainly, and a
 * further one under its own name. */
static bool put_answer(json_t *sample, const cpl_request_spec *form, int64_t i,
                       const cpl_grade *mark)
{
    const cpl_answer *answer = &form->answers[i];
    json_t *value            = answer_json(answer, mark, answer->show_normal),
           *correct          = mark_json(mark->score);
    if (form->filters) {
        const bool ok = cpl_sample_put(json_object_get(sample, "answer"), answer->name, value);
        return cpl_sample_put(json_object_get(sample, "correct"), answer->name, correct) && ok;
    }
    if (i == 0) {
        bool ok = cpl_sample_put(sample, "answer", value);
        ok      = cpl_sample_put(sample, "correct", correct) && ok;
        return ok && (!answer->show_normal ||
                      cpl_sample_put(sample, "extracted", answer_json(answer, mark, false)));
    }
    const char *key = cpl_sample_key(answer->name);
    const bool ok   = cpl_sample_put(sample, key, value);
    return put_named(sample, "correct", key, correct) && ok;
}

static cpl_status mark_answer(json_t *sample, const cpl_question *q, int64_t i, cpl_span text,
                              cpl_grading_scratch *room)
{
    const cpl_references *r = &q->references[i];
    cpl_grade mark;
    cpl_span *spans = cpl_alloc((size_t)r->count * sizeof *spans + 1);
    if (!spans) return CPL_ERR_MEMORY;
    for (int64_t k = 0; k < r->count; k++) spans[k] = cpl_span_of(r->at[k]);
    cpl_status status =
        cpl_grading_grade(&mark, &q->form->answers[i].marking, text, spans, r->count, room);
    if (status == CPL_OK && !put_answer(sample, q->form, i, &mark)) status = CPL_ERR_MEMORY;
    cpl_free(spans);
    return status;
}

/* A reference as it is told: what its own filter finds in it, or null; in the normal form where the
 * answer is told in that. */
static json_t *reference_json(const cpl_answer *answer, const char *reference,
                              cpl_grading_scratch *room)
{
    const cpl_grading *m = &answer->marking;
    cpl_span told        = cpl_span_of(reference);
    if (m->reference && !m->reference->find(&told, told)) return json_null();
    if (answer->show_normal && m->normal->make(&room->reference, told, &room->spare))
        told = cpl_span_text(&room->reference);
    return room->reference.failed || room->spare.failed ? NULL : cpl_sample_words(told);
}

static json_t *target_json(const cpl_question *q, cpl_grading_scratch *room)
{
    const cpl_references *r  = &q->references[0];
    const cpl_answer *answer = &q->form->answers[0];
    if (!q->listed && r->count == 1) return reference_json(answer, r->at[0], room);
    json_t *list = json_array();
    for (int64_t i = 0; i < r->count; i++)
        if (!cpl_sample_push(list, reference_json(answer, r->at[i], room))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static bool put_prompt(json_t *sample, const cpl_question *q, const cpl_generated *g, bool texts)
{
    const cpl_span prompt = cpl_span_of(q->prompt);
    return cpl_sample_put(sample, "prompt_sha256", cpl_sample_digest(q->prompt, NULL)) &&
           cpl_sample_put_int(sample, "prompt_chars", (int64_t)cpl_words_count(prompt)) &&
           cpl_sample_put_int(sample, "prompt_bytes", (int64_t)prompt.length) &&
           cpl_sample_put_int(sample, "prompt_tokens", g->prompt.context) &&
           cpl_sample_put_int(sample, "cut", g->prompt.cut) &&
           cpl_sample_put_int(sample, "gen_tokens", g->tokens) &&
           (!texts || cpl_sample_put(sample, "prompt", cpl_sample_words(prompt)));
}

cpl_status cpl_sample_generated(json_t **sample, const cpl_question *q, const cpl_generated *g,
                                cpl_grading_scratch *room, bool texts)
{
    json_t *made = json_object();
    bool ok      = cpl_sample_put(made, "id", cpl_sample_id(q)) &&
              cpl_sample_put(made, "text", cpl_sample_words(g->text));
    if (ok && q->form->filters)
        ok = cpl_sample_put(made, "answer", json_object()) &&
             cpl_sample_put(made, "correct", json_object());
    for (int64_t i = 0; ok && i < q->form->n_answers; i++)
        ok = mark_answer(made, q, i, g->text, room) == CPL_OK;
    ok =
        ok && cpl_sample_put(made, "target", target_json(q, room)) && put_prompt(made, q, g, texts);
    return cpl_sample_finish(sample, made, ok);
}
