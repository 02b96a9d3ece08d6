/* verdict.c - see show.h */
#include "inspect/show.h"

#include <math.h>

#include "base/arena.h"

/* Of the layers that have M and more than one expert: of centred rows, which say nothing that the
 * routing does not; of the noisy rows with --noise. */
typedef struct tally {
    int64_t layers, lone; /* those; those with a single expert */
    int64_t centred;      /* of centred rows */
    int64_t met;          /* with all of ERC's constraints met at alpha 1 */
    int64_t stored_met;   /* the same of the rows as they are stored */
    int64_t with_z;       /* with a z: some pairings of rows and experts give more than others */
    double z;             /* of all layers together */
    double own, chance;   /* mean shares */
} tally;

static const double FAR = 3; /* standard deviations that count as more than chance */

/* Whether own pairs exceed chance. A matrix that is the same everywhere, or zero, meets every
 * constraint and shows nothing. */
static bool stands_out(const cpl_null_model *chance, const cpl_coupling_figures *figures)
{
    return isfinite(chance->z) && chance->z > 0 && figures->m_diagonal > 0;
}

static void add_layer(tally *t, const cpl_layer_report *l)
{
    if (l->fault || !l->has_M) return;
    if (l->at->n == 1) {
        t->lone++;
        return;
    }
    const bool centred                  = l->centred.has_M;
    const cpl_null_model *chance        = centred ? &l->centred.chance : &l->chance;
    const cpl_null_model_ratios *ratios = centred ? &l->centred.ratios : &l->ratios;
    const cpl_coupling_figures *figures = centred ? &l->centred.figures : &l->figures;
    t->centred += centred;
    t->layers++;
    t->met += ratios->most <= 1 && stands_out(chance, figures);
    t->stored_met += l->ratios.most <= 1 && stands_out(&l->chance, &l->figures);
    t->own += chance->kappa_row_top1;
    t->chance += 1.0 / (double)l->at->n;
    if (!isfinite(chance->z)) return;
    t->with_z++;
    t->z += chance->z;
}

/* The layers' z are of about unit variance by chance: so is their sum over the root of their number
 * (Stouffer). One layer of few experts never gets far, its z being at most n - 1; many may. */
static tally tally_of(const cpl_coupling_report *r)
{
    tally t = {0};
    for (int64_t l = 0; l < r->n_layers; l++) add_layer(&t, &r->layers[l]);
    if (t.with_z) t.z /= sqrt((double)t.with_z);
    if (t.layers) {
        t.own /= (double)t.layers;
        t.chance /= (double)t.layers;
    }
    return t;
}

static const char *centred(const tally *t)
{
    return t->centred ? "centred " : "";
}

static void say_how(cpl_text *out, const char *how, const tally *t)
{
    cpl_text_printf(
        out,
        "The weights of router and experts agree %s (z = %.1f over all layers): %.3g "
        "%% of the %srouter rows excite their own expert most (chance: %.3g %%); the %srows "
        "meet all of ERC's constraints at alpha 1 in %lld of %lld layer%s",
        how, t->z, 100 * t->own, centred(t), 100 * t->chance, centred(t), (long long)t->met,
        (long long)t->layers, t->layers == 1 ? "" : "s");
    if (t->centred) cpl_text_printf(out, ", the stored rows in %lld", (long long)t->stored_met);
    cpl_text_printf(out, ".");
}

static void say(cpl_text *out, const tally *t)
{
    if (t->layers == 0 && t->lone > 0)
        cpl_text_printf(out, "Every layer has a single expert: there is nothing to compare.");
    else if (t->layers == 0)
        cpl_text_printf(out, "No layer has a coupling matrix that means something: there is no "
                             "verdict on whether the weights of router and experts agree.");
    else if (t->with_z == 0)
        cpl_text_printf(out, "Whether the weights of router and experts agree cannot be seen: in "
                             "every layer all pairings of router rows and experts give the same.");
    else if (t->met == t->layers)
        cpl_text_printf(out,
                        "The weights of router and experts agree: in every layer measured (%lld) "
                        "each %srouter row excites its own expert most, and each expert is excited "
                        "most by its own row.",
                        (long long)t->layers, centred(t));
    else if (t->z > FAR)
        say_how(out, "better than chance", t);
    else if (t->z < -FAR)
        say_how(out, "less than chance", t);
    else
        say_how(out, "no better than chance", t);
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
    const tally none = {.lone = t->lone};
    if (t->layers == 0)
        say(out, &none);
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
static bool say_of_sample(cpl_text *out, const cpl_coupling_report *r, bool *any)
{
    cpl_interval *z = cpl_alloc((size_t)(r->n_layers + 1) * sizeof *z);
    if (!z) return false;
    const sampled t = sampled_of(r, z);
    say_sampled(out, &t);
    *any = t.layers > 0;
    cpl_free(z);
    return true;
}

/* ---- all of it ---- */

void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *r)
{
    const tally t = tally_of(r);
    bool any      = t.layers > 0;
    if (is_part(r))
        out->failed = !say_of_sample(out, r, &any) || out->failed;
    else
        say(out, &t);
    if (any)
        cpl_text_printf(out, " Whether the router's choices agree with the experts' responses to "
                             "text is another question: --text measures it.");
}
