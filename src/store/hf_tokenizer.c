/* hf_tokenizer.c - see hf.h: the tokenizer that a model is read with. */
#include "base/arena.h"
#include "store/hf.h"

/* A vocabulary may be padded: only what is too much is wrong. */
static cpl_status check_size(const cpl_hf *hf, const cpl_tokenizer *tokenizer, const char *path)
{
    const int64_t rows = cpl_hf_config(hf)->vocab_size;
    const int64_t ids  = cpl_tokenizer_vocab_size(tokenizer);
    if (ids <= rows) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s has ids up to %lld, but the vocabulary of %s has %lld rows: it is another "
                    "model's; --tokenizer names the right one",
                    path, (long long)ids - 1, cpl_hf_folder(hf), (long long)rows);
}

cpl_status cpl_hf_load_tokenizer(cpl_tokenizer **out, char **path, const cpl_hf *hf,
                                 const char *given)
{
    *out  = NULL;
    *path = given ? cpl_text_copy(given) : NULL;
    if (!*path && given) return CPL_ERR_MEMORY;
    if (!given) CPL_TRY(cpl_hf_tokenizer_path(path, hf));
    if (!*path)
        return CPL_FAIL(CPL_ERR_INPUT, "%s has no tokenizer.json: name one with --tokenizer",
                        cpl_hf_folder(hf));
    cpl_status status =
        given ? cpl_tokenizer_load_given(out, *path) : cpl_tokenizer_load(out, *path);
    if (status == CPL_OK) status = check_size(hf, *out, *path);
    if (status == CPL_OK) return CPL_OK;
    cpl_tokenizer_free(*out);
    cpl_free(*path);
    *out  = NULL;
    *path = NULL;
    return status;
}
