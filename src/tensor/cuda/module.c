/* module.c - see module.h: the table, memory, and the entry point. */
#include "tensor/cuda/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/borrowed.h"
#include "tensor/cuda/found.h"
#include "tensor/cuda/vendor.h"

/* ---- failures ---- */

static cpl_fail_fn *fail; /* the program's cpl_fail */

static void note_failure(cpl_backend *be, const char *sentence)
{
    if (sentence) cpl_cuda_fail(be, sentence);
}

static cpl_status sync(cpl_backend *be)
{
    note_failure(be, cpl_vendor_wait(cpl_cuda_of(be)));
    return be->failure == CPL_OK ? CPL_OK : fail(be->failure, "%s: %s", be->device, be->sentence);
}

/* ---- memory ---- */

static void *take_memory(cpl_backend *be, size_t bytes)
{
    return cpl_vendor_take(cpl_cuda_of(be), bytes);
}

static void free_memory(cpl_backend *be, void *memory)
{
    if (memory) cpl_vendor_give(cpl_cuda_of(be), memory);
}

static void room(cpl_backend *be, double *there, double *all)
{
    size_t bytes[2] = {0};
    note_failure(be, cpl_vendor_room(cpl_cuda_of(be), &bytes[0], &bytes[1]));
    *there = (double)bytes[0];
    *all   = (double)bytes[1];
}

static void put_numbers(cpl_backend *be, cpl_tensor to, const void *from)
{
    note_failure(be, cpl_vendor_put(cpl_cuda_of(be), to.storage, from, cpl_tensor_bytes(to)));
}

static void get_numbers(cpl_backend *be, void *to, cpl_tensor from)
{
    const size_t bytes = cpl_tensor_bytes(from);
    if (be->failure == CPL_OK)
        note_failure(be, cpl_vendor_get(cpl_cuda_of(be), to, from.storage, bytes));
    if (be->failure != CPL_OK) memset(to, 0, bytes); /* zeros are valid ids */
}

/* ---- the table ---- */

/* Returns the largest scratch of the files of kernels. Also passes the shapes to the CPU backend,
 * whose scratch is in host memory. */
static size_t scratch_bytes(const cpl_backend *be, const cpl_work *work)
{
    typedef size_t (*scratch_of)(const cpl_backend *, const cpl_work *);
    static const scratch_of files[] = {
#define CPL_CUDA_FILE(file) cpl_cuda_##file##_scratch,
#include "tensor/cuda/kernels.def"
        NULL,
    };
    size_t most = 0;
    for (size_t i = 0; files[i]; i++) {
        const size_t bytes = files[i](be, work);
        most               = bytes > most ? bytes : most;
    }
    cpl_cuda_expect(be, work);
    return most;
}

static const cpl_ops ops = {
#define CPL_OP(name)     .name = cpl_cuda_##name,
#define CPL_ERC_OP(name) .erc.name = cpl_cuda_erc_##name,
#include "tensor/ops.def"
    .take          = take_memory,
    .give          = free_memory,
    .put           = put_numbers,
    .get           = get_numbers,
    .scratch_bytes = scratch_bytes,
    .sync          = sync,
};

/* ---- the entry point ---- */

static const char *choice(cpl_backend *be, int index)
{
    return cpl_vendor_choice(cpl_cuda_of(be), index);
}

static void close_device(cpl_backend *be)
{
    cpl_cuda *c = cpl_cuda_of(be);
    c->cpu.ops->give(&c->cpu, c->cpu.scratch);
    cpl_vendor_close(c);
    free(c);
    be->own = NULL;
}

static const char *open_device(cpl_backend *be, int device, const cpl_backend *cpu,
                               cpl_fail_fn *of_program)
{
    static char note_text[320];
    cpl_cuda *c          = calloc(1, sizeof *c);
    const char *sentence = c ? cpl_vendor_open(c, device) : "there is no memory to open it";
    if (sentence) {
        free(c);
        return sentence;
    }
    fail   = of_program;
    c->cpu = *cpu;
    *be    = (cpl_backend){.ops       = &ops,
                           .own       = c,
                           .close     = close_device,
                           .room      = room,
                           .name      = "cuda",
                           .device    = c->name,
                           .libraries = c->libraries,
                           .choice    = choice,
                           .note      = note_text,
                           .compute   = cpu->compute,
                           .n_threads = cpu->n_threads,
                           .failure   = CPL_OK};
    snprintf(note_text, sizeof note_text, "%s: without a kernel, on the CPU on copies: %s", c->name,
             cpl_cuda_borrowed);
    return NULL;
}

#ifndef COUPLET_VERSION
#    error "COUPLET_VERSION: the version of the program"
#endif

extern const cpl_cuda_module cpl_cuda_module_entry;
__attribute__((visibility("default"))) const cpl_cuda_module cpl_cuda_module_entry = {
    CPL_CUDA_MODULE_VERSION, COUPLET_VERSION, open_device, cpl_cuda_none};
