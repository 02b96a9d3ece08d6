/* terminal.c - see terminal.h: streams of the C library whose bytes pass through a filter
 * (fopencookie). */
#include "cli/terminal/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "parallel/mpi.h"

enum { MOST_SHOWN = 16 }; /* most bytes that one character becomes: \u{10ffff} */

typedef struct filter {
    int descriptor;
    unsigned char waiting[4]; /* [n_waiting] bytes of an incomplete character */
    size_t n_waiting;
} filter;

static filter filters[] = {{.descriptor = STDOUT_FILENO}, {.descriptor = STDERR_FILENO}};

/* ---- characters ---- */

static bool steers(uint32_t c)
{
    return (c >= 0x80 && c <= 0x9f) || c == 0x061c || c == 0x200e || c == 0x200f ||
           (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

static size_t show_character(char out[MOST_SHOWN], const unsigned char *s, int length)
{
    const uint32_t c = cpl_utf8_decode(s, length);
    const bool plain = c >= 0x20 ? c != 0x7f : c == '\n' || c == '\t';
    if (!plain) return (size_t)snprintf(out, MOST_SHOWN, "\\x%02x", (unsigned)c);
    if (steers(c)) return (size_t)snprintf(out, MOST_SHOWN, "\\u{%x}", (unsigned)c);
    memcpy(out, s, (size_t)length);
    return (size_t)length;
}

/* Returns true if further bytes may complete the waiting character. */
static bool may_go_on(const filter *f)
{
    const unsigned char lead = f->waiting[0];
    const size_t wanted      = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    return lead >= 0xc2 && lead <= 0xf4 && f->n_waiting < wanted &&
           (size_t)cpl_utf8_bad_length(f->waiting, f->n_waiting) == f->n_waiting;
}

/* Puts the first waiting character, or its first byte if it cannot be completed, into `out` as
 * shown. Returns the number of bytes, or 0 if more bytes may follow. */
static size_t show_first(char out[MOST_SHOWN], filter *f, bool end)
{
    const int length = cpl_utf8_length(f->waiting, f->n_waiting);
    size_t shown;
    if (!length && !end && may_go_on(f)) return 0;
    if (length)
        shown = show_character(out, f->waiting, length);
    else
        shown = (size_t)snprintf(out, MOST_SHOWN, "\\x%02x", (unsigned)f->waiting[0]);
    f->n_waiting -= (size_t)(length ? length : 1);
    memmove(f->waiting, f->waiting + (length ? length : 1), f->n_waiting);
    return shown;
}

/* ---- width ---- */

/* Opens the terminal that mpirun writes to: under mpirun a rank's own output is a pipe, or a
 * terminal of its own wherever mpirun writes. Returns -1 if mpirun's stream is not a device. */
static int open_shown(int stream, int launcher)
{
    char path[64];
    struct stat there;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", launcher, stream);
    if (stat(path, &there) != 0 || !S_ISCHR(there.st_mode)) return -1;
    return open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
}

/* Returns the columns of the stream's terminal, or 0 if the stream is not a terminal. */
static int columns_of(int stream)
{
    struct winsize size = {0};
    const int launcher  = cpl_mpi_launcher_process();
    const int shown     = launcher ? open_shown(stream, launcher) : stream;
    const bool terminal = shown >= 0 && isatty(shown);
    if (terminal) (void)ioctl(shown, TIOCGWINSZ, &size);
    if (launcher && shown >= 0) close(shown);
    if (!terminal || size.ws_col || launcher) return terminal ? size.ws_col : 0;
    const char *said = getenv("COLUMNS");
    const long value = said ? strtol(said, NULL, 10) : 0;
    return value > 0 && value <= USHRT_MAX ? (int)value : 80;
}

int cpl_terminal_columns(FILE *out)
{
    const char *kind = getenv("TERM");
    return kind && strcmp(kind, "dumb") == 0 ? 0 : columns_of(filters[out == stderr].descriptor);
}

/* ---- streams ---- */

static bool write_all(int descriptor, const char *bytes, size_t length)
{
    while (length) {
        const ssize_t put = write(descriptor, bytes, length);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        bytes += put;
        length -= (size_t)put;
    }
    return true;
}

/* Writes bytes through the filter, as a cookie_write_function_t. Returns 0 for a failure. */
static ssize_t write_filtered(void *cookie, const char *bytes, size_t length)
{
    filter *f = cookie;
    char out[4096];
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        f->waiting[f->n_waiting++] = (unsigned char)bytes[i];
        for (size_t shown = 1; f->n_waiting && shown; n += shown)
            shown = show_first(out + n, f, false);
        if (n + 4 * MOST_SHOWN < sizeof out) continue;
        if (!write_all(f->descriptor, out, n)) return 0;
        n = 0;
    }
    return write_all(f->descriptor, out, n) ? (ssize_t)length : 0;
}

static void install(FILE **stream, filter *f, int buffering)
{
    const cookie_io_functions_t through = {.write = write_filtered};
    FILE *made                          = fopencookie(f, "w", through);
    if (!made) return;
    setvbuf(made, NULL, buffering, BUFSIZ);
    *stream = made;
}

void cpl_terminal_install(void)
{
    if (columns_of(STDOUT_FILENO)) install(&stdout, &filters[0], _IOLBF);
    install(&stderr, &filters[1], _IONBF);
}

static void flush(FILE *out, filter *f)
{
    char shown[MOST_SHOWN];
    (void)fflush(out);
    while (f->n_waiting && write_all(f->descriptor, shown, show_first(shown, f, true))) continue;
}

void cpl_terminal_flush(void)
{
    flush(stdout, &filters[0]);
    flush(stderr, &filters[1]);
}

/* Writes control bytes of the program itself, bypassing the filter. */
static void steer(FILE *out, const char *bytes)
{
    filter *f = &filters[out == stderr];
    flush(out, f);
    (void)write_all(f->descriptor, bytes, strlen(bytes));
}

static FILE *drawn; /* the stream whose line is redrawn, or NULL */

void cpl_terminal_begin_line(FILE *out)
{
    steer(out, "\r\033[K");
    drawn = out;
}

void cpl_terminal_clear_line(void)
{
    if (drawn) cpl_terminal_begin_line(drawn);
    drawn = NULL;
}

void cpl_terminal_bold(FILE *out, const char *text)
{
    steer(out, "\033[1m");
    fputs(text, out);
    steer(out, "\033[m");
}
