/* poison_route.c - the wrapped operations of routing. */
#include "tensor/poison/poison.h"

void cpl_poison_route(cpl_backend *be, cpl_tensor probs, cpl_tensor lse, cpl_tensor expert,
                      cpl_tensor weight, cpl_tensor logits, cpl_routing how)
{
    const int64_t T = logits.shape[0], n = logits.shape[1], K = expert.shape[1];
    CPL_ASSERT(K >= 1 && K <= n);
    cpl_poison_fits(logits, CPL_F32, T, n);
    cpl_poison_fits(probs, CPL_F32, T, n);
    cpl_poison_holds(lse, CPL_F32, T);
    cpl_poison_fits(expert, CPL_I32, T, K);
    cpl_poison_fits(weight, CPL_F32, T, K);
    CPL_ASSERT(how.sigmoid || !how.bias.storage);
    if (how.bias.storage) cpl_poison_holds(how.bias, CPL_F32, n);
    cpl_poison_apart(CPL_POISON_LIST(probs, lse, expert, weight),
                     CPL_POISON_LIST(logits, how.bias));
    cpl_poison_set(probs);
    cpl_poison_set(lse);
    cpl_poison_set(expert);
    cpl_poison_set(weight);
    CPL_POISON_CALL(route, probs, lse, expert, weight, logits, how);
    cpl_poison_in_range(expert, 0, n);
}

void cpl_poison_route_stats(cpl_backend *be, cpl_tensor counts, cpl_tensor mean_prob, cpl_tensor z,
                            cpl_tensor entropy, cpl_tensor probs, cpl_tensor lse, cpl_tensor expert,
                            bool sigmoid)
{
    const int64_t T = probs.shape[0], n = probs.shape[1];
    cpl_poison_holds(counts, CPL_F32, n);
    cpl_poison_holds(mean_prob, CPL_F32, n);
    cpl_poison_holds(z, CPL_F32, 1);
    cpl_poison_holds(entropy, CPL_F32, 1);
    cpl_poison_fits(probs, CPL_F32, T, n);
    cpl_poison_holds(lse, CPL_F32, T);
    cpl_poison_fits(expert, CPL_I32, T, expert.shape[1]);
    cpl_poison_in_range(expert, 0, n);
    cpl_poison_apart(CPL_POISON_LIST(counts, mean_prob, z, entropy),
                     CPL_POISON_LIST(probs, lse, expert));
    cpl_poison_set(counts);
    cpl_poison_set(mean_prob);
    cpl_poison_set(z);
    cpl_poison_set(entropy);
    CPL_POISON_CALL(route_stats, counts, mean_prob, z, entropy, probs, lse, expert, sigmoid);
}

void cpl_poison_route_backward(cpl_backend *be, cpl_tensor dlogits, cpl_tensor dweight,
                               cpl_tensor probs, cpl_tensor lse, cpl_tensor expert,
                               cpl_tensor weight, cpl_tensor counts, float balance_scale,
                               float z_scale, cpl_routing how)
{
    const int64_t T = probs.shape[0], n = probs.shape[1], K = expert.shape[1];
    cpl_poison_fits(dlogits, CPL_F32, T, n);
    cpl_poison_fits(dweight, CPL_F32, T, K);
    cpl_poison_fits(probs, CPL_F32, T, n);
    cpl_poison_holds(lse, CPL_F32, T);
    cpl_poison_fits(expert, CPL_I32, T, K);
    cpl_poison_fits(weight, CPL_F32, T, K);
    cpl_poison_holds(counts, CPL_F32, n);
    cpl_poison_in_range(expert, 0, n);
    CPL_ASSERT(!how.sigmoid || z_scale == 0);
    cpl_poison_apart(CPL_POISON_LIST(dlogits),
                     CPL_POISON_LIST(dweight, probs, lse, expert, weight, counts));
    cpl_poison_set(dlogits);
    CPL_POISON_CALL(route_backward, dlogits, dweight, probs, lse, expert, weight, counts,
                    balance_scale, z_scale, how);
}

void cpl_poison_balance_bias(cpl_backend *be, cpl_tensor bias, cpl_tensor load, float rate)
{
    const int64_t n = cpl_tensor_count(bias);
    cpl_poison_holds(bias, CPL_F32, n);
    cpl_poison_holds(load, CPL_F32, n);
    cpl_poison_apart(CPL_POISON_LIST(bias), CPL_POISON_LIST(load));
    CPL_POISON_CALL(balance_bias, bias, load, rate);
}

void cpl_poison_orthogonality(cpl_backend *be, cpl_tensor loss, cpl_tensor dR, cpl_tensor R,
                              float scale)
{
    cpl_poison_holds(loss, CPL_F64, 1);
    CPL_ASSERT(R.rank == 2);
    cpl_poison_fits(R, CPL_F32, R.shape[0], R.shape[1]);
    if (dR.storage) cpl_poison_fits(dR, CPL_F32, R.shape[0], R.shape[1]);
    cpl_poison_apart(CPL_POISON_LIST(loss, dR), CPL_POISON_LIST(R));
    CPL_POISON_CALL(orthogonality, loss, dR, R, scale);
}

void cpl_poison_dispatch(cpl_backend *be, cpl_dispatch plan, cpl_tensor expert, int64_t n_experts)
{
    const int64_t T = expert.shape[0], K = expert.shape[1];
    cpl_poison_holds(plan.offset, CPL_I32, n_experts + 1);
    cpl_poison_holds(plan.token, CPL_I32, T * K);
    cpl_poison_fits(plan.row, CPL_I32, T, K);
    cpl_poison_fits(expert, CPL_I32, T, K);
    cpl_poison_in_range(expert, 0, n_experts);
    cpl_poison_apart(CPL_POISON_LIST(plan.offset, plan.token, plan.row), CPL_POISON_LIST(expert));
    cpl_poison_set(plan.offset);
    cpl_poison_set(plan.token);
    cpl_poison_set(plan.row);
    CPL_POISON_CALL(dispatch, plan, expert, n_experts);
    cpl_poison_plan(plan, T, K, n_experts);
}
