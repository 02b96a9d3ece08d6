/* stored_files.c - see stored_internal.h: which files a checkpoint consists of, and opening them */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "checkpoint/stored_internal.h"
#include "io/file.h"

static cpl_status no_memory(const cpl_stored_files *s)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", s->path);
}

/* Slices ----------------------------------------------------------------------------------------*/

/* The slice that a name ...-TP-002.safetensors tells and where its "-TP-" stands; -1: none. */
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

/* Adds a path that is not there yet; takes it over. */
static cpl_status add_path(cpl_stored_paths *files, char *path)
{
    if (!path) return CPL_ERR_MEMORY;
    char **paths = cpl_realloc(files->paths, (size_t)(files->count + 1) * sizeof *paths);
    if (!paths) {
        cpl_free(path);
        return CPL_ERR_MEMORY;
    }
    files->paths                 = paths;
    files->paths[files->count++] = path;
    return CPL_OK;
}

static bool is_listed(const cpl_stored_paths *files, int64_t count, const char *path)
{
    return count && bsearch(&path, files->paths, (size_t)count, sizeof path, cpl_order_strings);
}

/* Adds the slices of the folder that the index does not name. Where there is no index, slices make
 * the whole checkpoint: then every safetensors file is added. */
static cpl_status add_slices(cpl_stored_paths *files, const char *folder)
{
    cpl_status status = CPL_OK;
    char **names      = NULL;
    int64_t n_names = 0, n_slices = 0, listed = files->count;
    int stem;
    CPL_TRY(cpl_folder_list(&names, &n_names, folder));
    for (int64_t i = 0; i < n_names; i++) n_slices += slice_of(names[i], &stem) >= 0;
    for (int64_t i = 0; i < n_names && n_slices; i++) {
        bool wanted = files->map ? slice_of(names[i], &stem) >= 0
                                 : cpl_stored_ends_with(names[i], ".safetensors");
        if (!wanted) continue;
        char *path = cpl_path_join(folder, names[i]);
        if (path && is_listed(files, listed, path))
            cpl_free(path);
        else
            CPL_TRY_DONE(add_path(files, path));
    }
    if (files->count > listed)
        qsort(files->paths, (size_t)files->count, sizeof *files->paths, cpl_order_strings);
done:
    cpl_folder_list_free(names, n_names);
    return status;
}

/* GGUF ------------------------------------------------------------------------------------------*/

/* Whether the name ends as that of a part does, -00001-of-00003.gguf; sets the length of what stands
 * before that. */
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

/* Whether two names are those of parts of one file. */
static bool is_same_split(const char *a, const char *b)
{
    size_t stem_a, stem_b;
    unsigned number, count_a, count_b;
    return is_split(a, &stem_a, &number, &count_a) && is_split(b, &stem_b, &number, &count_b) &&
           count_a == count_b && stem_a == stem_b && memcmp(a, b, stem_a) == 0;
}

/* Sets the only .gguf file of a folder without safetensors, or the first part of it; NULL if it has
 * safetensors or no .gguf. Two different ones are an error. */
static cpl_status only_gguf(char **found, const char *folder)
{
    cpl_status status = CPL_OK;
    char **names      = NULL;
    int64_t n_names   = 0;
    const char *first = NULL;
    bool safetensors  = false;
    *found            = NULL;
    CPL_TRY(cpl_folder_list(&names, &n_names, folder));
    for (int64_t i = 0; i < n_names && !safetensors; i++)
        safetensors = cpl_stored_ends_with(names[i], ".safetensors");
    for (int64_t i = 0; i < n_names && !safetensors; i++) {
        if (!cpl_stored_ends_with(names[i], ".gguf")) continue;
        if (first && !is_same_split(first, names[i]))
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT,
                                  "%s: has several GGUF files (%.200s and %.200s): name the one "
                                  "that is meant",
                                  folder, first, names[i]));
        if (!first) first = names[i];
    }
    if (first) *found = cpl_path_join(folder, first);
    if (first && !*found) status = CPL_ERR_MEMORY;
done:
    cpl_folder_list_free(names, n_names);
    return status;
}

/* By its name, or by its first bytes: the files of a cache have no endings. */
static bool is_gguf(const char *path)
{
    char start[4] = {0};
    int descriptor;
    uint64_t length;
    if (cpl_stored_ends_with(path, ".gguf")) return true;
    if (cpl_file_open(&descriptor, &length, path) != CPL_OK) return false;
    bool read = length >= sizeof start &&
                cpl_file_read_at(descriptor, start, sizeof start, 0, path) == CPL_OK;
    close(descriptor);
    return read && memcmp(start, "GGUF", sizeof start) == 0;
}

