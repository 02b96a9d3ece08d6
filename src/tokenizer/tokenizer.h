/* tokenizer.h - byte-level BPE tokenizers: text to ids, ids to text, and training one.
 *
 * Room:   tokenizer.
 * Names:  a *token* is a byte string with an id; an *added token* is one that is cut out of the
 *         text before any other step (<|endoftext|>, runs of spaces); a *word* is one of the pieces
 *         into which the pre-tokenizer cuts the rest; BPE joins the bytes of one word into tokens.
 * Files:  Hugging Face's tokenizer.json of the GPT-2, GPT-NeoX/OLMo and OLMo 2 families, and
 *         GPT-2's own pair encoder.json + vocab.bpe. A part of a file that would change the ids of
 *         a text in a way that this reader does not know is an error that names it.
 * Unicode: classes are those of Unicode 16.0 (unicode-classes.tsv), compiled in; NFC is the
 *         standard one except for 98 marks that the reference implementation treats as class 0. */
#ifndef CPL_TOKENIZER_TOKENIZER_H
#define CPL_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

/* A loaded tokenizer. Nothing changes it after cpl_tokenizer_load, so any number of threads may use
 * it at once, each with a separate encoder. */
typedef struct cpl_tokenizer cpl_tokenizer;

enum { CPL_TOKEN_FILE_MAX = 256 << 20 }; /* bytes of each of its files */

/* Sets *out to the tokenizer at `path`, owned by the caller; NULL on failure. `path` is one of:
 * a tokenizer.json; one of the two files of GPT-2's form (encoder.json or vocab.json, in one folder
 * with vocab.bpe or merges.txt); or a folder that holds either (tokenizer.json is preferred).
 * CPL_ERR_IO: the file cannot be read. CPL_ERR_INPUT: it is no tokenizer, contradicts itself, or is
 * not byte-level BPE; the error names the part that is not supported. */
CPL_NODISCARD cpl_status cpl_tokenizer_load(cpl_tokenizer **out, const char *path);

/* The same if the user named `path`: it may be a pipe (file.h has the two rules). */
CPL_NODISCARD cpl_status cpl_tokenizer_load_given(cpl_tokenizer **out, const char *path);
void cpl_tokenizer_free(cpl_tokenizer *t); /* NULL is allowed */

/* Warns, in one sentence, of what the file asks for that concerns no id of a text and is ignored:
 * truncation, padding, a decoder of another kind. NULL is allowed. */
void cpl_tokenizer_warn(const cpl_tokenizer *t, const cpl_log *log);

/* 1 + the largest id, over vocabulary and added tokens. Ids below it may be without a token. */
int64_t cpl_tokenizer_vocab_size(const cpl_tokenizer *t);

/* The id of <|endoftext|>, -1 if there is none. The id that separates documents in token files of
 * other programs is a property of those files and can differ. */
int32_t cpl_tokenizer_eos(const cpl_tokenizer *t);

/* The id of the token whose text is exactly `content`: added tokens first, then the lowest id of
 * the vocabulary (" the", not its spelling in the file); -1 if none. A search over all tokens. */
int32_t cpl_tokenizer_id(const cpl_tokenizer *t, const char *content);

/* XXH3 (64 bits) of the file's bytes; for GPT-2's form that of the merges, seeded with that of the
 * vocabulary. */
uint64_t cpl_tokenizer_hash(const cpl_tokenizer *t);

/* Ids that grow. All zero is a valid empty list. */
typedef struct cpl_ids {
    int32_t *at; /* [count] */
    int64_t count, capacity;
} cpl_ids;
void cpl_ids_free(cpl_ids *ids); /* leaves an empty list */

/* What one thread needs to encode: a cache of words seen before and scratch memory that grows with
 * the longest text given to it. Keeps a pointer to the tokenizer, which must outlive it. */
typedef struct cpl_encoder cpl_encoder;

/* Sets *out to a new encoder, owned by the caller. `special_as_text`: a literal <|endoftext|> (any
 * added token marked special) in the text is then encoded as the plain text it is; otherwise it
 * becomes its id, as the reference does, and anyone's text can forge a separator. */
CPL_NODISCARD cpl_status cpl_encoder_init(cpl_encoder **out, const cpl_tokenizer *t,
                                          bool special_as_text);
