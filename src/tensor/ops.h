/* ops.h - the numeric contract: every loop that grows with the model is an operation of a backend.
 *
 * Room:     tensor. cpu/ fills this whole table and is the specification. Every other backend must
 *           agree with cpu/, operation by operation (tests/tensor/test_twins).
 * Names:    B sequences of S tokens, T = B S tokens in all, d model width, D expert width,
 *           n experts, K experts a token, H query heads, G key/value heads, h width of a head,
 *           V vocabulary.
 * Types:    F32 unless said otherwise. Weights of products are F32, or BF16 where the backend
 *           computes in bf16 (`be->compute`); their gradients are F32 always. Where the backend
 *           computes in bf16, activations (arguments of products, and values kept for a backward
 *           pass) may be BF16 too. The comments below name these arguments; each may be F32 or
 *           BF16 independently. A result in BF16 is computed in F32 and rounded once.
 * Order:    backend, outputs, inputs, scalars. Outputs and inputs are tensors; scalars are
 *           passed by value, so that a queued operation keeps no pointer into its caller's stack.
 *           An output is *set* unless its comment says *adds*. An output may overlap an input only
 *           where its comment says so.
 * Failure:  operations return nothing. A backend keeps its first failure and ignores later work.
 *           sync() returns the failure. After a failure get still sets its output, to meaningless
 *           values, but ids are valid. Shapes that do not fit are asserts.
 * Memory:   tensors and scratch lie in memory of the backend (tensor/memory.h). Operations do not
 *           allocate. Their scratch is be->scratch, at least scratch_bytes(work) long (see
 *           cpl_backend_reserve).
 * Time:     an operation may return before it has finished. Operations run in the order of the
 *           calls, so that each operation reads the results of earlier operations. get and sync
 *           wait until all operations have finished. put and give are queued like operations.
 *           Memory that an operation uses must stay valid until a later get, sync or give. When a
 *           callback of a pass (model/model.h) runs, the pass's operations are queued but need not
 *           have finished. Messages to other ranks may overlap with operations: a get fetches the
 *           numbers to send, a put stores the numbers received.
 * Threads:  results depend on be->n_threads in the last bits at most. With equal n_threads equal
 *           calls give equal bits. */
#ifndef CPL_TENSOR_OPS_H
#define CPL_TENSOR_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "base/status.h"
#include "tensor/erc.h"
#include "tensor/figures.h"
#include "tensor/tensor.h"

typedef struct cpl_ops cpl_ops;

/* Always passed by address: failures recorded in a copy would be lost. */
typedef struct cpl_backend {
    const cpl_ops *ops;
    void *own;                             /* data private to this kind of backend; may be NULL */
    void (*close)(struct cpl_backend *be); /* frees `own`, after all memory; may be NULL */
    /* Sets the free bytes and all bytes of the device's memory. NULL if the backend uses host
     * memory. */
    void (*room)(struct cpl_backend *be, double *there, double *all);
    const char *name;      /* "cpu v4", "cuda" */
    const char *device;    /* "cpu", "cuda:0 NVIDIA H100 80GB HBM3" */
    const char *libraries; /* versions of the device's driver and libraries; may be NULL */
    /* Returns the description of choice number `index`, from 0, of the choices that the libraries
     * have made so far and on which bits depend. The text is valid until the next call. Returns
     * NULL past the last choice. The pointer is NULL if the libraries make no choices. */
    const char *(*choice)(struct cpl_backend *be, int index);
    const char *note;     /* a sentence for the user's log; may be NULL */
    const char *sentence; /* the message of the first failure; NULL before a failure */
    cpl_dtype compute;  /* the type that operands of products are rounded to: CPL_F32 or CPL_BF16 */
    int n_threads;      /* at least 1 */
    cpl_status failure; /* the first failure, or CPL_OK */
    void *scratch;      /* CPL_ALIGNMENT-aligned */
    size_t scratch_bytes;
} cpl_backend;

