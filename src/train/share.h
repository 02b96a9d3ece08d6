/* share.h - the part of every parameter that this rank updates (ZeRO, stage 1), and the exchange of
 * gradients and parameters between ranks.
 *
 * Room:    train.
 * Parts:   a parameter is cut into slices, and each slice into equal parts for the ranks that hold
 *          the parameter: all ranks, or for experts their replicas. This rank gets the sum of the
 *          gradients of its parts over these ranks (reduce-scatter), keeps their moments, updates
 *          its parts, and sends the result to the other ranks (all-gather). In one process every
 *          parameter is one slice, which the process owns.
 * Masters: if products read BF16 copies and there are several ranks, a rank keeps the F32 masters
 *          of its own parts only: masters are *divided*. The model's masters then lie in the
 *          gradients' memory. They are whole after cpl_share_gather_masters, and after they are
 *          drawn or loaded, until the gradients are zeroed. Norms and the router, which have no
 *          copies, are F32 on every rank.
 * Buckets: slices are sent in buckets of at most 2^22 numbers (16 MiB in F32), in the order in
 *          which the backward pass completes them: head, last layer, ..., first layer, embedding.
 *          Up to CPL_SHARE_BUFFERS buckets are pending while the pass continues.
 * Bits:    sums are in the order of the ranks (parallel/group.h), so overlap does not change the
 *          sums. */
#ifndef CPL_TRAIN_SHARE_H
#define CPL_TRAIN_SHARE_H

#include "model/params.h"
#include "parallel/mesh.h"

enum { CPL_SHARE_BUFFERS = 4 };

typedef struct cpl_slice {
    cpl_param param;
    int64_t first, count; /* numbers of the parameter in this process */
    int64_t own, n_own;   /* this rank's part: index of its first number, and its length */
    int64_t at;           /* offset of the part in the moments of the parameter */
} cpl_slice;

typedef struct cpl_bucket {
    int64_t first, count; /* slices */
    cpl_group *group;     /* the ranks that divide the slices */
    int64_t ready;        /* complete after the backward pass of this layer; the number of layers
                             stands for the head, -1 for the embedding */
} cpl_bucket;

/* A pending bucket. */
typedef struct cpl_share_buffer {
    const cpl_bucket *bucket; /* NULL if no bucket is pending */
    cpl_params *set;          /* the set that is sent and receives the result */
    bool is_sum;              /* gradients are summed if true, otherwise parameters are gathered */
    cpl_pending pending;
    float *out, *in; /* message sent, message received: the arena's host memory */
} cpl_share_buffer;

typedef struct cpl_share {
    cpl_backend *be; /* backend of the tensors, not owned; set by the caller before their use */
    cpl_mesh *mesh;  /* not owned; `alone` for one process */
    cpl_mesh alone;
    bool overlap;
    cpl_slice *slices;
    int64_t n_slices;
    cpl_bucket *buckets; /* NULL for one process */
    int64_t n_buckets;
    int64_t *numbers; /* [ranks] scratch for counts of one call */
    bool divides_masters;
    cpl_params masters; /* this rank's parts of the masters, if divided */
    cpl_tensor message; /* a packed bucket, copied to or from a buffer by one get or put */
    cpl_share_buffer buffer[CPL_SHARE_BUFFERS];
    int next; /* the buffer to use next, with the oldest pending bucket */
} cpl_share;

/* Divides the parameters of this process over the mesh. `config` is the model with the experts of
 * this process, `compute` the type in which products read them. `mesh` is NULL for one process and
 * must outlive the share. Before buckets are sent, only ranks and sizes of the mesh are read. A
 * share must not be moved in memory, since it points into itself. The caller frees it. Returns
 * CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_share_init(cpl_share *share, const cpl_model_settings *config,
                                        cpl_mesh *mesh, cpl_dtype compute, bool overlap);
void cpl_share_free(cpl_share *share);

/* Takes from `arena` the memory of pending buckets. Takes no memory for one process. */
void cpl_share_take_buffers(cpl_share *share, cpl_tensor_arena *arena);

/* Takes a set of F32 tensors for this rank's parts, such as a moment. The parts of each parameter
 * are one tensor [numbers]. In one process tensors have the parameters' shapes. */
