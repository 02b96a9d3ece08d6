/* words.h - text as characters: the string functions that questions and grading use.
 *
 * Room:   eval/grade. Uses utf8proc for cases and categories.
 * Bytes:  any bytes are allowed. A maximal ill-formed subsequence of UTF-8 (base/text.h) is one
 *         character, neither letter nor space, and is not changed.
 * Source: docs/tasks.md, "Strings": the behaviour of Python's strings. */
#ifndef CPL_EVAL_GRADE_WORDS_H
#define CPL_EVAL_GRADE_WORDS_H

#include "base/text.h"

/* Sets the code point of the character that begins at `at` < length, U+FFFD if it is ill-formed,
 * and returns the bytes of the character. */
size_t cpl_words_next(uint32_t *point, cpl_span text, size_t at);

/* Sets the code point of the character that ends at `at` > 0, U+FFFD if it is ill-formed, and
 * returns the bytes of the character. */
size_t cpl_words_previous(uint32_t *point, cpl_span text, size_t at);

bool cpl_words_is_space(uint32_t point);
bool cpl_words_is_digit(char c); /* 0 to 9 */

/* Return the text without white space at the beginning, at the end, or at both ends. */
cpl_span cpl_words_lstrip(cpl_span text);
cpl_span cpl_words_rstrip(cpl_span text);
cpl_span cpl_words_strip(cpl_span text);

size_t cpl_words_count(cpl_span text); /* counts characters */

/* Returns the next word at or after `*at`, and sets `*at` to its end. Words are separated by white
 * space. The word is empty after the last one. */
cpl_span cpl_words_word(cpl_span text, size_t *at);

/* Append the text in lower case (lower), with the first character in upper case and all others in
 * lower case (capitalize), with the first character in lower case (uncapitalize), or without ASCII
 * punctuation (unpunctuated). Cases follow Unicode's simple mappings, with two exceptions of
 * Python: a capital sigma at the end of a word becomes a final sigma, and U+0130 becomes i with a
 * dot above it. */
void cpl_words_lower(cpl_text *out, cpl_span text);
void cpl_words_capitalize(cpl_text *out, cpl_span text);
void cpl_words_uncapitalize(cpl_text *out, cpl_span text);
void cpl_words_unpunctuated(cpl_text *out, cpl_span text);

void cpl_words_set(cpl_text *text, cpl_span to); /* `to` must not be a piece of `text` */
void cpl_words_swap(cpl_text *text, cpl_text *spare);

/* Replaces every `what` by `with`, from left to right. Inserted text is not searched again. */
void cpl_words_replace(cpl_text *text, const char *what, const char *with, cpl_text *spare);

#endif /* CPL_EVAL_GRADE_WORDS_H */