/* The rules by which the K experts of a token and their weights follow from the scores. */
typedef struct cpl_routing {
    bool sigmoid;     /* a score is the sigmoid of its logit, otherwise the softmax */
    bool renormalise; /* the K weights are divided by their sum (all 0 if the sum is 0) */
    bool z_centred;   /* lse is taken less the mean logit and ln n, 0 for equal logits */
    cpl_tensor bias;  /* [n], with sigmoid only: added to the scores when experts are chosen; none
                         for 0 */
} cpl_routing;

typedef enum cpl_trans { CPL_AS_IS, CPL_TRANSPOSED } cpl_trans;

/* The largest shapes of later calls. They determine the size of the scratch. */
typedef struct cpl_work {
    int64_t n_tokens; /* T of one call */
    int64_t d_model, d_expert, n_experts, top_k, n_heads, vocab_size;
    int64_t d_shared;  /* width of a shared expert (experts with n = K = 1); 0 without it */
    int64_t gate_rank; /* r of factorised gates; 0 without them */
    bool training;     /* backward operations will be called too */
} cpl_work;

typedef struct cpl_attention_shape {
    int64_t batch;      /* B */
    int64_t n_queries;  /* per sequence; query i is at position n_keys - n_queries + i */
    int64_t n_keys;     /* positions 0 ... n_keys - 1 */
    int64_t key_stride; /* rows of k and v from one sequence to the next, >= n_keys */
    int64_t n_heads, n_kv_heads, head_dim;
} cpl_attention_shape;

/* The new tokens of one sequence, in a call with the tokens of several sequences. Keys and values
 * of all sequences lie in rows of one shared store. */
typedef struct cpl_segment {
    int32_t first, n_queries;  /* rows of q and out */
    int32_t first_key, n_keys; /* part of key_row, from the sequence's first token to its last;
                                  query i is at position n_keys - n_queries + i */
} cpl_segment;

typedef struct cpl_segments {
    cpl_tensor at;      /* [segments,4] I32: the fields of one cpl_segment a row */
    cpl_tensor key_row; /* I32: the row of k and v of each key */
    int64_t n_heads, n_kv_heads, head_dim;
} cpl_segments;

/* The assignments (token, choice) sorted by expert: set by dispatch, read by experts. The rows
 * r = offset[e] ... offset[e+1]-1 belong to expert e, in rising order of tokens. */
typedef struct cpl_dispatch {
    cpl_tensor offset; /* [n+1] I32 */
    cpl_tensor token;  /* [T K] I32: token of sorted row r */
    cpl_tensor row;    /* [T,K] I32: sorted row of (token, choice) */
} cpl_dispatch;

/* The three matrices of every expert of a layer. */
typedef struct cpl_expert_weights {
    cpl_tensor w_gate; /* [n,D,d], or [n,D,r] if the gate's input is `hidden` */
    cpl_tensor w_up;   /* [n,D,d] */
    cpl_tensor w_down; /* [n,d,D] */
} cpl_expert_weights;

struct cpl_ops {
    /* ---- memory ---- */

    /* Allocates memory for tensors, CPL_ALIGNMENT-aligned and uninitialised. Returns NULL if the
     * memory is not available (see cpl_tensor_no_memory). */
    void *(*take)(cpl_backend *be, size_t bytes);
    /* Frees `memory` after all earlier operations have finished. Does nothing for NULL. */
    void (*give)(cpl_backend *be, void *memory);
    /* Sets `to` to the numbers at `from` in host memory. The caller may change `from` after the
     * call. */
    void (*put)(cpl_backend *be, cpl_tensor to, const void *from);
    /* Copies the numbers of `from` to host memory at `to`. Waits for all earlier operations. */
    void (*get)(cpl_backend *be, void *to, cpl_tensor from);

    /* ---- products (gemm.c) ---- */

    /* c [m,n] = beta c + op(a) [m,k] . op(b) [k,n]. Operands are in be->compute (F32 operands are
     * rounded if it is bf16), sums in F32. beta is 0 or 1. With 0 the old c is not read. k may be
     * 0. c may be BF16 if ta is CPL_AS_IS and beta is 0. */
    void (*gemm)(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a, cpl_trans tb,
                 cpl_tensor b, float beta);
    /* Computes gemm in F32 for every be->compute. BF16 operands are widened to F32. Used for the
     * router's logits. */
    void (*gemm_f32)(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a, cpl_trans tb,
                     cpl_tensor b, float beta);

