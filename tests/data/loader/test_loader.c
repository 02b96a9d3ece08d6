/* test_loader.c - the tokens of a step, and the places where their documents begin.
 *
 * Oracles: the order that NumPy gives (published in the data specification); the epoch's list, the
 * filter and the document places, written out plainly below. */
#include "data/loader/loader.h"

#include <unistd.h>

#include "base/arena.h"
#include "base/rng.h"
#include "data/loader/epoch.h"
#include "support/files.h"

enum { T = 8, MAX_ROWS = 64 };

SCRATCH_FOLDER(folder);

static int32_t ids[MAX_ROWS * T], targets[MAX_ROWS * T], doc_start[MAX_ROWS * T], labels[MAX_ROWS];
static int64_t instances[MAX_ROWS];
static cpl_batch batch = LIST(.ids = ids, .targets = targets, .doc_start = doc_start,
                              .instances = instances, .labels = labels);

/* Writes a flat file below `folder`/label whose token i is base + i. */
static const char *tokens(const char *label, const char *name, int64_t n, int base)
{
    char path[256];
    cpl_text out = {0};
    snprintf(path, sizeof path, "mkdir -p %s/%s", folder, label);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/%s", label, name);
    for (int64_t i = 0; i < n; i++) {
        uint16_t id = (uint16_t)(base + i);
        cpl_text_append(&out, &id, 2);
    }
    const char *where = in_folder(folder, path);
    write_bytes(where, out.bytes ? out.bytes : "", out.length);
    cpl_text_free(&out);
    return where;
}

static cpl_shards *open_shards(const char *const *paths, int64_t n)
{
    cpl_shards *shards        = NULL;
    cpl_shard_options options = {.type = CPL_TOKEN_UINT16, .eos = -1};
    assert_ok(cpl_shards_open(&shards, paths, n, &options, NULL));
    return shards;
}

static cpl_loader_settings plain_settings(void)
{
    return (cpl_loader_settings){.seq_len = T, .batch_instances = 2, .seed = 6198, .eos = -1};
}

/* Returns a loader of these files. close_loader closes the files too. */
static cpl_loader *open_loader(const char *const *paths, int64_t n, const cpl_loader_settings *s,
                               const cpl_log *log)
{
    cpl_loader *loader = NULL;
    assert_ok(cpl_loader_init(&loader, open_shards(paths, n), s, log));
    return loader;
}

static void close_loader(cpl_loader *loader)
{
    cpl_shards *shards = (cpl_shards *)(uintptr_t)loader->shards;
    cpl_loader_free(loader);
    cpl_shards_close(shards);
}

/* ---- instances and order ---- */

TEST(packing)
{
    const char *paths[]   = {tokens("p", "a.npy", 3 * T + 5, 100), tokens("p", "b.npy", T - 1, 0),
                             tokens("p", "c.npy", 0, 0), tokens("p", "d.npy", 2 * T, 1000)};
    cpl_loader_settings s = plain_settings();
    cpl_text said         = {0};
    cpl_log log           = log_into(&said);
    s.batch_instances     = 5;
    cpl_loader *loader    = open_loader(paths, 4, &s, &log);
    assert_non_null(strstr(said.bytes, "5 sequences of 8 tokens in 4 files; 12 tokens"));
    assert_int_equal(loader->n_instances, 5);
    assert_int_equal(loader->steps_per_epoch, 1);
    assert_ok(cpl_loader_batch(loader, 0, &batch));
    for (int row = 0; row < 5; row++) {
        int base = row < 3 ? 100 + row * T : 1000 + (row - 3) * T;
        assert_int_equal(instances[row], row);
        for (int t = 0; t < T; t++) {
            assert_int_equal(ids[row * T + t], base + t);
            assert_int_equal(targets[row * T + t], t + 1 < T ? base + t + 1 : -1);
            assert_int_equal(doc_start[row * T + t], 0);
        }
    }
    assert_int_equal(batch.n_targets, 5 * (T - 1));
    close_loader(loader);
    cpl_text_free(&said);
}

