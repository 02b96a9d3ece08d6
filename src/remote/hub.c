/* hub.c - see hub.h */
#include "remote/hub.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "remote/address.h"

enum {
    LONGEST_NAME  = 96,   /* characters of an owner's or a repository's name */
    LONGEST_TOKEN = 4096, /* bytes of the file of a token */
    COMMIT        = 40    /* digits of a commit's name */
};

/* ---- words ---- */

static cpl_status bad_word(const char *word, const char *why)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%.500s: %s; write hf://OWNER/NAME[@REVISION][/FOLDER]", word,
                    why);
}

static char *copy_of(const char *from, size_t length)
{
    char *copy = cpl_alloc(length + 1);
    if (!copy) return NULL;
    memcpy(copy, from, length);
    copy[length] = '\0';
    return copy;
}

/* Returns true for a name of letters, digits, '-', '_' and '.' that does not begin with '.'. */
static bool is_name(const char *name, size_t length)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    if (!length || length > LONGEST_NAME || name[0] == '.') return false;
    for (size_t i = 0; i < length; i++)
        if (!strchr(allowed, name[i])) return false;
    return true;
}

/* Measures the revision at `text`: up to the next '/', or with refs/pr/1 up to the third. */
static size_t revision_length(const char *text)
{
    static const char *const longer[] = {"refs/pr/", "refs/convert/"};
    size_t before                     = 0;
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        if (strncmp(text, longer[i], strlen(longer[i])) == 0) before = strlen(longer[i]);
    return before + strcspn(text + before, "/");
}

