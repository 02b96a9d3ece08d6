/* A layer of Autonomy-of-Experts, built from the operations, against the reference values: the
 * experts' own norms choose, and hidden = W_down x is the input of their gates. */
#include "io/json.h"
#include "tensor/golden.h"
#include "tensor/levels.h"

static const double GOLDEN = 1e-4; /* the limit that belongs to the reference values */

typedef struct layer {
    int64_t T, n, d, D, r, K;
    cpl_backend *be;
    cpl_tensor x, C;        /* [T,d] */
    cpl_tensor w_a;         /* [n r, d], all W_down */
    cpl_expert_weights w;   /* w_gate = W_up, w_up = W_p, w_down = W_o */
    cpl_tensor hidden;      /* [T,n,r] */
    cpl_tensor norm, probs; /* [T,n] */
    cpl_tensor expert, weight, counts, mean_prob, y, gate, up;
    cpl_dispatch plan;
} layer;

/* Returns the stored tensor as [a,b,c], or as [a,b] if c is 0. */
static cpl_tensor stored(const cpl_safetensors *file, const char *name, int64_t a, int64_t b,
                         int64_t c)
{
    cpl_tensor x = golden_tensor(file, name);
    assert_int_equal(cpl_tensor_count(x), a * b * (c ? c : 1));
    return c ? cpl_tensor_3d(x.storage, CPL_F32, a, b, c) : cpl_tensor_2d(x.storage, CPL_F32, a, b);
}

static layer open_layer(const cpl_safetensors *file, layer l)
{
    const cpl_work work = LIST(.n_tokens = l.T, .d_model = l.d, .d_expert = l.D, .n_experts = l.n,
                               .top_k = l.K, .gate_rank = l.r, .training = true);
    l.be                = new_cpu(CPL_F32, 2, work);
    l.x                 = stored(file, "X", l.T, l.d, 0);
    l.C                 = stored(file, "C", l.T, l.d, 0);
    l.w_a               = stored(file, "W_down", l.n * l.r, l.d, 0);
    l.w.w_gate          = stored(file, "W_up", l.n, l.D, l.r);
    l.w.w_up            = stored(file, "W_p", l.n, l.D, l.d);
    l.w.w_down          = stored(file, "W_o", l.n, l.d, l.D);
    l.hidden = cpl_tensor_3d(new_tensor(CPL_F32, l.T * l.n, l.r).storage, CPL_F32, l.T, l.n, l.r);
    l.norm   = new_tensor(CPL_F32, l.T, l.n);
    l.probs  = new_tensor(CPL_F32, l.T, l.n);
    l.expert = new_tensor(CPL_I32, l.T, l.K);
    l.weight = new_tensor(CPL_F32, l.T, l.K);
    l.counts = new_1d(CPL_F32, l.n);
    l.mean_prob = new_1d(CPL_F32, l.n);
    l.y         = new_tensor(CPL_F32, l.T, l.d);
    l.gate      = new_tensor(CPL_F32, l.T * l.K, l.D);
    l.up        = new_tensor(CPL_F32, l.T * l.K, l.D);
    return l;
}

/* Returns hidden [T,n,r] in the shape that the products and the norms take. */
static cpl_tensor flat(const layer *l)
{
    return cpl_tensor_2d(l->hidden.storage, CPL_F32, l->T, l->n * l->r);
}

static void forward(layer *l)
{
    cpl_backend *be          = l->be;
    const cpl_ops *ops       = be->ops;
    const cpl_routing scores = {.bias = cpl_tensor_none()};
    cpl_tensor lse = new_1d(CPL_F32, l->T), z = new_1d(CPL_F32, 1), entropy = new_1d(CPL_F32, 1);
    ops->gemm(be, flat(l), CPL_AS_IS, l->x, CPL_TRANSPOSED, l->w_a, 0);
    ops->row_norms(be, cpl_tensor_1d(l->norm.storage, CPL_F32, l->T * l->n),
                   cpl_tensor_2d(l->hidden.storage, CPL_F32, l->T * l->n, l->r));
    ops->route(be, l->probs, lse, l->expert, l->weight, l->norm, scores);
    ops->route_stats(be, l->counts, l->mean_prob, z, entropy, l->probs, lse, l->expert, false);
    l->plan = dispatch_of(be, l->expert, l->n);
    ops->experts(be, l->y, l->gate, l->up, l->x, l->hidden, l->weight, l->plan, l->w);
}

