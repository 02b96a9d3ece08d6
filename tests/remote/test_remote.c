/* test_remote.c - a checkpoint on a server is read as the local one is: by several threads, in any
 * order, with and without a plan. Every failing allocation gives an error and nothing worse. The
 * server is in this process. tests/remote/check_remote*.py tests programs and faulty servers. */
#include "base/arena.h"
#include "inspect/inspect_case.h"
#include "remote/remote.h"
#include "remote/small_server.h"
#include "support/files.h"

enum { FILE_BYTES = 9000000, N_PIECES = 400, N_THREADS = 4 };
enum { PIECE = 7 << 19, LATER = 37, N_LATER = 8 }; /* LATER pieces fill the buffer */

static unsigned char content[FILE_BYTES];
static cpl_source_pieces pieces;

static const char *write_content(void)
{
    const char *folder = scratch_folder();
    for (uint32_t i = 0; i < FILE_BYTES; i++) content[i] = (unsigned char)(i * 2654435761u >> 24);
    write_bytes(in_folder(folder, "x.gguf"), content, FILE_BYTES);
    return folder;
}

/* Makes pieces of changing lengths and distances, some of them twice. */
static void make_pieces(const cpl_source *source)
{
    uint64_t at = 100;
    for (uint64_t i = 0; at < FILE_BYTES - 1000000 && i < N_PIECES; i++) {
        const uint64_t bytes = 1 + i * i * 7919 % (i % 50 ? 5000 : 600000);
        assert_ok(cpl_source_pieces_add(&pieces, source, at, bytes));
        if (i % 7 == 0) assert_ok(cpl_source_pieces_add(&pieces, source, at, bytes));
        at += bytes + i * 104729 % 200000 * (i % 3 == 0);
    }
    assert_true(pieces.count > 50);
}

typedef struct reader {
    pthread_t thread;
    int number;
    const cpl_source *source;
    int64_t wrong;
} reader;

/* Reads its share of the pieces, and after each piece a place that is in no plan. */
static void *read_share(void *ctx)
{
    reader *r           = ctx;
    unsigned char *here = malloc(600000);
    for (int64_t i = r->number; i < pieces.count; i += N_THREADS) {
        const cpl_source_piece *p = &pieces.at[i];
        const bool good = cpl_source_read_at(p->source, here, p->bytes, p->offset) == CPL_OK;
        if (!good || memcmp(here, content + p->offset, p->bytes) != 0) r->wrong++;
        const uint64_t other = FILE_BYTES - 1000 - (uint64_t)i;
        if (i % 16 == 0 && (cpl_source_read_at(p->source, here, 900, other) != CPL_OK ||
                            memcmp(here, content + other, 900) != 0))
            r->wrong++;
    }
    free(here);
    return NULL;
}

TEST(threads)
{
    const char *folder = write_content();
    cpl_remote *remote;
    cpl_source *source;
    cpl_origin_plan plan;
    reader readers[N_THREADS] = {0};
    char path[128];
    unsigned char start[16];
    snprintf(path, sizeof path, "%s/x.gguf", server_start(folder));
    assert_ok(cpl_remote_open(&remote, path, NULL, NULL));
    const cpl_origin *origin = cpl_remote_origin(remote);
    assert_false(cpl_origin_is_folder(origin, path));
    assert_ok(cpl_origin_open(origin, &source, path));
    assert_int_equal(source->length, FILE_BYTES);
    assert_ok(cpl_source_read_at(source, start, 16, 1000000)); /* read before a plan is made */
    assert_memory_equal(start, content + 1000000, 16);
    make_pieces(source);
    assert_ok(cpl_origin_plan_set(origin, &plan, &pieces));
    const int before = the_server.n_requests;
    assert_int_equal(plan.n_requests_made, before);
    usleep(50000);
    assert_int_equal(the_server.n_requests, before); /* no request before the first reading */
    for (int t = 0; t < N_THREADS; t++) {
        readers[t].number = t;
        assert_int_equal(pthread_create(&readers[t].thread, NULL, read_share, &readers[t]), 0);
    }
    for (int t = 0; t < N_THREADS; t++) {
        pthread_join(readers[t].thread, NULL);
        assert_int_equal(readers[t].wrong, 0);
    }
    const int others = (int)((pieces.count + 15) / 16);
    assert_true(the_server.n_requests - before <= plan.n_requests + others);
    assert_true(plan.n_requests < pieces.count);
    assert_fails(CPL_ERR_INPUT, "ends at byte",
                 cpl_source_read_at(source, start, 16, FILE_BYTES - 15));
    cpl_source_close(source);
    cpl_remote_close(remote);
    cpl_source_pieces_free(&pieces);
}

TEST(changed_file)
{
    const char *folder = write_content();
    cpl_remote *remote;
    cpl_source *source;
    char path[128];
    unsigned char byte;
    snprintf(path, sizeof path, "%s/x.gguf", server_start(folder));
    assert_ok(cpl_remote_open(&remote, path, NULL, NULL));
    assert_ok(cpl_origin_open(cpl_remote_origin(remote), &source, path));
    the_server.etag = 2;
    assert_ok(cpl_source_read_at(source, &byte, 1, 5)); /* bytes that are already known */
    assert_fails(CPL_ERR_INPUT, "changed in between (its ETag",
                 cpl_source_read_at(source, &byte, 1, FILE_BYTES - 1));
    cpl_source_close(source);
    cpl_remote_close(remote);
}

