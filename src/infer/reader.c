/* reader.c - see reader.h */
#include "infer/reader.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"
#include "settings/yaml.h"

enum { USUAL_WINDOW = 1024, USUAL_BATCH = 4096 };

/* ---- opening ---- */

static cpl_status find_eos(cpl_reader *r)
{
    const int64_t ids = cpl_hf_config(r->hf)->vocab_size;
    r->eos            = cpl_hf_tokens_of(r->hf)->eos;
    if (r->eos < 0) r->eos = cpl_tokenizer_eos(r->tokenizer);
    if (r->eos < ids) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s/config.json, or generation_config.json in the same folder: eos_token_id is "
                    "%lld, but the model has the ids 0 to %lld: correct it there",
                    cpl_hf_folder(r->hf), (long long)r->eos, (long long)ids - 1);
}

/* Sets the window to data.seq_len of the run that contains the folder, if any. A config.yaml that
 * no run has written is ignored. */
static cpl_status find_run(int64_t *window, const char *folder)
{
    cpl_yaml_tree settings = {0};
    char *path             = cpl_path_join(folder, "../config.yaml");
    if (!path) return CPL_ERR_MEMORY;
    cpl_status status = cpl_path_exists(path) ? cpl_file_check(path) : CPL_ERR_INPUT;
    if (status == CPL_OK) status = cpl_yaml_tree_read(&settings, path);
    const char *text     = cpl_yaml_tree_text(&settings, "data", "seq_len");
    const int64_t length = text ? strtoll(text, NULL, 10) : 0;
    if (length > 0) *window = length;
    cpl_yaml_tree_free(&settings);
    cpl_free(path);
    return status == CPL_ERR_INPUT ? CPL_OK : status;
}

static cpl_status find_window(cpl_reader *r, const cpl_reader_options *o)
{
    const int64_t context = cpl_hf_config(r->hf)->max_positions;
    int64_t usual         = USUAL_WINDOW;
    if (!o->window) CPL_TRY(find_run(&usual, cpl_hf_folder(r->hf)));
    r->window       = o->window ? o->window : usual < context ? usual : context;
    r->batch_tokens = o->batch_tokens ? o->batch_tokens : USUAL_BATCH;
    r->stride       = o->stride ? o->stride : r->window;
    if (r->window < 1 || r->window > context)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "a window of %lld tokens is not between 1 and the model's context of %lld "
                        "(max_position_embeddings)",
                        (long long)r->window, (long long)context);
    if (r->stride >= 1 && r->stride <= r->window) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "a stride of %lld tokens is not between 1 and the window of %lld",
                    (long long)r->stride, (long long)r->window);
}

int64_t cpl_reader_step(const char *folder)
{
    const char *slash = strrchr(folder, '/'), *name = slash ? slash + 1 : folder;
    char *end = NULL;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    int64_t step = strtoll(name + 5, &end, 10);
    return *end ? -1 : step;
}

cpl_status cpl_reader_open(cpl_reader *r, const char *model_dir, const cpl_reader_options *o,
                           const cpl_log *log)
{
    const char *device = o->device ? o->device : "auto";
    cpl_status status  = CPL_OK;
    memset(r, 0, sizeof *r);
    CPL_TRY_DONE(cpl_hf_open(&r->hf, model_dir, log));
    CPL_TRY_DONE(
        cpl_hf_load_tokenizer(&r->tokenizer, NULL, r->hf, o->tokenizer, o->tokenizer_flag));
    CPL_TRY_DONE(find_window(r, o));
    CPL_TRY_DONE(find_eos(r));
    r->group = o->group;
    r->step  = cpl_reader_step(cpl_hf_folder(r->hf));
    CPL_TRY_DONE(cpl_device_of_ranks(&device, device, o->group ? o->group->size : 1));
    CPL_TRY_DONE(cpl_backend_open(&r->be, device, o->compute, o->n_threads));
    cpl_backend_tell(&r->be, log);
done:
    if (status != CPL_OK) cpl_reader_close(r);
    return status;
}

void cpl_reader_unload(cpl_reader *r)
{
    if (r->loaded) cpl_model_free(&r->model);
    r->loaded = false;
}

void cpl_reader_close(cpl_reader *r)
{
    cpl_reader_unload(r);
    cpl_backend_free(&r->be);
    cpl_tokenizer_free(r->tokenizer);
    cpl_hf_close(r->hf);
    memset(r, 0, sizeof *r);
}

/* Returns the number of sequences of a batch whose longest sequence has `length` tokens. */
static int64_t rows_of(const cpl_reader *r, int64_t length)
{
    int64_t rows = r->batch_tokens / length;
    return rows > 1 ? rows : 1;
}

static size_t pass_bytes(const cpl_reader *r, int64_t rows, int64_t length)
{
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    cpl_pass pass;
    cpl_pass_take(&pass, &arena, cpl_hf_config(r->hf), rows, length, false, false);
    return cpl_tensor_arena_bytes(&arena);
}