static cpl_tensor zeros_like(cpl_tensor x)
{
    x.storage = new_tensor(CPL_F32, cpl_tensor_count(x), 1).storage;
    return x;
}

static void backward(layer *l, const cpl_safetensors *file, float balance_scale)
{
    cpl_backend *be          = l->be;
    const cpl_ops *ops       = be->ops;
    const cpl_routing scores = {.bias = cpl_tensor_none()};
    cpl_tensor dx = zeros_like(l->x), dw_a = zeros_like(l->w_a), dnorm = zeros_like(l->norm);
    cpl_tensor dweight = zeros_like(l->weight), lse = new_1d(CPL_F32, l->T);
    cpl_tensor dchosen    = new_tensor(CPL_F32, l->T * l->K, l->r);
    cpl_expert_weights dw = {zeros_like(l->w.w_gate), zeros_like(l->w.w_up),
                             zeros_like(l->w.w_down)};
    ops->experts_backward(be, dx, dchosen, dweight, dw, l->C, l->gate, l->up, l->x, l->hidden,
                          l->weight, l->plan, l->w);
    ops->route_backward(be, dnorm, dweight, l->probs, lse, l->expert, l->weight, l->counts,
                        balance_scale, 0, scores);
    ops->hidden_backward(be, l->hidden, l->norm, dnorm, dchosen, l->expert, l->plan);
    ops->gemm(be, dx, CPL_AS_IS, flat(l), CPL_AS_IS, l->w_a, 1);
    ops->gemm(be, dw_a, CPL_TRANSPOSED, flat(l), CPL_AS_IS, l->x, 1);
    assert_ok(ops->sync(be));
    assert_close("dX", dx, golden_doubles(file, "dX"), GOLDEN, 0);
    assert_close("dW_down", dw_a, golden_doubles(file, "dW_down"), GOLDEN, 0);
    assert_close("dW_up", dw.w_gate, golden_doubles(file, "dW_up"), GOLDEN, 0);
    assert_close("dW_p", dw.w_up, golden_doubles(file, "dW_p"), GOLDEN, 0);
    assert_close("dW_o", dw.w_down, golden_doubles(file, "dW_o"), GOLDEN, 0);
}

static void check_kept(const layer *l, const cpl_safetensors *file)
{
    const cpl_safetensors_entry *entry = golden_entry(file, "kept");
    const size_t bytes                 = (size_t)(l->T * l->K) * sizeof(int32_t);
    int32_t *kept                      = take(bytes);
    assert_ok(cpl_safetensors_read_raw(file, entry, kept, 0, bytes));
    assert_memory_equal(kept, l->expert.storage, bytes);
}

static void check(const cpl_safetensors *file, layer sizes, double balance_weight)
{
    layer l         = open_layer(file, sizes);
    const double TK = (double)(l.T * l.K), n = (double)l.n;
    forward(&l);
    assert_close("scores", l.probs, golden_doubles(file, "scores"), GOLDEN, 0);
    check_kept(&l, file);
    assert_close("counts", l.counts, golden_doubles(file, "counts"), 0, 0);
    assert_close("y", l.y, golden_doubles(file, "y"), GOLDEN, 0);
    const double balance = n * dot_of(l.be, l.counts, l.mean_prob) / TK;
    const double total   = dot_of(l.be, l.y, l.C) + balance_weight * balance;
    const double want = *golden_doubles(file, "balance"), all = *golden_doubles(file, "total");
    assert_near(balance, want, GOLDEN * want);
    assert_near(total, all, GOLDEN * fabs(all));
    backward(&l, file, (float)(balance_weight * n / (TK * (double)l.T)));
}

static int64_t number(const json_t *one, const char *key)
{
    return json_integer_value(json_object_get(one, key));
}

TEST(as_the_reference)
{
    json_t *cases = NULL, *one;
    size_t i;
    int seen = 0;
    assert_ok(cpl_json_load(&cases, golden_path("aoe/cases.json")));
    json_array_foreach(cases, i, one)
    {
        char path[200];
        layer sizes = LIST(.T = number(one, "T"), .n = number(one, "n"), .d = number(one, "d"),
                           .D = number(one, "D"), .r = number(one, "r"), .K = number(one, "K"));
        snprintf(path, sizeof path, "aoe/%s.safetensors",
                 json_string_value(json_object_get(one, "name")));
        cpl_safetensors *file = golden_open(path);
        check(file, sizes, json_number_value(json_object_get(one, "balance_weight")));
        cpl_safetensors_close(file);
        seen++;
    }
    assert_int_equal(seen, 5);
    json_decref(cases);
}
