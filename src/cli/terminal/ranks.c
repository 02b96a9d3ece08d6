/* ranks.c - see ranks.h */
#include "cli/terminal/ranks.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "parallel/alive.h"
#include "parallel/mpi.h"
#include "tensor/backend/backend.h"

static const double grace_s = 5; /* seconds that a rank has to end in order after another was
                                    lost */

static const double first_s      = 50; /* seconds until all ranks watch each other */
static const char at_the_start[] = "at the start";

static cpl_ranks ranks;
static cpl_group world;
static cpl_alive *alive;
static bool begun;
static bool met;         /* set once the ranks were a group */
static atomic_bool said; /* set once a failure was reported */

static void pause_for(double seconds)
{
    const time_t whole         = (time_t)seconds;
    const struct timespec wait = {whole, (long)(1e9 * (seconds - (double)whole))};
    nanosleep(&wait, NULL);
}

/* ---- a rank is lost ---- */

static void *end_later(void *unused)
{
    (void)unused;
    pause_for(grace_s);
    _exit(1); /* safe at any time: a checkpoint is always complete */
}

/* Reports why the ranks end, unless it has been reported. Two threads may call this, and the
 * process must not end while one of them writes. */
static void say_once(const char *sentence)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    CPL_ASSERT(pthread_mutex_lock(&lock) == 0);
    if (!atomic_exchange(&said, true)) {
        cpl_output_sentence(stderr, "couplet: ", sentence);
        (void)fflush(stderr);
    }
    CPL_ASSERT(pthread_mutex_unlock(&lock) == 0);
}

/* Rank 0 reports the loss of another rank, and rank 1 the loss of rank 0, unless rank 0 failed with
 * an error, which it reports itself. */
static void say_loss(int rank, const char *sentence)
{
    const bool is_said = rank == 0 && !strstr(sentence, " was lost: ");
    if (!is_said && world.rank == (rank == 0 ? 1 : 0)) say_once(sentence);
}

/* Reports the loss of a rank, and ends the process later. The heartbeat's thread calls it. */
static void on_lost(void *ctx, int rank, const char *sentence)
{
    pthread_t thread;
    (void)ctx;
    say_loss(rank, sentence);
    if (pthread_create(&thread, NULL, end_later, NULL) == 0) pthread_detach(thread);
}

static bool is_lost(void *ctx, char sentence[1024])
{
    (void)ctx;
    cpl_alive_wait_on(alive);
    if (cpl_alive_lost(alive) < 0) return false;
    snprintf(sentence, 1024, "%s", cpl_alive_sentence(alive));
    return true;
}

static void began(void *ctx)
{
    (void)ctx;
    cpl_alive_count(alive);
}

static void begins_anew(void *ctx)
{
    (void)ctx;
    cpl_alive_count_anew(alive);
}

static void late(void *ctx, char names[CPL_ALIVE_NAMES])
{
    (void)ctx;
    cpl_alive_late(alive, names);
}

/* ---- beginning ---- */

/* Collective: sends the address of rank 0 to all ranks by MPI and connects them to it. */
cpl_status cpl_ranks_watch(double timeout_s)
{
    if (!begun) return CPL_OK;
    char address[CPL_ALIVE_ADDRESS] = "";
    cpl_status status               = CPL_OK;
    cpl_group_expect(&world, first_s + timeout_s, at_the_start); /* timeout_s is for connecting */
    if (world.rank == 0)
        status = cpl_alive_listen(&alive, address, world.size, timeout_s, on_lost, NULL);
    CPL_TRY(cpl_group_agree(&world, status));
    cpl_group_broadcast(&world, address, sizeof address, 0);
    if (world.rank > 0)
        status =
            cpl_alive_connect(&alive, address, world.rank, world.size, timeout_s, on_lost, NULL);
    if (world.rank == 0) status = cpl_alive_wait(alive);
    CPL_TRY(cpl_group_agree(&world, status));
    ranks.lost        = is_lost;
    ranks.began       = began;
    ranks.begins_anew = begins_anew;
    ranks.late        = late;
    cpl_group_expect(&world, 0, NULL);
    return CPL_OK;
}

