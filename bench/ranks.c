/* ranks.c - the speed of several processes, compared with one process of as many threads
 *
 * usage:    mpirun -n 2 ranks [pairs [tokens]]    (each rank computes with one thread)
 * Step:     the step of train_step.c over 8192 tokens, one layer and a vocabulary of 4096: by R
 *           ranks of one thread, and by one process with R threads while the others sleep; in turn.
 * Meshes:   data parallel, and all ranks along the experts.
 * Printed:  tokens/s of the ranks as a share of the process's tokens/s (medians of pairs), and the
 *           share of a step in which rank 0 only waited; the time of both steps that `couplet plan`
 *           predicts, from the speed of a large product, of memory and of messages measured between
 *           the steps, over the time taken (medians);
 *           resident memory of the last rank over the planned one. */
#include "step.h"

#include "app/plan_run.h"
#include "base/clock.h"
#include "parallel/mpi.h"

enum { TOKENS = 8192, VOCABULARY = 4096, EXPERTS = 64 };

static int64_t tokens = TOKENS;

/* Waits for all ranks, without a spin, since the other half of a pair needs the processors. */
static double meet(cpl_group *world)
{
    cpl_group_barrier(world);
    return cpl_seconds_now();
}

static double seconds_of(bench_step *s, cpl_group *world, bool works)
{
    const double begin = meet(world);
    if (works) bench_step_run(s);
    return meet(world) - begin;
}

/* ---- speeds, for the plan ---- */

enum { ROWS = 2048, WIDTH = 2048, NUMBERS = 1 << 26 };

typedef struct speeds {
    cpl_tensor x, w, y, numbers, more;
    bench_times flops, memory;
} speeds;

static void speeds_init(speeds *p, cpl_backend *be)
{
    memset(p, 0, sizeof *p);
    p->x       = bench_normal(be, CPL_F32, 1, ROWS, WIDTH, 1);
    p->w       = bench_normal(be, CPL_F32, 1, WIDTH, WIDTH, 1);
    p->y       = bench_normal(be, CPL_F32, 1, ROWS, WIDTH, 1);
    p->numbers = bench_normal(be, CPL_F32, 1, 1, NUMBERS, 1);
    p->more    = bench_normal(be, CPL_F32, 1, 1, NUMBERS, 1);
}

static void speeds_free(speeds *p)
{
    cpl_free(p->x.storage);
    cpl_free(p->w.storage);
    cpl_free(p->y.storage);
    cpl_free(p->numbers.storage);
    cpl_free(p->more.storage);
}

/* Measures the speed of large products and of y += x on all ranks at once. */
static void measure_speeds(speeds *p, cpl_backend *be, cpl_group *world, bool works)
{
    enum { PRODUCTS = 4 };
    const cpl_tensor x = cpl_tensor_2d(p->x.storage, CPL_F32, ROWS, WIDTH);
    const cpl_tensor w = cpl_tensor_2d(p->w.storage, CPL_F32, WIDTH, WIDTH);
    const cpl_tensor y = cpl_tensor_2d(p->y.storage, CPL_F32, ROWS, WIDTH);
    double begin       = meet(world);
    for (int i = 0; works && i < PRODUCTS; i++)
        be->ops->gemm(be, y, CPL_AS_IS, x, CPL_TRANSPOSED, w, 0);
    const double product = meet(world) - begin;
    begin                = meet(world);
    if (works) be->ops->add(be, p->numbers, p->more, 1);
    const double sum = meet(world) - begin;
    if (!works) return;
    p->flops.seconds[p->flops.n++]   = PRODUCTS * 2.0 * ROWS * WIDTH * WIDTH / product;
    p->memory.seconds[p->memory.n++] = 12.0 * NUMBERS / sum;
}

static double waited(const cpl_ranks *ranks)
{
    double sum = 0;
    for (int i = 0; i < CPL_N_COLLECTIVES; i++) sum += ranks->traffic[i].wait_s;
    return sum;
}

/* Measures the speed of large messages between the ranks, and the time of small ones. */
static void measure_messages(cpl_plan_machine *m, cpl_group *world)
{
    enum { LARGE = 64 << 20, SMALL = 8, TIMES = 1000 };
    char *send = cpl_alloc(LARGE), *recv = cpl_alloc((size_t)world->size * LARGE);
    int64_t *bytes = cpl_alloc((size_t)world->size * sizeof *bytes);
    if (!send || !recv || !bytes) bench_ok(CPL_ERR_MEMORY);
    memset(send, 1, LARGE);
    for (int turn = 0; turn < 2; turn++) { /* the first warms up */
        for (int r = 0; r < world->size; r++) bytes[r] = LARGE;
        double begin = meet(world);
        cpl_group_all_gather(world, recv, send, bytes);
        m->bandwidth = (world->size - 1) * (double)LARGE / (meet(world) - begin);
        for (int r = 0; r < world->size; r++) bytes[r] = SMALL;
        begin = meet(world);
        for (int i = 0; i < TIMES; i++) cpl_group_all_gather(world, recv, send, bytes);
        m->latency = (meet(world) - begin) / TIMES / (world->size - 1);
    }
    cpl_free(bytes);
    cpl_free(recv);
    cpl_free(send);
}

