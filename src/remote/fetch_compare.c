/* fetch_compare.c - compares an answer with the file of the first answer; see fetch.h.
 *
 * A hub and the hosts that it redirects to have ETags of different forms. The hub's X-Linked-ETag
 * is the tag of the content, and so is the ETag of bytes that the hub sends itself. The ETag of
 * another host is compared with an earlier ETag of that host. */
#include <string.h>

#include "remote/address.h"
#include "remote/fetch.h"

#define CHANGED(what) "the file changed in between (" what " is not what it was)"

/* Returns X-Linked-ETag of the hub's redirect, or "" if it is absent or the hub was not asked. */
static const char *linked_tag_of(const cpl_fetch *f)
{
    return f->remembered ? "" : f->request.answer.linked_tag;
}

/* Returns the hub's tag of the content, or "" if it is absent. */
static const char *hub_tag_of(const cpl_fetch *f)
{
    const char *endpoint = f->site->endpoint, *linked = linked_tag_of(f);
    if (*linked || !endpoint || !cpl_address_is_same_host(f->request.place, endpoint))
        return linked;
    return f->request.answer.tag;
}

/* Warns once about a server whose tags cannot show every change of a file that is read in
 * ranges. */
static void name_missing_tag(const cpl_fetch *f)
{
    const cpl_http_answer *a = &f->request.answer;
    if (!f->out || a->has_etag || f->site->tag_named || !f->site->log) return;
    f->site->tag_named = true;
    cpl_log_warn(f->site->log, "%s: %s gives %s: %s", f->file->path, f->request.host,
                 a->has_weak_etag ? "only a weak ETag (W/...), which counts as none" : "no ETag",
                 *a->tag ? "a file that changes twice within a second of its Last-Modified would "
                           "not be noticed"
                         : "a file that changes while it is read would not be noticed");
}

static void learn(cpl_fetch *f)
{
    const cpl_http_answer *a = &f->request.answer;
    cpl_fetch_file *file     = f->file;
    f->learned = file->known = a->has_length;
    file->length             = a->length;
    memcpy(file->tag, a->tag, sizeof file->tag);
    strcpy(file->linked, hub_tag_of(f)); /* both have CPL_HTTP_MAX_TAG bytes */
    memcpy(file->place, f->request.host, sizeof file->place);
    name_missing_tag(f);
}

/* Compares the tags of an answer that was requested at the file's own address, which may lead to
 * another host now. */
static const char *compare_tags(cpl_fetch *f)
{
    const char *tag = f->request.answer.tag, *of_hub = hub_tag_of(f);
    cpl_fetch_file *file = f->file;
    const bool vouched   = *of_hub && *file->linked;
    if (vouched && strcmp(of_hub, file->linked) != 0)
        return *linked_tag_of(f) ? CHANGED("its X-Linked-ETag") : CHANGED("its ETag");
    const bool elsewhere = strcmp(f->request.host, file->place) != 0;
    if (!(vouched && elsewhere) && strcmp(tag, file->tag) != 0) return CHANGED("its ETag");
    strcpy(file->tag, tag);
    strcpy(file->place, f->request.host);
    return NULL;
}

const char *cpl_fetch_compare(cpl_fetch *f)
{
    const cpl_http_answer *a   = &f->request.answer;
    const cpl_fetch_file *file = f->file;
    const bool linked          = a->linked_size && !f->remembered;
    if (linked && a->has_length && a->linked_size != a->length)
        return "hub and store disagree on its length (X-Linked-Size)";
    if (!file->known) {
        learn(f);
        return NULL;
    }
    if (a->has_length && a->length != file->length) return CHANGED("its length");
    if (f->remembered) return strcmp(a->tag, f->tag) != 0 ? CHANGED("its ETag") : NULL;
    return compare_tags(f);
}
