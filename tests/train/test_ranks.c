/* test_ranks.c - a run of several ranks, as threads: the model of one process on every mesh, equal
 * bits in a repeated run, checkpoints that any other mesh resumes. */
#include <math.h>
#include <string.h>

#include "checkpoint/stored.h"
#include "parallel/threads.h"
#include "store/hf.h"
#include "support/mirror.h"
#include "support/run_settings.h"
#include "tensor/far/far.h"
#include "train/traffic.h"
#include "train/trainer.h"

enum { VOCABULARY = 64, TOKENS = 8192, MOST_RANKS = 8, MOST_STEPS = 24 };

static const char *const base[] =
    LIST("model.hidden_size=16", "model.intermediate_size=8", "model.num_hidden_layers=2",
         "model.num_experts=8", "model.num_experts_per_tok=2", "model.num_attention_heads=2",
         "model.vocab_size=64", "model.num_key_value_heads=2", "model.max_position_embeddings=64",
         "data.seq_len=16", "data.batch_tokens=128", "data.eos=0", "data.token_type=uint16",
         "data.document_mask=true", "balance.scope=global", "erc.weight=1", "train.steps=20",
         "train.lr=1e-2", "checkpoint.every=0", "eval.every=10", "log.every=4", "compute.dtype=f32",
         "compute.threads=1");

/* Returns the file of ids that all runs share. */
static const char *ids_file(void)
{
    static char path[512];
    if (!path[0]) snprintf(path, sizeof path, "%s", learnable_ids(TOKENS, VOCABULARY, -1));
    return path;
}

static cpl_settings settings_of(const char *const *extra)
{
    cpl_settings settings = default_settings();
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) set(&settings, base[i]);
    set_data(&settings, "train", ids_file());
    set_data(&settings, "validation", ids_file());
    for (int i = 0; extra && extra[i]; i++) set(&settings, extra[i]);
    return settings;
}

/* ---- a run on some mesh ---- */

typedef struct mesh {
    int ranks, experts;
} mesh;

typedef struct result {
    cpl_status status;
    char sentence[300];
    int64_t step;
    double loss[MOST_STEPS + 1], total[MOST_STEPS + 1], erc[MOST_STEPS + 1], norm[MOST_STEPS + 1];
    double held_out, clean; /* losses of the last step */
    double router_cos;      /* at step 4, where some hinges are active */
    double load_max;
    double lambda[3]; /* step 4: of the rows, of the centred rows, of a random direction */
    double negative;  /* scores_negative at step 4 */
    double tokens[CPL_MEAN_TOKEN_FIGURES]; /* of held-out tokens, last step */
    int64_t messages;                      /* messages of this rank: buckets, and the exchange */
} result;

/* One rank of the run. */
typedef struct rank {
    const char *run;
    const char *const *extra;
    mesh shape;
    bool resume;
    void (*act)(struct rank *r, cpl_trainer *t); /* runs in place of training */
    char wrong[200]; /* the first fault that `act` found: only the main thread may fail a test */
    result result;
} rank;

static void stepped(void *ctx, const cpl_metrics *m)
{
    result *r         = ctx;
    r->loss[m->step]  = m->loss;
    r->total[m->step] = m->loss_total;
    r->erc[m->step]   = m->aux[CPL_AUX_ERC].value;
    r->norm[m->step]  = m->grad_norm;
    if (m->has_eval) r->held_out = m->source[0].nll / (double)m->source[0].targets;
    if (m->has_clean) r->clean = m->layer[1].erc_clean;
    if (m->has_tokens) memcpy(r->tokens, m->layer[1].tokens, sizeof r->tokens);
    if (m->has_figures && m->step <= 4) r->router_cos = m->layer[0].router_cos;
    r->load_max = m->layer[0].load_max;
    if (!m->has_figures || m->step > 4) return;
    r->negative  = m->layer[1].scores_negative;
    r->lambda[0] = m->layer[1].figures.router_lambda;
    r->lambda[1] = m->layer[1].centred.router_lambda;
    r->lambda[2] = m->layer[1].figures.router_lambda_random;
}

static cpl_status act(rank *r, const cpl_train_job *job)
{
    cpl_trainer t;
    CPL_TRY(cpl_trainer_open(&t, job));
    r->act(r, &t);
    cpl_trainer_close(&t);
    return CPL_OK;
}

