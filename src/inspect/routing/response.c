/* response.c - see response.h */
#include "inspect/routing/response.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/stats/statistics.h"

bool cpl_routing_has_router(const cpl_layer_params *layer)
{
    return cpl_tensor_is_there(layer->router);
}

/* ---- agreement ---- */

cpl_status cpl_routing_agreement_init(cpl_routing_agreement *a, cpl_pool *pool, int64_t n,
                                      int64_t top_k, int64_t d, int64_t room)
{
    *a = (cpl_routing_agreement){.n      = n,
                                 .top_k  = top_k,
                                 .d      = d,
                                 .sums   = cpl_pool_take(pool, (size_t)(n * n) * sizeof *a->sums),
                                 .routed = cpl_pool_take(pool, (size_t)n * sizeof *a->routed),
                                 .row    = cpl_pool_take(pool, (size_t)d * sizeof *a->row)};
    return cpl_token_samples_init(&a->samples, pool, room, n, d, top_k);
}

/* Returns the rank of expert e by response, where 0 is the strongest. */
static int64_t place_of(const double *answers, int64_t n, int64_t e)
{
    int64_t before = 0;
    for (int64_t j = 0; j < n; j++)
        before += answers[j] > answers[e] || (answers[j] == answers[e] && j < e);
    return before;
}

void cpl_routing_agreement_add(cpl_routing_agreement *a, const double *scores,
                               const double *answers, const int32_t *chosen, void *scratch)
{
    double rho = cpl_correlation_spearman(scores, answers, a->n, scratch);
    a->n_tokens++;
    if (!isnan(rho)) {
        a->n_ranked++;
        a->rho += rho;
        a->rho_2 += rho * rho;
    }
    for (int64_t k = 0; k < a->top_k; k++) {
        int64_t i = chosen[k], place = place_of(answers, a->n, i);
        a->top1 += k == 0 && place == 0;
        a->shared += place < a->top_k;
        a->routed[i]++;
        for (int64_t j = 0; j < a->n; j++) a->sums[i * a->n + j] += answers[j];
    }
}

/* ---- M_tok ---- */

/* Copies the rows and columns of the kept experts to out [m,m]. */
static void reduce(float *out, const float *M, const cpl_routing_agreement *a)
{
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->n; j++)
            if (a->routed[i] >= CPL_TOKENS_FEW && a->routed[j] >= CPL_TOKENS_FEW)
                *out++ = M[i * a->n + j];
}

/* Sets lists of the entries of both matrices off the diagonal, divided by the mean of their row.
 * Returns the length of a list. */
static int64_t set_lists(double *x, double *y, const float *a, const float *b, int64_t m)
{
    int64_t count = 0;
    for (int64_t i = 0; i < m; i++) {
        double sa = 0, sb = 0;
        for (int64_t j = 0; j < m; j++) {
            sa += (double)a[i * m + j] / (double)m;
            sb += (double)b[i * m + j] / (double)m;
        }
        for (int64_t j = 0; j < m; j++) {
            if (i == j) continue;
            x[count]   = sa > 0 ? (double)a[i * m + j] / sa : 0;
            y[count++] = sb > 0 ? (double)b[i * m + j] / sb : 0;
        }
    }
    return count;
}

static cpl_status compare_matrices(cpl_routing_likeness *out, const float *M_tok, const float *M,
                                   int64_t m)
{
    const size_t cells = (size_t)(m * m);
    double *x = cpl_alloc(2 * cells * sizeof *x + 1), *y = x ? x + cells : NULL;
    void *scratch    = cpl_alloc(cpl_correlation_scratch(m * m));
    const bool whole = x && scratch;
    if (whole) {
        const int64_t count = set_lists(x, y, M_tok, M, m);
        out->pearson        = cpl_correlation_pearson(x, y, count);
        out->spearman       = cpl_correlation_spearman(x, y, count, scratch);
    }
    cpl_free(x);
    cpl_free(scratch);
    return whole ? CPL_OK : CPL_ERR_MEMORY;
}

static void own_entries(cpl_routing_m_tok *out, const float *M, int64_t m)
{
    int64_t rows = 0, columns = 0;
    out->diagonal = 0;
    for (int64_t i = 0; i < m; i++) {
        bool of_row = true, of_column = true;
        for (int64_t j = 0; j < m; j++) {
            of_row    = of_row && M[i * m + j] <= M[i * m + i];
            of_column = of_column && M[j * m + i] <= M[i * m + i];
        }
        rows += of_row;
        columns += of_column;
        out->diagonal += (double)M[i * m + i] / (double)m;
    }
    out->rows_own    = (double)rows / (double)m;
    out->columns_own = (double)columns / (double)m;
}

/* Sets the figures of the kept experts. All matrices [m,m] are reduced to these experts. */
static cpl_status figures(cpl_routing_m_tok *out, const float *M_tok, const float *M,
                          const float *centred, const double *alphas, int n_alphas)
{
    const int64_t m = out->n_kept;
    cpl_null_model_ratios ratios;
    own_entries(out, M_tok, m);
    for (int k = 0; k < n_alphas; k++) out->erc[k] = cpl_null_model_erc(M_tok, m, alphas[k]);
    CPL_TRY(cpl_null_model_ratios_of(&ratios, M_tok, m));
    out->alpha_min = ratios.most;
    if (M) CPL_TRY(compare_matrices(&out->like_M, M_tok, M, m));
    return centred ? compare_matrices(&out->like_centred, M_tok, centred, m) : CPL_OK;
}

cpl_status cpl_routing_m_tok_of(cpl_routing_m_tok *out, float *M_tok,
                                const cpl_routing_agreement *a, const float *M,
                                const float *centred, const double *alphas, int n_alphas)
{
    const int64_t n = a->n, cells = n * n;
    const cpl_routing_likeness none = {(double)NAN, (double)NAN};
    float *reduced                  = cpl_alloc((size_t)(3 * cells) * sizeof *reduced);
    cpl_status status               = CPL_OK;
    if (!reduced) return CPL_ERR_MEMORY;
    memset(out, 0, sizeof *out);
    out->has_M  = M != NULL;
    out->like_M = out->like_centred = none;
    out->diagonal = out->alpha_min = out->rows_own = out->columns_own = (double)NAN;
    for (int k = 0; k < n_alphas; k++) out->erc[k] = (double)NAN;
    for (int64_t i = 0; i < n; i++) {
        out->n_kept += a->routed[i] >= CPL_TOKENS_FEW;
        for (int64_t j = 0; j < n; j++)
            M_tok[i * n + j] = (float)(a->sums[i * n + j] / (double)a->routed[i]);
    }
    out->n_left_out = n - out->n_kept;
    reduce(reduced, M_tok, a);
    if (M) reduce(reduced + cells, M, a);
    if (centred) reduce(reduced + 2 * cells, centred, a);
    if (out->n_kept > 0)
        status = figures(out, reduced, M ? reduced + cells : NULL,
                         centred ? reduced + 2 * cells : NULL, alphas, n_alphas);
    cpl_free(reduced);
    return status;
}
