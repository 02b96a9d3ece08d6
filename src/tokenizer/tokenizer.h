/* tokenizer.h - byte-level BPE tokenizers: encoding, decoding and training.
 *
 * Room:   tokenizer.
 * Names:  a *token* is a byte string with an id. An *added token* is searched in the text before
 *         any other step (<|endoftext|>, runs of spaces). A *word* is a piece into which the
 *         pre-tokenizer splits the other text. BPE joins the bytes of one word into tokens.
 * Files:  Hugging Face's tokenizer.json of the GPT-2, GPT-NeoX/OLMo and OLMo 2 families, and
 *         GPT-2's pair encoder.json + vocab.bpe. A part of a file that changes the ids of a text
 *         and is not supported gives CPL_ERR_INPUT, which names the part.
 * Unicode: the classes of Unicode 16.0 (unicode-classes.tsv) are compiled in. NFC follows the
 *          standard, except for 98 marks that the reference implementation treats as class 0. */
#ifndef CPL_TOKENIZER_TOKENIZER_H
#define CPL_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

/* A loaded tokenizer. It does not change after cpl_tokenizer_load, so any number of threads may
 * use it, each with its own encoder. */
typedef struct cpl_tokenizer cpl_tokenizer;

enum { CPL_TOKEN_FILE_MAX = 256 << 20 }; /* limit of each file, bytes */

/* Sets *out to the tokenizer at `path`, owned by the caller, or to NULL on failure. `path` is a
 * tokenizer.json, or one of the two files of GPT-2's form (encoder.json or vocab.json, in one
 * folder with vocab.bpe or merges.txt), or a folder with such files. In a folder tokenizer.json is
 * preferred. Returns CPL_ERR_IO if the file cannot be read. Returns CPL_ERR_INPUT if it is not a
 * tokenizer, contradicts itself, or is not byte-level BPE. The error names the unsupported part. */
CPL_NODISCARD cpl_status cpl_tokenizer_load(cpl_tokenizer **out, const char *path);

/* Loads like cpl_tokenizer_load a file that the user named, which may be a pipe (see file.h). */
CPL_NODISCARD cpl_status cpl_tokenizer_load_given(cpl_tokenizer **out, const char *path);
void cpl_tokenizer_free(cpl_tokenizer *t); /* NULL is allowed */

/* Warns, in one message, of parts of the file that do not affect ids and are ignored: truncation,
 * padding, a decoder of another kind. `t` may be NULL. */
void cpl_tokenizer_warn(const cpl_tokenizer *t, const cpl_log *log);

/* Returns 1 + the largest id of vocabulary and added tokens. Ids below it may have no token. */
int64_t cpl_tokenizer_vocab_size(const cpl_tokenizer *t);

/* Returns the id of <|endoftext|>, or -1. Other programs' token files may have another
 * separator. */
int32_t cpl_tokenizer_eos(const cpl_tokenizer *t);

/* Returns the id of the token whose text is exactly `content` (" the", not its spelling in the
 * file), or -1. Added tokens come before the lowest id of the vocabulary. Searches all tokens. */
int32_t cpl_tokenizer_id(const cpl_tokenizer *t, const char *content);

/* Returns XXH3 (64 bits) of the file's bytes. For GPT-2's two files it is the hash of the merges,
 * seeded with the hash of the vocabulary. */
uint64_t cpl_tokenizer_hash(const cpl_tokenizer *t);

/* A list of ids that can grow. All zero is an empty list. */
typedef struct cpl_ids {
    int32_t *at; /* [count] */
    int64_t count, capacity;
} cpl_ids;
void cpl_ids_free(cpl_ids *ids); /* leaves an empty list */

/* The encoder of one thread: a cache of earlier words, and scratch memory that grows with the
 * longest text. The tokenizer must outlive it. */
typedef struct cpl_encoder cpl_encoder;

/* Sets *out to a new encoder, owned by the caller. With `special_as_text`, a literal <|endoftext|>
 * (or other added token marked special) in a text is encoded as plain text. Otherwise it becomes
 * its id, as in the reference, so that a text can contain a separator. */
CPL_NODISCARD cpl_status cpl_encoder_init(cpl_encoder **out, const cpl_tokenizer *t,
                                          bool special_as_text);