/* Runs one rank. `world` is NULL in one process. */
static void run_rank(void *context, cpl_group *world)
{
    rank *r                             = context;
    cpl_settings settings               = settings_of(r->extra), written;
    const cpl_train_callbacks callbacks = {.ctx = &r->result, .stepped = stepped};
    cpl_train_outcome outcome;
    settings.dist.expert_parallel = r->shape.experts;
    written                       = settings;
    const cpl_train_job job       = LIST(.settings = &settings, .run = r->run, .resume = r->resume,
                                         .written = &written, .world = world, .callbacks = &callbacks);
    r->result.status              = r->act ? act(r, &job) : cpl_train(&job, &outcome);
    r->result.step                = r->act ? 0 : outcome.step;
    snprintf(r->result.sentence, sizeof r->result.sentence, "%s",
             r->result.status != CPL_OK ? cpl_last_error() : r->wrong);
    for (int i = 0; world && i < CPL_BROADCAST; i++)
        if (i != CPL_SUM) r->result.messages += world->ranks->traffic[i].calls;
    drop(&settings);
}

/* Runs all ranks and returns the result of rank 0. The others must have ended alike. */
static result run_all(const rank *job)
{
    rank r[MOST_RANKS];
    (void)ids_file();
    for (int i = 0; i < job->shape.ranks; i++) r[i] = *job;
    if (job->shape.ranks > 1)
        cpl_thread_ranks_run(job->shape.ranks, run_rank, r, sizeof *r);
    else
        run_rank(r, NULL);
    for (int i = 1; i < job->shape.ranks; i++) {
        assert_int_equal(r[i].result.status, r[0].result.status);
        assert_string_equal(r[i].wrong, "");
    }
    return r[0].result;
}

static result train(const char *run, mesh shape, const char *const *extra)
{
    const rank job = {.run = run, .shape = shape, .extra = extra};
    result r       = run_all(&job);
    if (r.status != CPL_OK) fail_msg("%d x %d: %s", shape.ranks, shape.experts, r.sentence);
    return r;
}

/* ---- comparing ---- */

/* The checkpoint `last` of a run, in one process. */
typedef struct model_of {
    cpl_backend be;
    cpl_hf *hf;
    cpl_model model;
} model_of;

static void load(model_of *m, const char *run)
{
    cpl_work none = {0};
    assert_ok(cpl_hf_open(&m->hf, run, NULL));
    assert_ok(cpl_backend_open(&m->be, "cpu", CPL_F32, 1));
    assert_ok(cpl_backend_reserve(&m->be, &none));
    assert_ok(cpl_model_init(&m->model, &m->be, cpl_hf_config(m->hf), 16));
    assert_ok(cpl_hf_load(m->hf, &m->model));
}

static void unload(model_of *m)
{
    cpl_model_free(&m->model);
    cpl_backend_free(&m->be);
    cpl_hf_close(m->hf);
}

/* Returns the largest difference of a tensor, as a share of its norm. */
static double difference(const char *run, const char *other)
{
    model_of a, b;
    double worst = 0;
    load(&a, run);
    load(&b, other);
    for (int64_t i = 0; i < cpl_params_count(&a.model.config); i++) {
        const cpl_param p  = cpl_params_at(&a.model.config, i);
        const cpl_tensor x = seen(&a.be, *cpl_params_tensor(&a.model.master, &p));
        const cpl_tensor y = seen(&b.be, *cpl_params_tensor(&b.model.master, &p));
        const float *u = cpl_f32(x), *v = cpl_f32(y);
        double apart = 0, squares = 0;
        for (int64_t k = 0; k < cpl_tensor_count(x); k++) {
            apart += ((double)u[k] - (double)v[k]) * ((double)u[k] - (double)v[k]);
            squares += (double)u[k] * (double)u[k];
        }
        worst = fmax(worst, squares > 0 ? sqrt(apart / squares) : sqrt(apart));
    }
    unload(&a);
    unload(&b);
    return worst;
}

