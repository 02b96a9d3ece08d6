/* remote.c - see remote.h: names and files of a checkpoint on a server */
#include "remote/remote.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/paths.h"
#include "remote/address.h"
#include "remote/internal.h"

enum {
    LIST_BYTES  = 1 << 23, /* most bytes of a list of files: 130,000 names of usual length */
    JSON_BYTES  = 1 << 25, /* most bytes of a file read as a whole: DeepSeek-V3's index has 9 MB */
    JSON_VALUES = 1 << 21, /* most values of such a file; the index has 92,000 of about 80 bytes */
    MOST_FILES  = 4096,    /* most files of a checkpoint */
    AHEAD       = 64       /* files whose first bytes are fetched before they are opened */
};

static cpl_remote *remote_of(const cpl_origin *origin)
{
    return (cpl_remote *)(uintptr_t)origin;
}

static cpl_status no_memory(const char *path)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", path);
}

/* ---- names ---- */

/* Returns the name of the file in its folder. */
static const char *name_of(const cpl_remote *r, const char *path)
{
    const size_t root = strlen(r->root);
    CPL_ASSERT(strncmp(path, r->root, root) == 0 && path[root] == '/');
    return path + root + 1;
}

/* Sets `url` (initialised). The word itself is a URL as the user wrote it. */
static cpl_status write_url(cpl_text *url, const cpl_remote *r, const char *path)
{
    if (r->is_hub) {
        cpl_hub_file_url(url, &r->place, name_of(r, path));
    } else if (strcmp(path, r->word) == 0) {
        cpl_text_printf(url, "%s", path);
    } else {
        cpl_text_printf(url, "%s/", r->root);
        cpl_address_append(url, name_of(r, path), false);
    }
    return cpl_text_status(url);
}

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, *(char *const *)entry);
}

/* Returns whether the hub's list has the file. */
static bool is_listed(const cpl_remote *r, const char *path)
{
    return r->names.count && bsearch(name_of(r, path), r->names.at, (size_t)r->names.count,
                                     sizeof *r->names.at, compare_name);
}

static cpl_status refuse_unlisted(const cpl_remote *r, const char *path)
{
    const char *nearest = cpl_text_nearest(name_of(r, path), (const char *const *)r->names.at,
                                           (size_t)r->names.count);
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: the repository has no such file at this revision (404)%s%.200s%s", path,
                    nearest ? "; the nearest name is " : "", nearest ? nearest : "",
                    nearest ? "" : "; no name is near");
}

/* ---- files ---- */

/* Sets the record of the file, a new record if the path is new. */
static cpl_status find_file(cpl_remote_file **out, cpl_remote *r, const char *path)
{
    cpl_text url = {0};
    for (*out = r->files; *out; *out = (*out)->next)
        if (strcmp((*out)->facts.path, path) == 0) return CPL_OK;
    if (r->n_files == MOST_FILES)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: a checkpoint of more than %d files is refused", path,
                        MOST_FILES);
    cpl_remote_file *file = cpl_alloc(sizeof *file);
    char *copy            = cpl_text_copy(path);
    if (!file || !copy || write_url(&url, r, path) != CPL_OK) {
        cpl_free(file);
        cpl_free(copy);
        cpl_text_free(&url);
        return no_memory(path);
    }
    *file = (cpl_remote_file){.facts = {.path = copy, .url = url.bytes},
                              .head  = {.end = CPL_REMOTE_HEAD},
                              .next  = r->files};
    pthread_mutex_lock(&r->site.lock);
    r->files = *out = file;
    pthread_mutex_unlock(&r->site.lock);
    r->n_files++;
    return CPL_OK;
}

/* Sets whether the file exists, and its record if the hub lists it or the server was asked. One
 * thread opens files. Any number may read them. */
static cpl_status find_there(cpl_remote_file **file, bool *there, const cpl_origin *origin,
                             const char *path)
{
    cpl_remote *r = remote_of(origin);
    *there        = !r->is_hub || is_listed(r, path);
    if (!*there) return CPL_OK;
    CPL_TRY(find_file(file, r, path));
    return r->is_hub ? CPL_OK : cpl_remote_probe(r, *file, there);
}