cpl_status cpl_reader_load(cpl_reader *r)
{
    const cpl_model_settings *config = cpl_hf_config(r->hf);
    if (r->loaded) return CPL_OK;
    double needs = (double)cpl_model_bytes(config, r->be.compute, r->window) +
                   (double)pass_bytes(r, rows_of(r, r->window), r->window);
    CPL_TRY(cpl_backend_fits(&r->be, needs, "reading text with this model"));
    CPL_TRY(cpl_model_init(&r->model, &r->be, config, r->window));
    r->loaded = true;
    return cpl_hf_load(r->hf, &r->model);
}

/* ---- reading ---- */

/* The state of one pass over the texts. */
typedef struct work {
    cpl_reader *reader;
    const cpl_texts *texts;
    const cpl_reader_callbacks *callbacks;
    cpl_window *windows;
    int64_t n_windows;
    cpl_tensor_arena arena;
    int32_t *ids, *target;     /* (capacity) */
    float *nll;                /* (capacity) */
    int64_t *place, *document; /* (capacity) */
    int64_t capacity;
    cpl_tensor tokens; /* I32: inputs, then targets */
    cpl_pass pass;
    cpl_reader_batch batch;
    cpl_text text; /* text of this rank's batch */
    cpl_status status;
} work;

static void take_layer(void *ctx, int64_t layer, const cpl_moe_kept *kept)
{
    work *w = ctx;
    if (w->status == CPL_OK)
        w->status = w->callbacks->layer(w->callbacks->ctx, &w->batch, layer, kept);
}

/* Returns the number of windows of the batch that begins at `at`. The first is the longest. */
static int64_t count_rows(const work *w, int64_t at)
{
    int64_t rows = rows_of(w->reader, w->windows[at].length), left = w->n_windows - at;
    return rows < left ? rows : left;
}

/* Takes the tokens and the pass of a batch. */
static void take_batch(work *w, cpl_tensor_arena *arena, int64_t rows, int64_t length)
{
    w->tokens = cpl_tensor_take_ids(arena, rows * length);
    cpl_pass_take(&w->pass, arena, cpl_hf_config(w->reader->hf), rows, length, false, false);
}

/* Allocates the memory of the largest batch. */
static cpl_status take_memory(work *w)
{
    cpl_tensor_arena measured   = cpl_tensor_arena_measure();
    const cpl_tensor_mark start = cpl_tensor_arena_mark(&measured);
    for (int64_t at = 0, rows; at < w->n_windows; at += rows) {
        int64_t length = w->windows[at].length;
        rows           = count_rows(w, at);
        take_batch(w, &measured, rows, length);
        cpl_tensor_arena_release(&measured, start);
        if (rows * length > w->capacity) w->capacity = rows * length;
        cpl_work shape = cpl_pass_work(&w->reader->model.config, rows * length, false);
        CPL_TRY(cpl_backend_reserve(&w->reader->be, &shape));
    }
    const size_t count = (size_t)w->capacity;
    w->ids             = cpl_alloc(count * sizeof *w->ids);
    w->target          = cpl_alloc(count * sizeof *w->target);
    w->place           = cpl_alloc(count * sizeof *w->place);
    w->document        = cpl_alloc(count * sizeof *w->document);
    w->nll             = cpl_alloc(count * sizeof *w->nll);
    if (!w->ids || !w->target || !w->nll || !w->place || !w->document) return CPL_ERR_MEMORY;
    return cpl_tensor_arena_init(&w->arena, &w->reader->be, &measured, "activations");
}

/* Fills one row with the window's predictions, then padding. */
static void fill_row(work *w, int64_t row, const cpl_window *window, int64_t length)
{
    const cpl_texts *t = w->texts;
    int64_t to         = row * length;
    w->document[row]   = window->document;
    for (int64_t k = 0; k < length; k++) {
        bool inside = k < window->length, predicted = inside && k >= window->overlap;
        int64_t at        = window->first + k;
        w->ids[to + k]    = inside ? cpl_texts_input(t, window->document, at) : 0;
        w->target[to + k] = predicted ? cpl_texts_target(t, window->document, at) : -1;
        w->place[to + k]  = predicted ? t->documents[window->document].place + at : -1;
    }
}

