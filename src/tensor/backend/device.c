/* device.c - the backend that compute.device names, and the module that a GPU needs. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/paths.h"
#include "tensor/backend/backend.h"
#include "tensor/cuda/module.h"

static const char first_gpu[] = "cuda";

static bool is_gpu(const char *device)
{
    const size_t length = sizeof first_gpu - 1;
    const char *number  = device + length + 1;
    if (strncmp(device, first_gpu, length) != 0) return false;
    if (device[length] == '\0') return true;
    return device[length] == ':' && *number && strspn(number, "0123456789") == strlen(number) &&
           strlen(number) < 4;
}

cpl_status cpl_device_of_ranks(const char **device, const char *asked, int64_t ranks)
{
    *device = ranks > 1 && !strcmp(asked, "auto") ? "cpu" : asked;
    if (ranks == 1 || !is_gpu(asked)) return CPL_OK;
    return CPL_FAIL(
        CPL_ERR_USAGE,
        "compute.device is %s, but there are %lld ranks: one process computes on a GPU, "
        "several compute on CPUs (compute.device=cpu)",
        asked, (long long)ranks);
}

/* ---- the module ---- */

static const char module_name[] = "couplet-cuda.so";

/* Sets *module to the module, which is loaded once and stays loaded until the program ends. */
static cpl_status load_module(const cpl_cuda_module **module, const char *device)
{
    static const cpl_cuda_module *loaded;
    char path[CPL_MODULE_PATH];
    if ((*module = loaded)) return CPL_OK;
    if (!cpl_module_find(path, module_name))
        return CPL_FAIL(CPL_ERR_USAGE,
                        "compute.device is %s, but there is no couplet-cuda.so beside the program: "
                        "build it with `make cuda`, which needs nvcc, or set compute.device=cpu",
                        device);
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!file) return CPL_FAIL(CPL_ERR_DEVICE, "%s cannot be loaded: %s", path, dlerror());
    *module = dlsym(file, "cpl_cuda_module_entry");
    if (*module && (*module)->version == CPL_CUDA_MODULE_VERSION &&
        !strcmp((*module)->program, COUPLET_VERSION)) {
        loaded = *module;
        return CPL_OK;
    }
    (void)CPL_FAIL(CPL_ERR_DEVICE,
                   "%s and this program, " COUPLET_VERSION
                   ", are of different versions: build both from one commit (`make cuda`)",
                   path);
    dlclose(file);
    return CPL_ERR_DEVICE;
}

/* ---- one backend ---- */

static cpl_dtype settled(cpl_dtype compute, bool has_bf16)
{
    if (compute != cpl_dtype_fastest) return compute;
    return has_bf16 ? CPL_BF16 : CPL_F32;
}

static void open_cpu(cpl_backend *be, cpl_dtype compute, int n_threads)
{
    cpl_backend_cpu(be, settled(compute, cpl_cpu_has_bf16()), n_threads);
}

/* Returns whether `sentence`, the error of opening a GPU, means that the machine has no GPU. */
static bool is_none(const cpl_cuda_module *module, const char *sentence)
{
    const char *const *none = module->none;
    while (*none && *none != sentence) none++;
    return *none;
}

/* Opens a GPU. Sets *is_absent if the machine has no GPU, which the caller need not report. */
static cpl_status open_gpu(cpl_backend *be, const char *device, cpl_dtype compute, int n_threads,
                           bool *is_absent)
{
    const cpl_cuda_module *module;
    const char *colon = strchr(device, ':');
    cpl_backend cpu;
    *is_absent = false;
    CPL_TRY(load_module(&module, device));
    cpl_backend_cpu(&cpu, settled(compute, true), n_threads);
    const char *sentence = module->open(be, colon ? atoi(colon + 1) : -1, &cpu, cpl_fail);
    if (!sentence) return CPL_OK;
    *is_absent = is_none(module, sentence);
    return CPL_FAIL(CPL_ERR_USAGE, "compute.device is %s, but %s", device, sentence);
}

/* Opens the backend for compute.device=auto: the first GPU if the module and a GPU are present,
 * otherwise the CPU. The CPU backend gets a note if a GPU is present but cannot be used. */
static void open_any(cpl_backend *be, cpl_dtype compute, int n_threads)
{
    static char note[2200];
    char path[CPL_MODULE_PATH];
    bool is_absent = true;
    if (cpl_module_find(path, module_name) &&
        open_gpu(be, "auto", compute, n_threads, &is_absent) == CPL_OK)
        return;
    open_cpu(be, compute, n_threads);
    if (is_absent) return;
    snprintf(note, sizeof note, "no GPU is used: %s", cpl_last_error());
    be->note = note;
}

cpl_status cpl_backend_open(cpl_backend *be, const char *device, cpl_dtype compute, int n_threads)
{
    bool is_absent;
    memset(be, 0, sizeof *be);
    if (is_gpu(device)) return open_gpu(be, device, compute, n_threads, &is_absent);
    if (strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0)
        return CPL_FAIL(CPL_ERR_USAGE,
                        "compute.device is '%.80s': it is auto, cpu, cuda, or cuda:N with the "
                        "number of a GPU from 0",
                        device);
    if (!strcmp(device, "auto"))
        open_any(be, compute, n_threads);
    else
        open_cpu(be, compute, n_threads);
    return CPL_OK;
}
