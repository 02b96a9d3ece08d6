/* output.c - see output.h */
#include "cli/terminal/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/terminal/terminal.h"
#include "io/file.h"
#include "io/json.h"

void cpl_output_prepare(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit of file sizes fails too */
    cpl_json_watch_memory();
    /* Opens closed streams in the wrong mode, so that the use of a closed stream still fails. */
    bool sound = true;
    for (int stream = 0; stream <= 2 && sound; stream++)
        sound = fcntl(stream, F_GETFD) >= 0 || open("/dev/null", stream ? O_RDONLY : O_WRONLY) >= 0;
    cpl_terminal_install();
}

static bool unread; /* the reader of the standard output is gone */

bool cpl_output_unread(void)
{
    return unread;
}

/* Asks the system whether standard output has a reader. errno belongs to the last write, and an
 * earlier write may have failed. */
static bool has_no_reader(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP));
}

cpl_status cpl_output_check(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return CPL_OK;
    unread = errno == EPIPE || has_no_reader();
    return CPL_FAIL(CPL_ERR_IO, "cannot write to the standard output: %s",
                    errno ? strerror(errno) : "an earlier write failed");
}

void cpl_output_words(FILE *out, const char *words)
{
    for (; *words; words++)
        if (*words == '\n' || *words == '\t')
            fprintf(out, "\\x%02x", (unsigned)*words);
        else
            fputc(*words, out);
}

void cpl_output_name(FILE *out, const char *name, int width)
{
    const size_t length = strlen(name), wide = (size_t)width;
    cpl_output_words(out, name);
    fprintf(out, "%*s", (int)(length < wide ? wide - length : 0), "");
}

cpl_status cpl_output_text(cpl_status made, cpl_text *text)
{
    if (made == CPL_OK) made = cpl_text_status(text);
    if (made == CPL_OK && text->length) fwrite(text->bytes, 1, text->length, stdout);
    cpl_text_free(text);
    return made;
}

cpl_status cpl_output_grid(cpl_status made, const cpl_grid *grid, cpl_pool *pool)
{
    cpl_text text = {0};
    if (made == CPL_OK) cpl_grid_text(&text, grid);
    cpl_pool_free(pool);
    return cpl_output_text(made, &text);
}

/* Uses one write, so that the sentences of processes that write at the same time are not mixed. */
void cpl_output_sentence(FILE *out, const char *before, const char *sentence)
{
    cpl_terminal_clear_line();
    char line[3 * 2048];
    size_t n = 0;
    for (; *sentence && n + 5 < sizeof line; sentence++)
        n += (size_t)snprintf(line + n, sizeof line - n,
                              *sentence == '\n' || *sentence == '\t' ? "\\x%02x" : "%c", *sentence);
    line[n] = '\0';
    fprintf(out, "%s%s\n", before, line);
}

void cpl_output_wrapped(FILE *out, int most, int column, int indent, const char *text,
                        const char *end)
{
    while (text < end) {
        int word = (int)strcspn(text, " \n");
        if (column && column + 1 + word > most) {
            fputc('\n', out);
            column = 0;
        }
        column += column ? fprintf(out, " %.*s", word, text)
                         : fprintf(out, "%*s%.*s", indent, "", word, text);
        text += word;
        if (text < end && *text == '\n') {
            fputc('\n', out);
            column = 0;
        }
        text += text < end;
    }
    fputc('\n', out);
}

cpl_status cpl_output_verdict(cpl_text *sentences)
{
    enum { TERMINAL = 80 };
    cpl_status status = cpl_text_status(sentences);
    if (status == CPL_OK)
        cpl_output_wrapped(stdout, TERMINAL, 0, 0, sentences->bytes,
                           sentences->bytes + sentences->length);
    cpl_text_free(sentences);
    return status;
}

static void write_message(void *info, cpl_log_level level, const char *sentence)
{
    FILE *out = level == CPL_LOG_WARN ? stderr : info;
    fflush(stdout); /* keeps the order of the two streams on a terminal */
    cpl_output_sentence(out, level == CPL_LOG_WARN ? "warning: " : "", sentence);
}

cpl_log cpl_output_log(FILE *info)
{
    return (cpl_log){.say = write_message, .ctx = info};
}

static bool is_stdout(const char *path)
{
    return strcmp(path, "/dev/stdout") == 0; /* the standard output may be a new file */
}

bool cpl_output_is_stream(const char *path)
{
    struct stat there;
    return is_stdout(path) ||
           (stat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode));
}

cpl_status cpl_output_file(const char *path, const void *bytes, size_t length)
{
    if (!cpl_output_is_stream(path)) return cpl_file_write_atomic(path, bytes, length);
    if (is_stdout(path)) {
        fwrite(bytes, 1, length, stdout);
        return cpl_output_check();
    }
    FILE *out  = fopen(path, "we");
    bool wrote = out && fwrite(bytes, 1, length, out) == length;
    wrote      = (out ? fclose(out) == 0 : false) && wrote;
    return wrote ? CPL_OK
                 : CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

cpl_status cpl_output_json(json_t *object, const char *what, const char *path, size_t flags)
{
    if (!object) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for %s", what);
    char *text = cpl_json_check(path) == CPL_OK ? json_dumps(object, JSON_INDENT(1) | flags) : NULL;
    json_decref(object);
    if (!text) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for %s", what);
    size_t length = strlen(text);
    text[length]  = '\n'; /* replaces the NUL, since the length is passed */
    cpl_status status =
        cpl_output_file(strcmp(path, "-") == 0 ? "/dev/stdout" : path, text, length + 1);
    cpl_json_text_free(text);
    return status;
}

cpl_status cpl_output_read_input(cpl_text *out, size_t most_bytes)
{
    char chunk[1 << 16];
    size_t all = 0;
    for (size_t got;;) {
        CPL_TRY(cpl_file_read_next(STDIN_FILENO, chunk, sizeof chunk, &got, "the standard input"));
        if (got == 0) return CPL_OK;
        if (got > most_bytes - all)
            return CPL_FAIL(CPL_ERR_INPUT, "the standard input is longer than %zu bytes",
                            most_bytes);
        all += got;
        cpl_text_append(out, chunk, got);
        CPL_TRY(cpl_text_status(out));
    }
}
