/* data.c - see data.h */
#include "train/data.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "data/tokens.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "parallel/gather.h"

/* ---- documents become shards ---- */

static cpl_status publish(const char *fresh, const char *folder)
{
    if (rename(fresh, folder) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "%s: cannot be renamed to %s: %s", fresh, folder, strerror(errno));
}

/* Encodes documents into shards. Collective. Rank 0 writes. */
static cpl_status make_shards(const cpl_tokens_job *job, const char *what, const char *folder)
{
    cpl_tokens_made made;
    const bool writes = job->group->rank == 0;
    if (writes) cpl_folder_remove(job->folder); /* the incomplete folder of a killed run */
    cpl_status status = cpl_tokens_make(job, &made);
    if (status == CPL_OK)
        status = cpl_group_agree(job->group, writes ? publish(job->folder, folder) : CPL_OK);
    if (status != CPL_OK) {
        if (writes) cpl_folder_remove(job->folder);
        return status;
    }
    cpl_log_info(job->log,
                 "%s: %lld documents in %lld files, %lld tokens (%lld bad, %lld empty, %lld "
                 "ill-formed sequences replaced)",
                 what, (long long)made.counts.documents, (long long)made.n_files,
                 (long long)made.tokens, (long long)made.counts.bad, (long long)made.counts.empty,
                 (long long)made.counts.repaired);
    return CPL_OK;
}

/* Sets *absent if the file `index` does not exist. The process then holds the lock, so that no
 * other process makes the shards. */
static cpl_status find_index(const char *index, const char *lock, int *held, int32_t *absent)
{
    if (cpl_path_exists(index)) return CPL_OK;
    CPL_TRY(cpl_file_lock(held, lock, true));
    *absent = !cpl_path_exists(index);
    return CPL_OK;
}

/* Makes the shards of `job` as `folder`, if they do not exist. If several runs need the shards at
 * once, one run makes them and the others wait. Collective: rank 0 checks, and all ranks encode. */
static cpl_status have_shards(const cpl_tokens_job *job, const char *what, const char *folder,
                              const char *base)
{
    char *lock = cpl_path_join(base, ".lock"), *index = cpl_path_join(folder, "shards.json");
    int held          = -1;
    int32_t absent    = 0;
    cpl_status status = lock && index ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK && job->group->rank == 0) {
        status = cpl_folder_make(base);
        if (status == CPL_OK) status = find_index(index, lock, &held, &absent);
    }
    CPL_TRY_DONE(cpl_group_agree(job->group, status));
    cpl_group_sum_i32(job->group, &absent, 1);
    if (absent) status = make_shards(job, what, folder);
done:
    if (held >= 0) {
        unlink(lock);
        close(held);
    }
    cpl_free(lock);
    cpl_free(index);
    return status;
}

/* Sets the folders of the shards of `job`: `folder` when complete, `fresh` while they are
 * written. */
static cpl_status name_shards(cpl_text *folder, cpl_text *fresh, const cpl_tokens_job *job,
                              const char *what, const char *base)
{
    uint64_t hash = 0;
    CPL_TRY(cpl_tokens_fingerprint(&hash, job));
    cpl_text_printf(folder, "%s/%s-%016llx", base, what, (unsigned long long)hash);
    cpl_text_printf(fresh, "%s/.tmp-%s-%016llx", base, what, (unsigned long long)hash);
    CPL_TRY(cpl_text_status(folder));
    return cpl_text_status(fresh);
}

/* Checks that this rank sees the folder that rank 0 has made. */
static cpl_status check_shared(const char *folder)
{
    char host[256] = "";
    if (cpl_path_exists(folder)) return CPL_OK;
    (void)gethostname(host, sizeof host - 1);
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s does not exist on %s, but rank 0 has made it: the folder of the run, or "
                    "data.cache, must be on a file system that all ranks share",
                    folder, host);
}

/* Appends the folder of shards of these documents to `paths`, making it if it does not exist.
 * Collective. */
static cpl_status encode(cpl_strings *paths, const cpl_strings *documents, const char *what,
                         const cpl_train_data *data, const cpl_settings *settings, const char *base,
                         cpl_group *world, const cpl_log *log)
{
    cpl_text folder = {0}, fresh = {0};
    const size_t existing = cpl_path_existing(base);
    cpl_status status     = CPL_OK;
    cpl_tokens_job job    = {.inputs         = documents,
                             .settings       = &settings->data,
                             .tokenizer      = data->tokenizer,
                             .by_source      = true,
                             .n_threads      = (int)settings->compute.threads,
                             .log            = log,
                             .group          = world,
                             .tokenizer_path = settings->data.tokenizer};
    CPL_ASSERT(data->tokenizer); /* cpl_train_data_begin */
    status     = name_shards(&folder, &fresh, &job, what, base);
    job.folder = fresh.bytes;
    CPL_TRY_DONE(cpl_group_agree(world, status));
    CPL_TRY_DONE(have_shards(&job, what, folder.bytes, base));
    CPL_TRY_DONE(check_shared(folder.bytes));
    CPL_TRY_DONE(cpl_paths_add(paths, folder.bytes));
done:
    if (status != CPL_OK && world->rank == 0) cpl_folder_unmake(base, existing);
    cpl_text_free(&folder);
    cpl_text_free(&fresh);
    return status;
}

