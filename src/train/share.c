/* share.c - see share.h */
#include "train/share.h"

#include <string.h>

static const int64_t bucket_numbers = (int64_t)1 << 22; /* 16 MiB in F32 */

/* ---- slices and buckets ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t numbers_of(const cpl_param *p)
{
    return p->shape[0] * p->shape[1] * p->shape[2];
}

static int64_t ready_after(const cpl_param *p, int64_t n_layers)
{
    if (p->layer >= 0) return p->layer;
    return p->offset == offsetof(cpl_params, embed) ? -1 : n_layers;
}

/* Returns the first number of the part of `rank` in a slice of `count` numbers, and sets *n to the
 * part's length. */
static int64_t part_of(int64_t *n, int64_t count, int rank, int size)
{
    const int64_t each = (count + size - 1) / size, at = least(rank * each, count);
    *n = least(each, count - at);
    return at;
}

/* Adds a slice, or only counts it while the lists are not allocated. */
static void add_slice(cpl_share *s, const cpl_param *p, const cpl_group *g, int64_t first,
                      int64_t count, int64_t *at)
{
    cpl_slice slice = {.param = *p, .first = first, .count = count, .at = *at};
    slice.own       = first + part_of(&slice.n_own, count, g->rank, g->size);
    *at += slice.n_own;
    if (s->slices) s->slices[s->n_slices] = slice;
    s->n_slices++;
}

static void add_bucket(cpl_share *s, int64_t first, cpl_group *g, int64_t ready)
{
    if (s->n_slices == first) return;
    if (s->slices) s->buckets[s->n_buckets] = (cpl_bucket){first, s->n_slices - first, g, ready};
    s->n_buckets++;
}

/* Adds the parameters that are ready at the same time and held by equal sets of ranks. */
static void add_alike(cpl_share *s, const cpl_model_settings *config, int64_t ready,
                      bool per_expert)
{
    cpl_group *g  = per_expert ? &s->mesh->replicas : &s->mesh->world;
    int64_t first = s->n_slices, filled = 0;
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        const cpl_param p = cpl_params_at(config, i);
        if (!cpl_param_trains(&p) || p.per_expert != per_expert ||
            ready_after(&p, config->n_layers) != ready)
            continue;
        int64_t at = 0;
        for (int64_t done = 0, count; done < numbers_of(&p); done += count) {
            if (filled >= bucket_numbers) {
                add_bucket(s, first, g, ready);
                first  = s->n_slices;
                filled = 0;
            }
            count = least(numbers_of(&p) - done, bucket_numbers - filled);
            filled += count;
            add_slice(s, &p, g, done, count, &at);
        }
    }
    add_bucket(s, first, g, ready);
}

/* Adds every parameter as one slice, in the order of the parameters. */
static void add_whole(cpl_share *s, const cpl_model_settings *config)
{
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        const cpl_param p = cpl_params_at(config, i);
        int64_t at        = 0;
        if (cpl_param_trains(&p)) add_slice(s, &p, &s->mesh->world, 0, numbers_of(&p), &at);
    }
}

static void add_all(cpl_share *s, const cpl_model_settings *config)
{
    s->n_slices = s->n_buckets = 0;
    if (s->mesh->world.size == 1) {
        add_whole(s, config);
        return;
    }
    for (int64_t ready = config->n_layers; ready >= -1; ready--) {
        add_alike(s, config, ready, false);
        add_alike(s, config, ready, true);
    }
}

cpl_status cpl_share_init(cpl_share *s, const cpl_model_settings *config, cpl_mesh *mesh,
                          cpl_dtype compute, bool overlap)
{
    memset(s, 0, sizeof *s);
    s->alone           = cpl_mesh_self(config->n_experts);
    s->mesh            = mesh ? mesh : &s->alone;
    s->overlap         = overlap;
    s->divides_masters = s->mesh->world.size > 1 && compute != CPL_F32;
    add_all(s, config);
    cpl_slice *slices   = cpl_alloc((size_t)s->n_slices * sizeof *slices);
    cpl_bucket *buckets = cpl_alloc((size_t)(s->n_buckets + 1) * sizeof *buckets);
    s->numbers          = cpl_alloc((size_t)s->mesh->world.size * sizeof *s->numbers);
    s->slices           = slices;
    s->buckets          = buckets;
    if (slices && buckets && s->numbers) {
        add_all(s, config);
        return CPL_OK;
    }
    cpl_share_free(s);
    return CPL_ERR_MEMORY;
}

