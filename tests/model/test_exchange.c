/* test_exchange.c - tokens that travel to the ranks of their experts: bytes and memory equal the
 * prediction from the counts, on ranks as threads. */
#include "model/exchange.h"

#include <string.h>

#include "base/arena.h"
#include "check.h"
#include "parallel/threads.h"
#include "tensor/backend/backend.h"

enum { T = 16, K = 2, N = 8, D_MODEL = 16, D_EXPERT = 8, LAYERS = 2, MOST = 4 };

/* The choices of tokens: as many for every rank's experts, or all that is possible for rank 0's. */
typedef enum choice { BALANCED, TO_THE_FIRST } choice;

typedef struct rank_job {
    int size;
    cpl_dtype compute;
    choice choice;
    bool starves;            /* one allocation of the exchange fails */
    cpl_status status, kept; /* status of the exchange, of the group */
    int64_t sent;            /* bytes to other ranks */
    size_t bytes, scratch;
} rank_job;

static cpl_model_settings settings_of(int size, cpl_dtype activations)
{
    cpl_model_settings c =
        LIST(.n_layers = LAYERS, .d_model = D_MODEL, .d_expert = D_EXPERT, .n_experts = N,
             .top_k = K, .n_local = N / size, .activations = activations);
    return c;
}

static int32_t chosen(choice how, int64_t token, int64_t k)
{
    return (int32_t)(how == BALANCED ? (token * K + k) % N : k);
}

/* Runs the layers with zero weights: the test checks only the messages. */
static void run_layers(rank_job *job, cpl_exchange *x, cpl_backend *be, cpl_tensor_arena *arena)
{
    const int64_t n_local = N / job->size;
    cpl_tensor in         = cpl_tensor_take_2d(arena, T, D_MODEL),
               out        = cpl_tensor_take_2d(arena, T, D_MODEL);
    cpl_tensor weight = cpl_tensor_take_2d(arena, T, K), dweight = cpl_tensor_take_2d(arena, T, K);
    cpl_tensor expert = cpl_tensor_take(arena, cpl_tensor_2d(NULL, CPL_I32, T, K));
    cpl_dispatch plan = {.offset = cpl_tensor_take(arena, cpl_tensor_1d(NULL, CPL_I32, N + 1)),
                         .token  = cpl_tensor_take(arena, cpl_tensor_1d(NULL, CPL_I32, T * K)),
                         .row    = cpl_tensor_take(arena, cpl_tensor_2d(NULL, CPL_I32, T, K))};
    cpl_expert_weights w[2];
    for (int i = 0; i < 2; i++) {
        const cpl_dtype type = i == 0 ? job->compute : CPL_F32;
        w[i].w_gate = cpl_tensor_take(arena, cpl_tensor_3d(NULL, type, n_local, D_EXPERT, D_MODEL));
        w[i].w_up   = cpl_tensor_take(arena, cpl_tensor_3d(NULL, type, n_local, D_EXPERT, D_MODEL));
        w[i].w_down = cpl_tensor_take(arena, cpl_tensor_3d(NULL, type, n_local, D_MODEL, D_EXPERT));
    }
    int32_t choices[T * K];
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < K; k++) choices[t * K + k] = chosen(job->choice, t, k);
    be->ops->put(be, expert, choices);
    be->ops->dispatch(be, plan, expert, N);
    for (int64_t l = 0; l < LAYERS; l++)
        cpl_exchange_experts(x, be, l, out, in, weight, plan, w[0]);
    for (int64_t l = LAYERS - 1; l >= 0; l--)
        cpl_exchange_experts_backward(x, be, l, in, dweight, w[1], out, plan, w[0]);
}

