/* question.c - see question.h */
#include "eval/prompts/question.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "eval/grade/score.h"

/* Each text goes in with the NUL behind it, each number as a text, each list with its length before it:
 * two questions with the same sum are the same. */

static void add_text(SHA256_CTX *sum, const char *text)
{
    const char there = text ? '=' : '-'; /* "" is another than none */
    SHA256Update(sum, (const uint8_t *)&there, 1);
    if (text) SHA256Update(sum, (const uint8_t *)text, strlen(text) + 1);
}

static void add_number(SHA256_CTX *sum, int64_t value)
{
    char digits[32];
    snprintf(digits, sizeof digits, "%" PRId64, value);
    add_text(sum, digits);
}

static void add_texts(SHA256_CTX *sum, const char *const *at, int64_t n)
{
    add_number(sum, n);
    for (int64_t i = 0; i < n; i++) add_text(sum, at[i]);
}

static void add_answer(SHA256_CTX *sum, const cpl_answer *answer)
{
    const cpl_grading *m = &answer->marking;
    add_text(sum, answer->name);
    add_text(sum, m->filter ? m->filter->name : NULL);
    add_text(sum, m->reference ? m->reference->name : NULL);
    add_text(sum, m->normal ? m->normal->name : NULL);
    add_text(sum, m->comparison ? m->comparison->name : NULL);
    add_text(sum, answer->invalid);
    add_number(sum, answer->show_normal);
}

static void add_form(SHA256_CTX *sum, const cpl_request_spec *form)
{
    add_number(sum, form->ask);
    add_number(sum, form->joining);
    add_number(sum, form->window);
    add_number(sum, form->fixed);
    add_number(sum, form->stop_beyond);
    add_number(sum, form->n_scores);
    for (int64_t i = 0; i < form->n_scores; i++) add_text(sum, form->scores[i]->name);
    add_texts(sum, form->until, form->n_until);
    add_number(sum, form->max_gen_toks);
    add_number(sum, form->n_answers);
    for (int64_t i = 0; i < form->n_answers; i++) add_answer(sum, &form->answers[i]);
    add_number(sum, form->filters);
}

static void add_ranked(SHA256_CTX *sum, const cpl_question *q)
{
    add_number(sum, q->n_options);
    for (int64_t i = 0; i < q->n_options; i++) {
        add_text(sum, q->options[i].context);
        add_text(sum, q->options[i].continuation);
        add_number(sum, (int64_t)q->options[i].choice);
    }
    add_text(sum, q->unconditional);
    add_number(sum, q->n_gold);
    for (int64_t i = 0; i < q->n_gold; i++) add_number(sum, q->gold[i]);
    add_number(sum, q->several);
}

static void add_generated(SHA256_CTX *sum, const cpl_question *q)
{
    add_text(sum, q->prompt);
    for (int64_t i = 0; i < q->form->n_answers; i++)
        add_texts(sum, q->references[i].at, q->references[i].count);
    add_number(sum, q->listed);
}

void cpl_question_sum(char hex[SHA256_DIGEST_STRING_LENGTH], const cpl_question *q)
{
    SHA256_CTX sum;
    SHA256Init(&sum);
    add_text(&sum, q->id);
    add_text(&sum, q->subject);
    add_form(&sum, q->form);
    if (q->form->ask == CPL_ASK_GENERATE)
        add_generated(&sum, q);
    else
        add_ranked(&sum, q);
    SHA256End(&sum, hex);
}
