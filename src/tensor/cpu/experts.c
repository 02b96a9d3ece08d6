/* experts.c - all experts of a layer as one grouped operation.
 *
 * Room:    tensor/cpu. Operations: ops.h.
 * Names:   as in experts_block.h. For a chunk of r rows of one expert: x, dy [r,d]; gate, up, and
 *          act = SiLU(gate) * up [r,D]; w [r] routing weights; h = w act.
 * Method:  forward   gate = x W_gate^T, up = x W_up^T, out = h W_down^T, y = sum of the outs.
 *          backward  da = dy W_down [r,D]; dw = dot(act, da), which is dot(dy, W_down act) without
 *                    that product; dgate = w da up SiLU'(gate), dup = w da SiLU(gate);
 *                    dW_down += dy^T h, dW_gate += dgate^T x, dW_up += dup^T x,
 *                    dx = dgate W_gate + dup W_up. Six products; forward has three.
 *          If the gate's input is a hidden vector [r] of token and expert instead of x, that vector
 *          replaces x in gate and dW_gate, and dhidden = dgate W_gate, dx = dup W_up. */
#include <float.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/experts_block.h"

enum { PIECE = 256 }; /* numbers of a row between two roundings */

/* One call, forward or backward. Unused members are NULL. */
typedef struct job {
    cpl_backend *be;
    cpl_operand_form form;
    cpl_expert_sizes s;
    const int32_t *token;               /* [T K] token of each sorted row */
    cpl_tensor x, dy, hidden, gate, up; /* none if the call has no such tensor */
    float *dhidden;
    cpl_expert_weights w, dw;
    cpl_expert_block block;
} job;

/* Panels of one team, for chunks of at most `rows` rows. */
typedef struct panel_set {
    void *weight;          /* [D,d], [d,D] or [D,r], if weights are not in the backend's form */
    void *x, *dy;          /* [rows,d] */
    void *hidden;          /* [rows,r] */
    void *h, *dgate, *dup; /* [rows,D] */
    float *da, *gate, *up; /* [rows,D] F32 */
} panel_set;

/* A chunk: `rows` rows of `expert`, from sorted row `row` and slot `slot` on. */
typedef struct chunk {
    int64_t expert, row, slot, rows;
    int threads;
    panel_set p;
} chunk;

/* ---- panels ---- */

/* Takes the panels. An operand panel has the size of F32 numbers in every form. */
static panel_set take_panels(cpl_arena *arena, cpl_expert_sizes s, int64_t rows, bool backward,
                             bool packs)
{
    const size_t wide    = (size_t)(rows * s.d) * sizeof(float);
    const size_t slim    = (size_t)(rows * s.D) * sizeof(float);
    panel_set p          = {0};
    const int64_t widest = s.d > s.r ? s.d : s.r;
    if (packs) p.weight = cpl_arena_take(arena, (size_t)(s.D * widest) * sizeof(float));
    if (s.r) p.hidden = cpl_arena_take(arena, (size_t)(rows * s.r) * sizeof(float));
    p.x = cpl_arena_take(arena, wide);
    p.h = cpl_arena_take(arena, slim);
    if (backward) {
        p.dy    = cpl_arena_take(arena, wide);
        p.dgate = cpl_arena_take(arena, slim);
        p.dup   = cpl_arena_take(arena, slim);
        p.da    = cpl_arena_take(arena, slim);
    } else {
        p.gate = cpl_arena_take(arena, slim);
        p.up   = cpl_arena_take(arena, slim);
    }
    return p;
}

static size_t panel_bytes(cpl_expert_sizes s, int64_t rows, bool backward, bool packs)
{
    cpl_arena measure = cpl_arena_over(NULL, SIZE_MAX);
    (void)take_panels(&measure, s, rows, backward, packs);
    return measure.used;
}

static int64_t chunk_rows(int64_t T)
{
    return T < CPL_CHUNK_ROWS ? T : CPL_CHUNK_ROWS;
}

/* Gathers an operand [rows, width] for the chunk: of each row's token, `width` numbers from number
 * `first` of the token's `stride` numbers in x. */
static cpl_operand gather_tokens(const job *j, const chunk *c, void *panel, cpl_tensor x,
                                 int64_t stride, int64_t first, int64_t width)
{
    const int32_t *token = j->token + c->row;
#pragma omp parallel for num_threads(c->threads) schedule(static) if (c->threads > 1)
    for (int64_t i = 0; i < c->rows; i++)
        cpl_put_any(j->form, panel, i * width, x.storage, x.dtype, token[i] * stride + first,
                    width);
    return (cpl_operand){panel, cpl_operand_form_dtype(j->form), CPL_AS_IS, width};
}

