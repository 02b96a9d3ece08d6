/* hub.h - the layout of a hub of models: where it keeps the files of a repository.
 *
 * Room:    remote. Texts alone: no connection.
 * Source:  the public documentation and the client library of the Hugging Face Hub.
 * Words:   hf://OWNER/NAME[@REVISION][/FOLDER or /FILE]; a '/' within a revision is written as %2F,
 *          except in refs/pr/N and refs/convert/NAME. Without a revision: main.
 * Where:   HF_ENDPOINT, else https://huggingface.co.
 * Token:   HF_TOKEN, else the first line of the file HF_TOKEN_PATH, else of `token` in HF_HOME, else
 *          of ~/.cache/huggingface/token (or of XDG_CACHE_HOME). */
#ifndef CPL_REMOTE_HUB_H
#define CPL_REMOTE_HUB_H

#include "base/status.h"
#include "base/text.h"

/* All zero is an empty one. */
typedef struct cpl_hub_place {
    char *endpoint;   /* "https://huggingface.co", without '/' at its end */
    char *repository; /* "owner/name" */
    char *revision;   /* "main"; later perhaps the commit that it stands for */
    char *folder;     /* what follows in the word, without '/' at its ends; "" */
} cpl_hub_place;

/* Sets `out`, from cpl_alloc, to the hf:// word of a page of a model on the hub:
 * https://huggingface.co/OWNER/NAME (hf.co too) and what is below it, of which /tree/, /blob/, /raw/ or
 * /resolve/REVISION/... is kept; of any other word to a copy. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_hub_word(char **out, const char *word);

/* Sets the parts of a word that begins with hf://. CPL_ERR_INPUT, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_hub_parse(cpl_hub_place *place, const char *word);
void cpl_hub_free(cpl_hub_place *place);

/* Append the URL of a file of the repository ("folder/name"), and of the list of its files. */
void cpl_hub_file_url(cpl_text *out, const cpl_hub_place *place, const char *name);
void cpl_hub_list_url(cpl_text *out, const cpl_hub_place *place);

/* Sets `names` to all files of the repository, sorted by bytes, from the text of that list, and the
 * revision to the commit that the list is of. `where` begins the sentence. CPL_ERR_INPUT,
 * CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_hub_read_list(cpl_strings *names, cpl_hub_place *place,
                                           const char *text, size_t length, const char *where);

/* Sets `token`, from cpl_alloc; NULL if there is none. CPL_ERR_INPUT if it is no token. */
CPL_NODISCARD cpl_status cpl_hub_token(char **token);

#endif /* CPL_REMOTE_HUB_H */
