/* questions.c - see questions.h
 *
 * Rows become questions while they are read. The text before a question (few-shot examples or a
 * prompt) is made when the first row of its subject is read (fewshot.c). */
#include "eval/prompts/questions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "eval/grade/score.h"
#include "eval/prompts/internal.h"
#include "io/paths.h"

/* ---- a reading ---- */

static cpl_status resolve_shots(cpl_reading *r)
{
    const cpl_resolved_profile *resolved = r->resolved;
    int64_t shots                        = r->options->shots;
    bool prompted                        = resolved->specs[0].prompt != CPL_PROMPT_NONE;
    r->shots                             = resolved->shots;
    r->n_shots                           = resolved->n_shots;
    if (shots != CPL_UNSET && !(prompted && shots == resolved->shots[0])) {
        if (prompted)
            return CPL_FAIL(
                CPL_ERR_INPUT,
                "%s: the %lld few-shot examples of %s are a file of their own and cannot be %lld",
                r->task->id, (long long)resolved->shots[0], r->q->profile->name, (long long)shots);
        if (shots < 0 || (shots > 0 && !resolved->fewshot_split))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: the profile %s has no few-shot examples, and %lld are required",
                            r->task->id, r->q->profile->name, (long long)shots);
        r->shots   = &r->options->shots;
        r->n_shots = 1;
    }
    for (int64_t i = 0; i < r->n_shots; i++)
        if (r->shots[i] > r->most_shots) r->most_shots = r->shots[i];
    r->q->shots = r->shots[r->n_shots - 1] > 0 ? r->shots[r->n_shots - 1] : 0;
    r->q->fewer = cpl_reading_shows(r);
    if (r->n_shots > 1) r->q->all_shots = r->q->profile->shots;
    return CPL_OK;
}

static cpl_status resolve_requests(cpl_reading *r)
{
    const cpl_resolved_profile *resolved = r->resolved;
    int64_t max_tokens                   = r->options->max_tokens;
    cpl_request_spec *forms =
        cpl_pool_take(&r->store->pool, (size_t)resolved->n_specs * sizeof *forms);
    if (!forms) return cpl_pool_status(&r->store->pool);
    for (int64_t i = 0; i < resolved->n_specs; i++) {
        forms[i] = resolved->specs[i].form;
        if (!forms[i].kind->generates) continue;
        if (max_tokens != CPL_UNSET) forms[i].max_gen_toks = max_tokens;
        if (forms[i].max_gen_toks > r->q->max_tokens) r->q->max_tokens = forms[i].max_gen_toks;
    }
    r->store->forms = forms;
    return CPL_OK;
}

/* Starts a reading of questions. They have no rows yet. The caller frees `q` in any case. */
static cpl_status start(cpl_reading *r, cpl_questions *q, const cpl_task *task,
                        const cpl_profile *profile, const cpl_questions_options *options)
{
    CPL_ASSERT(profile->forms.count == 0);
    *q       = (cpl_questions){.task = task, .profile = profile};
    q->store = cpl_alloc(sizeof *q->store);
    if (!q->store) return CPL_ERR_MEMORY;
    *q->store =
        (struct cpl_questions_store){.fewshot_split = json_object(), .before = json_object()};
    *r = (cpl_reading){.q        = q,
                       .store    = q->store,
                       .task     = task,
                       .options  = options,
                       .resolved = &task->parts->resolved[profile - task->profiles]};
    if (!q->store->fewshot_split || !q->store->before)
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for questions", task->id);
    CPL_TRY(resolve_shots(r));
    return resolve_requests(r);
}

/* ---- questions ---- */

static cpl_status next_question(cpl_question **next, cpl_reading *r)
{
    struct cpl_questions_store *store = r->store;
    if (r->q->count == store->room) {
        int64_t room        = store->room ? 2 * store->room : 64;
        cpl_question *grown = cpl_realloc(store->question, (size_t)room * sizeof *grown);
        if (!grown) return CPL_ERR_MEMORY;
        store->question = grown;
        store->room     = room;
    }
    *next  = &store->question[r->q->count];
    **next = (cpl_question){0};
    return CPL_OK;
}

static const char *id_of(cpl_reading *r, const cpl_seen_row *row, int64_t variant)
{
    char place[64];
    snprintf(place, sizeof place, r->n_shots > 1 ? "%lld#%lld" : "%lld", (long long)row->index,
             (long long)variant);
    return cpl_pool_printf(&r->store->pool, "%s%s%s", row->subject ? row->subject : "",
                           row->subject ? "/" : "", place);
}

/* Returns the path in the list of files that the questions keep, or NULL. */
static const char *kept_path(const cpl_reading *r, const char *path)
{
    for (int64_t i = 0; i < r->store->files.count; i++)
        if (strcmp(r->store->files.at[i], path) == 0) return r->store->files.at[i];
    return NULL;
}

