/* stored.c - opens a checkpoint and reads its tensors, see stored.h. */
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "base/arena.h"
#include "checkpoint/internal.h"
#include "io/file.h"
#include "io/json.h"

/* Sets `config` to the object in the file `name` of `folder`, if the file exists. */
static cpl_status load_config(cpl_stored_files *s, const char *folder, const char *name)
{
    cpl_status status = CPL_OK;
    bool there        = false;
    char *path        = cpl_path_join(folder, name);
    if (!path) return CPL_ERR_MEMORY;
    if (!s->config) CPL_TRY_DONE(cpl_origin_exists(s->origin, &there, path));
    if (!there) goto done;
    CPL_TRY_DONE(cpl_json_load_from(&s->config, s->origin, path));
    if (!json_is_object(s->config))
        CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "%s: should be an object of settings", path));
done:
    cpl_free(path);
    return status;
}

static cpl_status find_config(cpl_stored_files *s)
{
    cpl_status status = CPL_OK;
    char *folder      = NULL;
    if (s->is_gguf) {
        s->config = json_incref(s->parts[0].gguf->metadata);
        return CPL_OK;
    }
    folder = cpl_path_folder(s->source);
    if (!folder) return CPL_ERR_MEMORY;
    CPL_TRY_DONE(load_config(s, folder, "config.json"));
    CPL_TRY_DONE(load_config(s, folder, "params.json"));
    if (!s->config) s->config = json_object();
    if (!s->config) CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", s->path));
done:
    cpl_free(folder);
    return status;
}

static cpl_status open_files(cpl_stored_files **out, const cpl_origin *origin, const char *path,
                             double room, bool strict, const cpl_log *log)
{
    cpl_status status   = CPL_OK;
    cpl_stored_files *s = cpl_alloc(sizeof *s);
    *out                = NULL;
    if (!s) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", path);
    memset(s, 0, sizeof *s);
    s->origin = origin;
    s->strict = strict;
    s->room   = room;
    s->held   = cpl_alloc_in_use();
    s->path   = cpl_text_copy(path);
    if (!s->path) CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", path));
    CPL_TRY_DONE(cpl_stored_open_parts(s));
    if (s->notice) cpl_log_warn(log, "%s", s->notice);
    CPL_TRY_DONE(cpl_stored_collect(s, log));
    if (strict)
        s->config = json_object();
    else
        CPL_TRY_DONE(find_config(s));
    *out = s;
done:
    if (status != CPL_OK) cpl_stored_close(s);
    return status;
}

cpl_status cpl_stored_open(cpl_stored_files **out, const cpl_origin *origin, const char *path,
                           double room, const cpl_log *log)
{
    return open_files(out, origin, path, room, false, log);
}

cpl_status cpl_stored_open_strict(cpl_stored_files **out, const char *path, const cpl_log *log)
{
    return open_files(out, NULL, path, (double)INFINITY, true, log);
}

void cpl_stored_close(cpl_stored_files *s)
{
    if (!s) return;
    for (int64_t i = 0; i < s->count; i++) cpl_free((void *)(uintptr_t)s->tensors[i].fault);
    cpl_free(s->tensors);
    cpl_stored_close_parts(s);
    json_decref(s->config);
    cpl_free(s->path);
    cpl_free(s);
}

const cpl_stored *cpl_stored_find(const cpl_stored_files *s, const char *name)
{
    int64_t lo = 0, hi = s->count; /* binary search for the first name >= `name` */
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (strcmp(s->tensors[middle].name, name) < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    bool found = lo < s->count && strcmp(s->tensors[lo].name, name) == 0;
    return found ? &s->tensors[lo] : NULL;
}

const cpl_source *cpl_stored_source(const cpl_stored *tensor)
{
    const cpl_stored_part *part = tensor->file;
    return part->gguf ? part->gguf->source : part->safetensors->source;
}

/* Reads bytes of the tensor, without a check of its faults. */
static cpl_status read_bytes(const cpl_stored *tensor, void *out, uint64_t first, size_t bytes)
{
    if (first > tensor->bytes || bytes > tensor->bytes - first)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: tensor %.200s has %llu bytes, %zu from byte %llu requested",
                        tensor->path, tensor->name, (unsigned long long)tensor->bytes, bytes,
                        (unsigned long long)first);
    return cpl_source_read_at(cpl_stored_source(tensor), out, bytes, tensor->offset + first);
}

