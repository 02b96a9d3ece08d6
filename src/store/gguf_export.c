/* gguf_export.c - writes a model as GGUF, see gguf_export.h.
 *
 * Two architectures of llama.cpp compute the models of this program: olmoe (src/models/olmoe.cpp)
 * does not renormalise the K weights, minimax-m2 (src/models/minimax-m2.cpp) does. Their graphs are
 * otherwise equal, except that olmoe has as many key/value heads as query heads and minimax-m2
 * always adds a bias to the scores that choose experts. */
#include "store/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "tensor/encode.h"

enum {
    PIECE                = 1 << 20, /* numbers read at once, or one row if it is longer */
    QUANTIZATION_VERSION = 2,       /* version of ggml's blocks */
    MOST_LAYERS          = 512,     /* LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS in llama-hparams.h, */
    MOST_EXPERTS         = 1024,    /* October 2026 */
};

/* ---- names ---- */

static const struct {
    const char *field, *name;
} names[] = {
    {"embed", "token_embd.weight"},
    {"input_norm", "attn_norm.weight"},
    {"w_q", "attn_q.weight"},
    {"w_k", "attn_k.weight"},
    {"w_v", "attn_v.weight"},
    {"w_o", "attn_output.weight"},
    {"q_norm", "attn_q_norm.weight"},
    {"k_norm", "attn_k_norm.weight"},
    {"post_norm", "ffn_norm.weight"},
    {"router", "ffn_gate_inp.weight"},
    {"router_bias", "exp_probs_b.bias"},
    {"w_gate", "ffn_gate_exps.weight"},
    {"w_up", "ffn_up_exps.weight"},
    {"w_down", "ffn_down_exps.weight"},
    {"norm", "output_norm.weight"},
    {"head", "output.weight"},
};

static const char *name_of(const char *field)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].field, field) == 0) return names[i].name;
    return NULL;
}

static bool is_field(const cpl_param *param, const char *field)
{
    return strcmp(param->field, field) == 0;
}

static void set_name(char out[CPL_GGUF_MAX_NAME + 1], int64_t layer, const char *name)
{
    if (layer < 0)
        snprintf(out, CPL_GGUF_MAX_NAME + 1, "%s", name);
    else
        snprintf(out, CPL_GGUF_MAX_NAME + 1, "blk.%lld.%s", (long long)layer, name);
}

const char *cpl_gguf_export_name(char out[CPL_GGUF_MAX_NAME + 1], const cpl_param *param)
{
    const char *name = name_of(param->field);
    if (!name) return NULL;
    set_name(out, param->layer, name);
    return out;
}

/* ---- models that llama.cpp supports ---- */

/* llama.cpp's codes of the scores, LLAMA_EXPERT_GATING_FUNC_TYPE. */
enum { GATING_SOFTMAX = 1, GATING_SIGMOID = 2 };

/* The graph of llama.cpp that computes the model. */
typedef struct graph {
    const char *architecture;
    int gating;      /* 0 if the architecture has a single gating */
    bool has_bias;   /* true if the graph has a bias of the experts' scores (zeros if the model has
                        no bias) */
    int64_t repeats; /* number of times that each key/value head is written */
} graph;

static cpl_status refuse(const char *folder, const char *what)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: llama.cpp has no graph for this model: %s", folder, what);
}

static cpl_status find_form(graph *out, const cpl_model_settings *c, const char *folder)
{
    const bool sigmoid = cpl_router_of(c)->scores == CPL_SCORES_SIGMOID;
    if (!cpl_router_of(c)->has_rows)
        return refuse(folder, "its experts are chosen by their own norms (Autonomy-of-Experts)");
    CPL_ASSERT(sigmoid || cpl_router_of(c)->scores == CPL_SCORES_SOFTMAX);
    if (c->d_latent > 0) return refuse(folder, "its experts are latent (latent_dim)");
    if (c->n_shared > 0) return refuse(folder, "it has shared experts (n_shared_experts)");
    if (!isnan(c->clip_qkv)) return refuse(folder, "it clamps queries, keys and values (clip_qkv)");
    if (sigmoid && !c->norm_topk)
        return refuse(folder, "its sigmoid scores are not divided by their sum (norm_topk_prob)");
    *out = c->norm_topk ? (graph){"minimax-m2", sigmoid ? GATING_SIGMOID : GATING_SOFTMAX, true, 1}
                        : (graph){"olmoe", 0, false, c->n_heads / c->n_kv_heads};
    return CPL_OK;
}