static cpl_status exchange(rank_job *job, cpl_group *world)
{
    cpl_mesh mesh;
    cpl_exchange *x;
    cpl_backend be;
    cpl_tensor_arena arena;
    const cpl_model_settings config = settings_of(job->size, job->compute);
    const cpl_work work             = LIST(.n_tokens = T, .d_model = D_MODEL, .d_expert = D_EXPERT,
                                           .n_experts = N, .top_k = K, .training = true);
    CPL_TRY(cpl_mesh_init(&mesh, world, job->size, N));
    assert_ok(cpl_backend_open(&be, "cpu", job->compute, 1));
    CPL_TRY(cpl_exchange_init(&x, &be, &config, &mesh, LAYERS));
    arena              = cpl_tensor_arena_measure();
    arena.tensors.peak = 1 << 20;
    CPL_TRY(cpl_tensor_arena_init(&arena, &be, &arena, "tensors"));
    CPL_TRY(cpl_backend_reserve(&be, &work));
    memset(world->ranks->traffic, 0, sizeof world->ranks->traffic);
    if (job->starves) {
        cpl_group_barrier(world);
        if (world->rank == 0) cpl_alloc_fail_at(1);
    }
    run_layers(job, x, &be, &arena);
    /* The heartbeats do this when the rank that failed ends. */
    if (cpl_exchange_status(x) != CPL_OK) cpl_thread_ranks_fail(world);
    cpl_group_barrier(world);
    job->kept               = cpl_group_status(world);
    job->sent               = world->ranks->traffic[CPL_ALL_TO_ALL].bytes;
    job->bytes              = cpl_exchange_bytes(x);
    job->scratch            = be.scratch_bytes;
    const cpl_status status = cpl_exchange_status(x);
    cpl_tensor_arena_free(&arena);
    cpl_exchange_free(x);
    cpl_backend_free(&be);
    cpl_mesh_close(&mesh);
    return status;
}

static void run_rank(void *context, cpl_group *world)
{
    rank_job *job = context;
    job->status   = exchange(job, world);
}

static void run_all(rank_job *jobs, int size, cpl_dtype compute, choice how, bool starves)
{
    for (int r = 0; r < size; r++)
        jobs[r] = (rank_job){.size = size, .compute = compute, .choice = how, .starves = starves};
    cpl_thread_ranks_run(size, run_rank, jobs, sizeof *jobs);
}

/* Checks that `rows` came in every layer, `here` from other ranks, and that `away` rows left. */
static void check_rank(const rank_job *job, int64_t rows, int64_t away, int64_t here)
{
    cpl_backend be;
    assert_int_equal(job->status, CPL_OK);
    assert_int_equal(job->kept, CPL_OK);
    const cpl_model_settings c = settings_of(job->size, job->compute);
    const cpl_work work        = cpl_exchange_work(&c, rows);
    const cpl_sent f           = cpl_exchange_forward_sent(&c, job->size, job->compute, away, here);
    const cpl_sent b = cpl_exchange_backward_sent(&c, job->size, job->compute, away, here);
    assert_int_equal(job->sent, LAYERS * (f.bytes + b.bytes));
    assert_int_equal(job->bytes, cpl_exchange_bytes_for(&c, job->compute, LAYERS, T, rows));
    assert_ok(cpl_backend_open(&be, "cpu", job->compute, 1));
    assert_true(job->scratch >= be.ops->scratch_bytes(&be, &work));
    cpl_backend_free(&be);
}

TEST(takes_what_is_predicted)
{
    rank_job jobs[MOST];
    for (int size = 2; size <= MOST; size *= 2)
        for (int type = 0; type < 2; type++) {
            const int64_t all = T * K, others = all / size * (size - 1);
            run_all(jobs, size, type ? CPL_BF16 : CPL_F32, BALANCED, false);
            for (int r = 0; r < size; r++) check_rank(&jobs[r], all, others, others);
            run_all(jobs, size, type ? CPL_BF16 : CPL_F32, TO_THE_FIRST, false);
            check_rank(&jobs[0], size * all, 0, (size - 1) * all);
            for (int r = 1; r < size; r++) check_rank(&jobs[r], 0, all, 0);
        }
}

/* The rank joins no further collective, so that the others do not receive messages that are meant
 * for another one. The other ranks end too. */
TEST(a_rank_without_memory_ends_all)
{
    rank_job jobs[MOST];
    run_all(jobs, 2, CPL_F32, BALANCED, true);
    cpl_alloc_fail_at(0);
    const int poor = jobs[0].status == CPL_OK;
    assert_int_equal(jobs[poor].status, CPL_ERR_MEMORY);
    assert_int_equal(jobs[poor].kept, CPL_ERR_MEMORY);
    assert_int_equal(jobs[1 - poor].status, CPL_OK);
    assert_int_equal(jobs[1 - poor].kept, CPL_ERR_DEVICE);
}