static void compare(const result *one, const result *many, int steps, mesh shape)
{
    for (int s = 1; s <= steps; s++) {
        const double tolerance  = s <= 3 ? 1e-5 : 1e-4;
        const double pairs[][2] = {{one->loss[s], many->loss[s]},
                                   {one->total[s], many->total[s]},
                                   {one->erc[s], many->erc[s]},
                                   {one->norm[s], many->norm[s]}};
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (!(fabs(pairs[i][0] - pairs[i][1]) <=
                  tolerance * fabs(pairs[i][0]) * (i > 1 ? 10 : 1)))
                fail_msg("%d ranks, %d along the experts: step %d, figure %d is %.9g, alone %.9g",
                         shape.ranks, shape.experts, s, (int)i, pairs[i][1], pairs[i][0]);
    }
    assert_near(many->held_out, one->held_out, 1e-4 * one->held_out);
    assert_near(many->clean, one->clean, 1e-3 * one->clean + 1e-9);
    for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++)
        if (!(fabs(many->tokens[f] - one->tokens[f]) <=
              1e-2)) /* a rank changes by a half or more */
            fail_msg("%d ranks, %d along the experts: %s is %.9g, alone %.9g", shape.ranks,
                     shape.experts, cpl_mean_token_names[f], many->tokens[f], one->tokens[f]);
    assert_int_equal(isnan(many->router_cos), isnan(one->router_cos)); /* erc.gradient: experts */
    if (!isnan(one->router_cos)) assert_near(many->router_cos, one->router_cos, 1e-2);
    assert_near(many->load_max, one->load_max, 0.05 * one->load_max);
    for (int i = 0; i < 3; i++) {
        assert_true(one->lambda[i] > 0.1 && one->lambda[i] < 1);
        assert_near(many->lambda[i], one->lambda[i], 1e-4);
    }
    assert_true(one->negative > 0.1 && one->negative < 0.9);
    assert_near(many->negative, one->negative, 5e-3); /* a few of 1024 scores are near 0 */
}

/* Compares all weights and moments of two checkpoints of one step, whatever their files are. */
static void assert_same_state(const char *run, const char *other)
{
    static const char *const files[][2] = {{"model.safetensors", "model.safetensors.index.json"},
                                           {"state.safetensors", "state.safetensors.index.json"}};
    for (int f = 0; f < 2; f++) {
        cpl_stored_files *open[2];
        const char *runs[2] = {run, other};
        for (int i = 0; i < 2; i++) {
            char path[400];
            snprintf(path, sizeof path, "%s/last/%s", runs[i], files[f][1]);
            if (access(path, R_OK) != 0)
                snprintf(path, sizeof path, "%s/last/%s", runs[i], files[f][0]);
            assert_ok(cpl_stored_open_strict(&open[i], path, NULL));
        }
        assert_int_equal(open[0]->count, open[1]->count);
        assert_true(open[0]->count > 50);
        for (int64_t k = 0; k < open[0]->count; k++) {
            const cpl_stored *x = &open[0]->tensors[k];
            const cpl_stored *y = cpl_stored_find(open[1], x->name);
            int64_t n           = 1;
            for (int d = 0; d < x->entry->rank; d++) n *= x->entry->shape[d];
            float *a = malloc((size_t)n * 4 + 4), *b = malloc((size_t)n * 4 + 4);
            assert_non_null(y);
            assert_ok(cpl_stored_read_part_f32(x, a, 0, n));
            assert_ok(cpl_stored_read_part_f32(y, b, 0, n));
            assert_memory_equal(a, b, (size_t)n * 4);
            free(a);
            free(b);
        }
        cpl_stored_close(open[0]);
        cpl_stored_close(open[1]);
    }
}

/* ---- the tests ---- */

/* Shapes of meshes. The last two run only with the defaults, to save time. */
static const mesh shapes[] = {{2, 1}, {4, 2}, {8, 1}, {2, 2}, {4, 4},
                              {8, 2}, {8, 8}, {4, 1}, {8, 4}};

enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_OFTEN = N_SHAPES - 2 };

/* Returns whether the router of the variant supports the mesh: mpi supports no expert parallelism. */
static bool supports(const char *const *variant, mesh shape)
{
    return shape.experts == 1 || !*variant || strcmp(*variant, "model.router=mpi") != 0;
}