/* Returns the operand that the gate matrix multiplies: x, or the hidden vectors of the expert. */
static cpl_operand gather_gate(const job *j, const chunk *c, cpl_operand x)
{
    const int64_t n = j->s.n, r = j->s.r;
    return j->hidden.storage ? gather_tokens(j, c, c->p.hidden, j->hidden, n * r, c->expert * r, r)
                             : x;
}

static int64_t gate_width(const job *j)
{
    return j->hidden.storage ? j->s.r : j->s.d;
}

/* Returns the matrix of the chunk's expert as operand. */
static cpl_operand weight_of(const job *j, const chunk *c, cpl_tensor all)
{
    cpl_tensor w = cpl_tensor_at(all, c->expert);
    if (cpl_operand_form_fits(j->form, w.dtype))
        return (cpl_operand){w.storage, w.dtype, CPL_AS_IS, w.shape[1]};
    return cpl_pack(j->form, c->p.weight, w.storage, w.dtype, 0, w.shape[1], w.shape[0], w.shape[1],
                    c->threads);
}

static void multiply(const job *j, const chunk *c, float *to, cpl_operand a, cpl_operand b,
                     int64_t m, int64_t n, int64_t k, float beta)
{
    cpl_multiply(j->be, c->threads, to, n, a, b, (cpl_product_shape){m, n, k}, beta);
}

static cpl_operand slim_panel(const job *j, const void *panel)
{
    return (cpl_operand){panel, cpl_operand_form_dtype(j->form), CPL_AS_IS, j->s.D};
}

/* ---- one row ---- */

static int64_t piece_length(int64_t begin, int64_t end)
{
    return end - begin < PIECE ? end - begin : PIECE;
}

/* Sets h [D] at number `at` of its panel to weight SiLU(gate) up. */
static void activate_row(cpl_operand_form form, void *h, int64_t at, const float *gate,
                         const float *up, float weight, int64_t D)
{
    float act[PIECE];
    for (int64_t begin = 0; begin < D; begin += PIECE) {
        const int64_t count = piece_length(begin, D);
        const float *g = gate + begin, *u = up + begin;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            act[i] = weight * u[i] * (g[i] / (1.0f + cpl_exp(-g[i])));
        cpl_put(form, h, at + begin, act, count);
    }
}

/* Computes row r of the panels h, dgate and dup. Returns dot(act, da). */
static float activate_row_backward(const job *j, const chunk *c, int64_t r)
{
    const int64_t D = j->s.D, row = (c->row + r) * D, at = r * D;
    const panel_set *p          = &c->p;
    const float weight          = j->block.weight[c->slot + r];
    const cpl_operand_form form = j->form;
    float h[PIECE], dgate[PIECE], dup[PIECE], gate[PIECE], up[PIECE], dot = 0;
    for (int64_t begin = 0; begin < D; begin += PIECE) {
        const int64_t count = piece_length(begin, D);
        const float *g      = cpl_row_read(j->gate, row + begin, count, gate);
        const float *u      = cpl_row_read(j->up, row + begin, count, up);
        const float *a      = p->da + at + begin;
        float sum           = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) {
            float sigmoid = 1.0f / (1.0f + cpl_exp(-g[i]));
            float silu = g[i] * sigmoid, wa = weight * a[i];
            sum += silu * u[i] * a[i];
            h[i]     = weight * silu * u[i];
            dup[i]   = wa * silu;
            dgate[i] = wa * u[i] * sigmoid * (1.0f + g[i] * (1.0f - sigmoid));
        }
        cpl_put(form, p->h, at + begin, h, count);
        cpl_put(form, p->dgate, at + begin, dgate, count);
        cpl_put(form, p->dup, at + begin, dup, count);
        dot += sum;
    }
    return dot;
}

/* ---- one chunk ---- */

