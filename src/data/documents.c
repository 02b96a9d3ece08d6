/* documents.c - see documents.h */
#include "data/documents.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/json_pull.h"
#include "io/paths.h"
#include "io/stream.h"

enum { TEXT, ID, SOURCE, N_FIELDS, REPORTS_PER_FILE = 5 };

struct cpl_documents {
    cpl_document_settings settings;
    cpl_log log;
    char *path, *folder; /* folder: the label of documents without a source */
    cpl_stream *stream;
    cpl_pieces pieces;
    bool json, summed_up;
    int64_t line;     /* line of the last piece */
    int64_t ordinal;  /* number of the last block of plain text */
    cpl_text block;   /* lines up to a blank line */
    cpl_text plain;   /* repaired plain text */
    cpl_text made_id; /* "<path>:<line>" */
    cpl_json_field fields[N_FIELDS];
    cpl_document_counts counts;
};

/* One document before it is stripped. */
typedef cpl_piece found;

cpl_document_settings cpl_document_defaults(void)
{
    return (cpl_document_settings){
        .text_field      = "text",
        .id_field        = "id",
        .source_field    = "source",
        .strip           = true,
        .separator       = "<|endoftext|>",
        .max_line_bytes  = (size_t)1 << 28,
        .zstd_window_log = CPL_ZSTD_WINDOW_LOG,
    };
}

void cpl_document_counts_add(cpl_document_counts *total, const cpl_document_counts *more)
{
    total->documents += more->documents;
    total->text_bytes += more->text_bytes;
    total->bad += more->bad;
    total->empty += more->empty;
    total->repaired += more->repaired;
    total->lone_surrogates += more->lone_surrogates;
}

cpl_document_counts cpl_documents_counts(const cpl_documents *d)
{
    return d->counts;
}

/* ---- opening ---- */

static cpl_status check_settings(const cpl_document_settings *s)
{
    if (strcmp(s->text_field, s->id_field) == 0 || strcmp(s->text_field, s->source_field) == 0 ||
        strcmp(s->id_field, s->source_field) == 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the fields of text, id and source must differ; they are \"%s\", \"%s\" "
                        "and \"%s\"",
                        s->text_field, s->id_field, s->source_field);
    if (s->split == CPL_SPLIT_SEPARATOR && (!s->separator || !*s->separator))
        return CPL_FAIL(CPL_ERR_INPUT, "plain text cannot be cut at an empty separator");
    if (s->zstd_window_log < 10 || s->zstd_window_log > CPL_ZSTD_WINDOW_LOG_MAX)
        return CPL_FAIL(CPL_ERR_INPUT, "zstd_window_log is %d; it must be 10 to %d",
                        s->zstd_window_log, CPL_ZSTD_WINDOW_LOG_MAX);
    return CPL_OK;
}

static cpl_status decide_format(cpl_documents *d)
{
    const char *head = NULL;
    size_t length = 0, i = 0;
    if (cpl_path_has_extension(d->path, ".txt")) return CPL_OK;
    d->json = cpl_path_has_extension(d->path, ".json") || cpl_path_has_extension(d->path, ".jsonl");
    if (d->json) return CPL_OK;
    CPL_TRY(cpl_stream_peek(d->stream, &head, &length));
    if (length >= 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0) i = 3;
    while (i < length && strchr(" \t\r\n", head[i]) && head[i]) i++;
    d->json = i < length && head[i] == '{';
    return CPL_OK;
}

static cpl_status start(cpl_documents *d, const char *path)
{
    const cpl_document_settings *s = &d->settings;
    const char *names[N_FIELDS]    = {s->text_field, s->id_field, s->source_field};
    for (int i = 0; i < N_FIELDS; i++) d->fields[i].path = names[i];
    d->path   = cpl_text_copy(path);
    d->folder = s->default_source ? cpl_text_copy(s->default_source) : cpl_path_label(path);
    if (!d->path || !d->folder) return CPL_ERR_MEMORY;
    CPL_TRY(cpl_stream_open_given(&d->stream, path, s->zstd_window_log));
    CPL_TRY(decide_format(d));
    const char *delimiter = "\n";
    if (!d->json && s->split == CPL_SPLIT_FILE) delimiter = "";
    if (!d->json && s->split == CPL_SPLIT_SEPARATOR) delimiter = s->separator;
    return cpl_pieces_init(&d->pieces, d->stream, delimiter, s->max_line_bytes);
}