TEST(every_mesh_trains_the_same)
{
    static const char *const variants[][6] = {
        {NULL},
        {"train.micro_batch=1", "erc.draws=2", "erc.proxy=centred", NULL},
        {"model.router=sigmoid", "model.router_bias=true", "model.n_shared_experts=1",
         "erc.gradient=experts", "erc.proxy=tokens", NULL},
        {"orth.weight=0.1", "model.tie_word_embeddings=true", "erc.activation=swiglu",
         "model.latent_dim=6", "erc.proxy=tokens", NULL},
        {"balance.scope=sequence", "balance.weight=0.1", "erc.gradient=router",
         "train.router_lr=0.5", NULL},
        {"model.router=mpi", "model.router_scale=3", "orth.weight=0.1", "erc.alpha=0.2", NULL},
    };
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        const char *alone = fresh_run();
        const result one  = train(alone, (mesh){1, 1}, variants[v]);
        assert_true(one.loss[20] < 0.9 * one.loss[1]);
        for (int i = 0; i < (v ? N_OFTEN : N_SHAPES); i++) {
            if (v > 0 && i % 2 == (int)v % 2) continue;
            if (!supports(variants[v], shapes[i])) continue;
            const char *run   = fresh_run();
            const result many = train(run, shapes[i], variants[v]);
            compare(&one, &many, 20, shapes[i]);
            if (getenv("SHOW"))
                printf("%d %d: %g %g\n", (int)v, shapes[i].ranks, difference(alone, run),
                       fabs(many.loss[20] - one.loss[20]) / one.loss[20]);
            assert_true(difference(alone, run) < 2e-2);
        }
    }
}

TEST(twice_the_same_bits)
{
    static const char *const no_overlap[] = {"dist.overlap=false", "train.steps=5", NULL};
    static const char *const overlap[]    = {"train.steps=5", NULL};
    for (int i = 0; i < N_SHAPES; i++) {
        const char *runs[3] = {fresh_run(), fresh_run(), fresh_run()};
        const result a = train(runs[0], shapes[i], overlap), b = train(runs[1], shapes[i], overlap);
        const result c = train(runs[2], shapes[i], no_overlap);
        assert_memory_equal(a.total, b.total, sizeof a.total);
        assert_memory_equal(a.total, c.total, sizeof a.total);
        assert_true(difference(runs[0], runs[1]) == 0 && difference(runs[0], runs[2]) == 0);
    }
}

/* Runs bf16 in one process and in two: the masters that are saved are whole. */
TEST(bf16_masters_are_whole)
{
    static const char *const extra[] = {"compute.dtype=bf16", "train.steps=6", NULL};
    const char *alone = fresh_run(), *run = fresh_run();
    const result one  = train(alone, (mesh){1, 1}, extra);
    const result many = train(run, (mesh){2, 1}, extra);
    for (int s = 1; s <= 6; s++) assert_near(many.loss[s], one.loss[s], 1e-2 * one.loss[s]);
    if (getenv("SHOW")) printf("bf16 %g\n", difference(alone, run));
    assert_true(difference(alone, run) < 0.05);
}

/* Divided masters share memory with the gradients. Making them whole between two steps changes no
 * later step. */
TEST(whole_masters_disturb_nothing)
{
    static const char *const often[] = {"compute.dtype=bf16", "train.steps=6", "eval.every=1",
                                        "checkpoint.every=1", "log.every=1",   NULL};
    static const char *const never[] = {"compute.dtype=bf16", "train.steps=6", "eval.every=0",
                                        "checkpoint.every=0", "log.every=1",   NULL};
    static const mesh some[]         = {{2, 1}, {4, 2}, {2, 2}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        const char *a = fresh_run(), *b = fresh_run();
        (void)train(a, some[i], often);
        (void)train(b, some[i], never);
        assert_same_state(a, b);
    }
}

/* ---- bytes ---- */

static int64_t bytes_of(const cpl_traffic *t)
{
    int64_t sum = 0;
    for (int i = 0; i < CPL_N_COLLECTIVES; i++) sum += t[i].bytes;
    return sum;
}

static void expect_bytes(rank *r, const char *what, int64_t counted, int64_t predicted)
{
    if (counted != predicted && !r->wrong[0])
        snprintf(r->wrong, sizeof r->wrong, "%s: %lld bytes counted, %lld predicted", what,
                 (long long)counted, (long long)predicted);
}

