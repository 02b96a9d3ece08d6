/* checkpoints.h - small checkpoints for tests: files of a few tensors, and an index. */
#ifndef CPL_TESTS_CHECKPOINT_CHECKPOINTS_H
#define CPL_TESTS_CHECKPOINT_CHECKPOINTS_H

#include "check.h"
#include "checkpoint/safetensors_writer.h"
#include "io/file.h"

/* folder/name; one of a few static buffers. */
static inline const char *at(const char *folder, const char *name)
{
    static char paths[8][256];
    static int turn;
    char *path = paths[turn = (turn + 1) % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void text_file(const char *path, const char *text)
{
    assert_ok(cpl_file_write_atomic(path, text, strlen(text)));
}

/* A file whose tensors "x", "y", ... (a letter each) are F32 [2] with the values letter, `value`.
 */
static inline void tensor_file(const char *path, const char *letters, float value)
{
    cpl_safetensors_writer *w;
    assert_ok(cpl_safetensors_writer_begin(&w, path));
    for (const char *c = letters; *c; c++)
        assert_ok(cpl_safetensors_writer_declare(w, (char[]){*c, 0}, CPL_SAFETENSORS_F32, 1,
                                                 (int64_t[]){2}));
    assert_ok(cpl_safetensors_writer_layout(w));
    for (int64_t i = 0; i < cpl_safetensors_writer_count(w); i++) {
        float data[2] = {(float)cpl_safetensors_writer_name(w, i)[0], value};
        assert_ok(cpl_safetensors_writer_put(w, data, sizeof data));
    }
    assert_ok(cpl_safetensors_writer_commit(w, NULL));
}

static inline void index_file(const char *folder, const char *map)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {%s}}", map);
    text_file(at(folder, "model.safetensors.index.json"), text);
}

#endif /* CPL_TESTS_CHECKPOINT_CHECKPOINTS_H */