/* Decodes %2F and the like to bytes, in place. */
static void decode(char *text)
{
    char *to = text;
    for (; *text; text++) {
        unsigned byte;
        if (*text == '%' && strspn(text + 1, "0123456789abcdefABCDEF") >= 2 &&
            sscanf(text + 1, "%2x", &byte) == 1 && byte > 0x20) {
            *to++ = (char)byte;
            text += 2;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

/* Returns whether no part of a path is empty, "." or "..", and no byte a control character. */
static bool is_path(const char *path)
{
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f || *c == '\\') return false;
    while (*path) {
        const size_t n = strcspn(path, "/");
        if (n == 0 || (n == 1 && path[0] == '.') || (n == 2 && strncmp(path, "..", 2) == 0))
            return false;
        path += n;
        if (*path == '/' && !*++path) return false;
    }
    return true;
}

/* Returns whether the text, which may be NULL, names a commit. */
static bool is_commit(const char *text)
{
    return text && strlen(text) == COMMIT && strspn(text, "0123456789abcdef") == COMMIT;
}

/* Sets revision and folder from what follows the repository's name. */
static cpl_status parse_rest(cpl_hub_place *place, const char *rest, const char *word)
{
    size_t length = 0;
    if (*rest == '@') {
        length          = revision_length(++rest);
        place->revision = copy_of(rest, length);
        if (place->revision) decode(place->revision);
    } else {
        place->revision = cpl_text_copy("main");
    }
    rest += length;
    while (*rest == '/') rest++;
    size_t n = strlen(rest);
    while (n && rest[n - 1] == '/') n--;
    place->folder = copy_of(rest, n);
    if (!place->revision || !place->folder) return CPL_ERR_MEMORY;
    if (!*place->revision || !is_path(place->revision)) return bad_word(word, "no revision");
    if (!is_path(place->folder)) return bad_word(word, "no folder of a repository");
    return CPL_OK;
}

static cpl_status parse_repository(cpl_hub_place *place, const char *word)
{
    const char *owner = word + strlen("hf://"), *slash = strchr(owner, '/');
    if (!slash) return bad_word(word, "names no repository");
    const char *name    = slash + 1;
    const size_t before = (size_t)(slash - owner), length = strcspn(name, "@/");
    if ((before == 8 && strncmp(owner, "datasets", 8) == 0) ||
        (before == 6 && strncmp(owner, "spaces", 6) == 0))
        return bad_word(word, "only repositories of models are read");
    if (!is_name(owner, before) || !is_name(name, length))
        return bad_word(word, "this is no name of a repository");
    place->repository = copy_of(owner, before + 1 + length);
    if (!place->repository) return CPL_ERR_MEMORY;
    return parse_rest(place, name + length, word);
}

/* ---- pages ---- */

static const char default_endpoint[] = "https://huggingface.co";

/* Returns the path of a URL of the public hub, from "OWNER/NAME" on, or NULL for another host. */
static const char *below_hub(const char *url)
{
    static const char *const hosts[] = {default_endpoint, "https://www.huggingface.co",
                                        "https://hf.co"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const size_t n = strlen(hosts[i]);
        if (strncasecmp(url, hosts[i], n) == 0 && url[n] == '/') return url + n + 1;
    }
    return NULL;
}

/* Returns whether files of a revision are below this part of a page's path. Other parts show
 * discussions and the like. */
static bool shows_files(const char *kind)
{
    static const char *const kinds[] = {"tree/", "blob/", "resolve/", "raw/"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(kind, kinds[i], strlen(kinds[i])) == 0) return true;
    return false;
}

/* Appends the word for "OWNER/NAME" or "OWNER/NAME/tree/REVISION/FOLDER", if `page` has a NAME.
 * Cuts `page` into its parts. */
static void append_word(cpl_text *out, char *page)
{
    char *name = strchr(page, '/'), *kind = name ? strchr(name + 1, '/') : NULL;
    if (!name) return;
    if (kind) *kind++ = '\0';
    cpl_text_printf(out, "hf://%s", page);
    if (!kind || !shows_files(kind)) return;
    char *revision = strchr(kind, '/') + 1;
    decode(revision + revision_length(revision));
    cpl_text_printf(out, "@%s", revision);
}

cpl_status cpl_hub_word(char **out, const char *word)
{
    const char *path = below_hub(word);
    cpl_text hub     = {0};
    if (path) {
        size_t n = strcspn(path, "?#");
        while (n && path[n - 1] == '/') n--;
        char *page = copy_of(path, n);
        if (!page) return CPL_ERR_MEMORY;
        append_word(&hub, page);
        cpl_free(page);
    }
    if (!hub.length) cpl_text_append(&hub, word, strlen(word));
    CPL_TRY(cpl_text_status(&hub));
    *out = hub.bytes;
    return CPL_OK;
}

/* ---- all parts of a word ---- */

static cpl_status find_endpoint(cpl_hub_place *place, const char *word)
{
    const char *given = getenv("HF_ENDPOINT");
    place->endpoint   = cpl_text_copy(given && *given ? given : default_endpoint);
    if (!place->endpoint) return CPL_ERR_MEMORY;
    size_t n = strlen(place->endpoint);
    while (n && place->endpoint[n - 1] == '/') place->endpoint[--n] = '\0';
    const cpl_status status = cpl_address_check_given(place->endpoint);
    if (status == CPL_OK) return CPL_OK;
    return CPL_FAIL(status, "%s: %s", given && *given ? "HF_ENDPOINT" : word, cpl_last_error());
}

cpl_status cpl_hub_parse(cpl_hub_place *place, const char *word)
{
    CPL_ASSERT(strncmp(word, "hf://", 5) == 0);
    *place            = (cpl_hub_place){0};
    cpl_status status = parse_repository(place, word);
    if (status == CPL_OK) status = find_endpoint(place, word);
    if (status != CPL_OK) cpl_hub_free(place);
    return status;
}

void cpl_hub_free(cpl_hub_place *place)
{
    cpl_free(place->endpoint);
    cpl_free(place->repository);
    cpl_free(place->revision);
    cpl_free(place->folder);
    *place = (cpl_hub_place){0};
}

/* ---- URLs ---- */

void cpl_hub_file_url(cpl_text *out, const cpl_hub_place *place, const char *name)
{
    cpl_text_printf(out, "%s/%s/resolve/", place->endpoint, place->repository);
    cpl_address_append(out, place->revision, false);
    cpl_text_char(out, '/');
    if (*place->folder) cpl_address_append(out, place->folder, true);
    if (*place->folder) cpl_text_char(out, '/');
    cpl_address_append(out, name, true);
}

void cpl_hub_list_url(cpl_text *out, const cpl_hub_place *place)
{
    cpl_text_printf(out, "%s/api/models/%s/revision/", place->endpoint, place->repository);
    cpl_address_append(out, place->revision, false);
}

/* ---- the list of files ---- */

/* Sets the revision to the commit, if the list names one, so that a push in between mixes no
 * versions. */
static cpl_status take_commit(cpl_hub_place *place, bool *has_commit, const json_t *list)
{
    const char *commit = json_string_value(json_object_get(list, "sha"));
    *has_commit        = is_commit(commit) || is_commit(place->revision);
    if (!is_commit(commit)) return CPL_OK;
    char *copy = cpl_text_copy(commit);
    if (!copy) return CPL_ERR_MEMORY;
    cpl_free(place->revision);
    place->revision = copy;
    return CPL_OK;
}

cpl_status cpl_hub_read_list(cpl_strings *names, cpl_hub_place *place, bool *has_commit,
                             const char *text, size_t length, const char *where)
{
    cpl_status status   = CPL_OK;
    const size_t before = strlen(place->folder);
    json_t *list, *files;
    size_t i;
    const json_t *file;
    *names = (cpl_strings){0};
    CPL_TRY(cpl_json_parse(&list, text, length, where));
    CPL_TRY_DONE(cpl_json_array(list, "siblings", &files, where));
    json_array_foreach(files, i, file)
    {
        const char *name = json_string_value(json_object_get(file, "rfilename"));
        if (!name) CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "%s: a file has no `rfilename`", where));
        if (!is_path(name) || strncmp(name, place->folder, before) != 0) continue;
        name += before;
        if (before && *name++ != '/') continue;
        if (*name) CPL_TRY_DONE(cpl_paths_add(names, name));
    }
    cpl_paths_sort(names);
    status = take_commit(place, has_commit, list);
done:
    json_decref(list);
    if (status != CPL_OK) cpl_paths_free(names);
    return status;
}