static void warn_of_limits(const cpl_model_settings *c, const cpl_log *log)
{
    if (c->n_layers > MOST_LAYERS)
        cpl_log_warn(log, "%lld layers: llama.cpp is built for %d at most", (long long)c->n_layers,
                     MOST_LAYERS);
    if (c->n_experts > MOST_EXPERTS)
        cpl_log_warn(log, "%lld experts: llama.cpp is built for %d at most",
                     (long long)c->n_experts, MOST_EXPERTS);
}

/* ---- the list of tensors ---- */

/* One tensor of the file. */
typedef struct planned {
    char name[CPL_GGUF_MAX_NAME + 1];
    cpl_param param; /* the parameter with its numbers; zeros if its field is "" */
    int64_t repeats; /* number of consecutive times that each `block` is written */
    int64_t block;   /* numbers */
    cpl_format format;
    int rank;
    int64_t shape[3];
} planned;

typedef struct plan {
    planned *at; /* owned */
    int64_t count;
} plan;

static int64_t numbers_of(int rank, const int64_t *shape)
{
    int64_t numbers = 1;
    for (int i = 0; i < rank; i++) numbers *= shape[i];
    return numbers;
}

/* Returns the tensor's format, as llama.cpp's converter chooses it: vectors and the router stay
 * F32, rows that are not a multiple of the block become F16. */
static cpl_format format_of(const planned *p, cpl_format wanted)
{
    if (p->rank == 1 || is_field(&p->param, "router")) return CPL_FORMAT_F32;
    const bool fits = p->shape[p->rank - 1] % cpl_format_block_numbers(wanted) == 0;
    return fits ? wanted : CPL_FORMAT_F16;
}

static bool is_of_kv_heads(const cpl_param *param)
{
    return is_field(param, "w_k") || is_field(param, "w_v") || is_field(param, "k_norm");
}

static void plan_param(plan *all, const cpl_param *param, const char *name, const graph *form,
                       const cpl_model_settings *c, cpl_format type)
{
    planned *p = &all->at[all->count++];
    *p         = (planned){.param = *param, .repeats = 1, .rank = param->rank};
    set_name(p->name, param->layer, name);
    memcpy(p->shape, param->shape, sizeof p->shape);
    p->block = numbers_of(p->rank, p->shape);
    if (is_of_kv_heads(param)) {
        p->block /= c->n_kv_heads;
        p->repeats = form->repeats;
        p->shape[0] *= form->repeats;
    }
    p->format = format_of(p, type);
}

static void plan_zeros(plan *all, int64_t layer, const cpl_model_settings *c)
{
    planned *p = &all->at[all->count++];
    *p         = (planned){.param   = {.field = ""},
                           .repeats = 1,
                           .block   = c->n_experts,
                           .format  = CPL_FORMAT_F32,
                           .rank    = 1,
                           .shape   = {c->n_experts}};
    set_name(p->name, layer, name_of("router_bias"));
}

/* Plans every parameter. A tied head is written a second time, since llama.cpp needs it for these
 * architectures, and biases of zero are added if the graph needs them. */
static cpl_status make_plan(plan *all, const graph *form, const cpl_model_settings *c,
                            cpl_format type)
{
    const int64_t n_params = cpl_params_count(c);
    all->at                = cpl_alloc((size_t)(n_params + c->n_layers + 1) * sizeof *all->at);
    if (!all->at) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < n_params; i++) {
        const cpl_param param = cpl_params_at(c, i);
        const char *name      = name_of(param.field);
        if (is_field(&param, "router_original")) continue; /* the file has the rows that score */
        CPL_ASSERT(name);
        plan_param(all, &param, name, form, c, type);
        if (c->tied && is_field(&param, "embed"))
            plan_param(all, &param, name_of("head"), form, c, type);
    }
    for (int64_t l = 0; l < c->n_layers && form->has_bias && !c->router_bias; l++)
        plan_zeros(all, l, c);
    return CPL_OK;
}

/* ---- metadata ---- */

static void put_size(cpl_gguf_writer *w, const graph *form, const char *key, int64_t value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", form->architecture, key);
    cpl_gguf_writer_u32(w, full, value);
}

