/* share.h - which part of every parameter this rank updates (ZeRO, stage 1), and how gradients and
 * parameters travel between the ranks.
 *
 * Room:    train.
 * Parts:   a parameter is cut into slices, and each slice into equal parts for the ranks that hold
 *          the parameter: all of them, or for experts their replicas. This rank sums the gradients of
 *          its parts over these ranks, keeps their moments, updates them, and sends the result to
 *          the others. One process has one slice a parameter, all of it its own.
 * Masters: where products read BF16 copies and there are several ranks, a rank keeps the F32 masters
 *          of its parts alone. The model's masters then lie in the gradients' memory and are whole
 *          only from cpl_share_gather_masters, or from where they were drawn or loaded, until the
 *          gradients are zeroed. Norms and the router, which have no copies, are F32 everywhere.
 * Buckets: slices travel together, BUCKET_NUMBERS numbers or more a message, in the order in which
 *          the backward pass completes them: head, last layer, ..., first layer, embedding. Up to
 *          CPL_SHARE_BUFFERS messages are under way while the pass goes on.
 * Bits:    sums are in the order of the ranks (dist/group.h): overlap changes none. */
#ifndef CPL_TRAIN_SHARE_H
#define CPL_TRAIN_SHARE_H

#include "base/arena.h"
#include "dist/mesh.h"
#include "model/params.h"

enum { CPL_SHARE_BUFFERS = 4 };

typedef struct cpl_slice {
    cpl_param param;
    int64_t first, count; /* numbers of the parameter, as far as it is in this process */
    int64_t own, n_own;   /* this rank's part: first number of the parameter, and how many */
    int64_t at;           /* where the part lies in the moments of the parameter */
} cpl_slice;

typedef struct cpl_bucket {
    int64_t first, count; /* slices */
    cpl_group *group;     /* the ranks among which they are divided */
    int64_t ready;        /* the layer whose backward pass completes them; the number of layers: the
                             head; -1: the embedding */
} cpl_bucket;

/* A message under way. */
typedef struct cpl_share_buffer {
    const cpl_bucket *bucket; /* NULL: none */
    cpl_params *set;          /* that it is for */
    bool is_sum;
    cpl_pending pending;
    char *out, *in; /* what is sent, what is received */
} cpl_share_buffer;

typedef struct cpl_share {
    cpl_mesh *mesh; /* not owned; `alone` if there is one process */
    cpl_mesh alone;
    bool overlap;
    cpl_slice *slices;
    int64_t n_slices;
    cpl_bucket *buckets; /* none if there is one process */
    int64_t n_buckets;
    int64_t *numbers; /* [ranks] */
    bool divides_masters;
    cpl_params masters; /* this rank's parts of them, if they are divided */
    cpl_share_buffer buffer[CPL_SHARE_BUFFERS];
    int next; /* buffer to be used, the one whose message is the oldest */
} cpl_share;

/* Divides the parameters of this process (`config`), read by products in the type `compute`, over
 * the mesh, of which only ranks and sizes are read until messages are sent; NULL: one process. A
 * share is not moved. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_share_init(cpl_share *share, const cpl_model_settings *config,
                                        cpl_mesh *mesh, cpl_dtype compute, bool overlap);
void cpl_share_free(cpl_share *share);

/* Memory for the messages, as long as the share is used; nothing for one process. */
void cpl_share_take_buffers(cpl_share *share, cpl_arena *arena);

/* A set of F32 tensors with this rank's parts, [numbers] each: moments. In one process they have the
 * parameters' shapes. */
void cpl_share_take_parts(cpl_params *set, cpl_arena *arena, const cpl_share *share,
                          const cpl_model_settings *config);

/* Memory for this rank's parts of divided masters; nothing if they are not divided. */
void cpl_share_take_masters(cpl_share *share, cpl_arena *arena, const cpl_model_settings *config);

/* This rank's part of a slice: of a whole tensor, of one that holds the parts. */
cpl_tensor cpl_slice_of_whole(const cpl_slice *slice, cpl_params *set);
cpl_tensor cpl_slice_of_parts(const cpl_slice *slice, cpl_params *set);

/* The F32 master of this rank's part of a slice, wherever it is; `master`: the model's masters. */
cpl_tensor cpl_share_master(cpl_share *share, const cpl_slice *slice, cpl_params *master);

/* Divided masters only, else nothing: this rank's parts are taken from the model's masters, which
 * were drawn or loaded; and the model's masters made whole on all ranks that have the parameter,
 * which is collective. */
void cpl_share_keep_masters(cpl_share *share, cpl_params *master);
void cpl_share_gather_masters(cpl_share *share, cpl_params *master);

/* ---- one process: the following do nothing ---- */

/* Starts to sum the gradients that are complete when layer `ready` is (see cpl_bucket). */
void cpl_share_start_sums(cpl_share *share, cpl_params *grads, int64_t ready);

/* Waits for all sums: this rank's parts of `grads` hold the sums over the ranks, the rest is of no
 * use. */
void cpl_share_finish_sums(cpl_share *share);

/* One tensor, summed at once; it has the shape of the parameter. */
void cpl_share_sum_tensor(cpl_share *share, const cpl_param *param, cpl_tensor tensor);

/* Starts to send this rank's parts of a bucket of `set`, of any type, to the ranks that hold them
 * too; finish waits for all. */
void cpl_share_start_gather(cpl_share *share, cpl_params *set, int64_t bucket);
void cpl_share_finish_gather(cpl_share *share);

/* Bytes that this rank sends for the gradients of a step, and for its parameters after the update in
 * numbers of `compute` (norms and routers are F32 in any case). */
void cpl_share_traffic(const cpl_share *share, cpl_params *compute, int64_t *gradients,
                       int64_t *parameters);

/* Bytes that the processor reads and writes to pack, sum and unpack these messages. */
int64_t cpl_share_copied(const cpl_share *share, cpl_params *compute);

/* All buckets of a set. */
void cpl_share_gather(cpl_share *share, cpl_params *set);

/* The rank that saves a parameter, or its expert `expert` of the whole model (-1: not per expert);
 * `index` as cpl_params_at. A rank that holds it; the parameters are spread evenly by number. */
int cpl_share_writer(const cpl_share *share, int64_t index, int64_t expert);

/* Every rank's parts in `parts` (cpl_share_take_parts) become whole tensors in `set`, F32, on all
 * ranks that hold the parameter; and back: this rank's parts are taken from whole tensors. */
void cpl_share_make_whole(cpl_share *share, cpl_params *set, cpl_params *parts);
void cpl_share_take_own(const cpl_share *share, cpl_params *parts, cpl_params *set);

#endif /* CPL_TRAIN_SHARE_H */