TEST(numpy_order)
{
    static const int want[10] = {2, 4, 7, 3, 8, 9, 0, 6, 1, 5}; /* seed 6198 */
    const char *path          = tokens("n", "a.npy", 10 * T, 0);
    cpl_loader_settings s     = plain_settings();
    s.shuffle                 = true;
    s.batch_instances         = 3;
    cpl_loader *loader        = open_loader(&path, 1, &s, NULL);
    assert_int_equal(loader->steps_per_epoch, 3);
    for (int64_t step = 0; step < 3; step++) {
        assert_ok(cpl_loader_batch(loader, step, &batch));
        for (int row = 0; row < 3; row++) {
            assert_int_equal(instances[row], want[3 * step + row]);
            assert_int_equal(ids[row * T], want[3 * step + row] * T);
        }
    }
    close_loader(loader);
}

/* Writes the epoch's list by plain loops. Each instance has the weight of its source. */
static int64_t plain_order(uint32_t *out, const int *source, int64_t n, const double *weight,
                           int n_sources, uint64_t seed, bool shuffle)
{
    int copies[200] = {0};
    int64_t size    = 0;
    cpl_pcg64 random;
    for (int k = 0; k < n_sources; k++) {
        uint32_t list[200];
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++)
            if (source[i] == k) list[count++] = (uint32_t)i;
        for (int64_t i = 0; i < count; i++) copies[list[i]] = (int)weight[k];
        cpl_pcg64_init(&random, seed);
        cpl_pcg64_shuffle(&random, list, count);
        for (int64_t i = 0; i < (int64_t)((weight[k] - (int)weight[k]) * (double)count + 0.5); i++)
            copies[list[i]]++;
    }
    for (int64_t i = 0; i < n; i++)
        while (copies[i]-- > 0) out[size++] = (uint32_t)i;
    cpl_pcg64_init(&random, seed);
    if (shuffle) cpl_pcg64_shuffle(&random, out, size);
    return size;
}

TEST(weights_and_epochs)
{
    const char *paths[] = {tokens("web", "a.npy", 13 * T, 0), tokens("books", "b.npy", 9 * T, 0),
                           tokens("code", "c.npy", 7 * T, 0), tokens("web", "d.npy", 4 * T, 0)};
    static const int group[] = {2, 0, 1, 2}, length[] = {13, 9, 7, 4}; /* labels books, code, web */
    static const double sets[][3] = {{1, 1, 1}, {2, 0.5, 1}, {0, 3.25, 0.1}, {1.75, 0, 2.5}};
    char *names[]                 = {"web", "books", "code"};
    cpl_shards *shards            = open_shards(paths, 4);
    int source[33], n = 0;
    for (int f = 0; f < 4; f++)
        for (int i = 0; i < length[f]; i++) source[n++] = group[f];
    for (size_t k = 0; k < 4; k++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            double given[]          = {sets[k][2], sets[k][0], sets[k][1]};
            cpl_weight_list weights = {names, given, 3};
            cpl_loader_settings s   = plain_settings();
            cpl_loader *loader      = NULL;
            uint32_t want[200];
            s.weights = &weights;
            s.shuffle = shuffle;
            assert_ok(cpl_loader_init(&loader, shards, &s, NULL));
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                int64_t size =
                    plain_order(want, source, n, sets[k], 3, 6198 + (uint64_t)epoch, shuffle);
                int64_t steps = loader->steps_per_epoch;
                assert_int_equal(loader->epoch_size, size);
                assert_int_equal(steps, size / 2);
                for (int64_t i = 0; i < steps; i++) {
                    assert_ok(cpl_loader_batch(loader, epoch * steps + i, &batch));
                    for (int row = 0; row < 2; row++) {
                        assert_int_equal(instances[row], want[2 * i + row]);
                        assert_int_equal(labels[row], source[instances[row]]);
                    }
                }
            }
            cpl_loader_free(loader);
        }
    cpl_shards_close(shards);
}

