/* stored.c - see stored.h; the files are found and opened in stored_files.c, their tensors gathered
 * in stored_collect.c */
#include <fcntl.h>
#include <string.h>

#include "base/arena.h"
#include "checkpoint/stored_internal.h"
#include "io/file.h"
#include "io/json.h"

/* Sets `config` to the file's object if `folder` has one of this name. */
static cpl_status load_config(cpl_stored_files *s, const char *folder, const char *name)
{
    cpl_status status = CPL_OK;
    char *path        = cpl_path_join(folder, name);
    if (!path) return CPL_ERR_MEMORY;
    if (s->config || !cpl_path_exists(path)) goto done;
    CPL_TRY_DONE(cpl_json_load(&s->config, path));
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
        s->config = json_incref((json_t *)(uintptr_t)cpl_gguf_metadata(s->parts[0].gguf));
        return CPL_OK;
    }
    folder = cpl_path_folder(s->files.path);
    if (!folder) return CPL_ERR_MEMORY;
    CPL_TRY_DONE(load_config(s, folder, "config.json"));
    CPL_TRY_DONE(load_config(s, folder, "params.json"));
    if (!s->config) s->config = json_object();
    if (!s->config) CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", s->path));
done:
    cpl_free(folder);
    return status;
}

cpl_status cpl_stored_open(cpl_stored_files **out, const char *path, const cpl_log *log)
{
    cpl_status status   = CPL_OK;
    cpl_stored_files *s = cpl_alloc(sizeof *s);
    *out                = NULL;
    if (!s) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", path);
    memset(s, 0, sizeof *s);
    s->path = cpl_text_copy(path);
    if (!s->path) CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", path));
    CPL_TRY_DONE(cpl_stored_discover(s));
    CPL_TRY_DONE(cpl_stored_open_parts(s));
    CPL_TRY_DONE(cpl_stored_collect(s, log));
    CPL_TRY_DONE(find_config(s));
    *out = s;
done:
    if (status != CPL_OK) cpl_stored_close(s);
    return status;
}

void cpl_stored_close(cpl_stored_files *s)
{
    if (!s) return;
    for (int64_t i = 0; i < s->count; i++) cpl_free((void *)(uintptr_t)s->tensors[i].fault);
    cpl_free(s->tensors);
    cpl_stored_close_parts(s);
    cpl_weights_files_free(&s->files);
    json_decref(s->config);
    cpl_free(s->path);
    cpl_free(s);
}

const char *cpl_stored_path(const cpl_stored_files *s)
{
    return s->path;
}

bool cpl_stored_is_gguf(const cpl_stored_files *s)
{
    return s->is_gguf;
}

int64_t cpl_stored_n_files(const cpl_stored_files *s)
{
    return s->n_parts;
}

const json_t *cpl_stored_config(const cpl_stored_files *s)
{
    return s->config;
}

int64_t cpl_stored_count(const cpl_stored_files *s)
{
    return s->count;
}

const cpl_stored *cpl_stored_at(const cpl_stored_files *s, int64_t i)
{
    CPL_ASSERT(i >= 0 && i < s->count);
    return &s->tensors[i];
}

const cpl_stored *cpl_stored_find(const cpl_stored_files *s, const char *name)
{
    int64_t lo = 0, hi = s->count; /* the first that is not before `name` */
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

static int descriptor_of(const cpl_stored *tensor)
{
    const cpl_stored_part *part = tensor->file;
    return part->gguf ? cpl_gguf_descriptor(part->gguf)
                      : cpl_safetensors_descriptor(part->safetensors);
}

cpl_status cpl_stored_read(const cpl_stored *tensor, void *out, uint64_t first, size_t bytes)
{
    if (tensor->fault) return CPL_FAIL(CPL_ERR_INPUT, "%s", tensor->fault);
    if (first > tensor->bytes || bytes > tensor->bytes - first)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s has %llu bytes, %zu from byte %llu asked",
                        tensor->path, tensor->name, (unsigned long long)tensor->bytes, bytes,
                        (unsigned long long)first);
    return cpl_file_read_at(descriptor_of(tensor), out, bytes, tensor->offset + first,
                            tensor->path);
}

void cpl_stored_prefetch(const cpl_stored *tensor, uint64_t first, size_t bytes)
{
    if (tensor->fault || first > tensor->bytes || bytes > tensor->bytes - first || !bytes) return;
    (void)posix_fadvise(descriptor_of(tensor), (off_t)(tensor->offset + first), (off_t)bytes,
                        POSIX_FADV_WILLNEED);
}
