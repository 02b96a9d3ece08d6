/* gguf_writer.c - see gguf_writer.h */
#include "checkpoint/gguf_writer.h"
#include "checkpoint/internal.h"

#include <string.h>

#include "base/status.h"

/* Numbers are little-endian, like the processor (checked in safetensors.c). */

static void put_u32(cpl_text *out, uint32_t value)
{
    cpl_text_append(out, &value, sizeof value);
}

static void put_u64(cpl_text *out, uint64_t value)
{
    cpl_text_append(out, &value, sizeof value);
}

static void put_string(cpl_text *out, const char *bytes, size_t length)
{
    put_u64(out, length);
    cpl_text_append(out, bytes, length);
}

void cpl_gguf_writer_free(cpl_gguf_writer *w)
{
    cpl_text_free(&w->metadata);
    cpl_text_free(&w->table);
    cpl_writer_abort(&w->file);
    memset(w, 0, sizeof *w);
}

/* ---- metadata ---- */

static void begin_pair(cpl_gguf_writer *w, const char *key, cpl_gguf_value type)
{
    CPL_ASSERT(*key);
    put_string(&w->metadata, key, strlen(key));
    put_u32(&w->metadata, type);
    w->n_pairs++;
}

void cpl_gguf_writer_u32(cpl_gguf_writer *w, const char *key, int64_t value)
{
    CPL_ASSERT(value >= 0 && value <= UINT32_MAX);
    begin_pair(w, key, CPL_GGUF_U32);
    put_u32(&w->metadata, (uint32_t)value);
}

void cpl_gguf_writer_f32(cpl_gguf_writer *w, const char *key, float value)
{
    begin_pair(w, key, CPL_GGUF_F32);
    cpl_text_append(&w->metadata, &value, sizeof value);
}

void cpl_gguf_writer_bool(cpl_gguf_writer *w, const char *key, bool value)
{
    begin_pair(w, key, CPL_GGUF_BOOL);
    cpl_text_char(&w->metadata, value);
}

void cpl_gguf_writer_string(cpl_gguf_writer *w, const char *key, const char *value)
{
    begin_pair(w, key, CPL_GGUF_STRING);
    put_string(&w->metadata, value, strlen(value));
}

void cpl_gguf_writer_array(cpl_gguf_writer *w, const char *key, cpl_gguf_value type, int64_t count)
{
    begin_pair(w, key, CPL_GGUF_ARRAY);
    put_u32(&w->metadata, type);
    put_u64(&w->metadata, (uint64_t)count);
}

void cpl_gguf_writer_add_i32(cpl_gguf_writer *w, int32_t element)
{
    cpl_text_append(&w->metadata, &element, sizeof element);
}

void cpl_gguf_writer_add_string(cpl_gguf_writer *w, const char *bytes, size_t length)
{
    put_string(&w->metadata, bytes, length);
}

/* ---- tensors ---- */

static uint64_t padding_after(uint64_t bytes)
{
    return (CPL_GGUF_ALIGNMENT - bytes % CPL_GGUF_ALIGNMENT) % CPL_GGUF_ALIGNMENT;
}

void cpl_gguf_writer_tensor(cpl_gguf_writer *w, const char *name, cpl_format format, int rank,
                            const int64_t *shape)
{
    const int64_t block = cpl_format_block_numbers(format);
    int64_t blocks      = 1;
    CPL_ASSERT(*name && strlen(name) <= CPL_GGUF_MAX_NAME && rank >= 1 &&
               rank <= CPL_GGUF_MAX_RANK && shape[rank - 1] % block == 0);
    put_string(&w->table, name, strlen(name));
    put_u32(&w->table, (uint32_t)rank);
    for (int i = rank - 1; i >= 0; i--) {
        put_u64(&w->table, (uint64_t)shape[i]);
        blocks *= i == rank - 1 ? shape[i] / block : shape[i];
    }
    put_u32(&w->table, cpl_gguf_code_of(format));
    put_u64(&w->table, w->data_bytes);
    w->data_bytes += (uint64_t)blocks * (uint64_t)cpl_format_block_bytes(format);
    w->data_bytes += padding_after(w->data_bytes);
    w->n_tensors++;
}

/* ---- the file ---- */

static void put_padding(cpl_gguf_writer *w, uint64_t bytes)
{
    static const char zeros[CPL_GGUF_ALIGNMENT];
    cpl_writer_put(&w->file, zeros, (size_t)padding_after(bytes));
}

cpl_status cpl_gguf_writer_begin(cpl_gguf_writer *w, const char *path)
{
    cpl_text head = {0};
    CPL_TRY(cpl_text_status(&w->metadata));
    CPL_TRY(cpl_text_status(&w->table));
    CPL_TRY(cpl_writer_open(&w->file, path));
    cpl_text_append(&head, "GGUF", 4);
    put_u32(&head, CPL_GGUF_VERSION);
    put_u64(&head, w->n_tensors);
    put_u64(&head, w->n_pairs);
    cpl_status status = cpl_text_status(&head);
    if (status == CPL_OK) {
        cpl_writer_put(&w->file, head.bytes, head.length);
        cpl_writer_put(&w->file, w->metadata.bytes, w->metadata.length);
        cpl_writer_put(&w->file, w->table.bytes, w->table.length);
        put_padding(w, head.length + w->metadata.length + w->table.length);
        status = cpl_writer_status(&w->file);
    }
    cpl_text_free(&head);
    return status;
}

cpl_status cpl_gguf_writer_data(cpl_gguf_writer *w, const void *bytes, size_t length)
{
    cpl_writer_put(&w->file, bytes, length);
    w->written += length;
    return cpl_writer_status(&w->file);
}

void cpl_gguf_writer_end_tensor(cpl_gguf_writer *w)
{
    put_padding(w, w->written);
    w->written += padding_after(w->written);
}

cpl_status cpl_gguf_writer_commit(cpl_gguf_writer *w)
{
    CPL_ASSERT(w->file.error || w->written == w->data_bytes);
    return cpl_writer_commit(&w->file);
}
