/* load.h - the steps of reading a tokenizer file.
 *
 * Room:  tokenizer. Not for other rooms. */
#ifndef CPL_TOKENIZER_LOAD_H
#define CPL_TOKENIZER_LOAD_H

#include <jansson.h>

#include "tokenizer/internal.h"

/* Reads what a tokenizer.json says about anything but tokens and merges, sets the switches of `t`
 * accordingly, and refuses other kinds than byte-level BPE. `path` is for the sentences. */
CPL_NODISCARD cpl_status cpl_tokenizer_check(cpl_tokenizer *t, const json_t *root,
                                             const char *path);

/* Reads the vocabulary {"token": id, ...} and the list of added tokens (NULL or an array) into the
 * table of `t`, which must be empty, with the sets of added tokens and the ids of single bytes. */
CPL_NODISCARD cpl_status cpl_tokenizer_read_tokens(cpl_tokenizer *t, json_t *vocab,
                                                   const json_t *added, const char *path);

/* Merges come as an array of "a b" or ["a", "b"], or as lines of a text of `a b`, of which the
 * first may be a "#version". Both need the vocabulary for the ids. */
CPL_NODISCARD cpl_status cpl_tokenizer_read_merges(cpl_tokenizer *t, const json_t *vocab,
                                                   const json_t *merges, const char *path);
CPL_NODISCARD cpl_status cpl_tokenizer_read_merge_lines(cpl_tokenizer *t, const json_t *vocab,
                                                        const cpl_text *lines, const char *path);

#endif /* CPL_TOKENIZER_LOAD_H */
