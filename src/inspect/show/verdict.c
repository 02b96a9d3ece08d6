/* verdict.c - see show.h */
#include "inspect/show/show.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* docs/inspection.md, "The verdict", has these bounds. */
static const double KEPT   = 0.05; /* share of pairs that a coupled layer may violate at alpha 1 */
static const double WEAK   = 1.0 / 3; /* violated share of a weakly coupled model, mean of layers */
static const double CHANCE = 2.0 / 3; /* violated share if the entries of M are unrelated */
static const double NEARLY = 0.9;     /* share of the layers that a coupled model has coupled */
static const double RARE   = 0.01;    /* an event below this probability is not called chance */
enum { FEW = 6 }; /* random weights of fewer experts count as coupled now and then */

/* Holds sums over the layers with M and more than one expert, and then their means. */
typedef struct tally {
    cpl_coupling_rows stored, centred; /* with --noise, stored are the noisy rows */
    int64_t layers, lone;              /* layers that count; layers with M and a single expert */
    int64_t coupled, few;              /* coupled layers; coupled layers with few experts */
    int64_t by_chance;                 /* coupled layers of few experts not counted as coupled */
    double chance, violated;           /* own share by chance; smaller violated share of the sets */
    double expected;                   /* coupled layers of few experts if weights were random */
} tally;

static void add_rows(cpl_coupling_rows *t, const cpl_null_model *chance,
                     const cpl_null_model_ratios *ratios)
{
    t->least = t->layers++ ? fmin(t->least, ratios->most) : ratios->most;
    t->most  = fmax(t->most, ratios->most);
    t->own += chance->kappa_row_top1;
    t->violated += ratios->violated;
    if (!isfinite(chance->z)) return;
    t->with_z++;
    t->z += chance->z;
}

static bool has_M(const cpl_layer_report *l)
{
    return !l->fault && l->has_M;
}

static bool counts(const cpl_layer_report *l)
{
    return has_M(l) && l->at->n > 1;
}

/* Returns the share of pairs violated at alpha 1, the smaller share of stored and centred rows. A
 * matrix whose entries are all equal or zero shows no coupling: its share is 1. */
static double violated_in(const cpl_layer_report *l)
{
    const cpl_centred_report *c = &l->centred;
    double least                = 1;
    if (l->chance.z > 0 && l->figures.m_diagonal > 0) least = l->ratios.violated;
    if (c->has_M && c->chance.z > 0 && c->figures.m_diagonal > 0)
        least = fmin(least, c->ratios.violated);
    return least;
}

/* Returns the share of layers with random weights of n experts that count as coupled. */
static double kept_by_chance(int64_t n)
{
    static const double share[FEW] = {0, 0, 1.0 / 6, 1.0 / 30, 1.0 / 400, 1.0 / 1500};
    return n < FEW ? share[n] : 0;
}

static void add_layer(tally *t, const cpl_layer_report *l)
{
    t->lone += has_M(l) && l->at->n == 1;
    if (!counts(l)) return;
    add_rows(&t->stored, &l->chance, &l->ratios);
    if (l->centred.has_M) add_rows(&t->centred, &l->centred.chance, &l->centred.ratios);
    const double violated = violated_in(l);
    const bool coupled    = violated <= KEPT;
    t->layers++;
    t->coupled += coupled;
    t->few += coupled && l->at->n < FEW;
    t->expected += kept_by_chance(l->at->n);
    t->violated += violated;
    t->chance += 1.0 / (double)l->at->n;
}

/* Sets the means. By chance the z of a layer has about unit variance, and so has the sum of z over
 * the root of their number (Stouffer). The z of one layer of few experts is at most n - 1, so
 * several layers are needed to exceed chance. */
static void finish_rows(cpl_coupling_rows *t)
{
    t->z = t->with_z ? t->z / sqrt((double)t->with_z) : (double)NAN;
    if (!t->layers) return;
    t->own /= (double)t->layers;
    t->violated /= (double)t->layers;
}

/* Returns whether random weights would couple as many layers, all of few experts (Poisson). */
static bool may_be_chance(const tally *t)
{
    double term = exp(-t->expected), fewer = 0;
    for (int64_t k = 0; k < t->few; k++) {
        fewer += term;
        term *= t->expected / (double)(k + 1);
    }
    return t->coupled > 0 && t->coupled == t->few && 1 - fewer > RARE;
}

static tally tally_of(const cpl_coupling_report *r)
{
    tally t = {.stored.name = r->options.noisy ? "Noisy router rows" : "Router rows as stored",
               .centred.name =
                   "Centred rows (less their mean, which softmax routing does not see)"};
    for (int64_t l = 0; l < r->n_layers; l++) add_layer(&t, &r->layers[l]);
    finish_rows(&t.stored);
    finish_rows(&t.centred);
    if (!t.layers) return t;
    if (may_be_chance(&t)) {
        t.by_chance = t.coupled;
        t.coupled   = 0;
    }
    t.violated /= (double)t.layers;
    t.chance /= (double)t.layers;
    return t;
}

