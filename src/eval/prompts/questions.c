/* questions.c - see questions.h
 *
 * Rows become questions while they are read. What stands before a question of a subject, its
 * exemplars or its prompt, is made when its first row comes (fewshot.c). */
#include "eval/prompts/questions.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "eval/prompts/questions_internal.h"
#include "io/paths.h"

const cpl_prompt_spec *cpl_resolved_profile_prompt(const cpl_resolved_profile *way,
                                                   const char *subject)
{
    for (int64_t i = 1; subject && i < way->n_manners; i++)
        if (cpl_string_list_holds(&way->manners[i].subjects, subject)) return &way->manners[i];
    return &way->manners[0];
}

cpl_status cpl_reading_leave_out(cpl_reading *r, const cpl_seen_row *row)
{
    char sentence[1024];
    if (row->values)
        snprintf(sentence, sizeof sentence, "%s: line %lld: %s", row->path, (long long)row->line,
                 cpl_last_error());
    else
        snprintf(sentence, sizeof sentence, "%s", row->bad);
    if (!r->wish->skip_bad) return CPL_FAIL(CPL_ERR_INPUT, "%s", sentence);
    r->q->skipped++;
    if (r->wish->log) cpl_log_warn(r->wish->log, "%s; the row is left out", sentence);
    return CPL_OK;
}

