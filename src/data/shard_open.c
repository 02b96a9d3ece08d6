/* shard_open.c - opens token files and determines the meaning of their ids (see shards.h). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/stop.h"
#include "data/internal.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

/* The content of the shards.json of a folder. All members are unknown without the file. */
typedef struct info {
    int item_bytes; /* 0 if unknown */
    int64_t eos;    /* -1 if unknown */
    int64_t vocab_size;
} info;

enum { LOOK_TOKENS = 1 << 20 };

/* ---- shards.json ---- */

static cpl_status parse_info(info *out, const json_t *root, const char *path)
{
    const char *dtype = NULL;
    CPL_TRY(cpl_json_string(root, "dtype", &dtype, path));
    CPL_TRY(cpl_json_int(root, "vocab_size", &out->vocab_size, 1, INT32_MAX, path));
    CPL_TRY(cpl_json_int(root, "eos_token_id", &out->eos, 0, out->vocab_size - 1, path));
    bool narrow     = strcmp(dtype, "uint16") == 0;
    out->item_bytes = narrow ? 2 : 4;
    if (narrow || strcmp(dtype, "uint32") == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: dtype must be \"uint16\" or \"uint32\"", path);
}

static cpl_status read_info(info *out, const char *folder)
{
    json_t *root      = NULL;
    cpl_status status = CPL_OK;
    char *path        = cpl_path_join(folder, "shards.json");
    if (!path) return CPL_ERR_MEMORY;
    if (cpl_path_exists(path)) {
        status = cpl_json_load(&root, path);
        if (status == CPL_OK) status = parse_info(out, root, path);
    }
    json_decref(root);
    cpl_free(path);
    return status;
}

/* ---- labels of a file ---- */

/* Parses the lines "<index>\t<label>" of <stem>.sources.tsv. */
static cpl_status parse_sources(cpl_shard *file, const char *path, char *text)
{
    char expected[32], *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        int n = snprintf(expected, sizeof expected, "%lld\t", (long long)file->own_labels.count);
        if (strncmp(line, expected, (size_t)n) != 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: line %lld does not begin with its index and a tab",
                            path, (long long)file->own_labels.count + 1);
        CPL_TRY(cpl_paths_add(&file->own_labels, line + n));
    }
    if (file->own_labels.count >= 1 && file->own_labels.count <= 65536) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: it names %lld sources, 1 to 65536 are possible", path,
                    (long long)file->own_labels.count);
}

static cpl_status find_own_labels(cpl_shard *file, const char *given)
{
    enum { LONGEST = 1 << 26 };
    if (given) return cpl_paths_add(&file->own_labels, given);
    cpl_status status = CPL_OK;
    cpl_text text     = {0};
    char *folder      = cpl_path_label(file->path);
    char *sources     = cpl_shard_companion(file->path, ".sources.tsv");
    if (!folder || !sources) {
        status = CPL_ERR_MEMORY;
    } else if (access(sources, F_OK) != 0) {
        status = cpl_paths_add(&file->own_labels, folder);
    } else {
        status = cpl_file_read(&text, sources, LONGEST);
        if (status == CPL_OK) status = parse_sources(file, sources, text.bytes ? text.bytes : "");
    }
    cpl_text_free(&text);
    cpl_free(sources);
    cpl_free(folder);
    return status;
}

/* Collects all labels and sets the numbers of each file's labels. */
static cpl_status number_labels(cpl_shards *s)
{
    for (int64_t i = 0; i < s->n_files; i++)
        for (int64_t k = 0; k < s->file[i].own_labels.count; k++)
            CPL_TRY(cpl_paths_add(&s->labels, s->file[i].own_labels.at[k]));
    cpl_paths_sort(&s->labels);
    for (int64_t i = 0; i < s->n_files; i++) {
        cpl_shard *file = &s->file[i];
        file->label     = cpl_alloc((size_t)file->own_labels.count * sizeof *file->label);
        if (!file->label) return CPL_ERR_MEMORY;
        for (int64_t k = 0; k < file->own_labels.count; k++)
            file->label[k] = (int32_t)cpl_shards_find_label(s, file->own_labels.at[k]);
    }
    return CPL_OK;
}

/* ---- item type ---- */

/* Sets *wide to whether the `length` bytes from `offset` on are probably uint32: if they are read
 * as uint16, nearly every second id is 0 or 1. */
static cpl_status looks_like_uint32(bool *wide, const cpl_shard_file *file, uint64_t offset,
                                    uint64_t length)
{
    enum { LEAST_PAIRS = 64, CHUNK = 1 << 14 };
    unsigned char bytes[CHUNK];
    uint64_t pairs = length / 4 < LOOK_TOKENS / 2 ? length / 4 : LOOK_TOKENS / 2;
    uint64_t odd = 0, even = 0;
    *wide = length % 4 == 0 && pairs >= LEAST_PAIRS;
    for (uint64_t at = 0, n; *wide && at < 4 * pairs; at += n) {
        n = 4 * pairs - at < CHUNK ? 4 * pairs - at : CHUNK;
        CPL_TRY(cpl_shard_file_read(file, bytes, n, offset + at));
        for (const unsigned char *b = bytes; b < bytes + n; b += 4) {
            even += b[0] <= 1 && b[1] == 0;
            odd += b[2] <= 1 && b[3] == 0;
        }
    }
    *wide = *wide && odd >= pairs - pairs / 100 && even < pairs / 2;
    return CPL_OK;
}

