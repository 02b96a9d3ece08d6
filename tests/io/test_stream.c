/* test_stream.c - compressed files, whole and damaged.
 *
 * Method: compressed bytes must come back. Every proper prefix of a compressed file must be refused
 *         or, if it ends between two members or frames, give exactly the members before. */
#include "io/stream.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "support/files.h"

SCRATCH_FOLDER(folder);

/* Reads everything in `path` in pieces of `step` bytes. */
static cpl_status slurp(const char *path, size_t step, int window_log, cpl_text *out)
{
    cpl_stream *stream = NULL;
    char buffer[4096];
    size_t got        = 1;
    cpl_status status = CPL_OK;
    cpl_text_clear(out);
    CPL_TRY(cpl_stream_open(&stream, path, window_log));
    while (got) {
        CPL_TRY_DONE(cpl_stream_read(stream, buffer, step, &got));
        cpl_text_append(out, buffer, got);
    }
done:
    cpl_stream_close(stream);
    return status;
}

static void fill_varied(cpl_text *text, size_t length)
{
    uint32_t x = 7;
    for (size_t i = 0; i < length; i++) {
        x = x * 1664525u + 1013904223u;
        cpl_text_char(text, (char)('a' + (x >> 24) % 20));
    }
}

static void expect(const char *name, const cpl_text *file, const cpl_text *content)
{
    static const size_t steps[] = {1, 3, 100, 4096};
    cpl_text got                = {0};
    const char *path            = in_folder(folder, name);
    write_bytes(path, file->bytes ? file->bytes : "", file->length);
    for (size_t i = 0; i < 4; i++) {
        assert_ok(slurp(path, steps[i], 27, &got));
        assert_int_equal(got.length, content->length);
        if (got.length) assert_memory_equal(got.bytes, content->bytes, got.length);
    }
    cpl_text_free(&got);
}

TEST(whole_files)
{
    cpl_text content = {0}, file = {0};
    fill_varied(&content, 5000);
    expect("plain", &content, &content);
    append_gzip(&file, content.bytes, 2000);
    append_gzip(&file, "", 0);
    append_gzip(&file, content.bytes + 2000, 3000);
    expect("members", &file, &content);
    for (int i = 0; i < 700; i++) cpl_text_char(&file, '\0');
    expect("padded", &file, &content);
    cpl_text_clear(&file);
    append_skippable(&file, 0, 10);
    append_zstd(&file, content.bytes, 2000, 0);
    append_skippable(&file, 15, 300);
    append_zstd(&file, content.bytes + 2000, 3000, 0);
    append_skippable(&file, 7, 0);
    expect("frames", &file, &content);
    cpl_text_clear(&file);
    cpl_text_clear(&content);
    expect("empty", &file, &content);
    append_skippable(&file, 3, 5);
    expect("only-skippable", &file, &content);
    cpl_text_free(&file);
    cpl_text_free(&content);
}

/* Cuts `file` after every byte. `between` lists the lengths at which a prefix is whole. */
static void cut_everywhere(const char *name, const cpl_text *file, const size_t *between,
                           const size_t *content_length, size_t n_between, const cpl_text *content)
{
    cpl_text got     = {0};
    const char *path = in_folder(folder, name);
    for (size_t length = 0; length < file->length; length++) {
        size_t whole = n_between;
        for (size_t i = 0; i < n_between; i++)
            if (between[i] == length) whole = i;
        write_bytes(path, file->bytes, length);
        if (whole == n_between) {
            char position[64];
            snprintf(position, sizeof position, "at byte %zu of the compressed file", length);
            assert_fails(CPL_ERR_INPUT, "truncated", slurp(path, 100, 27, &got));
            assert_non_null(strstr(cpl_last_error(), path));
            assert_non_null(strstr(cpl_last_error(), position));
        } else {
            assert_ok(slurp(path, 100, 27, &got));
            assert_int_equal(got.length, content_length[whole]);
            if (got.length) assert_memory_equal(got.bytes, content->bytes, got.length);
        }
    }
    cpl_text_free(&got);
}

TEST(every_cut)
{
    cpl_text content = {0}, file = {0};
    fill_varied(&content, 600);
    append_gzip(&file, content.bytes, 400);
    size_t between[2] = {file.length, 0}, lengths[2] = {400, 400};
    append_gzip(&file, content.bytes + 400, 200);
    /* After one byte of the second member's magic only that byte is missing from "1f 8b". */
    cut_everywhere("cut.gz", &file, between, lengths, 1, &content);
    cpl_text_clear(&file);
    append_zstd(&file, content.bytes, 400, 0);
    between[0] = file.length;
    append_skippable(&file, 2, 9);
    between[1] = file.length;
    append_zstd(&file, content.bytes + 400, 200, 0);
    cut_everywhere("cut.zst", &file, between, lengths, 2, &content);
    cpl_text_free(&file);
    cpl_text_free(&content);
}

