/* fetch_compare.c - whether an answer is of the file of the first answer; see fetch.h */
#include <string.h>

#include "remote/fetch.h"

const char *cpl_fetch_compare(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->transfer.answer;
    cpl_fetch_file *file     = f->file;
    if (*a->linked_tag) memcpy(f->linked, a->linked_tag, sizeof f->linked);
    if (f->linked_size && a->has_length && f->linked_size != a->length) return "its length";
    if (!file->known) {
        file->known  = a->has_length;
        file->length = a->length;
        memcpy(file->tag, a->tag, sizeof file->tag);
        memcpy(file->linked, f->linked, sizeof file->linked);
        f->learned = file->known;
        return NULL;
    }
    if (a->has_length && a->length != file->length) return "its length";
    const bool linked = *f->linked && *file->linked;
    if (linked && strcmp(f->linked, file->linked) != 0) return "its X-Linked-ETag";
    /* Another host of the same content may have another tag for it. */
    if (linked && f->renewals) memcpy(file->tag, a->tag, sizeof file->tag);
    return strcmp(file->tag, a->tag) != 0 ? "its ETag" : NULL;
}
