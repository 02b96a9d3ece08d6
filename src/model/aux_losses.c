/* aux_losses.c - see aux_losses.h */
#include "model/aux_losses.h"

#include <math.h>

#include "model/coupling.h"

const cpl_aux_loss_row cpl_aux_losses[CPL_N_AUX_LOSSES] = {
#define CPL_LOSS(id, name, label, needs, unset, where, per_layer, help)                            \
    {#name,     label,                                                                             \
     help,      CPL_NEEDS_##needs,                                                                 \
     unset,     CPL_NEEDS_##where,                                                                 \
     per_layer, offsetof(cpl_aux_settings, name.weight)},
#include "model/aux_losses.def"
};

const char *cpl_erc_proxy_name(int proxy)
{
    return proxy == CPL_PROXY_CENTRED ? "centred" : proxy == CPL_PROXY_TOKENS ? "tokens" : "row";
}

/* ---- weights ---- */

double cpl_aux_weight(const cpl_aux_settings *losses, cpl_aux_loss which)
{
    return *(const double *)(const void *)((const char *)losses +
                                           cpl_aux_losses[which].weight_offset);
}

static cpl_status refuse(const cpl_aux_loss_row *row, double weight,
                         const cpl_model_settings *model)
{
    static const char *const lacks[] = {
        [CPL_NEEDS_ROWS]      = "it has no router rows",
        [CPL_NEEDS_LOGSUMEXP] = "its scores have no denominator (logsumexp)",
        [CPL_NEEDS_SOFTMAX]   = "its scores are no softmax of a router's logits",
    };
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s.weight is %g, but model.router is %s (%s): %s cannot be computed, since %s",
                    row->name, weight, cpl_router_of(model)->name,
                    cpl_router_of(model)->description, row->help, lacks[row->needs]);
}

cpl_status cpl_aux_resolve(cpl_aux_settings *losses, const cpl_model_settings *model)
{
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
        const cpl_aux_loss_row *row = &cpl_aux_losses[i];
        double *weight              = (double *)(void *)((char *)losses + row->weight_offset);
        if (isnan(*weight)) *weight = cpl_router_meets(model, row->where) ? row->unset_weight : 0;
        if (*weight > 0 && !cpl_router_meets(model, row->needs)) return refuse(row, *weight, model);
    }
    if (losses->erc.proxy != CPL_PROXY_ROW && !cpl_router_of(model)->has_rows)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "erc.proxy is %s, but model.router is %s, which has no router rows",
                        cpl_erc_proxy_name(losses->erc.proxy), cpl_router_of(model)->name);
    if (losses->erc.gradient != CPL_ERC_TO_BOTH && !cpl_router_of(model)->has_rows)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "erc.gradient is %s, but model.router is %s, which has no router rows",
                        losses->erc.gradient == CPL_ERC_TO_ROUTER ? "router" : "experts",
                        cpl_router_of(model)->name);
    if (losses->erc.proxy == CPL_PROXY_CENTRED && model->n_experts < 3)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "erc.proxy is centred, but model.num_experts is %lld: centred rows of fewer "
            "than 3 experts have equal lengths and one direction",
            (long long)model->n_experts);
    return cpl_erc_check_layers(&losses->erc, model->n_layers);
}

/* ---- formulas ---- */

double cpl_aux_balance_loss(double dot, int64_t n_experts, int64_t n_tokens, int64_t top_k)
{
    return (double)n_experts * dot / ((double)n_tokens * (double)top_k);
}

float cpl_aux_balance_scale(double weight, int64_t n_experts, int64_t n_tokens, int64_t top_k)
{
    double t = (double)n_tokens;
    return (float)(weight * (double)n_experts / (t * (double)top_k * t));
}

double cpl_aux_z_factor(const cpl_z_settings *z, int64_t top_k)
{
    return z->form == CPL_Z_OVER_K ? 1.0 / (double)top_k : 1.0;
}

void cpl_aux_orthogonality(cpl_backend *be, cpl_tensor loss, cpl_layer_params *dw,
                           const cpl_layer_params *w, double weight)
{
    be->ops->orthogonality(be, loss, dw ? dw->router : cpl_tensor_none(), w->router, (float)weight);
}
