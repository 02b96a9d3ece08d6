/* event_file.h - the event files that TensorBoard reads: messages of protocol buffers in frames.
 *
 * Room:    report. Knows tags and numbers; which figures there are is the caller's.
 * Frame:   length uint64 LE, masked CRC32C of these 8 bytes, the message, its masked CRC32C
 *          (TensorFlow, tsl/lib/io/record_writer.h, tsl/lib/hash/crc32c.h).
 * Message: tensorflow.Event (event.proto, summary.proto, tensor.proto; field numbers in
 *          event_file.c). A file begins with the event `file_version`.
 * Values:  of one event are collected in a cpl_text; a failed allocation stays in its `failed`. */
#ifndef CPL_REPORT_EVENT_FILE_H
#define CPL_REPORT_EVENT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* CRC32C (Castagnoli) of the bytes. */
uint32_t cpl_event_crc32c(const void *bytes, size_t length);

/* Appends one value of a summary: a number, a histogram of (count) numbers, a text in Markdown.
 * Numbers that are not finite are left out of a histogram. */
void cpl_event_scalar(cpl_text *values, const char *tag, double value);
void cpl_event_histogram(cpl_text *values, const char *tag, const double *numbers, int64_t count);
void cpl_event_words(cpl_text *values, const char *tag, const char *words, size_t length);

/* Appends a whole frame. `seconds`: since 1970. */
void cpl_event_file_version(cpl_text *file, double seconds);
void cpl_event_start(cpl_text *file, double seconds,
                     int64_t step); /* events from `step` on are new */
void cpl_event_summary(cpl_text *file, double seconds, int64_t step, const cpl_text *values);

/* ---- a frame that was written: a head, the message, 4 bytes ---- */
enum { CPL_EVENT_HEAD = 12, CPL_EVENT_TAIL = 4 };

/* Sets the length of the message; false: not a frame's head. */
bool cpl_event_head(const char head[CPL_EVENT_HEAD], uint64_t *length);

/* Whether the message, which CPL_EVENT_TAIL bytes follow, has its check sum. */
bool cpl_event_is_whole(const char *body, size_t length);

/* The step of an event as it is written here; 0: it has none. */
int64_t cpl_event_step(const char *event, size_t length);

#endif /* CPL_REPORT_EVENT_FILE_H */