/* ---- the token ---- */

/* Sets `token` to the first line that is not blank, without blanks around it, if there is such a
 * line. */
static cpl_status take_token(char **token, const char *text, const char *where)
{
    text += strspn(text, " \t\r\n");
    size_t length = strcspn(text, "\r\n");
    while (length && strchr(" \t", text[length - 1])) length--;
    for (size_t i = 0; i < length; i++)
        if (text[i] < 0x21 || text[i] > 0x7e)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: holds a character that no token has", where);
    if (!length) return CPL_OK;
    *token = copy_of(text, length);
    return *token ? CPL_OK : CPL_ERR_MEMORY;
}

static cpl_status read_token(char **token, const char *path)
{
    cpl_text text     = {0};
    cpl_status status = cpl_file_read(&text, path, LONGEST_TOKEN);
    if (status == CPL_OK) status = take_token(token, text.length ? text.bytes : "", path);
    if (text.bytes) explicit_bzero(text.bytes, text.length);
    cpl_text_free(&text);
    return status;
}

/* Appends the folder of a hub's client, if a variable gives it. */
static void append_home(cpl_text *out)
{
    const char *hf = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (hf && *hf)
        cpl_text_printf(out, "%s", hf);
    else if (cache && *cache)
        cpl_text_printf(out, "%s/huggingface", cache);
    else if (home && *home)
        cpl_text_printf(out, "%s/.cache/huggingface", home);
}

cpl_status cpl_hub_token(char **token)
{
    const char *given = getenv("HF_TOKEN"), *path = getenv("HF_TOKEN_PATH");
    cpl_text file = {0};
    *token        = NULL;
    if (given && *given) return take_token(token, given, "HF_TOKEN");
    if (path && *path) return cpl_path_exists(path) ? read_token(token, path) : CPL_OK;
    append_home(&file);
    if (file.length) cpl_text_printf(&file, "/token");
    cpl_status status = cpl_text_status(&file);
    if (status == CPL_OK && file.length && cpl_path_exists(file.bytes))
        status = read_token(token, file.bytes);
    cpl_text_free(&file);
    return status;
}