void cpl_share_free(cpl_share *s)
{
    cpl_free(s->slices);
    cpl_free(s->buckets);
    cpl_free(s->numbers);
    memset(s, 0, sizeof *s);
}

/* Returns the numbers of all parts of a bucket for rank r. */
static int64_t numbers_for(const cpl_share *s, const cpl_bucket *b, int r)
{
    int64_t sum = 0, n;
    for (const cpl_slice *x = s->slices + b->first; x < s->slices + b->first + b->count; x++) {
        part_of(&n, x->count, r, b->group->size);
        sum += n;
    }
    return sum;
}

/* Takes buffers for a whole bucket, or for this rank's part of a bucket from every other rank. */
void cpl_share_take_buffers(cpl_share *s, cpl_tensor_arena *arena)
{
    int64_t out = 0, in = 0;
    for (const cpl_bucket *b = s->buckets; b < s->buckets + s->n_buckets; b++) {
        int64_t all = 0;
        for (int r = 0; r < b->group->size; r++) all += numbers_for(s, b, r);
        const int64_t parts = b->group->size * numbers_for(s, b, b->group->rank);
        out                 = all > out ? all : out;
        in                  = parts > in ? parts : in;
    }
    in         = out > in ? out : in; /* enough for a gathered bucket */
    s->message = cpl_tensor_take_1d(arena, out);
    for (int i = 0; i < CPL_SHARE_BUFFERS && s->n_buckets; i++) {
        s->buffer[i].out = cpl_tensor_take_host(arena, (size_t)out * sizeof(float));
        s->buffer[i].in  = cpl_tensor_take_host(arena, (size_t)in * sizeof(float));
    }
}

/* Takes this rank's parts of all parameters, or only of parameters that have a copy. */
static void take_parts(cpl_params *set, cpl_tensor_arena *arena, const cpl_share *s,
                       const cpl_model_settings *config, bool all)
{
    cpl_layer_params unseen = {0};
    cpl_layer_params *layers =
        cpl_tensor_take_host(arena, (size_t)config->n_layers * sizeof(cpl_layer_params));
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        cpl_param p    = cpl_params_at(config, i);
        int64_t number = cpl_param_trains(&p) ? 0 : numbers_of(&p);
        for (const cpl_slice *x = s->slices; x < s->slices + s->n_slices; x++)
            if (x->param.offset == p.offset && x->param.layer == p.layer) number += x->n_own;
        if (!all && !cpl_param_has_copy(&p)) number = 0;
        set->layer = layers ? layers : &unseen; /* there is no array while measuring */
        if (!layers && p.layer > 0) p.layer = 0;
        *cpl_params_tensor(set, &p) = cpl_tensor_take_1d(arena, number);
    }
    set->layer = layers;
    if (config->tied) set->head = set->embed;
}

void cpl_share_take_parts(cpl_params *set, cpl_tensor_arena *arena, const cpl_share *s,
                          const cpl_model_settings *config)
{
    if (s->mesh->world.size == 1)
        cpl_params_take(set, arena, config, CPL_F32);
    else
        take_parts(set, arena, s, config, true);
}

void cpl_share_take_masters(cpl_share *s, cpl_tensor_arena *arena, const cpl_model_settings *config)
{
    if (s->divides_masters) take_parts(&s->masters, arena, s, config, false);
}

cpl_tensor cpl_slice_of_whole(const cpl_slice *slice, cpl_params *set)
{
    return cpl_tensor_numbers(*cpl_params_tensor(set, &slice->param), slice->own, slice->n_own);
}

cpl_tensor cpl_slice_of_parts(const cpl_slice *slice, cpl_params *set)
{
    return cpl_tensor_numbers(*cpl_params_tensor(set, &slice->param), slice->at, slice->n_own);
}

