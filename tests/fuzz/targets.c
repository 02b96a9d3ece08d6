/* targets.c - readers of files from anybody, for libFuzzer. One program holds all targets. The name
 * by which it is called (`safetensors`, a link to it) chooses the target. A target writes its input
 * into the working folder if the reader needs a file. Seeds and runs: run.py. If it is built
 * without libFuzzer (CPL_FUZZ_ALONE), the program gives each file of its arguments to its target
 * and prints how many were accepted. */
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/stored.h"
#include "data/documents.h"
#include "eval/grade/grading.h"
#include "eval/prompts/rows.h"
#include "eval/run/runner.h"
#include "eval/tasks/task.h"
#include "io/file.h"
#include "io/json_pull.h"
#include "io/paths.h"
#include "remote/hub.h"
#include "settings/yaml_tree.h"
#include "tokenizer/tokenizer.h"

/* An input. A target returns whether it was accepted. */
typedef struct input {
    const char *bytes;
    size_t length;
} input;

static void write_file(const char *path, input in)
{
    FILE *out = fopen(path, "wb");
    CPL_ASSERT(out && fwrite(in.bytes, 1, in.length, out) == in.length);
    fclose(out);
}

/* Returns whether a call was refused, and asserts that a refusal has a sentence. */
static bool refused(cpl_status status)
{
    CPL_ASSERT(status == CPL_OK || *cpl_last_error());
    return status != CPL_OK;
}

/* Returns a choice by the first byte. The other bytes are the input. */
static size_t choice(input *in, size_t of)
{
    if (!in->length) return 0;
    in->length--;
    return (unsigned char)*in->bytes++ % of;
}

/* ---- checkpoints ---- */

static bool open_checkpoint(const char *path)
{
    static char bytes[1 << 16];
    cpl_stored_files *files;
    if (refused(cpl_stored_open(&files, NULL, path, (double)INFINITY, NULL))) return false;
    for (int64_t i = 0; i < files->count; i++) {
        const cpl_stored *t = &files->tensors[i];
        const size_t some   = t->bytes < sizeof bytes ? (size_t)t->bytes : sizeof bytes;
        if (!t->fault && !refused(cpl_stored_read(t, bytes, 0, some)))
            (void)refused(cpl_stored_read(t, bytes, t->bytes - some, some));
    }
    cpl_stored_close(files);
    return true;
}

static bool safetensors(input in)
{
    write_file("a.safetensors", in);
    return open_checkpoint("a.safetensors");
}

static bool gguf(input in)
{
    write_file("a.gguf", in);
    return open_checkpoint("a.gguf");
}

/* Tries the index of one shard, which has the tensors a and b. */
static bool index_of_weights(input in)
{
    static const char shard[] =
        "\x69\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}ab";
    write_file("one.safetensors", (input){shard, sizeof shard - 1});
    write_file("model.safetensors.index.json", in);
    return open_checkpoint(".");
}

/* ---- texts ---- */

static bool use_tokenizer(const cpl_tokenizer *t)
{
    static const char text[] =
        "The wheel turns; cafe\xCC\x81 \xFF 100<|endoftext|>  water, abababababab.";
    cpl_encoder *e  = NULL;
    cpl_ids ids     = {0};
    cpl_text back   = {0};
    const bool used = !refused(cpl_encoder_init(&e, t, false)) &&
                      !refused(cpl_encoder_append(e, &ids, text, sizeof text - 1)) &&
                      !refused(cpl_tokenizer_decode(t, &back, ids.at, ids.count, false));
    cpl_text_free(&back);
    cpl_ids_free(&ids);
    cpl_encoder_free(e);
    return used;
}

static bool tokenizer(input in)
{
    cpl_tokenizer *t;
    write_file("tokenizer.json", in);
    const bool used = !refused(cpl_tokenizer_load(&t, "tokenizer.json")) && use_tokenizer(t);
    cpl_tokenizer_free(t);
    return used;
}

static bool json(input in)
{
    cpl_json_field fields[] = {{.path = "text"}, {.path = "a.b"}};
    size_t where;
    char *copy = malloc(in.length + 1);
    CPL_ASSERT(copy);
    memcpy(copy, in.bytes, in.length);
    const bool picked = !cpl_json_pick(copy, in.length, fields, 2, &where);
    for (int i = 0; i < 2; i++) cpl_text_free(&fields[i].value);
    if (cpl_utf8_is(copy, in.length)) {
        cpl_json_pull c = cpl_json_pull_start(copy, in.length);
        char *key, *text;
        uint64_t number;
        cpl_json_pull_object(&c);
        for (bool first = true; cpl_json_pull_member(&c, &first, &key);)
            if (*key == 't')
                cpl_json_pull_string(&c, &text);
            else if (*key == 'n')
                cpl_json_pull_u64(&c, &number);
            else if (!cpl_json_pull_null(&c))
                cpl_json_pull_skip(&c);
        cpl_json_pull_end(&c);
    }
    free(copy);
    return picked;
}