/* The batch of a step does not depend on the batches before it. */
TEST(pure_function_of_step)
{
    const char *path      = tokens("r", "a.npy", 11 * T, 0);
    cpl_shards *shards    = open_shards(&path, 1);
    cpl_loader_settings s = plain_settings();
    cpl_loader *a = NULL, *b = NULL;
    int64_t want[50][2];
    s.shuffle = true;
    assert_ok(cpl_loader_init(&a, shards, &s, NULL));
    for (int64_t step = 0; step < 50; step++) {
        assert_ok(cpl_loader_batch(a, step, &batch));
        memcpy(want[step], instances, sizeof want[step]);
    }
    assert_ok(cpl_loader_init(&b, shards, &s, NULL));
    int64_t before = cpl_alloc_count();
    for (int64_t i = 0; i < 50; i++) {
        int64_t step = i * 37 % 50;
        assert_ok(cpl_loader_batch(b, step, &batch));
        assert_memory_equal(instances, want[step], sizeof want[step]);
    }
    assert_int_equal(cpl_alloc_count(), before);
    uint64_t print_a = 0, print_b = 1;
    assert_ok(cpl_loader_fingerprint(&print_a, a));
    assert_ok(cpl_loader_fingerprint(&print_b, b));
    assert_int_equal(print_a, print_b);
    cpl_loader_free(a);
    cpl_loader_free(b);
    cpl_shards_close(shards);
}

/* ---- targets ---- */

TEST(masks_and_documents)
{
    static const uint16_t data[2 * T] = {9, 1, 2, 9, 9, 3, 4, 5, 6, 9, 7, 8, 1, 2, 3, 9};
    static const uint8_t mask[2 * T]  = {1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 0};
    static const int32_t starts[]     = {0, 1, 1, 1, 4, 5, 5, 5, 0, 0, 2, 2, 2, 2, 2, 2};
    const char *path = in_folder(folder, "doc.npy"), *mask_path = in_folder(folder, "doc.mask");
    write_bytes(path, data, sizeof data);
    write_bytes(mask_path, mask, sizeof mask);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = {.eos = 9, .vocab_size = 10, .masks = &mask_path, .n_masks = 1};
    cpl_loader_settings s     = plain_settings();
    cpl_loader *loader        = NULL;
    s.document_mask           = true;
    assert_ok(cpl_shards_open(&shards, &path, 1, &options, NULL));
    assert_ok(cpl_loader_init(&loader, shards, &s, NULL));
    assert_ok(cpl_loader_batch(loader, 0, &batch));
    int64_t count = 0;
    for (int i = 0; i < 2 * T; i++) {
        bool has = i % T + 1 < T && mask[i + 1];
        assert_int_equal(ids[i], data[i]);
        assert_int_equal(doc_start[i], starts[i]);
        assert_int_equal(targets[i], has ? data[i + 1] : -1);
        count += has;
    }
    assert_int_equal(batch.n_targets, count);
    close_loader(loader);
}

/* Returns whether a sequence repeats, by the definition, over all stretches. */
static bool repeats_plainly(const int32_t *x, int64_t n, int64_t max_period, int64_t min_count)
{
    for (int64_t p = 1; p <= max_period; p++)
        for (int64_t begin = 0; begin < n; begin++)
            for (int64_t end = begin + p + 1; end <= n && x[end - 1] == x[end - 1 - p]; end++)
                if ((end - begin) / p >= min_count && (end - begin) / p >= 3) return true;
    return false;
}

