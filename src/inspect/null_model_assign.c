/* null_model_assign.c - the best pairing of rows and columns; see null_model.h.
 *
 * Source: H. W. Kuhn's Hungarian method with shortest augmenting paths. Prices keep every loss
 *           loss_ij = row_price_i + column_price_j - score_ij
 *         at 0 or more, and at 0 if i and j are paired. So a perfect pairing has the largest sum.
 *         One row after another is paired along the path of least loss to a free column. The search
 *         ends after n paths of at most n columns for any numbers, NaN and infinities too. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/arena.h"
#include "inspect/null_model.h"

/* Two sums whose difference is below this part of the terms are equal. */
static const double equal_part = 1e-12;

typedef struct market {
    const double *score; /* [n,n] */
    int64_t n;
    double *row_price, *column_price; /* [n] */
    double *loss;                     /* [n] loss of the shortest path found to each column */
    int32_t *from;                    /* [n] last row of the shortest path to each column */
    int32_t *row_of;                  /* [n] row paired with each column; -1: free */
    int32_t *column_of;               /* [n] the pairing: column of each row */
    bool *reached;                    /* [n] columns whose shortest path is known */
} market;

static size_t market_bytes(int64_t n)
{
    return (size_t)n * (3 * sizeof(double) + 2 * sizeof(int32_t) + sizeof(bool));
}

/* Opens the market. Rows begin at the price of their best column, columns at 0, so that no loss is
 * negative. */
static market open_market(void *memory, int32_t *pairing, const double *score, int64_t n)
{
    market m       = {.score = score, .n = n, .column_of = pairing, .row_price = memory};
    m.column_price = m.row_price + n;
    m.loss         = m.column_price + n;
    m.from         = (int32_t *)(void *)(m.loss + n);
    m.row_of       = m.from + n;
    m.reached      = (bool *)(void *)(m.row_of + n);
    for (int64_t i = 0; i < n; i++) {
        m.row_price[i]    = score[i * n];
        m.column_price[i] = 0;
        m.row_of[i] = m.column_of[i] = -1;
        for (int64_t j = 1; j < n; j++) m.row_price[i] = fmax(m.row_price[i], score[i * n + j]);
    }
    return m;
}

/* Shortens the paths to all columns not yet reached by way of `row`, whose own path has lost
 * `lost`. Returns the nearest of these columns. */
static int64_t nearest_through(market *m, int32_t row, double lost)
{
    const double *score = m->score + row * m->n;
    int64_t nearest     = -1;
    for (int64_t j = 0; j < m->n; j++) {
        if (m->reached[j]) continue;
        double loss = lost + m->row_price[row] + m->column_price[j] - score[j];
        if (loss < m->loss[j]) {
            m->loss[j] = loss;
            m->from[j] = row;
        }
        if (nearest < 0 || m->loss[j] < m->loss[nearest]) nearest = j;
    }
    return nearest;
}

/* Returns the free column with the shortest path from `root`. */
static int64_t find_free(market *m, int32_t root)
{
    for (int64_t j = 0; j < m->n; j++) {
        m->loss[j]    = INFINITY;
        m->from[j]    = root;
        m->reached[j] = false;
    }
    double lost = 0;
    for (int32_t row = root;;) {
        int64_t column     = nearest_through(m, row, lost);
        m->reached[column] = true;
        lost               = m->loss[column];
        row                = m->row_of[column];
        if (row < 0) return column;
    }
}

/* Moves the prices so that the whole path to `last` has loss 0. */
static void update_prices(market *m, int32_t root, int64_t last)
{
    m->row_price[root] -= m->loss[last];
    for (int64_t j = 0; j < m->n; j++) {
        if (!m->reached[j] || j == last) continue;
        double less = m->loss[last] - m->loss[j];
        m->column_price[j] += less;
        m->row_price[m->row_of[j]] -= less;
    }
}

/* Pairs every row on the path with the column it leads to. */
static void pair_along(market *m, int32_t root, int64_t last)
{
    for (int64_t column = last; column >= 0;) {
        int32_t row       = m->from[column];
        int64_t before    = row == root ? -1 : m->column_of[row];
        m->row_of[column] = row;
        m->column_of[row] = (int32_t)column;
        column            = before;
    }
}

static void prefer_identity(int32_t *pairing, const double *score, int64_t n)
{
    double lead = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        lead += score[i * n + pairing[i]] - score[i * n + i];
        size += fabs(score[i * n + pairing[i]]);
    }
    if (!(lead <= equal_part * size)) return;
    for (int64_t i = 0; i < n; i++) pairing[i] = (int32_t)i;
}

cpl_status cpl_null_model_assign(int32_t *pairing, const double *score, int64_t n)
{
    void *memory = cpl_alloc(market_bytes(n));
    if (!memory) return CPL_ERR_MEMORY;
    market m = open_market(memory, pairing, score, n);
    for (int32_t root = 0; root < n; root++) {
        int64_t last = find_free(&m, root);
        update_prices(&m, root, last);
        pair_along(&m, root, last);
    }
    prefer_identity(pairing, score, n);
    cpl_free(memory);
    return CPL_OK;
}