/* Does one step's work of a trainer just opened, without the work of a loop between steps. */
static void check_traffic(rank *r, cpl_trainer *t)
{
    cpl_step_traffic p;
    cpl_traffic *counted = t->world->ranks->traffic;
    cpl_step_batch batch = {
        t->batch.ids, t->batch.targets, NULL,
        t->settings->data.batch_tokens / t->settings->data.seq_len / t->world->size, 0};
    cpl_traffic_of_step(&p, t->settings, &t->config, &t->optimizer.share, &t->model.compute);
    t->metrics.step = 1;
    t->step.n_means = cpl_tensor_is_there(t->step.token_means); /* as after a step */
    if (cpl_loader_batch(t->data.train, 0, &t->batch) != CPL_OK) strcpy(r->wrong, "batch");
    batch.n_targets = t->batch.n_targets;
    memset(counted, 0, CPL_N_COLLECTIVES * sizeof *counted);
    cpl_optimizer_zero(&t->optimizer, &t->model);
    cpl_step_gradient(&t->step, &t->model, &t->optimizer.grads, t->settings, &batch, false, false,
                      &t->metrics);
    expect_bytes(r, "gradients", counted[CPL_SUM_PARTS].bytes, p.gradients.bytes);
    const int64_t tokens = counted[CPL_ALL_TO_ALL].bytes; /* tests/model/test_exchange.c */
    if ((t->mesh.experts.size > 1) != (tokens > 0)) strcpy(r->wrong, "wrong ranks send tokens");
    cpl_optimizer_update(&t->optimizer, &t->model, &t->settings->train, t->metrics.grad_norm, 1e-3);
    cpl_step_move_means(&t->step, t->settings);
    expect_bytes(r, "parameters", counted[CPL_ALL_GATHER].bytes, p.parameters.bytes);
    /* The loop adds the signs of a stop and two agreements. */
    const int64_t between =
        cpl_group_sum_bytes(t->world->size, t->world->rank, 2, 8) + 2 * (t->world->size - 1) * 8;
    const int64_t sums = p.coupling.bytes + p.balance.bytes + p.figures.bytes - between;
    expect_bytes(r, "sums", counted[CPL_SUM].bytes, sums);
    expect_bytes(r, "all", bytes_of(counted),
                 p.gradients.bytes + p.parameters.bytes + sums + tokens);
}

TEST(bytes_are_as_predicted)
{
    static const char *const variants[][5] = {
        {NULL},
        {"compute.dtype=bf16", "train.micro_batch=1", NULL},
        {"erc.draws=3", "erc.layers=1", "balance.scope=micro", NULL},
        {"erc.weight=0", "model.router=sigmoid", "model.router_bias=true", NULL},
        {"erc.proxy=tokens", NULL},
        {"model.router=mpi", "compute.dtype=bf16", NULL},
    };
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        for (int i = 0; i < N_OFTEN; i++) {
            if (!supports(variants[v], shapes[i])) continue;
            const char *run = fresh_run();
            const rank job  = {
                 .run = run, .shape = shapes[i], .extra = variants[v], .act = check_traffic};
            const result one = run_all(&job);
            assert_string_equal(one.sentence, "");
        }
}

/* ---- resuming ---- */

static void save_again(rank *r, cpl_trainer *t)
{
    if (cpl_trainer_save(t) != CPL_OK) snprintf(r->wrong, sizeof r->wrong, "%s", cpl_last_error());
}

