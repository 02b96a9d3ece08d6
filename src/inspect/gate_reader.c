/* Router, projection and norm are read as if each were the gate of one expert, so that all take one
 * path. */
#include "inspect/gate_reader.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "tensor/backend/backend.h"

/* Describes the place of one expert's gate in its stored tensor, and of its factors among the
 * scales. A slab is the part of the tensor that belongs to one expert: [slab_rows, slab_cols]
 * numbers. */
typedef struct place {
    const cpl_stored_matrix *matrix;
    int64_t slab_rows, slab_cols;
    int64_t row_numbers; /* from a stored row to the next: slab_cols, filled up to whole blocks */
    size_t row_bytes;    /* row_numbers in bytes */
    int64_t skipped;     /* rows of the slab before the first row to read */
    int64_t rows;        /* rows of the slab to read */
    int64_t gate_rows;   /* rows of the gate among them */
    uint64_t first;      /* the first byte to read in the tensor */
    int64_t grid_cols;   /* columns of the scales; 0 without scales */
    int64_t grid_rows;   /* rows of the scales to read */
    int64_t grid_first;  /* number of the first scale */
    int64_t into_block;  /* rows of the first block before the first row to read */
    bool spread;         /* factors are copied for each row of the gate, see spread_scale */
    int64_t spread_cols; /* factors of a row, if spread */
    int64_t spread_columns; /* columns of the gate that share a factor, if spread */
} place;

