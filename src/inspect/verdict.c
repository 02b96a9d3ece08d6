/* verdict.c - see show.h */
#include "inspect/show.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* The bounds of docs/inspection.md, "The verdict". */
static const double KEPT = 0.05;    /* pairs that a coupled layer may violate at alpha 1 */
static const double WEAK = 1.0 / 3; /* ... of a weakly coupled model, mean over the layers */
static const double CHANCE =
    2.0 / 3;                       /* ... of entries of M that have nothing to do with each other */
static const double NEARLY = 0.9;  /* share of the layers */
static const double RARE   = 0.01; /* probability of what is no chance */
enum { FEW = 6 }; /* experts: random weights of fewer keep the bounds now and then */

/* A sample leaves figures within bounds, whose ends have a verdict each; of all rows both are the same. */
enum { WORST, BEST, ENDS };

/* Sums over the layers with M and more than one expert; then means. */
typedef cpl_coupling_rows of_rows;

typedef struct tally {
    of_rows stored, centred; /* stored: the noisy ones with --noise, when there are none centred */
    int64_t layers, lone;    /* those; those with a single expert */
    int64_t coupled, few;    /* layers; of them those of few experts */
    int64_t by_chance;       /* of few experts, that random weights may have: they count as none */
    double chance, violated; /* own share by chance; the smaller share of the two sets */
    double expected;         /* coupled layers of few experts, of random weights */
} tally;

/* Of a layer's stored or centred rows. */
typedef struct figures {
    double own, violated, alpha, z;
    bool shows; /* z is above 0. A matrix that is the same everywhere, or zero, shows nothing */
} figures;

static bool sampled(const cpl_layer_report *l)
{
    return !l->has_M && l->sample && l->sample->has_M;
}

static bool has_centred(const cpl_layer_report *l)
{
    return sampled(l) ? l->sample->has_centred : l->centred.has_M;
}

/* Where the own kappa of every row, or of every column, is the largest, z is above 0, if there is one. */
static figures figures_within(const cpl_row_bounds *b, cpl_interval z, int end)
{
    const bool sure = z.low > 0 || b->rows_own.low >= 1 || b->columns_own.low >= 1;
    if (end == BEST)
        return (figures){b->rows_own.high, b->violated.low, b->alpha_min.low, z.high, z.high > 0};
    return (figures){b->rows_own.low, b->violated.high, b->alpha_min.high, z.low,
                     !isnan(z.low) && sure};
}

static figures figures_of(const cpl_layer_report *l, bool centred, int end)
{
    const cpl_sample_report *s      = l->sample;
    const cpl_centred_report *c     = &l->centred;
    const cpl_null_model *chance    = centred ? &c->chance : &l->chance;
    const cpl_null_model_ratios *of = centred ? &c->ratios : &l->ratios;
    if (sampled(l))
        return figures_within(centred ? &s->centred_bounds : &s->bounds,
                              (centred ? &s->centred_estimates : &s->estimates)->z, end);
    return (figures){chance->kappa_row_top1, of->violated, of->most, chance->z,
                     chance->z > 0 && (centred ? c->figures : l->figures).m_diagonal > 0};
}

static void add_rows(of_rows *t, const cpl_layer_report *l, bool centred, int end)
{
    const figures f = figures_of(l, centred, end);
    t->least        = t->layers++ ? fmin(t->least, f.alpha) : f.alpha;
    t->most         = fmax(t->most, f.alpha);
    t->own += f.own;
    t->violated += f.violated;
    if (!isfinite(f.z)) return;
    t->with_z++;
    t->z += f.z;
}

static bool has_M(const cpl_layer_report *l)
{
    return !l->fault && (l->has_M || sampled(l));
}

static bool counts(const cpl_layer_report *l)
{
    return has_M(l) && l->at->n > 1;
}

/* The share of pairs violated at alpha 1: by the rows of which fewer are. */
static double violated_in(const cpl_layer_report *l, int end)
{
    double least = 1;
    for (int centred = 0; centred <= has_centred(l); centred++) {
        const figures f = figures_of(l, centred, end);
        if (f.shows) least = fmin(least, f.violated);
    }
    return least;
}

