/* files.h - test files: writing them plain and compressed, reading them, a log that keeps lines. */
#ifndef CPL_TESTS_SUPPORT_FILES_H
#define CPL_TESTS_SUPPORT_FILES_H

#include <zlib.h>
#include <zstd.h>

#include "base/log.h"
#include "base/text.h"
#include "check.h"
#include "io/stream.h"

/* Returns the path of a file in a folder, in one of 64 static buffers. */
__attribute__((noinline, unused)) static const char *in_folder(const char *folder, const char *name)
{
    static char paths[64][512];
    static int turn;
    char *path = paths[turn = (turn + 1) % 64];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void write_bytes(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    if (!file) fail_msg("%s: cannot be written", path);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static inline void write_string(const char *path, const char *string)
{
    write_bytes(path, string, strlen(string));
}

/* Returns the bytes of a file. The caller frees `text` with cpl_text_free. */
static inline cpl_text read_bytes(const char *path)
{
    cpl_text text = {0};
    char chunk[4096];
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: cannot be read", path);
    for (size_t got; (got = fread(chunk, 1, sizeof chunk, file));)
        cpl_text_append(&text, chunk, got);
    fclose(file);
    return text;
}

/* Returns the whole content, decompressed. The caller frees it with cpl_text_free. */
static inline cpl_text read_plain(const char *path)
{
    cpl_text out       = {0};
    cpl_stream *stream = NULL;
    char chunk[1000];
    size_t got = 1;
    assert_ok(cpl_stream_open(&stream, path, 27));
    while (got) {
        assert_ok(cpl_stream_read(stream, chunk, sizeof chunk, &got));
        cpl_text_append(&out, chunk, got);
    }
    cpl_stream_close(stream);
    return out;
}

/* Checks that two files hold the same bytes, decompressed. */
static inline void assert_same_files(const char *got_path, const char *want_path)
{
    cpl_text got = read_plain(got_path), want = read_plain(want_path);
    assert_int_equal(got.length, want.length);
    assert_memory_equal(got.bytes, want.bytes, want.length);
    cpl_text_free(&got);
    cpl_text_free(&want);
}

/* Appends one gzip member that holds `bytes`. */
static inline void append_gzip(cpl_text *out, const void *bytes, size_t length)
{
    z_stream z   = {0};
    size_t room  = length + length / 100 + 1024;
    char *buffer = malloc(room);
    z.next_in    = (unsigned char *)bytes;
    z.avail_in   = (unsigned)length;
    z.next_out   = (unsigned char *)buffer;
    z.avail_out  = (unsigned)room;
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    cpl_text_append(out, buffer, z.total_out);
    deflateEnd(&z);
    free(buffer);
}

/* Appends one Zstandard frame with a check sum. */
static inline void append_zstd(cpl_text *out, const void *bytes, size_t length, int window_log)
{
    ZSTD_CCtx *z = ZSTD_createCCtx();
    size_t room  = ZSTD_compressBound(length);
    char *buffer = malloc(room);
    ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);
    if (window_log) ZSTD_CCtx_setParameter(z, ZSTD_c_windowLog, window_log);
    ZSTD_inBuffer input   = {bytes, length, 0};
    ZSTD_outBuffer output = {buffer, room, 0};
    if (window_log) /* streaming, so that the frame declares its window and not its size */
        assert_false(ZSTD_isError(ZSTD_compressStream2(z, &output, &input, ZSTD_e_flush)));
    assert_int_equal(ZSTD_compressStream2(z, &output, &input, ZSTD_e_end), 0);
    cpl_text_append(out, buffer, output.pos);
    ZSTD_freeCCtx(z);
    free(buffer);
}

/* Appends a Zstandard skippable frame of `length` bytes. */
static inline void append_skippable(cpl_text *out, int variant, unsigned length)
{
    unsigned char head[8] =
        LIST((unsigned char)(0x50 + variant), 0x2A, 0x4D, 0x18, (unsigned char)length,
             (unsigned char)(length >> 8), (unsigned char)(length >> 16), 0);
    cpl_text_append(out, head, 8);
    for (unsigned i = 0; i < length; i++) cpl_text_char(out, 'x');
}

/* Logs into a text, a line a sentence, with "warn: " before warnings. */
static inline void remember(void *ctx, cpl_log_level level, const char *sentence)
{
    cpl_text_printf(ctx, "%s%s\n", level == CPL_LOG_WARN ? "warn: " : "", sentence);
}

static inline cpl_log log_into(cpl_text *text)
{
    cpl_log log = {remember, text};
    return log;
}

#endif /* CPL_TESTS_SUPPORT_FILES_H */
