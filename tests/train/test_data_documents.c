/* test_data_documents.c - a run over documents: encoded once, read as their tokens, the names of
 * the data, and runs without a tokenizer, without text and without memory. */
#include <dirent.h>
#include <sys/wait.h>

#include "base/arena.h"
#include "io/file.h"
#include "parallel/threads.h"
#include "tokenizer/bpe.h"
#include "train/data_case.h"

/* ---- documents ---- */

static const char *const text = "the cat sat on the mat and the cat ran off";

static const char *documents(const char *name, int n)
{
    cpl_text all     = {0};
    const char *path = in_folder(folder, name);
    for (int i = 0; i < n; i++)
        cpl_text_printf(&all, "{\"source\": \"s%d\", \"text\": \"%s %d\"}\n", i % 2, text, i);
    write_bytes(path, all.bytes, all.length);
    cpl_text_free(&all);
    return path;
}

static const char *tokenizer_file(void)
{
    const char *path = in_folder(folder, "tokenizer.json");
    cpl_bpe_trainer *trainer;
    cpl_bpe_settings settings = {.vocab_size = 270, .min_frequency = 1};
    assert_ok(cpl_bpe_init(&trainer, &settings));
    assert_ok(cpl_bpe_add(trainer, text, strlen(text)));
    assert_ok(cpl_bpe_train(trainer, NULL));
    assert_ok(cpl_bpe_write(trainer, path));
    cpl_bpe_free(trainer);
    return path;
}

static cpl_settings *settings_of_documents(const char *train)
{
    cpl_settings *settings = settings_of(train);
    set(settings, "data.eos=unset");
    set(settings, "data.token_type=auto");
    set_data(settings, "tokenizer", tokenizer_file());
    return settings;
}

/* Returns how many files and folders are in `place`, or 0 if `place` does not exist. */
static int64_t made_in(const char *place)
{
    int64_t count  = 0;
    DIR *folder_of = opendir(in_folder(folder, place));
    if (!folder_of) return 0;
    for (struct dirent *entry; (entry = readdir(folder_of));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(folder_of);
    return count;
}

/* Opens the data. Returns whether documents were encoded for it, by the log. */
static bool encodes(const cpl_settings *settings)
{
    cpl_train_data data;
    cpl_text said = {0};
    cpl_log log   = log_into(&said);
    assert_ok(open_data(&data, settings, &log));
    assert_int_equal(data.vocab_size, cpl_tokenizer_vocab_size(data.tokenizer));
    assert_int_equal(data.eos, cpl_tokenizer_eos(data.tokenizer));
    assert_non_null(said.bytes);
    bool encoded = strstr(said.bytes, " documents in ") != NULL;
    cpl_train_data_close(&data);
    cpl_text_free(&said);
    return encoded;
}

/* If several runs begin at once, one encodes and the others wait. This test is the first, since no
 * thread has been started yet. */
TEST(runs_at_once_share_what_one_encodes)
{
    enum { RUNS = 4 };
    pid_t child[RUNS];
    cpl_settings *settings = settings_of_documents(documents("d.jsonl", 400));
    set_data(settings, "cache", in_folder(folder, "cache"));
    set(settings, "compute.threads=1");
    for (int i = 0; i < RUNS; i++) {
        assert_true((child[i] = fork()) >= 0);
        cpl_train_data data;
        if (child[i] == 0) _exit(open_data(&data, settings, NULL) == CPL_OK ? 0 : 1);
    }
    for (int i = 0; i < RUNS; i++) {
        int ended = 0;
        assert_int_equal(waitpid(child[i], &ended, 0), child[i]);
        assert_int_equal(ended, 0);
    }
    assert_int_equal(made_in("cache"), 1);
}

TEST(documents_are_encoded_once)
{
    cpl_settings *settings = settings_of_documents(documents("d.jsonl", 40));
    assert_true(encodes(settings));
    assert_int_equal(made_in("run/tokens"), 1);
    assert_false(encodes(settings));
    documents("d.jsonl", 41); /* other documents of the same name */
    assert_true(encodes(settings));
    assert_int_equal(made_in("run/tokens"), 2);
    set(settings, "data.strip=false"); /* documents are read in another way */
    assert_true(encodes(settings));
    set_data(settings, "cache", in_folder(folder, "cache"));
    assert_true(encodes(settings));
    assert_int_equal(made_in("cache"), 1);
    assert_int_equal(made_in("run/tokens"), 3);
}

/* One of two ranks that open the data. */
typedef struct opener {
    const cpl_settings *settings;
    cpl_status status;
    uint64_t data; /* fingerprint of the data */
    int64_t sent;  /* bytes of ids sent */
} opener;

static void open_as_rank(void *context, cpl_group *world)
{
    opener *o = context;
    cpl_train_data data;
    char home[200];
    snprintf(home, sizeof home, "%s/ranks", folder);
    const cpl_run run = {.folder = home};
    o->status         = cpl_train_data_begin(&data, o->settings);
    if (o->status == CPL_OK) o->status = cpl_train_data_open(&data, o->settings, &run, world, NULL);
    o->data = data.fingerprint;
    o->sent = world->ranks->traffic[CPL_ALL_TO_ALL].bytes;
    cpl_train_data_close(&data);
}

/* The second of two ranks sends the ids of every second batch of 256 documents. The data equal the
 * data of one process. */
TEST(ranks_share_the_encoding)
{
    cpl_train_data alone;
    cpl_settings *settings = settings_of_documents(documents("d.jsonl", 400));
    opener o[2]            = {{.settings = settings}, {.settings = settings}};
    assert_ok(open_data(&alone, settings, NULL));
    cpl_thread_ranks_run(2, open_as_rank, o, sizeof *o);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(o[i].status, CPL_OK);
        assert_true(o[i].data == alone.fingerprint);
    }
    assert_int_equal(o[0].sent, 0);
    assert_true(o[1].sent > 144 * 10 * (int64_t)sizeof(int32_t)); /* ids of 144 documents */
    assert_int_equal(made_in("ranks/tokens"), 1);
    cpl_train_data_close(&alone);
}