/* Sets whether a file of this name in the folder can be read. */
static cpl_status is_readable(bool *readable, cpl_remote *r, const char *name)
{
    cpl_remote_file *file;
    char *path        = cpl_path_join(r->root, name);
    cpl_status status = path ? find_file(&file, r, path) : no_memory(name);
    cpl_free(path);
    CPL_TRY(status);
    status = cpl_remote_probe(r, file, readable);
    return status == CPL_ERR_MEMORY ? status : CPL_OK;
}

static const char *sentence_of(const cpl_remote_file *file)
{
    return file->head.sentence ? file->head.sentence : "out of memory";
}

/* Decides whether a denied file is absent. Buckets that may not be listed answer 403 for absent
 * files. The file counts as absent if another file of the folder can be read. */
static cpl_status judge_denied(cpl_remote *r, const cpl_remote_file *file)
{
    static const char *const others[] = {"config.json", "params.json", "model.safetensors"};
    bool readable                     = false;
    for (size_t i = 0; i < sizeof others / sizeof *others && !readable; i++)
        CPL_TRY(is_readable(&readable, r, others[i]));
    if (!readable) return CPL_FAIL(file->head.status, "%s", sentence_of(file));
    if (r->site.log)
        cpl_log_warn(r->site.log, "%s; it counts as absent, since other files there can be read",
                     sentence_of(file));
    return CPL_OK;
}

/* Finds out whether an optional file exists. */
static cpl_status exists(const cpl_origin *origin, bool *there, const char *path)
{
    cpl_remote_file *file = NULL;
    cpl_status status     = find_there(&file, there, origin, path);
    if (status == CPL_OK || !file || file->head.result != CPL_FETCH_DENIED) return status;
    return judge_denied(remote_of(origin), file);
}

static cpl_status refuse_absent(const cpl_remote *r, const cpl_remote_file *file, const char *path)
{
    return r->is_hub ? refuse_unlisted(r, path) : CPL_FAIL(CPL_ERR_INPUT, "%s", sentence_of(file));
}

static cpl_status read_at(const cpl_source *source, void *out, size_t bytes, uint64_t offset)
{
    return cpl_remote_read_planned((const cpl_remote_source *)source, out, bytes, offset);
}

static void prefetch(const cpl_source *source, uint64_t offset, size_t bytes)
{
    (void)source, (void)offset, (void)bytes; /* the plan is the better advice */
}

static void close_source(cpl_source *source)
{
    cpl_remote_forget_source(((cpl_remote_source *)source)->remote, source);
    cpl_free(source->path);
    cpl_free(source);
}

/* Requests the first bytes of the files that will be opened next. An error of such a file is
 * reported when the file is opened. */
static void look_ahead(cpl_remote *r, const char *path)
{
    const bool expected =
        r->n_arrived < r->expected.count && strcmp(r->expected.at[r->n_arrived], path) == 0;
    if (!expected) return;
    for (r->n_arrived++; r->n_begun < r->expected.count && r->n_begun < r->n_arrived + AHEAD;
         r->n_begun++) {
        const char *next = r->expected.at[r->n_begun];
        cpl_remote_file *file;
        if (r->is_hub && !is_listed(r, next)) continue;
        if (find_file(&file, r, next) != CPL_OK) return;
        cpl_remote_want_head(r, file);
    }
}

static cpl_status open_source(const cpl_origin *origin, cpl_source **out, const char *path)
{
    static const cpl_source_ops ops = {read_at, prefetch, close_source};
    cpl_remote *r                   = remote_of(origin);
    cpl_remote_file *file           = NULL;
    bool there;
    look_ahead(r, path);
    CPL_TRY(find_there(&file, &there, origin, path));
    if (!there) return refuse_absent(r, file, path);
    CPL_TRY(cpl_remote_probe(r, file, &there));
    if (file->head.result != CPL_FETCH_DONE)
        return CPL_FAIL(CPL_ERR_INPUT, "%s", sentence_of(file));
    cpl_remote_source *s = cpl_alloc(sizeof *s);
    if (!s) return no_memory(path);
    *s = (cpl_remote_source){{&ops, cpl_text_copy(path), file->facts.length}, r, file};
    if (!s->source.path) {
        cpl_free(s);
        return no_memory(path);
    }
    *out = &s->source;
    return CPL_OK;
}

/* Refuses a file with too many values. The file is JSON, which has at most one value more than
 * these signs. */
