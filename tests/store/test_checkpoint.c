/* test_checkpoint.c - checkpoints: saved, kept, verified, and whole whatever happens between two
 * system calls, on a full disk, or without memory. */
#include "store/checkpoint.h"
#include "store/run_dir.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "io/paths.h"
#include "store/hf.h"
#include "store/model_case.h"
#include "support/scarce.h"

static const cpl_hf_tokens no_tokens = {.pad = -1, .bos = -1};

/* A model and moments. */
typedef struct world {
    model_case *m;
    cpl_tensor_arena arena;
    cpl_params moments[2];
} world;

static world world_of(uint64_t seed)
{
    cpl_model_settings c = small_config();
    world w              = {.m = model_drawn(&c, seed)};
    w.arena              = cpl_tensor_arena_measure();
    for (int i = 0; i < 2; i++) cpl_params_take(&w.moments[i], &w.arena, &c, CPL_F32);
    assert_ok(cpl_tensor_arena_init(&w.arena, &w.m->be, &w.arena, "moments"));
    for (int i = 0; i < 2; i++) {
        cpl_params_take(&w.moments[i], &w.arena, &c, CPL_F32);
        w.m->be.ops->fill(&w.m->be, cpl_tensor_numbers(w.moments[i].embed, 3, 1),
                          (float)seed + (float)i);
    }
    return w;
}

static void free_world(world *w)
{
    cpl_tensor_arena_free(&w->arena);
    model_gone(w->m);
}

static cpl_checkpoint checkpoint_of(world *w, int64_t step, json_t *state)
{
    cpl_checkpoint c = LIST(.step = step, .model = &w->m->model, .m = &w->moments[0],
                            .v = &w->moments[1], .state = state, .tokens = &no_tokens);
    return c;
}

static cpl_status save(const char *run, world *w, int64_t step, int64_t keep)
{
    json_t *state     = json_pack("{s:i}", "mark", (int)step + 1000);
    cpl_checkpoint c  = checkpoint_of(w, step, state);
    cpl_status status = cpl_checkpoint_save(run, &c, keep);
    json_decref(state);
    return status;
}

static bool run_has(const char *run, const char *name)
{
    return cpl_path_exists(in_folder(run, name));
}

static void assert_no_temporary_files(const char *run)
{
    cpl_strings names = {0};
    assert_ok(cpl_folder_list(&names, run));
    for (int64_t i = 0; i < names.count; i++) assert_null(strstr(names.at[i], ".tmp-"));
    cpl_paths_free(&names);
}

/* Asserts that `last` leads to a checkpoint of `step` with the contents of `want`. */
static void assert_last(const char *run, int64_t step, world *want)
{
    char *folder     = NULL;
    world got        = world_of(99);
    cpl_checkpoint c = checkpoint_of(&got, -1, NULL);
    int64_t mark     = 0;
    assert_ok(cpl_run_dir_last(&folder, run));
    assert_ok(cpl_checkpoint_load(folder, &c, NULL));
    assert_int_equal(c.step, step);
    assert_ok(cpl_json_int(c.state, "mark", &mark, 0, 1 << 20, "state.json"));
    assert_int_equal(mark, step + 1000);
    assert_same_weights(got.m, want->m, CPL_SAFETENSORS_F32);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(seen(&got.m->be, got.moments[i].embed).storage,
                            seen(&want->m->be, want->moments[i].embed).storage,
                            cpl_tensor_bytes(want->moments[i].embed));
    json_decref(c.state);
    cpl_free(folder);
    free_world(&got);
}

static cpl_status load_means(const char *run, world *w, cpl_tensor means, int64_t *steps)
{
    char *folder     = NULL;
    cpl_checkpoint c = checkpoint_of(w, -1, NULL);
    c.token_means    = means;
    assert_ok(cpl_run_dir_last(&folder, run));
    const cpl_status status = cpl_checkpoint_load(folder, &c, NULL);
    *steps                  = c.token_steps;
    json_decref(c.state);
    cpl_free(folder);
    return status;
}

/* Means of the tokens come back bit for bit. A checkpoint without means leaves the tensor as it
 * is, and means of another shape are refused. */
