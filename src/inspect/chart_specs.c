/* chart_specs.c - the list of the kinds of chart of charts.h, and where their numbers come from */
#include <math.h>

#include "inspect/charts.h"

/* ---- lines over layers ---- */

static void kappa(double *values, const cpl_layer_report *layer, int alpha)
{
    const cpl_null_model *c = &layer->chance;
    (void)alpha;
    values[0] = c->kappa_diagonal;
    values[1] = layer->at->n > 1 ? c->kappa_off_diagonal : NAN;
    values[2] = c->expected - 2 * c->deviation;
    values[3] = c->expected + 2 * c->deviation;
}

static void own(double *values, const cpl_layer_report *layer, int alpha)
{
    (void)alpha;
    values[0] = layer->chance.kappa_row_top1;
    values[1] = layer->chance.kappa_column_top1;
    values[2] = layer->chance.assignment_own;
    values[3] = 1.0 / (double)layer->at->n;
}

static void z_score(double *values, const cpl_layer_report *layer, int alpha)
{
    (void)alpha;
    values[0] = layer->chance.z;
}

static void against_chance(double *values, const cpl_layer_report *layer, int alpha)
{
    double mean = layer->chance.erc_mean[alpha], sd = layer->chance.erc_sd[alpha];
    values[0] = cpl_coupling_relative_erc(layer, layer->erc[alpha]);
    values[1] = cpl_coupling_relative_erc(layer, mean);
    values[2] = cpl_coupling_relative_erc(layer, fmax(mean - sd, 0));
    values[3] = cpl_coupling_relative_erc(layer, mean + sd);
}

static void ratios(double *values, const cpl_layer_report *layer, int alpha)
{
    (void)alpha;
    values[0] = layer->ratios.q50;
    values[1] = layer->ratios.q90;
    values[2] = layer->ratios.q99;
    values[3] = layer->ratios.most;
}

/* ---- distributions by layer ---- */

static int64_t eps(double *values, const cpl_layer_report *layer)
{
    for (int64_t i = 0; values && i < layer->at->n; i++) values[i] = layer->eps[i];
    return layer->at->n;
}

static int64_t router_norms(double *values, const cpl_layer_report *layer)
{
    for (int64_t i = 0; values && i < layer->at->n; i++) values[i] = layer->router_norm[i];
    return layer->at->n;
}

static int64_t gate_norms(double *values, const cpl_layer_report *layer)
{
    for (int64_t i = 0; values && i < layer->at->n; i++) values[i] = layer->gate_norm[i];
    return layer->at->n;
}

static int64_t cosines(double *values, const cpl_layer_report *layer)
{
    int64_t pairs = layer->at->n * (layer->at->n - 1) / 2;
    for (int64_t i = 0; values && i < pairs; i++) values[i] = fabs((double)layer->cosine[i]);
    return pairs;
}

/* None where they were not asked for, or a single expert has none. */
static int64_t silhouettes(double *values, const cpl_layer_report *layer)
{
    if (!layer->silhouettes || layer->at->n == 1) return 0;
    for (int64_t j = 0; values && j < layer->at->n; j++) values[j] = layer->silhouettes[j];
    return layer->at->n;
}

/* ---- the list ---- */

#define BOXES                                                                                      \
    "Boxes: quartiles and median; whiskers: 5 % to 95 %; open points: least and greatest; filled " \
    "point: mean."

