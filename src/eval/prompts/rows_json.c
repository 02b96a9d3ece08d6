/* rows_json.c - rows of a JSON file that is an array, has one, or is one object; see rows.h
 *
 * An item is cut out by counting brackets outside of strings, and only then parsed. An item that
 * breaks the grammar may have been cut in the wrong place, and ends the file. An item that is sound
 * but cannot be used (a name twice, half of a surrogate pair, too long) is a bad row. */
#include <string.h>

#include "base/text.h"
#include "eval/prompts/internal.h"
#include "io/file.h"
#include "io/json_pull.h"

enum { BEFORE, IN_FILE_ARRAY, IN_MEMBER_ARRAY, AFTER }; /* cpl_rows.place */

/* ---- bytes ---- */

/* Passes white space. Returns the next byte without passing it. */
static int peek(cpl_rows *r)
{
    for (;;) {
        int c = cpl_rows_peek(r);
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return c;
        cpl_rows_pass(r);
    }
}

/* Fails because the file ends, or has other text in place of `what`. */
static void should_be(cpl_rows *r, const char *what)
{
    if (cpl_rows_peek(r) < 0)
        cpl_rows_fail(r, r->line, r->column, "the file ends where %s is expected", what);
    else
        cpl_rows_fail(r, r->line, r->column, "%s is expected here", what);
}

static bool expect(cpl_rows *r, int byte, const char *what)
{
    if (peek(r) != byte) {
        should_be(r, what);
        return false;
    }
    cpl_rows_pass(r);
    return true;
}

/* ---- values ---- */

static void pass(cpl_rows *r, bool keep)
{
    if (keep) cpl_rows_keep(r, r->chunk + r->at, 1);
    cpl_rows_pass(r);
}

/* Passes a string, array or object up to the quote or bracket that closes it. Returns false if the
 * file ends before. Brackets in strings do not count. */
static bool cut_nested(cpl_rows *r, bool keep)
{
    int64_t depth = 0;
    bool quoted   = false;
    for (int c; (c = cpl_rows_peek(r)) >= 0;) {
        pass(r, keep);
        if (c == '"') quoted = !quoted;
        if (quoted && c == '\\' && cpl_rows_peek(r) >= 0) pass(r, keep);
        if (quoted) continue;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth == 0) return true;
    }
    return false;
}

/* Keeps the value that begins here as the reader's text, or passes it. */
static bool cut_value(cpl_rows *r, bool keep)
{
    int first    = peek(r);
    int64_t line = r->line, column = r->column;
    bool whole;
    if (keep) cpl_rows_begin(r, line);
    if (first == '"' || first == '{' || first == '[') {
        whole = cut_nested(r, keep);
    } else { /* a number or a word */
        int c = first;
        for (; c >= 0 && !strchr(",:]}[{\" \t\r\n", c); c = cpl_rows_peek(r)) pass(r, keep);
        whole = first >= 0 && c != first;
        if (!whole) should_be(r, "a value");
    }
    if (!whole) cpl_rows_fail(r, line, column, "the file ends inside the value that begins here");
    return whole;
}

/* ---- the object around the array ---- */

/* Passes a name and its colon. Sets `wanted` to whether it is the name of the array of rows. */
static bool cut_name(cpl_rows *r, bool *wanted)
{
    char *name = NULL;
    if (peek(r) != '"') should_be(r, "a name");
    int64_t line = r->line, column = r->column;
    if (r->status != CPL_OK || !cut_value(r, true) || r->text.failed) return false;
    cpl_json_pull c = cpl_json_pull_start(r->text.bytes, r->text.length);
    if (r->message.length || !cpl_json_pull_string(&c, &name))
        cpl_rows_fail(r, line, column, "this name cannot be read");
    r->row_line = 0;
    *wanted     = r->kind.member && name && strcmp(name, r->kind.member) == 0;
    return expect(r, ':', "a colon");
}

