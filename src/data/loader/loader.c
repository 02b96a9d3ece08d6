/* loader.c - see loader.h */
#include "data/loader/loader.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/stop.h"
#include "data/loader/epoch.h"

enum { MAX_PERIOD = 13, MIN_COUNT = 32 }; /* limits of the filter of repeats */

/* ---- settings ---- */

static cpl_status check_settings(const cpl_shards *shards, const cpl_loader_settings *s)
{
    if (s->seq_len < 2 || s->seq_len > INT32_MAX)
        return CPL_FAIL(CPL_ERR_INPUT, "data.seq_len is %lld, it must be 2 to %d",
                        (long long)s->seq_len, INT32_MAX);
    if (s->batch_instances < 1 || s->batch_instances > INT32_MAX)
        return CPL_FAIL(CPL_ERR_INPUT, "a batch of %lld sequences is not possible",
                        (long long)s->batch_instances);
    if (s->document_mask && s->eos < 0 && shards->eos < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.document_mask needs to know the id that ends a document: set "
                        "data.eos");
    return CPL_OK;
}

static cpl_status unknown_label(const cpl_strings *labels, const char *name)
{
    const char *near =
        cpl_text_nearest(name, (const char *const *)labels->at, (size_t)labels->count);
    return CPL_FAIL(CPL_ERR_INPUT,
                    "data.weights names the source \"%s\", which is not in the data%s%s%s", name,
                    near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static cpl_status set_weights(cpl_loader *l)
{
    const cpl_weight_list *given = l->settings.weights;
    const cpl_strings *labels    = &l->shards->labels;
    for (int64_t i = 0; i < labels->count; i++) l->weight[i] = 1.0;
    for (int64_t i = 0; given && i < given->count; i++) {
        int64_t label = cpl_shards_find_label(l->shards, given->name[i]);
        if (label < 0) return unknown_label(labels, given->name[i]);
        if (!(given->weight[i] >= 0 && given->weight[i] <= 1e6))
            return CPL_FAIL(CPL_ERR_INPUT, "data.weights: \"%s\" is %g, it must be 0 to 1e6",
                            given->name[i], given->weight[i]);
        l->weight[label] = given->weight[i];
    }
    return CPL_OK;
}

/* ---- instances ---- */

/* Allocates an array of `count` elements. Gives CPL_OK or CPL_ERR_MEMORY. */
#define TAKE(pointer, count)                                                                       \
    (((pointer) = cpl_alloc((size_t)(count) * sizeof *(pointer))) ? CPL_OK : CPL_ERR_MEMORY)

static cpl_status count_instances(cpl_loader *l)
{
    const cpl_shards *s = l->shards;
    CPL_TRY(TAKE(l->file_first, s->n_files + 1));
    for (int64_t f = 0; f < s->n_files; f++) {
        l->file_first[f] = l->n_instances;
        l->n_instances += s->file[f].n_tokens / l->settings.seq_len;
    }
    l->file_first[s->n_files] = l->n_instances;
    if (l->n_instances >= UINT32_MAX)
        return CPL_FAIL(CPL_ERR_INPUT, "the data has %lld sequences, at most 2^32 - 2 are possible",
                        (long long)l->n_instances);
    if (l->n_instances) return CPL_OK;
    return CPL_FAIL(
        CPL_ERR_INPUT,
        "%s%s: %lld tokens in %lld files give no sequence of %lld tokens (data.seq_len)",
        s->file[0].path, s->n_files > 1 ? ", ..." : "", (long long)s->n_tokens,
        (long long)s->n_files, (long long)l->settings.seq_len);
}

/* Finds the label of each instance and groups the instances by label (counting sort). */
static cpl_status group_by_label(cpl_loader *l)
{
    const cpl_shards *s = l->shards;
    int64_t n_labels    = s->labels.count;
    CPL_TRY(TAKE(l->label, l->n_instances));
    CPL_TRY(TAKE(l->members, l->n_instances));
    CPL_TRY(TAKE(l->first, n_labels + 1));
    CPL_TRY(TAKE(l->weight, n_labels));
    for (int64_t f = 0; f < s->n_files; f++) {
        CPL_TRY(cpl_stop_check());
        CPL_TRY(cpl_shards_piece_labels(s, f, l->settings.seq_len, l->label + l->file_first[f]));
    }
    memset(l->first, 0, (size_t)(n_labels + 1) * sizeof *l->first);
    for (int64_t i = 0; i < l->n_instances; i++) l->first[l->label[i] + 1]++;
    for (int64_t k = 0; k < n_labels; k++) l->first[k + 1] += l->first[k];
    for (int64_t i = 0; i < l->n_instances; i++)
        l->members[l->first[l->label[i]]++] = (uint32_t)i; /* first[label] ends one past the last */
    for (int64_t k = n_labels; k > 0; k--) l->first[k] = l->first[k - 1];
    l->first[0] = 0;
    return CPL_OK;
}

static cpl_epoch_sources sources(const cpl_loader *l)
{
    return (cpl_epoch_sources){l->members, l->first, l->weight, l->shards->labels.count};
}

/* Sets the size of an epoch and allocates the memory for its order. */
static cpl_status plan_epochs(cpl_loader *l)
{
    cpl_epoch_sources from = sources(l);
    int64_t batch          = l->settings.batch_instances;
    l->epoch               = -1;
    CPL_TRY(set_weights(l));
    CPL_TRY(TAKE(l->mask, l->settings.seq_len));
    if (l->settings.evaluation) return CPL_OK;
    l->epoch_size = cpl_epoch_size(&from);
    if (l->epoch_size < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.weights: an epoch would have more than 2^32 - 2 sequences");
    if (l->epoch_size < batch)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the training data is too short for one batch: its %lld tokens give %lld "
                        "sequences of %lld per epoch, a batch needs %lld (%lld tokens)",
                        (long long)l->shards->n_tokens, (long long)l->epoch_size,
                        (long long)l->settings.seq_len, (long long)batch,
                        (long long)(batch * l->settings.seq_len));
    l->steps_per_epoch = l->epoch_size / batch;
    CPL_TRY(TAKE(l->order, l->epoch_size));
    CPL_TRY(TAKE(l->copies, l->n_instances));
    return TAKE(l->scratch, l->n_instances);
}

static void report(const cpl_loader *l, const cpl_log *log)
{
    int64_t used = l->n_instances * l->settings.seq_len;
    cpl_log_info(log,
                 "%lld sequences of %lld tokens in %lld files; %lld tokens at the files' ends "
                 "are left out",
                 (long long)l->n_instances, (long long)l->settings.seq_len,
                 (long long)l->shards->n_files, (long long)(l->shards->n_tokens - used));
}

cpl_status cpl_loader_init(cpl_loader **loader, const cpl_shards *shards,
                           const cpl_loader_settings *settings, const cpl_log *log)
{
    *loader = NULL;
    CPL_TRY(check_settings(shards, settings));
    cpl_status status = CPL_OK;
    cpl_loader *l     = cpl_alloc(sizeof *l);
    if (!l) return CPL_ERR_MEMORY;
    memset(l, 0, sizeof *l);
    l->shards   = shards;
    l->settings = *settings;
    if (l->settings.eos < 0) l->settings.eos = shards->eos;
    CPL_TRY_DONE(count_instances(l));
    CPL_TRY_DONE(group_by_label(l));
    CPL_TRY_DONE(plan_epochs(l));
    l->settings.weights = NULL;
    report(l, log);
    *loader = l;
done:
    if (status != CPL_OK) cpl_loader_free(l);
    return status;
}

void cpl_loader_free(cpl_loader *l)
{
    if (!l) return;
    cpl_free(l->file_first);
    cpl_free(l->label);
    cpl_free(l->members);
    cpl_free(l->first);
    cpl_free(l->weight);
    cpl_free(l->order);
    cpl_free(l->copies);
    cpl_free(l->scratch);
    cpl_free(l->mask);
    cpl_free(l);
}

/* ---- batches ---- */

/* Returns the file that holds an instance: the last file that begins at or before it. */
static int64_t file_of(const cpl_loader *l, int64_t instance)
{
    int64_t low = 0, high = l->shards->n_files - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (l->file_first[middle] <= instance)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Fills a row of `doc_start`. */
static void find_documents(const cpl_loader *l, const int32_t *ids, int32_t *doc_start)
{
    int32_t start = 0;
    for (int64_t t = 0; t < l->settings.seq_len; t++) {
        doc_start[t] = start;
        if (l->settings.document_mask && ids[t] == l->settings.eos) start = (int32_t)t + 1;
    }
}

/* Fills a row of `targets`. */
static void set_targets(cpl_loader *l, const int32_t *ids, int32_t *targets, cpl_batch *batch)
{
    const cpl_loader_settings *s = &l->settings;
    bool filtered =
        s->filter_repeats && cpl_epoch_finds_repeats(ids, s->seq_len, MAX_PERIOD, MIN_COUNT);
    for (int64_t t = 0; t < s->seq_len; t++) {
        bool ignored = filtered || t + 1 == s->seq_len || !l->mask[t + 1];
        targets[t]   = ignored ? -1 : ids[t + 1];
        batch->n_targets += !ignored;
    }
    batch->n_filtered += filtered;
}

static void empty_row(const cpl_loader *l, int64_t row, cpl_batch *batch)
{
    int64_t T = l->settings.seq_len;
    for (int64_t t = 0; t < T; t++) batch->targets[row * T + t] = -1;
    memset(batch->ids + row * T, 0, (size_t)T * sizeof *batch->ids);
    if (batch->doc_start) memset(batch->doc_start + row * T, 0, (size_t)T * sizeof *batch->ids);
    if (batch->instances) batch->instances[row] = -1;
    if (batch->labels) batch->labels[row] = -1;
}

static cpl_status fill_row(cpl_loader *l, int64_t row, int64_t instance, cpl_batch *batch)
{
    int64_t T = l->settings.seq_len, file = file_of(l, instance);
    int64_t first = (instance - l->file_first[file]) * T;
    int32_t *ids  = batch->ids + row * T;
    CPL_TRY(cpl_shards_read(l->shards, file, first, T, ids));
    CPL_TRY(cpl_shards_read_mask(l->shards, file, first, T, l->mask));
    set_targets(l, ids, batch->targets + row * T, batch);
    if (batch->doc_start) find_documents(l, ids, batch->doc_start + row * T);
    if (batch->instances) batch->instances[row] = instance;
    if (batch->labels) batch->labels[row] = l->label[instance];
    return CPL_OK;
}

/* Fills a batch with list[first .. first + rows), cut at `count`. */
static cpl_status fill(cpl_loader *l, const uint32_t *list, int64_t first, int64_t rows,
                       int64_t count, cpl_batch *batch)
{
    batch->n_targets = batch->n_filtered = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (first + row < count)
            CPL_TRY(fill_row(l, row, list[first + row], batch));
        else
            empty_row(l, row, batch);
    }
    return CPL_OK;
}

cpl_status cpl_loader_batch(cpl_loader *l, int64_t step, cpl_batch *batch)
{
    CPL_ASSERT(!l->settings.evaluation && step >= 0);
    cpl_epoch_sources from = sources(l);
    int64_t epoch          = step / l->steps_per_epoch;
    if (epoch != l->epoch)
        cpl_epoch_order(l->order, &from, l->settings.seed + (uint64_t)epoch, l->settings.shuffle,
                        l->copies, l->scratch);
    l->epoch                     = epoch;
    const cpl_loader_settings *s = &l->settings;
    const int64_t first          = step % l->steps_per_epoch * s->batch_instances + s->first_row;
    return fill(l, l->order, first, s->n_rows ? s->n_rows : s->batch_instances, l->epoch_size,
                batch);
}

/* ---- evaluation ---- */

static int64_t eval_count(const cpl_loader *l, int64_t label, int64_t limit)
{
    int64_t n = cpl_loader_label_instances(l, label);
    return limit > 0 && limit < n ? limit : n;
}

int64_t cpl_loader_eval_batches(const cpl_loader *l, int64_t label, int64_t limit)
{
    int64_t batch = l->settings.batch_instances;
    return (eval_count(l, label, limit) + batch - 1) / batch;
}

cpl_status cpl_loader_eval_batch(cpl_loader *l, int64_t label, int64_t limit, int64_t index,
                                 cpl_batch *batch)
{
    CPL_ASSERT(index >= 0 && index < cpl_loader_eval_batches(l, label, limit));
    return fill(l, l->members + l->first[label], index * l->settings.batch_instances,
                l->settings.batch_instances, eval_count(l, label, limit), batch);
}

/* ---- figures ---- */

int64_t cpl_loader_label_instances(const cpl_loader *l, int64_t label)
{
    CPL_ASSERT(label >= 0 && label < l->shards->labels.count);
    return l->first[label + 1] - l->first[label];
}

cpl_status cpl_loader_fingerprint(uint64_t *hash, const cpl_loader *l)
{
    return cpl_shards_fingerprint(hash, l->shards, l->settings.eos, l->settings.seq_len);
}