static bool yaml(input in)
{
    cpl_yaml_tree tree;
    const bool read = !refused(cpl_yaml_tree_parse(&tree, "y", in.bytes, in.length));
    cpl_yaml_tree_free(&tree);
    return read;
}

static bool task(input in)
{
    cpl_task *t;
    const bool read = !refused(cpl_task_parse(&t, "t", in.bytes, in.length, cpl_request_kinds));
    cpl_task_free(t);
    return read;
}

/* Tries a pattern, a line end and a text. */
static bool pattern(input in)
{
    char line[256]  = "";
    const char *end = memchr(in.bytes, '\n', in.length);
    if (!end || (size_t)(end - in.bytes) >= sizeof line) return false;
    memcpy(line, in.bytes, (size_t)(end - in.bytes));
    bool found;
    cpl_span answer;
    const cpl_span text  = {end + 1, in.length - (size_t)(end + 1 - in.bytes)};
    const cpl_regex last = {line, .last = true};
    return !refused(cpl_regex_check(line)) &&
           !refused(cpl_regex_find(&found, &answer, &last, text));
}

static bool hub(input in)
{
    cpl_hub_place place = {0};
    cpl_strings names   = {0};
    if (refused(cpl_hub_parse(&place, "hf://owner/name"))) return false;
    bool has_commit;
    const bool read =
        !refused(cpl_hub_read_list(&names, &place, &has_commit, in.bytes, in.length, "hub"));
    cpl_paths_free(&names);
    cpl_hub_free(&place);
    return read;
}

/* ---- lines and rows ---- */

static bool rows(input in)
{
    static const cpl_rows_kind kinds[] = {{.format = CPL_ROWS_JSONL},
                                          {.format = CPL_ROWS_JSON},
                                          {.format = CPL_ROWS_JSON, .member = "Data"},
                                          {.format = CPL_ROWS_CSV},
                                          {.format = CPL_ROWS_TSV},
                                          {.format = CPL_ROWS_CSV, .headless = true},
                                          {.format = CPL_ROWS_LINES}};
    static const char *const name[]    = {"r", "r.gz", "r.zst"};
    const cpl_rows_kind *kind          = &kinds[choice(&in, 7)];
    const char *path                   = name[choice(&in, 3)];
    cpl_rows *file;
    cpl_row row = {0};
    write_file(path, in);
    bool read = !refused(cpl_rows_open(&file, path, kind));
    while (read && (read = !refused(cpl_rows_next(file, &row))) && (row.values || row.bad))
        json_decref(row.values);
    cpl_rows_close(file);
    return read;
}

static bool documents(input in)
{
    static const char *const name[]      = {"d.jsonl", "d.txt", "d.jsonl.gz", "d.jsonl.zst", "d"};
    const cpl_document_settings settings = cpl_document_defaults();
    const char *path                     = name[choice(&in, 5)];
    cpl_documents *file;
    cpl_document document;
    bool more = true;
    write_file(path, in);
    bool read = !refused(cpl_documents_open(&file, path, &settings, NULL));
    while (read && more) read = !refused(cpl_documents_next(file, &document, &more));
    cpl_documents_close(file);
    return read;
}

/* ---- the list ---- */

static const struct {
    const char *name;
    bool (*try)(input in);
} targets[] = {
    {"safetensors", safetensors},
    {"gguf", gguf},
    {"index", index_of_weights},
    {"tokenizer", tokenizer},
    {"json", json},
    {"yaml", yaml},
    {"task", task},
    {"pattern", pattern},
    {"hub", hub},
    {"rows", rows},
    {"documents", documents},
};

static bool (*chosen)(input in);

int LLVMFuzzerInitialize(int *n_words, char ***words);
int LLVMFuzzerInitialize(int *n_words, char ***words)
{
    const char *name = basename((*words)[0]);
    (void)n_words;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (!strcmp(name, targets[i].name)) chosen = targets[i].try;
    if (chosen) return 0;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) puts(targets[i].name);
    exit(2);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    (void)chosen((input){(const char *)bytes, length});
    return 0;
}

#ifdef CPL_FUZZ_ALONE
int main(int n_words, char **words)
{
    int accepted = 0;
    LLVMFuzzerInitialize(&n_words, &words);
    for (int i = 1; i < n_words; i++) {
        cpl_text bytes = {0};
        if (cpl_file_read(&bytes, words[i], 1 << 26) != CPL_OK) return 2;
        accepted += chosen((input){bytes.bytes, bytes.length});
        cpl_text_free(&bytes);
    }
    printf("%d\n", accepted);
    return 0;
}
#endif