cpl_status cpl_documents_open(cpl_documents **documents, const char *path,
                              const cpl_document_settings *settings, const cpl_log *log)
{
    *documents = NULL;
    CPL_TRY(check_settings(settings));
    cpl_documents *d = cpl_alloc(sizeof *d);
    if (!d) return CPL_ERR_MEMORY;
    memset(d, 0, sizeof *d);
    d->settings = *settings;
    if (log) d->log = *log;
    cpl_status status = start(d, path);
    if (status != CPL_OK) {
        cpl_documents_close(d);
        return status;
    }
    *documents = d;
    return CPL_OK;
}

void cpl_documents_close(cpl_documents *d)
{
    if (!d) return;
    for (int i = 0; i < N_FIELDS; i++) cpl_text_free(&d->fields[i].value);
    cpl_text_free(&d->block);
    cpl_text_free(&d->plain);
    cpl_text_free(&d->made_id);
    cpl_pieces_free(&d->pieces);
    cpl_stream_close(d->stream);
    cpl_free(d->folder);
    cpl_free(d->path);
    cpl_free(d);
}

/* ---- bad documents ---- */

static int64_t number_of(const cpl_documents *d)
{
    bool lines = d->json || d->settings.split == CPL_SPLIT_LINE;
    return lines ? d->line : d->ordinal;
}

/* Counts and reports a document that cannot be used. Returns CPL_ERR_INPUT if bad documents end the
 * reading. */
static cpl_status bad(cpl_documents *d, const char *format, ...) CPL_PRINTF(2, 3);
static cpl_status bad(cpl_documents *d, const char *format, ...)
{
    char why[160];
    const char *what = d->json || d->settings.split == CPL_SPLIT_LINE ? "line" : "document";
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    d->counts.bad++;
    if (d->settings.bad == CPL_BAD_STOP)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: %s %lld: %s", d->path, what, (long long)number_of(d),
                        why);
    if (d->counts.bad <= REPORTS_PER_FILE)
        cpl_log_warn(&d->log, "%s: %s %lld: %s; skipped", d->path, what, (long long)number_of(d),
                     why);
    return CPL_OK;
}

static void report_rest(cpl_documents *d)
{
    if (d->counts.bad > REPORTS_PER_FILE && !d->summed_up)
        cpl_log_warn(&d->log, "%s: %lld documents could not be used, %lld of them not listed",
                     d->path, (long long)d->counts.bad,
                     (long long)d->counts.bad - REPORTS_PER_FILE);
    d->summed_up = true;
}

/* ---- finding the next document ---- */

static bool is_blank(const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != ' ' && bytes[i] != '\t' && bytes[i] != '\r' && bytes[i] != '\f')
            return false;
    return true;
}

static cpl_status next_piece(cpl_documents *d, found *piece)
{
    CPL_TRY(cpl_pieces_next(&d->pieces, piece));
    d->line++;
    if (d->line == 1 && piece->length >= 3 && memcmp(piece->bytes, "\xEF\xBB\xBF", 3) == 0) {
        piece->bytes += 3;
        piece->length -= 3;
    }
    return CPL_OK;
}

/* Reads the next run of lines that are not blank, joined by line ends. */
static cpl_status next_block(cpl_documents *d, found *block)
{
    found line = {0};
    memset(block, 0, sizeof *block);
    cpl_text_clear(&d->block);
    bool any = false;
    for (;;) {
        CPL_TRY(next_piece(d, &line));
        bool blank = !line.too_long && is_blank(line.bytes, line.length);
        if (line.end || (blank && any)) break;
        if (blank) continue;
        any = true;
        if (d->block.length + line.length >= d->settings.max_line_bytes) line.too_long = true;
        block->too_long |= line.too_long;
        if (block->too_long) continue;
        if (d->block.length) cpl_text_char(&d->block, '\n');
        cpl_text_append(&d->block, line.bytes, line.length);
    }
    block->end    = !any;
    block->bytes  = d->block.bytes ? d->block.bytes : "";
    block->length = d->block.length;
    return cpl_text_status(&d->block);
}

static cpl_status next_found(cpl_documents *d, found *f)
{
    if (!d->json && d->settings.split == CPL_SPLIT_BLANK_LINE)
        CPL_TRY(next_block(d, f));
    else
        CPL_TRY(next_piece(d, f));
    d->ordinal++;
    return CPL_OK;
}

/* ---- the content of a document ---- */

static cpl_status fields_status(const cpl_documents *d)
{
    for (int i = 0; i < N_FIELDS; i++) CPL_TRY(cpl_text_status(&d->fields[i].value));
    return CPL_OK;
}

static const char *string_or(const cpl_json_field *field, const char *otherwise)
{
    bool usable = field->kind == CPL_JSON_STRING || field->kind == CPL_JSON_NUMBER;
    return usable && field->value.length ? field->value.bytes : otherwise;
}