void cpl_share_take_parts(cpl_params *set, cpl_tensor_arena *arena, const cpl_share *share,
                          const cpl_model_settings *config);

/* Takes memory for this rank's parts of divided masters, if masters are divided. */
void cpl_share_take_masters(cpl_share *share, cpl_tensor_arena *arena,
                            const cpl_model_settings *config);

/* Return views of this rank's part of a slice [n_own]: in a set of whole tensors, or in a set of
 * parts (cpl_share_take_parts). */
cpl_tensor cpl_slice_of_whole(const cpl_slice *slice, cpl_params *set);
cpl_tensor cpl_slice_of_parts(const cpl_slice *slice, cpl_params *set);

/* Returns a view of the F32 master of this rank's part of a slice, divided or not. `master` holds
 * the model's masters. */
cpl_tensor cpl_share_master(cpl_share *share, const cpl_slice *slice, cpl_params *master);

/* Copies this rank's parts of the model's masters, after they are drawn or loaded, to divided
 * masters. Does nothing if masters are not divided. */
void cpl_share_keep_masters(cpl_share *share, cpl_params *master);

/* Makes the model's masters whole on all ranks that hold the parameter. Collective. Does nothing if
 * masters are not divided. */
void cpl_share_gather_masters(cpl_share *share, cpl_params *master);

/* ---- exchange of gradients and parameters ----
 *
 * Collective. One process does nothing. The group records failures (cpl_group_status). */

/* Starts to sum the gradients that the backward pass of layer `ready` completes (see cpl_bucket).
 * Without overlap it also waits for the sums. */
void cpl_share_start_sums(cpl_share *share, cpl_params *grads, int64_t ready);

/* Waits for all sums. This rank's parts of the gradients then hold the sums over the ranks. The
 * other parts are undefined. */
void cpl_share_finish_sums(cpl_share *share);

/* Sums one tensor with the shape of the parameter, and waits. This rank's parts then hold the
 * sums. */
void cpl_share_sum_tensor(cpl_share *share, const cpl_param *param, cpl_tensor tensor);

/* Starts to send this rank's parts of a bucket of `set`, of any type, to the ranks that hold the
 * same parameters, and to receive their parts. cpl_share_finish_gather waits for all started
 * gathers. */
void cpl_share_start_gather(cpl_share *share, cpl_params *set, int64_t bucket);
void cpl_share_finish_gather(cpl_share *share);

/* Gathers all buckets of a set, and waits. */
void cpl_share_gather(cpl_share *share, cpl_params *set);

/* *Adds* to out [1] F64 the sum of squares of this rank's parts of the gradients, after
 * cpl_share_finish_sums. */
void cpl_share_add_squares(const cpl_share *share, cpl_params *grads, cpl_tensor out);

/* ---- predictions ---- */

/* Sets the bytes that this rank sends in a step: for the gradients, and for the updated parameters
 * in the types of the set `compute` (norms and routers are F32 in any case). */
void cpl_share_traffic(const cpl_share *share, cpl_params *compute, int64_t *gradients,
                       int64_t *parameters);

/* Returns the bytes that the processor reads and writes in a step to pack, sum and unpack gradients
 * and parameters. */
int64_t cpl_share_copied(const cpl_share *share, cpl_params *compute);

/* ---- saving and loading ---- */

/* Returns the rank that saves parameter `index` (cpl_params_at), or expert `expert` of the whole
 * model (-1: the parameter is not per expert). The rank holds the parameter. Parameters are
 * assigned in turn. */
int cpl_share_writer(const cpl_share *share, int64_t index, int64_t expert);

/* Makes the whole F32 tensors of `set` from the parts in `parts` (cpl_share_take_parts) of all
 * ranks, on every rank that holds the parameter. Collective. */
void cpl_share_make_whole(cpl_share *share, cpl_params *set, cpl_params *parts);

/* Sets `parts` to this rank's parts of the whole tensors in `set`. */
void cpl_share_take_own(const cpl_share *share, cpl_params *parts, cpl_params *set);

#endif /* CPL_TRAIN_SHARE_H */