/* ---- divided masters ---- */

static bool is_divided(const cpl_share *s, const cpl_slice *slice)
{
    return s->divides_masters && cpl_param_has_copy(&slice->param);
}

cpl_tensor cpl_share_master(cpl_share *s, const cpl_slice *slice, cpl_params *master)
{
    return is_divided(s, slice) ? cpl_slice_of_parts(slice, &s->masters)
                                : cpl_slice_of_whole(slice, master);
}

/* Copies this rank's parts of divided masters: from the masters if `keep`, otherwise to them. */
static void copy_masters(cpl_share *s, cpl_params *master, bool keep)
{
    for (const cpl_slice *x = s->slices; x < s->slices + s->n_slices; x++) {
        if (!is_divided(s, x)) continue;
        const cpl_tensor own = cpl_slice_of_parts(x, &s->masters);
        const cpl_tensor all = cpl_slice_of_whole(x, master);
        s->be->ops->copy(s->be, keep ? own : all, keep ? all : own);
    }
}

void cpl_share_keep_masters(cpl_share *s, cpl_params *master)
{
    copy_masters(s, master, true);
}

void cpl_share_gather_masters(cpl_share *s, cpl_params *master)
{
    if (!s->divides_masters) return;
    copy_masters(s, master, false);
    cpl_share_gather(s, master);
}

/* ---- messages ---- */

/* Sets s->numbers[r] to the size of rank r's parts in a message of the bucket, in units of F32. The
 * parts have the types of the tensors of `set`. */
static void count_numbers(const cpl_share *s, const cpl_bucket *b, cpl_params *set)
{
    for (int r = 0; r < b->group->size; r++) {
        int64_t bytes = 0, n;
        for (const cpl_slice *x = s->slices + b->first; x < s->slices + b->first + b->count; x++) {
            part_of(&n, x->count, r, b->group->size);
            bytes += n * (int64_t)cpl_dtype_bytes(cpl_params_tensor(set, &x->param)->dtype);
        }
        s->numbers[r] = (bytes + (int64_t)sizeof(float) - 1) / (int64_t)sizeof(float);
    }
}

static int64_t numbers_before(const cpl_share *s, int rank)
{
    int64_t sum = 0;
    for (int r = 0; r < rank; r++) sum += s->numbers[r];
    return sum;
}

/* Copies rank r's part of every slice of the buffer's bucket with the type of `piece` to `piece`,
 * from number `at` on, or back if `unpack`. Returns the index after the last number. */
static int64_t copy_parts(const cpl_share *s, const cpl_share_buffer *m, int r, cpl_tensor piece,
                          int64_t at, bool unpack)
{
    const cpl_bucket *b = m->bucket;
    for (const cpl_slice *x = s->slices + b->first; x < s->slices + b->first + b->count; x++) {
        int64_t n;
        const cpl_tensor t  = *cpl_params_tensor(m->set, &x->param);
        const int64_t first = x->first + part_of(&n, x->count, r, b->group->size);
        if (t.dtype != piece.dtype || n == 0) continue;
        const cpl_tensor part = cpl_tensor_numbers(t, first, n),
                         copy = cpl_tensor_numbers(piece, at, n);
        s->be->ops->copy(s->be, unpack ? part : copy, unpack ? copy : part);
        at += n;
    }
    return at;
}

/* Copies the parts of rank r to the message s->message, from number `at` on, or back if `unpack`.
 * The message holds the parts rank by rank, F32 parts first. s->numbers are the parts' sizes. */
static void copy_piece(const cpl_share *s, const cpl_share_buffer *m, int r, int64_t at,
                       bool unpack)
{
    const int64_t count     = s->numbers[r];
    const cpl_tensor piece  = cpl_tensor_range(s->message, at, count);
    const cpl_tensor halves = cpl_tensor_as_1d(cpl_tensor_over(piece, CPL_BF16, 2, count));
    (void)copy_parts(s, m, r, halves, 2 * copy_parts(s, m, r, piece, 0, unpack), unpack);
}

