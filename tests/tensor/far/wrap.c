/* wrap.c - the backends of a program replaced by those of far.h, as COUPLET_TEST_BACKEND says.
 *
 * The linker leads calls of cpl_x to __wrap_cpl_x, and calls of __real_cpl_x to cpl_x. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/far/far.h"
#include "tensor/poison/poison.h"

cpl_status __real_cpl_backend_open(cpl_backend *be, const char *device, cpl_dtype compute,
                                   int n_threads);
cpl_status __wrap_cpl_backend_open(cpl_backend *be, const char *device, cpl_dtype compute,
                                   int n_threads);
void __real_cpl_backend_free(cpl_backend *be);
void __wrap_cpl_backend_free(cpl_backend *be);
void __real_cpl_backend_poison(cpl_backend *be, cpl_backend *inner);
void __wrap_cpl_backend_poison(cpl_backend *be, cpl_backend *inner);

cpl_status __wrap_cpl_backend_open(cpl_backend *be, const char *device, cpl_dtype compute,
                                   int n_threads)
{
    const char *which = getenv("COUPLET_TEST_BACKEND");
    CPL_TRY(__real_cpl_backend_open(be, device, compute, n_threads));
    if (which && strcmp(which, "cpu")) cpl_backend_far(be, !strcmp(which, "late"));
    return CPL_OK;
}

void __wrap_cpl_backend_free(cpl_backend *be)
{
    __real_cpl_backend_free(be);
    cpl_far_free(be);
}

/* Its checks read the memory, which they cannot here: the backend without them. */
void __wrap_cpl_backend_poison(cpl_backend *be, cpl_backend *inner)
{
    if (cpl_is_far(inner))
        *be = *inner;
    else
        __real_cpl_backend_poison(be, inner);
}
