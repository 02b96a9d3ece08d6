/* answering_parts.h - what the files of answering.h share.
 *
 * Room:  study/eval. answering.c cuts questions into blocks; answering_rank.c and
 *        answering_generate.c ask one block. */
#ifndef CPL_STUDY_EVAL_ANSWERING_PARTS_H
#define CPL_STUDY_EVAL_ANSWERING_PARTS_H

#include "study/eval/answering.h"
#include "study/eval/encode.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cpl_answering_work {
    const cpl_answering *a;
    const cpl_answering_listener *listener;
    const cpl_question *question; /* (n) all of them */
    int64_t n;
    cpl_encoding encoding;
    cpl_ids ids; /* of the block */
    int64_t done, of;
} cpl_answering_work;

/* Asks the block of questions of one kind that begins at `first`, hands its samples out and sets `last` to where
 * the next one begins. */
CPL_NODISCARD cpl_status cpl_answering_rank(cpl_answering_work *w, int64_t first, int64_t *last);
CPL_NODISCARD cpl_status cpl_answering_generate(cpl_answering_work *w, int64_t first,
                                                int64_t *last);

/* Tells the listener that one more is done; a cpl_asker_done of the work. */
CPL_NODISCARD cpl_status cpl_answering_count(void *work, int64_t index);

/* The sequences that a ranked question asks for: its options, and where its scores want them the
 * same continuations behind the bare context. */
int64_t cpl_answering_requests(const cpl_question *q);

/* The tokens that a question of this form may have. */
int64_t cpl_answering_window_of(const cpl_answering *a, const cpl_form *form);

/* Adds to a failure which question it is about. */
CPL_NODISCARD cpl_status cpl_answering_about(cpl_status status, const cpl_question *q);

/* CPL_ERR_INPUT where tokens of it are cut off and its form does not allow it. */
CPL_NODISCARD cpl_status cpl_answering_fits(const cpl_encoded *encoded, const cpl_form *form);

#ifdef __cplusplus
}
#endif
#endif /* CPL_STUDY_EVAL_ANSWERING_PARTS_H */
