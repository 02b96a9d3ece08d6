/* text_verdict.c - see show.h */
#include "inspect/show/show.h"

#include <math.h>

/* Bounds of the rank correlation of scores and responses, mean over the layers. From FOLLOW on
 * choices follow responses, from IN_PART on in part: docs/inspection.md, "The verdict on text". */
static const double FOLLOW = 0.6, IN_PART = 0.3;
enum { FEWEST = 100 }; /* least number of tokens for a verdict */

cpl_routing_summary cpl_routing_summary_of(const cpl_routing_report *r)
{
    cpl_routing_summary t = {.least = INFINITY, .most = -INFINITY};
    int64_t ranked = 0, kept = 0, centred = 0;
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_layer *l = &r->layers[i];
        t.top1 += l->top1 / (double)r->n_layers;
        t.overlap += l->overlap / (double)r->n_layers;
        const double rho = l->mean_token.value[CPL_MEAN_TOKEN_AGREEMENT_CENTRED];
        if (isfinite(l->m_tok.rows_own) && ++kept) t.own += l->m_tok.rows_own;
        if (l->M && isfinite(rho) && ++centred) t.centred += rho;
        if (!isfinite(l->rho_mean)) continue;
        ranked++;
        t.rho += l->rho_mean;
        t.least = fmin(t.least, l->rho_mean);
        t.most  = fmax(t.most, l->rho_mean);
    }
    t.rho /= (double)ranked; /* NaN without ranked layers */
    t.own /= (double)kept;
    t.centred /= (double)centred;
    return t;
}

static const char *state_of(const cpl_routing_summary *t, const cpl_routing_report *r)
{
    if (isnan(t->rho) || r->n_sampled < FEWEST) return NULL;
    if (t->rho <= -IN_PART) return "run against";
    return t->rho >= FOLLOW ? "follow" : t->rho >= IN_PART ? "follow in part" : "do not follow";
}

const char *cpl_routing_state(const cpl_routing_report *r)
{
    const cpl_routing_summary t = cpl_routing_summary_of(r);
    return state_of(&t, r);
}

void cpl_routing_verdict(cpl_text *out, const cpl_routing_report *r)
{
    const cpl_routing_summary t = cpl_routing_summary_of(r);
    const char *state           = state_of(&t, r);
    const double n = (double)r->n_experts, K = (double)r->top_k;
    if (!state) {
        cpl_text_printf(out, "Whether the router's choices follow the experts' responses cannot be "
                             "told: ");
        if (r->n_sampled < FEWEST)
            cpl_text_printf(out, "responses to fewer than %d tokens were computed.", FEWEST);
        else
            cpl_text_printf(out, "scores or responses of all experts are equal.");
        return;
    }
    cpl_text_printf(out,
                    "Over %lld of the %lld tokens read, the router's choices %s the experts' "
                    "responses.\nThe rank correlation of scores and responses is %.2f (by layer "
                    "%.2f to %.2f; chance: 0, the same order: 1), ",
                    (long long)r->n_sampled, (long long)r->texts.n_predictions, state, t.rho,
                    t.least, t.most);
    cpl_text_printf(out,
                    "the first choice is the expert that responds most for %.3g %% of the tokens "
                    "(chance: %.3g %%), and %.3g %% of the experts chosen are among the %lld that "
                    "respond most (chance: %.3g %%).",
                    100 * t.top1, 100 / n, 100 * t.overlap, (long long)r->top_k, 100 * K / n);
    if (isfinite(t.centred))
        cpl_text_printf(out,
                        " Without the main effects of the experts, which respond more or less to "
                        "every token, the rank correlation is %.2f.",
                        t.centred);
    if (isfinite(t.own))
        cpl_text_printf(out,
                        " The tokens of an expert excite that expert most, on average, for %.3g %% "
                        "of the experts (chance: %.3g %%).",
                        100 * t.own, 100 / n);
}
