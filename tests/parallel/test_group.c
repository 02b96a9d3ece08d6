/* test_group.c - groups of ranks, and the mesh, on threads. */
#include "check.h"

#include "group_case.h"
#include "parallel/gather.h"
#include "parallel/mesh.h"
#include "parallel/threads.h"

enum { MOST = 64 };

typedef struct rank_job {
    void (*run)(struct rank_job *job, cpl_group *g);
    case_result result;
} rank_job;

static void run_rank(void *context, cpl_group *g)
{
    rank_job *job = context;
    job->run(job, g);
}

/* Runs `run` on `size` ranks and asserts that no result has a fault. Returns the first result. */
static case_result on_threads(int size, void (*run)(rank_job *job, cpl_group *g))
{
    rank_job jobs[MOST];
    for (int r = 0; r < size; r++) jobs[r] = (rank_job){.run = run};
    cpl_thread_ranks_run(size, run_rank, jobs, sizeof *jobs);
    for (int r = 0; r < size; r++) assert_string_equal(jobs[r].result.wrong, "");
    return jobs[0].result;
}

static void run_case(rank_job *job, cpl_group *g)
{
    case_run(g, &job->result);
}

TEST(test_collectives)
{
    static const int sizes[] = {2, 3, 4, 8, 13, MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint64_t hash = on_threads(sizes[i], run_case).hash;
        assert_true(hash != 0 && hash == on_threads(sizes[i], run_case).hash);
    }
}

/* ---- gather.h ---- */

/* Writes the text of a rank: 0, 4, 8, ... bytes that depend on the rank. */
static void write_text(cpl_text *out, int rank)
{
    for (int32_t i = 0; i < rank; i++) {
        const int32_t number = 1000 * rank + i;
        cpl_text_append(out, &number, sizeof number);
    }
}

static void check_texts(cpl_group *g, case_result *out, const cpl_gathered *all)
{
    cpl_text want = {0};
    for (int r = 0; r < g->size; r++) {
        CASE_EXPECT(all->length[r] == 4 * r, "length of rank %d", r);
        write_text(&want, r);
    }
    CASE_EXPECT(memcmp(all->bytes, want.bytes, want.length) == 0, "bytes at rank %d", g->rank);
    cpl_text_free(&want);
}

static void expect_failure(cpl_group *g, case_result *out, cpl_status status, int from,
                           const char *sentence)
{
    char want[100];
    snprintf(want, sizeof want, "rank %d: %s", from, sentence);
    const char *here = g->rank == from ? sentence : want;
    CASE_EXPECT(status == CPL_ERR_INPUT && strcmp(cpl_last_error(), here) == 0,
                "rank %d: %.60s, not %.60s", g->rank, cpl_last_error(), here);
}

static void run_gather(rank_job *job, cpl_group *g)
{
    case_result *out = &job->result;
    const int last   = g->size - 1;
    cpl_gathered all;
    cpl_text own = {0};
    write_text(&own, g->rank);
    CASE_EXPECT(cpl_gather_texts(&all, g, CPL_OK, &own) == CPL_OK, "texts");
    check_texts(g, out, &all);
    cpl_gathered_free(&all);
    CASE_EXPECT(cpl_gather_to_first(&all, g, CPL_OK, &own) == CPL_OK, "to rank 0");
    if (g->rank == 0) check_texts(g, out, &all);
    CASE_EXPECT(g->rank == 0 || !all.bytes, "rank %d has bytes", g->rank);
    cpl_gathered_free(&all);
    cpl_status status = g->rank == last ? CPL_FAIL(CPL_ERR_INPUT, "bad row") : CPL_OK;
    status            = cpl_gather_texts(&all, g, status, &own);
    expect_failure(g, out, status, last, "bad row");
    CASE_EXPECT(!all.bytes && !all.length, "something is left of a failure");
    status = cpl_gather_equal(g, CPL_OK, json_pack("{s:i,s:s}", "a", 1, "b", "two"));
    CASE_EXPECT(status == CPL_OK, "equal values");
    status = cpl_gather_equal(g, CPL_OK, json_pack("{s:i,s:i}", "a", 1, "b", g->rank == last));
    expect_failure(g, out, status, last, "b is 1, but 0 on rank 0");
    cpl_text_free(&own);
}