void cpl_encoder_free(cpl_encoder *e); /* NULL is allowed */

/* Appends the ids of one document. Each maximal ill-formed sequence of bytes counts as U+FFFD
 * (WHATWG practice). No id is added at either end; an empty text gives none. On failure (out of
 * memory, or a single word beyond 2 GiB) `ids` holds what it held before. */
CPL_NODISCARD cpl_status cpl_encoder_append(cpl_encoder *e, cpl_ids *ids, const char *text,
                                            size_t length);

/* How many ill-formed sequences were replaced since cpl_encoder_init. */
int64_t cpl_encoder_repaired(const cpl_encoder *e);

/* Appends the bytes of `count` ids to `out`, as they are: ids of arbitrary origin need not give
 * well-formed UTF-8, and nothing is repaired here. `skip_special` leaves out added tokens marked
 * special. An id below the vocabulary size without a token gives nothing; one outside it is
 * CPL_ERR_INPUT, with its position, and `out` is as before. */
CPL_NODISCARD cpl_status cpl_tokenizer_decode(const cpl_tokenizer *t, cpl_text *out,
                                              const int32_t *ids, int64_t count, bool skip_special);

/* How many of the `length` bytes can be shown now, when more may follow: all but an incomplete
 * UTF-8 sequence at the end (at most 3 bytes). Ill-formed bytes are not held back. */
size_t cpl_tokenizer_utf8_prefix(const char *bytes, size_t length);

/* How to train a byte-level BPE with GPT-2's pre-tokenizer. */
typedef struct cpl_bpe_settings {
    int64_t vocab_size;    /* ids in all, 258 to 1,000,000 */
    int64_t min_frequency; /* a pair seen less often is not joined; at least 1 */
    bool nfc;              /* convert text to NFC first, and record that in the file */
    const char *eos;       /* the separator, "<|endoftext|>" if NULL; 2 to 100 ASCII characters
                              without space, not "<|padding|>"; copied */
} cpl_bpe_settings;

/* Counts words, then joins pairs. The same words with the same counts give the same file, for any
 * order of the documents.
 *
 * Ids: 0 the separator, 1 <|padding|>, 2 to 257 the single bytes in the order of their characters
 * in the byte-level alphabet ('!' is 2), then one per new token in the order of joining. Rule: the
 * pair of neighbours with the highest count over all words (each word weighted with its count,
 * overlapping occurrences counted each) is joined next, everywhere, left to right in a word; of
 * equal counts the pair with the smaller left id, then the smaller right id. A pair whose text is
 * already a token becomes another way to make that token. (Hugging Face's BpeTrainer with the same
 * special tokens and the byte-level alphabet makes the same tokens.) */
typedef struct cpl_bpe_trainer cpl_bpe_trainer;

/* Sets *out to a trainer without words. CPL_ERR_INPUT: a setting is out of bounds. */
CPL_NODISCARD cpl_status cpl_bpe_init(cpl_bpe_trainer **out, const cpl_bpe_settings *settings);
void cpl_bpe_free(cpl_bpe_trainer *trainer); /* NULL is allowed */

/* Counts the words of one document. Ill-formed UTF-8 is repaired as when encoding; literal special
 * tokens are cut out and not counted. Not to be called after cpl_bpe_train (assert). */
CPL_NODISCARD cpl_status cpl_bpe_add(cpl_bpe_trainer *trainer, const char *text, size_t length);

/* Joins pairs until the vocabulary is full or no pair is frequent enough; the latter is a warning
 * to `log`. CPL_ERR_INPUT: no word was counted. Once per trainer (assert). */
CPL_NODISCARD cpl_status cpl_bpe_train(cpl_bpe_trainer *trainer, const cpl_log *log);

/* Tokens so far, special ones included. */
int64_t cpl_bpe_vocab_size(const cpl_bpe_trainer *trainer);

/* Writes a tokenizer.json that cpl_tokenizer_load and Hugging Face tokenizers read: to a temporary
 * name in the folder of `path`, synced, then renamed to `path`. */
CPL_NODISCARD cpl_status cpl_bpe_write(const cpl_bpe_trainer *trainer, const char *path);

#endif /* CPL_TOKENIZER_TOKENIZER_H */
