/* questions.c - see questions.h
 *
 * Rows become questions while they are read. What stands before a question of a subject, its
 * exemplars or its prompt, is made when its first row comes. */
#include "study/eval/questions.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/paths.h"
#include "study/eval/questions_parts.h"

struct cpl_questions_store {
    cpl_pool pool;
    cpl_strings files;
    cpl_question *question; /* (room) */
    int64_t room;
    cpl_form *forms;   /* the manners' with the wished number of tokens; NULL: theirs are good */
    json_t *exemplars; /* subject ("": all) -> rows, each [values, "FILE: line LINE"] */
    json_t *before;    /* subject -> what stands before, one text for each number of exemplars */
};

typedef struct reading {
    cpl_questions *q;
    struct cpl_questions_store *store;
    const cpl_task *task;
    const cpl_way *way;
    const cpl_questions_wish *wish;
    const int64_t *shots; /* (n_shots) */
    int64_t n_shots, most_shots;
    int64_t shown; /* source of the exemplars */
} reading;

static const cpl_manner *manner_of(const cpl_way *way, const char *subject)
{
    for (int64_t i = 1; subject && i < way->n_manners; i++)
        if (cpl_names_hold(&way->manners[i].subjects, subject)) return &way->manners[i];
    return &way->manners[0];
}

/* A bad row: an error, or left out with a word. */
static cpl_status leave_out(reading *r, const char *sentence)
{
    if (!r->wish->skip_bad) return CPL_FAIL(CPL_ERR_INPUT, "%s", sentence);
    r->q->skipped++;
    if (r->wish->log) cpl_log_warn(r->wish->log, "%s; the row is left out", sentence);
    return CPL_OK;
}

static cpl_status leave_row_out(reading *r, const cpl_seen_row *row)
{
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s: line %lld: %s", row->path, (long long)row->line,
             cpl_last_error());
    return leave_out(r, sentence);
}

/* ---- exemplars ---- */

static cpl_status keep_exemplar(void *who, const cpl_seen_row *row)
{
    reading *r          = who;
    const char *subject = row->subject ? row->subject : "";
    if (!row->values) return leave_out(r, row->bad);
    json_t *rows = json_object_get(r->store->exemplars, subject);
    bool failed  = false;
    if (!rows) {
        rows   = json_array();
        failed = json_object_set_new(r->store->exemplars, subject, rows) != 0;
    }
    char place[1024];
    snprintf(place, sizeof place, "%s: line %lld", row->path, (long long)row->line);
    failed = failed || json_array_append_new(rows, json_pack("[Os]", row->values, place)) != 0;
    if (failed) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for exemplars", row->path);
    return CPL_OK;
}

static cpl_status add_files(reading *r, const cpl_split_files *files)
{
    for (int64_t i = 0; i < files->paths.count; i++)
        CPL_TRY(cpl_paths_add(&r->store->files, files->paths.at[i]));
    return CPL_OK;
}

static cpl_status read_exemplars(reading *r)
{
    const cpl_split *split = r->way->exemplars;
    const char *data       = r->wish->data;
    cpl_split_files files  = {0};
    cpl_status status      = CPL_OK;
    if (r->most_shots <= 0 || r->way->manners[0].prompt != CPL_PROMPT_NONE) return CPL_OK;
    CPL_TRY_DONE(cpl_split_find(&files, r->task, split, data));
    if (files.source < 0 && r->wish->own) {
        data = r->wish->own;
        CPL_TRY_DONE(cpl_split_find(&files, r->task, split, data));
    }
    if (files.source < 0) CPL_TRY_DONE(cpl_split_missing(r->task, split, r->wish->data));
    r->shown = files.source;
    CPL_TRY_DONE(add_files(r, &files));
    status = cpl_split_walk(&files, r->task, split, r->way->manners[0].shown, data, 0,
                            r->most_shots, keep_exemplar, r);
done:
    cpl_paths_free(&files.paths);
    return status;
}