cpl_status cpl_stored_read(const cpl_stored *tensor, void *out, uint64_t first, size_t bytes)
{
    if (tensor->fault) return CPL_FAIL(CPL_ERR_INPUT, "%s", tensor->fault);
    return read_bytes(tensor, out, first, bytes);
}

void cpl_stored_prefetch(const cpl_stored *tensor, uint64_t first, size_t bytes)
{
    if (tensor->fault || first > tensor->bytes || bytes > tensor->bytes - first || !bytes) return;
    cpl_source_prefetch(cpl_stored_source(tensor), tensor->offset + first, bytes);
}

/* ---- tensors of safetensors files as f32 ---- */

cpl_status cpl_stored_find_sound(const cpl_stored **out, const cpl_stored_files *s,
                                 const char *name)
{
    const cpl_stored *tensor = cpl_stored_find(s, name);
    *out                     = NULL;
    if (tensor && tensor->fault) return CPL_FAIL(CPL_ERR_INPUT, "%s", tensor->fault);
    *out = tensor;
    return CPL_OK;
}

cpl_status cpl_stored_read_part_f32(const cpl_stored *tensor, float *out, int64_t first,
                                    int64_t count)
{
    if (tensor->fault) return CPL_FAIL(CPL_ERR_INPUT, "%s", tensor->fault);
    CPL_ASSERT(tensor->entry);
    return cpl_safetensors_read_f32(tensor->file->safetensors, tensor->entry, out, first, count);
}

cpl_status cpl_stored_find_shaped(const cpl_stored **out, const cpl_stored_files *s,
                                  const char *name, int rank, const int64_t *shape)
{
    char found[128], wanted[128];
    const cpl_safetensors_entry like = {.rank = rank, .shape = (const uint64_t *)shape};
    CPL_TRY(cpl_stored_find_sound(out, s, name));
    if (!*out) return CPL_FAIL(CPL_ERR_INPUT, "%s: has no tensor %.200s", s->source, name);
    if (cpl_safetensors_has_shape((*out)->entry, rank, shape)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s is %s, it should be %s", (*out)->path, name,
                    cpl_safetensors_shape_text(found, (*out)->entry),
                    cpl_safetensors_shape_text(wanted, &like));
}

/* ---- identity ---- */

/* Adds `bytes` bytes of a tensor, from `begin` on, to the hash. */
static cpl_status add_sample(XXH64_hash_t *hash, const cpl_stored *tensor, uint64_t begin,
                             size_t bytes)
{
    unsigned char sample[3 * CPL_STORED_SAMPLE];
    CPL_ASSERT(bytes <= sizeof sample);
    CPL_TRY(read_bytes(tensor, sample, begin, bytes));
    *hash = XXH3_64bits_withSeed(sample, bytes, *hash);
    return CPL_OK;
}

static cpl_status add_tensor(XXH64_hash_t *hash, const cpl_stored *tensor)
{
    const cpl_safetensors_entry *e = tensor->entry;
    const uint64_t bytes = e->end - e->begin, numbers[] = {(uint64_t)e->dtype, bytes};
    const uint64_t part = CPL_STORED_SAMPLE;
    *hash               = XXH3_64bits_withSeed(e->name, strlen(e->name), *hash);
    *hash               = XXH3_64bits_withSeed(numbers, sizeof numbers, *hash);
    *hash               = XXH3_64bits_withSeed(e->shape, (size_t)e->rank * sizeof *e->shape, *hash);
    if (bytes <= 3 * part) return add_sample(hash, tensor, 0, (size_t)bytes);
    CPL_TRY(add_sample(hash, tensor, 0, (size_t)part));
    CPL_TRY(add_sample(hash, tensor, (bytes - part) / 2, (size_t)part));
    return add_sample(hash, tensor, bytes - part, (size_t)part);
}

cpl_status cpl_stored_sampled_hash(uint64_t *hash, uint64_t *bytes, const cpl_stored_files *s)
{
    XXH64_hash_t sum = XXH3_64bits("couplet weights 1", 17);
    *bytes           = 0;
    for (const cpl_stored *t = s->tensors; t < s->tensors + s->count; t++) {
        if (!t->entry) continue; /* the tensor is only in the index */
        CPL_TRY(add_tensor(&sum, t));
        *bytes += t->bytes;
    }
    *hash = sum;
    return CPL_OK;
}
