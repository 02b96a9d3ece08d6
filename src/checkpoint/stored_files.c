/* stored_files.c - finds and opens the files of a checkpoint, see stored.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "checkpoint/internal.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

static cpl_status no_memory(const cpl_stored_files *s)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", s->path);
}

static cpl_status add_path(cpl_stored_files *s, const char *folder, const char *name)
{
    char *path        = cpl_path_join(folder, name);
    cpl_status status = path ? cpl_paths_add(&s->paths, path) : CPL_ERR_MEMORY;
    cpl_free(path);
    return status;
}

/* The index -------------------------------------------------------------------------------------*/

/* Sets the file or index that `path` means, from cpl_alloc. Sets NULL for a folder without the
 * names of stored.h. */
static cpl_status find_source(char **found, const cpl_origin *origin, const char *path)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "consolidated.safetensors",
                                        "consolidated.safetensors.index.json"};
    bool there                       = false;
    *found                           = NULL;
    if (!cpl_origin_is_folder(origin, path)) {
        *found = cpl_text_copy(path);
        return *found ? CPL_OK : CPL_ERR_MEMORY;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *candidate = cpl_path_join(path, names[i]);
        if (!candidate) return CPL_ERR_MEMORY;
        cpl_status status = cpl_origin_exists(origin, &there, candidate);
        if (status == CPL_OK && there) {
            *found = candidate;
            return CPL_OK;
        }
        cpl_free(candidate);
        CPL_TRY(status);
    }
    return CPL_OK;
}

/* Returns whether the name has an ending of files that torch.save writes. */
static bool is_of_pytorch(const char *name)
{
    return cpl_path_ends_in(name, ".bin") || cpl_path_ends_in(name, ".pt") ||
           cpl_path_ends_in(name, ".pth") || cpl_path_ends_in(name, ".ckpt") ||
           cpl_path_ends_in(name, ".distcp");
}

/* Returns the error for a folder without the expected names, which tells the folder's content. */
static cpl_status nothing_found(const cpl_origin *origin, const char *folder, bool strict)
{
    cpl_strings names;
    const char *shard = NULL, *foreign = NULL, *adapter = NULL;
    CPL_TRY(cpl_origin_list(origin, &names, folder));
    for (int64_t i = 0; i < names.count; i++) {
        const char *name = names.at[i];
        if (strncmp(name, "adapter_model.", 14) == 0) adapter = name;
        if (cpl_path_ends_in(name, ".safetensors")) shard = name;
        if (is_of_pytorch(name)) foreign = name;
    }
    cpl_status status = CPL_OK;
    if (adapter)
        status =
            CPL_FAIL(CPL_ERR_INPUT,
                     "%s: has an adapter of PEFT (%.200s) and no model: merge the adapter into its "
                     "model (merge_and_unload of PEFT), save that, and name its folder",
                     folder, adapter);
    else if (shard)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: has neither model.safetensors nor model.safetensors.index.json, but "
                          "%.200s: fetch the index, or name the file itself",
                          folder, shard);
    else if (foreign)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: has weights only in PyTorch's own form (%.200s): inspect them by "
                          "python -m couplet.inspect, or save them again as safetensors",
                          folder, foreign);
    else
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: no weights found: expected model.safetensors, "
                          "model.safetensors.index.json, or these with consolidated in place of "
                          "model%s%s",
                          folder, strict ? "" : ", or one .gguf file",
                          origin && !origin->lists
                              ? "; such a folder cannot be listed: name any other file itself"
                              : "");
    cpl_paths_free(&names);
    return status;
}

/* Checks that a name from the index is a file in the index's folder. */
static cpl_status check_name(const char *name, const char *tensor, const char *index)
{
    bool plain = *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    if (plain && !strpbrk(name, "/\\")) return CPL_OK;
    return CPL_FAIL(
        CPL_ERR_INPUT,
        "%s: tensor %.200s: \"%.200s\" is not the name of a file in the folder of the index", index,
        tensor, name);
}

/* Sets the index, and adds every file of its weight_map, once. */
static cpl_status read_index(cpl_stored_files *s, const char *folder)
{
    const char *tensor, *before = NULL;
    json_t *value;
    CPL_TRY(cpl_json_load_from(&s->index, s->origin, s->source));
    if (!json_object_get(s->index, "weight_map"))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is not an index of a checkpoint (`weight_map` is missing): name the "
                        "folder of the model, or a file of its weights",
                        s->source);
    CPL_TRY(cpl_json_object(s->index, "weight_map", &s->map, s->source));
    json_object_foreach(s->map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s: its file must be a string",
                            s->source, tensor);
        CPL_TRY(check_name(name, tensor, s->source));
        if (!before || strcmp(before, name) != 0) CPL_TRY(add_path(s, folder, name));
        before = name;
    }
    cpl_paths_sort(&s->paths);
    return CPL_OK;
}