/* Appends the first `n` exemplars of a subject. */
static cpl_status append_exemplars(cpl_text *out, reading *r, const cpl_manner *manner,
                                   const char *subject, int64_t n)
{
    json_t *rows = json_object_get(r->store->exemplars, subject ? subject : "");
    if (!rows) rows = json_object_get(r->store->exemplars, "");
    if ((int64_t)json_array_size(rows) < n)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: %lld exemplars are wanted, and the split %s has %zu%s%s", r->task->id,
                        (long long)n, r->way->exemplars->name, json_array_size(rows),
                        subject ? " of the subject " : "", subject ? subject : "");
    for (int64_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(rows, (size_t)i);
        cpl_making making  = {.task       = r->task,
                              .manner     = manner,
                              .sheet      = &manner->shown[r->shown],
                              .subject    = subject,
                              .row        = json_array_get(pair, 0),
                              .one_option = r->way->one_option};
        cpl_status status  = cpl_making_exemplar(out, &making);
        if (status == CPL_ERR_INPUT)
            return CPL_FAIL(status, "%s: %s", json_string_value(json_array_get(pair, 1)),
                            cpl_last_error());
        if (status != CPL_OK) return status;
    }
    return CPL_OK;
}

/* ---- what stands before a question ---- */

static cpl_status append_before(cpl_text *out, reading *r, const cpl_manner *manner,
                                const char *subject, int64_t shots)
{
    if (manner->prompt != CPL_PROMPT_NONE) {
        cpl_status status =
            cpl_prompt_read(out, r->task, manner, subject, r->wish->data, &r->store->files);
        if (status != CPL_ERR_INPUT || !r->wish->own) return status;
        return cpl_prompt_read(out, r->task, manner, subject, r->wish->own, &r->store->files);
    }
    return append_exemplars(out, r, manner, subject, shots > 0 ? shots : 0);
}

static cpl_status make_before(json_t *list, reading *r, const cpl_manner *manner,
                              const char *subject)
{
    cpl_text text     = {0};
    cpl_status status = CPL_OK;
    for (int64_t i = 0; status == CPL_OK && i < r->n_shots; i++) {
        cpl_text_clear(&text);
        status = append_before(&text, r, manner, subject, r->shots[i]);
        if (status == CPL_OK) status = cpl_text_status(&text);
        if (status == CPL_OK &&
            json_array_append_new(list, json_stringn(text.bytes ? text.bytes : "", text.length)))
            status = CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for exemplars", r->task->id);
    }
    cpl_text_free(&text);
    return status;
}

static cpl_status before_of(const json_t **list, reading *r, const cpl_manner *manner,
                            const char *subject)
{
    const char *key = subject ? subject : "";
    json_t *there   = json_object_get(r->store->before, key);
    *list           = there;
    if (there) return CPL_OK;
    there = json_array();
    if (json_object_set_new(r->store->before, key, there))
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for exemplars", r->task->id);
    *list = there;
    return make_before(there, r, manner, subject);
}

/* ---- questions ---- */

static cpl_status next_question(cpl_question **next, reading *r)
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

static const char *id_of(reading *r, const cpl_seen_row *row, int64_t variant)
{
    char place[64];
    snprintf(place, sizeof place, r->n_shots > 1 ? "%lld#%lld" : "%lld", (long long)row->index,
             (long long)variant);
    return cpl_pool_printf(&r->store->pool, "%s%s%s", row->subject ? row->subject : "",
                           row->subject ? "/" : "", place);
}

static cpl_status add_question(reading *r, const cpl_making *making, const cpl_seen_row *row,
                               const json_t *before, int64_t variant)
{
    struct cpl_questions_store *store = r->store;
    cpl_question *question;
    const char *text = json_string_value(json_array_get(before, (size_t)variant));
    CPL_TRY(next_question(&question, r));
    question->id   = id_of(r, row, variant);
    bool described = r->shots[variant] >= 0 && making->manner->prompt == CPL_PROMPT_NONE;
    CPL_TRY(cpl_making_question(question, &store->pool, making, text, described));
    if (store->forms) question->form = &store->forms[making->manner - r->way->manners];
    r->q->count++;
    return CPL_OK;
}

static cpl_status take_row(void *who, const cpl_seen_row *row)
{
    reading *r = who;
    if (!row->values) return leave_out(r, row->bad);
    const cpl_manner *manner = manner_of(r->way, row->subject);
    const json_t *before;
    CPL_TRY(before_of(&before, r, manner, row->subject));
    cpl_making making = {.task       = r->task,
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
        return leave_row_out(r, row);
    }
    return CPL_OK;
}