/* Enters the array of rows, or passes the object's end. `first`: no member precedes. */
static void next_members(cpl_rows *r, bool first)
{
    bool wanted = false, before = r->place == IN_MEMBER_ARRAY;
    for (; peek(r) != '}'; first = false) {
        if (!first && !expect(r, ',', "a comma or the end of the object")) return;
        if (!cut_name(r, &wanted)) return;
        if (wanted && before)
            cpl_rows_fail(r, r->line, r->column, "a second \"%.64s\"", r->kind.member);
        if (wanted && expect(r, '[', "an array")) r->place = IN_MEMBER_ARRAY;
        if (wanted || !cut_value(r, false)) return;
    }
    cpl_rows_pass(r);
    const int64_t line = r->line;
    const bool lines   = !before && peek(r) == '{';
    if (!before)
        cpl_rows_fail(r, line, 0, "the object that ends here has no \"%.64s\"%s", r->kind.member,
                      lines ? "; a file that has an object on every line is called .jsonl" : "");
    r->place = AFTER;
}

/* ---- rows ---- */

/* Reads a file that is one object. It is one row, however it is damaged. */
static json_t *only_row(cpl_rows *r)
{
    int64_t column = r->column;
    r->place       = AFTER;
    cpl_rows_begin(r, r->line);
    (void)cut_nested(r, true);
    return cpl_rows_parse(r, r->row_line, column);
}

/* Enters the array of rows. */
static void begin(cpl_rows *r, int first)
{
    if (first == '[' || first == '{') {
        cpl_rows_pass(r);
        r->place = first == '[' ? IN_FILE_ARRAY : BEFORE;
        if (first == '{') next_members(r, true);
    } else if (first < 0) {
        cpl_rows_fail(r, r->line, 0, "the file is empty where JSON should be");
    } else {
        cpl_rows_fail(r, r->line, r->column, "an array or an object is expected here%s",
                      cpl_file_hint(r->chunk + r->at, r->got - r->at));
    }
}

static void end_of_array(cpl_rows *r)
{
    cpl_rows_pass(r);
    if (r->place == IN_MEMBER_ARRAY)
        next_members(r, false);
    else
        r->place = AFTER;
}

/* Returns whether the text that was cut out must be the intended row: an object, or a text that was
 * not kept whole. */
static bool is_sound(const cpl_rows *r)
{
    return r->row_bytes > r->kind.max_bytes || r->text.failed || r->message.failed ||
           cpl_json_is_object(r->text.bytes, r->text.length);
}

static json_t *next_item(cpl_rows *r)
{
    if (r->after_item && !expect(r, ',', "a comma or the end of the array")) return NULL;
    int first      = peek(r);
    int64_t column = r->column;
    r->after_item  = true;
    if (!cut_value(r, true)) return NULL;
    if (first != '{') {
        cpl_rows_bad(r, r->row_line, column, "an item that is no object");
        return NULL;
    }
    json_t *row = cpl_rows_parse(r, r->row_line, column);
    if (!row && r->status == CPL_OK && !is_sound(r))
        r->status = CPL_FAIL(CPL_ERR_INPUT, "%s", r->message.bytes);
    return row;
}

static bool in_array(const cpl_rows *r)
{
    return r->status == CPL_OK && (r->place == IN_FILE_ARRAY || r->place == IN_MEMBER_ARRAY);
}

json_t *cpl_rows_next_json(cpl_rows *r)
{
    int first = peek(r);
    if (r->place == BEFORE && first == '{' && !r->kind.member) return only_row(r);
    if (r->place == BEFORE) begin(r, first);
    if (in_array(r)) {
        if (peek(r) != ']') return next_item(r);
        end_of_array(r);
    }
    if (r->place == AFTER && peek(r) >= 0)
        cpl_rows_fail(r, r->line, r->column, "something follows the JSON");
    return NULL;
}