static int width_of_vocabulary(int64_t vocab_size)
{
    return vocab_size == 0 ? 0 : vocab_size <= 65536 ? 2 : 4;
}

static cpl_status decide_type(cpl_shard *file, const cpl_shard_format *format,
                              const cpl_shard_options *options, const info *known,
                              const cpl_log *log)
{
    static const int type_bytes[] = {0, 2, 4};
    uint64_t length               = file->ids.length - format->offset;
    int bytes                     = format->item_bytes;
    bool wide                     = false;
    CPL_TRY(looks_like_uint32(&wide, &file->ids, format->offset, length));
    if (!bytes) bytes = type_bytes[options->type];
    if (!bytes) bytes = known->item_bytes;
    if (!bytes) bytes = width_of_vocabulary(options->vocab_size);
    if (!bytes) bytes = wide ? 4 : 2;
    if (wide && bytes == 2)
        cpl_log_warn(log,
                     "%s: read as uint16, but every second id is 0 or 1, as if it were uint32: see "
                     "data.token_type",
                     file->path);
    if (length % (uint64_t)bytes != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its %llu bytes are not a whole number of ids of %d bytes: it is "
                        "truncated, or not a token file",
                        file->path, (unsigned long long)length, bytes);
    file->item_bytes = bytes;
    file->offset     = format->offset;
    file->n_tokens   = (int64_t)(length / (uint64_t)bytes);
    return CPL_OK;
}

/* ---- one file ---- */

/* Opens a file. The first CPL_SHARDS_KEPT_OPEN files stay open. */
static cpl_status open_bytes(cpl_shards *s, cpl_shard_file *file, const char *path)
{
    CPL_TRY(cpl_shard_file_open(file, path, s->n_kept < CPL_SHARDS_KEPT_OPEN));
    s->n_kept += file->kept;
    return CPL_OK;
}

static cpl_status open_file(cpl_shards *s, const char *path, const char *label,
                            const cpl_shard_options *options, const info *known, const cpl_log *log)
{
    cpl_shard_format format;
    cpl_shard *more = cpl_realloc(s->file, (size_t)(s->n_files + 1) * sizeof *more);
    if (!more) return CPL_ERR_MEMORY;
    s->file         = more;
    cpl_shard *file = &more[s->n_files++];
    memset(file, 0, sizeof *file);
    CPL_TRY(cpl_stop_check());
    CPL_TRY(open_bytes(s, &file->ids, path));
    file->path = file->ids.path;
    CPL_TRY(cpl_shard_format_find(&format, &file->ids));
    CPL_TRY(decide_type(file, &format, options, known, log));
    s->n_tokens += file->n_tokens;
    return find_own_labels(file, label);
}

static bool is_token_name(const char *name)
{
    return cpl_path_ends_in(name, ".npy") || cpl_path_ends_in(name, ".bin");
}

static void merge_info(cpl_shards *s, const info *known, const char *path, const cpl_log *log)
{
    if (known->vocab_size > s->vocab_size) s->vocab_size = known->vocab_size;
    if (known->eos >= 0 && s->eos >= 0 && s->eos != known->eos)
        cpl_log_warn(log, "%s: its shards.json says %lld ends a document, here it is %lld", path,
                     (long long)known->eos, (long long)s->eos);
    if (s->eos < 0) s->eos = known->eos;
}

/* Opens the files that one path of the user names. */
static cpl_status open_path(cpl_shards *s, const char *path, const char *label,
                            const cpl_shard_options *options, const cpl_log *log)
{
    info known        = {0, -1, 0};
    cpl_strings files = {0};
    bool folder       = cpl_path_is_folder(path);
    char *where       = folder ? cpl_text_copy(path) : cpl_path_folder(path);
    cpl_status status = where ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = read_info(&known, where);
    if (status == CPL_OK)
        status = cpl_paths_expand(&files, path, is_token_name, "token files (.npy, .bin)");
    if (status == CPL_OK) merge_info(s, &known, path, log);
    cpl_paths_sort(&files);
    for (int64_t i = 0; i < files.count && status == CPL_OK; i++)
        status = open_file(s, files.at[i], label, options, &known, log);
    if (status == CPL_OK)
        status = cpl_shards_check_whole(&files, s->file + (s->n_files - files.count), path, log);
    cpl_paths_free(&files);
    cpl_free(where);
    return status;
}

static cpl_status open_masks(cpl_shards *s, const cpl_shard_options *options)
{
    if (!options->masks) return CPL_OK;
    if (options->n_masks != s->n_files)
        return CPL_FAIL(CPL_ERR_INPUT, "there are %lld label masks for %lld token files",
                        (long long)options->n_masks, (long long)s->n_files);
    for (int64_t i = 0; i < s->n_files; i++) {
        cpl_shard *file = &s->file[i];
        CPL_TRY(open_bytes(s, &file->mask, options->masks[i]));
        if (file->mask.length != (uint64_t)file->n_tokens)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: %llu bytes of label mask for the %lld tokens of %s",
                            options->masks[i], (unsigned long long)file->mask.length,
                            (long long)file->n_tokens, file->path);
    }
    return CPL_OK;
}

