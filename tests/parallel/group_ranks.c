/* group_ranks.c - group_case.h on the ranks that a launcher has started: prints "hash", or what is
 * wrong. With the argument `threads N`: on threads. See check_mpi.py. */
#include <inttypes.h>
#include <pthread.h>

#include "group_case.h"
#include "parallel/mpi.h"
#include "parallel/threads.h"

static int run(cpl_transport transport, bool speaks)
{
    cpl_ranks ranks = {0};
    cpl_group g;
    case_result result = {0};
    if (cpl_group_of(&g, transport, &ranks) != CPL_OK) return 1;
    case_run(&g, &result);
    cpl_group_close(&g);
    cpl_ranks_free(&ranks);
    if (result.wrong[0]) fprintf(stderr, "rank %d: %s\n", transport.rank, result.wrong);
    if (speaks && !result.wrong[0]) printf("%016" PRIx64 "\n", result.hash);
    return result.wrong[0] != 0;
}

static void *run_thread(void *transport)
{
    return run(*(cpl_transport *)transport, false) ? transport : NULL;
}

static int on_threads(int size)
{
    cpl_thread_ranks *whole;
    cpl_transport *at  = calloc((size_t)size, sizeof *at);
    pthread_t *threads = calloc((size_t)size, sizeof *threads);
    if (cpl_thread_ranks_init(&whole, size) != CPL_OK) return 1;
    int bad = 0;
    for (int r = 0; r < size; r++) {
        at[r] = cpl_thread_ranks_at(whole, r);
        if (r > 0) pthread_create(&threads[r], NULL, run_thread, &at[r]);
    }
    bad |= run(at[0], true);
    for (int r = 1; r < size; r++) {
        void *wrong = NULL;
        pthread_join(threads[r], &wrong);
        bad |= wrong != NULL;
    }
    cpl_thread_ranks_free(whole);
    free(at);
    free(threads);
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
    const int bad = run(world, world.rank == 0);
    cpl_mpi_finish();
    return bad;
}
