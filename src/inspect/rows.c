/* rows.c - rows of W_g of some experts, as a file that numpy.load reads. The experts i with i mod
 * stride = 0 of one layer are taken, at most 8 experts and CPL_MOST_ROWS rows. Rows are thinned by
 * even strides, which are the paper's choice for its t-SNE picture. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "inspect/internal.h"

enum { MOST_EXPERTS = 8, MAGIC = 10, ALIGNED = 64 };

/* ---- choice of rows ---- */

static int64_t middle_layer(const cpl_coupling_report *r)
{
    int64_t sound = 0, passed = 0, l = 0;
    for (int64_t i = 0; i < r->n_layers; i++) sound += !r->layers[i].fault;
    for (; l < r->n_layers; l++)
        if (!r->layers[l].fault && passed++ == sound / 2) break;
    return l;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

void cpl_inspect_rows_choose(cpl_coupling_report *r)
{
    cpl_inspect_rows *p     = &r->rows;
    p->index                = middle_layer(r);
    const cpl_moe_layer *at = r->layers[p->index].at;
    const int64_t n = at->n, eighth = n / MOST_EXPERTS > 1 ? n / MOST_EXPERTS : 1;
    p->stride               = eighth * divide_up(divide_up(n, eighth), MOST_EXPERTS);
    const int64_t n_experts = divide_up(n, p->stride);
    p->every                = divide_up(n_experts * at->D, CPL_MOST_ROWS);
    while (n_experts * divide_up(at->D, p->every) > CPL_MOST_ROWS) p->every++;
    p->count = n_experts * divide_up(at->D, p->every);
}

/* ---- the file ---- */

/* Writes the bytes before the records into `head`, and returns their number, a multiple of 64. */
static size_t put_head(char head[CPL_ROWS_HEAD], int64_t count, int64_t l)
{
    memset(head, ' ', CPL_ROWS_HEAD);
    const int n = snprintf(head + MAGIC, CPL_ROWS_HEAD - MAGIC,
                           "{'descr': [('layer', '<i4'), ('expert', '<i4'), ('row', '<f4', "
                           "(%lld,))], 'fortran_order': False, 'shape': (%lld,), }",
                           (long long)l, (long long)count);
    CPL_ASSERT(n > 0 && n < CPL_ROWS_HEAD - MAGIC - ALIGNED);
    const size_t length = (size_t)divide_up(MAGIC + n + 1, ALIGNED) * ALIGNED;
    head[MAGIC + n]     = ' '; /* overwrites the NUL */
    head[length - 1]    = '\n';
    memcpy(head, "\x93NUMPY\x01\x00", 8);
    head[8] = (char)((length - MAGIC) & 255);
    head[9] = (char)((length - MAGIC) >> 8);
    return length;
}

static size_t record_bytes(int64_t l)
{
    return 2 * sizeof(int32_t) + (size_t)l * sizeof(float);
}

double cpl_inspect_rows_bytes(const cpl_coupling_report *r)
{
    const cpl_moe_layer *at = r->layers[r->rows.index].at;
    return CPL_ROWS_HEAD + (double)r->rows.count * (double)record_bytes(at->l) +
           (double)cpl_gate_bytes(at) + (double)at->l * sizeof(float);
}

cpl_status cpl_inspect_rows_pieces(cpl_source_pieces *pieces, const cpl_coupling_report *r)
{
    const cpl_moe_layer *at = r->layers[r->rows.index].at;
    for (int64_t e = 0; r->rows.count && e < at->n; e += r->rows.stride)
        CPL_TRY(cpl_gate_rows_pieces(pieces, at, e, 0, at->D));
    return CPL_OK;
}

/* Appends the records of one expert, whose gate is loaded, from `to` on. Returns their end. */
static char *put_expert(char *to, const cpl_gate *gate, int64_t every, float *row)
{
    const cpl_moe_layer *at = gate->layer;
    const int32_t labels[2] = {(int32_t)at->layer, (int32_t)gate->expert};
    for (int64_t c = 0; c < at->D; c += every, to += record_bytes(at->l)) {
        cpl_gate_rows((cpl_matrix){row, 1, at->l}, gate, c);
        memcpy(to, labels, sizeof labels);
        memcpy(to + sizeof labels, row, (size_t)at->l * sizeof *row);
    }
    return to;
}

cpl_status cpl_inspect_rows_read(cpl_coupling_report *r)
{
    cpl_inspect_rows *p        = &r->rows;
    const cpl_layer_report *l  = &r->layers[p->index];
    const cpl_moe_layer *at    = l->at;
    const size_t records_bytes = (size_t)p->count * record_bytes(at->l);
    cpl_gate gate              = {0};
    cpl_status status          = CPL_OK;
    if (l->fault) return CPL_OK; /* a damaged layer has no rows */
    p->file    = cpl_alloc(CPL_ROWS_HEAD + records_bytes);
    float *row = cpl_alloc((size_t)at->l * sizeof *row);
    if (!p->file || !row) CPL_TRY_DONE(CPL_ERR_MEMORY);
    const size_t head = put_head(p->file, p->count, at->l);
    char *to          = p->file + head;
    p->bytes          = head + records_bytes;
    for (int64_t e = 0; e < at->n; e += p->stride) {
        CPL_TRY_DONE(cpl_gate_load(&gate, at, e));
        CPL_TRY_DONE(cpl_gate_check(&gate, row)); /* the file may have changed since */
        to = put_expert(to, &gate, p->every, row);
    }
    CPL_ASSERT(to == p->file + p->bytes);
done:
    r->bytes_read += (double)gate.read_bytes;
    cpl_gate_free(&gate);
    cpl_free(row);
    return status;
}
