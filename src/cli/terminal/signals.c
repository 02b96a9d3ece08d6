/* signals.c - see signals.h */
#include "cli/terminal/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/stop.h"
#include "cli/terminal/output.h"

static _Atomic(const char *) farewell;

static sigset_t heard(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1); /* mpirun and Slurm forward it */
    return set;
}

/* Ends the program without flushing: a thread may hold the lock of stdout for ever, waiting for a
 * pipe. */
CPL_NORETURN static void end(int number)
{
    const sigset_t set = heard();
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
    _Exit(128 + number);
}

void cpl_signals_farewell(const char *sentence)
{
    atomic_store(&farewell, sentence);
}

void cpl_signals_end(int number)
{
    (void)fflush(stdout);
    end(number);
}

static void *wait_for_signals(void *unused)
{
    const sigset_t set = heard();
    int number         = 0;
    (void)unused;
    sigwait(&set, &number);
    if (number == SIGUSR1) number = SIGTERM;
    const char *sentence = atomic_load(&farewell);
    if (sentence) {
        (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* in case nobody reads the sentence */
        cpl_output_sentence(stderr, "couplet: ", sentence);
        end(number);
    }
    cpl_stop_request(number);
    do sigwait(&set, &number);
    while (number == SIGUSR1); /* launchers may send it to every process of a job */
    end(number);
}

/* Blocks the signals, also in threads made later, and waits for them in a thread. A handler would
 * run on the stack of a computing thread, and kernels that oneDNN 2.6 makes for AVX-512 use the
 * stack pointer for other data for a while: a signal would overwrite memory. */
cpl_status cpl_signals_listen(void)
{
    const sigset_t set = heard();
    pthread_t thread;
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0 ||
        pthread_create(&thread, NULL, wait_for_signals, NULL) != 0)
        return CPL_FAIL(CPL_ERR_MEMORY, "the thread that waits for signals cannot be created");
    pthread_detach(thread);
    return CPL_OK;
}