/* The share of layers with random weights of which a set of rows keeps the bounds. */
static double kept_by_chance(int64_t n)
{
    static const double share[FEW] = {0, 0, 1.0 / 6, 1.0 / 30, 1.0 / 400, 1.0 / 1500};
    return n < FEW ? share[n] : 0;
}

static void add_layer(tally *t, const cpl_layer_report *l, int end)
{
    t->lone += has_M(l) && l->at->n == 1;
    if (!counts(l)) return;
    add_rows(&t->stored, l, false, end);
    if (has_centred(l)) add_rows(&t->centred, l, true, end);
    const double violated = violated_in(l, end);
    const bool coupled    = violated <= KEPT;
    t->layers++;
    t->coupled += coupled;
    t->few += coupled && l->at->n < FEW;
    t->expected += kept_by_chance(l->at->n);
    t->violated += violated;
    t->chance += 1.0 / (double)l->at->n;
}

/* The layers' z are of about unit variance by chance: so is their sum over the root of their number
 * (Stouffer). One layer of few experts never gets far, its z being at most n - 1; many may. */
static void finish(of_rows *t)
{
    t->z = t->with_z ? t->z / sqrt((double)t->with_z) : (double)NAN;
    if (!t->layers) return;
    t->own /= (double)t->layers;
    t->violated /= (double)t->layers;
}

/* Whether random weights would have as many coupled layers, all of few experts (Poisson). */
static bool may_be_chance(const tally *t)
{
    double term = exp(-t->expected), fewer = 0;
    for (int64_t k = 0; k < t->few; k++) {
        fewer += term;
        term *= t->expected / (double)(k + 1);
    }
    return t->coupled > 0 && t->coupled == t->few && 1 - fewer > RARE;
}

static tally tally_of(const cpl_coupling_report *r, int end)
{
    tally t = {.stored.name = r->options.noisy ? "Noisy router rows" : "Router rows as stored",
               .centred.name =
                   "Centred rows (less their mean, which softmax routing does not see)"};
    for (int64_t l = 0; l < r->n_layers; l++) add_layer(&t, &r->layers[l], end);
    finish(&t.stored);
    finish(&t.centred);
    if (!t.layers) return t;
    if (may_be_chance(&t)) {
        t.by_chance = t.coupled;
        t.coupled   = 0;
    }
    t.violated /= (double)t.layers;
    t.chance /= (double)t.layers;
    return t;
}

/* NULL: it cannot be told. */
static const char *state_of(const tally *t)
{
    if (t->stored.with_z + t->centred.with_z == 0) return NULL;
    if ((double)t->coupled >= NEARLY * (double)t->layers) return "coupled";
    if (t->coupled) return "partly coupled";
    if (t->violated > WEAK) return "not coupled";
    return t->by_chance ? NULL : "weakly coupled";
}

/* The state that both ends have. */
static const char *state_within(const tally t[ENDS])
{
    const char *worst = state_of(&t[WORST]);
    return worst == state_of(&t[BEST]) ? worst : NULL;
}

/* "4.5", or "4.5 to 6" where the ends differ as printed. */
static void say_range(cpl_text *out, double low, double high)
{
    char from[32], to[32];
    snprintf(from, sizeof from, "%.3g", low);
    snprintf(to, sizeof to, "%.3g", high);
    cpl_text_printf(out, strcmp(from, to) ? "%s to %s" : "%s", from, to);
}

static double tenths(double x)
{
    return round(10 * x) / 10 + 0.0; /* no -0 */
}

static void say_rows(cpl_text *out, const of_rows *worst, const of_rows *best, double chance)
{
    if (!worst->layers) return;
    cpl_text_printf(out, "\n%s: ", worst->name);
    say_range(out, 100 * worst->own, 100 * best->own);
    cpl_text_printf(out, " %% excite their own expert most (chance: %.3g %%), ", 100 * chance);
    say_range(out, 100 * best->violated, 100 * worst->violated);
    cpl_text_printf(out,
                    " %% of the pairs of experts violate ERC at alpha 1 (chance: %.0f %%), and the "
                    "smallest alpha without loss is ",
                    100 * CHANCE);
    say_range(out, best->least, worst->most);
    if (worst->with_z) {
        cpl_text_printf(out, "; z = ");
        say_range(out, tenths(worst->z), tenths(best->z));
        cpl_text_printf(out, " (chance: 0 +- 1)");
    }
    cpl_text_char(out, '.');
}

