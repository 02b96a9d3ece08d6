/* remote.h - checkpoints on a server: hf://owner/name[@revision][/folder] of a hub of models, and
 * https://host/folder, a web server. Only the ranges of files that are read are fetched.
 *
 * Room:    remote, of the program alone. Built without libcurl (-DCPL_REMOTE=OFF) it is absent.c, which
 *          says so. docs/inspection.md, "From afar"; what is sent where: docs/security.md.
 * Names:   a path of the origin is the word as the user gave it, without '/' at its end (of a page of
 *          the hub its hf:// word), and for a file of it '/' and its name. A word that ends in .safetensors, .gguf or .json is a file,
 *          any other a folder.
 * Threads: one of its own, which moves bytes; any number may read. */
#ifndef CPL_REMOTE_REMOTE_H
#define CPL_REMOTE_REMOTE_H

#include <stdbool.h>
#include <string.h>

#include "base/log.h"
#include "io/source.h"

typedef struct cpl_remote cpl_remote;

/* Whether the word names something on a server. */
static inline bool cpl_remote_is(const char *word)
{
    return strncmp(word, "hf://", 5) == 0 || strncmp(word, "https://", 8) == 0 ||
           strncmp(word, "http://", 7) == 0;
}

/* The part of a word that may be meant as OWNER/NAME of a hub, though it names a local file; NULL: none.
 * An address without https:// is such a word too. */
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

/* Checks the word, and of a hub reads the list of the repository's files. `cache`: a folder that
 * keeps what is read from planned ranges; NULL: nothing is kept. `log` (may be NULL) is told, from
 * another thread, when a server asks to wait. CPL_ERR_INPUT, CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_remote_open(cpl_remote **out, const char *word, const char *cache,
                                         const cpl_log *log);

/* All sources of its origin must be closed before. NULL: nothing to do. */
void cpl_remote_close(cpl_remote *remote);

/* Its path: the word without '/' at its end. Both live as long as `remote`. */
const char *cpl_remote_path(const cpl_remote *remote);
const cpl_origin *cpl_remote_origin(const cpl_remote *remote);

#endif /* CPL_REMOTE_REMOTE_H */
