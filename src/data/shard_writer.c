/* shard_writer.c - see shard_writer.h */
#include "data/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/file.h"
#include "io/paths.h"

/* The files of the documents of one source, or of all sources without by_source. */
typedef struct branch {
    char *label;  /* NULL for all sources */
    char *prefix; /* "" or "<folder of the label>/" */
    cpl_shard_part part;
    bool open;
    int number;      /* number of the next part */
    size_t existing; /* bytes of its folder's path that existed before: see cpl_path_existing */
} branch;

struct cpl_shard_writer {
    cpl_shard_writer_settings settings;
    int item_bytes, digits; /* digits of the writer's number */
    branch **branches;      /* a branch keeps its address: zlib stores a pointer to itself */
    int64_t n_branches, n_documents, n_tokens;
    cpl_text files;  /* the JSON list of finished files */
    size_t existing; /* bytes of the folder's path that existed before: see cpl_path_existing */
    bool finished;
};

/* ---- existing files ---- */

/* Sets the name "shards.json", or with several writers a name for this writer. */
static void json_name(const cpl_shard_writer *w, char out[64])
{
    if (w->settings.n_writers > 1)
        snprintf(out, 64, "shards-%0*lld.json", w->digits, (long long)w->settings.writer);
    else
        snprintf(out, 64, "shards.json");
}

static bool is_part_or_index(const char *name)
{
    return strncmp(name, "part-", 5) == 0 || strncmp(name, "shards", 6) == 0;
}

/* Removes one old file. Returns CPL_ERR_INPUT without settings.replace. */
static cpl_status clear_file(const cpl_shard_writer *w, const char *path)
{
    if (!w->settings.replace)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: the folder has token files already (%s): choose another folder, or "
                        "replace them with `couplet tokenize encode --overwrite`",
                        w->settings.folder, path);
    if (unlink(path) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
}

/* Removes old parts, including those of a killed writer, since readers would read them together
 * with the new parts. The index is removed first, so that remaining files are never considered
 * complete. */
static cpl_status clear_old_parts(const cpl_shard_writer *w)
{
    char part[64], json[64];
    cpl_strings old = {0};
    snprintf(part, sizeof part, "part-%0*lld-", w->digits, (long long)w->settings.writer);
    json_name(w, json);
    cpl_status status = cpl_paths_below(&old, w->settings.folder, is_part_or_index);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < old.count && status == CPL_OK; i++) {
            const char *name = strrchr(old.at[i], '/') + 1;
            bool index       = strcmp(name, json) == 0;
            if (pass == 0 ? index : !index && strncmp(name, part, strlen(part)) == 0)
                status = clear_file(w, old.at[i]);
        }
    cpl_paths_free(&old);
    return status;
}

/* ---- branches ---- */

/* Appends a label as the name of a folder. Bytes other than letters, digits and "-_." become
 * %XX. */
static void put_safe(cpl_text *out, const char *label)
{
    for (const char *c = label; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
        bool safe   = letter || (*c >= '0' && *c <= '9') || *c == '-' || *c == '_' ||
                    (*c == '.' && c > label);
        if (safe)
            cpl_text_char(out, *c);
        else
            cpl_text_printf(out, "%%%02X", (unsigned char)*c);
    }
    if (!*label) cpl_text_char(out, '%');
}

static void free_branch(branch *b)
{
    if (!b) return;
    if (b->open) cpl_shard_part_abort(&b->part);
    cpl_free(b->label);
    cpl_free(b->prefix);
    cpl_free(b);
}

/* Returns a new branch, or NULL if memory is not available. */
static branch *new_branch(const char *label)
{
    cpl_text text = {0};
    branch *b     = cpl_alloc(sizeof *b);
    if (!b) return NULL;
    memset(b, 0, sizeof *b);
    if (label) {
        put_safe(&text, label);
        cpl_text_char(&text, '/');
        b->label = cpl_text_copy(label);
    }
    b->prefix = text.failed ? NULL : cpl_text_copy(text.bytes ? text.bytes : "");
    cpl_text_free(&text);
    if (b->prefix && (b->label || !label)) return b;
    free_branch(b);
    return NULL;
}

static cpl_status find_branch(cpl_shard_writer *w, const char *label, branch **found)
{
    if (!w->settings.by_source) label = NULL;
    for (int64_t i = 0; i < w->n_branches; i++)
        if (!label || strcmp(w->branches[i]->label, label) == 0) {
            *found = w->branches[i];
            return CPL_OK;
        }
    branch **more = cpl_realloc(w->branches, (size_t)(w->n_branches + 1) * sizeof *more);
    if (!more) return CPL_ERR_MEMORY;
    w->branches = more;
    *found      = new_branch(label);
    if (!*found) return CPL_ERR_MEMORY;
    more[w->n_branches++] = *found;
    return CPL_OK;
}