static void chunk_forward(const job *j, const chunk *c)
{
    const int64_t d = j->s.d, D = j->s.D, at = c->row * D;
    float *gate   = j->gate.storage ? cpl_row_begin(j->gate, at, c->p.gate) : c->p.gate;
    float *up     = j->up.storage ? cpl_row_begin(j->up, at, c->p.up) : c->p.up;
    cpl_operand x = gather_tokens(j, c, c->p.x, j->x, d, 0, d);
    multiply(j, c, gate, gather_gate(j, c, x), cpl_transposed(weight_of(j, c, j->w.w_gate)),
             c->rows, D, gate_width(j), 0);
    multiply(j, c, up, x, cpl_transposed(weight_of(j, c, j->w.w_up)), c->rows, D, d, 0);
#pragma omp parallel for num_threads(c->threads) schedule(static) if (c->threads > 1)
    for (int64_t i = 0; i < c->rows; i++) {
        cpl_row_end(j->gate, at + i * D, D, gate + i * D);
        cpl_row_end(j->up, at + i * D, D, up + i * D);
        activate_row(j->form, c->p.h, i * D, gate + i * D, up + i * D, j->block.weight[c->slot + i],
                     D);
    }
    multiply(j, c, j->block.out + c->slot * d, slim_panel(j, c->p.h),
             cpl_transposed(weight_of(j, c, j->w.w_down)), c->rows, d, D, 0);
}

static void chunk_backward(const job *j, const chunk *c)
{
    const int64_t d = j->s.d, D = j->s.D, e = c->expert, rows = c->rows;
    const panel_set *p = &c->p;
    cpl_operand dy     = gather_tokens(j, c, p->dy, j->dy, d, 0, d);
    multiply(j, c, p->da, dy, weight_of(j, c, j->w.w_down), rows, D, d, 0);
#pragma omp parallel for num_threads(c->threads) schedule(static) if (c->threads > 1)
    for (int64_t i = 0; i < rows; i++) j->block.dot[c->slot + i] = activate_row_backward(j, c, i);
    cpl_operand x = gather_tokens(j, c, p->x, j->x, d, 0, d), h = slim_panel(j, p->h);
    cpl_operand in    = gather_gate(j, c, x);
    cpl_operand dgate = slim_panel(j, p->dgate), dup = slim_panel(j, p->dup);
    float *dx  = j->block.out + c->slot * d;
    float *din = j->dhidden ? j->dhidden + c->row * j->s.r : dx;
    multiply(j, c, cpl_tensor_at(j->dw.w_down, e).storage, cpl_transposed(dy), h, d, D, rows, 1);
    multiply(j, c, cpl_tensor_at(j->dw.w_gate, e).storage, cpl_transposed(dgate), in, D,
             gate_width(j), rows, 1);
    multiply(j, c, cpl_tensor_at(j->dw.w_up, e).storage, cpl_transposed(dup), x, D, d, rows, 1);
    multiply(j, c, din, dgate, weight_of(j, c, j->w.w_gate), rows, gate_width(j), D, 0);
    multiply(j, c, dx, dup, weight_of(j, c, j->w.w_up), rows, d, D, din == dx ? 1.0f : 0.0f);
}

/* Computes all rows of one expert, in even chunks. */
static void one_expert(void *context, cpl_team team, int64_t expert)
{
    const job *j     = context;
    const bool packs = j->be->compute != CPL_F32;
    int64_t rows = cpl_block_rows(&j->block, expert), first = j->block.first_row[expert];
    int64_t chunks = (rows + team.rows - 1) / team.rows, step = (rows + chunks - 1) / chunks;
    cpl_arena arena = cpl_arena_over(team.panels, team.bytes);
    chunk c         = {.expert = expert, .threads = team.threads};
    c.p             = take_panels(&arena, j->s, step, j->dy.storage != NULL, packs);
    for (int64_t done = 0; done < rows; done += step) {
        c.row  = first + done;
        c.slot = j->block.first_slot[expert] + done;
        c.rows = rows - done < step ? rows - done : step;
        if (j->dy.storage)
            chunk_backward(j, &c);
        else
            chunk_forward(j, &c);
    }
}

/* ---- one block of tokens ---- */

/* Sets sum [T,d] at the block's tokens to the sum over their slots' out, or adds it if `adds`. */
static void combine(const job *j, float *sum, bool adds)
{
    const int64_t K = j->s.K, d = j->s.d;
    const cpl_expert_block *b = &j->block;
#pragma omp parallel for num_threads(cpl_threads(j->be, b->rows *d)) schedule(static)
    for (int64_t t = 0; t < b->n_tokens; t++) {
        float *to = sum + (b->first_token + t) * d;
        if (!adds) memset(to, 0, (size_t)d * sizeof *to);
        for (int64_t k = 0; k < K; k++) {
            const float *out = b->out + b->slot_of[t * K + k] * d;
#pragma omp simd
            for (int64_t i = 0; i < d; i++) to[i] += out[i];
        }
    }
}

