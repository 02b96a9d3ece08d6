/* generate.h - generates text token by token, with cached keys and values.
 *
 * Room:   infer. The model computes the prompt in chunks of bounded size, then one new token per
 *         pass. cpl_generator_init takes all memory.
 * Random: the token at position p is drawn with the random number (seed, CPL_STREAM_SAMPLE, step
 *         p), so that the text depends on seed and prompt, not on the chunks. */
#ifndef CPL_INFER_GENERATE_H
#define CPL_INFER_GENERATE_H

#include <stdbool.h>

#include "infer/lm_batch.h"

typedef struct cpl_generate_settings {
    int64_t max_tokens; /* limit of new tokens, >= 0 */
    float temperature;  /* >= 0; 0 chooses always the most likely token */
    float top_p;        /* in (0,1]; 1 means all tokens */
    uint64_t seed;
    int64_t eos;   /* the id that ends the text, not passed to `on_token`; -1 without such an id */
    int64_t n_ids; /* bound of the ids drawn, the tokenizer's size; 0 for the whole vocabulary */
    cpl_stop_ids extra_stop_ids; /* further ids that end the text like eos */
} cpl_generate_settings;

typedef struct cpl_generator {
    cpl_model *model; /* not owned */
    int64_t capacity; /* positions of the cache */
    int64_t chunk;    /* tokens of the prompt computed at once */
    cpl_tensor_arena arena;
    cpl_cache cache;
    int64_t length;       /* tokens fed so far, equal to the rows in use */
    cpl_tensor ids;       /* [chunk] I32 */
    cpl_tensor order;     /* [capacity] I32: 0, 1, 2 ... */
    cpl_tensor selected;  /* [1] I32 */
    cpl_tensor segment;   /* [1,4] I32, the segment of the current pass */
    int32_t *numbers;     /* copy of `order` in host memory */
    cpl_tensor logits;    /* [1,V] */
    cpl_tensor sum, id;   /* [1] F64 sum of the logits, [1] I32 the id drawn */
    cpl_tensor_mark mark; /* mark of the arena before the current pass */
} cpl_generator;

/* Returns the bytes that cpl_generator_init allocates, without the kernels' scratch. */
size_t cpl_generator_bytes(const cpl_model_settings *config, int64_t capacity, int64_t chunk);

/* Returns CPL_ERR_INPUT if a text of `n_tokens`, prompt included, is longer than the model's
 * context (max_position_embeddings). */
CPL_NODISCARD cpl_status cpl_generator_fits(const cpl_model_settings *config, int64_t n_tokens);

/* Makes a generator for texts of up to `capacity` tokens, prompt included, and reserves the
 * backend's scratch. The model must have at least `capacity` positions. Returns the errors of
 * cpl_generator_fits, or CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_generator_init(cpl_generator *g, cpl_model *model, int64_t capacity,
                                            int64_t chunk);
void cpl_generator_free(cpl_generator *g);

/* Clears the cache. */
void cpl_generator_reset(cpl_generator *g);

/* Feeds `count` >= 1 more tokens and sets g->logits to the logits of the next token. Returns
 * CPL_ERR_INPUT if an id is not in the vocabulary, the tokens do not fit into the capacity, or the
 * logits are not finite. */
CPL_NODISCARD cpl_status cpl_generator_feed(cpl_generator *g, const int32_t *ids, int64_t count);

/* Called with every new token. Returns false to end the text. */
typedef bool (*cpl_generate_callback)(void *ctx, int32_t id);

/* Clears the cache, reads the prompt (at least one token) and passes new tokens to `on_token` until
 * max_tokens is reached, an end id is drawn or `on_token` returns false. Sets `n_new` (may be NULL)
 * to the number of tokens passed. Returns CPL_ERR_INPUT if prompt and max_tokens together exceed
 * the capacity, or an error of cpl_generator_feed. */
CPL_NODISCARD cpl_status cpl_generate(cpl_generator *g, const int32_t *prompt, int64_t n_prompt,
                                      const cpl_generate_settings *settings,
                                      cpl_generate_callback on_token, void *ctx, int64_t *n_new);

#endif /* CPL_INFER_GENERATE_H */