/* Sets `out` to the path of the branch's folder, or of its part `number` without an ending. */
static cpl_status path_of(cpl_text *out, const cpl_shard_writer *w, const branch *b, int number)
{
    cpl_text_clear(out);
    cpl_text_printf(out, "%s/%s", w->settings.folder, b->prefix);
    if (number >= 0)
        cpl_text_printf(out, "part-%0*lld-%05d", w->digits, (long long)w->settings.writer, number);
    return cpl_text_status(out);
}

static cpl_status open_part(cpl_shard_writer *w, branch *b)
{
    cpl_text path     = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(path_of(&path, w, b, -1));
    if (b->number == 0) b->existing = cpl_path_existing(path.bytes);
    CPL_TRY_DONE(cpl_folder_make(path.bytes));
    CPL_TRY_DONE(path_of(&path, w, b, b->number));
    CPL_TRY_DONE(cpl_shard_part_open(&b->part, path.bytes, w->item_bytes));
    b->open = true;
    b->number++;
done:
    cpl_text_free(&path);
    return status;
}

/* Removes the parts of a branch, since parts without an index would be read as a complete data set
 * and prevent a second attempt. */
static void remove_parts(cpl_shard_writer *w, branch *b)
{
    cpl_text path = {0};
    if (b->open) cpl_shard_part_abort(&b->part);
    b->open = false;
    for (int i = 0; i < b->number; i++)
        if (path_of(&path, w, b, i) == CPL_OK) cpl_shard_part_remove(path.bytes);
    if (b->number && path_of(&path, w, b, -1) == CPL_OK) cpl_folder_unmake(path.bytes, b->existing);
    cpl_text_free(&path);
}

/* ---- shards.json ---- */

static void put_string(cpl_text *out, const char *string)
{
    cpl_text repaired = {0};
    cpl_utf8_repair(&repaired, string, strlen(string));
    cpl_text_char(out, '"');
    for (const char *c = repaired.bytes; c && *c; c++) {
        if ((unsigned char)*c < 0x20)
            cpl_text_printf(out, "\\u%04x", (unsigned)*c);
        else if (*c == '"' || *c == '\\')
            cpl_text_printf(out, "\\%c", *c);
        else
            cpl_text_char(out, *c);
    }
    cpl_text_char(out, '"');
    out->failed |= repaired.failed;
    cpl_text_free(&repaired);
}

static void put_member(cpl_text *out, const char *name, const char *string)
{
    cpl_text_printf(out, "  \"%s\": ", name);
    if (string)
        put_string(out, string);
    else
        cpl_text_printf(out, "null");
    cpl_text_printf(out, ",\n");
}

static void put_number(cpl_text *out, const char *name, int64_t number)
{
    cpl_text_printf(out, "  \"%s\": %lld,\n", name, (long long)number);
}

static cpl_status write_json(cpl_shard_writer *w, const cpl_document_counts *counts)
{
    char name[64];
    cpl_text out = {0};
    json_name(w, name);
    char *path = cpl_path_join(w->settings.folder, name);
    cpl_text_printf(&out, "{\n  \"format\": \"couplet token shards 1\",\n");
    put_member(&out, "dtype", w->item_bytes == 2 ? "uint16" : "uint32");
    put_number(&out, "eos_token_id", w->settings.eos);
    put_number(&out, "vocab_size", w->settings.vocab_size);
    put_member(&out, "tokenizer", w->settings.tokenizer_path);
    put_member(&out, "tokenizer_hash", w->settings.tokenizer_hash);
    put_member(&out, "unicode", w->settings.unicode_version);
    put_number(&out, "documents", w->n_documents);
    put_number(&out, "tokens", w->n_tokens);
    put_number(&out, "text_bytes", counts->text_bytes);
    put_number(&out, "empty_documents", counts->empty);
    put_number(&out, "bad_documents", counts->bad);
    put_number(&out, "repaired_sequences", counts->repaired);
    cpl_text_printf(&out, "  \"files\": [%s\n  ]\n}\n", w->files.bytes ? w->files.bytes : "");
    cpl_status status = path ? cpl_text_status(&out) : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_text_status(&w->files);
    if (status == CPL_OK) status = cpl_file_write_atomic(path, out.bytes, out.length);
    cpl_text_free(&out);
    cpl_free(path);
    return status;
}

/* Completes the branch's part and enters it in the list of files. */
static cpl_status close_part(cpl_shard_writer *w, branch *b)
{
    cpl_text name = {0};
    cpl_text_printf(&name, "%spart-%0*lld-%05d.npy", b->prefix, w->digits,
                    (long long)w->settings.writer, b->number - 1);
    cpl_text_printf(&w->files, "%s\n    {\"name\": ", w->files.length ? "," : "");
    put_string(&w->files, name.bytes ? name.bytes : "");
    cpl_text_printf(&w->files, ", \"documents\": %lld, \"tokens\": %lld}",
                    (long long)b->part.n_documents, (long long)b->part.n_tokens);
    w->files.failed |= name.failed;
    cpl_text_free(&name);
    b->open = false;
    return cpl_shard_part_commit(&b->part);
}

