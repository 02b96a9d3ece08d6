/* panel.c - see panel.h. A tile of `mr` rows and `nv` vectors keeps its sums in registers from the
 * first k to the last; the rows' numbers are broadcast from where they lie. */
#include "tensor/cpu/panel.h"

#include "base/status.h"
#include "tensor/cpu/simd.h"

#ifdef __clang__
#    define UNROLL _Pragma("unroll")
#else
#    define UNROLL _Pragma("GCC unroll 8")
#endif

typedef struct operands {
    float *c;
    const float *x, *panel;
    int64_t c_step, depth, x_row, x_depth, panel_step;
    bool add;
} operands;

static inline __attribute__((always_inline)) void tile(const int mr, const int nv, operands o)
{
    lanes sum[6][PANEL_VECTORS];
    UNROLL for (int r = 0; r < mr; r++) UNROLL for (int v = 0; v < nv; v++)
    {
        sum[r][v] = lanes_all(0.0f);
        if (o.add) __builtin_prefetch(o.c + r * o.c_step + v * VECTOR, 1);
    }
    for (int64_t k = 0; k < o.depth; k++) {
        lanes b[PANEL_VECTORS];
        UNROLL for (int v = 0; v < nv; v++) b[v] = lanes_load(o.panel + v * VECTOR);
        UNROLL for (int r = 0; r < mr; r++)
        {
            lanes a                                       = lanes_all(o.x[r * o.x_row]);
            UNROLL for (int v = 0; v < nv; v++) sum[r][v] = lanes_madd(a, b[v], sum[r][v]);
        }
        o.x += o.x_depth;
        o.panel += o.panel_step;
    }
    UNROLL for (int r = 0; r < mr; r++) UNROLL for (int v = 0; v < nv; v++)
    {
        float *c = o.c + r * o.c_step + v * VECTOR;
        if (o.add) sum[r][v] += lanes_load(c);
        lanes_store(c, sum[r][v]);
    }
}

/* One function for each shape of tile, so that every loop over rows and vectors is straight code.
 */
#define TILE(mr, nv)                                                                               \
    static void tile_##mr##_##nv(operands o)                                                       \
    {                                                                                              \
        tile(mr, nv, o);                                                                           \
    }
#define TILES(nv) TILE(1, nv) TILE(2, nv) TILE(4, nv) TILE(6, nv)
#define ROW(nv)                                                                                    \
    {                                                                                              \
        tile_1_##nv, tile_2_##nv, tile_4_##nv, tile_6_##nv                                         \
    }
TILES(1)
TILES(2)
#if defined(__AVX512F__)
TILES(3)
TILES(4)
static void (*const tiles[PANEL_VECTORS][4])(operands) = {ROW(1), ROW(2), ROW(3), ROW(4)};
#else
static void (*const tiles[PANEL_VECTORS][4])(operands) = {ROW(1), ROW(2)};
#endif

void cpl_panel_product(float *c, int64_t c_step, int64_t rows, int64_t width, int64_t depth,
                       const float *x, int64_t x_row, int64_t x_depth, const float *panel,
                       int64_t panel_step, bool add)
{
    CPL_ASSERT(width % VECTOR == 0 && width > 0 && width <= PANEL);
    operands o                     = {c, x, panel, c_step, depth, x_row, x_depth, panel_step, add};
    void (*const *shape)(operands) = tiles[width / VECTOR - 1];
    while (rows > 0) {
        int kind = rows >= 6 ? 3 : rows >= 4 ? 2 : rows >= 2 ? 1 : 0;
        int mr   = kind == 3 ? 6 : 1 << kind;
        shape[kind](o);
        o.c += mr * c_step;
        o.x += mr * x_row;
        rows -= mr;
    }
}

/* ---- one column ---- */

enum { DOT_GROUPS = 2 }; /* runs of VECTOR rows at a time, so that one's latency hides another's */

/* Rows r0 ... r0 + VECTOR DOT_GROUPS - 1: vectors run over the rows, so that each sum keeps its
 * order. */
static void dot_groups(float *out, int64_t depth, const float *x, int64_t x_row,
                       const float *column)
{
    lanes sum[DOT_GROUPS];
    for (int g = 0; g < DOT_GROUPS; g++) sum[g] = lanes_all(0.0f);
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
        for (int g = 0; g < DOT_GROUPS; g++) {
            lanes part[4];
            lanes_columns(part, x + g * VECTOR * x_row + k, x_row);
            for (int i = 0; i < 4; i++)
                sum[g] = lanes_madd(part[i], lanes_all(column[k + i]), sum[g]);
        }
    }
    for (int g = 0; g < DOT_GROUPS; g++) lanes_store(out + g * VECTOR, sum[g]);
    for (; k < depth; k++)
        for (int r = 0; r < VECTOR * DOT_GROUPS; r++)
            out[r] = cpl_madd(x[r * x_row + k], column[k], out[r]);
}

void cpl_panel_dots(float *out, int64_t rows, int64_t depth, const float *x, int64_t x_row,
                    const float *column)
{
    int64_t r = 0;
    for (; r + VECTOR * DOT_GROUPS <= rows; r += VECTOR * DOT_GROUPS)
        dot_groups(out + r, depth, x + r * x_row, x_row, column);
    for (; r < rows; r++) {
        float sum = 0;
        for (int64_t k = 0; k < depth; k++) sum = cpl_madd(x[r * x_row + k], column[k], sum);
        out[r] = sum;
    }
}