/* Appends token shards to `shards` and other inputs to `documents`. */
static cpl_status sort_inputs(cpl_strings *shards, cpl_strings *documents,
                              const cpl_strings *inputs)
{
    for (int64_t i = 0; i < inputs->count; i++) {
        const bool are_shards = cpl_tokens_are_shards(inputs->at[i]);
        CPL_TRY(cpl_paths_add(are_shards ? shards : documents, inputs->at[i]));
    }
    return CPL_OK;
}

/* Sets the paths for cpl_shards_open: token shards, and the shards of encoded documents.
 * Collective. */
static cpl_status shard_paths(cpl_strings *paths, const cpl_strings *inputs, const char *what,
                              const cpl_train_data *data, const cpl_settings *settings,
                              const char *base, cpl_group *world, const cpl_log *log)
{
    cpl_strings documents = {0};
    cpl_status status     = sort_inputs(paths, &documents, inputs);
    /* All ranks must encode, so they must see the same files. */
    CPL_TRY_DONE(cpl_gather_equal(world, status,
                                  json_pack("{s:I}", "the number of inputs that are documents",
                                            (json_int_t)documents.count)));
    if (documents.count)
        CPL_TRY_DONE(encode(paths, &documents, what, data, settings, base, world, log));
done:
    cpl_paths_free(&documents);
    return status;
}

/* ---- opening ---- */

/* Opens the shards of the inputs. Collective. */
static cpl_status open_shards(cpl_shards **shards, const cpl_strings *inputs, const char *what,
                              const cpl_train_data *data, const cpl_settings *settings,
                              const char *base, cpl_group *world, const cpl_log *log)
{
    cpl_strings paths         = {0};
    cpl_shard_options options = {.type       = (cpl_token_type_choice)settings->data.token_type,
                                 .eos        = data->eos,
                                 .vocab_size = data->vocab_size};
    cpl_status status         = shard_paths(&paths, inputs, what, data, settings, base, world, log);
    if (status == CPL_OK)
        status = cpl_shards_open(shards, (const char *const *)paths.at, paths.count, &options, log);
    cpl_paths_free(&paths);
    return status;
}

int64_t cpl_train_data_seed(const cpl_settings *settings)
{
    return settings->data.seed != CPL_UNSET ? settings->data.seed : settings->train.seed;
}

static cpl_status open_loader(cpl_loader **loader, const cpl_shards *shards,
                              const cpl_train_data *data, const cpl_settings *settings,
                              bool evaluation, const cpl_group *world, const cpl_log *log)
{
    const cpl_data_settings *d = &settings->data;
    int64_t sequences = d->batch_tokens / d->seq_len, own = sequences / world->size;
    int64_t micro         = settings->train.micro_batch ? settings->train.micro_batch : own;
    cpl_loader_settings s = {
        .seq_len         = d->seq_len,
        .batch_instances = evaluation ? micro : sequences,
        .first_row       = evaluation ? 0 : world->rank * own,
        .n_rows          = evaluation ? 0 : own,
        .seed            = (uint64_t)cpl_train_data_seed(settings),
        .shuffle         = d->shuffle,
        .evaluation      = evaluation,
        .document_mask   = d->document_mask && !evaluation,
        .filter_repeats  = d->filter_repeats && !evaluation,
        .eos             = data->eos,
        .weights         = evaluation ? NULL : &d->weights,
    };
    return cpl_loader_init(loader, shards, &s, log);
}

static cpl_status open_training(cpl_train_data *data, const cpl_settings *settings,
                                const char *base, cpl_group *world, const cpl_log *log)
{
    CPL_TRY(open_shards(&data->train_shards, &settings->data.train, "train", data, settings, base,
                        world, log));
    if (data->eos < 0) data->eos = data->train_shards->eos;
    if (!data->vocab_size) data->vocab_size = data->train_shards->vocab_size;
    CPL_TRY(open_loader(&data->train, data->train_shards, data, settings, false, world, log));
    return cpl_loader_fingerprint(&data->fingerprint, data->train);
}

static cpl_status open_held_out(cpl_train_data *data, const cpl_settings *settings,
                                const char *base, cpl_group *world, const cpl_log *log)
{
    if (settings->data.validation.count == 0) return CPL_OK;
    CPL_TRY(open_shards(&data->held_out_shards, &settings->data.validation, "validation", data,
                        settings, base, world, log));
    return open_loader(&data->held_out, data->held_out_shards, data, settings, true, world, log);
}

