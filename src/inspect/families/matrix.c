#include "inspect/families/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { F4_GROUP_BYTES = 16, F4_GROUP = 32, WORD = 8 };

static int64_t parts_of(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

static bool is_type(const cpl_stored *tensor, const char *type)
{
    return tensor->type_name && strcmp(tensor->type_name, type) == 0;
}

static const char *unread(const cpl_matrix_parts *m, const cpl_stored *tensor)
{
    return cpl_pool_printf(m->pool, "%s: tensor %s is stored as %s, which is not read here",
                           tensor->path, tensor->name, tensor->type_name);
}

const char *cpl_matrix_sizes(cpl_pool *pool, const cpl_stored *tensor)
{
    const char *sizes = "";
    for (int i = 0; i < tensor->rank; i++)
        sizes = cpl_pool_printf(pool, "%s%s%" PRId64, sizes, i ? "," : "", tensor->shape[i]);
    return cpl_pool_printf(pool, "[%s]", sizes);
}

static const char *misshapen(const cpl_matrix_parts *m, const cpl_stored *tensor, const char *want)
{
    return cpl_pool_printf(m->pool, "%s: tensor %s is %s, which is not %s", tensor->path,
                           tensor->name, cpl_matrix_sizes(m->pool, tensor), want);
}

static const char *lacks_scale(const cpl_matrix_parts *m, const cpl_stored *tensor,
                               const char *ending)
{
    return cpl_pool_printf(m->pool, "%s: tensor %s is stored as %s and %s%s is missing",
                           tensor->path, tensor->name, tensor->type_name, tensor->name, ending);
}

/* ---- the weight ---- */

/* Sets the outer axes of a tensor whose last `inner` axes are one row of numbers. */
static bool set_rows(cpl_matrix_shape *shape, const cpl_stored *tensor, int inner)
{
    int outer = tensor->rank - inner;
    if (outer != 1 && outer != 2) return false;
    shape->stacked = outer == 2;
    shape->n       = shape->stacked ? tensor->shape[0] : 1;
    shape->rows    = tensor->shape[outer - 1];
    for (int s = 1; s < tensor->n_slices; s++) shape->rows += tensor[s].shape[outer - 1];
    return true;
}

static const char *make_blocks(const cpl_matrix_parts *m)
{
    const cpl_stored *blocks = m->blocks, *scale = m->scale;
    if (!is_type(blocks, "U8")) return unread(m, blocks);
    if (!scale) return lacks_scale(m, blocks, " with its scales");
    bool flat   = blocks->rank == scale->rank; /* [..., G 16] instead of [..., G, 16] */
    int64_t end = blocks->rank > 0 ? blocks->shape[blocks->rank - 1] : 0;
    if ((!flat && (blocks->rank != scale->rank + 1 || end != F4_GROUP_BYTES)) ||
        !set_rows(m->shape, blocks, flat ? 1 : 2))
        return misshapen(m, blocks, "rows of groups of 16 bytes with a scale each");
    m->out->weight     = blocks;
    m->out->format     = CPL_FORMAT_F4_PAIR;
    m->shape->cols     = flat ? 2 * end : F4_GROUP * blocks->shape[blocks->rank - 2];
    m->out->block_rows = 1;
    m->out->block_cols = F4_GROUP;
    return NULL;
}

static const char *make_packed(const cpl_matrix_parts *m)
{
    const cpl_stored *packed = m->packed, *scale = m->scale;
    const bool f4 = is_type(packed, "U8"); /* mxfp4-pack-quantized */
    if (!f4 && !is_type(packed, "I32")) return unread(m, packed);
    if (!scale) return lacks_scale(m, packed, "'s weight_scale");
    if (!set_rows(m->shape, packed, 1)) return misshapen(m, packed, "a matrix");
    int64_t words      = packed->shape[packed->rank - 1];
    m->out->weight     = packed;
    m->out->format     = f4 ? CPL_FORMAT_F4_PAIR : CPL_FORMAT_INT4_WORD;
    m->shape->cols     = f4 ? 2 * words : parts_of(m->d, WORD) == words ? m->d : WORD * words;
    int64_t scales     = scale->rank > 0 ? scale->shape[scale->rank - 1] : 1;
    m->out->block_rows = 1;
    m->out->block_cols = f4 ? F4_GROUP : cpl_moe_config_group(m->config, m->shape->cols, scales);
    if (m->out->block_cols) return NULL;
    return cpl_pool_printf(m->pool,
                           "%s: tensor %s has %" PRId64 " scales for a row of %" PRId64
                           " numbers, and config.json names no group of 4-bit weights like that",
                           scale->path, scale->name, scales, m->shape->cols);
}

/* Returns whether the tensor holds pairs of f4: I8 with an exponent for every 32 numbers. */
static bool is_f4(const cpl_stored *weight, const cpl_stored *scale)
{
    if (!is_type(weight, "I8") || !scale || weight->rank < 2 || scale->rank != weight->rank)
        return false;
    bool exponents = scale->format == CPL_FORMAT_F8_E8M0 || is_type(scale, "U8");
    int last       = weight->rank - 1;
    return exponents && parts_of(2 * weight->shape[last], F4_GROUP) == scale->shape[last];
}

static const char *make_plain(const cpl_matrix_parts *m)
{
    const cpl_stored *weight = m->weight, *scale = m->scale;
    bool f4     = is_f4(weight, scale);
    bool eights = weight->format == CPL_FORMAT_F8_E4M3 || weight->format == CPL_FORMAT_F8_E5M2;
    if (!f4 && (weight->format == CPL_FORMAT_OTHER || weight->format == CPL_FORMAT_F8_E8M0))
        return unread(m, weight);
    if (!set_rows(m->shape, weight, 1)) return misshapen(m, weight, "a matrix or a stack of them");
    if (!scale && eights && m->config->quant_method) return lacks_scale(m, weight, "'s scale");
    if (scale && !f4 && !eights)
        return cpl_pool_printf(m->pool, "%s: tensor %s is stored as %s and yet has scales in %s",
                               weight->path, weight->name, weight->type_name, scale->name);
    m->out->weight     = weight;
    m->out->format     = f4 ? CPL_FORMAT_F4_PAIR : weight->format;
    m->shape->cols     = weight->shape[weight->rank - 1] * (f4 ? 2 : 1);
    m->out->block_rows = f4 ? 1 : 0;
    m->out->block_cols = f4 ? F4_GROUP : 0;
    return NULL;
}

/* ---- the scale ---- */

/* Sets how many numbers share a scale, if the weight's format leaves it open: all, a row, a column,
 * or a block. */
static void find_scale_blocks(const cpl_matrix_parts *m)
{
    const cpl_stored *scale = m->scale;
    int64_t last            = scale->rank > 1 ? scale->shape[scale->rank - 1] : 1;
    bool across             = scale->rank > 1 && scale->shape[scale->rank - 2] == 1;
    if (scale->n_elements == 1 || (m->shape->stacked && scale->n_elements == m->shape->n)) {
        m->out->block_rows = m->shape->rows;
        m->out->block_cols = m->shape->cols;
    } else if (!m->grid && last == 1 && scale->n_elements == m->shape->n * m->shape->rows) {
        m->out->block_rows = 1;
        m->out->block_cols = m->shape->cols;
    } else if (!m->grid && across && last == m->shape->cols) {
        m->out->block_rows = m->shape->rows;
        m->out->block_cols = 1;
    } else {
        m->out->block_rows = m->config->block_rows;
        m->out->block_cols = m->config->block_cols;
    }
}

/* Returns whether the axes are [n,rows,cols] without axes of length 1. */
static bool is_grid(const cpl_stored *scale, int64_t n, int64_t rows, int64_t cols)
{
    const int64_t want[3] = {n, rows, cols};
    int at                = 0;
    for (int i = 0; i < scale->rank; i++) {
        if (scale->shape[i] == 1) continue;
        while (at < 3 && want[at] == 1) at++;
        if (at == 3 || want[at++] != scale->shape[i]) return false;
    }
    while (at < 3 && want[at] == 1) at++;
    return at == 3;
}

static const char *make_scale(const cpl_matrix_parts *m)
{
    const cpl_stored *scale = m->scale;
    cpl_stored_matrix *out  = m->out;
    out->scale              = scale;
    out->scale_format       = is_type(scale, "U8") ? CPL_FORMAT_F8_E8M0 : scale->format;
    if (out->scale_format > CPL_FORMAT_LAST_PLAIN) return unread(m, scale);
    const bool open = !out->block_rows;
    if (open) find_scale_blocks(m);
    int64_t rows = parts_of(m->shape->rows, out->block_rows);
    int64_t cols = parts_of(m->shape->cols, out->block_cols);
    if (scale->n_elements == 1 || is_grid(scale, m->shape->n, rows, cols)) return NULL;
    const char *others = "";
    if (open && !m->grid)
        others = cpl_pool_printf(m->pool, ", [%" PRId64 ",1] for rows, [1,%" PRId64 "] for columns",
                                 m->shape->rows, m->shape->cols);
    return cpl_pool_printf(
        m->pool,
        "%s: tensor %s is %s, but the scales of %" PRId64 " rows of %" PRId64
        " numbers are [%" PRId64 ",%" PRId64 "] for blocks of [%" PRId64 ",%" PRId64 "]%s",
        scale->path, scale->name, cpl_matrix_sizes(m->pool, scale), m->shape->rows, m->shape->cols,
        rows, cols, out->block_rows, out->block_cols, others);
}

/* ---- weight and scale ---- */

static const char *check_slices(const cpl_matrix_parts *m, const cpl_stored *tensor)
{
    if (tensor->n_slices <= 1) return NULL;
    if (!cpl_moe_config_flag(m->config, CPL_FLAG_SLICES))
        return cpl_pool_printf(m->pool,
                               "%s: tensor %s lies in slices in %d files, and it is not "
                               "known how they are joined",
                               tensor->path, tensor->name, tensor->n_slices);
    for (int s = 0; s < tensor->n_slices; s++) {
        const cpl_stored *slice = &tensor[s];
        if (slice->fault) return slice->fault;
        if (slice->rank != 2 || slice->shape[1] != tensor->shape[1] ||
            slice->format != tensor->format)
            return misshapen(m, slice, "a slice like the others");
    }
    return NULL;
}

const char *cpl_matrix_make(const cpl_matrix_parts *m)
{
    const cpl_stored *weight = m->weight ? m->weight : m->packed ? m->packed : m->blocks;
    *m->out                  = (cpl_stored_matrix){0};
    *m->shape                = (cpl_matrix_shape){0};
    if (weight->fault) return weight->fault;
    if (m->scale && m->scale->fault) return m->scale->fault;
    if (weight->n_elements < 1) return misshapen(m, weight, "of any size");
    if (m->scale && m->scale->n_elements < 1) return misshapen(m, m->scale, "of any size");
    const char *fault = check_slices(m, weight);
    if (!fault) fault = m->weight ? make_plain(m) : m->packed ? make_packed(m) : make_blocks(m);
    if (!fault && m->scale) fault = make_scale(m);
    return fault;
}
