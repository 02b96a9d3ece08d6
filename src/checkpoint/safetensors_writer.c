/* safetensors_writer.c - see safetensors_writer.h */
#include "checkpoint/safetensors_writer.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"

/* A tensor and its position in the data. */
typedef struct placed {
    const cpl_safetensors_tensor *tensor;
    uint64_t begin, bytes;
} placed;

/* Sets the number of bytes of the tensor. */
static cpl_status measure_tensor(placed *p, const char *path)
{
    const cpl_safetensors_tensor *t = p->tensor;
    int64_t elements                = 1, bits;
    bool overflow                   = false;
    if (!cpl_utf8_is(t->name, strlen(t->name)))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: rename the tensor %.200s: its name is not UTF-8", path,
                        t->name);
    if (strcmp(t->name, "__metadata__") == 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: rename the tensor __metadata__: the format reserves this name", path);
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] < 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s: dimension %d is %lld", path, t->name,
                            i, (long long)t->shape[i]);
        overflow = overflow || __builtin_mul_overflow(elements, t->shape[i], &elements);
    }
    if (overflow || __builtin_mul_overflow(elements, cpl_safetensors_dtype_bits(t->dtype), &bits))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s is too large for any file", path,
                        t->name);
    if (bits % 8)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s (%s) does not fill whole bytes", path,
                        t->name, cpl_safetensors_dtype_name(t->dtype));
    p->bytes = (uint64_t)bits / 8;
    return CPL_OK;
}

static int by_name(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

static int by_layout(const void *a, const void *b)
{
    const cpl_safetensors_tensor *x = ((const placed *)a)->tensor, *y = ((const placed *)b)->tensor;
    return x->dtype != y->dtype ? (x->dtype < y->dtype ? -1 : 1) : strcmp(x->name, y->name);
}

/* Sorts the tensors into the order of the file and sets their offsets. */
static cpl_status place_tensors(placed *list, int64_t count, const char *path)
{
    uint64_t end = 0;
    if (!count) return CPL_OK;
    for (int64_t i = 0; i < count; i++) CPL_TRY(measure_tensor(&list[i], path));
    qsort(list, (size_t)count, sizeof *list, by_name);
    for (int64_t i = 1; i < count; i++)
        if (by_name(&list[i - 1], &list[i]) == 0)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %.200s is to be written twice", path,
                            list[i].tensor->name);
    qsort(list, (size_t)count, sizeof *list, by_layout);
    for (int64_t i = 0; i < count; i++) {
        list[i].begin = end;
        if (__builtin_add_overflow(end, list[i].bytes, &end) || end > INT64_MAX)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: the tensors are too large for any file", path);
    }
    return CPL_OK;
}

/* Appends `text` as a JSON string, with only the necessary escapes. */
static void append_quoted(cpl_text *out, const char *text)
{
    static const char named[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    cpl_text_char(out, '"');
    while (*text) {
        size_t plain = 0;
        while ((unsigned char)text[plain] >= 0x20 && text[plain] != '"' && text[plain] != '\\')
            plain++;
        cpl_text_append(out, text, plain);
        text += plain;
        if (!*text) break;
        const char *spot = strchr(named, *text);
        if (spot)
            cpl_text_printf(out, "\\%c", letters[spot - named]);
        else
            cpl_text_printf(out, "\\u%04x", (unsigned)(unsigned char)*text);
        text++;
    }
    cpl_text_char(out, '"');
}

static void append_tensor(cpl_text *out, const placed *p)
{
    const cpl_safetensors_tensor *t = p->tensor;
    append_quoted(out, t->name);
    cpl_text_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", cpl_safetensors_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        cpl_text_printf(out, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    cpl_text_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)p->begin,
                    (unsigned long long)(p->begin + p->bytes));
}

/* Builds the padded header. Stops soon after the limit of its size. */
static cpl_status build_header(cpl_text *out, const placed *list, int64_t count, const char *format,
                               const char *path)
{
    cpl_text_char(out, '{');
    if (format) {
        cpl_text_printf(out, "\"__metadata__\":{\"format\":");
        append_quoted(out, format);
        cpl_text_char(out, '}');
    }
    for (int64_t i = 0; i < count && out->length <= CPL_SAFETENSORS_MAX_HEADER; i++) {
        if (i || format) cpl_text_char(out, ',');
        append_tensor(out, &list[i]);
    }
    cpl_text_char(out, '}');
    while (out->length % 8 && !out->failed) cpl_text_char(out, ' ');
    CPL_TRY(cpl_text_status(out));
    if (out->length > CPL_SAFETENSORS_MAX_HEADER)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: header too large: names and metadata take more than the %d bytes of "
                        "the format",
                        path, CPL_SAFETENSORS_MAX_HEADER);
    return CPL_OK;
}

static cpl_status write_file(const char *path, const cpl_text *header, const placed *list,
                             int64_t count, cpl_safetensors_put *put, void *ctx)
{
    cpl_writer file;
    cpl_status status = CPL_OK;
    uint64_t length   = header->length;
    CPL_TRY(cpl_writer_open(&file, path));
    cpl_writer_put(&file, &length, sizeof length);
    cpl_writer_put(&file, header->bytes, header->length);
    for (int64_t i = 0; i < count && !file.error; i++)
        CPL_TRY_DONE(put(ctx, &file, list[i].tensor->data, (size_t)list[i].bytes));
    return cpl_writer_commit(&file);
done:
    cpl_writer_abort(&file);
    return status;
}

cpl_status cpl_safetensors_write(const char *path, const cpl_safetensors_tensor *tensors,
                                 int64_t count, const char *format, cpl_safetensors_put *put,
                                 void *ctx)
{
    cpl_status status = CPL_OK;
    cpl_text header   = {0};
    placed *list      = cpl_alloc((size_t)count * sizeof *list);
    if (!list) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for the list of tensors", path);
    for (int64_t i = 0; i < count; i++) list[i] = (placed){.tensor = &tensors[i]};
    CPL_TRY_DONE(place_tensors(list, count, path));
    CPL_TRY_DONE(build_header(&header, list, count, format, path));
    CPL_TRY_DONE(write_file(path, &header, list, count, put, ctx));
done:
    cpl_text_free(&header);
    cpl_free(list);
    return status;
}
