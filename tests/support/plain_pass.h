/* plain_pass.h - one forward pass of a model without a cache: its logits, and the log-likelihood of
 * tokens. */
#ifndef CPL_TESTS_SUPPORT_PLAIN_PASS_H
#define CPL_TESTS_SUPPORT_PLAIN_PASS_H

#include "check.h"
#include "infer/lm_batch.h"
#include "support/mirror.h"
#include "tensor/backend/backend.h"

/* Runs the model over ids [T]. The caller frees the arena of the pass. */
static inline cpl_tensor_arena plain_pass(cpl_pass *pass, cpl_model *model, const int32_t *ids,
                                          int64_t T)
{
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    const cpl_work work    = cpl_pass_work(&model->config, T, false);
    assert_ok(cpl_backend_reserve(model->be, &work));
    cpl_pass_take(pass, &arena, &model->config, 1, T, false, false);
    assert_ok(cpl_tensor_arena_init(&arena, model->be, &arena, "a test"));
    cpl_pass_take(pass, &arena, &model->config, 1, T, false, false);
    cpl_model_forward(model, pass,
                      mirrored(model->be, cpl_tensor_1d((void *)(uintptr_t)ids, CPL_I32, T)),
                      cpl_tensor_none(), NULL);
    return arena;
}

/* Returns logits [T,V]. The caller frees them. */
static inline float *plain_logits(cpl_model *model, const int32_t *ids, int64_t T)
{
    const int64_t vocab = model->config.vocab_size;
    float *logits       = calloc((size_t)(T * vocab), sizeof *logits);
    cpl_pass pass;
    cpl_tensor_arena arena = plain_pass(&pass, model, ids, T);
    cpl_model_logits(model, &pass, mirrored(model->be, cpl_tensor_2d(logits, CPL_F32, T, vocab)),
                     0);
    mirrors_end(model->be);
    cpl_tensor_arena_free(&arena);
    return logits;
}

/* Returns the log-likelihood that `one` asks for, by cpl_model_score. */
static inline double plain_score(cpl_model *model, const cpl_lm_request *one)
{
    enum { MOST = 64 };
    const int64_t T = one->length - 1;
    int32_t target[MOST];
    double nll = 0;
    cpl_pass pass;
    assert_true(T <= MOST);
    cpl_tensor_arena arena = plain_pass(&pass, model, one->ids, T);
    for (int64_t i = 0; i < T; i++)
        target[i] = i + 1 >= one->length - one->scored ? one->ids[i + 1] : -1;
    cpl_model_score(model, &pass, mirrored(model->be, cpl_tensor_1d(&nll, CPL_F64, 1)),
                    mirrored(model->be, cpl_tensor_1d(target, CPL_I32, T)));
    mirrors_end(model->be);
    cpl_tensor_arena_free(&arena);
    return -nll;
}

#endif /* CPL_TESTS_SUPPORT_PLAIN_PASS_H */
