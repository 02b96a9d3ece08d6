/* probe.c - the beginnings of files, and reading without a plan: headers and metadata, front to
 * back; see internal.h */
#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "remote/internal.h"

enum {
    HEAD_BYTES  = 1 << 18, /* of the first request: most headers are whole in it */
    FIRST_AHEAD = 1 << 19, /* of the next, if the file is read front to back; then doubled */
    MOST_AHEAD  = 1 << 22,
    SKIPPED     = 1 << 20 /* bytes that are passed over in such a reading: values of no interest */
};

/* A file whose header takes more is not read on: its server may have no end. */
static const uint64_t MOST_DIRECT = UINT64_C(1) << 28;

/* ---- the first bytes ---- */

void cpl_remote_probe_begin(cpl_remote *r, cpl_remote_file *file)
{
    if (file->probed) return;
    file->probed = true;
    file->head   = cpl_alloc(HEAD_BYTES);
    file->probe =
        (cpl_fetch){.site = &r->site, .file = &file->facts, .bytes = HEAD_BYTES, .out = file->head};
    if (file->head) {
        cpl_fetch_begin(&file->probe);
    } else {
        file->probe.result = CPL_FETCH_FAILED;
        file->probe.status = CPL_ERR_MEMORY;
        memcpy(file->probe.sentence, "out of memory", sizeof "out of memory");
    }
}

cpl_status cpl_remote_probe(cpl_remote *r, cpl_remote_file *file, bool *there)
{
    pthread_mutex_lock(&r->site.lock);
    cpl_remote_probe_begin(r, file);
    cpl_status status             = cpl_fetch_wait(&file->probe);
    const cpl_fetch_result result = file->probe.result;
    pthread_mutex_unlock(&r->site.lock);
    *there = result == CPL_FETCH_DONE || result == CPL_FETCH_WHOLE;
    return result == CPL_FETCH_FAILED || result == CPL_FETCH_DENIED ? status : CPL_OK;
}

void cpl_remote_forget_heads(cpl_remote *r, int kept)
{
    for (cpl_remote_file *f = r->files; f; f = f->next) {
        if (!f->head || f->probe.result == CPL_FETCH_RUNNING || kept-- > 0) continue;
        cpl_free(f->head);
        cpl_free(f->ahead);
        f->head = f->ahead = NULL;
        f->n_ahead         = 0;
    }
}

/* ---- without a plan ---- */

static cpl_status fetch_now(cpl_remote *r, cpl_remote_file *file, void *out, uint64_t bytes,
                            uint64_t offset)
{
    cpl_fetch *fetch = cpl_alloc(sizeof *fetch);
    if (!fetch) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", file->facts.path);
    *fetch = (cpl_fetch){.site  = &r->site,
                         .file  = &file->facts,
                         .begin = offset,
                         .bytes = (size_t)bytes,
                         .out   = out};
    pthread_mutex_lock(&r->site.lock);
    cpl_fetch_begin(fetch);
    cpl_status status = cpl_fetch_wait(fetch);
    pthread_mutex_unlock(&r->site.lock);
    file->direct_bytes += bytes;
    cpl_free(fetch);
    return status;
}

/* How many bytes are asked for: while the file is read front to back, more than are wanted. */
static uint64_t reach(const cpl_remote *r, const cpl_remote_file *file, size_t bytes,
                      uint64_t offset)
{
    const uint64_t left = file->facts.length - offset;
    uint64_t ask        = 2 * file->n_ahead;
    const bool onwards  = offset >= file->direct_end && offset - file->direct_end <= SKIPPED;
    if (r->plan.count || !onwards) return bytes;
    if (ask < FIRST_AHEAD) ask = FIRST_AHEAD;
    if (ask > MOST_AHEAD) ask = MOST_AHEAD;
    if (ask < bytes) ask = bytes;
    return ask < left ? ask : left;
}

static cpl_status fetch_ahead(cpl_remote *r, cpl_remote_file *file, uint64_t bytes, uint64_t offset)
{
    cpl_free(file->ahead);
    file->n_ahead = 0;
    file->ahead   = cpl_alloc((size_t)bytes);
    if (!file->ahead) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", file->facts.path);
    CPL_TRY(fetch_now(r, file, file->ahead, bytes, offset));
    file->ahead_at = offset;
    file->n_ahead  = bytes;
    return CPL_OK;
}

/* Copies what is there at `offset`; returns how many bytes. */
static size_t copy_known(const cpl_remote_file *file, void *out, size_t bytes, uint64_t offset)
{
    const uint64_t head        = file->head ? file->probe.got : 0;
    const unsigned char *known = NULL;
    uint64_t left              = 0;
    if (offset < head) {
        known = file->head + offset;
        left  = head - offset;
    } else if (offset >= file->ahead_at && offset - file->ahead_at < file->n_ahead) {
        known = file->ahead + (offset - file->ahead_at);
        left  = file->ahead_at + file->n_ahead - offset;
    }
    const size_t n = left < bytes ? (size_t)left : bytes;
    if (n) memcpy(out, known, n);
    return n;
}

/* The rest of what was not known, from `offset` on. */
static cpl_status read_rest(cpl_remote *r, cpl_remote_file *file, void *out, size_t bytes,
                            uint64_t offset)
{
    const uint64_t ask = reach(r, file, bytes, offset);
    if (!r->plan.count && (ask > MOST_DIRECT || file->direct_bytes > MOST_DIRECT - ask))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its header and metadata take more than %" PRIu64
                        " MiB, which is refused",
                        file->facts.path, MOST_DIRECT >> 20);
    file->direct_end = offset + ask;
    if (ask == bytes) return fetch_now(r, file, out, bytes, offset);
    CPL_TRY(fetch_ahead(r, file, ask, offset));
    memcpy(out, file->ahead, bytes);
    return CPL_OK;
}

cpl_status cpl_remote_read_direct(cpl_remote *r, cpl_remote_file *file, void *out, size_t bytes,
                                  uint64_t offset)
{
    cpl_status status = CPL_OK;
    pthread_mutex_lock(&r->direct);
    if (!file->direct_end) file->direct_end = file->probe.got;
    for (size_t n = 1; n && bytes;) {
        n   = copy_known(file, out, bytes, offset);
        out = (char *)out + n;
        bytes -= n;
        offset += n;
    }
    if (bytes) status = read_rest(r, file, out, bytes, offset);
    pthread_mutex_unlock(&r->direct);
    return status;
}
