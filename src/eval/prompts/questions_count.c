/* questions_count.c - how many rows there are, and how many bad ones; see questions.h */
#include "eval/prompts/questions_internal.h"
#include "io/paths.h"

typedef struct counting {
    const cpl_task *task;
    const cpl_resolved_profile *way;
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
    const cpl_prompt_spec *manner = cpl_resolved_profile_prompt(c->way, row->subject);
    cpl_prompt_input making       = {.task       = c->task,
                                     .manner     = manner,
                                     .sheet      = &manner->asked[row->source],
                                     .subject    = row->subject,
                                     .row        = row->values,
                                     .one_option = c->way->one_option};
    cpl_status status             = cpl_prompt_input_question(&made, &pool, &making, "", true);
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
    cpl_split_files_free(&files);
    return status;
}
