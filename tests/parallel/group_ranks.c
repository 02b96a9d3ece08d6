/* group_ranks.c - group_case.h on the ranks that a launcher has started. Prints "hash" or the first
 * fault. With the argument `threads N` it runs on threads. See check_mpi.py. */
#include <inttypes.h>

#include "group_case.h"
#include "parallel/mpi.h"
#include "parallel/threads.h"

/* Prints a result, which is set. Returns 1 if it has a fault. */
static int print_result(const case_result *result, int rank)
{
    if (result->wrong[0]) fprintf(stderr, "rank %d: %s\n", rank, result->wrong);
    if (rank == 0 && !result->wrong[0]) printf("%016" PRIx64 "\n", result->hash);
    return result->wrong[0] != 0;
}

static int on_processes(cpl_transport transport)
{
    cpl_ranks ranks = {0};
    cpl_group g;
    case_result result = {0};
    if (cpl_group_of(&g, transport, &ranks) != CPL_OK) return 1;
    case_run(&g, &result);
    cpl_group_close(&g);
    cpl_ranks_free(&ranks);
    return print_result(&result, transport.rank);
}

static void run_rank(void *result, cpl_group *world)
{
    case_run(world, result);
}

static int on_threads(int size)
{
    case_result *results = calloc((size_t)size, sizeof *results);
    int bad              = 0;
    cpl_thread_ranks_run(size, run_rank, results, sizeof *results);
    for (int r = 0; r < size; r++) bad |= print_result(&results[r], r);
    free(results);
    return bad;
}

int main(int argc, char **argv)
{
    cpl_transport world;
    if (argc == 3) return on_threads(atoi(argv[2]));
    if (cpl_mpi_launched() == 1) {
        fprintf(stderr, "no launcher\n");
        return 1;
    }
    if (cpl_mpi_start(&world) != CPL_OK) {
        if (cpl_mpi_launched_rank() == 0) fprintf(stderr, "%s\n", cpl_last_error());
        return 3;
    }
    if (cpl_mpi_local_ranks() != world.size) { /* the tests have one machine */
        fprintf(stderr, "%d of %d ranks are here\n", cpl_mpi_local_ranks(), world.size);
        return 4;
    }
    const int bad = on_processes(world);
    cpl_mpi_finish();
    return bad;
}
