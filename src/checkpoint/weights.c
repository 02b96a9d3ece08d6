/* weights.c - see weights.h; which files there are is found in weights_files.c */
#include "checkpoint/weights.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/text.h"
#include "checkpoint/weights_files.h"

struct cpl_weights {
    cpl_weights_files files;
    cpl_safetensors **open; /* (files.count) */
    cpl_weight *tensors;    /* (count), sorted by name */
    int64_t count;
};

static cpl_status open_files(cpl_weights *w)
{
    size_t bytes = (size_t)w->files.count * sizeof *w->open;
    w->open      = cpl_alloc(bytes);
    if (!w->open) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", w->files.path);
    memset(w->open, 0, bytes);
    for (int64_t i = 0; i < w->files.count; i++) {
        cpl_status status = cpl_safetensors_open(&w->open[i], w->files.paths[i]);
        if (status != CPL_OK && w->files.map)
            return CPL_FAIL(status, "%s (one of the files of %s)", cpl_last_error(), w->files.path);
        CPL_TRY(status);
    }
    return CPL_OK;
}

static int by_name(const void *a, const void *b)
{
    const cpl_weight *x = a, *y = b;
    int order = strcmp(x->entry->name, y->entry->name);
    return order ? order : strcmp(cpl_safetensors_path(x->file), cpl_safetensors_path(y->file));
}

static cpl_status collect(cpl_weights *w)
{
    int64_t total = 0;
    for (int64_t f = 0; f < w->files.count; f++) total += cpl_safetensors_count(w->open[f]);
    w->tensors = cpl_alloc((size_t)total * sizeof *w->tensors);
    if (!w->tensors) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", w->files.path);
    for (int64_t f = 0; f < w->files.count; f++)
        for (int64_t i = 0; i < cpl_safetensors_count(w->open[f]); i++)
            w->tensors[w->count++] =
                (cpl_weight){.file = w->open[f], .entry = cpl_safetensors_at(w->open[f], i)};
    if (total) qsort(w->tensors, (size_t)total, sizeof *w->tensors, by_name);
    return CPL_OK;
}

static const char *file_name(const cpl_weight *tensor)
{
    const char *path = cpl_safetensors_path(tensor->file), *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static cpl_weight_fault against_index(const cpl_weights *w, const cpl_weight *tensor)
{
    if (!w->files.map) return CPL_WEIGHT_SOUND;
    const char *named = json_string_value(json_object_get(w->files.map, tensor->entry->name));
    if (!named) return CPL_WEIGHT_NOT_INDEXED;
    return strcmp(named, file_name(tensor)) == 0 ? CPL_WEIGHT_SOUND : CPL_WEIGHT_MISPLACED;
}

/* Keeps one of each name and notes what is wrong with it; returns how many are at fault. */
static int64_t judge(cpl_weights *w, const cpl_weight **example)
{
    int64_t kept = 0, faults = 0;
    for (int64_t i = 0; i < w->count; i++) {
        cpl_weight *last = kept ? &w->tensors[kept - 1] : NULL;
        if (last && strcmp(last->entry->name, w->tensors[i].entry->name) == 0) {
            last->fault = CPL_WEIGHT_TWICE;
            continue;
        }
        w->tensors[kept]       = w->tensors[i];
        w->tensors[kept].fault = against_index(w, &w->tensors[i]);
        kept++;
    }
    w->count = kept;
    for (int64_t i = 0; i < kept; i++)
        if (w->tensors[i].fault != CPL_WEIGHT_SOUND && faults++ == 0) *example = &w->tensors[i];
    return faults;
}

static const char *in_words(cpl_weight_fault fault)
{
    return fault == CPL_WEIGHT_TWICE       ? "is in more than one file"
           : fault == CPL_WEIGHT_MISPLACED ? "is not in the file the index names"
                                           : "is not in the index";
}

cpl_status cpl_weights_open(cpl_weights **out, const char *path, const cpl_log *log)
{
    cpl_status status         = CPL_OK;
    const cpl_weight *example = NULL;
    cpl_weights *w            = cpl_alloc(sizeof *w);
    *out                      = NULL;
    if (!w) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", path);
    memset(w, 0, sizeof *w);
    CPL_TRY_DONE(cpl_weights_files_find(&w->files, path));
    CPL_TRY_DONE(open_files(w));
    CPL_TRY_DONE(collect(w));
    int64_t faults = judge(w, &example);
    if (faults && log)
        cpl_log_warn(log, "%s: tensor %s %s (tensors at fault: %lld); it cannot be used",
                     w->files.path, example->entry->name, in_words(example->fault),
                     (long long)faults);
    *out = w;
done:
    if (status != CPL_OK) cpl_weights_close(w);
    return status;
}

void cpl_weights_close(cpl_weights *w)
{
    if (!w) return;
    for (int64_t i = 0; w->open && i < w->files.count; i++) cpl_safetensors_close(w->open[i]);
    cpl_free((void *)w->open);
    cpl_free(w->tensors);
    cpl_weights_files_free(&w->files);
    cpl_free(w);
}

const char *cpl_weights_path(const cpl_weights *w)
{
    return w->files.path;
}

int64_t cpl_weights_count(const cpl_weights *w)
{
    return w->count;
}

const cpl_weight *cpl_weights_at(const cpl_weights *w, int64_t i)
{
    CPL_ASSERT(i >= 0 && i < w->count);
    return &w->tensors[i];
}

static int against_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const cpl_weight *)tensor)->entry->name);
}