/* ", namely 2, 5, 8"; of most the others, ", all but 7". Where a sample leaves open which they are, nothing. */
static void say_which(cpl_text *out, const tally t[ENDS], const cpl_coupling_report *r)
{
    enum { MOST = 8 };
    char label[48];
    int64_t count   = 0;
    const bool most = 2 * t[BEST].coupled > t[BEST].layers;
    if (t[BEST].coupled != t[WORST].coupled || !t[BEST].coupled) return;
    for (int64_t l = 0; l < r->n_layers; l++)
        if (counts(&r->layers[l]) && (violated_in(&r->layers[l], BEST) <= KEPT) != most &&
            ++count <= MOST)
            cpl_text_printf(out, "%s%s",
                            count > 1 ? ", "
                            : most    ? ", all but "
                                      : ", namely ",
                            cpl_coupling_layer_label(label, &r->layers[l]));
    if (count > MOST) cpl_text_printf(out, ", ...");
}

/* " (coupled layers: 3 of 48, namely 2, 5, 8)." */
static void say_layers(cpl_text *out, const tally t[ENDS], const cpl_coupling_report *r)
{
    cpl_text_printf(out, " (coupled layers: ");
    say_range(out, (double)t[WORST].coupled, (double)t[BEST].coupled);
    cpl_text_printf(out, " of %lld", (long long)t->layers);
    say_which(out, t, r);
    if (t[BEST].by_chance)
        cpl_text_printf(out,
                        "; %lld more may be chance: random weights of so few experts have as many",
                        (long long)t[BEST].by_chance);
    cpl_text_printf(out, ").");
}

static bool is_part(const cpl_coupling_report *r)
{
    for (int64_t l = 0; l < r->n_layers; l++)
        if (sampled(&r->layers[l])) return true;
    return false;
}

static void say_nothing(cpl_text *out, int64_t lone)
{
    cpl_text_printf(out, lone ? "Every layer has a single expert: there is nothing to compare."
                              : "No layer has a coupling matrix that means something: whether "
                                "router and experts are coupled cannot be told.");
}

static void say(cpl_text *out, const tally t[ENDS], const cpl_coupling_report *r)
{
    const char *state  = state_within(t),
               *untold = "Whether router and experts are coupled cannot be told";
    const bool part    = is_part(r);
    if (t[BEST].stored.with_z + t[BEST].centred.with_z == 0) {
        cpl_text_printf(out,
                        "%s: in every layer all pairings of router rows and experts give the same.",
                        untold);
        return;
    }
    if (state)
        cpl_text_printf(out, "Router and experts are %s%s", state,
                        part ? ", as far as the sample shows" : "");
    else
        cpl_text_printf(out, "%s%s", untold,
                        part ? " from this sample; a larger --sample, or none, says more" : "");
    say_layers(out, t, r);
    say_rows(out, &t[WORST].stored, &t[BEST].stored, t->chance);
    say_rows(out, &t[WORST].centred, &t[BEST].centred, t->chance);
}

cpl_coupling_state cpl_coupling_state_of(const cpl_coupling_report *r)
{
    const tally t[ENDS] = {tally_of(r, WORST), tally_of(r, BEST)};
    return (cpl_coupling_state){state_within(t), t->layers, t[WORST].coupled};
}

cpl_coupling_summary cpl_coupling_summary_of(const cpl_coupling_report *r)
{
    const tally t = tally_of(r, BEST);
    return (cpl_coupling_summary){t.stored, t.centred, t.chance, CHANCE};
}

void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *r)
{
    const tally t[ENDS] = {tally_of(r, WORST), tally_of(r, BEST)};
    if (!t->layers) {
        say_nothing(out, t->lone);
        return;
    }
    say(out, t, r);
    if (!r->options.text)
        cpl_text_printf(out, "\nWhether the router's choices follow the experts' responses to text "
                             "is another question: --text measures it.");
}
