/* balance.c - see balance.h */
#include "model/balance.h"

double cpl_balance_loss(cpl_backend *be, cpl_tensor counts, cpl_tensor mean_prob, int64_t n_tokens,
                        int64_t top_k)
{
    double n = (double)cpl_tensor_count(counts);
    return n * be->ops->dot(be, counts, mean_prob) / ((double)n_tokens * (double)top_k);
}

float cpl_balance_scale(double weight, int64_t n_experts, int64_t n_tokens, int64_t top_k)
{
    double t = (double)n_tokens;
    return (float)(weight * (double)n_experts / (t * (double)top_k * t));
}

double cpl_z_factor(const cpl_z_settings *z, int64_t top_k)
{
    return z->form == CPL_Z_OVER_K ? 1.0 / (double)top_k : 1.0;
}

void cpl_balance_move_bias(cpl_backend *be, cpl_tensor bias, cpl_tensor load, double rate)
{
    be->ops->balance_bias(be, bias, load, (float)rate);
}

double cpl_balance_orthogonality(cpl_backend *be, cpl_tensor dR, cpl_tensor R, double weight)
{
    return be->ops->orthogonality(be, dR, R, (float)weight);
}
