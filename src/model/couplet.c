/* couplet.c - the public interface of the coupling loss, see couplet.h: checks the caller's
 * arguments, lays out the scratch and calls the operations that the library's own model uses.
 *
 * Room:  model. */
#include "couplet.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "model/couplet_checks.h"
#include "tensor/backend/backend.h"

const char *cpl_version(void)
{
    return COUPLET_VERSION;
}

void cpl_erc_init(cpl_erc *erc)
{
    if (!erc) return;
    memset(erc, 0, sizeof *erc);
    erc->alpha  = 1;
    erc->weight = 1;
}

/* ---- checks of the caller's arguments ---- */

/* Returns a copy of *erc with the defaults of its ranges filled in: 0 ... 0 means all. */
static cpl_erc with_part(const cpl_erc *erc)
{
    cpl_erc full = *erc;
    if (full.first_expert == 0 && full.end_expert == 0) full.end_expert = full.n_experts;
    if (full.first_row == 0 && full.end_row == 0) full.end_row = full.n_experts;
    return full;
}

static cpl_status check_range(const char *what, int64_t first, int64_t end, int64_t n)
{
    if (first < 0 || first >= end || end > n)
        return CPL_REFUSE("%s [%lld, %lld) are not a part of 0 ... %lld", what, (long long)first,
                          (long long)end, (long long)n);
    return CPL_OK;
}

static cpl_status check_shape(const cpl_erc *erc)
{
    CPL_TRY(cpl_erc_check_size("n_experts", erc->n_experts, CPL_MOST_EXPERTS));
    CPL_TRY(cpl_erc_check_size("d_model", erc->d_model, CPL_MOST_WIDTH));
    CPL_TRY(cpl_erc_check_size("d_expert", erc->d_expert, CPL_MOST_WIDTH));
    CPL_TRY(check_range("experts", erc->first_expert, erc->end_expert, erc->n_experts));
    return check_range("rows", erc->first_row, erc->end_row, erc->n_experts);
}

static bool aligned(const void *at, size_t bytes)
{
    return (uintptr_t)at % bytes == 0;
}

/* Checks the pointer to expert e's matrix or gradient. */
static cpl_status check_pointer(const cpl_erc *erc, const char *what, int64_t e, const void *at,
                                size_t bytes)
{
    if (!at)
        return CPL_REFUSE("%s of expert %lld is NULL", what, (long long)(erc->first_expert + e));
    if (!aligned(at, bytes))
        return CPL_REFUSE("%s of expert %lld is not aligned to %zu bytes", what,
                          (long long)(erc->first_expert + e), bytes);
    return CPL_OK;
}

static cpl_status check_stride(const char *what, int64_t stride, int64_t columns)
{
    if (stride < columns || stride > (int64_t)1 << 40)
        return CPL_REFUSE("%s has stride %lld; its rows are %lld numbers long", what,
                          (long long)stride, (long long)columns);
    return CPL_OK;
}

static cpl_status check_matrices(const cpl_erc *erc, const char *what, cpl_erc_matrices w,
                                 const char *what_grad, cpl_erc_gradients dw, int64_t columns)
{
    const int64_t count = erc->end_expert - erc->first_expert;
    const size_t bytes  = erc->dtype == CPL_ERC_BF16 ? 2 : 4;
    if (!w.at) return CPL_REFUSE("the activation needs the matrices %s, which are NULL", what);
    CPL_TRY(check_stride(what, w.stride, columns));
    for (int64_t e = 0; e < count; e++) CPL_TRY(check_pointer(erc, what, e, w.at[e], bytes));
    if (!dw.at) return CPL_OK;
    CPL_TRY(check_stride(what_grad, dw.stride, columns));
    for (int64_t e = 0; e < count; e++)
        CPL_TRY(check_pointer(erc, what_grad, e, dw.at[e], sizeof(float)));
    return CPL_OK;
}

static cpl_status check_experts(const cpl_erc *erc)
{
    const int64_t d = erc->d_model, D = erc->d_expert;
    if (cpl_erc_has_gate(erc->activation))
        CPL_TRY(check_matrices(erc, "gate", erc->gate, "gate_grad", erc->gate_grad, d));
    if (cpl_erc_has_up(erc->activation))
        CPL_TRY(check_matrices(erc, "up", erc->up, "up_grad", erc->up_grad, d));
    if (erc->activation == CPL_ERC_OUTPUT)
        CPL_TRY(check_matrices(erc, "down", erc->down, "down_grad", erc->down_grad, D));
    return CPL_OK;
}

static cpl_status check_options(const cpl_erc *erc)
{
    if (erc->activation < CPL_ERC_GATE || erc->activation > CPL_ERC_GATE_UP)
        return CPL_REFUSE("activation is %d, which is not a cpl_erc_activation",
                          (int)erc->activation);
    if ((erc->dtype != CPL_ERC_F32 && erc->dtype != CPL_ERC_BF16) ||
        (erc->compute != CPL_ERC_F32 && erc->compute != CPL_ERC_BF16))
        return CPL_REFUSE("dtype and compute must be CPL_ERC_F32 or CPL_ERC_BF16");
    if (!isfinite(erc->alpha) || erc->alpha < 0)
        return CPL_REFUSE("alpha is %g, must be a number >= 0", erc->alpha);
    if (!isfinite(erc->weight)) return CPL_REFUSE("weight is %g, must be a number", erc->weight);
    return cpl_erc_check_threads(erc->n_threads);
}

