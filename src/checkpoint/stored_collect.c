/* stored_collect.c - collects the tensors of all files to one sorted list, see stored.h
 *
 * The list has an entry for each tensor of the files and for each tensor of the index, if any. It
 * is sorted by name, so that the entries of one name are adjacent: entries of files, by slice, and
 * then the entry of the index, which has no type. Each such group becomes one tensor, or its
 * slices. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/internal.h"

/* Returns whether the entry comes from the index, not from a file. */
static bool is_promise(const cpl_stored *tensor)
{
    return !tensor->type_name;
}

/* Records a fault of the tensor, unless a fault is recorded already. */
CPL_PRINTF(2, 3) static cpl_status set_fault(cpl_stored *tensor, const char *format, ...)
{
    char sentence[1024];
    va_list arguments;
    if (tensor->fault) return CPL_OK;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    tensor->fault = cpl_text_copy(sentence);
    return tensor->fault ? CPL_OK : CPL_ERR_MEMORY;
}

/* Entries of the list ---------------------------------------------------------------------------*/

/* Adds an entry of this part, with all dimensions 1. */
static cpl_stored *add(cpl_stored_files *s, const cpl_stored_part *part, const char *name)
{
    cpl_stored *t = &s->tensors[s->count++];
    *t            = (cpl_stored){.name     = name,
                                 .path     = part->path,
                                 .file     = part,
                                 .format   = CPL_FORMAT_OTHER,
                                 .rank     = -1,
                                 .n_slices = 1};
    for (int i = 0; i < CPL_STORED_MAX_RANK; i++) t->shape[i] = 1;
    return t;
}

static cpl_status add_safetensors(cpl_stored_files *s, const cpl_stored_part *part,
                                  const cpl_safetensors_entry *e)
{
    cpl_stored *t = add(s, part, e->name);
    t->type_name  = cpl_safetensors_dtype_name(e->dtype);
    t->format     = cpl_safetensors_dtype_format(e->dtype);
    t->entry      = e;
    t->n_elements = e->n_elements;
    t->bytes      = e->end - e->begin;
    t->offset     = part->safetensors->data_at + e->begin;
    bool fits     = e->rank <= CPL_STORED_MAX_RANK;
    for (int i = 0; i < e->rank && fits; i++) fits = e->shape[i] <= INT64_MAX;
    if (!fits) {
        char shape[128];
        return set_fault(t, "%s: tensor %.200s has the shape %s, which is not read here",
                         part->path, e->name, cpl_safetensors_shape_text(shape, e));
    }
    t->rank = e->rank;
    for (int i = 0; i < e->rank; i++) t->shape[i] = (int64_t)e->shape[i];
    return CPL_OK;
}

static void add_gguf(cpl_stored_files *s, const cpl_stored_part *part, const cpl_gguf_entry *e)
{
    cpl_stored *t = add(s, part, e->name);
    t->type_name  = e->type_name;
    t->format     = e->format;
    t->n_elements = e->n_elements;
    t->bytes      = e->bytes;
    t->offset     = e->offset;
    t->rank       = e->rank;
    for (int i = 0; i < e->rank; i++) t->shape[i] = e->shape[i];
}

static int64_t entries_of(const cpl_stored_part *part)
{
    return part->gguf ? part->gguf->count : part->safetensors ? part->safetensors->count : 0;
}

static cpl_status add_part(cpl_stored_files *s, const cpl_stored_part *part)
{
    for (int64_t i = 0; i < entries_of(part); i++)
        if (part->gguf)
            add_gguf(s, part, &part->gguf->entries[i]);
        else
            CPL_TRY(add_safetensors(s, part, &part->safetensors->entries[i]));
    return CPL_OK;
}

static int against_name(const void *name, const void *part)
{
    return strcmp(name, ((const cpl_stored_part *)part)->name);
}

/* Adds an entry for each tensor of the index. The parts are sorted by name, since they all lie in
 * one folder. */
static void add_promises(cpl_stored_files *s)
{
    const char *tensor;
    json_t *file;
    json_object_foreach(s->map, tensor, file)
    {
        const cpl_stored_part *part = bsearch(json_string_value(file), s->parts, (size_t)s->n_parts,
                                              sizeof *s->parts, against_name);
        CPL_ASSERT(part);
        (void)add(s, part, tensor);
    }
}

static int by_name(const void *a, const void *b)
{
    const cpl_stored *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    if (order) return order;
    if (is_promise(x) != is_promise(y)) return is_promise(x) ? 1 : -1;
    if (x->file->slice != y->file->slice) return x->file->slice < y->file->slice ? -1 : 1;
    return strcmp(x->path, y->path);
}

static cpl_status list(cpl_stored_files *s)
{
    int64_t total = (int64_t)json_object_size(s->map);
    for (int64_t i = 0; i < s->n_parts; i++) total += entries_of(&s->parts[i]);
    CPL_TRY(cpl_memory_hold_table(s->path, (double)total * sizeof *s->tensors, cpl_stored_room(s)));
    s->tensors = cpl_alloc((size_t)total * sizeof *s->tensors);
    if (!s->tensors) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", s->path);
    for (int64_t i = 0; i < s->n_parts; i++) CPL_TRY(add_part(s, &s->parts[i]));
    if (s->map) add_promises(s);
    if (total) qsort(s->tensors, (size_t)total, sizeof *s->tensors, by_name);
    return CPL_OK;
}