static void write_dweight(const job *j, float *dweight)
{
    const cpl_expert_block *b = &j->block;
    for (int64_t i = 0; i < b->rows; i++)
        dweight[b->first_token * j->s.K + i] = b->dot[b->slot_of[i]];
}

/* Runs the call block by block. Sets sum, or adds to it if dweight is not NULL (backward). */
static void run(job *j, float *sum, float *dweight, const float *weight, cpl_dispatch plan)
{
    const cpl_expert_sizes s = j->s;
    const int64_t rows = chunk_rows(s.T), tokens = cpl_block_tokens(s);
    const size_t bytes = panel_bytes(s, rows, dweight != NULL, j->be->compute != CPL_F32);
    cpl_arena arena    = cpl_arena_over(j->be->scratch, j->be->scratch_bytes);
    j->block           = cpl_block_take(&arena, s, tokens);
    char *panels       = cpl_arena_take(&arena, bytes * (size_t)j->be->n_threads);
    for (int64_t first = 0; first < s.T; first += tokens) {
        int64_t count = s.T - first < tokens ? s.T - first : tokens;
        cpl_block_set(&j->block, j->be, s, plan, weight, first, count);
        cpl_block_run(j->be, &j->block, s.n, panels, bytes, rows, j, one_expert);
        combine(j, sum, dweight != NULL);
        if (dweight) write_dweight(j, dweight);
    }
}

/* ---- the operations ---- */

static cpl_expert_sizes sizes_of(cpl_tensor x, cpl_tensor hidden, cpl_tensor weight,
                                 cpl_expert_weights w)
{
    cpl_expert_sizes s = {x.shape[0], weight.shape[1],   w.w_gate.shape[0],
                          x.shape[1], w.w_gate.shape[1], 0};
    if (hidden.storage) s.r = w.w_gate.shape[2];
    CPL_ASSERT(hidden.storage ? cpl_tensor_count(hidden) == s.T * s.n * s.r
                              : w.w_gate.shape[2] == s.d);
    CPL_ASSERT(weight.shape[0] == s.T && w.w_up.shape[0] == s.n);
    CPL_ASSERT(w.w_up.shape[1] == s.D && w.w_up.shape[2] == s.d && w.w_down.shape[0] == s.n);
    CPL_ASSERT(w.w_down.shape[1] == s.d && w.w_down.shape[2] == s.D);
    return s;
}

static job job_of(cpl_backend *be, cpl_tensor gate, cpl_tensor up, cpl_tensor x, cpl_tensor hidden,
                  cpl_tensor weight, cpl_dispatch plan, cpl_expert_weights w)
{
    return (job){.be     = be,
                 .form   = cpl_operand_form_of(be),
                 .s      = sizes_of(x, hidden, weight, w),
                 .token  = cpl_i32(plan.token),
                 .x      = x,
                 .hidden = hidden,
                 .gate   = gate,
                 .up     = up,
                 .w      = w};
}

void CPL_ISA_NAME(cpl_cpu_experts)(cpl_backend *be, cpl_tensor y, cpl_tensor gate, cpl_tensor up,
                                   cpl_tensor x, cpl_tensor hidden, cpl_tensor weight,
                                   cpl_dispatch plan, cpl_expert_weights w)
{
    job j = job_of(be, gate, up, x, hidden, weight, plan, w);
    run(&j, cpl_f32(y), NULL, cpl_f32(weight), plan);
}

void CPL_ISA_NAME(cpl_cpu_experts_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dhidden,
                                            cpl_tensor dweight, cpl_expert_weights dw,
                                            cpl_tensor dy, cpl_tensor gate, cpl_tensor up,
                                            cpl_tensor x, cpl_tensor hidden, cpl_tensor weight,
                                            cpl_dispatch plan, cpl_expert_weights w)
{
    job j     = job_of(be, gate, up, x, hidden, weight, plan, w);
    j.dy      = dy;
    j.dhidden = dhidden.storage ? cpl_f32(dhidden) : NULL;
    j.dw      = dw;
    CPL_ASSERT(gate.storage && up.storage && !hidden.storage == !dhidden.storage);
    CPL_ASSERT(!dhidden.storage || cpl_tensor_count(dhidden) == j.s.T * j.s.K * j.s.r);
    run(&j, cpl_f32(dx), cpl_f32(dweight), cpl_f32(weight), plan);
}