TEST(repeats)
{
    enum { N = 120 };
    cpl_rng_key key = {.seed = 8, .stream = CPL_STREAM_TEST};
    uint64_t draw   = 0;
    int32_t x[N];
    int found = 0;
    for (int round = 0; round < 4000; round++) {
        int64_t n = 1 + cpl_rng_u32(&key, draw++) % N, period = 1 + cpl_rng_u32(&key, draw++) % 15;
        int64_t begin = cpl_rng_u32(&key, draw++) % n, count = cpl_rng_u32(&key, draw++) % 12;
        for (int64_t i = 0; i < n; i++) x[i] = (int32_t)(cpl_rng_u32(&key, draw++) % 5);
        for (int64_t i = begin + period; i < begin + count * period && i < n; i++)
            x[i] = x[i - period];
        for (int64_t min_count = 2; min_count < 9; min_count++) {
            bool want = repeats_plainly(x, n, 13, min_count);
            assert_int_equal(cpl_epoch_finds_repeats(x, n, 13, min_count), want);
            found += want;
        }
    }
    assert_in_range(found, 4000, 24000); /* repeating and other sequences are frequent */
}

TEST(filtered)
{
    enum { LONG = 64 };
    static int32_t long_ids[2 * LONG], long_targets[2 * LONG];
    cpl_batch two = {.ids = long_ids, .targets = long_targets};
    uint16_t data[2 * LONG];
    for (int i = 0; i < LONG; i++)
        data[i] = (uint16_t)(i < 31 || i >= 33 ? i % 7 + 10 * (i / 31) : 3);
    for (int i = 0; i < LONG; i++)
        data[LONG + i] = (uint16_t)(5 + i % 2); /* period 2, repeated 32
                                                                            * times */
    const char *path = in_folder(folder, "filter.npy");
    write_bytes(path, data, sizeof data);
    cpl_loader_settings s = plain_settings();
    s.seq_len             = LONG;
    s.filter_repeats      = true;
    cpl_loader *loader    = open_loader(&path, 1, &s, NULL);
    assert_ok(cpl_loader_batch(loader, 0, &two));
    assert_int_equal(two.n_filtered, 1);
    assert_int_equal(two.n_targets, LONG - 1);
    assert_int_equal(long_targets[0], data[1]);
    for (int i = 0; i < LONG; i++) assert_int_equal(long_targets[LONG + i], -1);
    close_loader(loader);
    data[2 * LONG - 1] = 9; /* repeated 31 times */
    write_bytes(path, data, sizeof data);
    loader = open_loader(&path, 1, &s, NULL);
    assert_ok(cpl_loader_batch(loader, 0, &two));
    assert_int_equal(two.n_filtered, 0);
    close_loader(loader);
}

/* ---- evaluation ---- */

TEST(evaluation)
{
    const char *paths[] = {tokens("ev/y", "a.npy", 3 * T, 0), tokens("ev/x", "b.npy", 1 * T, 0),
                           tokens("ev/y", "c.npy", 2 * T, 0)};
    static const int64_t want[] = {0, 1, 2, 4, 5, -1, -1, -1};
    cpl_loader_settings s       = plain_settings();
    s.batch_instances           = 4;
    s.evaluation                = true;
    cpl_loader *loader          = open_loader(paths, 3, &s, NULL);
    assert_string_equal(loader->shards->labels.at[1], "y");
    assert_int_equal(cpl_loader_label_instances(loader, 1), 5);
    assert_int_equal(cpl_loader_eval_batches(loader, 1, 0), 2);
    for (int64_t i = 0; i < 2; i++) {
        assert_ok(cpl_loader_eval_batch(loader, 1, 0, i, &batch));
        for (int row = 0; row < 4; row++) assert_int_equal(instances[row], want[4 * i + row]);
        assert_int_equal(batch.n_targets, (i ? 1 : 4) * (T - 1));
    }
    assert_int_equal(cpl_loader_eval_batches(loader, 1, 3), 1);
    assert_ok(cpl_loader_eval_batch(loader, 1, 3, 0, &batch));
    assert_int_equal(instances[3], -1);
    assert_int_equal(cpl_loader_eval_batches(loader, 0, 9), 1);
    close_loader(loader);
}