/* Sets text, id and source of `doc`. The text stays NULL if the line is bad or blank. */
static cpl_status read_json(cpl_documents *d, const found *f, cpl_document *doc)
{
    size_t where       = 0;
    int64_t surrogates = 0, repaired = 0;
    if (is_blank(f->bytes, f->length)) return CPL_OK;
    const char *why = cpl_json_pick(f->bytes, f->length, d->fields, N_FIELDS, &where);
    CPL_TRY(fields_status(d));
    if (why) return bad(d, "%s (at byte %zu of the line)", why, where + 1);
    for (int i = 0; i < N_FIELDS; i++) {
        surrogates += d->fields[i].lone_surrogates;
        repaired += d->fields[i].repaired;
    }
    d->counts.lone_surrogates += surrogates;
    cpl_json_field *text = &d->fields[TEXT];
    if (text->kind == CPL_JSON_ABSENT)
        return bad(d, "the object has no \"%.64s\"", d->settings.text_field);
    if (text->kind != CPL_JSON_STRING)
        return bad(d, "\"%.64s\" is not a string", d->settings.text_field);
    if (surrogates && d->settings.lone_surrogate == CPL_SURROGATE_SKIP)
        return bad(d, "a \\u escape of half a surrogate pair");
    d->counts.repaired += repaired + surrogates;
    doc->text   = text->value.bytes ? text->value.bytes : "";
    doc->length = text->value.length;
    doc->id     = string_or(&d->fields[ID], NULL);
    doc->source = string_or(&d->fields[SOURCE], NULL);
    return CPL_OK;
}

static cpl_status read_plain(cpl_documents *d, const found *f, cpl_document *doc)
{
    size_t length = f->length;
    bool lines    = d->settings.split == CPL_SPLIT_LINE;
    if (lines && length && f->bytes[length - 1] == '\r') length--;
    if (lines && length == 0) return CPL_OK;
    cpl_text_clear(&d->plain);
    d->counts.repaired += cpl_utf8_repair(&d->plain, f->bytes, length);
    CPL_TRY(cpl_text_status(&d->plain));
    doc->text   = d->plain.bytes;
    doc->length = d->plain.length;
    return CPL_OK;
}

/* Returns whether Python's str.strip treats c as white space: c has Unicode's property White_Space,
 * or is 1C to 1F. */
static bool is_python_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Strips well-formed UTF-8 as Python's str.strip does. */
static void strip(cpl_document *doc)
{
    const unsigned char *begin = (const unsigned char *)doc->text, *end = begin + doc->length;
    while (begin < end) {
        int step = cpl_utf8_length(begin, (size_t)(end - begin));
        if (!is_python_space(cpl_utf8_decode(begin, step))) break;
        begin += step;
    }
    while (end > begin) {
        const unsigned char *last = end - 1;
        while ((*last & 0xC0) == 0x80) last--;
        if (!is_python_space(cpl_utf8_decode(last, (int)(end - last)))) break;
        end = last;
    }
    doc->text   = (const char *)begin;
    doc->length = (size_t)(end - begin);
}

/* Completes `doc`. Returns false if its text is empty. */
static bool finish(cpl_documents *d, cpl_document *doc)
{
    if (d->settings.strip) strip(doc);
    if (!doc->length) {
        d->counts.empty++;
        return false;
    }
    doc->path = d->path;
    doc->line = number_of(d);
    if (!doc->source) doc->source = d->folder;
    if (!doc->id) {
        cpl_text_clear(&d->made_id);
        cpl_text_printf(&d->made_id, "%s:%lld", d->path, (long long)doc->line);
        doc->id = d->made_id.bytes;
    }
    d->counts.documents++;
    d->counts.text_bytes += (int64_t)doc->length;
    return true;
}

cpl_status cpl_documents_next(cpl_documents *d, cpl_document *document, bool *more)
{
    *more = false;
    for (;;) {
        found f = {0};
        memset(document, 0, sizeof *document);
        CPL_TRY(next_found(d, &f));
        if (f.end) break;
        if (f.too_long) {
            CPL_TRY(bad(d, "longer than data.max_line_bytes, %zu: raise it",
                        d->settings.max_line_bytes));
            continue;
        }
        CPL_TRY(d->json ? read_json(d, &f, document) : read_plain(d, &f, document));
        if (!document->text || !finish(d, document)) continue;
        *more = true;
        return cpl_text_status(&d->made_id);
    }
    report_rest(d);
    return CPL_OK;
}
