/* verdict.c - see show.h */
#include "inspect/show.h"

#include <math.h>

#include "base/arena.h"

/* The bounds of docs/inspection.md, "The verdict". */
static const double KEPT = 0.05;    /* pairs that a coupled layer may violate at alpha 1 */
static const double WEAK = 1.0 / 3; /* ... of a weakly coupled model, mean over the layers */
static const double CHANCE =
    2.0 / 3;                       /* ... of entries of M that have nothing to do with each other */
static const double NEARLY = 0.9;  /* share of the layers */
static const double FAR    = 3;    /* standard deviations that count as more than chance */
static const double RARE   = 0.01; /* probability of what is no chance */
enum { FEW = 6 }; /* experts: random weights of fewer keep the bounds now and then */

/* Of one set of router rows. Sums over the layers with M and more than one expert; then means. */
typedef struct of_rows {
    const char *name;
    int64_t layers, with_z; /* with_z: some pairings of rows and experts give more than others */
    double own, violated, z;
    double least, most; /* alpha_min */
} of_rows;

typedef struct tally {
    of_rows stored, centred; /* stored: the noisy ones with --noise, when there are none centred */
    int64_t layers, lone;    /* those; those with a single expert */
    int64_t coupled, few;    /* layers; of them those of few experts */
    int64_t by_chance;       /* of few experts, that random weights may have: they count as none */
    double chance, violated; /* own share by chance; the smaller share of the two sets */
    double expected;         /* coupled layers of few experts, of random weights */
} tally;

static void add_rows(of_rows *t, const cpl_null_model *chance, const cpl_null_model_ratios *ratios)
{
    t->least = t->layers++ ? fmin(t->least, ratios->most) : ratios->most;
    t->most  = fmax(t->most, ratios->most);
    t->own += chance->kappa_row_top1;
    t->violated += ratios->violated;
    if (!isfinite(chance->z)) return;
    t->with_z++;
    t->z += chance->z;
}

/* The share of pairs violated at alpha 1. A matrix that is the same everywhere, or zero, violates
 * nothing and shows nothing. */
static double violated(const cpl_null_model *chance, const cpl_null_model_ratios *ratios,
                       const cpl_coupling_figures *figures)
{
    return chance->z > 0 && figures->m_diagonal > 0 ? ratios->violated : 1;
}

static bool counts(const cpl_layer_report *l)
{
    return !l->fault && l->has_M && l->at->n > 1;
}

static double violated_in(const cpl_layer_report *l)
{
    const cpl_centred_report *c = &l->centred;
    const double stored         = violated(&l->chance, &l->ratios, &l->figures);
    return c->has_M ? fmin(stored, violated(&c->chance, &c->ratios, &c->figures)) : stored;
}

/* The share of layers with random weights of which a set of rows keeps the bounds. */
static double kept_by_chance(int64_t n)
{
    static const double share[FEW] = {0, 0, 1.0 / 6, 1.0 / 30, 1.0 / 400, 1.0 / 1500};
    return n < FEW ? share[n] : 0;
}

