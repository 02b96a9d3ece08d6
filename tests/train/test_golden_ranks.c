/* test_golden_ranks.c - every gradient of tests/golden/model, computed by the ranks of a mesh:
 * within 1e-5 of PyTorch in float64, on every rank. */
#include "parallel/threads.h"
#include "tensor/backend/backend.h"
#include "train/golden_model.h"

enum { MOST_RANKS = 8 };

static const golden_limits limit = {CPL_F32, CPL_F32, 1e-4, 1e-5, 1e-5};

/* One rank. Its memory lasts until its gradients were compared. */
typedef struct rank {
    const char *folder;
    int experts;
    bool figures;
    cpl_settings settings;
    cpl_hf *hf;
    cpl_model_settings config;
    cpl_mesh mesh;
    cpl_backend be;
    cpl_model model;
    cpl_share share;
    cpl_step step;
    cpl_metrics metrics;
    cpl_tensor_arena arena;
    cpl_params grads;
    int32_t *ids, *target;
    const char *failed;
} rank;

static int64_t least_multiple(int64_t a, int64_t b)
{
    int64_t x = a;
    while (x % b) x += a;
    return x;
}

/* Returns the sequences, repeated until every rank has as many. Repetition changes no loss. */
static cpl_step_batch own_batch(rank *r, const cpl_group *world)
{
    int64_t seq_len      = 0;
    cpl_step_batch batch = golden_tokens(r->folder, &seq_len);
    const int64_t b = batch.n_sequences, own = least_multiple(b, world->size) / world->size;
    r->ids    = malloc((size_t)(own * seq_len) * sizeof *r->ids);
    r->target = malloc((size_t)(own * seq_len) * sizeof *r->target);
    for (int64_t i = 0; i < own; i++) {
        const int64_t from = (world->rank * own + i) % b * seq_len;
        memcpy(r->ids + i * seq_len, batch.ids + from, (size_t)seq_len * sizeof *r->ids);
        memcpy(r->target + i * seq_len, batch.target + from, (size_t)seq_len * sizeof *r->target);
    }
    free((void *)(uintptr_t)batch.ids);
    free((void *)(uintptr_t)batch.target);
    r->settings.data.seq_len = seq_len;
    return (cpl_step_batch){r->ids, r->target, NULL, own, own * (seq_len - 1)};
}

/* Records a failure: only the main thread may fail a test. */
#define NEED(call)                                                                                 \
    if ((call) != CPL_OK) {                                                                        \
        r->failed = #call;                                                                         \
        return;                                                                                    \
    }

static void take(rank *r)
{
    cpl_params_take(&r->grads, &r->arena, &r->config, CPL_F32);
    cpl_share_take_buffers(&r->share, &r->arena);
    cpl_metrics_take(&r->metrics, &r->arena.host, &r->config, 0);
}

static void compute(void *context, cpl_group *world)
{
    rank *r = context;
    golden_settings(&r->settings, r->folder);
    r->settings.losses.balance.scope = CPL_BALANCE_GLOBAL; /* as PyTorch's single batch */
    const cpl_step_batch batch       = own_batch(r, world);
    NEED(cpl_hf_open(&r->hf, r->folder, NULL));
    r->config = *cpl_hf_config(r->hf);
    NEED(cpl_mesh_init(&r->mesh, world, r->experts, r->config.n_experts));
    r->config.first_expert = r->mesh.first_expert;
    r->config.n_local      = r->mesh.n_local;
    const cpl_work work    = cpl_step_work(&r->settings, &r->config, batch.n_sequences);
    assert_ok(cpl_backend_open(&r->be, "cpu", CPL_F32, 1));
    NEED(cpl_backend_reserve(&r->be, &work));
    NEED(cpl_model_init(&r->model, &r->be, &r->config, r->settings.data.seq_len));
    NEED(cpl_hf_load(r->hf, &r->model));
    NEED(cpl_share_init(&r->share, &r->config, &r->mesh, CPL_F32, true));
    r->share.be = &r->be;
    NEED(cpl_step_init(&r->step, &r->be, &r->settings, &r->config, batch.n_sequences, &r->share));
    golden_delta(&r->be, &r->step, r->folder, r->config.n_layers);
    r->arena = cpl_tensor_arena_measure();
    take(r);
    NEED(cpl_tensor_arena_init(&r->arena, &r->be, &r->arena, "gradients and metrics"));
    take(r);
    cpl_step_gradient(&r->step, &r->model, &r->grads, &r->settings, &batch, r->figures, true,
                      &r->metrics);
    NEED(cpl_step_status(&r->step));
    cpl_share_gather(&r->share, &r->grads);
}

static void end(rank *r)
{
    drop(&r->settings);
    free(r->ids);
    free(r->target);
    cpl_tensor_arena_free(&r->arena);
    cpl_step_free(&r->step);
    cpl_share_free(&r->share);
    cpl_model_free(&r->model);
    cpl_backend_free(&r->be);
    cpl_hf_close(r->hf);
    cpl_mesh_close(&r->mesh);
}

static void run_case(const char *name, int n_ranks, int experts, bool figures)
{
    rank r[MOST_RANKS]        = {0};
    cpl_safetensors *expected = NULL;
    char folder[256], path[300];
    snprintf(folder, sizeof folder, "%s", golden_path("model/"));
    snprintf(folder + strlen(folder), sizeof folder - strlen(folder), "%s", name);
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    assert_ok(cpl_safetensors_open(&expected, path));
    for (int i = 0; i < n_ranks; i++)
        r[i] = (rank){.folder = folder, .experts = experts, .figures = figures};
    cpl_thread_ranks_run(n_ranks, compute, r, sizeof *r);
    for (int i = 0; i < n_ranks; i++) {
        if (r[i].failed) fail_msg("%s, rank %d: %s", name, i, r[i].failed);
        golden_compare_gradients(expected, &r[i].model, &r[i].grads, &limit);
        golden_compare(expected, "loss.ce", &(float){(float)r[i].metrics.loss}, 1, 1e-5, NULL);
        golden_compare(expected, "loss.total", &(float){(float)r[i].metrics.loss_total}, 1, 1e-5,
                       NULL);
    }
    for (int i = 0; i < n_ranks; i++) end(&r[i]);
    cpl_safetensors_close(expected);
}

/* Divides the experts over every number that divides the ranks and the case's experts. */
static void on_meshes_of(int n_ranks)
{
    int computed = 0;
    for (int i = 0; i < N_GOLDEN_CASES; i++)
        for (int experts = 1; experts <= n_ranks; experts *= 2) {
            cpl_hf *hf = NULL;
            char folder[256];
            snprintf(folder, sizeof folder, "%s%s", golden_path("model/"), golden_cases[i]);
            assert_ok(cpl_hf_open(&hf, folder, NULL));
            const int64_t n = cpl_hf_config(hf)->n_experts;
            cpl_hf_close(hf);
            if (n % experts) continue;
            run_case(golden_cases[i], n_ranks, experts, false);
            if (i % 4 == 0) run_case(golden_cases[i], n_ranks, experts, true);
            computed++;
        }
    assert_true(computed > N_GOLDEN_CASES);
}

TEST(two_ranks)
{
    on_meshes_of(2);
}

TEST(four_ranks)
{
    on_meshes_of(4);
}

TEST(eight_ranks)
{
    on_meshes_of(8);
}