/* Returns a file of the index other than the source, or NULL if the index names only the source.
 * Returns `path`, the index itself, if the index cannot be read. */
static const char *other_of(const json_t *index, const char *own, const char *path)
{
    const char *tensor;
    json_t *value, *map = json_object_get(index, "weight_map");
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name || strcmp(name, own) != 0) return name ? name : path;
    }
    return json_is_object(map) ? NULL : path;
}

/* Sets the notice if the folder also has an index that names other files than the source, which
 * alone is read. Transformers leaves an old index when it saves a model again in one file. */
static cpl_status notice_index(cpl_stored_files *s)
{
    json_t *index     = NULL;
    bool there        = false;
    const char *slash = strrchr(s->source, '/'), *own = slash ? slash + 1 : s->source, *other;
    cpl_text path = {0}, notice = {0};
    cpl_text_printf(&path, "%s.index.json", s->source);
    cpl_status status = cpl_text_status(&path);
    if (status == CPL_OK) status = cpl_origin_exists(s->origin, &there, path.bytes);
    if (status == CPL_OK && there) status = cpl_json_load_from(&index, s->origin, path.bytes);
    if (status != CPL_ERR_MEMORY) status = CPL_OK; /* the index is not needed */
    if (status == CPL_OK && there && (other = other_of(index, own, path.bytes))) {
        cpl_text_printf(
            &notice,
            "%s is read, as Transformers does, and %s beside it is not, which %s%.200s: "
            "remove what is old",
            s->source, path.bytes + (own - s->source),
            other == path.bytes ? "is no index that can be read" : "names ",
            other == path.bytes ? "" : other);
        status    = cpl_text_status(&notice);
        s->notice = notice.bytes;
    }
    json_decref(index);
    cpl_text_free(&path);
    return status;
}

/* Slices ----------------------------------------------------------------------------------------*/

/* Returns the slice number in a name ...-TP-002.safetensors, or -1. Sets the place of "-TP-". */
static int slice_of(const char *name, int *stem)
{
    static const char mark[] = "-TP-";
    const char *at = NULL, *next = name;
    while ((next = strstr(next, mark))) at = next++;
    char *end;
    if (!at || at[sizeof mark - 1] < '0' || at[sizeof mark - 1] > '9') return -1;
    unsigned long slice = strtoul(at + sizeof mark - 1, &end, 10);
    if (slice > 9999 || strcmp(end, ".safetensors") != 0) return -1;
    *stem = (int)(at - name);
    return (int)slice;
}

/* Adds the slices of the folder that the index does not name. Without an index, adds every
 * safetensors file of a folder with slices. */
static cpl_status add_slices(cpl_stored_files *s, const char *folder)
{
    cpl_status status = CPL_OK;
    cpl_strings names;
    int64_t n_slices = 0;
    int stem;
    CPL_TRY(cpl_origin_list(s->origin, &names, folder));
    for (int64_t i = 0; i < names.count; i++) n_slices += slice_of(names.at[i], &stem) >= 0;
    for (int64_t i = 0; i < names.count && n_slices; i++) {
        bool wanted = s->map ? slice_of(names.at[i], &stem) >= 0
                             : cpl_path_ends_in(names.at[i], ".safetensors");
        if (wanted) CPL_TRY_DONE(add_path(s, folder, names.at[i]));
    }
    cpl_paths_sort(&s->paths);
done:
    cpl_paths_free(&names);
    return status;
}

/* GGUF ------------------------------------------------------------------------------------------*/

/* Returns whether the name ends like the name of a part, -00001-of-00003.gguf. Sets the length of
 * the text before that ending, the number and the count. */
static bool is_split(const char *name, size_t *stem, unsigned *number, unsigned *count)
{
    enum { ENDING = 20 }; /* characters */
    size_t length = strlen(name);
    char again[ENDING + 8];
    if (length <= ENDING) return false;
    *stem = length - ENDING;
    if (sscanf(name + *stem, "-%5u-of-%5u.gguf", number, count) != 2) return false;
    snprintf(again, sizeof again, "-%05u-of-%05u.gguf", *number, *count);
    return strcmp(name + *stem, again) == 0;
}