/* A changed byte must be refused or leave the content as it was (header fields like the time). */
TEST(every_damage)
{
    cpl_text content = {0}, file[2] = {{0}, {0}}, got = {0};
    const char *path[2] = {in_folder(folder, "hurt.jsonl.gz"), in_folder(folder, "hurt.jsonl.zst")};
    int refused         = 0;
    fill_varied(&content, 300);
    append_gzip(&file[0], content.bytes, content.length);
    append_zstd(&file[1], content.bytes, content.length, 0);
    for (int kind = 0; kind < 2; kind++)
        for (size_t at = 0; at < file[kind].length; at++)
            for (int bit = 0; bit < 8; bit++) {
                file[kind].bytes[at] ^= (char)(1 << bit);
                write_bytes(path[kind], file[kind].bytes, file[kind].length);
                cpl_status status = slurp(path[kind], 64, 27, &got);
                file[kind].bytes[at] ^= (char)(1 << bit);
                if (status == CPL_OK) {
                    assert_int_equal(got.length, content.length);
                    assert_memory_equal(got.bytes, content.bytes, got.length);
                } else {
                    assert_int_equal(status, CPL_ERR_INPUT);
                    assert_non_null(strstr(cpl_last_error(), path[kind]));
                    refused++;
                }
            }
    assert_true(refused > 6 * 300);
    for (int kind = 0; kind < 2; kind++) cpl_text_free(&file[kind]);
    cpl_text_free(&content);
    cpl_text_free(&got);
}

TEST(rubbish_behind)
{
    cpl_text file = {0}, got = {0};
    append_gzip(&file, "abc", 3);
    cpl_text_append(&file, "\0\0rubbish", 9);
    write_bytes(in_folder(folder, "behind.gz"), file.bytes, file.length);
    assert_fails(CPL_ERR_INPUT, "corrupt gzip", slurp(in_folder(folder, "behind.gz"), 9, 27, &got));
    cpl_text_clear(&file);
    append_zstd(&file, "abc", 3, 0);
    cpl_text_append(&file, "rubbish", 7);
    write_bytes(in_folder(folder, "behind.zst"), file.bytes, file.length);
    assert_fails(CPL_ERR_INPUT, "corrupt Zstandard",
                 slurp(in_folder(folder, "behind.zst"), 9, 27, &got));
    cpl_text_free(&file);
    cpl_text_free(&got);
}

TEST(window_limit)
{
    cpl_text file = {0}, got = {0};
    append_zstd(&file, "wide window", 11, 24);
    const char *path = in_folder(folder, "wide.zst");
    write_bytes(path, file.bytes, file.length);
    assert_ok(slurp(path, 64, 24, &got));
    assert_memory_equal(got.bytes, "wide window", 11);
    assert_fails(CPL_ERR_INPUT, "zstd_window_log", slurp(path, 64, 23, &got));
    cpl_text_free(&file);
    cpl_text_free(&got);
}

TEST(world_refuses)
{
    cpl_text got = {0};
    assert_fails(CPL_ERR_IO, "/nowhere/file", slurp("/nowhere/file", 9, 27, &got));
    assert_fails(CPL_ERR_INPUT, folder, slurp(folder, 9, 27, &got));
    cpl_text_free(&got);
}

/* A pipe is refused at once, unless the user named it: then its bytes are read as from a file. */
TEST(pipes)
{
    cpl_stream *stream = NULL;
    cpl_text got       = {0};
    char command[600], bytes[16];
    size_t n         = 0;
    const char *pipe = in_folder(folder, "pipe.gz");
    alarm(60);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_fails(CPL_ERR_INPUT, "not a regular file", slurp(pipe, 9, 27, &got));
    snprintf(command, sizeof command, "(sleep 0.2; printf hello | gzip) > '%s' &", pipe);
    assert_int_equal(system(command), 0);
    assert_ok(cpl_stream_open_given(&stream, pipe, 27));
    assert_ok(cpl_stream_read(stream, bytes, sizeof bytes, &n));
    assert_int_equal(n, 5);
    assert_memory_equal(bytes, "hello", 5);
    assert_ok(cpl_stream_read(stream, bytes, sizeof bytes, &n));
    assert_int_equal(n, 0);
    alarm(0);
    cpl_stream_close(stream);
    cpl_text_free(&got);
}

/* The bound counts decompressed bytes, not the bytes on the disk. */
TEST(limits)
{
    cpl_stream *stream = NULL;
    cpl_text file      = {0};
    char bytes[64], *zeros = calloc(1, 100000);
    size_t n = 1, all = 0;
    const char *path  = in_folder(folder, "bomb.gz");
    cpl_status status = CPL_OK;
    append_gzip(&file, zeros, 100000);
    assert_true(file.length < 1000);
    write_bytes(path, file.bytes, file.length);
    assert_ok(cpl_stream_open(&stream, path, 27));
    cpl_stream_limit(stream, 1000);
    for (; n && status == CPL_OK; all += n)
        status = cpl_stream_read(stream, bytes, sizeof bytes, &n);
    assert_int_equal(status, CPL_ERR_INPUT);
    assert_non_null(strstr(cpl_last_error(), "bomb.gz: is longer than the 1000 bytes"));
    assert_in_range(all, 900, 1000);
    cpl_stream_close(stream);
    cpl_text_free(&file);
    free(zeros);
}

TEST(no_memory)
{
    cpl_text file = {0};
    char byte     = 0;
    append_gzip(&file, "abc", 3);
    const char *path = in_folder(folder, "memory.gz");
    write_bytes(path, file.bytes, file.length);
    cpl_text_free(&file);
    cpl_status status = CPL_ERR_MEMORY;
    int64_t n         = 0;
    while (status != CPL_OK) {
        cpl_stream *stream = NULL;
        size_t got         = 0;
        cpl_alloc_fail_at(++n);
        status = cpl_stream_open(&stream, path, 27);
        if (status == CPL_OK) status = cpl_stream_read(stream, &byte, 1, &got);
        cpl_alloc_fail_at(0);
        cpl_stream_close(stream);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
    }
    assert_true(n > 4);
    assert_int_equal(byte, 'a');
}