/* Adds a question of a row. `first` is the index of the row's first question. */
static cpl_status add_question(cpl_reading *r, const cpl_prompt_input *input,
                               const cpl_seen_row *row, const json_t *before, int64_t variant,
                               int64_t first)
{
    struct cpl_questions_store *store = r->store;
    cpl_question *question;
    const char *text = json_string_value(json_array_get(before, (size_t)variant));
    CPL_TRY(next_question(&question, r));
    question->id   = id_of(r, row, variant);
    question->read = r->q->count;
    question->row  = first;
    question->path = kept_path(r, row->path);
    question->line = row->line;
    bool described = r->shots[variant] >= 0 && input->spec->prompt == CPL_PROMPT_NONE;
    CPL_TRY(cpl_prompt_builder_question(question, &store->pool, input, text, described));
    question->form = &store->forms[input->spec - r->resolved->specs];
    r->q->count++;
    return CPL_OK;
}

/* Returns the input that makes a question of a row. */
static cpl_prompt_input input_of(const cpl_task *task, const cpl_resolved_profile *resolved,
                                 const cpl_seen_row *row)
{
    const cpl_prompt_spec *spec = cpl_reading_spec(resolved, row->subject);
    return (cpl_prompt_input){.task       = task,
                              .spec       = spec,
                              .schema     = &spec->question_schemas[row->source],
                              .subject    = row->subject,
                              .row        = row->values,
                              .one_option = resolved->one_option};
}

static cpl_status take_row(void *ctx, cpl_seen_row *row)
{
    cpl_reading *r = ctx;
    if (!row->values) return cpl_reading_leave_out(r, row);
    if (row->subject && cpl_task_find_subject(r->task, row->subject) != CPL_OK)
        return cpl_reading_leave_out(r, row);
    cpl_prompt_input input = input_of(r->task, r->resolved, row);
    const json_t *before;
    CPL_TRY(cpl_reading_before(&before, r, input.spec, row->subject));
    if (row->subject)
        input.subject = cpl_pool_copy(&r->store->pool, row->subject, strlen(row->subject));
    int64_t first = r->q->count;
    for (int64_t i = 0; i < r->n_shots; i++) {
        cpl_status status = add_question(r, &input, row, before, i, first);
        if (status != CPL_ERR_INPUT && status != CPL_OK) return status;
        if (status == CPL_OK) continue;
        r->q->count = first;
        return cpl_reading_leave_out(r, row);
    }
    return CPL_OK;
}

static cpl_status read_rows(cpl_reading *r)
{
    cpl_split_files files = {0};
    cpl_status status     = CPL_OK;
    int64_t limit         = r->options->limit == CPL_UNSET ? -1 : r->options->limit,
            offset        = r->options->offset;
    CPL_TRY_DONE(cpl_split_find(&files, r->task, r->resolved->split, r->options->data));
    if (files.source < 0) CPL_TRY_DONE(cpl_split_missing(r->task, r->resolved->split, r->options));
    CPL_TRY_DONE(cpl_reading_add_files(r, &files));
    if (limit != 0)
        status = cpl_split_walk(&files, r->resolved->specs[0].question_schemas,
                                offset > 0 ? offset : 0, limit, take_row, r);
done:
    cpl_split_files_free(&files);
    return status;
}

/* Compares questions by subject, then by the order in which they were read. */
static int by_subject(const void *a, const void *b)
{
    const cpl_question *x = a, *y = b;
    int order = x->subject && y->subject ? strcmp(x->subject, y->subject) : 0;
    return order ? order : (x->read > y->read) - (x->read < y->read);
}

cpl_status cpl_questions_read(cpl_questions *q, const cpl_task *task, const cpl_profile *profile,
                              const cpl_questions_options *options)
{
    cpl_reading r;
    cpl_status status = start(&r, q, task, profile, options);
    if (status == CPL_OK) status = cpl_reading_fewshot(&r);
    if (status == CPL_OK) status = read_rows(&r);
    if (status == CPL_OK) status = cpl_pool_status(&q->store->pool);
    if (status != CPL_OK) {
        cpl_questions_free(q);
        return status;
    }
    q->question = q->store->question;
    if (q->count) qsort(q->question, (size_t)q->count, sizeof *q->question, by_subject);
    q->files = (cpl_string_list){(const char *const *)q->store->files.at, q->store->files.count};
    return CPL_OK;
}

void cpl_questions_free(cpl_questions *q)
{
    if (q->store) {
        json_decref(q->store->fewshot_split);
        json_decref(q->store->before);
        cpl_paths_free(&q->store->files);
        cpl_pool_free(&q->store->pool);
        cpl_free(q->store->question);
        cpl_free(q->store);
    }
    *q = (cpl_questions){0};
}