/* Unpacks the parts received from other ranks. */
static void unpack_others(cpl_share *s, const cpl_share_buffer *m)
{
    const cpl_group *g  = m->bucket->group;
    const int64_t count = numbers_before(s, g->size);
    s->be->ops->put(s->be, cpl_tensor_range(s->message, 0, count), m->in);
    for (int r = 0; r < g->size; r++)
        if (r != g->rank) copy_piece(s, m, r, numbers_before(s, r), true);
}

/* Unpacks this rank's parts of the sums. */
static void unpack_own(cpl_share *s, const cpl_share_buffer *m)
{
    const int rank = m->bucket->group->rank;
    s->be->ops->put(s->be, cpl_tensor_range(s->message, 0, s->numbers[rank]),
                    m->out + numbers_before(s, rank));
    copy_piece(s, m, rank, 0, true);
}

/* Waits for the buffer's message, if a message is pending, and unpacks it. */
static void finish_message(cpl_share *s, cpl_share_buffer *m)
{
    if (!m->bucket) return;
    cpl_group_finish(&m->pending);
    count_numbers(s, m->bucket, m->set);
    if (m->is_sum)
        unpack_own(s, m);
    else
        unpack_others(s, m);
    m->bucket = NULL;
}

static void finish_all(cpl_share *s)
{
    for (int i = 0; i < CPL_SHARE_BUFFERS; i++)
        finish_message(s, &s->buffer[(s->next + i) % CPL_SHARE_BUFFERS]);
}

/* Finishes the oldest message and returns its buffer for another message. */
static cpl_share_buffer *take_buffer(cpl_share *s, const cpl_bucket *bucket, cpl_params *set,
                                     bool is_sum)
{
    cpl_share_buffer *m = &s->buffer[s->next];
    s->next             = (s->next + 1) % CPL_SHARE_BUFFERS;
    finish_message(s, m);
    m->bucket = bucket;
    m->set    = set;
    m->is_sum = is_sum;
    return m;
}

static void start_sum(cpl_share *s, cpl_params *grads, const cpl_bucket *bucket)
{
    cpl_share_buffer *m = take_buffer(s, bucket, grads, true);
    cpl_group *g        = bucket->group;
    count_numbers(s, bucket, grads);
    for (int r = 0; r < g->size; r++) copy_piece(s, m, r, numbers_before(s, r), false);
    s->be->ops->get(s->be, m->out, cpl_tensor_range(s->message, 0, numbers_before(s, g->size)));
    cpl_group_start_sum_parts(&m->pending, g, m->out + numbers_before(s, g->rank), m->out,
                              s->numbers, m->in);
    if (!s->overlap) finish_message(s, m);
}

void cpl_share_start_sums(cpl_share *s, cpl_params *grads, int64_t ready)
{
    for (const cpl_bucket *b = s->buckets; b < s->buckets + s->n_buckets; b++)
        if (b->ready == ready && b->group->size > 1) start_sum(s, grads, b);
}

void cpl_share_finish_sums(cpl_share *s)
{
    finish_all(s);
}

void cpl_share_sum_tensor(cpl_share *s, const cpl_param *param, cpl_tensor tensor)
{
    cpl_group *g = param->per_expert ? &s->mesh->replicas : &s->mesh->world;
    cpl_pending pending;
    if (s->n_buckets == 0) return;
    for (const cpl_slice *x = s->slices; x < s->slices + s->n_slices; x++) {
        if (x->param.offset != param->offset || x->param.layer != param->layer) continue;
        for (int r = 0; r < g->size; r++) part_of(&s->numbers[r], x->count, r, g->size);
        float *out = s->buffer[0].out, *own = out + (x->own - x->first);
        s->be->ops->get(s->be, out, cpl_tensor_numbers(tensor, x->first, x->count));
        cpl_group_start_sum_parts(&pending, g, own, out, s->numbers, s->buffer[0].in);
        cpl_group_finish(&pending);
        s->be->ops->put(s->be, cpl_tensor_numbers(tensor, x->own, x->n_own), own);
    }
}