/* A run trains on the documents' ids in their order, with an end of text after each document. */
TEST(documents_are_read_as_their_tokens)
{
    cpl_train_data data;
    cpl_encoder *encoder;
    int32_t want[4096];
    int64_t n_ids          = 0;
    cpl_ids ids            = {0};
    cpl_settings *settings = settings_of_documents(documents("d.jsonl", 40));
    set(settings, "data.shuffle=false");
    assert_ok(open_data(&data, settings, NULL));
    assert_ok(cpl_encoder_init(&encoder, data.tokenizer, false));
    for (int i = 0; i < 40; i += 2) { /* the files are by source: s0 comes first */
        char document[100];
        int n     = snprintf(document, sizeof document, "%s %d", text, i);
        ids.count = 0;
        assert_ok(cpl_encoder_append(encoder, &ids, document, (size_t)n));
        assert_true(n_ids + ids.count < (int64_t)(sizeof want / sizeof *want));
        memcpy(want + n_ids, ids.at, (size_t)ids.count * sizeof *want);
        n_ids += ids.count;
        want[n_ids++] = (int32_t)cpl_tokenizer_eos(data.tokenizer);
    }
    assert_true(n_ids > 4 * BATCH * T);
    for (int64_t step = 0; (step + 1) * BATCH * T <= n_ids; step++) {
        rows r = step_of(&data, step);
        assert_memory_equal(r.ids, want + step * BATCH * T, sizeof r.ids);
    }
    assert_int_equal(data.train_shards->labels.count, 2);
    cpl_encoder_free(encoder);
    cpl_ids_free(&ids);
    cpl_train_data_close(&data);
}

/* ---- names of data ---- */

