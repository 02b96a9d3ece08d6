/* hub.h - the layout of a hub of models: addresses of a repository's files.
 *
 * Room: remote. It reads and writes texts, and opens no connection.
 * Sources: the public documentation and the client library of the Hugging Face Hub.
 * Word syntax: hf://OWNER/NAME[@REVISION][/FOLDER or /FILE]. A '/' within a revision is written as
 *   %2F, except in refs/pr/N and refs/convert/NAME. The default is main.
 * Endpoint: HF_ENDPOINT, else https://huggingface.co.
 * Authentication: the token is HF_TOKEN, else the first line of the file HF_TOKEN_PATH, else of the
 *   file `token` in HF_HOME, which is `huggingface` in XDG_CACHE_HOME or ~/.cache. */
#ifndef CPL_REMOTE_HUB_H
#define CPL_REMOTE_HUB_H

#include "base/status.h"
#include "base/text.h"

/* Holds the parts of a word. An empty one is all zero. */
typedef struct cpl_hub_place {
    char *endpoint;   /* "https://huggingface.co", without '/' at its end */
    char *repository; /* "owner/name" */
    char *revision;   /* "main"; after the list was read, its commit if the hub gives one */
    char *folder;     /* the rest of the word, without '/' at its ends; "" */
} cpl_hub_place;

/* Sets `out`, from cpl_alloc, to the hf:// word of a page of a model on the hub:
 * https://huggingface.co/OWNER/NAME (hf.co too) and addresses below it. Of the parts after NAME
 * only /tree/, /blob/, /raw/ or /resolve/REVISION/... is kept. For any other word `out` is a copy.
 * CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_hub_word(char **out, const char *word);

/* Sets the parts of a word that begins with hf://. CPL_ERR_INPUT, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_hub_parse(cpl_hub_place *place, const char *word);
void cpl_hub_free(cpl_hub_place *place);

/* Append the URL of a file in the folder of the place ("name"), and of the list of all files. */
void cpl_hub_file_url(cpl_text *out, const cpl_hub_place *place, const char *name);
void cpl_hub_list_url(cpl_text *out, const cpl_hub_place *place);

/* Sets `names` to the files below the folder of the place, sorted by bytes, from the text of the
 * hub's list. The names are relative to the folder. Sets the revision to the commit that the list
 * names. `has_commit` is false if neither the list nor the revision is a commit: files of two
 * versions may then be mixed. `where` begins the sentence of an error. CPL_ERR_INPUT,
 * CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_hub_read_list(cpl_strings *names, cpl_hub_place *place,
                                           bool *has_commit, const char *text, size_t length,
                                           const char *where);

/* Sets `token`, from cpl_alloc, or NULL if none is given. Fails with CPL_ERR_INPUT for text that is
 * no token. */
CPL_NODISCARD cpl_status cpl_hub_token(char **token);

#endif /* CPL_REMOTE_HUB_H */