TEST(test_gather)
{
    for (int size = 2; size <= 5; size++) (void)on_threads(size, run_gather);
}

TEST(test_one_rank)
{
    cpl_group g        = cpl_group_self();
    case_result result = {0};
    case_all(&g, &result);
    assert_string_equal(result.wrong, "");
}

/* ---- failure ---- */

static bool always_lost(void *ctx, char sentence[1024])
{
    (void)ctx;
    strcpy(sentence, "rank 1 was lost");
    return true;
}

/* Rank 1 never comes. The others learn that it was lost while they wait. */
static void run_without_one(rank_job *job, cpl_group *g)
{
    case_result *out = &job->result;
    float x[4]       = {1, 2, 3, 4}, parts[16];
    int64_t count[4] = {1, 1, 1, 1}, counts[4] = {0, 0, 0, 0};
    cpl_pending p;
    if (g->rank == 1) return;
    cpl_group_start_sum_parts(&p, g, x, x, count, parts);
    g->ranks->lost = always_lost;
    cpl_group_finish(&p);
    CASE_EXPECT(x[0] == 0, "the sum after a failure is %g", (double)x[0]);
    cpl_group_all_to_all(g, x + 1, (int64_t[]){1, 1, 1, 0}, x, counts, 4);
    CASE_EXPECT(x[1] == 0 && x[3] == 0, "what was received after a failure is %g", (double)x[1]);
    CASE_EXPECT(cpl_group_status(g) == CPL_ERR_IO, "status");
    CASE_EXPECT(strcmp(cpl_last_error(), "rank 1 was lost") == 0, "sentence %s", cpl_last_error());
    CASE_EXPECT(cpl_group_agree(g, CPL_OK) == CPL_ERR_IO, "agreement after a failure");
}

TEST(test_lost_rank)
{
    on_threads(4, run_without_one);
}

static void name_rank_1(void *ctx, char names[CPL_ALIVE_NAMES])
{
    (void)ctx;
    strcpy(names, "rank 1 (host a, process 5)");
}

/* Rank 1 never comes, and rank 0 knows its name. */
static void run_with_a_late_one(rank_job *job, cpl_group *g)
{
    case_result *out = &job->result;
    float x[4]       = {1, 2, 3, 4}, parts[16];
    int64_t count[3] = {1, 1, 1};
    cpl_pending p;
    char want[200];
    if (g->rank == 1) return;
    if (g->rank == 0) g->ranks->late = name_rank_1;
    snprintf(want, sizeof want, "%s hangs: the other ranks waited 0.1 seconds for it in a step",
             g->rank == 0 ? "rank 1 (host a, process 5)" : "a rank");
    cpl_group_expect(g, 0.1, "in a step");
    cpl_group_start_sum_parts(&p, g, x, x, count, parts);
    cpl_group_finish(&p);
    CASE_EXPECT(x[0] == 0, "a sum after the failure is %g", (double)x[0]);
    CASE_EXPECT(cpl_group_agree_within(g, CPL_OK, 60, "before a checkpoint") == CPL_ERR_DEVICE,
                "status");
    CASE_EXPECT(strcmp(cpl_last_error(), want) == 0, "sentence %s", cpl_last_error());
}

TEST(test_late_rank)
{
    on_threads(3, run_with_a_late_one);
}