    /* Runs backward of y [T,m] = x [T,d] . w^T, w [m,d]: dx [T,d] = beta dx + dy . w, and dw *adds*
     * dy^T . x. Products are as in gemm. All gradients are F32. */
    void (*linear_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dw, cpl_tensor dy,
                            cpl_tensor x, cpl_tensor w, float beta);

    /* ---- rows (rows.c) ---- */

    /* y [T,d] = weight * x / sqrt(mean(x^2) + eps); inv [T] = 1 / sqrt(...), for backward. x and y
     * are F32 or BF16. */
    void (*rms_norm)(cpl_backend *be, cpl_tensor y, cpl_tensor inv, cpl_tensor x, cpl_tensor weight,
                     float eps);
    /* dx [T,d] = beta dx + the gradient, beta 0 or 1. dweight [d] *adds*. dx may be dy. x is F32 or
     * BF16. */
    void (*rms_norm_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dweight, cpl_tensor dy,
                              cpl_tensor x, cpl_tensor weight, cpl_tensor inv, float beta);
    /* y = x clamped to [-limit, limit]. y may be x. Each is F32 or BF16. */
    void (*clamp)(cpl_backend *be, cpl_tensor y, cpl_tensor x, float limit);
    /* dx = dy where |x| <= limit, otherwise 0. x, F32 or BF16, is clamp's input. dx may be dy. */
    void (*clamp_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dy, cpl_tensor x,
                           float limit);
    /* y [n,d] = the rows of x minus their mean. y may be x. n may be 0. */
    void (*centre)(cpl_backend *be, cpl_tensor y, cpl_tensor x);
    /* y [n,d] = mean [d] + scale x_i / |x_i| for each row x_i of x; mean where x_i is 0. y may be
     * x. */
    void (*unit_rows)(cpl_backend *be, cpl_tensor y, cpl_tensor x, cpl_tensor mean, double scale);
    /* Runs backward of unit_rows: dx [n,d] = scale / |x_i| (dy_i - u_i (u_i . dy_i)) with u_i = x_i
     * / |x_i|; 0 where x_i is 0. dx may be dy. */
    void (*unit_rows_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dy, cpl_tensor x,
                               double scale);
    /* y *adds* scale x. Shapes may differ, counts must be equal. y may be F64. */
    void (*add)(cpl_backend *be, cpl_tensor y, cpl_tensor x, float scale);
    /* y *adds* a b, entry by entry. All are F32 with equal counts, and y shares no memory with a
     * and b. */
    void (*add_product)(cpl_backend *be, cpl_tensor y, cpl_tensor a, cpl_tensor b);
    /* Sets every number of y, F32, I32 or F64, to value. */
    void (*fill)(cpl_backend *be, cpl_tensor y, float value);
    /* y F32 or BF16 = x F32 or BF16 (round to nearest even): the compute copies of weights. */
    void (*copy)(cpl_backend *be, cpl_tensor y, cpl_tensor x);
    /* y [T,d] = rows `ids` [T] I32 of table [V,d], each F32 or BF16. 0 <= id < V. */
    void (*embed)(cpl_backend *be, cpl_tensor y, cpl_tensor table, cpl_tensor ids);
    /* dtable [V,d] *adds* dy at the rows ids. Equal ids are added in the order of the tokens. */
    void (*embed_backward)(cpl_backend *be, cpl_tensor dtable, cpl_tensor dy, cpl_tensor ids);

    /* ---- positions (rope.c) ---- */

    /* table [P,h/2,2] = cos, sin of position * theta^(-2i/h). Angles are F32 as Hugging Face's. */
    void (*rope_table)(cpl_backend *be, cpl_tensor table, float theta);
    /* Rotates x [T, heads*h], F32 or BF16, in place, pairs (i, i + h/2) of each head. Token t of a
     * sequence of n_queries is at position first + (t mod n_queries). direction is 1 for forward,
     * -1 for backward. */
    void (*rope)(cpl_backend *be, cpl_tensor x, cpl_tensor table, int64_t n_heads,
                 int64_t n_queries, int64_t first, int direction);