cpl_status cpl_reading_add_files(cpl_reading *r, const cpl_split_files *files)
{
    for (int64_t i = 0; i < files->paths.count; i++)
        CPL_TRY(cpl_paths_add(&r->store->files, files->paths.at[i]));
    for (int64_t i = 0; i < files->labels.count; i++)
        CPL_TRY(cpl_paths_add(&r->store->files, files->labels.at[i]));
    return CPL_OK;
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

static cpl_status add_question(cpl_reading *r, const cpl_prompt_input *making,
                               const cpl_seen_row *row, const json_t *before, int64_t variant)
{
    struct cpl_questions_store *store = r->store;
    cpl_question *question;
    const char *text = json_string_value(json_array_get(before, (size_t)variant));
    CPL_TRY(next_question(&question, r));
    question->id   = id_of(r, row, variant);
    bool described = r->shots[variant] >= 0 && making->manner->prompt == CPL_PROMPT_NONE;
    CPL_TRY(cpl_prompt_input_question(question, &store->pool, making, text, described));
    if (store->forms) question->form = &store->forms[making->manner - r->way->manners];
    r->q->count++;
    return CPL_OK;
}

static cpl_status take_row(void *ctx, cpl_seen_row *row)
{
    cpl_reading *r = ctx;
    if (!row->values) return cpl_reading_leave_out(r, row);
    if (row->subject && cpl_task_find_subject(r->task, row->subject) != CPL_OK)
        return cpl_reading_leave_out(r, row);
    const cpl_prompt_spec *manner = cpl_resolved_profile_prompt(r->way, row->subject);
    const json_t *before;
    CPL_TRY(cpl_reading_before(&before, r, manner, row->subject));
    cpl_prompt_input making = {.task       = r->task,
                               .manner     = manner,
                               .sheet      = &manner->asked[row->source],
                               .row        = row->values,
                               .one_option = r->way->one_option};
    if (row->subject)
        making.subject = cpl_pool_copy(&r->store->pool, row->subject, strlen(row->subject));
    int64_t first = r->q->count;
    for (int64_t i = 0; i < r->n_shots; i++) {
        cpl_status status = add_question(r, &making, row, before, i);
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
    int64_t limit = r->wish->limit == CPL_UNSET ? -1 : r->wish->limit, offset = r->wish->offset;
    CPL_TRY_DONE(cpl_split_find(&files, r->task, r->way->split, r->wish->data));
    if (files.source < 0) CPL_TRY_DONE(cpl_split_missing(r->task, r->way->split, r->wish));
    CPL_TRY_DONE(cpl_reading_add_files(r, &files));
    if (limit != 0)
        status = cpl_split_walk(&files, r->task, r->way->split, r->way->manners[0].asked,
                                r->wish->data, offset > 0 ? offset : 0, limit, take_row, r);
done:
    cpl_split_files_free(&files);
    return status;
}

/* ---- wishes ---- */

static cpl_status settle_shots(cpl_reading *r)
{
    const cpl_resolved_profile *way = r->way;
    int64_t wish                    = r->wish->shots;
    bool prompted                   = way->manners[0].prompt != CPL_PROMPT_NONE;
    r->shots                        = way->shots;
    r->n_shots                      = way->n_shots;
    if (wish != CPL_UNSET && !(prompted && wish == way->shots[0])) {
        if (prompted)
            return CPL_FAIL(
                CPL_ERR_INPUT,
                "%s: the %lld exemplars of %s are a file of their own and cannot be %lld",
                r->task->id, (long long)way->shots[0], r->q->profile->name, (long long)wish);
        if (wish < 0 || (wish > 0 && !way->exemplars))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: the profile %s has no exemplars, and %lld are wanted", r->task->id,
                            r->q->profile->name, (long long)wish);
        r->shots   = &r->wish->shots;
        r->n_shots = 1;
    }
    for (int64_t i = 0; i < r->n_shots; i++)
        if (r->shots[i] > r->most_shots) r->most_shots = r->shots[i];
    r->q->shots = r->shots[r->n_shots - 1] > 0 ? r->shots[r->n_shots - 1] : 0;
    r->q->fewer = cpl_reading_shows(r);
    if (r->n_shots > 1) r->q->all_shots = r->q->profile->shots;
    return CPL_OK;
}

static cpl_status settle_forms(cpl_reading *r)
{
    const cpl_resolved_profile *way = r->way;
    int64_t wish                    = r->wish->max_tokens;
    cpl_request_spec *forms =
        cpl_pool_take(&r->store->pool, (size_t)way->n_manners * sizeof *forms);
    if (!forms) return cpl_pool_status(&r->store->pool);
    for (int64_t i = 0; i < way->n_manners; i++) {
        forms[i] = way->manners[i].form;
        if (forms[i].ask != CPL_ASK_GENERATE) continue;
        if (wish != CPL_UNSET) forms[i].max_gen_toks = wish;
        if (forms[i].max_gen_toks > r->q->max_tokens) r->q->max_tokens = forms[i].max_gen_toks;
    }
    r->store->forms = forms;
    return CPL_OK;
}

/* Subject after subject; those of one stay in their order. */
static int by_subject(const void *a, const void *b)
{
    const cpl_question *x = *(cpl_question *const *)a, *y = *(cpl_question *const *)b;
    int order = x->subject && y->subject ? strcmp(x->subject, y->subject) : 0;
    return order ? order : (x > y) - (x < y);
}

static cpl_status sort_questions(cpl_questions *q)
{
    struct cpl_questions_store *store = q->store;
    if (!q->count || !store->question[0].subject) return CPL_OK;
    cpl_question **order = cpl_alloc((size_t)q->count * sizeof(cpl_question *));
    cpl_question *sorted = cpl_alloc((size_t)q->count * sizeof *sorted);
    if (order && sorted) {
        for (int64_t i = 0; i < q->count; i++) order[i] = &store->question[i];
        qsort(order, (size_t)q->count, sizeof *order, by_subject);
        for (int64_t i = 0; i < q->count; i++) sorted[i] = *order[i];
        cpl_free(store->question);
        store->question = sorted;
    }
    cpl_free(order);
    if (order && sorted) return CPL_OK;
    cpl_free(sorted);
    return CPL_ERR_MEMORY;
}

cpl_status cpl_reading_start(cpl_reading *r, cpl_questions *q, const cpl_task *task,
                             const cpl_profile *profile, const cpl_questions_options *wish)
{
    CPL_ASSERT(profile->forms.count == 0);
    *q       = (cpl_questions){.task = task, .profile = profile};
    q->store = cpl_alloc(sizeof *q->store);
    if (!q->store) return CPL_ERR_MEMORY;
    *q->store = (struct cpl_questions_store){.exemplars = json_object(), .before = json_object()};
    *r        = (cpl_reading){.q     = q,
                              .store = q->store,
                              .task  = task,
                              .wish  = wish,
                              .way   = &task->parts->ways[profile - task->profiles]};
    if (!q->store->exemplars || !q->store->before)
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for questions", task->id);
    CPL_TRY(settle_shots(r));
    return settle_forms(r);
}

cpl_status cpl_questions_read(cpl_questions *q, const cpl_task *task, const cpl_profile *profile,
                              const cpl_questions_options *wish)
{
    cpl_reading r;
    cpl_status status = cpl_reading_start(&r, q, task, profile, wish);
    if (status == CPL_OK) status = cpl_reading_exemplars(&r);
    if (status == CPL_OK) status = read_rows(&r);
    if (status == CPL_OK) status = sort_questions(q);
    if (status == CPL_OK) status = cpl_pool_status(&q->store->pool);
    if (status != CPL_OK) {
        cpl_questions_free(q);
        return status;
    }
    q->question = q->store->question;
    q->files    = (cpl_string_list){(const char *const *)q->store->files.at, q->store->files.count};
    return CPL_OK;
}

void cpl_questions_free(cpl_questions *q)
{
    if (q->store) {
        json_decref(q->store->exemplars);
        json_decref(q->store->before);
        cpl_paths_free(&q->store->files);
        cpl_pool_free(&q->store->pool);
        cpl_free(q->store->question);
        cpl_free(q->store);
    }
    *q = (cpl_questions){0};
}
