/* shards_case.h - token files for the tests of shards: by the writer and by other programs. */
#ifndef CPL_TESTS_DATA_SHARDS_CASE_H
#define CPL_TESTS_DATA_SHARDS_CASE_H

#include "data/shard_writer.h"
#include "data/shards.h"
#include "support/files.h"

SCRATCH_FOLDER(folder);

static inline cpl_shard_options unknown(void)
{
    return (cpl_shard_options){.eos = -1};
}

static inline cpl_status open_one(cpl_shards **shards, const char *path,
                                  const cpl_shard_options *options, const cpl_log *log)
{
    return cpl_shards_open(shards, &path, 1, options, log);
}

/* Begins a folder of token files. Their vocabulary has 300 ids, and documents end in 0. */
static inline cpl_shard_writer *open_writer(const char *out, bool by_source)
{
    cpl_shard_writer *writer          = NULL;
    const cpl_shard_writer_settings s = {.folder = out, .by_source = by_source, .vocab_size = 300};
    assert_ok(cpl_shard_writer_open(&writer, &s));
    return writer;
}

static inline void finish(cpl_shard_writer *writer)
{
    const cpl_document_counts none = {0};
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
}

static inline void add(cpl_shard_writer *writer, const char *id, const char *source, int64_t n_ids,
                       int32_t first)
{
    int32_t ids[64];
    cpl_document document = {.id = id, .source = source, .path = "in/file,1.jsonl", .line = n_ids};
    for (int64_t i = 0; i < n_ids; i++) ids[i] = first + (int32_t)i;
    assert_ok(cpl_shard_writer_add(writer, &document, ids, n_ids));
}

static inline void put16(cpl_text *out, unsigned id)
{
    cpl_text_char(out, (char)id);
    cpl_text_char(out, (char)(id >> 8));
}

static inline cpl_text numpy(int version, const char *dictionary, const char *data, size_t length)
{
    cpl_text out  = {0};
    size_t header = strlen(dictionary);
    cpl_text_append(&out, "\x93NUMPY", 6);
    cpl_text_char(&out, (char)version);
    cpl_text_char(&out, 0);
    put16(&out, (unsigned)header);
    if (version > 1) put16(&out, 0);
    cpl_text_append(&out, dictionary, header);
    cpl_text_append(&out, data, length);
    return out;
}

#endif /* CPL_TESTS_DATA_SHARDS_CASE_H */