    /* Runs rope forward, with token t at position[t] of position [T] I32. */
    void (*rope_at)(cpl_backend *be, cpl_tensor x, cpl_tensor table, int64_t n_heads,
                    cpl_tensor position);

    /* ---- attention (attention.c): causal, no T x T matrix ---- */

    /* out [B nq, H h] = softmax(q k^T / sqrt(h)) v over keys at or before the query's position and
     * not before doc_start [B, n_keys] I32 of that position (none: one document). Query head i
     * reads key head i / (H/G). lse [B,H,nq] = log of the sum of exponentials, for backward. q [B
     * nq, H h]; k, v [B key_stride, G h]. out, q, k and v are F32 or BF16, here and in the
     * gradient. */
    void (*attention)(cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q, cpl_tensor k,
                      cpl_tensor v, cpl_tensor doc_start, cpl_attention_shape shape);
    /* Sets dq, dk, dv from dout, all F32. n_queries = n_keys = key_stride. */
    void (*attention_backward)(cpl_backend *be, cpl_tensor dq, cpl_tensor dk, cpl_tensor dv,
                               cpl_tensor dout, cpl_tensor out, cpl_tensor lse, cpl_tensor q,
                               cpl_tensor k, cpl_tensor v, cpl_tensor doc_start,
                               cpl_attention_shape shape);

    /* Runs attention forward for segments of any lengths, in F32 for every be->compute. Query i of
     * a segment attends to the segment's keys 0 ... n_keys - n_queries + i. q, out [T, H h]; k, v
     * [rows, G h]. Rows of out that belong to no segment are unchanged. */
    void (*attention_segments)(cpl_backend *be, cpl_tensor out, cpl_tensor q, cpl_tensor k,
                               cpl_tensor v, cpl_segments segments);

    /* ---- routing (route.c) ---- */

    /* probs [T,n] = the scores: softmax(logits [T,n]), or the sigmoid of each. lse [T] = log of the
     * sum of the logits' exponentials. expert [T,K] I32 = the K largest logits (with a bias: the
     * largest score + bias), best first, on ties by lower index. weight [T,K] = their scores
     * (divided by their sum where `renormalise`). */
    void (*route)(cpl_backend *be, cpl_tensor probs, cpl_tensor lse, cpl_tensor expert,
                  cpl_tensor weight, cpl_tensor logits, cpl_routing how);
    /* counts [n] = assignments to each expert, mean_prob [n] = mean over tokens of probs, z [1] =
     * mean over tokens of lse^2, entropy [1] = mean over tokens of the entropy of probs. Sigmoid
     * scores of a token are divided by their sum over all n first. */
    void (*route_stats)(cpl_backend *be, cpl_tensor counts, cpl_tensor mean_prob, cpl_tensor z,
                        cpl_tensor entropy, cpl_tensor probs, cpl_tensor lse, cpl_tensor expert,
                        bool sigmoid);
    /* dlogits [T,n] = gradient of
     *     sum dweight * weight  +  balance_scale sum_e counts[e] sum_t probs[t,e]
     *                           +  z_scale sum_t lse[t]^2
     * with dweight [T,K] and, for the second and third part, `counts` held constant. In the second
     * part sigmoid scores are divided by their sum (route_stats). With sigmoid scores z_scale
     * is 0. */
    void (*route_backward)(cpl_backend *be, cpl_tensor dlogits, cpl_tensor dweight,
                           cpl_tensor probs, cpl_tensor lse, cpl_tensor expert, cpl_tensor weight,
                           cpl_tensor counts, float balance_scale, float z_scale, cpl_routing how);
    /* bias [n] *adds* rate if load [n] is below its mean, -rate if above, 0 if equal: DeepSeek-V3's
     * balancing without a loss. */
    void (*balance_bias)(cpl_backend *be, cpl_tensor bias, cpl_tensor load, float rate);
    /* loss [1] F64 *adds* the mean over all n^2 entries of (R^ R^T - I)^2 with R^ the rows of R
     * [n,d] divided by their norms. A zero row counts as orthogonal to all rows: its entries are 0.
     * dR [n,d] *adds* scale times the gradient, or is none. */
    void (*orthogonality)(cpl_backend *be, cpl_tensor loss, cpl_tensor dR, cpl_tensor R,
                          float scale);
    /* Sorts the assignments by expert (stable): fills `plan`. */
    void (*dispatch)(cpl_backend *be, cpl_dispatch plan, cpl_tensor expert, int64_t n_experts);