static int64_t parts_of(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

static void place_scale(place *p, const cpl_moe_layer *layer, int64_t slab, bool flat)
{
    const cpl_stored_matrix *m = p->matrix;
    bool one                   = m->scale->n_elements == 1; /* one scale serves all experts */
    int64_t before             = one ? 0 : p->skipped + (flat ? slab * p->slab_rows : 0);
    p->into_block              = before % m->block_rows;
    p->grid_cols               = one ? 1 : parts_of(p->slab_cols, m->block_cols);
    p->grid_rows               = one ? 1 : parts_of(p->into_block + p->rows, m->block_rows);
    int64_t grid               = parts_of(p->slab_rows, m->block_rows) * p->grid_cols;
    p->grid_first     = one ? 0 : before / m->block_rows * p->grid_cols + (flat ? 0 : slab * grid);
    bool columns      = layer->layout == CPL_GATE_COLUMNS;
    bool turned       = columns || (layer->interleaved && m->block_rows > 1);
    p->spread         = turned && p->grid_cols * p->grid_rows > 1;
    p->spread_cols    = columns ? p->grid_rows : p->grid_cols;
    p->spread_columns = columns ? m->block_rows : m->block_cols;
}

/* Returns the place of the rows [first, first + rows) of the gate. */
static place find_rows(const cpl_moe_layer *layer, int64_t expert, int64_t first, int64_t rows)
{
    const int64_t apart = layer->interleaved ? 2 : 1;
    bool all            = layer->n_matrices == 1;
    bool columns        = layer->layout == CPL_GATE_COLUMNS;
    int64_t slab        = all ? expert : 0;
    place p             = {.matrix    = &layer->matrices[all ? 0 : expert],
                           .slab_rows = columns ? layer->l : layer->width,
                           .slab_cols = columns ? layer->width : layer->l};
    int64_t block       = cpl_format_block_numbers(p.matrix->format);
    p.row_numbers       = parts_of(p.slab_cols, block) * block;
    p.row_bytes = (size_t)(p.row_numbers / block * cpl_format_block_bytes(p.matrix->format));
    p.gate_rows = rows;
    p.skipped   = columns ? 0 : apart * first + (layer->second ? layer->D : 0);
    p.rows      = columns ? p.slab_rows : apart * rows;
    p.first     = (uint64_t)(slab * p.slab_rows + p.skipped) * p.row_bytes;
    CPL_ASSERT(first >= 0 && rows >= 1 && first + rows <= layer->D);
    CPL_ASSERT(!columns || rows == layer->D);
    if (p.matrix->scale) place_scale(&p, layer, slab, all && p.matrix->weight->rank == 2);
    return p;
}

static place find_place(const cpl_moe_layer *layer, int64_t expert)
{
    return find_rows(layer, expert, 0, layer->D);
}

/* ---- sizes ---- */

static size_t weight_bytes(const place *p)
{
    return (size_t)p->rows * p->row_bytes;
}

static size_t scale_bytes(const place *p)
{
    if (!p->matrix->scale) return 0;
    return (size_t)(p->grid_rows * p->grid_cols * cpl_format_block_bytes(p->matrix->scale_format));
}

/* Returns the number of floats of the decoded scales and of the spread factors after them. */
static size_t scale_floats(const place *p)
{
    if (!p->matrix->scale) return 0;
    return (size_t)(p->grid_rows * p->grid_cols) +
           (p->spread ? (size_t)(p->gate_rows * p->spread_cols) : 0);
}

size_t cpl_gate_bytes(const cpl_moe_layer *layer)
{
    size_t most = 0;
    for (int64_t e = 0; e < layer->n; e++) {
        place p     = find_place(layer, e);
        size_t need = weight_bytes(&p) + scale_bytes(&p) + scale_floats(&p) * sizeof(float);
        most        = need > most ? need : most;
    }
    return most;
}

/* Returns a matrix [rows + extra, cols] as the gate of an expert, of which `rows` are used. */
static cpl_moe_layer as_gate(const cpl_stored_matrix *matrix, int64_t rows, int64_t extra,
                             int64_t cols)
{
    return (cpl_moe_layer){.layout     = CPL_GATE_ROWS,
                           .n          = 1,
                           .l          = cols,
                           .D          = rows,
                           .width      = rows + extra,
                           .matrices   = matrix,
                           .n_matrices = 1};
}

/* Lists the matrices that are read before the gates: router, projection, norm. */
enum { ROUTER, PROJECTION, NORM, MOST_FIRST };

/* Sets `out` to these matrices as gates and returns their number. */
static int first_matrices(cpl_moe_layer out[MOST_FIRST], const cpl_moe_layer *layer)
{
    out[ROUTER]     = as_gate(&layer->router, layer->n, layer->extra_rows, layer->d);
    out[PROJECTION] = as_gate(&layer->projection, layer->l, 0, layer->d);
    out[NORM]       = as_gate(&layer->latent_norm, 1, 0, layer->l);
    if (layer->router_transposed) out[ROUTER].layout = CPL_GATE_COLUMNS;
    return layer->latent_norm.weight ? MOST_FIRST : layer->projection.weight ? NORM : PROJECTION;
}

int64_t cpl_gate_rows_bytes(const cpl_moe_layer *layer, int64_t expert, int64_t first, int64_t rows)
{
    place p = find_rows(layer, expert, first, rows);
    return (int64_t)(weight_bytes(&p) + scale_bytes(&p));
}

int64_t cpl_router_bytes(const cpl_moe_layer *layer)
{
    cpl_moe_layer first[MOST_FIRST];
    const int count = first_matrices(first, layer);
    int64_t bytes   = 0;
    for (int i = 0; i < count; i++) bytes += cpl_gate_rows_bytes(&first[i], 0, 0, first[i].D);
    return bytes;
}

int64_t cpl_layer_bytes(const cpl_moe_layer *layer)
{
    int64_t bytes = cpl_router_bytes(layer);
    for (int64_t e = 0; e < layer->n; e++) bytes += cpl_gate_rows_bytes(layer, e, 0, layer->D);
    return bytes;
}

int64_t cpl_gate_rows_shared_bytes(const cpl_moe_layer *layer, int64_t expert, int64_t first,
                                   int64_t rows)
{
    if (layer->layout != CPL_GATE_COLUMNS && !layer->interleaved) return 0;
    const place p = find_rows(layer, expert, first, rows);
    return (int64_t)weight_bytes(&p) / layer->width * (layer->width - layer->D);
}

/* ---- bytes to read ---- */

/* Describes the bytes to read from one tensor of the place. All zero precedes the first piece. */
typedef struct piece {
    const cpl_stored *tensor;
    uint64_t first; /* byte of the tensor */
    size_t bytes;   /* may be 0 */
    int slice;      /* number of the next slice, if the tensor is cut */
    int64_t before; /* rows before that slice */
} piece;

static bool next_piece(piece *q, const place *p)
{
    const int n_slices = p->matrix->weight->n_slices;
    q->tensor          = &p->matrix->weight[q->slice];
    q->first           = p->first;
    q->bytes           = weight_bytes(p);
    if (n_slices <= 1) return q->slice++ == 0;
    if (q->slice++ == n_slices) return false;
    const int64_t rows = q->tensor->shape[0], begin = p->skipped - q->before;
    const int64_t end   = begin + p->rows < rows ? begin + p->rows : rows;
    const int64_t first = begin > 0 ? begin : 0;
    q->first            = (uint64_t)first * p->row_bytes;
    q->bytes            = end > first ? (size_t)(end - first) * p->row_bytes : 0;
    q->before += rows;
    return true;
}

/* Adds the bytes [first, first + bytes) of a tensor. A tensor with a fault adds no piece. */
static cpl_status add_piece(cpl_source_pieces *pieces, const cpl_stored *tensor, uint64_t first,
                            uint64_t bytes)
{
    if (tensor->fault) return CPL_OK;
    return cpl_source_pieces_add(pieces, cpl_stored_source(tensor), tensor->offset + first, bytes);
}

cpl_status cpl_gate_rows_pieces(cpl_source_pieces *pieces, const cpl_moe_layer *layer,
                                int64_t expert, int64_t first, int64_t rows)
{
    const place p           = find_rows(layer, expert, first, rows);
    const cpl_stored *scale = p.matrix->scale;
    for (piece q = {0}; next_piece(&q, &p);) CPL_TRY(add_piece(pieces, q.tensor, q.first, q.bytes));
    if (!scale) return CPL_OK;
    const int64_t from = p.grid_first * cpl_format_block_bytes(p.matrix->scale_format);
    return add_piece(pieces, scale, (uint64_t)from, scale_bytes(&p));
}

cpl_status cpl_router_pieces(cpl_source_pieces *pieces, const cpl_moe_layer *layer)
{
    cpl_moe_layer first[MOST_FIRST];
    const int count = first_matrices(first, layer);
    for (int i = 0; i < count; i++)
        CPL_TRY(cpl_gate_rows_pieces(pieces, &first[i], 0, 0, first[i].D));
    return CPL_OK;
}

/* ---- loading ---- */

static cpl_status reserve(void **memory, size_t *size, size_t bytes)
{
    if (*size >= bytes) return CPL_OK;
    cpl_free(*memory);
    *size   = 0;
    *memory = cpl_alloc(bytes);
    if (!*memory) return CPL_ERR_MEMORY;
    *size = bytes;
    return CPL_OK;
}

/* Reads the rows from all slices that hold them. */
static cpl_status read_rows(const place *p, char *out)
{
    for (piece q = {0}; next_piece(&q, p); out += q.bytes)
        if (q.bytes) CPL_TRY(cpl_stored_read(q.tensor, out, q.first, q.bytes));
    return CPL_OK;
}

/* Blocks of interleaved rows or of columns do not follow the gate's rows. Every row r of the gate
 * then gets factors of its own: the factor of column c is at r spread_cols + c / spread_columns. */
static void spread_scale(float *out, const float *grid, const place *p, const cpl_moe_layer *layer)
{
    const cpl_stored_matrix *m = p->matrix;
    for (int64_t r = 0; r < p->gate_rows; r++) {
        int64_t stored = layer->interleaved ? 2 * r : layer->second ? layer->D + r : r;
        float *to      = out + r * p->spread_cols;
        if (layer->layout == CPL_GATE_COLUMNS)
            for (int64_t g = 0; g < p->spread_cols; g++)
                to[g] = grid[g * p->grid_cols + stored / m->block_cols];
        else
            memcpy(to, grid + (p->into_block + stored) / m->block_rows * p->grid_cols,
                   (size_t)p->spread_cols * sizeof *to);
    }
}

static cpl_status read_scale(cpl_gate *gate, const place *p)
{
    const cpl_stored_matrix *m = p->matrix;
    if (!m->scale) return CPL_OK;
    int64_t count = p->grid_rows * p->grid_cols;
    char *raw     = (char *)gate->bytes + weight_bytes(p);
    uint64_t from = (uint64_t)(p->grid_first * cpl_format_block_bytes(m->scale_format));
    CPL_TRY(cpl_stored_read(m->scale, raw, from, scale_bytes(p)));
    cpl_decode_shape shape = {.rows = 1, .cols = count, .row_step = count, .col_step = 1};
    cpl_cpu_on_host()->decode(gate->scale, m->scale_format, raw, shape);
    if (p->spread) spread_scale(gate->scale + count, gate->scale, p, gate->layer);
    return CPL_OK;
}

cpl_status cpl_gate_load_rows(cpl_gate *gate, const cpl_moe_layer *layer, int64_t expert,
                              int64_t first, int64_t rows)
{
    place p       = find_rows(layer, expert, first, rows);
    gate->layer   = layer;
    gate->expert  = expert;
    gate->first   = first;
    gate->rows    = rows;
    void *scale   = gate->scale;
    size_t floats = scale_floats(&p) * sizeof(float);
    CPL_TRY(reserve(&gate->bytes, &gate->size, weight_bytes(&p) + scale_bytes(&p)));
    cpl_status status = reserve(&scale, &gate->scale_size, floats);
    gate->scale       = scale;
    CPL_TRY(status);
    CPL_TRY(read_rows(&p, gate->bytes));
    CPL_TRY(read_scale(gate, &p));
    gate->read_bytes += (int64_t)(weight_bytes(&p) + scale_bytes(&p));
    return CPL_OK;
}

cpl_status cpl_gate_load(cpl_gate *gate, const cpl_moe_layer *layer, int64_t expert)
{
    return cpl_gate_load_rows(gate, layer, expert, 0, layer->D);
}

void cpl_gate_prefetch(const cpl_moe_layer *layer, int64_t expert)
{
    cpl_gate_prefetch_rows(layer, expert, 0, layer->D);
}

void cpl_gate_prefetch_rows(const cpl_moe_layer *layer, int64_t expert, int64_t first, int64_t rows)
{
    place p                 = find_rows(layer, expert, first, rows);
    const cpl_stored *scale = p.matrix->scale;
    for (piece q = {0}; next_piece(&q, &p);)
        if (q.bytes) cpl_stored_prefetch(q.tensor, q.first, q.bytes);
    if (!scale) return;
    uint64_t from = (uint64_t)(p.grid_first * cpl_format_block_bytes(p.matrix->scale_format));
    cpl_stored_prefetch(scale, from, scale_bytes(&p));
}

/* ---- numbers ---- */

static void scale_rows(cpl_matrix out, const cpl_gate *gate, const place *p, int64_t first)
{
    const cpl_stored_matrix *m = p->matrix;
    const float *factors       = gate->scale;
    cpl_scale_shape shape      = {.rows       = out.rows,
                                  .cols       = out.cols,
                                  .first_row  = p->into_block + first,
                                  .block_rows = m->block_rows,
                                  .block_cols = m->block_cols,
                                  .step       = p->grid_cols};
    if (p->spread) {
        factors += p->grid_rows * p->grid_cols;
        shape.first_row  = first;
        shape.block_rows = 1;
        shape.block_cols = p->spread_columns;
        shape.step       = p->spread_cols;
    } else if (p->grid_rows * p->grid_cols == 1) {
        shape.first_row  = 0; /* one factor for all */
        shape.block_rows = shape.rows;
        shape.block_cols = shape.cols;
    } else if (gate->layer->interleaved) {
        shape.step *= 2; /* a row of factors for each stored row, since they were not spread */
    }
    cpl_cpu_on_host()->scale(out.at, factors, shape);
}

void cpl_gate_rows(cpl_matrix out, const cpl_gate *gate, int64_t first)
{
    const cpl_moe_layer *layer = gate->layer;
    CPL_ASSERT(out.cols == layer->l && first >= gate->first &&
               first + out.rows <= gate->first + gate->rows);
    if (out.rows == 0) return;
    first -= gate->first;
    place p                = find_rows(layer, gate->expert, gate->first, gate->rows);
    bool columns           = layer->layout == CPL_GATE_COLUMNS;
    int64_t apart          = layer->interleaved ? 2 : 1;
    cpl_decode_shape shape = {.rows     = out.rows,
                              .cols     = out.cols,
                              .row_step = apart * (columns ? 1 : p.row_numbers),
                              .col_step = columns ? p.row_numbers : 1};
    shape.first            = first * shape.row_step + (columns && layer->second ? layer->D : 0);
    cpl_cpu_on_host()->decode(out.at, p.matrix->format, gate->bytes, shape);
    if (p.matrix->scale) scale_rows(out, gate, &p, first);
}

/* ---- NaN and infinities ---- */

typedef struct not_numbers {
    int64_t count, row, column; /* row and column of the first of them */
    float first;
} not_numbers;

static void look_for(not_numbers *found, const float *x, int64_t row, int64_t cols)
{
    for (int64_t c = 0; c < cols; c++) {
        if (isfinite(x[c])) continue;
        if (found->count++ > 0) continue;
        found->row    = row;
        found->column = c;
        found->first  = x[c];
    }
}

static const char *called(float x)
{
    return isnan(x) ? "NaN" : x > 0 ? "Inf" : "-Inf";
}

cpl_status cpl_gate_check(const cpl_gate *gate, float *scratch)
{
    not_numbers found = {0};
    cpl_matrix row    = {scratch, 1, gate->layer->l};
    for (int64_t r = gate->first; r < gate->first + gate->rows; r++) {
        cpl_gate_rows(row, gate, r);
        look_for(&found, scratch, r, gate->layer->l);
    }
    if (!found.count) return CPL_OK;
    const cpl_stored *tensor = find_place(gate->layer, gate->expert).matrix->weight;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: tensor %s: the gate of expert %" PRId64 " has %" PRId64
                    " values that are NaN or infinite, the first (%s) in its row %" PRId64
                    ", column %" PRId64,
                    tensor->path, tensor->name, gate->expert, found.count, called(found.first),
                    found.row, found.column);
}