static cpl_status read_batch(work *w, int64_t at, int64_t rows)
{
    cpl_model *model = &w->reader->model;
    cpl_backend *be  = &w->reader->be;
    int64_t length   = w->windows[at].length;
    for (int64_t r = 0; r < rows; r++) fill_row(w, r, &w->windows[at + r], length);
    w->batch = (cpl_reader_batch){.rows     = rows,
                                  .length   = length,
                                  .ids      = w->ids,
                                  .target   = w->target,
                                  .place    = w->place,
                                  .document = w->document,
                                  .text     = &w->text};
    cpl_tensor_arena_release(&w->arena, (cpl_tensor_mark){0, 0});
    take_batch(w, &w->arena, rows, length);
    if (w->callbacks->layer) {
        w->pass.on_layer = take_layer;
        w->pass.ctx      = w;
    }
    be->ops->put(be, w->tokens, w->ids);
    cpl_model_forward(model, &w->pass, w->tokens, cpl_tensor_none(), NULL);
    if (w->status == CPL_OK && w->callbacks->scored) {
        be->ops->put(be, w->tokens, w->target);
        cpl_model_score(model, &w->pass, cpl_tensor_none(), w->tokens);
        be->ops->get(be, w->nll, w->pass.nll);
        CPL_TRY(be->ops->sync(be));
        w->batch.nll = w->nll;
        w->status    = w->callbacks->scored(w->callbacks->ctx, &w->batch);
    }
    return w->status;
}

/* ---- division over ranks ---- */

/* Checks the values that determine the batches and must be equal on all ranks. `status` is this
 * rank's status so far. Collective. */
static cpl_status check_ranks(const cpl_reader *r, const cpl_texts *texts, cpl_status status)
{
    uint64_t weights = 0, bytes = 0, config = 0;
    if (cpl_gather_is_alone(r->group)) return status;
    if (status == CPL_OK) status = cpl_hf_identify(r->hf, &weights, &bytes, &config);
    const size_t ids_bytes = (size_t)texts->ids.count * sizeof *texts->ids.at;
    return cpl_gather_equal(
        r->group, status,
        json_pack("{s:s,s:o,s:o,s:o,s:o,s:I,s:I,s:s,s:i}", "the version of the program",
                  COUPLET_VERSION, "the check sum of the weights", cpl_json_hash(weights),
                  "the check sum of config.json", cpl_json_hash(config),
                  "the check sum of the tokenizer", cpl_json_hash(cpl_tokenizer_hash(r->tokenizer)),
                  "the check sum of the text", cpl_json_hash(XXH3_64bits(texts->ids.at, ids_bytes)),
                  "the window", (json_int_t)r->window, "the number of documents",
                  (json_int_t)texts->n_documents, "the device (compute.device)", r->be.device,
                  "the number of threads", r->be.n_threads));
}

/* Reads this rank's batch of the round that begins at window `*at`. Sets `*at` to the round's
 * end. */
static cpl_status read_round(work *w, int64_t *at)
{
    const cpl_group *group = w->reader->group;
    const int size = group ? group->size : 1, rank = group ? group->rank : 0;
    int64_t own = -1;
    cpl_text_clear(&w->text);
    for (int r = 0; r < size && *at < w->n_windows; r++) {
        if (r == rank) own = *at;
        *at += count_rows(w, *at);
    }
    return own < 0 ? CPL_OK : read_batch(w, own, count_rows(w, own));
}

static cpl_status take_all(work *w, const cpl_gathered *all, int size)
{
    const char *text = all->bytes;
    for (int r = 0; w->callbacks->take && r < size; text += all->length[r++])
        if (all->length[r] > 0)
            CPL_TRY(w->callbacks->take(w->callbacks->ctx, text, all->length[r]));
    return CPL_OK;
}

/* Ends a round: exchanges the texts of all batches. `status` is this rank's status in the round. */
static cpl_status share_texts(work *w, cpl_status status)
{
    cpl_group *group = w->reader->group;
    cpl_gathered all = {0};
    if (cpl_gather_is_alone(group)) {
        CPL_TRY(status);
        CPL_TRY(cpl_text_status(&w->text));
        return w->callbacks->take && w->text.length
                   ? w->callbacks->take(w->callbacks->ctx, w->text.bytes, (int64_t)w->text.length)
                   : CPL_OK;
    }
    CPL_TRY(cpl_gather_texts(&all, group, status, &w->text));
    status = take_all(w, &all, group->size);
    cpl_gathered_free(&all);
    return cpl_gather_status(group, status);
}

static cpl_status prepare(work *w)
{
    const cpl_reader *r = w->reader;
    CPL_TRY(cpl_reader_load(w->reader));
    CPL_TRY(cpl_texts_windows(&w->windows, &w->n_windows, w->texts, r->window, r->stride));
    return take_memory(w);
}

cpl_status cpl_reader_read(cpl_reader *r, const cpl_texts *texts,
                           const cpl_reader_callbacks *callbacks)
{
    work w            = {.reader = r, .texts = texts, .callbacks = callbacks, .status = CPL_OK};
    cpl_status status = check_ranks(r, texts, prepare(&w));
    for (int64_t at = 0; status == CPL_OK && at < w.n_windows;)
        status = share_texts(&w, read_round(&w, &at));
    if (status == CPL_OK) status = r->be.ops->sync(&r->be);
    cpl_text_free(&w.text);
    cpl_tensor_arena_free(&w.arena);
    cpl_free(w.windows);
    cpl_free(w.ids);
    cpl_free(w.target);
    cpl_free(w.place);
    cpl_free(w.document);
    cpl_free(w.nll);
    return status;
}