/* ---- refused files ---- */

TEST(refusals)
{
    const char *paths[] = {tokens("books", "r.npy", 3 * T + 2, 0),
                           tokens("books", "s.npy", T - 1, 0)};
    cpl_shards *shards = open_shards(paths, 1), *tiny = open_shards(paths + 1, 1);
    cpl_loader_settings s = plain_settings();
    cpl_loader *loader    = NULL;
    assert_fails(CPL_ERR_INPUT, "7 tokens in 1 files give no sequence of 8",
                 cpl_loader_init(&loader, tiny, &s, NULL));
    s.batch_instances = 4;
    assert_fails(CPL_ERR_INPUT,
                 "26 tokens give 3 sequences of 8 per epoch, a batch needs 4 (32 tokens)",
                 cpl_loader_init(&loader, shards, &s, NULL));
    s               = plain_settings();
    s.document_mask = true;
    assert_fails(CPL_ERR_INPUT, "data.eos", cpl_loader_init(&loader, shards, &s, NULL));
    s                   = plain_settings();
    char *name          = "boks";
    double weight       = 1;
    cpl_weight_list one = {&name, &weight, 1};
    s.weights           = &one;
    assert_fails(CPL_ERR_INPUT, "did you mean \"books\"?",
                 cpl_loader_init(&loader, shards, &s, NULL));
    name   = "books";
    weight = -1;
    assert_fails(CPL_ERR_INPUT, "it must be 0 to 1e6", cpl_loader_init(&loader, shards, &s, NULL));
    weight = 0;
    assert_fails(CPL_ERR_INPUT, "too short for one batch",
                 cpl_loader_init(&loader, shards, &s, NULL));
    s         = plain_settings();
    s.seq_len = 1;
    assert_fails(CPL_ERR_INPUT, "data.seq_len is 1", cpl_loader_init(&loader, shards, &s, NULL));
    s                 = plain_settings();
    s.batch_instances = 0;
    assert_fails(CPL_ERR_INPUT, "0 sequences", cpl_loader_init(&loader, shards, &s, NULL));
    assert_null(loader);
    cpl_shards_close(shards);
    cpl_shards_close(tiny);
}

TEST(bad_id)
{
    const char *path          = tokens("bad", "a.npy", 2 * T, 5);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = {.eos = -1, .vocab_size = 5 + 2 * T - 1};
    cpl_loader_settings s     = plain_settings();
    cpl_loader *loader        = NULL;
    assert_ok(cpl_shards_open(&shards, &path, 1, &options, NULL));
    assert_ok(cpl_loader_init(&loader, shards, &s, NULL));
    assert_fails(CPL_ERR_INPUT, "token 15 is the id 20", cpl_loader_batch(loader, 0, &batch));
    close_loader(loader);
}

static uint64_t print_of(const char *path, int64_t eos, int64_t seq_len)
{
    cpl_shards *shards = open_shards(&path, 1);
    uint64_t hash      = 0;
    assert_ok(cpl_shards_fingerprint(&hash, shards, eos, seq_len));
    cpl_shards_close(shards);
    return hash;
}

TEST(fingerprints)
{
    const char *a              = tokens("fp/a", "x.npy", 100000, 0),
               *same           = tokens("other/a", "x.npy", 100000, 0);
    const char *folder_differs = tokens("fp/b", "x.npy", 100000, 0);
    const char *shorter        = tokens("fp/a", "y.npy", 99999, 0);
    uint64_t hash              = print_of(a, 9, 8);
    assert_int_equal(print_of(same, 9, 8), hash);
    assert_int_not_equal(print_of(folder_differs, 9, 8), hash);
    assert_int_not_equal(print_of(shorter, 9, 8), hash);
    assert_int_not_equal(print_of(a, 8, 8), hash);
    assert_int_not_equal(print_of(a, 9, 16), hash);
    FILE *file = fopen(a, "r+b");
    fseek(file, 199999, SEEK_SET);
    fputc(77, file);
    fclose(file);
    assert_int_not_equal(print_of(a, 9, 8), hash);
}

