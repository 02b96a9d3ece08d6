/* provenance.c - see provenance.h */
#include "app/provenance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/file.h"
#include "io/json.h"
#include "store/run_dir.h"

static const int64_t most_hashed = INT64_C(1) << 30;

/* A word as a shell takes it. */
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
    for (int i = 0; i < n; i++) put_word(&text, words[i]);
    json_t *value = text.failed ? NULL : cpl_json_words(text.bytes);
    cpl_text_free(&text);
    return value;
}

static json_t *date_json(void)
{
    char text[32];
    const time_t now = time(NULL);
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

static json_t *hex(uint64_t hash)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

/* The hash that was recorded of model.safetensors; NULL: none was. */
static json_t *recorded(const char *folder)
{
    json_t *sums = NULL, *sum = NULL;
    char *path = cpl_path_join(folder, "checksums.json");
    if (path && cpl_path_exists(path) && cpl_json_load(&sums, path) == CPL_OK)
        sum = json_incref(json_object_get(sums, "model.safetensors"));
    if (!json_is_string(sum)) {
        json_decref(sum);
        sum = NULL;
    }
    json_decref(sums);
    cpl_free(path);
    return sum;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Of one file its hash, of several the sum of each hash times its place. */
static json_t *hash_of_folder(const char *folder)
{
    char **names  = NULL;
    int64_t count = 0, files = 0, left = most_hashed;
    uint64_t sum = 0;
    if (cpl_folder_list(&names, &count, folder) != CPL_OK) return json_null();
    qsort(names, (size_t)count, sizeof *names, by_name);
    for (int64_t i = 0; i < count && left >= 0; i++) {
        uint64_t hash = 0;
        char *path    = is_weights(names[i]) ? cpl_path_join(folder, names[i]) : NULL;
        if (!path) continue;
        left -= size_of(path);
        if (left >= 0 && cpl_file_hash(&hash, path) != CPL_OK) left = -1;
        sum += (uint64_t)++files * hash;
        cpl_free(path);
    }
    cpl_folder_list_free(names, count);
    return left >= 0 && files ? hex(sum) : json_null();
}

static json_t *hash_of(const char *path)
{
    uint64_t hash = 0;
    json_t *known;
    if (cpl_path_is_folder(path)) return (known = recorded(path)) ? known : hash_of_folder(path);
    if (size_of(path) < 0 || size_of(path) > most_hashed) return json_null();
    return cpl_file_hash(&hash, path) == CPL_OK ? hex(hash) : json_null();
}

/* Of a folder called step-000123; null: of another name. */
static json_t *step_of(const char *folder)
{
    const char *slash = strrchr(folder, '/'), *name = slash ? slash + 1 : folder;
    char *end = NULL;
    if (strncmp(name, "step-", 5) != 0) return json_null();
    const long long step = strtoll(name + 5, &end, 10);
    return end > name + 5 && !*end ? json_integer(step) : json_null();
}

static json_t *source_json(const char *path)
{
    char *whole = realpath(path, NULL), *folder = NULL;
    if (!cpl_path_is_folder(path) || cpl_run_dir_resolve(&folder, path) != CPL_OK) folder = NULL;
    char *real     = folder ? realpath(folder, NULL) : NULL;
    const char *at = real ? real : folder ? folder : path;
    json_t *source = json_pack("{s:o*, s:o*, s:o*}", "path", cpl_json_words(whole ? whole : path),
                               "step", step_of(at), "xxh3", hash_of(at));
    free(whole);
    free(real);
    cpl_free(folder);
    return source;
}

json_t *cpl_provenance_json(char *const *words, int n_words, const char *const *paths, int n_paths)
{
    json_t *sources = json_array();
    for (int i = 0; i < n_paths; i++)
        if (json_array_append_new(sources, source_json(paths[i])) != 0) {
            json_decref(sources);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:o, s:o}", "program", "couplet " COUPLET_VERSION, "command",
                     command_json(words, n_words), "date", date_json(), "sources", sources);
}