cpl_status cpl_weights_find(const cpl_weight **out, const cpl_weights *w, const char *name)
{
    const cpl_weight *tensor =
        w->count ? bsearch(name, w->tensors, (size_t)w->count, sizeof *w->tensors, against_name)
                 : NULL;
    const char *named = json_string_value(json_object_get(w->files.map, name));
    *out              = NULL;
    if (!tensor && named)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: says that tensor %.200s is in %.200s, which has none",
                        w->files.path, name, named);
    if (tensor && tensor->fault != CPL_WEIGHT_SOUND)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s, found in %.200s, %s", w->files.path,
                        name, file_name(tensor), in_words(tensor->fault));
    *out = tensor;
    return CPL_OK;
}

static cpl_status wrong_shape(const cpl_weight *tensor, int rank, const int64_t *shape)
{
    char found[128];
    cpl_text wanted = {0};
    for (int i = 0; i < rank; i++)
        cpl_text_printf(&wanted, "%s%lld", i ? "," : "", (long long)shape[i]);
    cpl_status status = CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s is %s, it should be [%s]",
                                 cpl_safetensors_path(tensor->file), tensor->entry->name,
                                 cpl_safetensors_shape_text(found, tensor->entry),
                                 wanted.bytes ? wanted.bytes : "");
    cpl_text_free(&wanted);
    return status;
}

cpl_status cpl_weights_read_f32(const cpl_weights *w, const char *name, float *out, int rank,
                                const int64_t *shape)
{
    const cpl_weight *tensor;
    CPL_TRY(cpl_weights_find(&tensor, w, name));
    if (!tensor) return CPL_FAIL(CPL_ERR_INPUT, "%s: has no tensor %.200s", w->files.path, name);
    if (!cpl_safetensors_has_shape(tensor->entry, rank, shape))
        return wrong_shape(tensor, rank, shape);
    return cpl_safetensors_read_f32(tensor->file, tensor->entry, out, 0, tensor->entry->n_elements);
}

/* ---- what tells weights apart ---- */

/* Adds `bytes` bytes of a tensor from `begin` on. */
static cpl_status add_sample(XXH64_hash_t *hash, const cpl_weight *tensor, uint64_t begin,
                             size_t bytes)
{
    unsigned char sample[3 * CPL_WEIGHTS_SAMPLE];
    CPL_ASSERT(bytes <= sizeof sample);
    CPL_TRY(cpl_safetensors_read_raw(tensor->file, tensor->entry, sample, begin, bytes));
    *hash = XXH3_64bits_withSeed(sample, bytes, *hash);
    return CPL_OK;
}

static cpl_status add_tensor(XXH64_hash_t *hash, const cpl_weight *tensor)
{
    const cpl_safetensors_entry *e = tensor->entry;
    const uint64_t bytes = e->end - e->begin, numbers[] = {(uint64_t)e->dtype, bytes};
    const uint64_t part = CPL_WEIGHTS_SAMPLE;
    *hash               = XXH3_64bits_withSeed(e->name, strlen(e->name), *hash);
    *hash               = XXH3_64bits_withSeed(numbers, sizeof numbers, *hash);
    *hash               = XXH3_64bits_withSeed(e->shape, (size_t)e->rank * sizeof *e->shape, *hash);
    if (bytes <= 3 * part) return add_sample(hash, tensor, 0, (size_t)bytes);
    CPL_TRY(add_sample(hash, tensor, 0, (size_t)part));
    CPL_TRY(add_sample(hash, tensor, (bytes - part) / 2, (size_t)part));
    return add_sample(hash, tensor, bytes - part, (size_t)part);
}

cpl_status cpl_weights_sampled_hash(uint64_t *hash, uint64_t *bytes, const cpl_weights *w)
{
    XXH64_hash_t sum = XXH3_64bits("couplet weights 1", 17);
    *bytes           = 0;
    for (int64_t i = 0; i < w->count; i++) {
        CPL_TRY(add_tensor(&sum, &w->tensors[i]));
        *bytes += w->tensors[i].entry->end - w->tensors[i].entry->begin;
    }
    *hash = sum;
    return CPL_OK;
}