/* ---- the writer ---- */

static cpl_status check_settings(const cpl_shard_writer_settings *s)
{
    if (s->vocab_size < 1 || s->vocab_size > INT32_MAX)
        return CPL_FAIL(CPL_ERR_INPUT, "token shards: a vocabulary of %lld ids is not possible",
                        (long long)s->vocab_size);
    if (s->eos < 0 || s->eos >= s->vocab_size)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "token shards: the end-of-text id %lld is outside the vocabulary of %lld",
                        (long long)s->eos, (long long)s->vocab_size);
    if (s->max_tokens < 0 || s->n_writers < 0 || s->n_writers > 99999 || s->writer < 0 ||
        s->writer >= (s->n_writers ? s->n_writers : 1))
        return CPL_FAIL(CPL_ERR_INPUT, "token shards: writer %lld of %lld, %lld tokens a file",
                        (long long)s->writer, (long long)s->n_writers, (long long)s->max_tokens);
    return CPL_OK;
}

static cpl_status start(cpl_shard_writer *w, const cpl_shard_writer_settings *s)
{
    w->settings = *s;
    if (!s->max_tokens) w->settings.max_tokens = (int64_t)1 << 30;
    w->item_bytes = s->vocab_size <= 65536 ? 2 : 4;
    for (int64_t reach = 1; reach < s->n_writers + 1 || !w->digits; reach *= 10) w->digits++;
    w->existing = cpl_path_existing(s->folder);
    CPL_TRY(cpl_folder_make(s->folder));
    return clear_old_parts(w);
}

cpl_status cpl_shard_writer_open(cpl_shard_writer **writer,
                                 const cpl_shard_writer_settings *settings)
{
    *writer = NULL;
    CPL_TRY(check_settings(settings));
    cpl_shard_writer *w = cpl_alloc(sizeof *w);
    if (!w) return CPL_ERR_MEMORY;
    memset(w, 0, sizeof *w);
    cpl_status status = start(w, settings);
    if (status != CPL_OK) {
        cpl_shard_writer_close(w);
        return status;
    }
    *writer = w;
    return CPL_OK;
}

void cpl_shard_writer_close(cpl_shard_writer *w)
{
    if (!w) return;
    for (int64_t i = 0; i < w->n_branches; i++) {
        if (!w->finished) remove_parts(w, w->branches[i]);
        free_branch(w->branches[i]);
    }
    if (!w->finished) cpl_folder_unmake(w->settings.folder, w->existing);
    cpl_text_free(&w->files);
    cpl_free(w->branches);
    cpl_free(w);
}

int64_t cpl_shard_writer_tokens(const cpl_shard_writer *w)
{
    return w->n_tokens;
}

/* Returns the path of a document's file as the rows name it. */
static const char *below_root(const cpl_shard_writer *w, const char *path)
{
    const char *root = w->settings.source_root;
    size_t n         = root ? strlen(root) : 0;
    while (n && root[n - 1] == '/') n--;
    if (!n || strncmp(path, root, n) != 0 || path[n] != '/') return path;
    while (path[n] == '/') n++;
    return path + n;
}

static cpl_status check_ids(const cpl_shard_writer *w, const cpl_document *document,
                            const int32_t *ids, int64_t n_ids)
{
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= w->settings.vocab_size)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: document %lld has the id %ld, outside the vocabulary of %lld",
                            document->path, (long long)document->line, (long)ids[i],
                            (long long)w->settings.vocab_size);
    return CPL_OK;
}

cpl_status cpl_shard_writer_add(cpl_shard_writer *w, const cpl_document *document,
                                const int32_t *ids, int64_t n_ids)
{
    branch *b = NULL;
    if (n_ids == 0) return CPL_OK;
    CPL_TRY(check_ids(w, document, ids, n_ids));
    CPL_TRY(find_branch(w, document->source, &b));
    int64_t eos  = ids[n_ids - 1] == w->settings.eos ? -1 : w->settings.eos;
    int64_t more = n_ids + (eos >= 0);
    if (b->open && b->part.n_tokens + more > w->settings.max_tokens) CPL_TRY(close_part(w, b));
    if (!b->open) CPL_TRY(open_part(w, b));
    CPL_TRY(cpl_shard_part_add(&b->part, document, below_root(w, document->path), ids, n_ids, eos));
    w->n_documents++;
    w->n_tokens += more;
    return CPL_OK;
}

cpl_status cpl_shard_writer_finish(cpl_shard_writer *w, const cpl_document_counts *counts)
{
    for (int64_t i = 0; i < w->n_branches; i++)
        if (w->branches[i]->open) CPL_TRY(close_part(w, w->branches[i]));
    CPL_TRY(write_json(w, counts));
    w->finished = true;
    return CPL_OK;
}