/* Redirects standard output to /dev/null. */
static cpl_status silence(void)
{
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    const bool done   = nowhere >= 0 && dup2(nowhere, STDOUT_FILENO) >= 0;
    if (nowhere >= 0) close(nowhere);
    return done ? CPL_OK : CPL_FAIL(CPL_ERR_IO, "/dev/null cannot be opened");
}

cpl_status cpl_ranks_begin(cpl_group **out)
{
    cpl_transport transport;
    *out = NULL;
    if (cpl_mpi_launched() == 1) return CPL_OK;
    CPL_TRY(cpl_mpi_start(&transport));
    CPL_TRY(cpl_group_of(&world, transport, &ranks));
    begun = met = true;
    cpl_group_expect(&world, first_s, at_the_start);
    if (world.rank > 0) CPL_TRY(silence());
    *out = &world;
    return CPL_OK;
}

cpl_status cpl_ranks_refuse(const char *what)
{
    if (cpl_mpi_launched() == 1) return CPL_OK;
    return CPL_FAIL(CPL_ERR_USAGE,
                    "couplet %s runs in one process, but mpirun or srun has started %d: start it "
                    "without",
                    what, cpl_mpi_launched());
}

bool cpl_ranks_is_silent(void)
{
    return atomic_load(&said) || (begun ? world.rank > 0 : cpl_mpi_launched_rank() > 0);
}

cpl_log cpl_ranks_log(FILE *info)
{
    return cpl_ranks_is_silent() ? (cpl_log){0} : cpl_output_log(info);
}

int cpl_ranks_threads(void)
{
    const int local = cpl_mpi_local_ranks(), own = cpl_cpu_count();
    const long all = sysconf(_SC_NPROCESSORS_ONLN);
    if (cpl_mpi_launched() == 1 || getenv("OMP_NUM_THREADS")) return 0;
    if (own < all) return own;
    return own / local > 0 ? own / local : 1;
}

/* ---- ending ---- */

/* Rank 0 reports a failure of all ranks once, before any rank ends, since the launcher may then end
 * the others. */
static void report(void)
{
    const bool given_up = cpl_alive_lost(alive) == 0; /* rank 0 counts as lost, which rank 1
                                                         reports */
    if (world.rank > 0 || given_up || cpl_output_unread()) return;
    cpl_terminal_flush();
    (void)fflush(stdout);
    say_once(cpl_last_error());
}

void cpl_ranks_end(cpl_status status)
{
    if (!begun) return;
    const bool alike    = status == CPL_OK || status == CPL_ERR_STOPPED || ranks.agreed;
    const bool in_order = ranks.status == CPL_OK && alike;
    if (status != CPL_OK) report();
    if (in_order) {
        cpl_group_expect(&world, 0, NULL);
        cpl_group_barrier(&world); /* so that rank 0, which watches, ends last */
        cpl_alive_close(alive);
        cpl_group_close(&world);
        cpl_ranks_free(&ranks);
        cpl_mpi_finish();
        begun = false;
        return;
    }
    cpl_alive_report(alive, cpl_last_error()); /* without effect if another rank was lost */
    if (cpl_alive_lost(alive) >= 0) say_loss(cpl_alive_lost(alive), cpl_alive_sentence(alive));
    (void)fflush(stdout);
    _exit(1);
}

void cpl_ranks_abandon(int exit_code)
{
    static const double others_s = 3, turn_s = 0.1,
                        passed_on_s = 0.5; /* time until a launcher has passed output on */
    const int rank                  = cpl_mpi_launched_rank();
    char sentence[1100];
    if (met || cpl_mpi_launched() == 1) return;
    if (rank > 0 && cpl_mpi_is_mpirun()) {
        pause_for(others_s + turn_s * (rank < 20 ? rank : 20));
        snprintf(sentence, sizeof sentence, "rank %d: %s", rank, cpl_last_error());
        cpl_output_sentence(stderr, "couplet: ", sentence);
        (void)fflush(stderr);
    }
    pause_for(passed_on_s);
    cpl_mpi_abandon(exit_code);
}