/* The limit of an agreement ends with it. Its failures are shared as in any agreement. */
static void run_in_time(rank_job *job, cpl_group *g)
{
    case_result *out     = &job->result;
    const cpl_status own = g->rank == 2 ? CPL_FAIL(CPL_ERR_IO, "a full disk") : CPL_OK;
    CASE_EXPECT(cpl_group_agree_within(g, CPL_OK, 60, "before a checkpoint") == CPL_OK, "status");
    CASE_EXPECT(g->ranks->patience == 0, "the limit is still there");
    CASE_EXPECT(cpl_group_agree_within(g, own, 60, "before a checkpoint") == CPL_ERR_IO, "failure");
    CASE_EXPECT(strstr(cpl_last_error(), "a full disk") != NULL, "sentence %s", cpl_last_error());
    CASE_EXPECT(cpl_group_status(g) == CPL_OK, "the group failed: %s", cpl_last_error());
}

TEST(test_in_time)
{
    on_threads(3, run_in_time);
}

/* Rank 1 cannot go on and begins no further collective. The others do not come at all. */
static void run_own_failure(rank_job *job, cpl_group *g)
{
    case_result *out = &job->result;
    float x          = 1;
    if (g->rank != 1) return;
    cpl_group_fail(g, CPL_FAIL(CPL_ERR_MEMORY, "no room for rows"));
    cpl_group_sum_f32(g, &x, 1);
    CASE_EXPECT(x == 0, "the sum after a failure is %g", (double)x);
    CASE_EXPECT(cpl_group_agree(g, CPL_OK) == CPL_ERR_MEMORY, "agreement after a failure");
    CASE_EXPECT(strcmp(cpl_last_error(), "no room for rows") == 0, "sentence %s", cpl_last_error());
}

TEST(test_own_failure)
{
    on_threads(3, run_own_failure);
}

static void run_failing_transport(rank_job *job, cpl_group *g)
{
    case_result *out = &job->result;
    double x         = 1;
    if (g->rank == 0) cpl_thread_ranks_fail(g);
    cpl_group_sum_f64(g, &x, 1);
    CASE_EXPECT(cpl_group_status(g) == CPL_ERR_DEVICE && x == 0, "a failed transport: %g", x);
}

TEST(test_failing_transport)
{
    on_threads(3, run_failing_transport);
}

/* ---- the mesh ---- */

static void run_mesh(rank_job *job, cpl_group *world)
{
    case_result *out = &job->result;
    cpl_mesh mesh;
    int64_t held[12] = {0};
    CASE_EXPECT(cpl_mesh_init(&mesh, world, 2, 6) == CPL_OK, "mesh: %s", cpl_last_error());
    if (out->wrong[0]) return;
    CASE_EXPECT(mesh.experts.size == 2 && mesh.replicas.size == 3 && mesh.n_local == 3, "sizes");
    for (int64_t e = 0; e < mesh.n_local; e++) held[mesh.first_expert + e]++;
    cpl_group_sum_i64(&mesh.experts, held, 6);
    for (int e = 0; e < 6; e++) CASE_EXPECT(held[e] == 1, "expert %d is held once", e);
    int64_t first[2] = {mesh.first_expert, 1};
    cpl_group_sum_i64(&mesh.replicas, first, 2);
    CASE_EXPECT(first[0] == 3 * mesh.first_expert && first[1] == 3, "replicas hold the same");
    cpl_mesh_close(&mesh);
}

static void run_bad_mesh(rank_job *job, cpl_group *world)
{
    case_result *out = &job->result;
    cpl_mesh mesh;
    CASE_EXPECT(cpl_mesh_init(&mesh, world, 4, 6) == CPL_ERR_INPUT, "a mesh that does not fit");
    CASE_EXPECT(strstr(cpl_last_error(), "dist.expert_parallel is 4") &&
                    strstr(cpl_last_error(), "ranks, 6,") && strstr(cpl_last_error(), "experts, 6"),
                "sentence: %s", cpl_last_error());
}

TEST(test_mesh)
{
    on_threads(6, run_mesh);
    on_threads(6, run_bad_mesh);
}