void cpl_questions_leave_out(cpl_questions *q, const bool *bad)
{
    int64_t kept = 0;
    for (int64_t first = 0, end; first < q->count; first = end) {
        bool out = false;
        for (end = first; end < q->count && q->question[end].row == q->question[first].row; end++)
            out |= bad[end];
        q->skipped += out;
        for (int64_t i = first; i < end && !out; i++) q->question[kept++] = q->question[i];
    }
    q->count = kept;
}

/* ---- missing rows ---- */

/* Sets `there` to whether both splits have files: the split of the questions, and the split of the
 * few-shot examples, whose files may be in `own` too. */
static cpl_status find_splits(bool *there, const cpl_reading *r)
{
    const cpl_split *splits[]  = {r->resolved->split, r->resolved->fewshot_split};
    const char *const places[] = {r->options->data, r->options->own};
    *there                     = true;
    for (int i = 0; *there && i < (cpl_reading_shows(r) ? 2 : 1); i++) {
        *there = false;
        for (int k = 0; k <= i && places[k] && !*there; k++) {
            cpl_split_files files;
            CPL_TRY(cpl_split_find(&files, r->task, splits[i], places[k]));
            *there = files.source >= 0;
            cpl_split_files_free(&files);
        }
        if (*there) continue;
        cpl_status status = cpl_split_missing(r->task, splits[i], r->options);
        if (status != CPL_ERR_INPUT) return status;
    }
    return CPL_OK;
}

cpl_status cpl_questions_there(bool *there, const cpl_task *task, const cpl_profile *profile,
                               const cpl_questions_options *options)
{
    cpl_questions q;
    cpl_reading r;
    cpl_status status = start(&r, &q, task, profile, options);
    if (status == CPL_OK) status = find_splits(there, &r);
    cpl_questions_free(&q);
    return status;
}

/* ---- counting ---- */

typedef struct counting {
    const cpl_task *task;
    const cpl_resolved_profile *resolved;
    int64_t rows, bad;
} counting;

static cpl_status count_row(void *ctx, cpl_seen_row *row)
{
    counting *c       = ctx;
    cpl_pool pool     = {0};
    cpl_question made = {0};
    c->rows++;
    if (!row->values) {
        c->bad++;
        return CPL_OK;
    }
    const cpl_prompt_input input = input_of(c->task, c->resolved, row);
    cpl_status status            = cpl_prompt_builder_question(&made, &pool, &input, "", true);
    cpl_pool_free(&pool);
    c->bad += status == CPL_ERR_INPUT;
    return status == CPL_ERR_INPUT ? CPL_OK : status;
}

cpl_status cpl_questions_count(int64_t *rows, int64_t *bad, const cpl_task *task,
                               const cpl_profile *profile, const char *data)
{
    counting c = {.task = task, .resolved = &task->parts->resolved[profile - task->profiles]};
    cpl_split_files files = {0};
    cpl_status status     = CPL_OK;
    *rows                 = -1;
    *bad                  = 0;
    CPL_ASSERT(profile->forms.count == 0);
    CPL_TRY_DONE(cpl_split_find(&files, task, c.resolved->split, data));
    if (files.source < 0) goto done;
    status = cpl_split_walk(&files, c.resolved->specs[0].question_schemas, 0, -1, count_row, &c);
    if (status == CPL_ERR_INPUT) c.bad++; /* after the damage rows are not delimited */
    if (status == CPL_ERR_INPUT) status = CPL_OK;
    *rows = c.rows;
    *bad  = c.bad;
done:
    cpl_split_files_free(&files);
    return status;
}

/* ---- the hash of a question ---- */

/* Each text is hashed with its terminating NUL, each number as a text, and each list with its
 * length before it. Two questions with the same hash are therefore equal. */

static void add_text(SHA256_CTX *sum, const char *text)
{
    const char there = text ? '=' : '-'; /* "" differs from NULL */
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
    const cpl_grading *m = &answer->grading;
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
    const int64_t numbers[] = {form->kind_index, form->joining,     form->window,
                               form->fixed,      form->stop_beyond, form->n_scores};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) add_number(sum, numbers[i]);
    for (int64_t i = 0; i < form->n_scores; i++) add_text(sum, form->scores[i]->name);
    add_texts(sum, form->until, form->n_until);
    add_number(sum, form->max_gen_toks);
    add_number(sum, form->n_answers);
    for (int64_t i = 0; i < form->n_answers; i++) add_answer(sum, &form->answers[i]);
    add_number(sum, form->filters);
}

void cpl_question_sum_options(SHA256_CTX *sum, const cpl_question *q)
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

void cpl_question_sum_text(SHA256_CTX *sum, const cpl_question *q)
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
    q->form->kind->add_to_sum(&sum, q);
    SHA256End(&sum, hex);
}