/* Returns whether two names are names of parts of one file. */
static bool is_same_split(const char *a, const char *b)
{
    size_t stem_a, stem_b;
    unsigned number, count_a, count_b;
    return is_split(a, &stem_a, &number, &count_a) && is_split(b, &stem_b, &number, &count_b) &&
           count_a == count_b && stem_a == stem_b && memcmp(a, b, stem_a) == 0;
}

/* Sets the only .gguf file of a folder without safetensors files, or its first part. Sets NULL if
 * the folder has safetensors files or no .gguf. Two different GGUF files give CPL_ERR_INPUT. */
static cpl_status only_gguf(char **found, const cpl_origin *origin, const char *folder)
{
    cpl_status status = CPL_OK;
    cpl_strings names;
    const char *first = NULL;
    bool safetensors  = false;
    *found            = NULL;
    CPL_TRY(cpl_origin_list(origin, &names, folder));
    for (int64_t i = 0; i < names.count && !safetensors; i++)
        safetensors = cpl_path_ends_in(names.at[i], ".safetensors");
    for (int64_t i = 0; i < names.count && !safetensors; i++) {
        if (!cpl_path_is_gguf(names.at[i])) continue;
        if (first && !is_same_split(first, names.at[i]))
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT,
                                  "%s: has several GGUF files (%.200s and %.200s): name the one "
                                  "that is meant",
                                  folder, first, names.at[i]));
        if (!first) first = names.at[i];
    }
    if (first) *found = cpl_path_join(folder, first);
    if (first && !*found) status = CPL_ERR_MEMORY;
done:
    cpl_paths_free(&names);
    return status;
}

/* Returns whether the file is GGUF, by its name or its first bytes, since files of a cache have no
 * endings. */
static bool is_gguf(const cpl_origin *origin, const char *path)
{
    char start[4] = {0};
    cpl_source *file;
    if (cpl_path_is_gguf(path)) return true;
    if (cpl_origin_open(origin, &file, path) != CPL_OK) return false;
    bool read =
        file->length >= sizeof start && cpl_source_read_at(file, start, sizeof start, 0) == CPL_OK;
    cpl_source_close(file);
    return read && memcmp(start, "GGUF", sizeof start) == 0;
}

/* Adds all parts of the source if its name is the name of a part, else the source. */
static cpl_status add_splits(cpl_stored_files *s)
{
    size_t stem;
    unsigned number, count;
    cpl_status status = CPL_OK;
    if (!is_split(s->source, &stem, &number, &count)) return cpl_paths_add(&s->paths, s->source);
    for (unsigned i = 1; i <= count && status == CPL_OK; i++) {
        cpl_text part = {0};
        cpl_text_append(&part, s->source, stem);
        cpl_text_printf(&part, "-%05u-of-%05u.gguf", i, count);
        status = cpl_text_status(&part);
        if (status == CPL_OK) status = cpl_paths_add(&s->paths, part.bytes);
        cpl_text_free(&part);
    }
    return status;
}

/* Checks that the metadata of a part agree with its name. */
static cpl_status check_split(const cpl_stored_files *s, int64_t i)
{
    const json_t *metadata = s->parts[i].gguf->metadata;
    const json_t *count    = json_object_get(metadata, "split.count");
    const json_t *number   = json_object_get(metadata, "split.no");
    int64_t n = json_integer_value(count), no = json_integer_value(number);
    if ((!count || n == 1) && s->n_parts == 1) return CPL_OK;
    if (n == s->n_parts && json_is_integer(number) && no == i) return CPL_OK;
    if (s->n_parts == 1)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is part %lld of %lld of a split file; the parts are found by their "
                        "names, and this should be ...-%05lld-of-%05lld.gguf",
                        s->parts[i].path, (long long)no + 1, (long long)n, (long long)no + 1,
                        (long long)n);
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: is named as part %lld of %lld of a split file, which its metadata "
                    "(split.no, split.count) do not say",
                    s->parts[i].path, (long long)i + 1, (long long)s->n_parts);
}

/* Both kinds ------------------------------------------------------------------------------------*/

/* Finds the files of a folder without the usual names: a GGUF file, or slices without an index. */
static cpl_status find_unusual(cpl_stored_files *s)
{
    CPL_TRY(only_gguf(&s->source, s->origin, s->path));
    s->is_gguf = s->source != NULL;
    if (s->is_gguf) return add_splits(s);
    CPL_TRY(add_slices(s, s->path));
    if (!s->paths.count) return nothing_found(s->origin, s->path, false);
    s->source = cpl_path_join(s->path, "*.safetensors");
    return s->source ? CPL_OK : no_memory(s);
}

