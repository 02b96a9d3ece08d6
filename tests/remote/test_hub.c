/* test_hub.c - words and URLs of a hub, its list of files, and the sources of the token; allowed
 * URLs, and the hosts that get the token. No connection is made. */
#include "base/arena.h"
#include "check.h"
#include "io/file.h"
#include "io/paths.h"
#include "remote/address.h"
#include "remote/hub.h"
#include "support/files.h"

static void clear_environment(void)
{
    static const char *const names[] = {"HF_ENDPOINT", "HF_TOKEN",       "HF_TOKEN_PATH",
                                        "HF_HOME",     "XDG_CACHE_HOME", "HOME"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

static void assert_parts(const char *word, const char *repository, const char *revision,
                         const char *folder)
{
    cpl_hub_place place;
    assert_ok(cpl_hub_parse(&place, word));
    assert_string_equal(place.endpoint, "https://huggingface.co");
    assert_string_equal(place.repository, repository);
    assert_string_equal(place.revision, revision);
    assert_string_equal(place.folder, folder);
    cpl_hub_free(&place);
}

TEST(words)
{
    clear_environment();
    assert_parts("hf://allenai/OLMoE-1B-7B-0924", "allenai/OLMoE-1B-7B-0924", "main", "");
    assert_parts("hf://a/b@v1.0", "a/b", "v1.0", "");
    assert_parts("hf://a/b@refs/pr/7/sub/dir/", "a/b", "refs/pr/7", "sub/dir");
    assert_parts("hf://a/b@refs%2Fpr%2F7", "a/b", "refs/pr/7", "");
    assert_parts("hf://a/b@my%2fbranch/x.gguf", "a/b", "my/branch", "x.gguf");
    assert_parts("hf://a/b//x/y.safetensors", "a/b", "main", "x/y.safetensors");
    static const char *const bad[] = {
        "hf://a",          "hf://a/",           "hf:///b",        "hf://a/.b",  "hf://a/b@",
        "hf://a/b@../x",   "hf://a/b/../c",     "hf://a/b/c\x1b", "hf://a b/c", "hf://a/b?c",
        "hf://spaces/a/b", "hf://a/b@x%0ay/..", "hf://a/b//c//d"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cpl_hub_place place;
        if (cpl_hub_parse(&place, bad[i]) != CPL_ERR_INPUT) fail_msg("%s is taken", bad[i]);
        assert_null(place.repository);
    }
}

/* Pages of a hub as a browser shows them, and pages that are no repository. */
TEST(pages)
{
    static const char *const words[][2] = {
        {"https://huggingface.co/allenai/OLMoE-1B-7B-0924", "hf://allenai/OLMoE-1B-7B-0924"},
        {"https://hf.co/a/b/", "hf://a/b"},
        {"https://HuggingFace.co/a/b?library=transformers#files", "hf://a/b"},
        {"https://huggingface.co/a/b/tree/main", "hf://a/b@main"},
        {"https://huggingface.co/a/b/tree/refs%2Fpr%2F7/sub%41/", "hf://a/b@refs%2Fpr%2F7/subA"},
        {"https://huggingface.co/a/b/blob/v1/x.gguf", "hf://a/b@v1/x.gguf"},
        {"https://huggingface.co/a/b/resolve/main/x.gguf?download=true", "hf://a/b@main/x.gguf"},
        {"https://hf.co/a/b/resolve/main", "hf://a/b@main"},
        {"https://huggingface.co/a/b/raw/main/config.json", "hf://a/b@main/config.json"},
        {"https://huggingface.co/a/b/discussions/1", "hf://a/b"},
        {"https://huggingface.co/a/b/tree", "hf://a/b"},
        {"https://huggingface.co/datasets/a/b", "hf://datasets/a"},
        {"https://huggingface.co/a", "https://huggingface.co/a"},
        {"https://huggingface.co", "https://huggingface.co"},
        {"https://huggingface.co.example/a/b", "https://huggingface.co.example/a/b"},
        {"https://mirror.example/hub/a/b", "https://mirror.example/hub/a/b"},
        {"hf://a/b/c", "hf://a/b/c"},
    };
    clear_environment();
    setenv("HF_ENDPOINT", "https://mirror.example/hub/", 1);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char *word;
        assert_ok(cpl_hub_word(&word, words[i][0]));
        assert_string_equal(word, words[i][1]);
        cpl_free(word);
    }
    clear_environment();
}

static void assert_urls(const char *word, const char *name, const char *file, const char *list)
{
    cpl_hub_place place;
    cpl_text url = {0};
    assert_ok(cpl_hub_parse(&place, word));
    cpl_hub_file_url(&url, &place, name);
    assert_string_equal(url.bytes, file);
    cpl_text_clear(&url);
    cpl_hub_list_url(&url, &place);
    assert_string_equal(url.bytes, list);
    cpl_text_free(&url);
    cpl_hub_free(&place);
}

TEST(urls)
{
    clear_environment();
    assert_urls("hf://a/b", "config.json", "https://huggingface.co/a/b/resolve/main/config.json",
                "https://huggingface.co/api/models/a/b/revision/main");
    setenv("HF_ENDPOINT", "https://mirror.example:8443/hub/", 1);
    assert_urls("hf://a/b@refs/pr/7", "sub/a %41?#\n\xc3\xa9",
                "https://mirror.example:8443/hub/a/b/resolve/refs%2Fpr%2F7/"
                "sub/a%20%2541%3F%23%0A%C3%A9",
                "https://mirror.example:8443/hub/api/models/a/b/revision/refs%2Fpr%2F7");
    cpl_hub_place place;
    setenv("HF_ENDPOINT", "http://mirror.example", 1);
    assert_fails(CPL_ERR_INPUT, "HF_ENDPOINT: http://mirror.example: http:// is not encrypted",
                 cpl_hub_parse(&place, "hf://a/b"));
    clear_environment();
}

static cpl_status read_list(cpl_strings *names, cpl_hub_place *place, const char *text)
{
    bool has_commit;
    const cpl_status status =
        cpl_hub_read_list(names, place, &has_commit, text, strlen(text), "the list");
    if (status == CPL_OK) assert_int_equal(has_commit, strlen(place->revision) == 40);
    return status;
}

TEST(lists)
{
    static const char sha[] = "0123456789abcdef0123456789abcdef01234567";
    cpl_hub_place place;
    cpl_strings names;
    char text[512];
    clear_environment();
    assert_ok(cpl_hub_parse(&place, "hf://a/b"));
    assert_ok(
        read_list(&names, &place,
                  "{\"sha\": \"main\", \"siblings\": [{\"rfilename\": \"b\"}, {\"rfilename\": "
                  "\"a/c\", \"size\": 3}, {\"rfilename\": \"../x\"}, {\"rfilename\": "
                  "\"/etc/y\"}, {\"rfilename\": \"\"}]}"));
    assert_int_equal(names.count, 2); /* names that leave the repository are not listed */
    assert_string_equal(names.at[0], "a/c");
    assert_string_equal(names.at[1], "b");
    assert_string_equal(place.revision, "main"); /* the list has no commit */
    cpl_paths_free(&names);
    snprintf(text, sizeof text, "{\"sha\": \"%s\", \"siblings\": []}", sha);
    assert_ok(read_list(&names, &place, text));
    assert_int_equal(names.count, 0);
    assert_string_equal(place.revision, sha);
    assert_fails(CPL_ERR_INPUT, "siblings", read_list(&names, &place, "{}"));
    assert_fails(CPL_ERR_INPUT, "rfilename", read_list(&names, &place, "{\"siblings\": [{}]}"));
    assert_fails(CPL_ERR_INPUT, "looks like a web page", read_list(&names, &place, "<html>"));
    assert_fails(CPL_ERR_INPUT, "is empty", read_list(&names, &place, ""));
    cpl_hub_free(&place);
}

static void assert_token(const char *wanted)
{
    char *token;
    assert_ok(cpl_hub_token(&token));
    if (!wanted) assert_null(token);
    if (wanted) assert_string_equal(token, wanted);
    cpl_free(token);
}

TEST(tokens)
{
    const char *folder = scratch_folder(), *path = in_folder(folder, "token");
    const char *other = in_folder(folder, "other");
    char *token;
    clear_environment();
    assert_token(NULL);
    setenv("HOME", folder, 1);
    assert_token(NULL);
    setenv("HF_HOME", folder, 1);
    assert_token(NULL); /* there is no such file */
    write_string(path, "hf_home\n");
    assert_token("hf_home");
    write_string(other, "  hf_path \nsecond line\n");
    setenv("HF_TOKEN_PATH", other, 1);
    assert_token("hf_path");
    setenv("HF_TOKEN", "hf_given\n", 1);
    assert_token("hf_given");
    setenv("HF_TOKEN", "a\x01z", 1);
    assert_fails(CPL_ERR_INPUT, "HF_TOKEN: holds a character", cpl_hub_token(&token));
    unsetenv("HF_TOKEN");
    write_string(other, "\n\n");
    assert_token(NULL);
    char *long_text = calloc(1, 5001);
    memset(long_text, 'x', 5000);
    write_string(other, long_text);
    assert_fails(CPL_ERR_INPUT, "longer than", cpl_hub_token(&token));
    free(long_text);
    clear_environment();
}

TEST(addresses)
{
    static const char *const good[] = {"https://host/x", "http://127.0.0.1:80/x", "http://[::1]/x",
                                       "http://localhost:1/", "https://host:8443"};
    static const char *const bad[]  = {
         "http://host/x", "ftp://host/x", "https://u:p@host/",  "http://127.0.0.1.x/",
         "file:///etc",   "https://a b/", "http://1270.0.0.1/", "",
         "host/x"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_ok(cpl_address_check_given(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (cpl_address_check_given(bad[i]) != CPL_ERR_INPUT) fail_msg("%s is allowed", bad[i]);
    assert_ok(cpl_address_check_redirect("https://a/", "https://host/x?signature=1"));
    assert_fails(CPL_ERR_INPUT, "query", cpl_address_check_given("https://host/x?signature=1"));
    assert_fails(CPL_ERR_INPUT, "fragment", cpl_address_check_given("https://host/x#y"));
}

TEST(redirects)
{
    static const char *const good[][2] = {{"https://a/x/y", "/z?s=1"},
                                          {"https://a/x/y", "z"},
                                          {"https://a/x", "https://b:99/z"},
                                          {"https://a/x", "//b/z"},
                                          {"http://127.0.0.1/x", "https://b/z"}};
    static const char *const bad[][2]  = {{"https://a/x", "http://127.0.0.1/z"},
                                          {"http://127.0.0.1/x", "http://b/z"},
                                          {"https://a/x", "ftp://b/z"},
                                          {"https://a/x", "https://u:p@b/z"}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_ok(cpl_address_check_redirect(good[i][0], good[i][1]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cpl_address_check_redirect(bad[i][0], bad[i][1]), CPL_ERR_INPUT);
}

TEST(hosts)
{
    char host[256];
    assert_true(cpl_address_is_same_host("https://a/x", "https://A?z"));
    assert_false(cpl_address_is_same_host("https://a/x", "http://a/x"));
    assert_false(cpl_address_is_same_host("https://a/x", "https://a:444/x"));
    assert_false(cpl_address_is_same_host("https://a/x", "https://a.b/x"));
    assert_false(cpl_address_is_same_host("https://a/x", "https://aa/x"));
    assert_false(cpl_address_is_same_host("https://a/x", "nothing"));
    assert_string_equal(cpl_address_host(host, "https://a/x"), "a:443");
    assert_string_equal(cpl_address_host(host, "http://127.0.0.1:8080/x"), "127.0.0.1:8080");
}

TEST(users)
{
    static const char *const sentences[][2] = {
        {"no answer", "no answer"},
        {"proxy http://bob:se@c/r et@host:1 failed", "proxy http://host:1 failed"},
        {"in 'bob:se c@host': bad port", "in 'host': bad port"},
        {"no proxy bob:sec@host there", "no proxy host there"},
        {"bob:sec@host", "host"},
        {"a@b, see https://c", "b, see https://c"},
        {"ends in it @", "ends in it "},
    };
    for (size_t i = 0; i < sizeof sentences / sizeof *sentences; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s", sentences[i][0]);
        cpl_address_hide_user(text);
        assert_string_equal(text, sentences[i][1]);
    }
}
