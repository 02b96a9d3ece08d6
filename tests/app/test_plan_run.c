/* test_plan_run.c - the plan of several ranks: memory as the functions of training count it, on
 * every mesh up to 1,024 ranks. The formula of the messages is checked on counts by hand, the time
 * by its terms. */
#include "app/plan_run.h"

#include <math.h>
#include <string.h>

#include "support/run_settings.h"
#include "train/optimizer.h"
#include "train/step.h"
#include "train/traffic.h"

static const double tolerance = 1e-12;

static const char *const base[] =
    LIST("model.hidden_size=48", "model.intermediate_size=24", "model.num_hidden_layers=3",
         "model.num_experts=64", "model.num_experts_per_tok=4", "model.num_attention_heads=4",
         "model.num_key_value_heads=4", "model.vocab_size=512", "model.max_position_embeddings=64",
         "data.seq_len=16", "data.batch_tokens=32768", "train.micro_batch=1", "compute.dtype=f32",
         "compute.threads=1", "balance.weight=0.01", "erc.weight=1");

static cpl_settings settings_of(const char *const *extra)
{
    cpl_settings s = default_settings();
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) set(&s, base[i]);
    for (int i = 0; extra && extra[i]; i++) set(&s, extra[i]);
    return s;
}

static const cpl_plan_machine machine = {
    .flops = 1e12, .memory = 1e10, .bandwidth = 1e9, .latency = 1e-5};

static cpl_plan plan_of(cpl_settings *s, int64_t ranks, int64_t experts)
{
    cpl_plan plan;
    const cpl_plan_run_for what = {.ranks = ranks, .machine = machine};
    s->dist.expert_parallel     = experts;
    assert_ok(cpl_plan_run(&plan, s, &what));
    return plan;
}

typedef struct shape {
    int64_t ranks, experts;
} shape;

