/* gguf_export.h - writes an OLMoE-style model as a GGUF file that llama.cpp runs.
 *
 * Room:    store.
 * Format:  docs/formats.md, "GGUF as written": architecture, metadata, names and types of tensors,
 *          and the models that cannot be written.
 * Memory:  a few megabytes besides the vocabulary. Numbers are read, encoded and written in
 *          pieces. */
#ifndef CPL_STORE_GGUF_EXPORT_H
#define CPL_STORE_GGUF_EXPORT_H

#include "base/log.h"
#include "checkpoint/gguf_writer.h"
#include "store/hf.h"

/* Holds the result of an export. */
typedef struct cpl_gguf_export {
    const char *architecture; /* "olmoe"; static */
    int64_t n_tensors;
    int64_t n_kept; /* tensors in F16 instead of Q8_0, since their rows are not a multiple of 32 */
    uint64_t bytes; /* bytes of all tensors */
} cpl_gguf_export;

/* Writes the model to `path`, atomically. `type` is the format of the matrices: F32, F16, BF16 or
 * Q8_0 (assert). `name` becomes general.name. Warns of differences in llama.cpp. Returns
 * CPL_ERR_INPUT if llama.cpp has no graph that computes this model or no name for its tokenizer, if
 * a tensor is missing or has another shape, and if the type cannot hold a number. No new file is
 * left then, and an existing file is unchanged. */
CPL_NODISCARD cpl_status cpl_gguf_export_write(cpl_gguf_export *done, const cpl_hf *hf,
                                               const cpl_tokenizer *tokenizer, const char *path,
                                               cpl_format type, const char *name,
                                               const cpl_log *log);

/* Writes the name of a parameter in GGUF files to `out` and returns `out`, or NULL if the parameter
 * has no name there. */
const char *cpl_gguf_export_name(char out[CPL_GGUF_MAX_NAME + 1], const cpl_param *param);

#endif /* CPL_STORE_GGUF_EXPORT_H */
