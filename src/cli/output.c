/* output.c - see output.h */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "io/json.h"

void cpl_output_prepare(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* likewise a file that may not grow */
    /* Opened the wrong way round, so that using a stream that was closed still fails. */
    for (int stream = 0; stream <= 2; stream++)
        if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", stream ? O_RDONLY : O_WRONLY) < 0)
            return;
}

static bool unread; /* nobody reads the standard output any more */

bool cpl_output_unread(void)
{
    return unread;
}

/* Asked of the system: errno is that of the last write, and an earlier one may have failed. */
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

static void say(void *info, cpl_log_level level, const char *sentence)
{
    FILE *out = level == CPL_LOG_WARN ? stderr : info;
    fflush(stdout); /* keeps the order of the two streams on a terminal */
    fprintf(out, "%s%s\n", level == CPL_LOG_WARN ? "warning: " : "", sentence);
}

cpl_log cpl_output_log(FILE *info)
{
    return (cpl_log){.say = say, .who = info};
}

cpl_status cpl_output_json(json_t *object, const char *what, const char *path, size_t flags)
{
    cpl_status status = CPL_OK;
    if (!object) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for %s", what);
    if (strcmp(path, "-") != 0)
        status = cpl_json_write_atomic(path, object, JSON_INDENT(1) | flags);
    else if (json_dumpf(object, stdout, JSON_INDENT(1) | flags) == 0)
        putchar('\n');
    json_decref(object);
    return status;
}
