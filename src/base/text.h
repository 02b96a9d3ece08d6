/* text.h - growing strings, look-up of names with suggestions, sizes in words, UTF-8, spans.
 *
 * Room:  base. */
#ifndef CPL_BASE_TEXT_H
#define CPL_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A growing string of bytes, which may contain NULs. A NUL that `length` does not count follows.
 * All zero is an empty text. A failed allocation sets `failed` and leaves the text unchanged, so
 * that a writer can check once at the end. */
typedef struct cpl_text {
    char *bytes; /* NULL or NUL-terminated */
    size_t length, capacity;
    bool failed;
} cpl_text;

void cpl_text_free(cpl_text *text);
void cpl_text_clear(cpl_text *text); /* sets length 0 and keeps the memory */
void cpl_text_append(cpl_text *text, const void *bytes, size_t length);
void cpl_text_char(cpl_text *text, char c);
void cpl_text_printf(cpl_text *text, const char *format, ...) CPL_PRINTF(2, 3);
CPL_NODISCARD cpl_status cpl_text_status(const cpl_text *text); /* CPL_ERR_MEMORY if it failed */

/* A list of strings. The strings and the array are from cpl_alloc. */
typedef struct cpl_strings {
    char **at;
    int64_t count;
} cpl_strings;

/* Returns a copy from cpl_alloc, or NULL if memory is not available. */
char *cpl_text_copy(const char *string);

/* Returns the candidate with the fewest single-character edits (a swap of neighbours counts one)
 * from `word`, or NULL if no candidate is near. Near is at most a third of the word's length, or 2
 * edits for four characters and more, 1 for two or three, 0 for one. */
const char *cpl_text_nearest(const char *word, const char *const *candidates, size_t count);

/* Does the work of cpl_text_nearest for one candidate at a time: returns whether `candidate` is
 * near and nearer than all before. `limit` is initially cpl_text_near_limit(word). */
int cpl_text_near_limit(const char *word);
bool cpl_text_is_nearer(int *limit, const char *word, const char *candidate);

/* Sets `index` to the index of `word` among (count) names. Returns CPL_ERR_INPUT for an unknown
 * word and suggests the nearest name or lists all. `kind` is the kind of name, such as "filter". */
CPL_NODISCARD cpl_status cpl_lookup(size_t *index, const char *kind, const char *word,
                                    const char *const *names, size_t count);

/* Does what cpl_lookup does, among (count) rows of `size` bytes, whose first member is the name. */
CPL_NODISCARD cpl_status cpl_lookup_in(size_t *index, const char *kind, const char *word,
                                       const void *rows, size_t count, size_t size);

/* Compares strings by bytes, for qsort and bsearch of arrays of strings. */
int cpl_order_strings(const void *a, const void *b);

/* Writes a size such as "1.5 GiB" to `out` and returns `out`. */
const char *cpl_text_bytes(char out[32], double bytes);

/* Returns the length (1-4) of the UTF-8 sequence at `s` of `left` bytes, or 0 if it is ill-formed.
 * Overlong forms, surrogates and values above 10FFFF are ill-formed. */
int cpl_utf8_length(const unsigned char *s, size_t left);

/* Returns whether all bytes are well-formed UTF-8. */
bool cpl_utf8_is(const char *bytes, size_t length);

/* Returns the length of the maximal ill-formed subsequence at `s`, which one U+FFFD replaces
 * (WHATWG). */
int cpl_utf8_bad_length(const unsigned char *s, size_t left);

/* Returns the code point of a well-formed sequence of `length` bytes. */
uint32_t cpl_utf8_decode(const unsigned char *s, int length);

/* Writes the code point as 1-4 bytes. Returns their number. */
int cpl_utf8_encode(uint32_t code_point, char out[4]);

/* Appends `bytes` with every maximal ill-formed subsequence replaced by U+FFFD. Returns the
 * number of replacements. */
int64_t cpl_utf8_repair(cpl_text *out, const char *bytes, size_t length);

/* ---- spans ---- */

/* Borrowed bytes of a text, to search it without copies. Positions are in bytes. NULs are ordinary
 * bytes. All zero is an empty span. */
typedef struct cpl_span {
    const char *bytes; /* (length), not NUL-terminated; NULL only if length is 0 */
    size_t length;
} cpl_span;

#define CPL_NOWHERE SIZE_MAX /* position of a failed search */

cpl_span cpl_span_of(const char *string);
cpl_span cpl_span_text(const cpl_text *text); /* valid until the text changes */

/* Returns the bytes [from, end), `from` <= `end` <= length (assert). */
cpl_span cpl_span_part(cpl_span text, size_t from, size_t end);

bool cpl_span_equal(cpl_span a, cpl_span b);
/* Returns whether `what` begins at `at`. */
bool cpl_span_is_at(cpl_span text, size_t at, const char *what);

/* Return the position of `what` (not empty: assert) or of byte `c`, the first at or after `from` or
 * the last in `text`, or CPL_NOWHERE if it is not found. `from` may have any value. */
size_t cpl_span_find(cpl_span text, size_t from, const char *what);
size_t cpl_span_find_last(cpl_span text, const char *what);
size_t cpl_span_find_byte(cpl_span text, size_t from, char c);
size_t cpl_span_find_last_byte(cpl_span text, char c);

/* Returns the end of the line that contains `at`: the position of its '\n' or the text's end. */
size_t cpl_span_line_end(cpl_span text, size_t at);

#endif /* CPL_BASE_TEXT_H */