static cpl_status check_matrix(cpl_matrix X, const cpl_stored *tensor, const char *what)
{
    not_numbers found = {0};
    for (int64_t r = 0; r < X.rows; r++) look_for(&found, X.at + r * X.cols, r, X.cols);
    if (!found.count) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: tensor %s: the %s has %" PRId64
                    " values that are NaN or infinite, the first (%s) in row %" PRId64
                    ", column %" PRId64,
                    tensor->path, tensor->name, what, found.count, called(found.first), found.row,
                    found.column);
}

/* Sets X to a matrix of the list above. */
static cpl_status read_first(cpl_matrix X, const cpl_moe_layer *layer, int which)
{
    static const char *const words[] = {"router", "projection", "norm"};
    cpl_moe_layer first[MOST_FIRST];
    cpl_gate gate = {0};
    cpl_status status;
    first_matrices(first, layer);
    CPL_ASSERT(X.rows == first[which].D && X.cols == first[which].l);
    CPL_TRY_DONE(cpl_gate_load(&gate, &first[which], 0));
    cpl_gate_rows(X, &gate, 0);
    status = check_matrix(X, first[which].matrices->weight, words[which]);
done:
    cpl_gate_free(&gate);
    return status;
}

cpl_status cpl_router_read(cpl_matrix R, const cpl_moe_layer *layer)
{
    return read_first(R, layer, ROUTER);
}

cpl_status cpl_router_read_projection(cpl_matrix W, float *g, const cpl_moe_layer *layer)
{
    CPL_TRY(read_first(W, layer, PROJECTION));
    if (!layer->latent_norm.weight) return CPL_OK;
    CPL_TRY(read_first((cpl_matrix){g, 1, layer->l}, layer, NORM));
    for (int64_t k = 0; k < layer->l; k++) g[k] += 1;
    return CPL_OK;
}

void cpl_gate_free(cpl_gate *gate)
{
    cpl_free(gate->bytes);
    cpl_free(gate->scale);
    *gate = (cpl_gate){0};
}