static char *identity(const cpl_settings *settings, const char *member)
{
    static char values[8][20];
    static int turn;
    char *value = values[turn = (turn + 1) % 8];
    cpl_train_data data;
    json_t *object = json_object();
    assert_ok(open_data(&data, settings, NULL));
    assert_ok(cpl_train_data_identify(object, &data, settings));
    assert_int_equal(json_object_size(object), 3);
    const char *digits = json_string_value(json_object_get(object, member));
    if (digits) assert_int_equal(strspn(digits, "0123456789abcdef"), 16);
    snprintf(value, sizeof values[0], "%s", digits ? digits : "null");
    json_decref(object);
    cpl_train_data_close(&data);
    return value;
}

TEST(the_data_have_names)
{
    cpl_settings *settings = settings_of(shard("a.npy", SEQUENCES));
    const char *first      = identity(settings, "data");
    assert_string_equal(identity(settings, "held_out"), "null");
    assert_string_equal(identity(settings, "tokenizer"), "null");
    assert_string_equal(identity(settings, "data"), first);
    set_data(settings, "validation", shard("held.npy", HELD_OUT));
    const char *held_out = identity(settings, "held_out");
    assert_string_equal(identity(settings, "data"), first);
    set_data(settings, "validation", shard("moved.npy", HELD_OUT)); /* equal ids at another path */
    assert_string_equal(identity(settings, "held_out"), held_out);
    shard("moved.npy", HELD_OUT - 1);
    assert_string_not_equal(identity(settings, "held_out"), held_out);
    set_data(settings, "tokenizer", tokenizer_file());
    assert_string_not_equal(identity(settings, "tokenizer"), "null");
    shard("a.npy", SEQUENCES - 1);
    assert_string_not_equal(identity(settings, "data"), first);
}

/* ---- data that are refused ---- */

TEST(documents_need_a_tokenizer)
{
    cpl_settings *train = settings_of(documents("d.jsonl", 3));
    cpl_settings *other = settings_of(shard("a.npy", SEQUENCES));
    refused("data.tokenizer is not set, but ", train);
    set_data(other, "validation", in_folder(folder, "d.jsonl"));
    refused("d.jsonl contains documents, not token shards", other);
}

/* A corpus without text leaves no files behind, and no folder of the run. */
TEST(an_empty_corpus_leaves_nothing)
{
    write_string(in_folder(folder, "empty.jsonl"), "{\"text\": \" \"}\n");
    cpl_settings *settings = settings_of_documents(in_folder(folder, "empty.jsonl"));
    refused("the corpus is empty", settings);
    assert_int_not_equal(access(in_folder(folder, "run"), F_OK), 0);
}

/* One allocation fails: each of the first 64 and some later ones. The call returns a sentence and
 * leaves no file open. The shards of the documents are either complete or absent. */
TEST(runs_out_of_memory_in_words)
{
    cpl_train_data data;
    cpl_settings *settings = settings_of_documents(documents("d.jsonl", 40));
    int tries = 0, failures = 0;
    set_data(settings, "validation", shard("held.npy", HELD_OUT));
    set(settings, "compute.threads=1");
    int64_t before = cpl_alloc_count();
    assert_ok(open_data(&data, settings, NULL));
    int64_t count = cpl_alloc_count() - before, held = cpl_alloc_in_use();
    cpl_train_data_close(&data);
    held -= cpl_alloc_in_use(); /* held by the data */
    for (int64_t n = 1, closed = cpl_alloc_in_use(); n <= count; n += 1 + n / 64) {
        cpl_folder_remove(in_folder(folder, "run"));
        cpl_alloc_fail_at(n);
        cpl_status status = open_data(&data, settings, NULL);
        cpl_alloc_fail_at(0);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
        assert_true(status == CPL_OK || strlen(cpl_last_error()) > 0);
        tries++, failures += status != CPL_OK;
        assert_int_equal(cpl_alloc_in_use() - closed, status == CPL_OK ? held : 0);
        cpl_train_data_close(&data); /* allowed after a failure too */
        assert_in_range(made_in("run/tokens"), status == CPL_OK, 1);
    }
    assert_true(count > 200 && failures == tries);
}