static const shape shapes[] = {{1, 1},    {2, 1},    {2, 2},    {4, 2},   {8, 8},
                               {16, 4},   {64, 64},  {128, 1},  {128, 8}, {512, 16},
                               {1024, 1}, {1024, 8}, {1024, 64}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* ---- memory ---- */

/* Returns the optimizer's bytes of any rank. The plan has those of rank 0. */
static size_t optimizer_of(const cpl_plan *plan, int64_t rank)
{
    size_t bytes;
    const cpl_plan_input *input = &plan->input;
    cpl_model_settings own      = cpl_plan_own(input, &input->model);
    cpl_mesh mesh =
        cpl_plan_mesh(input->ranks, input->expert_parallel, rank, input->model.n_experts);
    own.first_expert = mesh.first_expert;
    assert_int_equal(own.n_local, mesh.n_local);
    assert_ok(cpl_optimizer_bytes(&bytes, &own, &mesh, input->compute));
    return bytes;
}

TEST(sums_are_what_is_allocated)
{
    static const char *const bf16[] = {"compute.dtype=bf16", NULL};
    for (int type = 0; type < 2; type++) {
        cpl_settings s = settings_of(type ? bf16 : NULL);
        for (int i = 0; i < N_SHAPES; i++) {
            /* The trainer resolves the scope so. */
            s.losses.balance.scope  = shapes[i].ranks > 1 ? CPL_BALANCE_GLOBAL : CPL_BALANCE_MICRO;
            const cpl_plan plan     = plan_of(&s, shapes[i].ranks, shapes[i].experts);
            const cpl_plan_bytes *b = &plan.bytes;
            const cpl_model_settings own = cpl_plan_own(&plan.input, &plan.input.model);
            const size_t optimizer       = optimizer_of(&plan, 0);
            assert_int_equal(b->gradients + b->moments + b->messages + b->parts, optimizer);
            assert_int_equal(b->messages > 0, shapes[i].ranks > 1);
            const bool divided = type && shapes[i].ranks > 1;
            assert_int_equal(b->weights + b->compute_copies,
                             divided ? cpl_model_bytes_over(&own, plan.input.compute, 16)
                                     : cpl_model_bytes(&own, plan.input.compute, 16));
            assert_int_equal(b->parts > 0, divided);
            assert_int_equal(b->activations + b->coupling, cpl_step_bytes(&s, &own, 1));
            assert_int_equal(b->exchange > 0, shapes[i].experts > 1);
            assert_true(b->worst >= b->total && (b->worst > b->total) == (shapes[i].experts > 1));
            const int64_t last = shapes[i].ranks - 1;
            assert_true(optimizer_of(&plan, last) <= optimizer);
            assert_true(optimizer_of(&plan, last / 2) <= optimizer);
        }
        drop(&s);
    }
}

/* The parts of a divided model add up to the whole, up to the rounding of parts. */
TEST(moments_become_fewer)
{
    cpl_settings s     = settings_of(NULL);
    const cpl_plan one = plan_of(&s, 1, 1), eight = plan_of(&s, 8, 2);
    const double share = 8.0 * (double)eight.bytes.moments / (double)one.bytes.moments;
    assert_near(share, 1, 0.02);
    assert_int_equal(one.bytes.parts + one.bytes.messages + one.bytes.exchange, 0);
    drop(&s);
}

/* ---- what is sent ---- */

static void assert_sent(cpl_sent got, int64_t bytes, int64_t messages)
{
    assert_int_equal(got.bytes, bytes);
    assert_int_equal(got.messages, messages);
}

/* 2 ranks along the experts have 16 tokens a pass with 4 choices, of which half stay. There are
 * 1024 passes, and 1023 that only count. Rows of 48 F32 go both ways. With each row go 4 bytes of
 * weight, and 32 counts of 8 bytes go forward. */
TEST(formula_of_the_exchange)
{
    cpl_settings s     = settings_of(NULL);
    const int64_t rows = 32, row = 48 * 4, passes = 1024, forward = 2 * passes - 1, layers = 3;
    const cpl_plan plan = plan_of(&s, 2, 2);
    const int64_t both  = rows * (2 * row + 4);
    assert_sent(plan.sent[CPL_PLAN_exchange], layers * (forward * (both + 32 * 8) + passes * both),
                layers * (4 * forward + 3 * passes));
    /* All 64 rows of either rank go to one rank: no row leaves it, 64 come and go back. */
    assert_int_equal(plan.worst_exchange.bytes,
                     layers * (forward * (64 * row + 32 * 8) + passes * (64 * row + 64 * 4)));
    s.losses.balance.weight = 0; /* without the weight no pass only counts */
    const cpl_plan once     = plan_of(&s, 2, 2);
    assert_int_equal(once.sent[CPL_PLAN_exchange].messages, layers * 7 * passes);
    drop(&s);
}

/* There are more ranks than choices: 4 choices of 64 experts, one a rank. 63 of 64 rows leave
 * (rounded down), and at most one row of each token comes. */
TEST(formula_with_one_expert_a_rank)
{
    cpl_settings s    = settings_of(NULL);
    const int64_t row = 48 * 4, passes = 2048 / 64, forward = 2 * passes - 1;
    const cpl_plan plan = plan_of(&s, 64, 64);
    assert_sent(plan.sent[CPL_PLAN_exchange],
                3 * ((forward + passes) * 63 * (2 * row + 4) + forward * 63 * 8),
                3 * 63 * (4 * forward + 3 * passes));
    const int64_t away = 16 * 3, here = 63 * 16;
    assert_int_equal(plan.worst_exchange.bytes,
                     3 * ((forward + passes) * (away + here) * row + forward * (away * 4 + 63 * 8) +
                          passes * here * 4));
    drop(&s);
}

/* Each of 2 data-parallel ranks sends half of everything to the other, twice, and a few sums. */
TEST(what_two_ranks_send)
{
    static const char *const few[] = {"data.batch_tokens=32", "erc.draws=2", NULL};
    cpl_settings s                 = settings_of(few);
    const cpl_plan plan            = plan_of(&s, 2, 1);
    const int64_t half             = plan.total_parameters / 2 * 4;
    const cpl_sent *sent           = plan.sent;
    assert_near((double)sent[CPL_PLAN_gradients].bytes, (double)half, 1e-3 * (double)half);
    assert_near((double)sent[CPL_PLAN_parameters].bytes, (double)half, 1e-3 * (double)half);
    assert_int_equal(sent[CPL_PLAN_gradients].messages, sent[CPL_PLAN_parameters].messages);
    assert_sent(sent[CPL_PLAN_exchange], 0, 0);
    /* 3 layers send the loss. Each rank has all experts and adds the gradients of its own rows. */
    assert_sent(sent[CPL_PLAN_coupling], 3 * 8, 3);
    assert_sent(sent[CPL_PLAN_balance], 2 * 3 * 64 * 4, 2 * 2);
    drop(&s);
}

/* ---- time ---- */

static double seconds(cpl_sent sent)
{
    return (double)sent.messages * machine.latency + (double)sent.bytes / machine.bandwidth;
}

/* Returns the bytes of copies for f32. Each number of a gradient is packed in two copies. The
 * numbers of the part are summed (R read, one written) and unpacked. Parameters are packed, the
 * own part is copied by the all-gather, all parts are put back, and all but the own part are
 * unpacked. */
static double copied(const cpl_plan *plan)
{
    const cpl_plan_input *input = &plan->input;
    const cpl_model_settings *c = &input->model;
    const int64_t replicas      = input->ranks / input->expert_parallel;
    const double experts        = 3.0 * (double)(c->n_layers * c->n_experts * c->d_expert) *
                           (double)c->d_model / (double)input->expert_parallel;
    const double rest = (double)cpl_params_numbers(c) - experts * (double)input->expert_parallel;
    double bytes      = 0;
    if (input->ranks > 1)
        bytes += 32 * rest + (4 * (double)input->ranks + 36) * rest / (double)input->ranks;
    if (replicas > 1)
        bytes += 32 * experts + (4 * (double)replicas + 36) * experts / (double)replicas;
    return bytes;
}

TEST(time_is_the_sum_of_its_terms)
{
    cpl_settings s = settings_of(NULL);
    for (int i = 0; i < N_SHAPES; i++)
        for (int overlap = 0; overlap < 2; overlap++) {
            s.dist.overlap         = overlap;
            const cpl_plan plan    = plan_of(&s, shapes[i].ranks, shapes[i].experts);
            const cpl_plan_time *t = &plan.time;
            double step            = plan.rank_flops / machine.flops + t->update + t->copies;
            assert_near(t->copies, copied(&plan) / machine.memory,
                        5e-2 * t->copies); /* parts are rounded up */
            const double backward = 2 * 16 * plan.token_forward_flops / machine.flops;
            for (int k = 0; k < CPL_N_PLAN_TERMS; k++) {
                double hidden = 0;
                if (overlap && k == CPL_PLAN_gradients) hidden = backward;
                if (overlap && k == CPL_PLAN_parameters) hidden = t->update;
                step += fmax(0, seconds(plan.sent[k]) - hidden);
            }
            assert_near(t->step, step, tolerance * step);
            assert_true(t->efficiency > 0 && t->efficiency <= 1 + tolerance);
        }
    drop(&s);
}

/* An update takes 28 bytes of each number, 30 with a BF16 copy. One process updates all numbers,
 * and each of several ranks a part. */
TEST(one_rank_is_the_whole)
{
    cpl_settings s       = settings_of(NULL);
    const cpl_plan plan  = plan_of(&s, 1, 1);
    const double update  = 28.0 * (double)plan.total_parameters / machine.memory;
    const double compute = plan.step_flops / machine.flops;
    assert_near(plan.time.step, compute + update, tolerance * compute);
    assert_near(plan.time.efficiency, 1, tolerance);
    assert_near(plan.rank_flops, plan.step_flops, tolerance * plan.step_flops);
    const cpl_plan four = plan_of(&s, 4, 1);
    assert_near(4 * four.time.update, update, 1e-3 * update);
    drop(&s);
}

/* Counting the load takes a forward pass of all micro-batches but one, without the head. */
TEST(counting_ahead_is_work)
{
    cpl_settings s         = settings_of(NULL);
    const cpl_plan ahead   = plan_of(&s, 2, 1);
    s.losses.balance.scope = CPL_BALANCE_MICRO;
    const cpl_plan micro   = plan_of(&s, 2, 1);
    const double forward   = micro.token_forward_flops - 2.0 * 512 * 48;
    const double more      = 1023.0 * 16 * forward;
    assert_near(ahead.rank_flops - micro.rank_flops, more, 1e-9 * more);
    assert_near(2 * micro.rank_flops, micro.step_flops, tolerance * micro.step_flops);
    assert_true(ahead.time.efficiency < micro.time.efficiency);
    drop(&s);
}

/* 1,024 ranks along no expert share 64 rows of M: each of 64 replicas computes one row. */
TEST(the_coupling_loss_is_shared)
{
    cpl_settings s         = settings_of(NULL);
    s.losses.balance.scope = CPL_BALANCE_MICRO;
    for (int i = 0; i < N_SHAPES; i++) {
        const cpl_plan plan   = plan_of(&s, shapes[i].ranks, shapes[i].experts);
        const double tokens   = 32768.0 / (double)shapes[i].ranks;
        const double coupling = plan.rank_flops - 3 * tokens * plan.token_forward_flops;
        const double replicas = (double)(shapes[i].ranks / shapes[i].experts);
        const double rows = ceil(64 / replicas), columns = 64.0 / (double)shapes[i].experts;
        const double want = 3 * 3 * 2.0 * rows * columns * 24 * 48;
        assert_near(coupling, want, 1e-9 * plan.rank_flops);
    }
    drop(&s);
}

/* ---- refusals ---- */

TEST(refuses_as_training_does)
{
    cpl_plan plan;
    cpl_settings s         = settings_of(NULL);
    s.dist.expert_parallel = 3;
    assert_fails(CPL_ERR_INPUT, "dist.expert_parallel is 3; it must divide",
                 cpl_plan_run(&plan, &s, &(cpl_plan_run_for){.ranks = 6}));
    s.dist.expert_parallel = 1;
    assert_fails(CPL_ERR_INPUT,
                 "2048 sequences, which do not divide among 3 ranks; data.batch_tokens=",
                 cpl_plan_run(&plan, &s, &(cpl_plan_run_for){.ranks = 3}));
    assert_fails(CPL_ERR_INPUT, "2048 sequences, which do not divide among 4096 ranks",
                 cpl_plan_run(&plan, &s, &(cpl_plan_run_for){.ranks = 4096}));
    assert_ok(cpl_plan_run(&plan, &s, &(cpl_plan_run_for){.ranks = 3, .batch_tokens = 32768}));
    s.train.micro_batch = 3;
    assert_fails(CPL_ERR_INPUT, "train.micro_batch 3 does not divide the 1024 sequences",
                 cpl_plan_run(&plan, &s, &(cpl_plan_run_for){.ranks = 2}));
    drop(&s);
}
