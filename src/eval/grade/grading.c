/* grading.c - see grading.h */
#include "eval/grade/grading.h"

void cpl_grading_scratch_free(cpl_grading_scratch *room)
{
    cpl_text_free(&room->answer);
    cpl_text_free(&room->reference);
    cpl_text_free(&room->spare);
}

/* The score against one reference. */
static double score_of(const cpl_grade *mark, bool has_normal, const cpl_grading *m,
                       cpl_span reference, cpl_grading_scratch *room)
{
    cpl_span wanted = reference;
    bool there      = m->reference ? m->reference->find(&wanted, reference) : true;
    if (!mark->found || !there)
        return mark->found == there ? m->comparison->score_if_both_empty : 0;
    if (!has_normal || !m->normal->make(&room->reference, wanted, &room->spare))
        return cpl_span_equal(mark->answer, wanted);
    return m->comparison->score(mark->normal, cpl_span_text(&room->reference), &room->spare);
}

cpl_status cpl_grading_grade(cpl_grade *mark, const cpl_grading *m, cpl_span text,
                             const cpl_span *references, int64_t n_references,
                             cpl_grading_scratch *room)
{
    *mark           = (cpl_grade){0};
    mark->found     = m->filter->find(&mark->answer, text);
    bool has_normal = mark->found && m->normal->make(&room->answer, mark->answer, &room->spare);
    mark->normal    = has_normal ? cpl_span_text(&room->answer) : mark->answer;
    for (int64_t i = 0; i < n_references; i++) {
        double score = score_of(mark, has_normal, m, references[i], room);
        if (score > mark->score) mark->score = score;
    }
    mark->correct = mark->score >= 1;
    CPL_TRY(cpl_text_status(&room->answer));
    CPL_TRY(cpl_text_status(&room->reference));
    return cpl_text_status(&room->spare);
}