/* Returns the plan of this step for `ranks` ranks, each with the threads of s->be. */
static cpl_plan plan_of(bench_step *s, int64_t ranks, int64_t expert_parallel,
                        const cpl_plan_machine *messages, const speeds *measured)
{
    cpl_plan plan;
    cpl_plan_run_for what         = {.ranks = ranks, .machine = *messages};
    cpl_settings settings         = s->settings;
    settings.train.micro_batch    = s->step.micro;
    settings.dist.expert_parallel = expert_parallel;
    settings.dist.overlap         = false; /* the processors that compute also carry the messages */
    settings.compute.dtype        = s->be.compute == CPL_BF16 ? CPL_DTYPE_BF16 : CPL_DTYPE_F32;
    settings.compute.threads      = s->be.n_threads;
    what.machine.flops            = bench_median(&measured->flops);
    what.machine.memory           = bench_median(&measured->memory);
    bench_ok(cpl_plan_run(&plan, &settings, &what));
    return plan;
}

static void compare(const char *what, cpl_group *world, int expert_parallel, int pairs)
{
    const bool leads  = world->rank == 0;
    bench_times alone = {0}, shares = {0}, waits = {0}, steps = {0};
    cpl_plan_machine machine = {0};
    speeds of_many, of_one;
    cpl_mesh mesh;
    bench_step one    = {0}, many;
    bench_shape shape = {
        CPL_F32, 1,    VOCABULARY, tokens, tokens / BENCH_SEQ_LEN / world->size, CPL_ROUTER_SOFTMAX,
        1,       &mesh};
    bench_ok(cpl_mesh_init(&mesh, world, expert_parallel, EXPERTS));
    double held = bench_status_bytes("VmRSS");
    bench_step_init(&many, &shape);
    shape.micro     = tokens / BENCH_SEQ_LEN;
    shape.n_threads = world->size;
    shape.mesh      = NULL;
    if (leads) bench_step_init(&one, &shape);
    (void)seconds_of(&many, world, true);
    held = world->rank == world->size - 1 ? bench_status_bytes("VmRSS") - held : 0;
    cpl_group_sum_f64(world, &held, 1);
    (void)seconds_of(&one, world, leads);
    speeds_init(&of_many, &many.be);
    if (leads) speeds_init(&of_one, &one.be);
    for (int i = 0; i < pairs; i++) {
        const double before = waited(world->ranks);
        const double step   = seconds_of(&many, world, true);
        waits.seconds[i]    = (waited(world->ranks) - before) / step;
        alone.seconds[i]    = seconds_of(&one, world, leads);
        shares.seconds[i]   = alone.seconds[i] / step;
        steps.seconds[i]    = step;
        measure_speeds(&of_many, &many.be, world, true);
        measure_speeds(leads ? &of_one : &of_many, leads ? &one.be : &many.be, world, leads);
        waits.n = alone.n = shares.n = steps.n = i + 1;
    }
    measure_messages(&machine, world);
    if (leads) {
        const cpl_plan plan = plan_of(&many, world->size, expert_parallel, &machine, &of_many);
        printf("%-28s %6.1f %% of one process (%.0f tokens/s); waiting %4.1f %%\n", what,
               100 * bench_median(&shares), (double)tokens / bench_median(&alone),
               100 * bench_median(&waits));
        printf("  predicted over measured: ranks %.2f, one process %.2f (%.1f GB/s, %.0f us a "
               "message)\n",
               plan.time.step / bench_median(&steps),
               plan_of(&one, 1, 1, &machine, &of_one).time.step / bench_median(&alone),
               machine.bandwidth / 1e9, machine.latency * 1e6);
        printf("  memory of a rank: %.3f GB, planned %.3f GB, ratio %.3f\n", held / 1e9,
               (double)plan.bytes.total / 1e9, held / (double)plan.bytes.total);
        bench_step_free(&one);
        speeds_free(&of_one);
    }
    speeds_free(&of_many);
    bench_step_free(&many);
    cpl_mesh_close(&mesh);
}

int main(int argc, char **argv)
{
    int pairs       = argc > 1 ? atoi(argv[1]) : 7;
    cpl_ranks ranks = {0};
    cpl_transport transport;
    cpl_group world;
    if (argc > 2) tokens = atoi(argv[2]);
    if (cpl_mpi_launched() == 1) {
        printf("Several processes: mpirun -n 2 %s\n", argv[0]);
        return 0;
    }
    if (pairs > BENCH_MOST) pairs = BENCH_MOST;
    bench_ok(cpl_mpi_start(&transport));
    bench_ok(cpl_group_of(&world, transport, &ranks));
    if (world.rank == 0) printf("%d ranks of one thread\n", world.size);
    compare("data parallel", &world, 1, pairs);
    compare("all along the experts", &world, world.size, pairs);
    cpl_group_close(&world);
    cpl_ranks_free(&ranks);
    cpl_mpi_finish();
    return 0;
}
