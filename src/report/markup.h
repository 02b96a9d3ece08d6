/* markup.h - text and numbers as written in HTML.
 *
 * Room:  report. Text from outside (names of checkpoints, sentences) is escaped by cpl_markup_text,
 *        so that it can neither end an attribute nor begin a tag. */
#ifndef CPL_REPORT_MARKUP_H
#define CPL_REPORT_MARKUP_H

#include "base/text.h"

/* Appends `string` for use between tags and inside quotes of either kind. Ill-formed UTF-8 and
 * characters that XML 1.0 forbids become U+FFFD. */
void cpl_markup_text(cpl_text *out, const char *string);

/* Appends <tag>string</tag> and a line end. */
void cpl_markup_element(cpl_text *out, const char *tag, const char *string);

/* Returns the number of characters, for estimates of width. An ill-formed byte is one character. */
int64_t cpl_markup_length(const char *string);

/* Writes a whole number with commas, "2,986,944", to `out` and returns `out`. */
const char *cpl_markup_count(char out[32], int64_t number);

/* Appends bytes as base64 with padding. */
void cpl_markup_base64(cpl_text *out, const unsigned char *bytes, size_t length);

#endif /* CPL_REPORT_MARKUP_H */