/* The parts that the name of one tells, or this file alone. */
static cpl_status add_splits(cpl_stored_paths *files, const char *path)
{
    size_t stem;
    unsigned number, count;
    if (!is_split(path, &stem, &number, &count)) return add_path(files, cpl_text_copy(path));
    for (unsigned i = 1; i <= count; i++) {
        cpl_text part = {0};
        cpl_text_append(&part, path, stem);
        cpl_text_printf(&part, "-%05u-of-%05u.gguf", i, count);
        cpl_status status = cpl_text_status(&part);
        if (status == CPL_OK) status = add_path(files, cpl_text_copy(part.bytes));
        cpl_text_free(&part);
        CPL_TRY(status);
    }
    return CPL_OK;
}

/* The file must say of itself what its name says. */
static cpl_status check_split(const cpl_stored_files *s, int64_t i)
{
    const json_t *metadata = cpl_gguf_metadata(s->parts[i].gguf);
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

static cpl_status discover_gguf(cpl_stored_files *s, char *path)
{
    s->is_gguf    = true;
    s->files.path = path;
    return add_splits(&s->files, path);
}

/* Nothing of the usual names: slices without an index, or a GGUF file, or an error. */
static cpl_status discover_unusual(cpl_stored_files *s)
{
    char *gguf;
    CPL_TRY(only_gguf(&gguf, s->path));
    if (gguf) return discover_gguf(s, gguf);
    CPL_TRY(add_slices(&s->files, s->path));
    if (!s->files.count) {
        cpl_status status = cpl_stored_paths_find(&s->files, s->path);
        return CPL_FAIL(status, "%s; nor has it a GGUF file", cpl_last_error());
    }
    s->files.path = cpl_path_join(s->path, "*.safetensors");
    return s->files.path ? CPL_OK : no_memory(s);
}

static cpl_status discover_usual(cpl_stored_files *s, const char *found)
{
    CPL_TRY(cpl_stored_paths_find(&s->files, found));
    if (!s->files.map) return CPL_OK;
    if (!s->files.count)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: its weight_map names no file", s->files.path);
    char *folder = cpl_path_folder(s->files.path);
    if (!folder) return no_memory(s);
    cpl_status status = add_slices(&s->files, folder);
    cpl_free(folder);
    return status;
}

cpl_status cpl_stored_discover(cpl_stored_files *s)
{
    char *found;
    if (s->strict) return cpl_stored_paths_find(&s->files, s->path);
    CPL_TRY(cpl_stored_paths_discover(&found, s->path));
    if (!found) return discover_unusual(s);
    if (!cpl_stored_ends_with(found, ".json") && is_gguf(found)) return discover_gguf(s, found);
    cpl_status status = discover_usual(s, found);
    cpl_free(found);
    return status;
}

/* Opens one file, or notes why it cannot be opened, which is an error where `strict`. */
static cpl_status open_part(const cpl_stored_files *s, cpl_stored_part *part)
{
    const char *slash = strrchr(part->path, '/');
    part->name        = slash ? slash + 1 : part->path;
    part->slice       = s->strict ? -1 : slice_of(part->name, &part->stem);
    cpl_status status = s->is_gguf ? cpl_gguf_open(&part->gguf, part->path)
                                   : cpl_safetensors_open(&part->safetensors, part->path);
    if (status == CPL_OK || status == CPL_ERR_MEMORY) return status;
    if (s->strict && s->files.map)
        return CPL_FAIL(status, "%s (one of the files of %s)", cpl_last_error(), s->files.path);
    if (s->strict) return status;
    part->failure = status;
    part->fault   = cpl_text_copy(cpl_last_error());
    return part->fault ? CPL_OK : no_memory(s);
}

static cpl_status nothing_opened(const cpl_stored_files *s)
{
    const cpl_stored_part *first = &s->parts[0];
    if (s->n_parts == 1 && !s->files.map) return CPL_FAIL(first->failure, "%s", first->fault);
    return CPL_FAIL(first->failure, "%s (nor can any other of the %lld files of %s be read)",
                    first->fault, (long long)s->n_parts, s->files.path);
}

cpl_status cpl_stored_open_parts(cpl_stored_files *s)
{
    int64_t n_opened = 0, count = s->files.count;
    s->parts = cpl_alloc((size_t)count * sizeof *s->parts);
    if (!s->parts) return no_memory(s);
    memset(s->parts, 0, (size_t)count * sizeof *s->parts);
    s->n_parts = count;
    for (int64_t i = 0; i < count; i++) {
        cpl_stored_part *part = &s->parts[i];
        part->path            = s->files.paths[i];
        CPL_TRY(open_part(s, part));
        n_opened += !part->fault;
        if (part->slice >= s->n_slices) s->n_slices = part->slice + 1;
        if (part->fault && count > 1 && !s->files.map) /* nothing tells what would be in it */
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
}
