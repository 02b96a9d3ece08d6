/* plain_score.h - the log-likelihood of tokens by one forward pass without a cache. */
#ifndef CPL_TESTS_SUPPORT_PLAIN_SCORE_H
#define CPL_TESTS_SUPPORT_PLAIN_SCORE_H

#include "check.h"
#include "infer/lm_batch.h"
#include "support/mirror.h"

/* Of what `one` asks, by cpl_model_score. */
static inline double plain_score(cpl_model *model, const cpl_lm_request *one)
{
    enum { MOST = 64 };
    const int64_t T = one->length - 1;
    int32_t target[MOST];
    cpl_tensor_arena arena;
    cpl_pass pass;
    cpl_work work = cpl_pass_work(&model->config, T, false);
    assert_true(T <= MOST);
    assert_ok(cpl_backend_reserve(model->be, &work));
    arena = cpl_tensor_arena_measure();
    cpl_pass_take(&pass, &arena, &model->config, 1, T, false, false);
    assert_ok(cpl_tensor_arena_init(&arena, model->be, &arena, "a test"));
    cpl_pass_take(&pass, &arena, &model->config, 1, T, false, false);
    cpl_model_forward(model, &pass,
                      mirrored(model->be, cpl_tensor_1d((void *)(uintptr_t)one->ids, CPL_I32, T)),
                      cpl_tensor_none(), NULL);
    for (int64_t i = 0; i < T; i++)
        target[i] = i + 1 >= one->length - one->scored ? one->ids[i + 1] : -1;
    double nll = 0;
    cpl_model_score(model, &pass, mirrored(model->be, cpl_tensor_1d(&nll, CPL_F64, 1)),
                    mirrored(model->be, cpl_tensor_1d(target, CPL_I32, T)));
    mirrors_end(model->be);
    cpl_tensor_arena_free(&arena);
    return -nll;
}

#endif /* CPL_TESTS_SUPPORT_PLAIN_SCORE_H */
