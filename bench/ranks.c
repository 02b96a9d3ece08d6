/* ranks.c - what do several processes cost beside as many threads of one?
 *
 * usage:    mpirun -n 2 ranks [pairs]            (each rank computes with one thread)
 * Step:     that of train_step.c over 8192 tokens, one layer and a vocabulary of 4096: by R ranks of
 *           one thread, and by one process with R threads while the other ranks sleep; in turn.
 * Meshes:   data parallel, and all ranks along the experts.
 * Printed:  tokens/s of the ranks as a share of those of the process (medians of pairs), and the share
 *           of a step in which rank 0 only waited. */
#include "step.h"

#include "base/clock.h"
#include "dist/mpi.h"

enum { TOKENS = 8192, VOCABULARY = 4096 };

/* Everybody is here: without a spin, since the processors belong to the other half of a pair. */
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

static double waited(const cpl_ranks *ranks)
{
    double sum = 0;
    for (int i = 0; i < CPL_N_COLLECTIVES; i++) sum += ranks->traffic[i].wait_s;
    return sum;
}

static void compare(const char *what, cpl_group *world, int expert_parallel, int pairs)
{
    const bool leads  = world->rank == 0;
    bench_times alone = {0}, shares = {0}, waits = {0};
    cpl_mesh mesh;
    bench_step one    = {0}, many;
    bench_shape shape = {
        CPL_F32, 1,    VOCABULARY, TOKENS, TOKENS / BENCH_SEQ_LEN / world->size, CPL_ROUTER_SOFTMAX,
        1,       &mesh};
    bench_ok(cpl_mesh_init(&mesh, world, expert_parallel, 64));
    bench_step_init(&many, &shape);
    shape.micro     = TOKENS / BENCH_SEQ_LEN;
    shape.n_threads = world->size;
    shape.mesh      = NULL;
    if (leads) bench_step_init(&one, &shape);
    (void)seconds_of(&many, world, true);
    (void)seconds_of(&one, world, leads);
    for (int i = 0; i < pairs; i++) {
        const double before = waited(world->ranks);
        const double step   = seconds_of(&many, world, true);
        waits.seconds[i]    = (waited(world->ranks) - before) / step;
        alone.seconds[i]    = seconds_of(&one, world, leads);
        shares.seconds[i]   = alone.seconds[i] / step;
        waits.n = alone.n = shares.n = i + 1;
    }
    if (leads) {
        printf("%-28s %6.1f %% of one process (%.0f tokens/s); waiting %4.1f %%\n", what,
               100 * bench_median(&shares), TOKENS / bench_median(&alone),
               100 * bench_median(&waits));
        bench_step_free(&one);
    }
    bench_step_free(&many);
    cpl_mesh_close(&mesh);
}

int main(int argc, char **argv)
{
    int pairs       = argc > 1 ? atoi(argv[1]) : 7;
    cpl_ranks ranks = {0};
    cpl_transport transport;
    cpl_group world;
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
