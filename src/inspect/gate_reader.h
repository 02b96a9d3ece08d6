/* gate_reader.h - routers, gates and projections of a checkpoint as F32 rows, in any stored format.
 *
 * Room:    inspect. Only their bytes are read.
 * Memory:  a cpl_gate holds only the stored bytes of one expert's gate (with what is interleaved
 *          with it) and its scales. Each thread has its own cpl_gate. */
#ifndef CPL_INSPECT_GATE_READER_H
#define CPL_INSPECT_GATE_READER_H

#include "inspect/families/families.h"
#include "tensor/host_ops.h"

/* Sets R [n,d]. NaN and infinities are an error that counts them and names the first place. */
CPL_NODISCARD cpl_status cpl_router_read(cpl_matrix R, const cpl_moe_layer *layer);

/* Sets W_l [l,d] and, if the layer has a norm, g [l] = 1 + w. The layer must have latent experts.
 * The errors are those of cpl_router_read. */
CPL_NODISCARD cpl_status cpl_router_read_projection(cpl_matrix W, float *g,
                                                    const cpl_moe_layer *layer);

/* Returns the bytes of this layer's router, projection and all gates in the files. */
int64_t cpl_layer_bytes(const cpl_moe_layer *layer);

/* Holds one expert's gate in memory. All zero means no gate. */
typedef struct cpl_gate {
    const cpl_moe_layer *layer;
    int64_t expert;
    int64_t first, rows; /* the rows that are loaded */
    void *bytes;         /* the rows as stored */
    float *scale;        /* their scales, decoded */
    size_t size, scale_size;
    int64_t read_bytes; /* total since the beginning, for the progress */
} cpl_gate;

/* Returns the most bytes that a cpl_gate takes for a gate of this layer. */
size_t cpl_gate_bytes(const cpl_moe_layer *layer);

/* Reads the gate of `expert` into the memory of `gate`, which grows if necessary. */
CPL_NODISCARD cpl_status cpl_gate_load(cpl_gate *gate, const cpl_moe_layer *layer, int64_t expert);
/* Prefetches the gate of `expert`, which is loaded next. */
void cpl_gate_prefetch(const cpl_moe_layer *layer, int64_t expert);

/* Reads the rows [first, first + rows) of the gate alone, 1 <= rows. The layout must not be
 * CPL_GATE_COLUMNS, whose rows are not contiguous. Interleaved rows are read with the rows between
 * them. */
CPL_NODISCARD cpl_status cpl_gate_load_rows(cpl_gate *gate, const cpl_moe_layer *layer,
                                            int64_t expert, int64_t first, int64_t rows);
void cpl_gate_prefetch_rows(const cpl_moe_layer *layer, int64_t expert, int64_t first,
                            int64_t rows);

/* Return the bytes that are read for the router with its projection, and for these rows. */
int64_t cpl_router_bytes(const cpl_moe_layer *layer);
int64_t cpl_gate_rows_bytes(const cpl_moe_layer *layer, int64_t expert, int64_t first,
                            int64_t rows);

/* Returns the part of cpl_gate_rows_bytes that belongs to an up projection, which is interleaved
 * with the gate or beside its columns. */
int64_t cpl_gate_rows_shared_bytes(const cpl_moe_layer *layer, int64_t expert, int64_t first,
                                   int64_t rows);

/* Adds the places of the files that cpl_router_read with cpl_router_read_projection, and
 * cpl_gate_load_rows, read, in their order. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_router_pieces(cpl_source_pieces *pieces, const cpl_moe_layer *layer);
CPL_NODISCARD cpl_status cpl_gate_rows_pieces(cpl_source_pieces *pieces, const cpl_moe_layer *layer,
                                              int64_t expert, int64_t first, int64_t rows);

/* Sets out [rows,l] to the rows [first, first + rows) of the gate, which must be loaded. */
void cpl_gate_rows(cpl_matrix out, const cpl_gate *gate, int64_t first);

/* Fails with CPL_ERR_INPUT, the count and the first place (file, tensor, expert, row, column) if
 * the loaded gate has a NaN or an infinity. `scratch` has l floats. */
CPL_NODISCARD cpl_status cpl_gate_check(const cpl_gate *gate, float *scratch);

void cpl_gate_free(cpl_gate *gate);

#endif /* CPL_INSPECT_GATE_READER_H */