static cpl_status check(const cpl_erc *erc)
{
    CPL_TRY(check_shape(erc));
    CPL_TRY(check_options(erc));
    CPL_TRY(cpl_erc_check_floats("router", erc->router, true));
    CPL_TRY(cpl_erc_check_floats("router_grad", erc->router_grad, false));
    CPL_TRY(cpl_erc_check_floats("M", erc->M, false));
    CPL_TRY(cpl_erc_check_floats("eps", erc->eps, false));
    CPL_TRY(cpl_erc_check_floats("diagonal", erc->diagonal, false));
    CPL_TRY(cpl_erc_check_floats("violations", erc->violations, false));
    CPL_TRY(check_experts(erc));
    return cpl_erc_check_noise(erc->noise, erc->step, erc->layer, erc->draw, erc->delta,
                               erc->n_experts, erc->d_model);
}

/* ---- from the public struct to the operations ---- */

typedef struct evaluation {
    cpl_erc_host_job job;
    cpl_matrix R, delta; /* [n,d] */
    float *eps;          /* [n]; eps and delta are in the scratch if the caller's are NULL */
    size_t bytes;        /* bytes of scratch in all, for any alignment */
} evaluation;

static cpl_erc_host_job job_of(const cpl_erc *erc)
{
    const bool gate = cpl_erc_has_gate(erc->activation), up = cpl_erc_has_up(erc->activation);
    const bool down = erc->activation == CPL_ERC_OUTPUT;
    return (cpl_erc_host_job){
        .n          = erc->n_experts,
        .d          = erc->d_model,
        .D          = erc->d_expert,
        .i0         = erc->first_row,
        .i1         = erc->end_row,
        .j0         = erc->first_expert,
        .j1         = erc->end_expert,
        .activation = erc->activation,
        .dtype      = erc->dtype == CPL_ERC_BF16 ? CPL_BF16 : CPL_F32,
        .compute    = erc->compute == CPL_ERC_BF16 ? CPL_BF16 : CPL_F32,
        .alpha      = erc->alpha,
        .weight     = erc->weight,
        .R          = erc->router,
        .gate       = {.at = gate ? erc->gate.at : NULL, .stride = erc->gate.stride},
        .up         = {.at = up ? erc->up.at : NULL, .stride = erc->up.stride},
        .down       = {.at = down ? erc->down.at : NULL, .stride = erc->down.stride},
        .dR         = erc->router_grad,
        .dgate      = {.at = gate ? erc->gate_grad.at : NULL, .stride = erc->gate_grad.stride},
        .dup        = {.at = up ? erc->up_grad.at : NULL, .stride = erc->up_grad.stride},
        .ddown      = {.at = down ? erc->down_grad.at : NULL, .stride = erc->down_grad.stride},
        .M          = erc->M,
        .diagonal   = erc->diagonal,
        .violations = erc->violations,
        .n_threads  = cpl_cpu_threads(erc->n_threads),
    };
}

/* Lays out an evaluation in `scratch`. Only counts the bytes if scratch is NULL. */
static evaluation evaluation_of(const cpl_erc *erc, void *scratch)
{
    const int64_t n = erc->n_experts, d = erc->d_model;
    evaluation e = {.job = job_of(erc)};

    const size_t skip =
        scratch ? (CPL_ALIGNMENT - (uintptr_t)scratch % CPL_ALIGNMENT) % CPL_ALIGNMENT : 0;
    cpl_arena arena = cpl_arena_over(scratch ? (char *)scratch + skip : NULL,
                                     scratch ? SIZE_MAX / 2 : SIZE_MAX); /* begin() checks */
    float *eps        = cpl_arena_take(&arena, (size_t)n * sizeof(float));
    e.eps             = erc->eps ? erc->eps : eps;
    e.R               = (cpl_matrix){(float *)(uintptr_t)erc->router, n, d};
    float *diagonal   = cpl_arena_take(&arena, (size_t)n * sizeof(float));
    int32_t *violated = cpl_arena_take(&arena, 2 * (size_t)n * sizeof(int32_t));
    if (!e.job.diagonal) e.job.diagonal = diagonal;
    if (!e.job.violations) e.job.violations = violated;
    const bool drawn    = erc->noise == CPL_ERC_NOISE_DRAWN;
    float *delta        = drawn ? cpl_arena_take(&arena, (size_t)(n * d) * sizeof(float)) : NULL;
    e.delta             = (cpl_matrix){delta, n, d};
    e.job.delta         = erc->noise == CPL_ERC_NOISE_GIVEN ? erc->delta : delta;
    e.job.scratch_bytes = cpl_cpu_on_host()->erc_job_bytes(&e.job);
    e.job.scratch       = cpl_arena_take(&arena, e.job.scratch_bytes);
    e.bytes             = arena.used + CPL_ALIGNMENT;
    return e;
}