static cpl_status bound_values(const char *path, const cpl_text *text)
{
    int64_t values = 0;
    for (size_t i = 0; i < text->length; i++)
        values += text->bytes[i] == ',' || text->bytes[i] == '[' || text->bytes[i] == '{';
    if (values <= JSON_VALUES) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: has %lld commas and brackets, more than %d; it is not parsed", path,
                    (long long)values, JSON_VALUES);
}

static cpl_status read_file(const cpl_origin *origin, cpl_text *out, const char *path, size_t most)
{
    cpl_remote *r         = remote_of(origin);
    cpl_remote_file *file = NULL;
    bool there;
    cpl_text_clear(out);
    CPL_TRY(find_there(&file, &there, origin, path));
    if (!there) return refuse_absent(r, file, path);
    if (file->head.state == CPL_REMOTE_READY && file->head.got == file->facts.length) {
        cpl_text_append(out, file->head.out, file->head.got);
        return cpl_text_status(out);
    }
    cpl_fetch fetch = {.site  = &r->site,
                       .file  = &file->facts,
                       .bytes = most < JSON_BYTES ? most : JSON_BYTES,
                       .text  = out};
    CPL_TRY(cpl_fetch_run(&fetch));
    return bound_values(path, out);
}

static cpl_status list(const cpl_origin *origin, cpl_strings *names, const char *folder)
{
    const cpl_remote *r = remote_of(origin);
    cpl_status status   = CPL_OK;
    *names              = (cpl_strings){0};
    CPL_ASSERT(!r->is_hub || strcmp(folder, r->root) == 0);
    for (int64_t i = 0; i < r->names.count && status == CPL_OK; i++)
        if (!strchr(r->names.at[i], '/')) status = cpl_paths_add(names, r->names.at[i]);
    if (status != CPL_OK) cpl_paths_free(names);
    return status;
}

static bool names_a_file(const char *path)
{
    return cpl_path_ends_in(path, ".safetensors") || cpl_path_is_gguf(path) ||
           cpl_path_ends_in(path, ".json");
}

static bool is_folder(const cpl_origin *origin, const char *path)
{
    const cpl_remote *r = remote_of(origin);
    return !r->is_file && strcmp(path, r->word) == 0;
}

static void expect(const cpl_origin *origin, const cpl_strings *paths)
{
    cpl_remote *r     = remote_of(origin);
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < paths->count && i < MOST_FILES && status == CPL_OK; i++)
        status = cpl_paths_add(&r->expected, paths->at[i]); /* without memory the list is shorter */
}

static cpl_status set_plan(const cpl_origin *origin, cpl_origin_plan *plan,
                           const cpl_source_pieces *pieces)
{
    return cpl_remote_set_plan(remote_of(origin), plan, pieces);
}

static const cpl_origin_ops origin_ops = {open_source, read_file, exists,  list,
                                          is_folder,   expect,    set_plan};

/* ---- opening ---- */

/* Reads the list of the repository's files. A folder that the user names has at least one file. */
static cpl_status read_list(cpl_remote *r)
{
    cpl_status status = CPL_OK;
    cpl_text url = {0}, text = {0};
    cpl_fetch_file facts = {.path = r->word};
    cpl_fetch fetch      = {.site = &r->site, .file = &facts, .bytes = LIST_BYTES, .text = &text};
    bool has_commit;
    char host[256];
    cpl_hub_list_url(&url, &r->place);
    CPL_TRY_DONE(cpl_text_status(&url));
    facts.url = url.bytes;
    status    = cpl_fetch_run(&fetch);
    if (fetch.result == CPL_FETCH_ABSENT)
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: %s has no such repository or revision (404)", r->word,
                          cpl_address_host(host, r->place.endpoint));
    CPL_TRY_DONE(status);
    CPL_TRY_DONE(cpl_hub_read_list(&r->names, &r->place, &has_commit, text.length ? text.bytes : "",
                                   text.length, url.bytes));
    if (!has_commit && r->site.log)
        cpl_log_warn(r->site.log,
                     "%s: the hub names no commit of the revision %s: files that are pushed "
                     "meanwhile would be mixed with those before",
                     r->word, r->place.revision);
    if (*r->place.folder && !r->is_file && !r->names.count)
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: the repository has no such folder at this revision",
                          r->word);
done:
    cpl_free(facts.moved);
    cpl_text_free(&url);
    cpl_text_free(&text);
    return status;
}