static void copy_run(const char *to, const char *from)
{
    char command[500];
    snprintf(command, sizeof command, "cp -a '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

/* A learning rate that does not depend on train.steps. */
#define CONSTANT_RATE "train.lr_min=1e-2", "train.warmup_steps=1", "z.weight=0.001"
#define TOKENS        "erc.proxy=tokens" /* the moving means are state too */

/* Each mesh of the chain takes over the state bit for bit. The run then goes on as one process
 * would have from the start. */
static void go_on(const mesh *chain, size_t n, const char *dtype, const char *activations)
{
    const char *const first[] = {"train.steps=4", CONSTANT_RATE, TOKENS, dtype, activations, NULL};
    const char *const more[]  = {"train.steps=8", CONSTANT_RATE, TOKENS, dtype, activations, NULL};
    const char *before        = fresh_run();
    const bool is_f32         = strstr(dtype, "f32") != NULL;
    (void)train(before, chain[0], first);
    for (size_t i = 1; i < n; i++) {
        const char *run = fresh_run();
        copy_run(run, before);
        const rank again = {
            .run = run, .shape = chain[i], .extra = first, .resume = true, .act = save_again};
        const result saved = run_all(&again);
        assert_string_equal(saved.sentence, "");
        assert_same_state(before, run);
        before = run;
    }
    const rank on  = {.run = before, .shape = {2, 1}, .extra = more, .resume = true};
    const result r = run_all(&on);
    assert_string_equal(r.sentence, "");
    assert_int_equal(r.step, 8);
    const result whole = train(fresh_run(), chain[0], more);
    for (int s = 5; s <= 8; s++)
        assert_near(r.loss[s], whole.loss[s], (is_f32 ? 1e-4 : 1e-2) * whole.loss[s]);
}

/* The chain is 1 -> 4 -> 2 -> 1, with masters that are divided and whole in turn. */
TEST(any_mesh_goes_on)
{
    static const mesh f32[]  = {{1, 1}, {4, 2}, {2, 1}, {8, 4}, {4, 4}, {1, 1}};
    static const mesh bf16[] = {{1, 1}, {4, 2}, {2, 1}, {1, 1}};
    go_on(f32, sizeof f32 / sizeof *f32, "compute.dtype=f32", "compute.activations=f32");
    go_on(bf16, sizeof bf16 / sizeof *bf16, "compute.dtype=bf16", "compute.activations=bf16");
}

/* Changes the last byte of a file. */
static void damage(const char *folder, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    const int last = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(last ^ 1, file), last ^ 1);
    assert_int_equal(fclose(file), 0);
}

/* The ranks divide the verification, and no file of the checkpoint is left out. */
TEST(every_damaged_file_is_found)
{
    static const char *const files[] = LIST(
        "config.json", "state.json", "model.safetensors.index.json", "state.safetensors.index.json",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "state-00001-of-00004.safetensors", "state-00002-of-00004.safetensors",
        "state-00003-of-00004.safetensors", "state-00004-of-00004.safetensors");
    const char *const two[] = {"train.steps=2", CONSTANT_RATE, NULL};
    const char *run         = fresh_run();
    (void)train(run, (mesh){2, 2}, two);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char last[300];
        const char *copy = fresh_run();
        copy_run(copy, run);
        snprintf(last, sizeof last, "%s/last", copy);
        damage(last, files[i]);
        for (int ranks = 2; ranks <= 4; ranks += 2) {
            const rank on  = {.run = copy, .shape = {ranks, 2}, .extra = two, .resume = true};
            const result r = run_all(&on);
            assert_int_equal(r.status, CPL_ERR_INPUT);
            if (!strstr(r.sentence, files[i]))
                fail_msg("%s is damaged, and %d ranks say: %s", files[i], ranks, r.sentence);
        }
    }
}

/* Makes four more steps of all ranks. Each step waits once for its results, as in one process, and
 * once for each message. Messages are: buckets, the exchange, the loads and probabilities of
 * balance.scope=global, the coupling loss of each layer, and with divided experts its diagonal and
 * violations. */
TEST(a_message_waits_once)
{
    enum { MORE = 4, LAYERS = 2 };
    static const char *const types[] = {"compute.dtype=f32", "compute.dtype=bf16"};
    static const char *const steps[] = {"train.steps=4", "train.steps=8"};
    static const mesh over[]         = {{2, 1}, {2, 2}, {4, 2}};
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        const int64_t sums = 2 + LAYERS * (over[i].experts > 1 ? 3 : 1);
        int64_t waits[2], messages[2];
        setenv("COUPLET_TEST_BACKEND", "late", 1);
        (void)cpl_far_waits(NULL);
        for (int k = 0; k < 2; k++) {
            const char *const extra[] = {steps[k],      "log.every=100",        "eval.every=0",
                                         types[i == 1], "train.warmup_steps=1", NULL};
            messages[k]               = train(fresh_run(), over[i], extra).messages;
            waits[k]                  = cpl_far_waits(NULL);
        }
        unsetenv("COUPLET_TEST_BACKEND");
        assert_true(messages[1] > messages[0]);
        assert_int_equal(waits[1] - waits[0],
                         over[i].ranks * (MORE * (1 + sums) + messages[1] - messages[0]));
    }
}