static void put_number(cpl_gguf_writer *w, const graph *form, const char *key, double value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", form->architecture, key);
    cpl_gguf_writer_f32(w, full, (float)value);
}

/* Returns the code LLAMA_FTYPE of the matrices' format. */
static int64_t file_type_of(cpl_format type)
{
    return type == CPL_FORMAT_F32    ? 0
           : type == CPL_FORMAT_F16  ? 1
           : type == CPL_FORMAT_BF16 ? 32
                                     : 7;
}

static void put_general(cpl_gguf_writer *w, const graph *form, cpl_format type, const char *name)
{
    cpl_gguf_writer_string(w, CPL_GGUF_KEY_ARCHITECTURE, form->architecture);
    cpl_gguf_writer_string(w, "general.type", "model");
    cpl_gguf_writer_string(w, "general.name", name);
    cpl_gguf_writer_u32(w, "general.file_type", file_type_of(type));
    cpl_gguf_writer_u32(w, "general.quantization_version", QUANTIZATION_VERSION);
}

static void put_model(cpl_gguf_writer *w, const graph *form, const cpl_model_settings *c)
{
    put_size(w, form, "vocab_size", c->vocab_size);
    put_size(w, form, "context_length", c->max_positions);
    put_size(w, form, CPL_GGUF_KEY_WIDTH, c->d_model);
    put_size(w, form, CPL_GGUF_KEY_LAYERS, c->n_layers);
    put_size(w, form, "feed_forward_length", c->d_expert);
    put_size(w, form, CPL_GGUF_KEY_EXPERT_WIDTH, c->d_expert);
    put_size(w, form, "attention.head_count", c->n_heads);
    put_size(w, form, "attention.head_count_kv", c->n_kv_heads * form->repeats);
    put_number(w, form, "attention.layer_norm_rms_epsilon", c->norm_eps);
    put_number(w, form, "rope.freq_base", c->rope_theta);
    put_size(w, form, "rope.dimension_count", c->d_model / c->n_heads);
    put_size(w, form, CPL_GGUF_KEY_EXPERTS, c->n_experts);
    put_size(w, form, CPL_GGUF_KEY_TOP_K, c->top_k);
    if (form->gating) put_size(w, form, "expert_gating_func", form->gating);
}

/* ---- data ---- */

/* The buffers between the model's files and the GGUF file. */
typedef struct stream {
    const cpl_hf *hf;
    cpl_gguf_writer *writer;
    float *numbers; /* (capacity); both owned */
    unsigned char *encoded;
    int64_t capacity;
} stream;

static void free_stream(stream *s)
{
    cpl_free(s->numbers);
    cpl_free(s->encoded);
}

/* Allocates the buffers for a piece of any tensor, a whole number of rows. */
static cpl_status init_stream(stream *s, const plan *all)
{
    s->capacity = PIECE;
    for (int64_t i = 0; i < all->count; i++) {
        const planned *p    = &all->at[i];
        const int64_t width = p->shape[p->rank - 1];
        if (width > s->capacity) s->capacity = width;
    }
    s->numbers = cpl_alloc((size_t)s->capacity * sizeof *s->numbers);
    s->encoded = cpl_alloc((size_t)s->capacity * sizeof *s->numbers); /* no format is longer */
    return s->numbers && s->encoded ? CPL_OK : CPL_ERR_MEMORY;
}

/* Refuses NaN and infinite numbers, also in types that can hold them, since the model would be
 * unusable. */
static cpl_status check_finite(const stream *s, const planned *p, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(s->numbers[i]))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %s has a NaN or an infinite number",
                            cpl_hf_folder(s->hf), p->name);
    return CPL_OK;
}

static cpl_status write_piece(stream *s, const planned *p, int64_t count)
{
    CPL_TRY(check_finite(s, p, count));
    const int64_t blocks = count / cpl_format_block_numbers(p->format);
    if (!cpl_encode(p->format, s->encoded, s->numbers, count))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: tensor %s has a number that %s cannot hold: take another --type",
                        cpl_hf_folder(s->hf), p->name, cpl_format_name(p->format));
    return cpl_gguf_writer_data(s->writer, s->encoded,
                                (size_t)(blocks * cpl_format_block_bytes(p->format)));
}

