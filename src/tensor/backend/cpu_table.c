/* cpu_table.c - the whole table of one instruction set. */
#include <string.h>

#include "base/arena.h"
#include "tensor/backend/backend.h"
#include "tensor/cpu/cpu.h"

/* ---- memory: the host's ---- */

static void *take_memory(cpl_backend *be, size_t bytes)
{
    (void)be;
    return cpl_alloc(bytes);
}

static void free_memory(cpl_backend *be, void *memory)
{
    (void)be;
    cpl_free(memory);
}

static void put_numbers(cpl_backend *be, cpl_tensor to, const void *from)
{
    (void)be;
    memcpy(to.storage, from, cpl_tensor_bytes(to));
}

static void get_numbers(cpl_backend *be, void *to, cpl_tensor from)
{
    (void)be;
    memcpy(to, from.storage, cpl_tensor_bytes(from));
}

/* ---- the table ---- */

static size_t scratch_bytes(const cpl_backend *be, const cpl_work *work)
{
    typedef size_t (*scratch_of)(const cpl_backend *, const cpl_work *);
    static const scratch_of files[] = {
        CPL_ISA_NAME(cpl_cpu_gemm_scratch),    CPL_ISA_NAME(cpl_cpu_rows_scratch),
        CPL_ISA_NAME(cpl_cpu_route_scratch),   CPL_ISA_NAME(cpl_cpu_attention_scratch),
        CPL_ISA_NAME(cpl_cpu_experts_scratch), CPL_ISA_NAME(cpl_cpu_xent_scratch),
        CPL_ISA_NAME(cpl_cpu_orth_scratch),    CPL_ISA_NAME(cpl_cpu_spectral_scratch),
        CPL_ISA_NAME(cpl_cpu_figures_scratch), CPL_ISA_NAME(cpl_cpu_sample_scratch),
        CPL_ISA_NAME(cpl_cpu_erc_scratch),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        size_t bytes = files[i](be, work);
        most         = bytes > most ? bytes : most;
    }
    return most;
}

/* Returns the first failure without a wait: an operation has finished when it returns. */
static cpl_status sync(cpl_backend *be)
{
    return cpl_backend_status(be);
}

const cpl_ops CPL_ISA_NAME(cpl_cpu_ops) = {
#define CPL_OP(name)     .name = CPL_ISA_NAME(cpl_cpu_##name),
#define CPL_ERC_OP(name) .erc.name = CPL_ISA_NAME(cpl_cpu_erc_##name),
#include "tensor/ops.def"
    .take          = take_memory,
    .give          = free_memory,
    .put           = put_numbers,
    .get           = get_numbers,
    .scratch_bytes = scratch_bytes,
    .sync          = sync,
};

const cpl_host_ops CPL_ISA_NAME(cpl_cpu_host_ops) = {
#define CPL_OP(name)
#define CPL_HOST_OP(name)     .name = CPL_ISA_NAME(cpl_cpu_host_##name),
#define CPL_RESPONSE_OP(name) .response.name = CPL_ISA_NAME(cpl_cpu_response_##name),
#include "tensor/ops.def"
};