const cpl_chart_spec cpl_chart_specs[] = {
    {.id          = "kappa",
     .section     = "coupling",
     .title       = "Alignment of router rows and experts",
     .y_label     = "mean κ",
     .caption     = "Mean κ of a router row and its own expert (the "
                    "diagonal) beside that of all other pairs. The band is "
                    "where the diagonal would lie by chance.",
     .from_zero   = true,
     .n_lines     = 2,
     .names       = {"own expert", "other experts"},
     .colours     = {0, 1},
     .band        = "random pairings ± 2 sd",
     .band_colour = -1,
     .lines       = kappa},
    {.id      = "own-share",
     .section = "coupling",
     .title   = "Who answers most strongly to whom",
     .y_label = "share of experts",
     .caption = "Share of router rows (and of experts) whose largest κ is "
                "with each other, and of the pairs that the best one-to-one "
                "assignment leaves together. Chance gives 1/n.",
     .share   = true,
     .n_lines = 4,
     .names   = {"rows", "columns", "assignment", "chance 1/n"},
     .colours = {0, 1, 2, -1},
     .dashed  = {[3] = true},
     .lines   = own},
    {.id        = "z-score",
     .section   = "coupling",
     .title     = "Distance from chance",
     .y_label   = "z-score of the mean κ of own pairs",
     .caption   = "How many standard deviations the mean κ of own pairs "
                  "lies above that of random pairings of router rows and "
                  "experts.",
     .from_zero = true,
     .n_lines   = 1,
     .colours   = {0},
     .rule_name = "chance",
     .lines     = z_score},
    {.id          = "erc-against-chance",
     .section     = "coupling",
     .title       = "Coupling loss against random pairings",
     .y_label     = "ERC / mean diagonal of M",
     .caption     = "ERC as stored, and its mean and standard deviation under 100 random "
                    "pairings; all over the mean diagonal of M as stored.",
     .from_zero   = true,
     .n_lines     = 2,
     .names       = {"as stored", "random pairings"},
     .colours     = {0, -1},
     .dashed      = {[1] = true},
     .band        = "± sd",
     .band_colour = -1,
     .lines       = against_chance},
    {.id        = "ratios",
     .section   = "coupling",
     .title     = "Responses to others, in units of the own",
     .y_label   = "max(M_ij / M_ii, M_ij / M_jj), i ≠ j",
     .caption   = "Quantiles over all pairs beside their greatest, α_min, "
                  "which a single pair can set. Below 1 every bound holds "
                  "at α = 1; ∞ is an α_min that is infinite.",
     .log_y     = true,
     .n_lines   = 4,
     .names     = {"50 %", "90 %", "99 %", "α_min"},
     .colours   = {5, 0, 2, 1},
     .rule      = 1,
     .rule_name = "α = 1",
     .lines     = ratios},
    {.id        = "erc-over-alpha",
     .section   = "coupling",
     .title     = "Coupling loss against α",
     .y_label   = "ERC / mean diagonal of M",
     .caption   = "One line a layer. The loss falls with α and is zero from "
                  "α_min on.",
     .from_zero = true},
    {.id        = "silhouette",
     .section   = "coupling",
     .title     = "Specialisation of the experts",
     .y_label   = "silhouette of the rows of an expert's W_g",
     .caption   = "How much nearer the rows of an expert's gate are to each other than to the "
                  "next expert's, by cosine distance in the original space: 1 where they point "
                  "one way, about 0 where nothing sets them apart. " BOXES,
     .from_zero = true,
     .spread    = silhouettes},
    {.id      = "router-cosine",
     .section = "router",
     .title   = "Router rows among themselves",
     .y_label = "|cos| of two router rows",
     .caption = "All pairs of different rows; free of scale. " BOXES,
     .share   = true,
     .spread  = cosines},
    {.id        = "eps",
     .section   = "router",
     .title     = "Room between router rows",
     .y_label   = "ε of a router row",
     .caption   = "Half the distance to the nearest other row, in units of "
                  "the row's norm. " BOXES,
     .from_zero = true,
     .spread    = eps},
    {.id        = "erc-raw-over-alpha",
     .section   = "raw",
     .title     = "Raw coupling loss against α",
     .y_label   = "ERC (depends on the scale of the weights)",
     .caption   = "One line a layer. Not to be compared between models of "
                  "different families.",
     .from_zero = true,
     .raw       = true},
    {.id      = "router-norms",
     .section = "raw",
     .title   = "Norms of router rows",
     .y_label = "|R_i|",
     .caption = BOXES,
     .spread  = router_norms},
    {.id      = "expert-norms",
     .section = "raw",
     .title   = "Norms of the experts' gates",
     .y_label = "|W_g| (Frobenius)",
     .caption = BOXES,
     .spread  = gate_norms},
};
const size_t cpl_n_chart_specs = sizeof cpl_chart_specs / sizeof *cpl_chart_specs;