static cpl_status open_all(cpl_train_data *data, const cpl_settings *settings, const char *base,
                           cpl_group *world, const cpl_log *log)
{
    CPL_TRY(cpl_group_agree(world, open_training(data, settings, base, world, log)));
    return cpl_group_agree(world, open_held_out(data, settings, base, world, log));
}

/* Checks that the inputs contain no documents, which need a tokenizer. */
static cpl_status check_shards(const cpl_strings *inputs)
{
    for (int64_t i = 0; i < inputs->count; i++)
        if (!cpl_tokens_are_shards(inputs->at[i]))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "data.tokenizer is not set, but %s contains documents, not token "
                            "shards: set data.tokenizer to "
                            "a tokenizer.json",
                            inputs->at[i]);
    return CPL_OK;
}

cpl_status cpl_train_data_begin(cpl_train_data *data, const cpl_settings *settings)
{
    const cpl_data_settings *d = &settings->data;
    memset(data, 0, sizeof *data);
    data->eos = d->eos != CPL_UNSET ? d->eos : -1;
    if (d->train.count == 0)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "data.train is not set: give the training data, for example data.train=corpus.jsonl");
    if (!d->tokenizer) {
        CPL_TRY(check_shards(&d->train));
        return check_shards(&d->validation);
    }
    CPL_TRY(cpl_tokenizer_load(&data->tokenizer, d->tokenizer));
    data->vocab_size = cpl_tokenizer_vocab_size(data->tokenizer);
    if (data->eos < 0) data->eos = cpl_tokenizer_eos(data->tokenizer);
    return CPL_OK;
}

cpl_status cpl_train_data_open(cpl_train_data *data, const cpl_settings *settings,
                               const cpl_run *run, cpl_group *world, const cpl_log *log)
{
    cpl_group alone = cpl_group_self();
    char *base =
        settings->data.cache ? cpl_text_copy(settings->data.cache) : cpl_run_path(run, "tokens");
    if (!world) world = &alone;
    cpl_tokenizer_warn(data->tokenizer, log);
    cpl_status status = cpl_group_agree(world, base ? CPL_OK : CPL_ERR_MEMORY);
    if (status == CPL_OK) status = open_all(data, settings, base, world, log);
    cpl_free(base);
    if (status != CPL_OK) cpl_train_data_close(data);
    return status;
}

static bool has_width(const cpl_shards *shards, int bytes)
{
    for (int64_t i = 0; shards && i < shards->n_files; i++)
        if (shards->file[i].item_bytes != bytes) return false;
    return true;
}

cpl_status cpl_train_data_agrees(const cpl_train_data *data, int64_t eos, int token_type)
{
    const int bytes = token_type == CPL_TOKEN_UINT16 ? 2 : 4;
    if (eos != CPL_UNSET && eos != data->eos)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.eos is %lld in the run and cannot become %lld when it is resumed",
                        (long long)data->eos, (long long)eos);
    if (token_type != CPL_TOKEN_AUTO &&
        !(has_width(data->train_shards, bytes) && has_width(data->held_out_shards, bytes)))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "data.token_type cannot become uint%d when the run is resumed: it reads "
                        "ids of another type",
                        8 * bytes);
    return CPL_OK;
}

cpl_status cpl_train_data_identify(json_t *object, const cpl_train_data *data,
                                   const cpl_settings *settings)
{
    uint64_t tokenizer = 0, ids = 0;
    const cpl_shards *others   = data->held_out_shards;
    const char *tokenizer_file = settings->data.tokenizer;
    if (tokenizer_file) CPL_TRY(cpl_file_hash(&tokenizer, tokenizer_file));
    if (others) CPL_TRY(cpl_shards_content(&ids, others));
    json_t *held_out = others ? cpl_json_hash(ids) : json_null();
    json_t *words    = tokenizer_file ? cpl_json_hash(tokenizer) : json_null();
    bool set         = json_object_set_new(object, "data", cpl_json_hash(data->fingerprint)) == 0;
    set              = json_object_set_new(object, "held_out", held_out) == 0 && set;
    set              = json_object_set_new(object, "tokenizer", words) == 0 && set;
    return set ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the names of the data");
}

void cpl_train_data_close(cpl_train_data *data)
{
    cpl_loader_free(data->train);
    cpl_loader_free(data->held_out);
    cpl_shards_close(data->train_shards);
    cpl_shards_close(data->held_out_shards);
    cpl_tokenizer_free(data->tokenizer);
    memset(data, 0, sizeof *data);
}

static void bound_ids(cpl_shards *shards, int64_t vocab_size)
{
    if (shards && !shards->vocab_size) shards->vocab_size = vocab_size;
}

void cpl_train_data_bound_ids(cpl_train_data *data, int64_t vocab_size)
{
    bound_ids(data->train_shards, vocab_size);
    bound_ids(data->held_out_shards, vocab_size);
}