/* Sets the root: the word, or the part before the last '/' of a file. */
static cpl_status set_root(cpl_remote *r)
{
    r->root = cpl_text_copy(r->word);
    if (!r->root) return CPL_ERR_MEMORY;
    if (!r->is_file) return CPL_OK;
    char *slash = strrchr(r->root, '/');
    *slash      = '\0';
    if (!r->is_hub) return CPL_OK;
    slash = strrchr(r->place.folder, '/');
    if (slash)
        *slash = '\0';
    else
        r->place.folder[0] = '\0';
    return CPL_OK;
}

static cpl_status open_hub(cpl_remote *r)
{
    r->is_hub = true;
    CPL_TRY(cpl_hub_parse(&r->place, r->word));
    r->is_file = names_a_file(r->place.folder);
    CPL_TRY(set_root(r));
    CPL_TRY(cpl_hub_token(&r->token));
    r->site.endpoint   = r->place.endpoint;
    r->site.repository = r->place.repository;
    r->site.token      = r->token;
    CPL_TRY(cpl_http_start(&r->site.http, CPL_HTTP_STALL));
    return read_list(r);
}

static cpl_status open_web(cpl_remote *r)
{
    CPL_TRY(cpl_address_check_given(r->word));
    r->is_file = names_a_file(r->word) && strchr(strstr(r->word, "://") + 3, '/');
    CPL_TRY(set_root(r));
    return cpl_http_start(&r->site.http, CPL_HTTP_STALL);
}

static cpl_status copy_words(cpl_remote *r, const char *word, const char *cache)
{
    CPL_TRY(cpl_hub_word(&r->word, word));
    size_t n = strlen(r->word);
    r->cache = cache ? cpl_text_copy(cache) : NULL;
    if (cache && !r->cache) return CPL_ERR_MEMORY;
    const char *scheme = strstr(r->word, "://");
    const size_t least = scheme ? (size_t)(scheme - r->word) + 3 : 0;
    while (n > least && r->word[n - 1] == '/') r->word[--n] = '\0';
    return cache ? cpl_folder_make(cache) : CPL_OK;
}

cpl_status cpl_remote_open(cpl_remote **out, const char *word, const char *cache,
                           const cpl_log *log)
{
    cpl_status status = CPL_OK;
    cpl_remote *r     = cpl_alloc(sizeof *r);
    *out              = NULL;
    if (!r) return no_memory(word);
    *r = (cpl_remote){
        .site = {.log = log, .patience = CPL_FETCH_PATIENCE, .notice = CPL_FETCH_NOTICE}};
    pthread_mutex_init(&r->site.lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    pthread_mutex_init(&r->direct, NULL);
    CPL_TRY_DONE(copy_words(r, word, cache));
    status    = strncmp(r->word, "hf://", 5) == 0 ? open_hub(r) : open_web(r);
    r->origin = (cpl_origin){&origin_ops, r->is_hub, CPL_REMOTE_BUFFER + CPL_REMOTE_RANGE};
    *out      = r;
done:
    if (status != CPL_OK) {
        cpl_remote_close(r);
        *out = NULL;
    }
    return status;
}

static void free_files(cpl_remote *r)
{
    for (cpl_remote_file *file = r->files, *next; file; file = next) {
        next = file->next;
        cpl_free(file->head.out);
        cpl_free(file->head.sentence);
        cpl_fetch_file_free(&file->facts);
        cpl_free(file);
    }
}

void cpl_remote_close(cpl_remote *r)
{
    if (!r) return;
    cpl_remote_stop(r);
    cpl_remote_plan_free(&r->plan);
    free_files(r);
    cpl_hub_free(&r->place);
    cpl_paths_free(&r->names);
    cpl_paths_free(&r->expected);
    if (r->token) explicit_bzero(r->token, strlen(r->token));
    cpl_free(r->token);
    cpl_free(r->root);
    cpl_free(r->word);
    cpl_free(r->cache);
    cpl_free(r->site.down);
    pthread_mutex_destroy(&r->direct);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->site.lock);
    cpl_free(r);
}

const char *cpl_remote_path(const cpl_remote *r)
{
    return r->word;
}

const cpl_origin *cpl_remote_origin(const cpl_remote *r)
{
    return &r->origin;
}
