/* step_tokens.c - the moving means of the tokens, for erc.proxy tokens (docs/method.md 3.15). See
 * step.h. */
#include <math.h>

#include "train/step.h"

static const double DECAY = 0.99;

void cpl_step_tokens_take(cpl_step *step, const cpl_model_settings *c)
{
    step->token_means = cpl_tensor_take_2d(&step->arena, c->n_layers, c->d_model + 1);
    step->host_means  = cpl_tensor_take_host(&step->arena, cpl_tensor_bytes(step->token_means));
}

/* Moves *mean by the mean of a step. The division by 1 - DECAY^t is part of `weight`. */
static void move(float *mean, double sum, double n_tokens, double weight)
{
    *mean += (float)(weight * (sum / n_tokens - (double)*mean));
}

void cpl_step_move_means(cpl_step *step, const cpl_settings *settings)
{
    const cpl_tensor means = step->token_means, moments = step->token_moments;
    if (!cpl_tensor_is_there(means)) return;
    const int64_t layers = means.shape[0], d = means.shape[1] - 1, count = layers * 2 * d;
    const double n_tokens = (double)settings->data.batch_tokens;
    const double weight   = (1 - DECAY) / (1 - pow(DECAY, (double)++step->n_means));
    double *sums = step->result + cpl_tensor_count(step->results) - cpl_tensor_count(moments);
    cpl_group_sum_f64(step->world, sums, count);
    for (int64_t l = 0; l < layers; l++) {
        const double *sum = sums + l * 2 * d, *squares = sum + d;
        float *mean   = step->host_means + l * (d + 1);
        double square = 0;
        for (int64_t k = 0; k < d; k++) move(&mean[k], sum[k], n_tokens, weight);
        for (int64_t k = 0; k < d; k++) square += squares[k];
        move(&mean[d], square, n_tokens, weight);
    }
    step->arena.be->ops->put(step->arena.be, means, step->host_means);
}

cpl_status cpl_step_use_means(cpl_step *step, int64_t n_means, const char *folder)
{
    const cpl_tensor means = step->token_means;
    step->n_means          = n_means;
    if (n_means == 0) return CPL_OK;
    step->arena.be->ops->get(step->arena.be, step->host_means, means);
    for (int64_t i = 0; i < cpl_tensor_count(means); i++) {
        const bool is_square = (i + 1) % means.shape[1] == 0;
        const float value    = step->host_means[i];
        if (!isfinite(value) || (is_square && value < 0))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: number %lld of erc.token_means is %g, which is no mean of tokens; "
                            "resume from another checkpoint",
                            folder, (long long)i, (double)value);
    }
    return CPL_OK;
}

bool cpl_step_waits_for_tokens(const cpl_step *step, const cpl_erc_settings *erc)
{
    return erc->proxy == CPL_PROXY_TOKENS && step->n_means == 0;
}

cpl_erc_settings cpl_step_erc(const cpl_step *step, const cpl_erc_settings *erc)
{
    cpl_erc_settings now = *erc;
    if (cpl_step_waits_for_tokens(step, erc)) now.proxy = CPL_PROXY_ROW;
    return now;
}

cpl_coupling_tokens cpl_step_tokens_of(const cpl_step *step, int64_t l)
{
    const cpl_tensor means = step->token_means;
    if (step->n_means == 0) return (cpl_coupling_tokens){.mean = cpl_tensor_none()};
    const int64_t d = means.shape[1] - 1, at = l * (d + 1);
    const float *mean = step->host_means + at;
    double square     = (double)mean[d];
    for (int64_t k = 0; k < d; k++) square -= (double)mean[k] * (double)mean[k];
    return (cpl_coupling_tokens){cpl_tensor_numbers(means, at, d), sqrt(fmax(square, 0))};
}
