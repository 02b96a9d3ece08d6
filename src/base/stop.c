/* stop.c - see stop.h */
#include "base/stop.h"

#include <stdatomic.h>

static volatile atomic_int stopping; /* lock-free, so that a handler may set it */

void cpl_stop_request(int signal_number)
{
    atomic_store(&stopping, signal_number);
}

int cpl_stop_signal(void)
{
    return atomic_load(&stopping);
}

cpl_status cpl_stop_check(void)
{
    int number = cpl_stop_signal();
    if (number == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_STOPPED, "stopped by signal %d", number);
}
