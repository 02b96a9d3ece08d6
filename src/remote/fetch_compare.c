/* fetch_compare.c - whether an answer is of the file of the first answer; see fetch.h.
 *
 * Like is compared with like: a hub and the hosts that it leads to have ETags of different forms. The
 * hub's X-Linked-ETag is that of the content, and so is the ETag of bytes that the hub sends itself.
 * The ETag of another host is compared with that of the same host. */
#include <string.h>

#include "remote/address.h"
#include "remote/fetch.h"

#define CHANGED(what) "the file changed in between (" what " is not what it was)"

/* The hub's tag of the content; "": not given. */
static const char *tag_of_hub(const cpl_fetch *f)
{
    const char *endpoint = f->site->endpoint;
    if (*f->linked) return f->linked;
    return endpoint && cpl_address_is_same_host(f->url, endpoint) ? f->transfer.answer.tag : "";
}

static void learn(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->transfer.answer;
    cpl_fetch_file *file     = f->file;
    f->learned = file->known = a->has_length;
    file->length             = a->length;
    memcpy(file->tag, a->tag, sizeof file->tag);
    strcpy(file->linked, tag_of_hub(f)); /* of the same size */
    cpl_address_host(file->place, f->url);
}

/* Of an answer from the end of the way that begins at the file's URL; it may be another place now. */
static const char *compare_tags(cpl_fetch *f)
{
    const char *tag = f->transfer.answer.tag, *of_hub = tag_of_hub(f);
    cpl_fetch_file *file = f->file;
    char place[256];
    cpl_address_host(place, f->url);
    const bool vouched = *of_hub && *file->linked;
    if (vouched && strcmp(of_hub, file->linked) != 0)
        return *f->linked ? CHANGED("its X-Linked-ETag") : CHANGED("its ETag");
    const bool elsewhere = strcmp(place, file->place) != 0;
    if (!(vouched && elsewhere) && strcmp(tag, file->tag) != 0) return CHANGED("its ETag");
    strcpy(file->tag, tag);
    strcpy(file->place, place);
    return NULL;
}

const char *cpl_fetch_compare(cpl_fetch *f)
{
    const cpl_http_answer *a   = &f->transfer.answer;
    const cpl_fetch_file *file = f->file;
    if (*a->linked_tag && !f->remembered) memcpy(f->linked, a->linked_tag, sizeof f->linked);
    if (f->linked_size && a->has_length && f->linked_size != a->length)
        return "hub and store disagree on its length (X-Linked-Size)";
    if (!file->known) {
        learn(f);
        return NULL;
    }
    if (a->has_length && a->length != file->length) return CHANGED("its length");
    if (f->remembered) return strcmp(a->tag, f->tag) != 0 ? CHANGED("its ETag") : NULL;
    return compare_tags(f);
}