void cpl_encoder_free(cpl_encoder *e); /* NULL is allowed */

/* Appends the ids of one document. Each maximal ill-formed sequence of bytes counts as U+FFFD
 * (WHATWG practice). No id is added at either end. On failure (out of memory, or a single word
 * beyond 2 GiB) `ids` is unchanged. */
CPL_NODISCARD cpl_status cpl_encoder_append(cpl_encoder *e, cpl_ids *ids, const char *text,
                                            size_t length);

/* Returns the number of ill-formed sequences replaced since cpl_encoder_init. */
int64_t cpl_encoder_repaired(const cpl_encoder *e);

/* Appends the bytes of `count` ids to `out`. The bytes need not be well-formed UTF-8.
 * `skip_special` skips added tokens marked special. An id without a token has no bytes. An id
 * outside the vocabulary gives CPL_ERR_INPUT, with its position, and leaves `out` unchanged. */
CPL_NODISCARD cpl_status cpl_tokenizer_decode(const cpl_tokenizer *t, cpl_text *out,
                                              const int32_t *ids, int64_t count, bool skip_special);

/* Returns the number of the `length` bytes that can be shown if more may follow: all except an
 * incomplete UTF-8 sequence at the end (at most 3 bytes). Ill-formed bytes are counted. */
size_t cpl_tokenizer_utf8_prefix(const char *bytes, size_t length);

/* Settings of the training of a byte-level BPE with GPT-2's pre-tokenizer. */
typedef struct cpl_bpe_settings {
    int64_t vocab_size;    /* number of ids, 258 to 1,000,000 */
    int64_t min_frequency; /* least count of a pair to be joined, at least 1 */
    bool nfc;              /* converts text to NFC first, and records NFC in the file */
    const char *eos;       /* the separator (copied), "<|endoftext|>" if NULL; 2 to 100 ASCII
                              characters without space, not "<|padding|>" */
} cpl_bpe_settings;

/* A trainer, which counts words and then joins pairs. The file depends on the words and their
 * counts, not on the order of the documents.
 *
 * Ids:  0 the separator, 1 <|padding|>, 2 to 257 the single bytes in the order of their characters
 *       in the byte-level alphabet ('!' is 2), then one id per new token in the order of joining.
 * Rule: the pair of neighbours with the highest count over all words (each word weighted with its
 *       count, overlapping occurrences counted each) is joined next, everywhere, left to right in a
 *       word. On ties the pair with the smaller left id, then the smaller right id, is first. A
 *       pair whose text is already a token becomes another merge to that token. (Hugging Face's
 *       BpeTrainer with these special tokens and the byte-level alphabet makes equal tokens.) */
typedef struct cpl_bpe_trainer cpl_bpe_trainer;

/* Sets *out to a trainer without words. Returns CPL_ERR_INPUT if a setting is out of bounds. */
CPL_NODISCARD cpl_status cpl_bpe_init(cpl_bpe_trainer **out, const cpl_bpe_settings *settings);
void cpl_bpe_free(cpl_bpe_trainer *trainer); /* NULL is allowed */

/* Counts the words of one document. Ill-formed UTF-8 is repaired as when encoding. Literal special
 * tokens are skipped. Must not be called after cpl_bpe_train (assert). */
CPL_NODISCARD cpl_status cpl_bpe_add(cpl_bpe_trainer *trainer, const char *text, size_t length);

/* Joins pairs until the vocabulary is full or, with a warning, no pair is frequent enough. Returns
 * CPL_ERR_INPUT if no word was counted. Call it once per trainer (assert). */
CPL_NODISCARD cpl_status cpl_bpe_train(cpl_bpe_trainer *trainer, const cpl_log *log);

/* Returns the number of tokens so far, including special tokens. */
int64_t cpl_bpe_vocab_size(const cpl_bpe_trainer *trainer);

/* Writes a tokenizer.json that cpl_tokenizer_load and Hugging Face tokenizers read, atomically: to
 * a temporary file in the folder of `path`, which is synced and renamed. */
CPL_NODISCARD cpl_status cpl_bpe_write(const cpl_bpe_trainer *trainer, const char *path);

#endif /* CPL_TOKENIZER_TOKENIZER_H */