/* ---- the end-of-text id ---- */

/* Sets *eos to the id that ends the first documents of a file's metadata. Sets -1 if these ids
 * differ or without metadata. */
static cpl_status eos_of_rows(const cpl_shard *file, int64_t *eos)
{
    enum { LOOK_ROWS = 100 };
    cpl_shard_rows rows;
    bool present = false, more = true;
    int64_t start = 0, end = 0;
    cpl_status status = CPL_OK;
    *eos              = -1;
    CPL_TRY(cpl_shard_rows_open(&rows, file->path, file->n_tokens, &present));
    if (!present) return CPL_OK;
    for (int i = 0; i < LOOK_ROWS; i++) {
        CPL_TRY_DONE(cpl_shard_rows_next(&rows, &start, &end, &more));
        if (!more || end == start) break;
        uint64_t last = 0;
        CPL_TRY_DONE(cpl_shard_tokens(file, end - 1, 1, &last));
        if (i > 0 && (int64_t)last != *eos) {
            *eos = -1;
            break;
        }
        *eos = (int64_t)last;
    }
done:
    cpl_shard_rows_close(&rows);
    return status;
}

static cpl_status warn_of_candidates(const cpl_shards *s, const cpl_log *log)
{
    cpl_shard_survey survey;
    CPL_TRY(cpl_shards_survey(s, 4 * LOOK_TOKENS, &survey));
    if (survey.n_candidate[4]) return CPL_OK;
    for (int i = 0; i < 4; i++)
        if (survey.n_candidate[i])
            cpl_log_warn(
                log,
                "%s: the end-of-text id %lld does not occur in the first %lld tokens, %llu "
                "does (%lld times); data.eos names the one that ends documents",
                s->file[0].path, (long long)s->eos, (long long)survey.n_tokens,
                (unsigned long long)survey.candidate[i], (long long)survey.n_candidate[i]);
    return CPL_OK;
}

/* Determines the end-of-text id, or compares the given id with the data. */
static cpl_status check_eos(cpl_shards *s, const cpl_log *log)
{
    int64_t rows_say = -1;
    for (int64_t i = 0; i < s->n_files && rows_say < 0; i++)
        if (s->file[i].n_tokens) CPL_TRY(eos_of_rows(&s->file[i], &rows_say));
    if (s->eos < 0) s->eos = rows_say;
    if (rows_say >= 0 && rows_say != s->eos)
        cpl_log_warn(log,
                     "%s: by its metadata its documents end in the id %lld, the end-of-text id is "
                     "%lld",
                     s->file[0].path, (long long)rows_say, (long long)s->eos);
    bool unsure = rows_say < 0 && s->eos >= 0 && s->n_tokens;
    return unsure ? warn_of_candidates(s, log) : CPL_OK;
}

/* ---- all ---- */

static cpl_status open_all(cpl_shards *s, const char *const *paths, int64_t n_paths,
                           const cpl_shard_options *options, const cpl_log *log)
{
    if (n_paths < 1) return CPL_FAIL(CPL_ERR_INPUT, "no token files are named");
    s->eos        = options->eos;
    s->vocab_size = options->vocab_size;
    for (int64_t i = 0; i < n_paths; i++)
        CPL_TRY(open_path(s, paths[i], options->labels ? options->labels[i] : NULL, options, log));
    if (options->vocab_size) {
        if (s->vocab_size > options->vocab_size)
            cpl_log_warn(log, "%s: made with a vocabulary of %lld ids, read with one of %lld",
                         s->file[0].path, (long long)s->vocab_size, (long long)options->vocab_size);
        s->vocab_size = options->vocab_size;
    }
    CPL_TRY(open_masks(s, options));
    CPL_TRY(number_labels(s));
    return check_eos(s, log);
}

cpl_status cpl_shards_open(cpl_shards **shards, const char *const *paths, int64_t n_paths,
                           const cpl_shard_options *options, const cpl_log *log)
{
    *shards       = NULL;
    cpl_shards *s = cpl_alloc(sizeof *s);
    if (!s) return CPL_ERR_MEMORY;
    memset(s, 0, sizeof *s);
    cpl_status status = open_all(s, paths, n_paths, options, log);
    if (status != CPL_OK) {
        cpl_shards_close(s);
        return status;
    }
    *shards = s;
    return CPL_OK;
}

void cpl_shards_close(cpl_shards *s)
{
    if (!s) return;
    for (int64_t i = 0; i < s->n_files; i++) {
        cpl_shard *file = &s->file[i];
        cpl_shard_file_close(&file->ids);
        cpl_shard_file_close(&file->mask);
        cpl_paths_free(&file->own_labels);
        cpl_free(file->label);
    }
    cpl_paths_free(&s->labels);
    cpl_free(s->file);
    cpl_free(s);
}
