/* losses.c - see losses.h */
#include "model/losses.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- erc.layers: "all", or "0-2, 5" ---- */

static const char *skip_spaces(const char *at)
{
    while (isspace((unsigned char)*at)) at++;
    return at;
}

/* A number at *at, which moves behind it; -1 if none stands there. */
static int64_t number_at(const char **at)
{
    char *end     = NULL;
    int64_t value = -1;
    if (isdigit((unsigned char)**at)) value = strtoll(*at, &end, 10);
    if (end) *at = skip_spaces(end);
    return value;
}

/* The next "5" or "0-2" of the list; false at its end, and where the list is none (first -1). */
static bool next_range(const char **at, int64_t *first, int64_t *last)
{
    if (**at == '\0') return false;
    *first = *last = number_at(at);
    if (**at == '-') {
        *at   = skip_spaces(*at + 1);
        *last = number_at(at);
    }
    bool more = **at == ',';
    if (more) *at = skip_spaces(*at + 1);
    bool good = *first >= 0 && *last >= *first && (more ? **at != '\0' : **at == '\0');
    if (!good) *first = -1;
    return good;
}

static bool is_all(const char *layers)
{
    return !layers || strcmp(layers, "all") == 0;
}

static cpl_status check_layers(const char *layers, int64_t n_layers)
{
    const char *at = skip_spaces(is_all(layers) ? "" : layers);
    int64_t first = is_all(layers) ? 0 : -1, last = 0;
    while (next_range(&at, &first, &last))
        if (last >= n_layers)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "erc.layers %.100s names layer %lld, but model.num_hidden_layers is "
                            "%lld: layers are 0 to %lld",
                            layers, (long long)last, (long long)n_layers, (long long)n_layers - 1);
    if (first < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "erc.layers is \"%.100s\"; it must be all, or layers and ranges of them "
                        "such as 0-2, 5",
                        layers);
    return CPL_OK;
}

bool cpl_erc_layer_enabled(const cpl_erc_settings *erc, int64_t layer)
{
    const char *at = skip_spaces(is_all(erc->layers) ? "" : erc->layers);
    int64_t first, last;
    while (next_range(&at, &first, &last))
        if (layer >= first && layer <= last) return true;
    return is_all(erc->layers);
}

int64_t cpl_losses_coupled_layers(const cpl_erc_settings *erc, int64_t n_layers)
{
    int64_t count = 0;
    for (int64_t l = 0; l < n_layers; l++) count += cpl_erc_layer_enabled(erc, l);
    return count;
}

/* ---- weights ---- */

static cpl_status refuse(const char *loss, double weight, const char *router, const char *why)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s.weight is %g, but model.router is %s: %s", loss, weight,
                    router, why);
}

cpl_status cpl_losses_settle(cpl_erc_settings *erc, cpl_z_settings *z,
                             const cpl_orth_settings *orth, const cpl_model_settings *model)
{
    const bool aoe = model->router == CPL_ROUTER_AOE;
    if (isnan(erc->weight)) erc->weight = aoe ? 0 : 1;
    if (isnan(z->weight)) z->weight = model->router == CPL_ROUTER_SOFTMAX ? 0.001 : 0;
    if (aoe && erc->weight > 0)
        return refuse("erc", erc->weight, "aoe",
                      "Autonomy-of-Experts has no router rows to couple with experts");
    if (aoe && orth->weight > 0)
        return refuse("orth", orth->weight, "aoe",
                      "Autonomy-of-Experts has no router rows to make orthogonal");
    if (model->router == CPL_ROUTER_SIGMOID && z->weight > 0)
        return refuse("z", z->weight, "sigmoid",
                      "the z-loss holds the denominator of a softmax, which these scores lack");
    return check_layers(erc->layers, model->n_layers);
}
