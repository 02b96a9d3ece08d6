/* documents.h - reads documents in order from files of JSON lines (Dolma) or plain text.
 *
 * Room:    data. Uses io/stream (compression), pieces (lines), json_pull (fields).
 * Files:   .txt is plain text, .json and .jsonl are JSON lines, both also with .gz or .zst
 *          appended; any other name is JSON lines if the first byte that is not blank is '{', else
 *          text.
 * Text:    a document is well-formed UTF-8 and never empty. It may hold NULs: use the length. White
 *          space at the ends is removed as Python's str.strip does, unless turned off.
 * Bad:     a line that is no JSON object or has no text string, or that is too long, is counted,
 *          reported (a few per file) and skipped, or ends the reading; blank lines are ignored. A
 *          compressed file that is cut or damaged always ends the reading. */
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
    const char *text_field, *id_field, *source_field; /* dots reach into objects */
    const char *default_source; /* of documents that name none; NULL: their folder's name */
    bool strip;
    cpl_bad_choice bad;
    cpl_surrogate_choice lone_surrogate;
    cpl_split_choice split; /* of plain text */
    const char *separator;  /* for CPL_SPLIT_SEPARATOR */
    size_t max_line_bytes;  /* also of a document of plain text */
    int zstd_window_log;    /* 10 to 31 */
} cpl_document_settings;

/* text, id, source; strip; skip; whole file; "<|endoftext|>"; 256 MiB; 27. */
cpl_document_settings cpl_document_defaults(void);

/* The strings belong to the reader and are valid until its next call. */
typedef struct cpl_document {
    const char *text;
    size_t length;      /* bytes of text, at least 1 */
    const char *id;     /* "<path>:<line>" if the document has none; ends at its first NUL */
    const char *source; /* the same */
    const char *path;   /* as given to cpl_documents_open */
    int64_t line;       /* from 1: the line, or the document's number in text not cut by lines */
} cpl_document;

typedef struct cpl_document_counts {
    int64_t documents, text_bytes; /* given out */
    int64_t bad, empty;            /* skipped: unusable; without text */
    int64_t repaired;              /* ill-formed sequences and lone surrogates made U+FFFD */
    int64_t lone_surrogates;       /* found in JSON, in returned or skipped documents */
} cpl_document_counts;

/* Adds each member of `more`. */
void cpl_document_counts_add(cpl_document_counts *total, const cpl_document_counts *more);

typedef struct cpl_documents cpl_documents;

/* Opens one file, which may be a pipe that the user named. `log` may be NULL. */
CPL_NODISCARD cpl_status cpl_documents_open(cpl_documents **documents, const char *path,
                                            const cpl_document_settings *settings,
                                            const cpl_log *log);
void cpl_documents_close(cpl_documents *documents); /* NULL is allowed */

/* Sets `*document` to the next one and `*more` to true, or `*more` to false at the end. */
CPL_NODISCARD cpl_status cpl_documents_next(cpl_documents *documents, cpl_document *document,
                                            bool *more);

/* The counts so far in this file. */
cpl_document_counts cpl_documents_counts(const cpl_documents *documents);

#endif /* CPL_DATA_DOCUMENTS_H */