static void add_layer(tally *t, const cpl_layer_report *l)
{
    t->lone += !l->fault && l->has_M && l->at->n == 1;
    if (!counts(l)) return;
    add_rows(&t->stored, &l->chance, &l->ratios);
    if (l->centred.has_M) add_rows(&t->centred, &l->centred.chance, &l->centred.ratios);
    const bool coupled = violated_in(l) <= KEPT;
    t->layers++;
    t->coupled += coupled;
    t->few += coupled && l->at->n < FEW;
    t->expected += kept_by_chance(l->at->n);
    t->violated += violated_in(l);
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

static tally tally_of(const cpl_coupling_report *r)
{
    tally t = {.stored.name = r->options.noisy ? "Noisy router rows" : "Router rows as stored",
               .centred.name =
                   "Centred rows (less their mean, which softmax routing does not see)"};
    for (int64_t l = 0; l < r->n_layers; l++) add_layer(&t, &r->layers[l]);
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

static void say_rows(cpl_text *out, const of_rows *t, double chance)
{
    if (!t->layers) return;
    cpl_text_printf(out,
                    "\n%s: %.3g %% excite their own expert most (chance: %.3g %%), %.3g %% of the "
                    "pairs of experts violate ERC at alpha 1 (chance: %.0f %%), and the smallest "
                    "alpha without loss is %.3g",
                    t->name, 100 * t->own, 100 * chance, 100 * t->violated, 100 * CHANCE, t->least);
    if (t->most > t->least) cpl_text_printf(out, " to %.3g", t->most);
    if (t->with_z) cpl_text_printf(out, "; z = %.1f (chance: 0 +- 1)", t->z);
    cpl_text_char(out, '.');
}

/* " (coupled layers: 3 of 48, namely 2, 5, 8)"; of most the others, "all but 7". */
static void say_layers(cpl_text *out, const tally *t, const cpl_coupling_report *r)
{
    enum { MOST = 8 };
    char label[48];
    int64_t count   = 0;
    const bool most = 2 * t->coupled > t->layers;
    cpl_text_printf(out, " (coupled layers: %lld of %lld", (long long)t->coupled,
                    (long long)t->layers);
    for (int64_t l = 0; t->coupled && l < r->n_layers; l++)
        if (counts(&r->layers[l]) && (violated_in(&r->layers[l]) <= KEPT) != most &&
            ++count <= MOST)
            cpl_text_printf(out, "%s%s",
                            count > 1 ? ", "
                            : most    ? ", all but "
                                      : ", namely ",
                            cpl_coupling_layer_label(label, &r->layers[l]));
    if (count > MOST) cpl_text_printf(out, ", ...");
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

static void say(cpl_text *out, const tally *t, const cpl_coupling_report *r)
{
    const char *state  = state_of(t),
               *untold = "Whether router and experts are coupled cannot be told";
    if (!t->layers) {
        say_nothing(out, t->lone);
        return;
    }
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

/* ---- of a sample ---- */

/* Of the layers with M and more than one expert; centred rows, or with --noise the noisy ones. */
typedef struct sampled {
    int64_t layers, lone;
    int64_t with_z;    /* with a z: some pairings give more than others */
    int64_t met, able; /* with all of ERC's constraints met at alpha 1: in any case; possibly */
    bool centred;
    cpl_interval z;   /* of the layers with one together */
    double low, high; /* mean shares of rows whose own expert is the largest */
    double chance;
} sampled;

/* Where the own kappa of every row, or of every column, is the largest z is above 0, if there is one. */
static void add_met(sampled *t, const cpl_row_bounds *b, cpl_interval z)
{
    if (isnan(z.low)) return;
    const bool above = z.low > 0 || b->rows_own.low >= 1 || b->columns_own.low >= 1;
    t->met += above && b->alpha_min.high <= 1;
    t->able += z.high > 0 && b->alpha_min.low <= 1;
}

static void add_sampled(sampled *t, cpl_interval *z, const cpl_layer_report *l)
{
    if (l->fault || !l->sample || !l->sample->has_M) return;
    if (l->at->n == 1) {
        t->lone++;
        return;
    }
    const bool centred         = l->sample->has_centred;
    const cpl_row_estimates *e = centred ? &l->sample->centred_estimates : &l->sample->estimates;
    const cpl_row_bounds *b    = centred ? &l->sample->centred_bounds : &l->sample->bounds;
    t->centred                 = t->centred || centred;
    t->layers++;
    if (!isnan(e->z.low)) z[t->with_z++] = e->z;
    add_met(t, b, e->z);
    t->low += b->rows_own.low;
    t->high += b->rows_own.high;
    t->chance += 1.0 / (double)l->at->n;
}

static sampled sampled_of(const cpl_coupling_report *r, cpl_interval *z)
{
    sampled t = {0};
    for (int64_t l = 0; l < r->n_layers; l++) add_sampled(&t, z, &r->layers[l]);
    if (!t.layers) return t;
    if (t.with_z) t.z = cpl_interval_sum(z, t.with_z, 1 / sqrt((double)t.with_z));
    t.low /= (double)t.layers;
    t.high /= (double)t.layers;
    t.chance /= (double)t.layers;
    return t;
}

/* How they agree, as far as the interval of z says it for certain; NULL: it cannot be told. A z near 0
 * alone does not: that of few experts is always near it, and those with all constraints met agree. */
static const char *how_of(const sampled *t)
{
    if (t->z.low > FAR) return "better than chance";
    if (t->z.high < -FAR) return "less than chance";
    if (t->z.low > -FAR && t->z.high < FAR && t->able < t->layers) return "no better than chance";
    return NULL;
}

static void say_sampled_z(cpl_text *out, const sampled *t)
{
    const char *how = how_of(t), *rows = t->centred ? "centred router rows" : "router rows";
    if (how)
        cpl_text_printf(
            out, "The weights of router and experts agree %s, as far as the sample shows", how);
    else
        cpl_text_printf(out,
                        "The sample cannot tell whether the weights of router and experts agree "
                        "better than chance: more rows could (a larger --sample)");
    cpl_text_printf(
        out,
        " (z over all layers from %.1f to %.1f, 95 %%; above %.0f is more than chance). "
        "From %.3g to %.3g %% of the %s excite their own expert most (chance: %.3g %%); "
        "they meet all of ERC's constraints at alpha 1 for certain in %lld of %lld layer%s.",
        t->z.low, t->z.high, FAR, 100 * t->low, 100 * t->high, rows, 100 * t->chance,
        (long long)t->met, (long long)t->layers, t->layers == 1 ? "" : "s");
}

/* The same cases in the same order as of all rows. */
static void say_sampled(cpl_text *out, const sampled *t)
{
    if (t->layers == 0)
        say_nothing(out, t->lone);
    else if (t->with_z == 0)
        cpl_text_printf(out, "Whether the weights of router and experts agree cannot be seen: in "
                             "every layer all pairings of router rows and experts give the same, "
                             "as far as the sample shows.");
    else if (t->met == t->layers)
        cpl_text_printf(out,
                        "The weights of router and experts agree, as far as the sample shows: in "
                        "every layer measured (%lld) each %srouter row excites its own expert "
                        "most, and each expert is excited most by its own row, at both ends of the "
                        "bounds.",
                        (long long)t->layers, t->centred ? "centred " : "");
    else
        say_sampled_z(out, t);
}

static bool is_part(const cpl_coupling_report *r)
{
    for (int64_t l = 0; l < r->n_layers; l++)
        if (r->layers[l].sample && !r->layers[l].sample->plan.whole) return true;
    return false;
}

/* false: there is no memory. */
static bool say_of_sample(cpl_text *out, const cpl_coupling_report *r)
{
    cpl_interval *z = cpl_alloc((size_t)(r->n_layers + 1) * sizeof *z);
    if (!z) return false;
    const sampled t = sampled_of(r, z);
    say_sampled(out, &t);
    cpl_free(z);
    return true;
}

/* ---- all of it ---- */

cpl_coupling_state cpl_coupling_state_of(const cpl_coupling_report *r)
{
    const tally t = tally_of(r);
    if (is_part(r)) return (cpl_coupling_state){0};
    return (cpl_coupling_state){state_of(&t), t.layers, t.coupled};
}

void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *r)
{
    const tally t = tally_of(r);
    if (is_part(r))
        out->failed = !say_of_sample(out, r) || out->failed;
    else
        say(out, &t, r);
    if (!r->options.text && (t.layers || is_part(r)))
        cpl_text_printf(out, "\nWhether the router's choices follow the experts' responses to text "
                             "is another question: --text measures it.");
}