/* A file is emptied while it is read: a sentence, where a mapping would end the process. */
TEST(becomes_shorter)
{
    const char *path      = tokens("shorter", "a.npy", 64 * T, 0);
    cpl_loader_settings s = plain_settings();
    uint64_t hash         = 0;
    cpl_loader *loader    = open_loader(&path, 1, &s, NULL);
    assert_ok(cpl_loader_batch(loader, 0, &batch));
    assert_int_equal(truncate(path, 3 * T * 2), 0);
    assert_ok(cpl_loader_batch(loader, 0, &batch));
    assert_fails(CPL_ERR_IO, "a.npy: ends at byte 48; it became shorter",
                 cpl_loader_batch(loader, 1, &batch));
    assert_fails(CPL_ERR_IO, "became shorter", cpl_loader_fingerprint(&hash, loader));
    assert_fails(CPL_ERR_IO, "became shorter", cpl_shards_content(&hash, loader->shards));
    close_loader(loader);
}

/* There are more files than stay open: each is read, and a file that changed is named. */
TEST(many_files)
{
    enum { FILES = CPL_SHARDS_KEPT_OPEN + 3 };
    char name[32], all[512];
    const char *path = all;
    snprintf(all, sizeof all, "%s/many", folder);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "%05d.npy", i);
        tokens("many", name, 2 * T, i * 8);
    }
    cpl_loader_settings s = plain_settings();
    cpl_loader *loader    = open_loader(&path, 1, &s, NULL);
    assert_int_equal(loader->shards->n_files, FILES);
    assert_int_equal(loader->shards->n_kept, CPL_SHARDS_KEPT_OPEN);
    for (int i = 0; i < FILES; i++) {
        assert_ok(cpl_loader_batch(loader, i, &batch));
        assert_int_equal(ids[0], i * 8);
        assert_int_equal(ids[2 * T - 1], i * 8 + 2 * T - 1);
    }
    tokens("many", name, T, 0);
    assert_fails(CPL_ERR_IO, "it changed while in use",
                 cpl_loader_batch(loader, FILES - 1, &batch));
    close_loader(loader);
}

TEST(no_memory)
{
    const char *path      = tokens("mem", "a.npy", 4 * T, 0);
    cpl_shards *shards    = open_shards(&path, 1);
    cpl_loader_settings s = plain_settings();
    cpl_loader *loader    = NULL;
    cpl_status status     = CPL_ERR_MEMORY;
    int64_t n             = 0;
    while (status != CPL_OK) {
        cpl_alloc_fail_at(++n);
        status = cpl_loader_init(&loader, shards, &s, NULL);
        cpl_alloc_fail_at(0);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
    }
    assert_true(n > 8);
    close_loader(loader);
}

/* The small corpus has figures by label: instances of 512 tokens of one file of six sources. */
TEST(small_corpus)
{
    const char *path   = golden_path("data/tokenized-mini/gpt-neox-olmo-dolma-v1_5/validation");
    cpl_shards *shards = NULL;
    cpl_shard_options options = {.eos = 50279, .vocab_size = 50280};
    cpl_loader_settings s     = plain_settings();
    cpl_loader *loader        = NULL;
    s.seq_len                 = 512;
    assert_ok(cpl_shards_open(&shards, &path, 1, &options, NULL));
    assert_ok(cpl_loader_init(&loader, shards, &s, NULL));
    assert_int_equal(loader->n_instances, 35506 / 512);
    assert_int_equal(loader->shards->labels.count, 1); /* no sidecar: the folder's name */
    close_loader(loader);
}
