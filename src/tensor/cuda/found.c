/* found.c - see found.h */
#include "tensor/cuda/found.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#ifndef LIBCUBLASLT /* the tests define a name that no machine has */
#    define LIBCUBLASLT "libcublasLt.so"
#endif

enum { LEAST_MAJOR = 8, LEAST_CUBLASLT = 120000 };

static char sentence[2048];

static const char *set_sentence(const char *format, ...) CPL_PRINTF(1, 2);
static const char *set_sentence(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return sentence;
}

/* ---- the GPU ---- */

const char *const cpl_cuda_none[] = {
    "there is no driver for NVIDIA GPUs here (libcuda.so.1 is missing)",
    "there is no NVIDIA GPU here",
    NULL,
};

static const char *no_such_gpu(const cpl_cuda_found *f)
{
    if (f->count == 1)
        return set_sentence("there is no cuda:%d here: there is one GPU, cuda:0", f->device);
    return set_sentence("there is no cuda:%d here: there are %d GPUs, cuda:0 to cuda:%d", f->device,
                        f->count, f->count - 1);
}

const char *cpl_cuda_missing(const cpl_cuda_found *f)
{
    if (f->driver == 0) return cpl_cuda_none[0];
    if (f->is_too_old)
        return set_sentence(
            "the driver of the NVIDIA GPU is too old: it knows CUDA %d.%d, and %d.%d is "
            "needed: install a newer driver",
            f->driver / 1000, f->driver % 1000 / 10, f->runtime / 1000, f->runtime % 1000 / 10);
    if (f->error) return set_sentence("the NVIDIA GPU cannot be used: %s", f->error);
    if (f->count < 1) return cpl_cuda_none[1];
    if (f->device >= f->count) return no_such_gpu(f);
    if (f->major < LEAST_MAJOR)
        return set_sentence(
            "cuda:%d, %.100s, has compute capability %d.%d; at least %d.0 is needed (bf16)",
            f->device, f->name, f->major, f->minor, LEAST_MAJOR);
    if (f->has_kernels) return NULL;
    return set_sentence(
        "couplet-cuda.so has no kernels for cuda:%d, %.100s, of compute capability %d.%d: "
        "build it for that (cmake/cuda.cmake), or install a newer driver",
        f->device, f->name, f->major, f->minor);
}

/* ---- cuBLASLt ---- */

/* Returns the folder of the shared object that contains this file. */
static const char *module_folder(void)
{
    static char folder[PATH_MAX];
    Dl_info own;
    if (!dladdr(&sentence, &own)) return ".";
    snprintf(folder, sizeof folder, "%s", own.dli_fname);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = '\0';
    return slash ? folder : ".";
}

static const char *cuda_folder(void)
{
    const char *home = getenv("CUDA_HOME"), *path = getenv("CUDA_PATH");
    return home && *home ? home : path && *path ? path : "/usr/local/cuda";
}

/* Folders searched for cuBLASLt, in this order, before the loader's folders. */
static const struct {
    const char *(*in)(void);
    const char *folder;
} places[] = {
    {module_folder,
     "/../nvidia/cu13/lib"}, /* the package nvidia-cublas beside the module's package */
    {module_folder, "/../nvidia/cublas/lib"}, /* nvidia-cublas-cu12 */
    {cuda_folder, "/lib64"},
};

enum { N_PLACES = sizeof places / sizeof *places, PLACE = PATH_MAX + 64 };

static void place(char path[PLACE], int i, const char *file)
{
    snprintf(path, PLACE, "%s%s%s", places[i].in(), places[i].folder, file);
}

/* Opens (dlopen) the file in the first folder that has it. */
static void *open_somewhere(const char *file)
{
    char path[PLACE];
    for (int i = 0; i < N_PLACES; i++) {
        place(path, i, file);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return dlopen(file + 1, RTLD_NOW | RTLD_LOCAL);
}

static const char *not_found(void)
{
    char path[N_PLACES][PLACE];
    for (int i = 0; i < N_PLACES; i++) place(path[i], i, "");
    return set_sentence(
        LIBCUBLASLT
        ".13 is not in %.500s, in %.500s, in %.500s, nor where the loader looks: "
        "install CUDA's cuBLAS, or `pip install nvidia-cublas` and name the file of that "
        "package in COUPLET_CUBLASLT",
        path[0], path[1], path[2]);
}

const char *cpl_cuda_open_cublaslt(void **library, size_t *version)
{
    typedef size_t version_fn(void);
    const char *named = getenv("COUPLET_CUBLASLT");
    version_fn *version_of;
    if (named && *named) {
        *library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (!*library) return set_sentence("COUPLET_CUBLASLT cannot be opened: %.1000s", dlerror());
    } else {
        *library = open_somewhere("/" LIBCUBLASLT ".13");
        if (!*library) *library = open_somewhere("/" LIBCUBLASLT ".12");
        if (!*library) return not_found();
    }
    *(void **)&version_of = dlsym(*library, "cublasLtGetVersion");
    *version              = version_of ? version_of() : 0;
    if (*version >= LEAST_CUBLASLT) return NULL;
    return set_sentence(
        "the libcublasLt that was found is version %zu.%zu, and at least %d.0 is needed: "
        "name a newer file in COUPLET_CUBLASLT",
        *version / 10000, *version / 100 % 100, LEAST_CUBLASLT / 10000);
}

void cpl_cuda_libraries(char *text, size_t bytes, int driver, size_t cublaslt)
{
    snprintf(text, bytes, "CUDA driver %d.%d, cuBLASLt %zu.%zu.%zu", driver / 1000,
             driver % 1000 / 10, cublaslt / 10000, cublaslt / 100 % 100, cublaslt % 100);
}