TEST(means_of_the_tokens)
{
    enum { LAYERS = 2, ROW = 9 };
    world w          = world_of(1);
    const char *run  = scratch_folder();
    cpl_backend *be  = &w.m->be;
    cpl_checkpoint c = checkpoint_of(&w, 5, json_object());
    float means[LAYERS * ROW], other[LAYERS * ROW] = {0};
    cpl_tensor room = mirrored(be, cpl_tensor_2d(other, CPL_F32, LAYERS, ROW));
    int64_t steps   = -1;
    for (int i = 0; i < LAYERS * ROW; i++) means[i] = 1.0f / (float)(i + 3);
    assert_ok(save(run, &w, 4, 9));
    assert_ok(load_means(run, &w, room, &steps));
    assert_true(steps == 0 && cpl_f32(seen(be, room))[0] == 0);
    c.token_means = mirrored(be, cpl_tensor_2d(means, CPL_F32, LAYERS, ROW));
    c.token_steps = 3;
    assert_ok(cpl_checkpoint_save(run, &c, 9));
    assert_ok(load_means(run, &w, room, &steps));
    assert_int_equal(steps, 3);
    assert_memory_equal(seen(be, room).storage, means, sizeof means);
    assert_ok(load_means(run, &w, cpl_tensor_none(), &steps));
    assert_fails(CPL_ERR_INPUT, "erc.token_means",
                 load_means(run, &w, cpl_tensor_as_2d(room, ROW, LAYERS), &steps));
    json_decref(c.state);
    mirrors_end(be);
    free_world(&w);
}

TEST(saves_loads_and_keeps)
{
    world a = world_of(1), b = world_of(2);
    const char *run = scratch_folder();
    char *folder    = NULL;
    assert_false(cpl_run_dir_has_checkpoint(run));
    assert_fails(CPL_ERR_INPUT, "saved none yet", cpl_run_dir_last(&folder, run));
    assert_ok(save(run, &a, 5, 2));
    assert_true(cpl_run_dir_has_checkpoint(run));
    assert_last(run, 5, &a);
    assert_ok(save(run, &b, 10, 2));
    assert_last(run, 10, &b);
    assert_true(run_has(run, "step-000005"));
    assert_ok(save(run, &a, 999999, 2));
    assert_ok(save(run, &b, 1000000, 2)); /* seven digits come after six */
    assert_false(run_has(run, "step-000005") || run_has(run, "step-000010"));
    assert_true(run_has(run, "step-999999"));
    assert_last(run, 1000000, &b);
    assert_ok(save(run, &a, 1000000, 2)); /* the same step again */
    assert_last(run, 1000000, &a);
    assert_ok(save(run, &b, 7, 1)); /* later checkpoints are neither counted nor removed */
    assert_last(run, 7, &b);
    assert_true(run_has(run, "step-999999"));
    assert_no_temporary_files(run);
    free_world(&a);
    free_world(&b);
}

/* Checks the folders that remain when a run is killed between two system calls of a save. */
TEST(half_states)
{
    world a = world_of(1), b = world_of(2);
    const char *run = scratch_folder();
    assert_ok(save(run, &a, 1, 2));
    assert_int_equal(mkdir(in_folder(run, ".tmp-step"), 0777), 0);
    write_string(in_folder(run, ".tmp-step/model.safetensors"), "half");
    assert_int_equal(mkdir(in_folder(run, ".tmp-old"), 0777), 0);
    write_string(in_folder(run, ".tmp-old/state.json"), "half");
    assert_int_equal(symlink("step-000002", in_folder(run, ".tmp-last")), 0);
    write_string(in_folder(run, "config.yaml.tmp-77-1"), "half");
    write_string(in_folder(run, "notes.txt"), "the user's");
    assert_last(run, 1, &a);
    assert_ok(save(run, &b, 2, 1)); /* over all these remains */
    assert_last(run, 2, &b);
    cpl_run_dir_clean(run);
    assert_no_temporary_files(run);
    assert_true(run_has(run, "notes.txt"));
    assert_int_equal(unlink(in_folder(run, "last")), 0); /* before the first link */
    assert_last(run, 2, &b);
    assert_int_equal(symlink("elsewhere", in_folder(run, "last")), 0);
    char *folder = NULL;
    assert_fails(CPL_ERR_INPUT, "`last` leads to elsewhere, which is not the name",
                 cpl_run_dir_last(&folder, run));
    free_world(&a);
    free_world(&b);
}

/* ---- damage ---- */

static cpl_status load(const char *folder, world *w)
{
    cpl_checkpoint c  = checkpoint_of(w, 0, NULL);
    cpl_status status = cpl_checkpoint_load(folder, &c, NULL);
    json_decref(c.state);
    return status;
}