    /* ---- experts (experts.c): all of a layer as one grouped operation, dropless ---- */

    /* y [T,d] = sum over k of weight[t,k] W_down (SiLU(W_gate x) * (W_up x)) of expert[t,k]. gate,
     * up [T K, D] = the two products by sorted row, kept for backward, or none if not needed.
     * hidden [T,n,r] is none, or the input of W_gate [n,D,r] instead of x, row [t,e] for expert e
     * (Autonomy-of-Experts). Products are computed in be->compute. An expert may have no tokens or
     * all of them. x, hidden, gate and up may be F32 or BF16, here and in the gradient. gate and up
     * in BF16 are rounded after y is computed. */
    void (*experts)(cpl_backend *be, cpl_tensor y, cpl_tensor gate, cpl_tensor up, cpl_tensor x,
                    cpl_tensor hidden, cpl_tensor weight, cpl_dispatch plan, cpl_expert_weights w);
    /* dx [T,d] and dw *add*. dweight [T,K] and dhidden [T K, r], by sorted row, are set. dhidden is
     * none if hidden is none. gate and up are overwritten. */
    void (*experts_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dhidden, cpl_tensor dweight,
                             cpl_expert_weights dw, cpl_tensor dy, cpl_tensor gate, cpl_tensor up,
                             cpl_tensor x, cpl_tensor hidden, cpl_tensor weight, cpl_dispatch plan,
                             cpl_expert_weights w);
    /* hidden [T,n,r] becomes its own gradient: dnorm[t,e] / norm[t,e] hidden[t,e] (0 if the norm is
     * 0), plus, if e is in expert [T,K], the sorted row's part of dchosen [T K, r]. norm, dnorm
     * [T,n]. hidden is F32 or BF16. */
    void (*hidden_backward)(cpl_backend *be, cpl_tensor hidden, cpl_tensor norm, cpl_tensor dnorm,
                            cpl_tensor dchosen, cpl_tensor expert, cpl_dispatch plan);

    /* ---- cross-entropy (xent.c): no T x V matrix ---- */

    /* nll [T] = -log softmax(head x)[target], 0 where target [T] I32 is -1. x [T,d] F32 or BF16,
     * head [V,d]. */
    void (*xent)(cpl_backend *be, cpl_tensor nll, cpl_tensor x, cpl_tensor head, cpl_tensor target);
    /* Computes xent, and the gradient of the sum of nll times `scale`: dx is set, dhead *adds*. */
    void (*xent_train)(cpl_backend *be, cpl_tensor nll, cpl_tensor dx, cpl_tensor dhead,
                       cpl_tensor x, cpl_tensor head, cpl_tensor target, float scale);

    /* out [P] = log softmax(logits [R,V])[row[p], id[p]]; row, id [P] I32. */
    void (*log_probs)(cpl_backend *be, cpl_tensor out, cpl_tensor logits, cpl_tensor row,
                      cpl_tensor id);

    /* ---- sums (reduce.c): computed in double, in an order independent of the threads; out [1] F64
     * *adds* the sum ---- */

