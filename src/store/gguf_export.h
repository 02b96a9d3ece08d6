/* gguf_export.h - an OLMoE-style model as a GGUF file that llama.cpp runs.
 *
 * Room:    store.
 * Format:  docs/formats.md, "GGUF as written": architecture, metadata, names and types of tensors,
 *          and which models have no form there.
 * Memory:  a few megabytes besides the vocabulary: numbers are read, encoded and written in pieces. */
#ifndef CPL_STORE_GGUF_EXPORT_H
#define CPL_STORE_GGUF_EXPORT_H

#include "base/log.h"
#include "checkpoint/gguf_writer.h"
#include "store/hf.h"

/* What became of a model. */
typedef struct cpl_gguf_export {
    const char *architecture; /* "olmoe"; static */
    int64_t n_tensors;
    int64_t n_kept; /* of them in F16 although Q8_0 was wanted: their rows are no multiple of 32 */
    uint64_t bytes; /* of the tensors */
} cpl_gguf_export;

/* Writes the model to `path`, atomically; `type` is that of the matrices: F32, F16, BF16 or Q8_0
 * (assert). `name` becomes general.name. Warnings say what llama.cpp does in another way.
 * CPL_ERR_INPUT: llama.cpp has no graph that computes this model, or no name for its tokenizer; a
 * tensor is missing or of another shape; a number that the type cannot hold. Nothing is left on
 * disk then, and an old file is as it was. */
CPL_NODISCARD cpl_status cpl_gguf_export_write(cpl_gguf_export *done, const cpl_hf *hf,
                                               const cpl_tokenizer *tokenizer, const char *path,
                                               cpl_format type, const char *name,
                                               const cpl_log *log);

/* Writes the name that a parameter has in the file, and returns it; NULL if it has none. */
const char *cpl_gguf_export_name(char out[CPL_GGUF_MAX_NAME + 1], const cpl_param *param);

#endif /* CPL_STORE_GGUF_EXPORT_H */