/* Writes the numbers [first, first + count) of the parameter, or of one of its experts. */
static cpl_status write_range(stream *s, const planned *p, int64_t expert, int64_t first,
                              int64_t count)
{
    const int64_t width = p->rank == 1 ? 1 : p->shape[p->rank - 1];
    const int64_t most  = s->capacity / width * width;
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < most ? count - done : most;
        CPL_TRY(cpl_hf_read_part(s->hf, s->numbers, &p->param, expert, first + done, n));
        CPL_TRY(write_piece(s, p, n));
    }
    return CPL_OK;
}

static cpl_status write_zeros(stream *s, const planned *p)
{
    memset(s->numbers, 0, (size_t)p->block * sizeof *s->numbers);
    return write_piece(s, p, p->block);
}

static cpl_status write_tensor(stream *s, const planned *p)
{
    if (!*p->param.field) return write_zeros(s, p);
    const int64_t all   = numbers_of(p->param.rank, p->param.shape);
    const int64_t parts = p->param.per_expert ? p->param.shape[0] : 1, each = all / parts;
    for (int64_t e = 0; e < parts && p->param.per_expert; e++)
        CPL_TRY(write_range(s, p, e, 0, each));
    for (int64_t at = 0; at < all && !p->param.per_expert; at += p->block)
        for (int64_t r = 0; r < p->repeats; r++) CPL_TRY(write_range(s, p, -1, at, p->block));
    return CPL_OK;
}

static cpl_status write_data(stream *s, const plan *all)
{
    for (int64_t i = 0; i < all->count; i++) {
        CPL_TRY(write_tensor(s, &all->at[i]));
        cpl_gguf_writer_end_tensor(s->writer);
    }
    return CPL_OK;
}

/* ---- the whole file ---- */

/* Checks that every tensor exists and has its shape. */
static cpl_status check_tensors(const cpl_hf *hf, const plan *all)
{
    for (int64_t i = 0; i < all->count; i++) {
        const cpl_param *param = &all->at[i].param;
        const int64_t parts    = param->per_expert ? param->shape[0] : 1;
        for (int64_t e = 0; e < parts && *param->field; e++)
            CPL_TRY(cpl_hf_read_part(hf, NULL, param, e, 0, 0));
    }
    return CPL_OK;
}

static void announce(cpl_gguf_writer *w, cpl_gguf_export *done, const plan *all, cpl_format type)
{
    for (int64_t i = 0; i < all->count; i++) {
        const planned *p = &all->at[i];
        cpl_gguf_writer_tensor(w, p->name, p->format, p->rank, p->shape);
        done->n_kept += p->format == CPL_FORMAT_F16 && type != CPL_FORMAT_F16;
    }
    done->n_tensors = all->count;
    done->bytes     = w->data_bytes;
}

cpl_status cpl_gguf_export_write(cpl_gguf_export *done, const cpl_hf *hf,
                                 const cpl_tokenizer *tokenizer, const char *path, cpl_format type,
                                 const char *name, const cpl_log *log)
{
    const cpl_model_settings *c = cpl_hf_config(hf);
    cpl_gguf_writer w           = {0};
    plan all                    = {0};
    stream s                    = {.hf = hf, .writer = &w};
    cpl_status status           = CPL_OK;
    graph form                  = {0};
    CPL_ASSERT(cpl_encode_knows(type));
    CPL_TRY(find_form(&form, c, cpl_hf_folder(hf)));
    *done = (cpl_gguf_export){.architecture = form.architecture};
    CPL_TRY_DONE(make_plan(&all, &form, c, type));
    CPL_TRY_DONE(check_tensors(hf, &all));
    CPL_TRY_DONE(init_stream(&s, &all));
    warn_of_limits(c, log);
    put_general(&w, &form, type, name);
    put_model(&w, &form, c);
    CPL_TRY_DONE(cpl_gguf_vocabulary_put(&w, tokenizer, hf, log));
    announce(&w, done, &all, type);
    CPL_TRY_DONE(cpl_gguf_writer_begin(&w, path));
    CPL_TRY_DONE(write_data(&s, &all));
    CPL_TRY_DONE(cpl_gguf_writer_commit(&w));
done:
    free_stream(&s);
    cpl_free(all.at);
    cpl_gguf_writer_free(&w);
    return status;
}
