/* gguf_case.h - GGUF files, built field by field and opened. */
#ifndef CPL_TESTS_CHECKPOINT_GGUF_CASE_H
#define CPL_TESTS_CHECKPOINT_GGUF_CASE_H

#include <math.h>

#include "checkpoint/gguf.h"
#include "io/file.h"
#include "support/files.h"

static inline cpl_status read_tensor(const cpl_gguf *g, const cpl_gguf_entry *e, void *out,
                                     uint64_t first, size_t bytes)
{
    return cpl_source_read_at(g->source, out, bytes, e->offset + first);
}

static inline const char *path(void)
{
    static char name[128];
    if (!name[0]) snprintf(name, sizeof name, "%s/t.gguf", scratch_folder());
    return name;
}

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

static cpl_text file;

static inline void u32(uint32_t value)
{
    cpl_text_append(&file, &value, sizeof value);
}

static inline void u64(uint64_t value)
{
    cpl_text_append(&file, &value, sizeof value);
}

static inline void string(const char *text)
{
    u64(strlen(text));
    cpl_text_append(&file, text, strlen(text));
}

static inline void head(uint64_t n_tensors, uint64_t n_pairs)
{
    cpl_text_clear(&file);
    cpl_text_append(&file, "GGUF", 4);
    u32(3);
    u64(n_tensors);
    u64(n_pairs);
}

/* Writes the head and the key of a file with a single pair. */
static inline void pair(const char *key, uint32_t type)
{
    head(0, 1);
    string(key);
    u32(type);
}

static inline void tensor(const char *name, int rank, const uint64_t *dims, uint32_t type,
                          uint64_t offset)
{
    string(name);
    u32((uint32_t)rank);
    for (int i = 0; i < rank; i++) u64(dims[i]);
    u32(type);
    u64(offset);
}

#define DIMS(...)                                                                                  \
    (const uint64_t[])                                                                             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Writes padding to 32 and this many bytes of data. */
static inline void data(size_t bytes)
{
    while (file.length % 32) cpl_text_char(&file, 0);
    for (size_t i = 0; i < bytes; i++) cpl_text_char(&file, (char)i);
}

static inline void only(const char *bytes, size_t length)
{
    cpl_text_clear(&file);
    cpl_text_append(&file, bytes, length);
}

static inline void one(int rank, const uint64_t *dims, uint32_t type, uint64_t offset, size_t bytes)
{
    head(1, 0);
    tensor("a.weight", rank, dims, type, offset);
    data(bytes);
}

static inline void two(uint64_t first, uint64_t second, uint32_t type, size_t bytes)
{
    head(2, 0);
    tensor("a", 1, DIMS(10), type, first);
    tensor("b", 1, DIMS(2), 24, second);
    data(bytes);
}

static inline void refuses(const char *says)
{
    cpl_gguf *g;
    write_bytes(path(), file.bytes, file.length);
    assert_fails(CPL_ERR_INPUT, says, cpl_gguf_open(&g, NULL, path(), (double)INFINITY));
    assert_null(g);
    assert_non_null(strstr(cpl_last_error(), path()));
}

static inline cpl_gguf *opens(void)
{
    cpl_gguf *g;
    write_bytes(path(), file.bytes, file.length);
    assert_ok(cpl_gguf_open(&g, NULL, path(), (double)INFINITY));
    return g;
}

static inline void accepts(void)
{
    cpl_gguf_close(opens());
}

static inline int free_file(void **state)
{
    (void)state;
    cpl_text_free(&file);
    return 0;
}
TESTS_DO(after_each, free_file);

#endif /* CPL_TESTS_CHECKPOINT_GGUF_CASE_H */