void cpl_share_start_gather(cpl_share *s, cpl_params *set, int64_t bucket)
{
    cpl_group *g = s->buckets[bucket].group;
    if (g->size == 1) return;
    cpl_share_buffer *m = take_buffer(s, &s->buckets[bucket], set, false);
    count_numbers(s, m->bucket, set);
    copy_piece(s, m, g->rank, 0, false);
    s->be->ops->get(s->be, m->out, cpl_tensor_range(s->message, 0, s->numbers[g->rank]));
    for (int r = 0; r < g->size; r++) s->numbers[r] *= (int64_t)sizeof(float);
    cpl_group_start_all_gather(&m->pending, g, m->in, m->out, s->numbers);
    if (!s->overlap) finish_message(s, m);
}

void cpl_share_finish_gather(cpl_share *s)
{
    finish_all(s);
}

void cpl_share_add_squares(const cpl_share *s, cpl_params *grads, cpl_tensor out)
{
    for (const cpl_slice *x = s->slices; x < s->slices + s->n_slices; x++) {
        const cpl_tensor g = cpl_slice_of_whole(x, grads);
        s->be->ops->dot(s->be, out, g, g);
    }
}

void cpl_share_gather(cpl_share *s, cpl_params *set)
{
    for (int64_t i = 0; i < s->n_buckets; i++) cpl_share_start_gather(s, set, i);
    finish_all(s);
}

/* ---- whole tensors ---- */

int cpl_share_writer(const cpl_share *s, int64_t index, int64_t expert)
{
    const cpl_mesh *m = s->mesh;
    if (expert < 0) return (int)(index % m->world.size);
    const int64_t place = expert / m->n_local, replica = index % m->replicas.size;
    return (int)(replica * m->experts.size + place);
}

void cpl_share_make_whole(cpl_share *s, cpl_params *set, cpl_params *parts)
{
    for (const cpl_slice *x = s->slices; x < s->slices + s->n_slices; x++)
        s->be->ops->copy(s->be, cpl_slice_of_whole(x, set), cpl_slice_of_parts(x, parts));
    cpl_share_gather(s, set);
}

void cpl_share_take_own(const cpl_share *s, cpl_params *parts, cpl_params *set)
{
    for (const cpl_slice *x = s->slices; x < s->slices + s->n_slices; x++)
        s->be->ops->copy(s->be, cpl_slice_of_parts(x, parts), cpl_slice_of_whole(x, set));
}

/* ---- predicted traffic ---- */

void cpl_share_traffic(const cpl_share *s, cpl_params *compute, int64_t *gradients,
                       int64_t *parameters)
{
    *gradients = *parameters = 0;
    for (const cpl_bucket *b = s->buckets; b < s->buckets + s->n_buckets; b++) {
        if (b->group->size == 1) continue;
        for (int r = 0; r < b->group->size; r++)
            if (r != b->group->rank) *gradients += numbers_for(s, b, r) * (int64_t)sizeof(float);
        count_numbers(s, b, compute);
        *parameters += (b->group->size - 1) * s->numbers[b->group->rank] * (int64_t)sizeof(float);
    }
}

/* Counts the numbers that are read and written. A copy reads and writes each number. Each part is
 * copied twice, to the message and to host memory, or back. The all-gather also copies this rank's
 * own part, which is then copied back too. A sum reads every part and writes one part. */
int64_t cpl_share_copied(const cpl_share *s, cpl_params *compute)
{
    int64_t numbers = 0;
    for (const cpl_bucket *b = s->buckets; b < s->buckets + s->n_buckets; b++) {
        const int64_t ranks = b->group->size, own = numbers_for(s, b, b->group->rank);
        if (ranks == 1) continue;
        count_numbers(s, b, compute);
        for (int r = 0; r < ranks; r++) {
            numbers += 4 * numbers_for(s, b, r);                          /* gradients packed */
            numbers += (r == b->group->rank ? 4 : 2) * 2 * s->numbers[r]; /* parameters */
        }
        numbers += (ranks + 1) * own + 4 * own; /* summed, unpacked */
    }
    return numbers * (int64_t)sizeof(float);
}
