/* wrap.c - replaces the backends of a program by the one in COUPLET_TEST_BACKEND: a backend
 * of far.h or, if the value is a path, the backend of a module (tests/tensor/cuda).
 *
 * The linker leads calls of cpl_x to __wrap_cpl_x, and calls of __real_cpl_x to cpl_x. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/counts.h"
#include "tensor/cuda/module.h"
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

static void *module; /* the module that was opened last */

static cpl_status open_module(cpl_backend *be, const char *path, cpl_dtype compute, int n_threads)
{
    cpl_backend cpu;
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) return CPL_FAIL(CPL_ERR_DEVICE, "%s", dlerror());
    const cpl_cuda_module *entry = dlsym(module, "cpl_cuda_module_entry");
    CPL_ASSERT(entry);
    cpl_backend_cpu(&cpu, compute == cpl_dtype_fastest ? CPL_BF16 : compute, n_threads);
    const char *sentence = entry->open(be, -1, &cpu, cpl_fail);
    return sentence ? CPL_FAIL(CPL_ERR_DEVICE, "%s", sentence) : CPL_OK;
}

void cpl_on_host_counted(cpl_on_host_counts *out)
{
    void (*counted)(cpl_on_host_counts *) = NULL;
    if (module) *(void **)&counted = dlsym(module, "cpl_on_host_counted");
    *out = (cpl_on_host_counts){0};
    if (counted) counted(out);
}

cpl_status __wrap_cpl_backend_open(cpl_backend *be, const char *device, cpl_dtype compute,
                                   int n_threads)
{
    const char *which = getenv("COUPLET_TEST_BACKEND");
    if (which && strchr(which, '/')) return open_module(be, which, compute, n_threads);
    CPL_TRY(__real_cpl_backend_open(be, device, compute, n_threads));
    if (which && strcmp(which, "cpu")) cpl_backend_far(be, !strcmp(which, "late"));
    return CPL_OK;
}

void __wrap_cpl_backend_free(cpl_backend *be)
{
    __real_cpl_backend_free(be);
    cpl_far_free(be);
}

/* Makes the backend without checks: they read the memory, which the host cannot reach here. */
void __wrap_cpl_backend_poison(cpl_backend *be, cpl_backend *inner)
{
    if (cpl_is_far(inner) || (inner->name && !strcmp(inner->name, "cuda")))
        *be = *inner;
    else
        __real_cpl_backend_poison(be, inner);
}
