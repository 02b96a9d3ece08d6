/* words.h - text as characters: the string functions that questions and grading use.
 *
 * Room:   eval/grade. Uses utf8proc for cases and categories.
 * Note:   any bytes are allowed. A maximal ill-formed subsequence of UTF-8 (base/text.h) is one
 *         character, neither letter nor space, and is not changed.
 * Source: docs/tasks.md, "Strings": what Python's strings do. */
#ifndef CPL_EVAL_GRADE_WORDS_H
#define CPL_EVAL_GRADE_WORDS_H

#include "base/text.h"

/* The character that begins at `at` < length, or the one that ends at `at` > 0: its length in bytes
 * and its code point, U+FFFD if it is ill-formed. */
size_t cpl_words_next(uint32_t *point, cpl_span text, size_t at);
size_t cpl_words_previous(uint32_t *point, cpl_span text, size_t at);

bool cpl_words_is_space(uint32_t point);
bool cpl_words_is_digit(char c); /* 0 to 9 */

/* Without white space at the beginning, or at both ends. */
cpl_span cpl_words_lstrip(cpl_span text);
cpl_span cpl_words_strip(cpl_span text);

size_t cpl_words_count(cpl_span text); /* characters */

/* The next word at or after `*at`; words are separated by white space. Sets `*at` to its end. Empty
 * after the last word. */
cpl_span cpl_words_word(cpl_span text, size_t *at);

/* Each appends the whole text: all letters in lower case; the first character in upper case and all
 * others in lower; the first one in lower case; ASCII punctuation left out. Cases are Unicode's
 * simple ones, with the two of Python's that words of Latin or Greek show: a capital sigma ends a
 * word as final sigma, and U+0130 becomes i with a dot above it. */
void cpl_words_lower(cpl_text *out, cpl_span text);
void cpl_words_capitalize(cpl_text *out, cpl_span text);
void cpl_words_uncapitalize(cpl_text *out, cpl_span text);
void cpl_words_unpunctuated(cpl_text *out, cpl_span text);

void cpl_words_set(cpl_text *text, cpl_span to); /* `to` is not of this text */
void cpl_words_swap(cpl_text *text, cpl_text *spare);

/* Replaces every `what` by `with`, from left to right; inserted text is not searched again. */
void cpl_words_replace(cpl_text *text, const char *what, const char *with, cpl_text *spare);

#endif /* CPL_EVAL_GRADE_WORDS_H */
