/* test_couplet_threads.c - couplet.h in a program of many threads and processes: callers at once,
 * which clang's ThreadSanitizer watches in `make races`, and children of fork(). */
#include <pthread.h>
#include <sys/wait.h>

#include "model/couplet_case.h"

enum { N = 24, D_MODEL = 40, D_EXPERT = 28, CALLS = 20, CALLERS = 8 };

/* A case whose hinges are of both kinds, large enough for more than one thread. */
typedef struct problem {
    erc_inputs inputs;
    erc_case c;
} problem;

static problem make_problem(void)
{
    problem p = {.inputs = erc_inputs_random(N, D_MODEL, D_EXPERT, 3, 0.9, 0, 2)};
    p.c       = (erc_case){
              .name = "random", .n = N, .d = D_MODEL, .D = D_EXPERT, .alpha = 0.9, .weight = 1};
    p.c.activation = CPL_ERC_SWIGLU;
    p.c.R          = erc_floats(p.inputs.R, N * D_MODEL);
    for (int k = 0; k < 3; k++)
        p.c.w[k] = erc_floats(p.inputs.w[k], (int64_t)N * D_MODEL * D_EXPERT);
    return p;
}

/* A call with `n_threads`, and its results. */
typedef struct call {
    const problem *p;
    int n_threads;
    uint32_t layer;
    trainer t;
    cpl_status status;
    double loss;
} call;

static cpl_status run(call *r)
{
    cpl_erc erc   = erc_of(&r->t, 0);
    erc.noise     = CPL_ERC_NOISE_DRAWN;
    erc.seed      = 5;
    erc.layer     = r->layer;
    erc.compute   = r->layer % 2 ? CPL_ERC_BF16 : CPL_ERC_F32;
    erc.n_threads = r->n_threads;
    r->status     = cpl_erc_run(&erc);
    r->loss       = erc.loss;
    return r->status;
}

static call call_of(const problem *p, int n_threads, uint32_t layer)
{
    return (call){.p = p, .n_threads = n_threads, .layer = layer, .t = trainer_of(&p->c)};
}

/* Returns whether the results are equal bit for bit. */
static bool are_equal(const call *a, const call *b)
{
    bool equal = a->loss == b->loss && !memcmp(a->t.dR, b->t.dR, sizeof(float) * N * D_MODEL) &&
                 !memcmp(a->t.M, b->t.M, sizeof(float) * N * N);
    for (int k = 0; k < 2; k++)
        equal &= !memcmp(a->t.grad[k], b->t.grad[k], sizeof(float) * N * D_MODEL * D_EXPERT);
    return equal;
}

/* ---- callers at once, each with the stack that couplet.h asks for ---- */

static void *call_often(void *context)
{
    call *r = context;
    for (int k = 0; k < CALLS && run(r) == CPL_OK; k++) {
    }
    return NULL;
}

TEST(callers_at_once_get_the_same_bits)
{
    problem p = make_problem();
    call r[CALLERS];
    pthread_t thread[CALLERS];
    pthread_attr_t small;
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 64 << 10), 0);
    for (int a = 0; a < CALLERS; a++) r[a] = call_of(&p, 2, (uint32_t)(a % 2));
    for (int a = 0; a < CALLERS; a++)
        assert_int_equal(pthread_create(&thread[a], &small, call_often, &r[a]), 0);
    for (int a = 0; a < CALLERS; a++) assert_int_equal(pthread_join(thread[a], NULL), 0);
    for (int a = 0; a < CALLERS; a++) {
        assert_int_equal(r[a].status, CPL_OK);
        assert_true(are_equal(&r[a], &r[a % 2]));
    }
    assert_true(r[0].loss != r[1].loss);
}

/* ---- children of fork() ---- */

/* Returns the exit code of a child that does `work`. A child that hangs is ended. */
static int in_child(bool (*work)(void *context), void *context)
{
    int status;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        _exit(work(context) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) fail_msg("the child is ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* Returns whether this process gets the parent's result. context: the call in the parent. */
static bool finds_the_same(void *context)
{
    const call *one = context;
    call two = call_of(one->p, 2, 0), all = call_of(one->p, 0, 0);
    return run(&two) == CPL_OK && are_equal(&two, one) && run(&all) == CPL_OK &&
           are_equal(&all, one);
}

static bool has_a_child_that_finds_the_same(void *context)
{
    return in_child(finds_the_same, context) == 0;
}

/* Without the parent's threads a child computes with one, and so does its own child. */
TEST(a_child_computes_with_one_thread)
{
    problem p = make_problem();
    call one = call_of(&p, 1, 0), two = call_of(&p, 2, 0);
    assert_ok(run(&one));
    assert_ok(run(&two));
    assert_int_equal(in_child(finds_the_same, &one), 0);
    assert_int_equal(in_child(has_a_child_that_finds_the_same, &one), 0);
    call again = call_of(&p, 2, 0);
    assert_ok(run(&again));
    assert_true(are_equal(&again, &two));
}

static bool is_refused(void *context)
{
    return cpl_erc_sweep(context) == CPL_ERR_INPUT && strstr(cpl_last_error(), "fork()");
}

/* The scratch is laid out for the threads of phase 1. */
TEST(a_child_does_not_go_on_with_the_phases_of_its_parent)
{
    problem p      = make_problem();
    trainer t      = trainer_of(&p.c);
    cpl_erc erc    = erc_of(&t, 0);
    erc.diagonal   = zeros(N);
    erc.violations = (int32_t *)(void *)zeros(2 * N);
    assert_ok(cpl_erc_scratch(&erc, &erc.scratch_bytes));
    erc.scratch = take(erc.scratch_bytes);
    assert_ok(cpl_erc_diagonals(&erc));
    assert_int_equal(in_child(is_refused, &erc), 0);
    assert_ok(cpl_erc_sweep(&erc));
    assert_ok(cpl_erc_finish(&erc));
}