    void (*sum)(cpl_backend *be, cpl_tensor out, cpl_tensor x);
    /* Counts the entries of x below 0. NaN entries are not counted. */
    void (*count_negative)(cpl_backend *be, cpl_tensor out, cpl_tensor x);
    /* Computes the sum of x y. */
    void (*dot)(cpl_backend *be, cpl_tensor out, cpl_tensor x, cpl_tensor y);
    /* out [n] = the Euclidean norm of each x[i] of x [n, ...], F32 or BF16, rounded to F32 once:
     * |W_g^j|_F of the experts' gates [n,D,d]. NaN or infinity in x[i] makes out[i] NaN or
     * infinite. */
    void (*row_norms)(cpl_backend *be, cpl_tensor out, cpl_tensor x);
    /* out [2,d] F64 *adds* the sums of each column of x [T,d], F32 or BF16: of its numbers, then of
     * their squares. T may be 0. */
    void (*column_moments)(cpl_backend *be, cpl_tensor out, cpl_tensor x);

    /* ---- largest singular values (spectral.c) ---- */

    /* out [n] = |W_g^j|_2, the largest singular value of each x[j] of x [n,D,d], F32 or BF16, with
     * a relative error of at most 1e-5. It is 0 for a zero matrix, and NaN where x[j] has a NaN or
     * an infinity. The bits of out[j] depend on x[j] only. */
    void (*spectral_norms)(cpl_backend *be, cpl_tensor out, cpl_tensor x);
    /* out [n] = |x[i] rows[i]| of rows [n,d] and x [n,D,d], F32 or BF16: the response of
     * expert i to its own row, at most |rows[i]| |x[i]|_2. */
    void (*own_responses)(cpl_backend *be, cpl_tensor out, cpl_tensor rows, cpl_tensor x);

    /* ---- figures (figures.c) ---- */

    /* out [CPL_N_FIGURES] F64 = the members of cpl_coupling_figures in their order, from M [n,n]
     * and eps [n] (made with these rows, delta and gates), the router R [n,d], the rows [n,d] of
     * the proxies (R or its centred rows), delta [n,d] (none: 1), gate_norm [n], the norms
     * |W_g^j|_F of the gates, gate_spectral [n], their norms |W_g^j|_2, and own [n], |R_i W_g^i|
     * without noise (none: M's diagonal). Without gate_spectral the figures that need it are
     * NaN. */
    void (*coupling_figures)(cpl_backend *be, cpl_tensor out, cpl_tensor M, cpl_tensor eps,
                             cpl_tensor R, cpl_tensor rows, cpl_tensor delta, cpl_tensor gate_norm,
                             cpl_tensor gate_spectral, cpl_tensor own, double alpha, int64_t top_k);

    /* ---- optimizer (adamw.c) ---- */

    /* Runs one AdamW step of one tensor (docs/method.md 7.3): g = grad * coef; p *= 1 - lr decay;
     * m, v moments; p -= lr * (m / correct1) / (sqrt(v / correct2) + eps). copy is none, or set to
     * the parameter rounded to BF16. */
    void (*adamw)(cpl_backend *be, cpl_tensor p, cpl_tensor m, cpl_tensor v, cpl_tensor copy,
                  cpl_tensor grad, float coef, float lr, float decay, float beta1, float beta2,
                  float eps, double correct1, double correct2);

    /* ---- initial weights (sample.c) ---- */

    /* y[i] = std * the first of normal(key, first + i + a 2^40), a = 0, 1, ..., that is within
     * +- cut. */
    void (*normal)(cpl_backend *be, cpl_tensor y, float std, float cut, cpl_rng_key key,
                   int64_t first);

    /* ---- drawing a token (sample.c) ---- */

    /* id [1] I32 = an id drawn from softmax(logits [V] / temperature), restricted to the smallest
     * set of most likely ids whose probability reaches top_p. `uniform` in [0,1) determines the
     * draw. With temperature 0 it is the id of the largest logit, the lowest id on ties. */
    void (*sample)(cpl_backend *be, cpl_tensor id, cpl_tensor logits, float temperature,
                   float top_p, float uniform);

    /* ---- the coupling loss (erc.c); declared in tensor/erc.h ---- */
    cpl_erc_ops erc;

    /* Returns the bytes of scratch that the operations above need at most for these shapes. */
    size_t (*scratch_bytes)(const cpl_backend *be, const cpl_work *work);

    /* Waits for all earlier operations. Returns the first failure, which stays recorded. */
    cpl_status (*sync)(cpl_backend *be);
};

#endif /* CPL_TENSOR_OPS_H */