/* Groups of one name ----------------------------------------------------------------------------*/

/* Returns a file that failed to open and should hold slices of the tensors of `part`, or NULL. */
static const cpl_stored_part *damaged_slice(const cpl_stored_files *s, const cpl_stored_part *part)
{
    for (int64_t i = 0; i < s->n_parts; i++) {
        const cpl_stored_part *other = &s->parts[i];
        if (other->fault && other->slice >= 0 && other->stem == part->stem &&
            memcmp(other->name, part->name, (size_t)part->stem) == 0)
            return other;
    }
    return NULL;
}

/* Checks the `n` entries of files with slices, sorted by slice: either the tensor is in one file,
 * or each slice of the checkpoint must occur once. */
static cpl_status check_slices(const cpl_stored_files *s, cpl_stored *group, int64_t n)
{
    const cpl_stored_part *damaged = n == s->n_slices ? NULL : damaged_slice(s, group->file);
    if (damaged)
        return set_fault(group, "%s (a slice of tensor %.200s should be in it)", damaged->fault,
                         group->name);
    if (n == 1) return CPL_OK;
    for (int64_t i = 0; i < n; i++) {
        group[i].slice    = (int)i;
        group[i].n_slices = (int)n;
        if (group[i].file->slice != i || n != s->n_slices)
            return set_fault(group,
                             "%s: tensor %.200s is in %lld files, but not in one for each of "
                             "the %d slices of the checkpoint",
                             group->path, group->name, (long long)n, s->n_slices);
    }
    return CPL_OK;
}

/* Checks the `n` entries of files. A tensor in one file is accepted even if the index names another
 * file or no file: Transformers, too, takes only the file names from an index. */
static cpl_status check_files(const cpl_stored_files *s, cpl_stored *group, int64_t n)
{
    bool sliced = true;
    for (int64_t i = 0; i < n; i++) sliced = sliced && group[i].file->slice >= 0;
    if (sliced) return check_slices(s, group, n);
    if (n > 1)
        return set_fault(group, "%s: tensor %.200s is in %.200s too", group->path, group->name,
                         group[1].file->name);
    return CPL_OK;
}

/* Sets the fault of a tensor that only the index lists. */
static cpl_status check_promise(const cpl_stored_files *s, cpl_stored *promise)
{
    const cpl_stored_part *part = promise->file;
    promise->type_name          = "unknown";
    if (part->fault)
        return set_fault(promise, "%s (tensor %.200s should be in it)", part->fault, promise->name);
    return set_fault(promise, "%s: has no tensor %.200s, which %s says is in it", part->path,
                     promise->name, s->source);
}

/* Sets *n to the length of the group that begins at `i`, without the index's entry. Returns the
 * index's entry or NULL. */
static cpl_stored *group_at(cpl_stored_files *s, int64_t i, int64_t *n)
{
    for (*n = 0; i + *n < s->count; ++*n) {
        cpl_stored *t = &s->tensors[i + *n];
        if (strcmp(t->name, s->tensors[i].name) != 0) return NULL;
        if (is_promise(t)) return t;
    }
    return NULL;
}

/* Moves the first `n` entries of the group to position *kept, and frees the faults of the
 * others. */
static void keep_entries(cpl_stored_files *s, int64_t *kept, cpl_stored *group, int64_t n,
                         int64_t all)
{
    for (int64_t i = 0; i < all; i++) {
        char *fault    = (char *)(uintptr_t)group[i].fault;
        group[i].fault = NULL;
        if (i >= n) {
            cpl_free(fault);
            continue;
        }
        s->tensors[*kept]           = group[i];
        s->tensors[(*kept)++].fault = fault;
    }
}

/* Reduces each group to one tensor or its slices. A group with a fault becomes one tensor, whose
 * fault is reported when it is read. */
static cpl_status reduce_groups(cpl_stored_files *s)
{
    int64_t kept = 0, n;
    for (int64_t at = 0; at < s->count;) {
        cpl_stored *group = &s->tensors[at], *promise = group_at(s, at, &n);
        int64_t all = n + (promise != NULL);
        CPL_TRY(n ? check_files(s, group, n) : check_promise(s, group));
        if (group->fault) group->slice = 0, group->n_slices = 1;
        keep_entries(s, &kept, group, group->fault || !n ? 1 : n, all);
        at += all;
    }
    s->count = kept;
    return CPL_OK;
}

/* Logs the first fault. A strict reader does not count tensors that only the index names. */
static void warn(const cpl_stored_files *s, const cpl_log *log)
{
    const char *first = NULL;
    int64_t faults    = 0;
    for (int64_t i = 0; i < s->count; i++)
        if (s->tensors[i].fault && (s->tensors[i].entry || !s->strict) && faults++ == 0)
            first = s->tensors[i].fault;
    if (faults)
        cpl_log_warn(log, "%s (tensors at fault: %lld of %lld)", first, (long long)faults,
                     (long long)s->count);
}

cpl_status cpl_stored_collect(cpl_stored_files *s, const cpl_log *log)
{
    CPL_TRY(list(s));
    CPL_TRY(reduce_groups(s));
    if (log) warn(s, log);
    return CPL_OK;
}
