/* coupling_verdict.c - see coupling_verdict.h */
#include "study/coupling_verdict.h"

/* Means over the layers that have M. */
typedef struct tally {
    int64_t layers, met, above, below; /* met: alpha_min <= 1; above, below: |z| > 3 */
    double own, chance, assigned;      /* shares */
} tally;

static const double FAR = 3; /* standard deviations that count as more than chance */

static tally tally_of(const cpl_coupling_report *r)
{
    tally t = {0};
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_layer_report *layer = &r->layers[l];
        if (layer->fault || !layer->has_M) continue;
        t.layers++;
        t.met += layer->ratios.most <= 1;
        t.above += layer->chance.z > FAR;
        t.below += layer->chance.z < -FAR;
        t.own += layer->chance.kappa_rows_own;
        t.assigned += layer->chance.assignment_own;
        t.chance += 1.0 / (double)layer->at->n;
    }
    const double layers = t.layers ? (double)t.layers : 1;
    t.own /= layers;
    t.assigned /= layers;
    t.chance /= layers;
    return t;
}

static void say_shares(cpl_text *out, const tally *t)
{
    cpl_text_printf(out,
                    "%.3g %% of the router rows excite their own expert most (chance: %.3g %%)",
                    100 * t->own, 100 * t->chance);
}

void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *r)
{
    const tally t       = tally_of(r);
    const long long met = (long long)t.met, layers = (long long)t.layers;
    if (layers == 0) {
        cpl_text_printf(out, "No layer has a coupling matrix that means something: nothing is said "
                             "on whether router and experts agree.");
    } else if (met == layers) {
        cpl_text_printf(out,
                        "Router and experts agree: in every layer measured (%lld) each router "
                        "row excites its own expert most, and each expert is excited most by "
                        "its own row.",
                        layers);
    } else if (2 * t.above >= t.layers) {
        cpl_text_printf(out, "Router and experts agree better than chance in %lld of %lld layers: ",
                        (long long)t.above, layers);
        say_shares(out, &t);
        cpl_text_printf(out, "; all of ERC's constraints are met in %lld.", met);
    } else if (2 * t.below >= t.layers) {
        cpl_text_printf(out,
                        "Router and experts agree less than chance would have it in %lld of "
                        "%lld layers: ",
                        (long long)t.below, layers);
        say_shares(out, &t);
        cpl_text_printf(out, ".");
    } else {
        cpl_text_printf(out,
                        "Router and experts agree no better than chance in %lld of %lld "
                        "layers: ",
                        (long long)(t.layers - t.above - t.below), layers);
        say_shares(out, &t);
        cpl_text_printf(out, ".");
    }
}
