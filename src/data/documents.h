/* documents.h - reads documents in order from files of JSON lines (Dolma) or plain text.
 *
 * Room:    data. Uses io/stream (compression), pieces (lines), json_pull (fields).
 * Files:   .txt is plain text, .json and .jsonl are JSON lines. Each name may also end in .gz or
 *          .zst. A file of any other name is JSON lines if the first byte that is not blank is '{',
 *          else text.
 * Text:    a document is well-formed UTF-8 and never empty. It may hold NULs: use the length. White
 *          space at the ends is removed as Python's str.strip does, unless turned off.
 * Bad:     a line that is not a JSON object, has no text string or is too long is counted, reported
 *          (a few per file) and skipped, or ends the reading. Blank lines are ignored. A truncated
 *          or damaged compressed file always ends the reading. */
#ifndef CPL_DATA_DOCUMENTS_H
#define CPL_DATA_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "data/settings.h"
#include "settings/settings.h"

typedef enum cpl_surrogate_choice {
    CPL_SURROGATE_SKIP,   /* a line whose text, id or source has a lone surrogate is bad (Dolma) */
    CPL_SURROGATE_REPLACE /* the lone surrogate becomes U+FFFD */
} cpl_surrogate_choice;

/* The strings are not owned and must outlive the reader. */
typedef struct cpl_document_settings {
    const char *text_field, *id_field, *source_field; /* dots select nested values */
    const char *default_source; /* source if a document has no source; NULL for the folder's name */
    bool strip;
    cpl_bad_choice bad;
    cpl_surrogate_choice lone_surrogate;
    cpl_split_choice split; /* end of a document of plain text */
    const char *separator;  /* for CPL_SPLIT_SEPARATOR */
    size_t max_line_bytes;  /* limit of a line, and of a document of plain text */
    int zstd_window_log;    /* limit of the window, log2 of bytes, 10 to 31 */
} cpl_document_settings;

/* Returns the defaults: the fields text, id and source, strip, bad documents skipped, a file as one
 * document, the separator "<|endoftext|>", 256 MiB, and a window of 27. */
cpl_document_settings cpl_document_defaults(void);

/* The strings belong to the reader and are valid until its next call. */
typedef struct cpl_document {
    const char *text;
    size_t length;      /* bytes of text, at least 1 */
    const char *id;     /* the document's id or "<path>:<line>"; ends at its first NUL */
    const char *source; /* ends at its first NUL */
    const char *path;   /* as given to cpl_documents_open */
    int64_t line;       /* number of the line, or of the document in text not split by lines, from
                           1 */
} cpl_document;

typedef struct cpl_document_counts {
    int64_t documents, text_bytes; /* documents returned, and bytes of their text */
    int64_t bad, empty;            /* documents skipped: unusable, without text */
    int64_t repaired;              /* ill-formed sequences and lone surrogates replaced by U+FFFD */
    int64_t lone_surrogates;       /* found in JSON, in returned or skipped documents */
} cpl_document_counts;

/* Adds each member of `more` to `total`. */
void cpl_document_counts_add(cpl_document_counts *total, const cpl_document_counts *more);

typedef struct cpl_documents cpl_documents;

/* Opens one file, which may be a pipe that the user named. `log` may be NULL. */
CPL_NODISCARD cpl_status cpl_documents_open(cpl_documents **documents, const char *path,
                                            const cpl_document_settings *settings,
                                            const cpl_log *log);
void cpl_documents_close(cpl_documents *documents); /* NULL is allowed */

/* Sets `*document` to the next document and `*more` to true, or `*more` to false at the end. */
CPL_NODISCARD cpl_status cpl_documents_next(cpl_documents *documents, cpl_document *document,
                                            bool *more);

/* Returns the counts so far in this file. */
cpl_document_counts cpl_documents_counts(const cpl_documents *documents);

#endif /* CPL_DATA_DOCUMENTS_H */