/* ---- the gates' input ---- */

/* Replaces hidden [n,r] of one token by its gradient through the norms. A norm that is not a normal
 * number counts as 0, since its reciprocal may be infinite. */
static void norms_backward(float *hidden, const float *norm, const float *dnorm, int64_t n,
                           int64_t r)
{
    for (int64_t e = 0; e < n; e++) {
        const float factor = norm[e] < FLT_MIN ? 0.0f : dnorm[e] / norm[e];
        float *row         = hidden + e * r;
#pragma omp simd
        for (int64_t i = 0; i < r; i++) row[i] *= factor;
    }
}

static void add_row(float *to, const float *from, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

/* Returns the scratch bytes for a token's vectors in F32, for each thread, if hidden is BF16. */
static size_t hidden_bytes(const cpl_backend *be, int64_t n, int64_t r)
{
    return be->compute == CPL_F32 ? 0 : (size_t)(be->n_threads * n * r) * sizeof(float);
}

/* Runs the two passes over a token's vectors in turn, so that the vectors stay in the cache. */
void CPL_ISA_NAME(cpl_cpu_hidden_backward)(cpl_backend *be, cpl_tensor hidden, cpl_tensor norm,
                                           cpl_tensor dnorm, cpl_tensor dchosen, cpl_tensor expert,
                                           cpl_dispatch plan)
{
    const int64_t T = expert.shape[0], K = expert.shape[1], n = cpl_tensor_cols(norm);
    const int64_t r   = cpl_tensor_cols(hidden);
    const float *from = cpl_f32(dchosen), *length = cpl_f32(norm), *dlength = cpl_f32(dnorm);
    const int32_t *chosen = cpl_i32(expert), *row = cpl_i32(plan.row);
    CPL_ASSERT(cpl_tensor_count(hidden) == T * n * r && cpl_tensor_count(dnorm) == T * n);
    CPL_ASSERT(cpl_tensor_count(dchosen) == T * K * r);
    CPL_ASSERT(hidden.dtype == CPL_F32 || be->scratch_bytes >= hidden_bytes(be, n, r));
#pragma omp parallel for num_threads(cpl_threads(be, T *n *r)) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *room =
            hidden.dtype == CPL_F32 ? NULL : (float *)be->scratch + omp_get_thread_num() * n * r;
        float *own = cpl_row_begin(hidden, t * n * r, room);
        (void)cpl_row_read(hidden, t * n * r, n * r, room);
        norms_backward(own, length + t * n, dlength + t * n, n, r);
        for (int64_t i = t * K; i < (t + 1) * K; i++)
            add_row(own + chosen[i] * r, from + row[i] * r, r);
        cpl_row_end(hidden, t * n * r, n * r, own);
    }
}

static size_t scratch_for(const cpl_backend *be, cpl_expert_sizes s, bool training)
{
    if (s.n == 0 || s.K == 0 || s.d == 0) return 0;
    bool packs        = be->compute != CPL_F32;
    int64_t rows      = chunk_rows(s.T);
    size_t forward    = panel_bytes(s, rows, false, packs);
    size_t backward   = panel_bytes(s, rows, training, packs);
    size_t most       = forward > backward ? forward : backward;
    cpl_arena measure = cpl_arena_over(NULL, SIZE_MAX);
    (void)cpl_block_take(&measure, s, cpl_block_most_tokens(s.T, s.K, s.d));
    cpl_arena_take(&measure, most * (size_t)be->n_threads);
    return measure.used;
}

/* Returns the bytes for the routed experts or the shared expert, whose rows are all tokens. */
size_t CPL_ISA_NAME(cpl_cpu_experts_scratch)(const cpl_backend *be, const cpl_work *work)
{
    cpl_expert_sizes routed = {work->n_tokens, work->top_k,    work->n_experts,
                               work->d_model,  work->d_expert, work->gate_rank};
    cpl_expert_sizes shared = {work->n_tokens, 1, 1, work->d_model, work->d_shared, 0};
    size_t one              = scratch_for(be, routed, work->training);
    size_t two              = work->d_shared > 0 ? scratch_for(be, shared, work->training) : 0;
    size_t of_hidden        = hidden_bytes(be, work->n_experts, work->gate_rank);
    two                     = two > of_hidden ? two : of_hidden;
    return one > two ? one : two;
}
