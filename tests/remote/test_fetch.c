/* test_fetch.c - a server that stops sending and keeps the connection: the connection counts as
 * lost after a while, and the rest is requested. The limit is shorter here than in the program. */
#include "base/arena.h"
#include "remote/fetch.h"
#include "remote/small_server.h"
#include "support/files.h"

enum { FILE_BYTES = 100000, STALL = 1, PATIENCE = 2 };

static unsigned char content[FILE_BYTES], out[FILE_BYTES];
static cpl_fetch_site site;

/* Returns the folder of the file. */
static const char *begin_site(void)
{
    const char *folder = scratch_folder();
    for (int i = 0; i < FILE_BYTES; i++) content[i] = (unsigned char)(i * 31 >> 3);
    write_bytes(in_folder(folder, "x"), content, FILE_BYTES);
    site = (cpl_fetch_site){.patience = 60, .notice = 30};
    pthread_mutex_init(&site.lock, NULL);
    assert_ok(cpl_http_start(&site.http, STALL));
    return folder;
}

static void end_site(void)
{
    cpl_http_close(site.http);
    cpl_free(site.down);
    pthread_mutex_destroy(&site.lock);
}

static cpl_fetch_file a_file(const char *folder)
{
    char url[128];
    snprintf(url, sizeof url, "%s/x", server_start(folder));
    return (cpl_fetch_file){.path = cpl_text_copy("x"), .url = cpl_text_copy(url)};
}

static cpl_status fetch_all(cpl_fetch_file *file, cpl_text *text)
{
    cpl_fetch fetch = {.site = &site, .file = file, .bytes = FILE_BYTES};
    if (text)
        fetch.text = text;
    else
        fetch.out = out;
    return cpl_fetch_run(&fetch);
}

/* The server stalls before the header of a range, and in the middle of a whole file. */
TEST(resumes_after_stall)
{
    const char *folder = begin_site();
    for (int whole = 0; whole < 2; whole++) {
        const int after        = whole ? 40000 : -1;
        cpl_fetch_file file    = a_file(folder);
        cpl_text text          = {0};
        the_server.n_stalls    = 1;
        the_server.stall_after = after;
        const int before       = the_server.n_requests;
        memset(out, 0, sizeof out);
        assert_ok(fetch_all(&file, whole ? &text : NULL));
        assert_int_equal(the_server.n_requests - before, 2);
        if (whole) assert_int_equal(text.length, FILE_BYTES);
        assert_memory_equal(whole ? (unsigned char *)text.bytes : out, content, FILE_BYTES);
        cpl_text_free(&text);
        cpl_fetch_file_free(&file);
    }
    end_site();
}

/* A server that always stalls is given up, and the sentence has the reason. */
TEST(gives_up_after_stalls)
{
    const char *folder     = begin_site();
    cpl_fetch_file file    = a_file(folder);
    the_server.n_stalls    = 1000;
    the_server.stall_after = 10;
    assert_fails(CPL_ERR_IO, "was lost 5 times in a row: ", fetch_all(&file, NULL));
    assert_non_null(strstr(cpl_last_error(), "Operation too slow"));
    the_server.n_stalls = 0;
    cpl_fetch_file_free(&file);
    end_site();
}

static void take_sentence(void *ctx, cpl_log_level level, const char *sentence)
{
    char *said = ctx;
    (void)level;
    snprintf(said + strlen(said), 4096 - strlen(said), "%s\n", sentence);
}

/* A server that never stalls but is too slow to end is named, and given up after a while. Without a
 * tag the file would be begun again, and the sentence has the bytes that came. */
TEST(slow_server)
{
    const char *folder = begin_site();
    char said[4096]    = "";
    const cpl_log log  = {take_sentence, said};
    site.patience      = PATIENCE;
    site.notice        = 1;
    site.log           = &log;
    for (unsigned etag = 0; etag < 2; etag++) {
        cpl_fetch_file file = a_file(folder);
        cpl_text text       = {0};
        int sent            = 0;
        the_server.etag     = etag;
        the_server.is_slow  = true;
        assert_fails(CPL_ERR_IO, "is too slow: it has sent ", fetch_all(&file, &text));
        the_server.is_slow = false;
        sscanf(strstr(cpl_last_error(), "it has sent "), "it has sent %d bytes", &sent);
        assert_true(sent >= 100);
        cpl_text_free(&text);
        cpl_fetch_file_free(&file);
    }
    assert_non_null(strstr(said, "x: waiting for 127.0.0.1:"));
    assert_non_null(strstr(said, " bytes in 1 seconds\n"));
    end_site();
}
