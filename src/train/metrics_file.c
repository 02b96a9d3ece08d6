/* metrics_file.c - cuts metrics.jsonl to the lines up to a step; see metrics.h.
 *
 * The first of two passes marks every line with a letter. Only then is it known which damaged lines
 * come before a line that stays. The second pass copies the lines that stay to a new file. It runs
 * only if lines are removed, or if the last line has no line end. */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "io/file.h"
#include "io/json.h"

enum { STAYS = 's', GOES = 'g', DAMAGED = '?', DAMAGED_STAYS = 'd' };

typedef struct cut {
    const char *path;
    int64_t step, expected;
    cpl_text verdicts; /* one letter per line */
    bool open_end;     /* the last line has no line end */
} cut;

static cpl_status open_file(FILE **file, const char *path)
{
    struct stat what;
    /* O_NONBLOCK, so that opening a pipe does not block */
    int descriptor =
        open(path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno == ELOOP)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: is a symbolic link, which a run does not write through; put the file "
                        "itself there",
                        path);
    if (descriptor < 0)
        return CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    cpl_status status = CPL_OK;
    if (fstat(descriptor, &what) != 0 || !S_ISREG(what.st_mode))
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: is not a regular file", path);
    else if (what.st_size > CPL_METRICS_MOST_BYTES)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: is %lld bytes long, more than the metrics of a run; move it away",
                          path, (long long)what.st_size);
    else if (!(*file = fdopen(descriptor, "a+")))
        status = CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to read it", path);
    if (status != CPL_OK) close(descriptor);
    return status;
}

/* Reads the next line without its end. Sets *ended to whether the line ends with '\n'. At the end
 * of the file the line is empty and not ended. */
static cpl_status next_line(cpl_text *line, bool *ended, FILE *file, const char *path)
{
    int byte;
    cpl_text_clear(line);
    while ((byte = getc_unlocked(file)) != EOF && byte != '\n') {
        if (line->length == CPL_METRICS_LINE_BYTES)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: has a line longer than %d bytes, which no run writes; move the "
                            "file away",
                            path, CPL_METRICS_LINE_BYTES);
        cpl_text_char(line, (char)byte);
        if (line->failed) return cpl_text_status(line);
    }
    *ended = byte == '\n';
    if (byte == EOF && ferror(file))
        return CPL_FAIL(CPL_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    return CPL_OK;
}

static cpl_status classify_line(cut *c, const cpl_text *line)
{
    json_t *object    = NULL;
    cpl_status status = cpl_json_parse(&object, line->bytes, line->length, c->path);
    if (status == CPL_ERR_MEMORY) return status;
    const json_t *step = json_object_get(object, "step");
    char verdict       = DAMAGED;
    if (json_is_integer(step)) verdict = json_integer_value(step) <= c->step ? STAYS : GOES;
    json_decref(object);
    cpl_text_char(&c->verdicts, verdict);
    return cpl_text_status(&c->verdicts);
}

static cpl_status judge_all(cut *c, FILE *file)
{
    cpl_text line     = {0};
    bool ended        = true;
    cpl_status status = CPL_OK;
    for (;;) {
        CPL_TRY_DONE(next_line(&line, &ended, file, c->path));
        if (!ended && line.length == 0) break;
        c->open_end = !ended;
        CPL_TRY_DONE(classify_line(c, &line));
    }
done:
    cpl_text_free(&line);
    return status;
}

/* Decides which damaged lines stay. A damaged line before a line that stays is kept. After the last
 * line that stays, damaged lines are kept up to the number of further lines that the checkpoint
 * records. If the checkpoint records no number, all are kept except a line without a line end,
 * which a killed program left. */
static void count_damaged(cut *c)
{
    char *verdict = c->verdicts.bytes;
    size_t n = c->verdicts.length, after = n;
    int64_t staying = 0;
    while (after && verdict[after - 1] != STAYS) after--;
    for (size_t i = 0; i < n; i++) {
        bool unknown = c->expected < 0 && !(c->open_end && i + 1 == n);
        if (verdict[i] == DAMAGED)
            verdict[i] = i < after || unknown || staying < c->expected ? DAMAGED_STAYS : GOES;
        staying += verdict[i] != GOES;
    }
}

static int64_t count(const cut *c, char verdict)
{
    int64_t found = 0;
    for (size_t i = 0; i < c->verdicts.length; i++) found += c->verdicts.bytes[i] == verdict;
    return found;
}

static void warn(const cut *c, int64_t lines, const cpl_log *log)
{
    int64_t damaged = count(c, DAMAGED_STAYS);
    if (damaged)
        cpl_log_warn(
            log, "%s: has %lld damaged line%s, first at line %lld; damaged lines stay unchanged",
            c->path, (long long)damaged, damaged == 1 ? "" : "s",
            (long long)(strchr(c->verdicts.bytes, DAMAGED_STAYS) - c->verdicts.bytes) + 1);
    if (lines < c->expected)
        cpl_log_warn(log,
                     "%s: %lld of the %lld lines up to step %lld are there, the others are lost",
                     c->path, (long long)lines, (long long)c->expected, (long long)c->step);
}

static cpl_status copy_staying(const cut *c, FILE *file)
{
    cpl_writer writer = {0};
    cpl_text line     = {0};
    bool ended;
    cpl_status status = CPL_OK;
    rewind(file);
    CPL_TRY_DONE(cpl_writer_open(&writer, c->path));
    for (size_t i = 0; i < c->verdicts.length; i++) {
        CPL_TRY_DONE(next_line(&line, &ended, file, c->path));
        if (c->verdicts.bytes[i] == GOES) continue;
        cpl_text_char(&line, '\n');
        CPL_TRY_DONE(cpl_text_status(&line));
        cpl_writer_put(&writer, line.bytes, line.length);
    }
    CPL_TRY_DONE(cpl_writer_commit(&writer));
done:
    cpl_writer_abort(&writer);
    cpl_text_free(&line);
    return status;
}

cpl_status cpl_metrics_file_open(FILE **file, int64_t *lines, const char *path, int64_t step,
                                 int64_t expected, const cpl_log *log)
{
    cut c             = {.path = path, .step = step, .expected = expected};
    cpl_status status = CPL_OK;
    *file             = NULL;
    CPL_TRY_DONE(open_file(file, path));
    CPL_TRY_DONE(judge_all(&c, *file));
    count_damaged(&c);
    if (c.open_end || count(&c, GOES)) {
        CPL_TRY_DONE(copy_staying(&c, *file));
        fclose(*file);
        *file = NULL;
        CPL_TRY_DONE(open_file(file, path));
    }
    *lines = (int64_t)c.verdicts.length - count(&c, GOES);
    warn(&c, *lines, log);
    (void)fseek(*file, 0, SEEK_END); /* switches from reading to writing */
done:
    if (status != CPL_OK && *file) fclose(*file);
    if (status != CPL_OK) *file = NULL;
    cpl_text_free(&c.verdicts);
    return status;
}