/* Returns the state in words, or NULL if it is undecided. */
static const char *state_of(const tally *t)
{
    if (t->stored.with_z + t->centred.with_z == 0) return NULL;
    if ((double)t->coupled >= NEARLY * (double)t->layers) return "coupled";
    if (t->coupled) return "partly coupled";
    if (t->violated > WEAK) return "not coupled";
    return t->by_chance ? NULL : "weakly coupled";
}

/* Writes "4.5", or "4.5 to 6" where the ends differ as printed. */
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

static void say_rows(cpl_text *out, const cpl_coupling_rows *t, double chance)
{
    if (!t->layers) return;
    cpl_text_printf(out, "\n%s: %.3g %% excite their own expert most (chance: %.3g %%), ", t->name,
                    100 * t->own, 100 * chance);
    cpl_text_printf(out,
                    "%.3g %% of the pairs of experts violate ERC at alpha 1 (chance: %.0f %%), and "
                    "the smallest alpha without loss is ",
                    100 * t->violated, 100 * CHANCE);
    say_range(out, t->least, t->most);
    if (t->with_z) cpl_text_printf(out, "; z = %.3g (chance: 0 +- 1)", tenths(t->z));
    cpl_text_char(out, '.');
}

/* Writes ", namely 2, 5, 8", or, if most layers are coupled, ", all but 7". */
static void say_which(cpl_text *out, const tally *t, const cpl_coupling_report *r)
{
    enum { MOST = 8 };
    char label[48];
    int64_t count   = 0;
    const bool most = 2 * t->coupled > t->layers;
    if (!t->coupled) return;
    for (int64_t l = 0; l < r->n_layers; l++)
        if (counts(&r->layers[l]) && (violated_in(&r->layers[l]) <= KEPT) != most &&
            ++count <= MOST)
            cpl_text_printf(out, "%s%s",
                            count > 1 ? ", "
                            : most    ? ", all but "
                                      : ", namely ",
                            cpl_coupling_layer_label(label, &r->layers[l]));
    if (count > MOST) cpl_text_printf(out, ", ...");
}

/* Writes " (coupled layers: 3 of 48, namely 2, 5, 8)." */
static void say_layers(cpl_text *out, const tally *t, const cpl_coupling_report *r)
{
    cpl_text_printf(out, " (coupled layers: %lld of %lld", (long long)t->coupled,
                    (long long)t->layers);
    say_which(out, t, r);
    if (t->by_chance)
        cpl_text_printf(out,
                        "; %lld more may be chance: random weights of so few experts have as many",
                        (long long)t->by_chance);
    cpl_text_printf(out, ").");
}

static void say_nothing(cpl_text *out, int64_t lone)
{
    cpl_text_printf(out, lone ? "Every layer has a single expert: there is nothing to compare."
                              : "No layer has a coupling matrix that means something: whether "
                                "router and experts are coupled cannot be told.");
}

static void say_state(cpl_text *out, const tally *t, const cpl_coupling_report *r)
{
    const char *state  = state_of(t),
               *untold = "Whether router and experts are coupled cannot be told";
    if (t->stored.with_z + t->centred.with_z == 0) {
        cpl_text_printf(out,
                        "%s: in every layer all pairings of router rows and experts give the same.",
                        untold);
        return;
    }
    if (state)
        cpl_text_printf(out, "Router and experts are %s", state);
    else
        cpl_text_printf(out, "%s", untold);
    say_layers(out, t, r);
    say_rows(out, &t->stored, t->chance);
    say_rows(out, &t->centred, t->chance);
}

cpl_coupling_state cpl_coupling_state_of(const cpl_coupling_report *r)
{
    const tally t = tally_of(r);
    if (r->options.sample > 0) return (cpl_coupling_state){0};
    return (cpl_coupling_state){state_of(&t), t.layers, t.coupled};
}

cpl_coupling_summary cpl_coupling_summary_of(const cpl_coupling_report *r)
{
    const tally t = tally_of(r);
    return (cpl_coupling_summary){t.stored, t.centred, t.chance, CHANCE};
}

/* Returns whether --sample has a share that reads all rows of all layers. */
static bool samples_are_whole(const cpl_coupling_report *r)
{
    int64_t n_whole = 0, n_parts = 0;
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *l = &r->layers[i];
        if (l->fault || !l->sample) continue;
        n_whole += l->sample->plan.whole;
        n_parts += !l->sample->plan.whole;
    }
    return n_whole && !n_parts;
}

void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *r)
{
    const tally t = tally_of(r);
    if (r->options.sample > 0) {
        cpl_text_printf(out, "%s Run without --sample for a verdict.",
                        samples_are_whole(r)
                            ? "All rows were read; --sample gives no verdict."
                            : "A sample has no verdict: the verdict compares single entries of M, "
                              "and a part of the rows gives their means alone.");
        return;
    }
    if (!t.layers) {
        say_nothing(out, t.lone);
        return;
    }
    say_state(out, &t, r);
    if (!r->options.text)
        cpl_text_printf(out, "\nWhether the router's choices follow the experts' responses to text "
                             "is another question: --text measures it.");
}
