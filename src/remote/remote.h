/* remote.h - checkpoints on a server: hf://owner/name[@revision][/folder] of a hub of models, and
 * https://host/folder, a web server. Only the ranges of files that are read are fetched.
 *
 * Room: remote, of the program alone. A build without libcurl (-DCPL_REMOTE=OFF) has
 *   remote_disabled.c in its place.
 * Documentation: docs/inspection.md, "From afar"; docs/security.md lists what is sent to whom.
 * Paths: a path of the origin is the user's word without '/' at its end, and for a file in it '/'
 *   and the file's name. The address of a page of the hub becomes its hf:// word. A word that ends
 *   in .safetensors, .gguf or .json is a file, any other a folder.
 * Thread safety: one thread opens files, any number may read them. Sixteen further threads fetch
 *   in advance. */
#ifndef CPL_REMOTE_REMOTE_H
#define CPL_REMOTE_REMOTE_H

#include <stdbool.h>
#include <string.h>

#include "base/log.h"
#include "io/source.h"

typedef struct cpl_remote cpl_remote;

/* Returns whether the word names something on a server. */
static inline bool cpl_remote_is(const char *word)
{
    return strncmp(word, "hf://", 5) == 0 || strncmp(word, "https://", 8) == 0 ||
           strncmp(word, "http://", 7) == 0;
}

/* Returns the part OWNER/NAME of a word that names a local file but may mean a model of the hub, or
 * NULL. An address without https:// is such a word too. */
static inline const char *cpl_remote_repository(const char *word)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    word += strncmp(word, "huggingface.co/", 15) == 0 ? 15
            : strncmp(word, "hf.co/", 6) == 0         ? 6
                                                      : 0;
    const size_t owner = strspn(word, allowed);
    if (!owner || word[owner] != '/' || *word == '.' || word[owner + 1] == '.') return NULL;
    const char *name = word + owner + 1, *end = name + strspn(name, allowed);
    return end > name && (!*end || strcmp(end, "/") == 0) ? word : NULL;
}

/* Checks the word, and reads the list of files of a hub's repository. `cache` is a folder for
 * the ranges that are fetched, or NULL. Warnings go to `log`, which may be NULL, also from other
 * threads. CPL_ERR_INPUT, CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_remote_open(cpl_remote **out, const char *word, const char *cache,
                                         const cpl_log *log);

/* Closes the checkpoint. All sources of its origin must be closed before. `remote` may be NULL. */
void cpl_remote_close(cpl_remote *remote);

/* Return the path of the checkpoint, and its origin. Both live as long as `remote`. */
const char *cpl_remote_path(const cpl_remote *remote);
const cpl_origin *cpl_remote_origin(const cpl_remote *remote);

#endif /* CPL_REMOTE_REMOTE_H */
