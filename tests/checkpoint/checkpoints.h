/* checkpoints.h - small checkpoints for tests: files of a few tensors, and an index. */
#ifndef CPL_TESTS_CHECKPOINT_CHECKPOINTS_H
#define CPL_TESTS_CHECKPOINT_CHECKPOINTS_H

#include "base/text.h"
#include "check.h"
#include "io/file.h"
#include "support/files.h"
#include "support/tensors.h"

/* Writes a file of tensors "x", "y", ..., a letter each, which are F32 [2] with the values letter
 * and `value`. */
static inline void tensor_file(const char *path, const char *letters, float value)
{
    cpl_safetensors_tensor tensors[64];
    const int64_t two = 2;
    char names[64][2] = {""};
    float data[64][2];
    int count = 0;
    for (const char *c = letters; *c; c++, count++) {
        names[count][0] = *c;
        data[count][0]  = (float)*c;
        data[count][1]  = value;
        tensors[count] =
            (cpl_safetensors_tensor){names[count], CPL_SAFETENSORS_F32, 1, &two, data[count]};
    }
    assert_ok(write_tensors(path, tensors, count, NULL));
}

/* Writes a safetensors file of `count` empty tensors. A name is `prefix` and a number. */
static inline void empty_tensors_file(const char *path, const char *prefix, int count)
{
    cpl_text text = {0};
    uint64_t length;
    cpl_text_append(&text, &length, sizeof length);
    for (int i = 0; i < count; i++)
        cpl_text_printf(&text, "%c\"%s%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                        i ? ',' : '{', prefix, i);
    cpl_text_char(&text, '}');
    length = text.length - sizeof length;
    memcpy(text.bytes, &length, sizeof length);
    assert_ok(cpl_file_write_atomic(path, text.bytes, text.length));
    cpl_text_free(&text);
}

static inline void index_file(const char *folder, const char *map)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {%s}}", map);
    write_string(in_folder(folder, "model.safetensors.index.json"), text);
}

#endif /* CPL_TESTS_CHECKPOINT_CHECKPOINTS_H */
