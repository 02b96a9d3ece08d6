/* test_far.c - faults that the backends far and late must find, each planted in a process of its
 * own, and work that the backends must not change. */
#include "tensor/far/far.h"

#include <sys/wait.h>
#include <unistd.h>

#include "store/model_case.h"
#include "support/mirror.h"

enum { B = 1, S = 8 };

/* A pass over one sequence. `watch` gets its layers. */
typedef struct passing {
    model_case *m;
    cpl_tensor_arena arena;
    cpl_pass pass;
    int layers; /* seen so far */
} passing;

typedef void watch_fn(void *context, int64_t layer, const cpl_moe_kept *kept);

static void forward(watch_fn *watch)
{
    const cpl_model_settings c = small_config();
    passing p                  = {.m = model_drawn(&c, 1)};
    cpl_backend *be            = &p.m->be;
    const int32_t ids[S]       = {1, 2, 3, 4, 5, 6, 7, 8};
    p.arena                    = cpl_tensor_arena_measure();
    cpl_pass_take(&p.pass, &p.arena, &c, B, S, true, false);
    assert_ok(cpl_tensor_arena_init(&p.arena, be, &p.arena, "pass"));
    cpl_pass_take(&p.pass, &p.arena, &c, B, S, true, false);
    p.pass.on_layer = watch;
    p.pass.ctx      = &p;
    cpl_model_forward(&p.m->model, &p.pass,
                      mirrored(be, cpl_tensor_1d((void *)(uintptr_t)ids, CPL_I32, S)),
                      cpl_tensor_none(), NULL);
    assert_ok(be->ops->sync(be));
    assert_true(!watch || cpl_f32(p.pass.moe[0].probs)[0] >= 0);
    mirrors_end(be);
    cpl_tensor_arena_free(&p.arena);
    model_gone(p.m);
}

/* ---- the faults ---- */

static void only_count(void *context, int64_t layer, const cpl_moe_kept *kept)
{
    (void)layer, (void)kept;
    ((passing *)context)->layers++;
}

static void host_reads_a_probability(void)
{
    forward(only_count); /* reads a number at its end */
}

static void read_early(void *context, int64_t layer, const cpl_moe_kept *kept)
{
    float counts[5];
    (void)context, (void)layer;
    memcpy(counts, kept->counts.storage, sizeof counts);
    assert_true(counts[0] >= 0);
}

static void callback_reads_early(void)
{
    forward(read_early);
}

static void give_back(void *context, int64_t layer, const cpl_moe_kept *kept)
{
    passing *p = context;
    (void)layer, (void)kept;
    p->m->be.ops->give(&p->m->be, p->arena.tensors.base);
}

static void memory_is_freed_in_mid_pass(void)
{
    forward(give_back);
}

static void number_on_the_stack(void)
{
    cpl_backend be;
    cpl_tensor x = cpl_tensor_none();
    double sum   = 0;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 1));
    assert_ok(cpl_tensor_reserve(&x, &be, CPL_F32, 4));
    be.ops->sum(&be, cpl_tensor_1d(&sum, CPL_F64, 1), x);
}

static void tensor_of_another_backend(void)
{
    cpl_backend be, other;
    cpl_tensor x = cpl_tensor_none();
    assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 1));
    assert_ok(cpl_backend_open(&other, "cpu", CPL_F32, 1));
    assert_ok(cpl_tensor_reserve(&x, &other, CPL_F32, 4));
    be.ops->fill(&be, x, 0);
}

/* Returns the output of a process with this fault on far and on late. The process must fail. */
static const char *said_by(void (*fault)(void), const char *backend)
{
    static char text[1 << 14];
    int ends[2], status;
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        setenv("COUPLET_TEST_BACKEND", backend, 1);
        fault();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)n;
    close(ends[0]);
    text[length] = '\0';
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    return text;
}

TEST(faults_are_found)
{
    static const struct {
        void (*fault)(void);
        const char *sentence, *place;
    } faults[] = {
        {host_reads_a_probability, "The host has read or written memory", "in forward"},
        {callback_reads_early, "The host has read or written memory", "in read_early"},
        {memory_is_freed_in_mid_pass, "or has been given back", "in cpl_model_forward"},
        {number_on_the_stack, "that its backend has not taken", "in number_on_the_stack"},
        {tensor_of_another_backend, "that its backend has not taken",
         "in tensor_of_another_backend"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (int late = 0; late < 2; late++) {
            const char *said = said_by(faults[i].fault, late ? "late" : "far");
            if (!strstr(said, faults[i].sentence)) fail_msg("fault %d: %s", (int)i, said);
#if defined(__SANITIZE_ADDRESS__)
            if (!strstr(said, faults[i].place)) fail_msg("fault %d: %s", (int)i, said);
#endif
        }
}

/* Asserts that make_operations.py refuses ops.h after this edit of sed, with this sentence. */
static void refuses(const char *edit, const char *sentence)
{
    char command[900], said[400] = "";
    const char *folder = scratch_folder();
    snprintf(command, sizeof command,
             "cp src/tensor/erc.h '%s' && sed '%s' src/tensor/ops.h > '%s/ops.h' && "
             "python3 tools/make_operations.py '%s' 2>&1 > /dev/null",
             folder, edit, folder, folder);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    (void)!fread(said, 1, sizeof said - 1, pipe);
    assert_int_not_equal(pclose(pipe), 0);
    assert_non_null(strstr(said, sentence));
}

/* The build refuses an operation that takes a struct by its address. */
TEST(addresses_are_refused)
{
    refuses("s/cpl_routing how);/const cpl_routing *how);/",
            "route is given `const cpl_routing *how` by its address");
    refuses("s/float limit);/const float limit[]);/", "is given `const float limit[]`");
    refuses("s/cpl_tensor bias;/const float *bias;/", "cpl_routing holds an address or an array");
    refuses("s/cpl_tensor offset;/cpl_tensor offset[2];/", "cpl_dispatch holds an address or an");
    refuses("s/void (\\*sum)(/double (*sum)(/", "sum returns a double");
}

/* ---- work that they do not change ---- */

/* Checks a number used while it is queued, memory that is not set, and a pass without faults. */
TEST(work_is_done_in_order)
{
    static const char *const backends[] = {"cpu", "far", "late"};
    for (int i = 0; i < 3; i++) {
        cpl_backend be;
        cpl_tensor x = cpl_tensor_none(), sum = cpl_tensor_none();
        float numbers[3] = {1, 2, 3};
        double got;
        setenv("COUPLET_TEST_BACKEND", backends[i], 1);
        assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 1));
        assert_ok(cpl_tensor_reserve(&x, &be, CPL_F32, 3));
        assert_ok(cpl_tensor_reserve(&sum, &be, CPL_F64, 1));
        if (i > 0) assert_true(isnan(cpl_tensor_number(&be, sum)));
        (void)cpl_far_waits(NULL);
        be.ops->fill(&be, sum, 0);
        be.ops->put(&be, x, numbers);
        numbers[0] = 100;
        be.ops->sum(&be, sum, x);
        be.ops->put(&be, x, numbers);
        be.ops->sum(&be, sum, cpl_tensor_range(x, 0, 2));
        be.ops->get(&be, &got, sum);
        assert_true(got == 108);
        assert_ok(be.ops->sync(&be));
        assert_int_equal(cpl_far_waits(NULL), i == 0 ? 0 : 2);
        cpl_tensor_free(&x, &be);
        cpl_tensor_free(&sum, &be);
        cpl_backend_free(&be);
        forward(NULL);
    }
    unsetenv("COUPLET_TEST_BACKEND");
}