/* Serves a file of `size` bytes, zeros after "begin", and opens it. */
static cpl_remote *open_long(cpl_source **source, uint64_t size)
{
    const char *folder = scratch_folder(), *path = in_folder(folder, "x.gguf");
    char url[128];
    cpl_remote *remote;
    write_string(path, "begin");
    assert_int_equal(truncate(path, (off_t)size), 0);
    snprintf(url, sizeof url, "%s/x.gguf", server_start(folder));
    assert_ok(cpl_remote_open(&remote, url, NULL, NULL));
    assert_ok(cpl_origin_open(cpl_remote_origin(remote), source, url));
    return remote;
}

/* Layers that are left out are in the plan and never read. If they fill the buffer, pieces that are
 * read are fetched all the same. A small range that would still fit, after a longer one that does
 * not, is fetched too. */
TEST(what_nobody_reads)
{
    enum { N = 45, LAST = (N + 1) * PIECE };
    cpl_source *source;
    cpl_remote *remote = open_long(&source, (uint64_t)LAST + 8);
    cpl_origin_plan plan;
    cpl_source_pieces all = {0};
    unsigned char bytes[8], zeros[8] = {0};
    for (uint64_t i = 0; i < N; i++)
        assert_ok(cpl_source_pieces_add(&all, source, i * PIECE, PIECE));
    assert_ok(cpl_source_pieces_add(&all, source, LAST, 8));
    assert_ok(cpl_origin_plan_set(cpl_remote_origin(remote), &plan, &all));
    assert_int_equal(plan.n_requests, N + 1);
    assert_ok(cpl_source_read_at(source, bytes, 8, (uint64_t)(N - 1) * PIECE));
    assert_memory_equal(bytes, zeros, 8);
    assert_ok(cpl_source_read_at(source, bytes, 8, LAST));
    assert_memory_equal(bytes, zeros, 8);
    assert_true(cpl_alloc_in_use() < 140 << 20);
    assert_ok(cpl_source_read_at(source, bytes, 8, 0)); /* a range that was dropped */
    assert_memory_equal(bytes, "begin\0\0", 8);
    cpl_source_pieces_free(&all);
    cpl_source_close(source);
    cpl_remote_close(remote);
}

/* Reads a piece that no worker fetches, because the buffer is full. */
static void *read_later(void *ctx)
{
    reader *r           = ctx;
    unsigned char *here = malloc(PIECE);
    const uint64_t at   = (uint64_t)(LATER + r->number) * PIECE;
    r->wrong            = cpl_source_read_at(r->source, here, PIECE, at) != CPL_OK;
    for (size_t i = 0; i < PIECE; i++) r->wrong += here[i] != 0;
    free(here);
    return NULL;
}

/* The buffer is full of pieces that nobody reads. Later pieces, which several threads need, are
 * fetched one at a time. */
TEST(memory_of_a_full_buffer)
{
    cpl_source *source;
    cpl_remote *remote = open_long(&source, (uint64_t)(LATER + N_LATER) * PIECE);
    cpl_origin_plan plan;
    cpl_source_pieces all   = {0};
    reader readers[N_LATER] = {0};
    for (uint64_t i = 0; i < LATER + N_LATER; i++)
        assert_ok(cpl_source_pieces_add(&all, source, i * PIECE, PIECE));
    assert_ok(cpl_origin_plan_set(cpl_remote_origin(remote), &plan, &all));
    (void)cpl_alloc_peak();
    for (int t = 0; t < N_LATER; t++) {
        readers[t].number = t, readers[t].source = source;
        assert_int_equal(pthread_create(&readers[t].thread, NULL, read_later, &readers[t]), 0);
    }
    for (int t = 0; t < N_LATER; t++) {
        pthread_join(readers[t].thread, NULL);
        assert_int_equal(readers[t].wrong, 0);
    }
    assert_true(cpl_alloc_peak() < (1 << 27) + PIECE + (1 << 20));
    cpl_source_pieces_free(&all);
    cpl_source_close(source);
    cpl_remote_close(remote);
}

/* ---- failing allocations ---- */

static cpl_status inspect_remotely(cpl_coupling_report *report, const char *cache)
{
    cpl_inspect_options o = inspect_plainly();
    cpl_remote *remote;
    cpl_inspect_cost cost;
    CPL_TRY(cpl_remote_open(&remote, the_server.url, cache, NULL));
    o.origin          = cpl_remote_origin(remote);
    o.n_threads       = 2;
    cpl_status status = cpl_inspect_open(report, &cost, cpl_remote_path(remote), &o, NULL);
    if (status == CPL_OK) {
        status = cpl_inspect_run(report);
        cpl_inspect_close(report);
    }
    cpl_remote_close(remote);
    return status;
}

TEST(failing_allocations)
{
    inspect_case c = mixed_case();
    cpl_coupling_report report;
    char cache[128];
    int n_failed      = 0;
    cpl_status status = CPL_ERR_MEMORY;
    case_write(&c, 3);
    server_start(c.folder);
    snprintf(cache, sizeof cache, "%s/cache", scratch_folder());
    assert_ok(inspect_remotely(&report, NULL));
    for (int64_t nth = 1; nth < 20000 && !(status == CPL_OK && nth > 1500); nth += 1 + nth / 15) {
        cpl_alloc_fail_at(nth);
        status = inspect_remotely(&report, nth % 2 ? cache : NULL);
        cpl_alloc_fail_at(0);
        if (status == CPL_OK) continue; /* the allocation was not reached, or was not essential */
        if (status != CPL_ERR_MEMORY)
            fail_msg("allocation %lld: %s", (long long)nth, cpl_last_error());
        n_failed++;
    }
    assert_int_equal(status, CPL_OK);
    assert_true(n_failed > 20);
    assert_int_equal(cpl_alloc_in_use(), 0);
    case_free(&c);
}