static cpl_status find_indexed(cpl_stored_files *s)
{
    char *folder = cpl_path_folder(s->source);
    if (!folder) return no_memory(s);
    cpl_status status = read_index(s, folder);
    if (status == CPL_OK && !s->strict)
        status = s->paths.count
                     ? add_slices(s, folder)
                     : CPL_FAIL(CPL_ERR_INPUT, "%s: its weight_map names no file", s->source);
    cpl_free(folder);
    return status;
}

/* Sets source, is_gguf, index and paths, from the names of the files. */
static cpl_status find_files(cpl_stored_files *s)
{
    CPL_TRY(find_source(&s->source, s->origin, s->path));
    if (!s->source) return s->strict ? nothing_found(s->origin, s->path, true) : find_unusual(s);
    if (cpl_path_ends_in(s->source, ".json")) return find_indexed(s);
    if (strcmp(s->source, s->path) != 0) CPL_TRY(notice_index(s));
    s->is_gguf = !s->strict && is_gguf(s->origin, s->source);
    return s->is_gguf ? add_splits(s) : cpl_paths_add(&s->paths, s->source);
}

/* Opens one file. Records a failure in part->fault, or returns it if `strict`. */
static cpl_status open_part(const cpl_stored_files *s, cpl_stored_part *part)
{
    const char *slash = strrchr(part->path, '/');
    part->name        = slash ? slash + 1 : part->path;
    part->slice       = s->strict ? -1 : slice_of(part->name, &part->stem);
    cpl_status status = s->is_gguf
                            ? cpl_gguf_open(&part->gguf, s->origin, part->path, cpl_stored_room(s))
                            : cpl_safetensors_open_from(&part->safetensors, s->origin, part->path,
                                                        cpl_stored_room(s));
    if (status == CPL_OK || status == CPL_ERR_MEMORY) return status;
    if (s->strict && s->map)
        return CPL_FAIL(status, "%s (one of the files of %s)", cpl_last_error(), s->source);
    if (s->strict) return status;
    part->failure = status;
    part->fault   = cpl_text_copy(cpl_last_error());
    return part->fault ? CPL_OK : no_memory(s);
}

static cpl_status nothing_opened(const cpl_stored_files *s)
{
    const cpl_stored_part *first = &s->parts[0];
    if (s->n_parts == 1 && !s->map) return CPL_FAIL(first->failure, "%s", first->fault);
    return CPL_FAIL(first->failure, "%s (nor can any other of the %lld files of %s be read)",
                    first->fault, (long long)s->n_parts, s->source);
}

cpl_status cpl_stored_open_parts(cpl_stored_files *s)
{
    CPL_TRY(find_files(s));
    cpl_origin_expect(s->origin, &s->paths);
    int64_t n_opened = 0, count = s->paths.count;
    s->parts = cpl_alloc((size_t)count * sizeof *s->parts);
    if (!s->parts) return no_memory(s);
    memset(s->parts, 0, (size_t)count * sizeof *s->parts);
    s->n_parts = count;
    for (int64_t i = 0; i < count; i++) {
        cpl_stored_part *part = &s->parts[i];
        part->path            = s->paths.at[i];
        CPL_TRY(open_part(s, part));
        n_opened += !part->fault;
        if (part->slice >= s->n_slices) s->n_slices = part->slice + 1;
        if (part->fault && count > 1 && !s->map) /* its content is unknown */
            return CPL_FAIL(part->failure, "%s (file %lld of %lld of one checkpoint)", part->fault,
                            (long long)i + 1, (long long)count);
        if (s->is_gguf && !part->fault) CPL_TRY(check_split(s, i));
    }
    return n_opened || s->strict ? CPL_OK : nothing_opened(s);
}

void cpl_stored_close_parts(cpl_stored_files *s)
{
    for (int64_t i = 0; i < s->n_parts; i++) {
        cpl_gguf_close(s->parts[i].gguf);
        cpl_safetensors_close(s->parts[i].safetensors);
        cpl_free(s->parts[i].fault);
    }
    cpl_free(s->parts);
    cpl_paths_free(&s->paths);
    json_decref(s->index);
    cpl_free(s->source);
    cpl_free(s->notice);
}