static void draw_noise(evaluation *e, const cpl_erc *erc)
{
    const cpl_rng_key key = {erc->seed, erc->step, erc->layer, CPL_STREAM_NOISE};
    cpl_cpu_on_host()->erc_nearest(e->eps, e->R, e->job.n_threads);
    if (erc->noise == CPL_ERC_NOISE_DRAWN)
        cpl_cpu_on_host()->erc_noise(e->delta, e->eps, key, erc->draw, e->job.n_threads);
}

static bool is_zero(const float *row, int64_t d)
{
    for (int64_t k = 0; k < d; k++)
        if (row[k] != 0) return false;
    return true;
}

static void report(cpl_erc *erc, const evaluation *e)
{
    erc->loss           = e->job.loss;
    erc->row_violations = erc->column_violations = erc->eps_above_1 = erc->zero_rows = 0;
    for (int64_t i = 0; i < erc->n_experts; i++) {
        erc->row_violations += e->job.violations[i];
        erc->column_violations += e->job.violations[erc->n_experts + i];
        erc->eps_above_1 += e->eps[i] > 1;
        erc->zero_rows += is_zero(erc->router + i * erc->d_model, erc->d_model);
    }
}

/* ---- the functions of couplet.h ---- */

cpl_status cpl_erc_scratch(const cpl_erc *erc, size_t *bytes)
{
    if (!erc || !bytes) return CPL_REFUSE("erc or bytes is NULL");
    const cpl_erc full = with_part(erc);
    CPL_TRY(check(&full));
    *bytes = evaluation_of(&full, NULL).bytes;
    return CPL_OK;
}

/* Checks the arguments and lays out the scratch. Every phase lays out the scratch alike. */
static cpl_status begin(evaluation *e, const cpl_erc *full)
{
    CPL_TRY(check(full));
    *e = evaluation_of(full, full->scratch);
    if (full->scratch_bytes < e->bytes)
        return CPL_REFUSE("scratch has %zu bytes, %zu are needed", full->scratch_bytes, e->bytes);
    return CPL_OK;
}

/* Returns the value of cpl_erc.phase after phase 1 or 2. The value differs after a fork, since the
 * layout of the scratch depends on the process's number of threads. */
static int phase_done(int phase)
{
    return phase + 2 * cpl_backend_forks();
}

static cpl_status begin_phase(evaluation *e, const cpl_erc *erc, int phase, const char *name)
{
    if (!erc) return CPL_REFUSE("erc is NULL");
    if (erc->phase != phase)
        return CPL_REFUSE("%s was called out of order, or a fork() lies between the phases", name);
    if (!erc->scratch) return CPL_REFUSE("scratch is NULL: the phases need the caller's");
    if (!erc->diagonal || !erc->violations)
        return CPL_REFUSE("diagonal and violations must be given");
    const cpl_erc full = with_part(erc);
    return begin(e, &full);
}

cpl_status cpl_erc_diagonals(cpl_erc *erc)
{
    evaluation e;
    CPL_TRY(begin_phase(&e, erc, erc ? erc->phase : 0, "cpl_erc_diagonals"));
    draw_noise(&e, erc);
    cpl_cpu_on_host()->erc_diagonals(&e.job);
    erc->phase = phase_done(1);
    return CPL_OK;
}

cpl_status cpl_erc_sweep(cpl_erc *erc)
{
    evaluation e;
    CPL_TRY(begin_phase(&e, erc, phase_done(1), "cpl_erc_sweep"));
    cpl_cpu_on_host()->erc_sweep(&e.job);
    report(erc, &e);
    erc->phase = phase_done(2);
    return CPL_OK;
}

cpl_status cpl_erc_finish(cpl_erc *erc)
{
    evaluation e;
    CPL_TRY(begin_phase(&e, erc, phase_done(2), "cpl_erc_finish"));
    cpl_cpu_on_host()->erc_add_diagonal(&e.job);
    erc->phase = 0;
    return CPL_OK;
}

cpl_status cpl_erc_run(cpl_erc *erc)
{
    if (!erc) return CPL_REFUSE("erc is NULL");
    cpl_erc full      = with_part(erc);
    cpl_status status = CPL_OK;
    void *taken       = NULL;
    if (!full.scratch) {
        CPL_TRY(cpl_erc_scratch(&full, &full.scratch_bytes));
        taken = full.scratch = cpl_alloc(full.scratch_bytes);
        if (!taken) return CPL_ERR_MEMORY;
    }
    evaluation e;
    CPL_TRY_DONE(begin(&e, &full));
    if (full.end_expert - full.first_expert != full.n_experts) {
        status = CPL_REFUSE("cpl_erc_run needs every expert; of [%lld, %lld) take the three phases",
                            (long long)full.first_expert, (long long)full.end_expert);
        goto done;
    }
    draw_noise(&e, &full);
    cpl_cpu_on_host()->erc_run_local(&e.job);
    report(erc, &e);
done:
    cpl_free(taken);
    return status;
}