static cpl_status read_rows(reading *r)
{
    cpl_split_files files = {0};
    cpl_status status     = CPL_OK;
    int64_t limit = r->wish->limit == CPL_UNSET ? -1 : r->wish->limit, offset = r->wish->offset;
    CPL_TRY_DONE(cpl_split_find(&files, r->task, r->way->split, r->wish->data));
    if (files.source < 0) CPL_TRY_DONE(cpl_split_missing(r->task, r->way->split, r->wish->data));
    CPL_TRY_DONE(add_files(r, &files));
    if (limit != 0)
        status = cpl_split_walk(&files, r->task, r->way->split, r->way->manners[0].asked,
                                r->wish->data, offset > 0 ? offset : 0, limit, take_row, r);
done:
    cpl_paths_free(&files.paths);
    return status;
}

/* ---- wishes ---- */

static cpl_status settle_shots(reading *r)
{
    const cpl_way *way = r->way;
    int64_t wish       = r->wish->shots;
    bool prompted      = way->manners[0].prompt != CPL_PROMPT_NONE;
    r->shots           = way->shots;
    r->n_shots         = way->n_shots;
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
    return CPL_OK;
}

static cpl_status settle_forms(reading *r)
{
    const cpl_way *way = r->way;
    int64_t wish       = r->wish->max_tokens;
    cpl_form *forms    = cpl_pool_take(&r->store->pool, (size_t)way->n_manners * sizeof *forms);
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

static cpl_status start(reading *r, cpl_questions *q, const cpl_task *task,
                        const cpl_profile *profile, const cpl_questions_wish *wish)
{
    CPL_ASSERT(profile->forms.count == 0);
    *q       = (cpl_questions){.task = task, .profile = profile};
    q->store = cpl_alloc(sizeof *q->store);
    if (!q->store) return CPL_ERR_MEMORY;
    *q->store = (struct cpl_questions_store){.exemplars = json_object(), .before = json_object()};
    *r        = (reading){.q     = q,
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
                              const cpl_questions_wish *wish)
{
    reading r;
    cpl_status status = start(&r, q, task, profile, wish);
    if (status == CPL_OK) status = read_exemplars(&r);
    if (status == CPL_OK) status = read_rows(&r);
    if (status == CPL_OK) status = sort_questions(q);
    if (status == CPL_OK) status = cpl_pool_status(&q->store->pool);
    if (status != CPL_OK) {
        cpl_questions_free(q);
        return status;
    }
    q->question = q->store->question;
    q->files    = (cpl_names){(const char *const *)q->store->files.at, q->store->files.count};
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

/* ---- counting ---- */

typedef struct counting {
    const cpl_task *task;
    const cpl_way *way;
    int64_t rows, bad;
} counting;

static cpl_status count_row(void *who, const cpl_seen_row *row)
{
    counting *c       = who;
    cpl_pool pool     = {0};
    cpl_question made = {0};
    c->rows++;
    if (!row->values) {
        c->bad++;
        return CPL_OK;
    }
    const cpl_manner *manner = manner_of(c->way, row->subject);
    cpl_making making        = {.task       = c->task,
                                .manner     = manner,
                                .sheet      = &manner->asked[row->source],
                                .subject    = row->subject,
                                .row        = row->values,
                                .one_option = c->way->one_option};
    cpl_status status        = cpl_making_question(&made, &pool, &making, "", true);
    cpl_pool_free(&pool);
    c->bad += status == CPL_ERR_INPUT;
    return status == CPL_ERR_INPUT ? CPL_OK : status;
}

cpl_status cpl_questions_count(int64_t *rows, int64_t *bad, const cpl_task *task,
                               const cpl_profile *profile, const char *data)
{
    counting c            = {.task = task, .way = &task->parts->ways[profile - task->profiles]};
    cpl_split_files files = {0};
    cpl_status status     = CPL_OK;
    *rows                 = -1;
    *bad                  = 0;
    CPL_ASSERT(profile->forms.count == 0);
    CPL_TRY_DONE(cpl_split_find(&files, task, c.way->split, data));
    if (files.source < 0) goto done;
    status = cpl_split_walk(&files, task, c.way->split, c.way->manners[0].asked, data, 0, -1,
                            count_row, &c);
    if (status == CPL_ERR_INPUT) c.bad++; /* behind the damage nothing can be told apart */
    if (status == CPL_ERR_INPUT) status = CPL_OK;
    *rows = c.rows;
    *bad  = c.bad;
done:
    cpl_paths_free(&files.paths);
    return status;
}
