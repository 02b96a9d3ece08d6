/* samples.h - sampled tokens of a layer: what its router and its experts say to them.
 *
 * Room:    model/tokens. The token x is the normalised vector that the router and the experts of a
 *          layer read.
 * Names:   T sampled tokens, n experts, K of them a token; score s_ti = x_t . R_i, the router's
 *          logit; answer a_tj = |x_t W_g^j|. With model.latent_dim the experts read W_l x, and
 *          |W_l x_t W_g^j| is their answer. */
#ifndef CPL_MODEL_TOKENS_SAMPLES_H
#define CPL_MODEL_TOKENS_SAMPLES_H

#include "base/arena.h"
#include "model/params.h"
#include "parallel/mesh.h"
#include "tensor/memory.h"

/* An expert with fewer sampled tokens has no row in M_tok, the mean answers to its tokens. */
enum { CPL_TOKENS_FEW = 8 };

/* Returns the index of the sample at this place, or -1 for a place without one: `sampled` of `all`
 * places are sampled, evenly spread. `sampled` must be at most `all`. */
int64_t cpl_tokens_sample_at(int64_t place, int64_t sampled, int64_t all);

/* Holds the sampled tokens of a layer. */
typedef struct cpl_token_samples {
    int64_t count, room, n, d, top_k;
    int64_t *place;        /* [room] place of the token in the text; NULL in training */
    float *score, *answer; /* [room,n] */
    float *x;              /* [room,d] */
    int32_t *chosen;       /* [room,K] the experts of the token, in any order */
} cpl_token_samples;

/* Makes empty samples, whose memory is from the pool. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_token_samples_init(cpl_token_samples *samples, cpl_pool *pool,
                                                int64_t room, int64_t n, int64_t d, int64_t top_k);

/* Adds a token. It is an assert that at most `room` tokens are added. */
void cpl_token_samples_add(cpl_token_samples *samples, int64_t place, const float *score,
                           const float *answer, const float *x, const int32_t *chosen);

/* Sets answers [n,S] = |X_s W_g^j| of the rows of X [S,d] F32, with the F32 masters of the layer.
 * scratch is [S,D] F32. hidden is [S,r] if the gates are factorised, and [S,l] of latent experts.
 * Only this function depends on which parameters make W_g^j. */
void cpl_tokens_respond(cpl_backend *be, cpl_tensor answers, const cpl_layer_params *layer,
                        cpl_tensor X, cpl_tensor scratch, cpl_tensor hidden);

/* Holds memory for the answers of all experts of a layer to at most `room` tokens at a time, and
 * the experts whose answers this rank computes. */
typedef struct cpl_token_scratch {
    int64_t room;
    cpl_tensor rows, products, hidden; /* [room,d], [room,D], [room,l] */
    cpl_tensor answers, scores;        /* [n,room], [room,n] */
    float *row, *answer;               /* [room,d], [n,room] on the host */
    float *router;                     /* [n,d] on the host */
    int64_t first, n_own, at;          /* the rank's experts first ... are at ... of all n */
    cpl_group *world;                  /* NULL for one process */
} cpl_token_scratch;

/* Takes the memory from the arena (which measures or owns it), and divides the n experts over the
 * ranks of the mesh: ranks that hold the same experts divide these. mesh is NULL for one
 * process. */
void cpl_token_scratch_take(cpl_token_scratch *t, cpl_tensor_arena *arena,
                            const cpl_model_settings *config, int64_t room, cpl_mesh *mesh);

/* Sets t->answer [n,count] to the answers of all experts to the first `count` tokens of t->row.
 * Collective. */
void cpl_token_scratch_answer(const cpl_token_scratch *t, cpl_backend *be,
                              const cpl_layer_params *layer, int64_t count);

/* Sets the scores and answers of all sampled tokens, whose x is set, with the F32 masters of the
 * layer, which has router rows. All ranks have the same tokens. Collective. */
void cpl_token_samples_measure(cpl_token_samples *samples, cpl_backend *be,
                               const cpl_layer_params *layer, const cpl_token_scratch *t);

#endif /* CPL_MODEL_TOKENS_SAMPLES_H */
