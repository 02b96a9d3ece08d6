/* provenance.c - see provenance.h */
#include "app/provenance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/arena.h"
#include "base/text.h"
#include "infer/reader.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "store/run_dir.h"

static const int64_t most_hashed = INT64_C(1) << 30;

/* Appends a word, quoted for a shell if necessary. */
static void put_word(cpl_text *out, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "._-/=,:+@%";
    if (*word && strspn(word, plain) == strlen(word)) {
        cpl_text_printf(out, " %s", word);
        return;
    }
    cpl_text_printf(out, " '");
    for (; *word; word++)
        if (*word == '\'')
            cpl_text_printf(out, "'\\''");
        else
            cpl_text_char(out, *word);
    cpl_text_char(out, '\'');
}

static json_t *command_json(char *const *words, int n)
{
    cpl_text text = {0};
    cpl_text_printf(&text, "couplet");
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], "--overwrite") != 0) put_word(&text, words[i]);
    json_t *value = text.failed ? NULL : cpl_json_words(text.bytes);
    cpl_text_free(&text);
    return value;
}

/* Returns the date. SOURCE_DATE_EPOCH (seconds since 1970) replaces the clock, so that equal
 * reports have equal bytes. */
static json_t *date_json(void)
{
    char text[32];
    const char *given = getenv("SOURCE_DATE_EPOCH");
    const time_t now  = given ? (time_t)strtoll(given, NULL, 10) : time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
    return json_string(text);
}

/* ---- weights ---- */

static int64_t size_of(const char *path)
{
    struct stat there;
    return stat(path, &there) == 0 && S_ISREG(there.st_mode) ? (int64_t)there.st_size : -1;
}

static bool is_weights(const char *name)
{
    const size_t length = strlen(name);
    return (length > 12 && strcmp(name + length - 12, ".safetensors") == 0 &&
            strcmp(name, "state.safetensors") != 0) ||
           (length > 5 && strcmp(name + length - 5, ".gguf") == 0);
}

/* Sets `sum` to the recorded hash of model.safetensors, or to NULL. */
static cpl_status recorded(json_t **sum, const char *folder)
{
    json_t *sums      = NULL;
    char *path        = cpl_path_join(folder, "checksums.json");
    cpl_status status = path ? CPL_OK : CPL_ERR_MEMORY;
    *sum              = NULL;
    if (path && cpl_path_exists(path)) status = cpl_json_load(&sums, path);
    if (json_is_string(json_object_get(sums, "model.safetensors")))
        *sum = json_incref(json_object_get(sums, "model.safetensors"));
    json_decref(sums);
    cpl_free(path);
    return status;
}

/* Adds the hash of the weights at `path`, times `place`, to `sum`, if the file has at most `left`
 * bytes. */
static cpl_status add_hash(uint64_t *sum, int64_t *left, int64_t place, const char *path)
{
    uint64_t hash     = 0;
    cpl_status status = CPL_OK;
    *left -= size_of(path);
    if (*left >= 0) status = cpl_file_hash(&hash, path);
    *sum += (uint64_t)place * hash;
    return status;
}

/* Sets the hash of a folder's weights: the hash of one file, or the sum over several files of their
 * hash times their place. Sets null if the files are too large. */
static cpl_status hash_of_folder(json_t **out, const char *folder)
{
    cpl_strings names = {0};
    int64_t files = 0, left = most_hashed;
    uint64_t sum = 0;
    CPL_TRY(cpl_folder_list(&names, folder));
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < names.count && left >= 0 && status == CPL_OK; i++) {
        if (!is_weights(names.at[i])) continue;
        char *path = cpl_path_join(folder, names.at[i]);
        status     = path ? add_hash(&sum, &left, ++files, path) : CPL_ERR_MEMORY;
        cpl_free(path);
    }
    cpl_paths_free(&names);
    *out = left >= 0 && files ? cpl_json_hash(sum) : json_null();
    return status;
}

static cpl_status hash_of(json_t **out, const char *path)
{
    uint64_t sum = 0;
    int64_t left = most_hashed;
    *out         = NULL;
    if (cpl_path_is_folder(path)) {
        CPL_TRY(recorded(out, path));
        return *out ? CPL_OK : hash_of_folder(out, path);
    }
    if (size_of(path) >= 0) CPL_TRY(add_hash(&sum, &left, 1, path));
    *out = size_of(path) >= 0 && left >= 0 ? cpl_json_hash(sum) : json_null();
    return CPL_OK;
}

static cpl_status add_source(json_t *sources, const char *path)
{
    char *folder      = NULL;
    json_t *hash      = NULL;
    cpl_status status = CPL_OK;
    if (cpl_path_is_folder(path)) status = cpl_run_dir_resolve(&folder, path);
    if (status == CPL_ERR_INPUT) status = CPL_OK;                /* a run without a checkpoint */
    char *real         = folder ? realpath(folder, NULL) : NULL; /* resolves `last` to the step */
    const char *at     = real ? real : folder ? folder : path;
    const int64_t step = cpl_reader_step(at);
    if (status == CPL_OK) status = hash_of(&hash, at);
    json_t *source = json_pack("{s:o*, s:o*, s:o}", "path", cpl_json_words(path), "step",
                               step < 0 ? json_null() : json_integer((json_int_t)step), "xxh3",
                               hash ? hash : json_null());
    if (json_array_append_new(sources, source) != 0 && status == CPL_OK) status = CPL_ERR_MEMORY;
    free(real);
    cpl_free(folder);
    return status;
}

cpl_status cpl_provenance(json_t **made, char *const *words, int n_words, const char *const *paths,
                          int n_paths)
{
    cpl_status status = CPL_OK;
    json_t *sources   = json_array();
    *made             = NULL;
    for (int i = 0; i < n_paths && status == CPL_OK; i++) status = add_source(sources, paths[i]);
    if (status != CPL_OK) {
        json_decref(sources);
        return status;
    }
    char *folder = realpath(".", NULL);
    *made =
        json_pack("{s:s, s:o, s:o*, s:o, s:o}", "program", "couplet " COUPLET_VERSION, "command",
                  command_json(words, n_words), "folder", folder ? cpl_json_words(folder) : NULL,
                  "date", date_json(), "sources", sources);
    free(folder);
    return *made ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the origin of a report");
}