TEST(edited_files_are_named)
{
    static const char *const files[] = {"config.json", "generation_config.json", "state.json",
                                        "state.safetensors", "model.safetensors"};
    world a                          = world_of(1);
    bool checked                     = false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *run = scratch_folder();
        cpl_text text   = {0};
        assert_ok(save(run, &a, 1, 1));
        const char *folder = in_folder(run, "step-000001"), *path = in_folder(folder, files[i]);
        assert_ok(cpl_run_dir_verify(folder, &checked));
        assert_true(checked);
        assert_ok(cpl_file_read(&text, path, SIZE_MAX));
        text.bytes[text.length - 2] ^= 1;
        assert_ok(cpl_file_write_atomic(path, text.bytes, text.length));
        assert_fails(CPL_ERR_INPUT, files[i], load(folder, &a));
        assert_int_equal(unlink(path), 0);
        assert_fails(CPL_ERR_IO, files[i], load(folder, &a));
        cpl_text_free(&text);
    }
    free_world(&a);
}

TEST(check_sums_must_be_there)
{
    static const char *const sums[] = {"{}", "[]", "3", "{\"model.safetensors\": 3}", "{"};
    world a                         = world_of(1);
    const char *run                 = scratch_folder();
    assert_ok(save(run, &a, 1, 1));
    char folder[600];
    snprintf(folder, sizeof folder, "%s/step-000001", run);
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        write_string(in_folder(folder, "checksums.json"), sums[i]);
        assert_fails(CPL_ERR_INPUT, "checksums.json", load(folder, &a));
    }
    assert_int_equal(unlink(in_folder(folder, "checksums.json")), 0);
    assert_fails(CPL_ERR_INPUT, "checksums.json", load(folder, &a));
    free_world(&a);
}

/* Writes the current hash of a file to checksums.json, so that the load fails by its contents. */
static void reseal(const char *folder, const char *name)
{
    uint64_t hash = 0;
    char hex[17];
    json_t *sums = NULL;
    assert_ok(cpl_file_hash(&hash, in_folder(folder, name)));
    assert_ok(cpl_json_load(&sums, in_folder(folder, "checksums.json")));
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    json_object_set_new(sums, name, json_string(hex));
    assert_ok(cpl_json_write_atomic(in_folder(folder, "checksums.json"), sums, 0));
    json_decref(sums);
}

TEST(nonsense_is_refused)
{
    static const char *const states[] = {
        "{}", "[]", "{\"step\": -1}", "{\"step\": 1e18}", "{\"step\": \"1\"}", ""};
    world a         = world_of(1);
    const char *run = scratch_folder();
    char folder[600];
    assert_ok(save(run, &a, 1, 1));
    snprintf(folder, sizeof folder, "%s/step-000001", run);
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        write_string(in_folder(folder, "state.json"), states[i]);
        reseal(folder, "state.json");
        assert_fails(CPL_ERR_INPUT, "state.json", load(folder, &a));
    }
    cpl_model_settings other = small_config();
    other.rope_theta         = 5e5; /* a difference that tensor shapes do not reveal */
    assert_ok(cpl_hf_config_write(folder, &other, &no_tokens));
    reseal(folder, "config.json");
    assert_fails(CPL_ERR_INPUT, "model.rope_theta is 10000", load(folder, &a));
    assert_non_null(strstr(cpl_last_error(), "500000"));
    free_world(&a);
}

/* ---- failures of the system ---- */

/* Limits the size of files to `bytes`, as if the disk were full. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(full_disk)
{
    world a = world_of(1), b = world_of(2);
    const char *run = scratch_folder();
    assert_ok(save(run, &a, 1, 1));
    for (rlim_t bytes = 0; bytes < 100000; bytes = bytes ? 3 * bytes : 10) {
        limit_files(bytes);
        cpl_status status = save(run, &b, 2, 1);
        limit_files(RLIM_INFINITY);
        assert_int_equal(status, CPL_ERR_IO);
        assert_non_null(strstr(cpl_last_error(), run));
        assert_last(run, 1, &a);
        assert_false(run_has(run, "step-000002"));
        assert_no_temporary_files(run);
    }
    assert_ok(save(run, &b, 2, 1));
    assert_last(run, 2, &b);
    free_world(&a);
    free_world(&b);
}

TEST(no_memory)
{
    world a = world_of(1), b = world_of(2);
    const char *run = scratch_folder();
    assert_ok(save(run, &a, 1, 1));
    for (scarce s = {0}; scarce_begin(&s); s.nth += 2) { /* every save waits for the disk */
        char *last   = NULL;
        bool checked = false;
        scarce_end(&s, save(run, &b, 2, 1));
        assert_ok(cpl_run_dir_last(&last, run));
        assert_ok(cpl_run_dir_verify(last, &checked));
        assert_true(checked);
        cpl_free(last);
    }
    assert_last(run, 2, &b);
    const char *folder = in_folder(run, "step-000002");
    for (scarce s = {0}; scarce_begin(&s);) scarce_end(&s, load(folder, &b));
    free_world(&a);
    free_world(&b);
}
